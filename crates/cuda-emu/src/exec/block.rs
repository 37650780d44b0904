//! What a block has besides its warps: shared memory with its shadow, barriers; and a cluster's
//! barrier and clocks.

use std::collections::HashMap;

use super::address::Offsets;
use super::bulk::BulkCopy;
use super::trap::{Step, place, trap_at};
use crate::decode::Program;
use crate::error::FaultKind;
use crate::memory::Space;
use crate::memory::clocks::{Clocks, Flag, Released};
use crate::memory::shadow::{Access, Conflict, Kind, Shadow, Stamp};

/// A block that runs.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) index: [u32; 3],
    /// Its cluster in the gang, and its rank there.
    pub(super) cluster: usize,
    pub(super) rank: u32,
    pub(super) warps: u32,
    /// Agents of a block: its warps, its copy engine, and where there are asynchronous reads, those
    /// of each warp.
    pub(super) agents: u32,
    pub(super) memory: Vec<u8>,
    pub(super) shadow: Option<Shadow>,
    pub(super) barriers: [Barrier; 16],
    /// Threads that have not exited.
    pub(super) alive: u32,
    /// Mbarriers by offset: what their 64 bits have no room for.
    pub(super) mbarriers: HashMap<u32, Released>,
    /// Bytes that were written by strong accesses, likewise.
    pub(super) flags: HashMap<u32, Flag>,
    pub(super) bulk: Vec<BulkCopy>,
}

/// A barrier of a block.
#[derive(Clone, Debug, Default)]
pub(super) struct Barrier {
    pub(super) arrived: u32,
    /// Threads it is for; 0 is all.
    pub(super) expected: u32,
    /// How often it was completed.
    pub(super) generation: u32,
    pub(super) released: Released,
    /// Agents that have arrived and wait.
    pub(super) waiting: Vec<u16>,
    /// How many lanes wait: a warp may come in parts, and some of its lanes may have exited.
    pub(super) lanes: u32,
    /// Reduction so far: how many predicates were true, of how many.
    pub(super) sum: (u32, u32),
    /// That of the last completion.
    pub(super) result: (u32, u32),
}

/// What blocks of a cluster share; a block without a cluster is one by itself.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) clocks: Clocks,
    /// Its first block in the gang, and how many.
    pub(super) first: usize,
    pub(super) blocks: u32,
    pub(super) arrived: u32,
    pub(super) generation: u32,
    pub(super) released: Released,
    pub(super) completed: Released,
}

/// How reports name an access.
pub(super) fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Read => "read",
        Kind::Write => "write",
        Kind::StrongRead => "strong read",
        Kind::StrongWrite => "strong write",
        Kind::Atomic => "atomic",
    }
}

impl Barrier {
    /// As new, for the next block; what it has allocated stays.
    pub(super) fn restart(&mut self) {
        self.released.clear();
        self.waiting.clear();
        (self.arrived, self.lanes, self.expected, self.generation) = (0, 0, 0, 0);
        (self.sum, self.result) = Default::default();
    }
}

impl Block {
    /// The agent that a block's copy engine is.
    pub(super) fn engine(&self) -> u16 {
        (self.rank * self.agents + self.warps) as u16
    }

    /// The agent that a warp is.
    pub(super) fn agent(&self, warp: u32) -> u16 {
        (self.rank * self.agents + warp) as u16
    }

    /// The agent that a warp's asynchronous reads are: those of `wgmma` and of bulk stores.
    pub(super) fn reader(&self, warp: u32) -> u16 {
        (self.rank * self.agents + self.warps + 1 + warp) as u16
    }

    /// Checks that a lane's access lies inside and is aligned.
    #[inline(always)]
    pub(super) fn check_range(
        &self,
        offset: u64,
        bytes: u32,
        align: u32,
        access: &'static str,
        lane: usize,
    ) -> Step<()> {
        let length = self.memory.len() as u64;
        if offset + u64::from(bytes) > length {
            let nearest = format!("the block has {length} bytes of it");
            return trap_at(
                FaultKind::OutOfBounds { space: Space::Shared, bytes, access, nearest },
                lane,
                offset,
            );
        }
        if offset & u64::from(align - 1) != 0 {
            return trap_at(
                FaultKind::Misaligned { space: Space::Shared, bytes: align, access },
                lane,
                offset,
            );
        }
        Ok(())
    }

    /// Notes a lane's access in the shadow.
    #[inline(always)]
    pub(super) fn note(
        &mut self,
        access: &mut Access,
        clocks: &Clocks,
        program: &Program,
        offset: u32,
        bytes: u32,
        lane: usize,
    ) -> Step<()> {
        let Some(shadow) = &mut self.shadow else { return Ok(()) };
        access.at(self.rank, shadow.renumbered());
        match shadow.access(access, clocks, offset, bytes, lane as u8) {
            Ok(()) => Ok(()),
            Err(conflict) => self.conflict(conflict, access, program, offset, bytes, lane),
        }
    }

    /// Notes accesses of the lanes of a mask, of `N` words each, that lie inside and are aligned.
    #[inline(always)]
    pub(super) fn note_lanes<const N: usize>(
        &mut self,
        access: &mut Access,
        clocks: &Clocks,
        program: &Program,
        offsets: &Offsets,
        mask: u32,
    ) -> Step<()> {
        let Some(shadow) = &mut self.shadow else { return Ok(()) };
        access.at(self.rank, shadow.renumbered());
        match shadow.access_lanes::<N>(access, clocks, offsets, mask) {
            Ok(()) => Ok(()),
            Err((lane, conflict)) => {
                self.conflict(conflict, access, program, offsets[lane], 4 * N as u32, lane)
            }
        }
    }

    /// A race with an earlier access.
    pub(super) fn race(&self, access: &'static str, earlier: Stamp, program: &Program) -> FaultKind {
        FaultKind::Race {
            access,
            other_access: word(earlier.kind),
            other: self.agent_name(earlier.agent),
            other_place: Box::new(place(program, earlier.pc)),
        }
    }

    #[cold]
    fn conflict(
        &self,
        conflict: Conflict,
        access: &Access,
        program: &Program,
        offset: u32,
        bytes: u32,
        lane: usize,
    ) -> Step<()> {
        let kind = match conflict {
            Conflict::Uninitialised => FaultKind::Uninitialised { space: Space::Shared, bytes },
            Conflict::Pending(pc) => FaultKind::NotAwaited {
                access: word(access.kind()),
                what: "the destination of an asynchronous copy".to_string(),
                started: Box::new(place(program, pc)),
            },
            Conflict::Proxy(writer) => {
                FaultKind::MissingProxyFence { written: Box::new(place(program, writer.pc)) }
            }
            Conflict::Race(earlier) => self.race(word(access.kind()), earlier, program),
        };
        trap_at(kind, lane, u64::from(offset))
    }

    fn agent_name(&self, agent: u16) -> String {
        let (rank, number) = (u32::from(agent) / self.agents, u32::from(agent) % self.agents);
        let who = match number.checked_sub(self.warps) {
            None => format!("warp {number}"),
            Some(0) => "the copy engine".to_string(),
            Some(reader) => format!("what warp {} started and has not waited for", reader - 1),
        };
        if rank == self.rank { who } else { format!("{who} of the cluster's block {rank}") }
    }
}
