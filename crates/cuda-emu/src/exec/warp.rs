//! A warp: plain data that can stop anywhere. `interpret` runs it.
//!
//! Divergent lanes are fragments: a program counter and a mask each, sorted by counter. The lowest
//! that can run does, up to where the next one stands; there they become one again.

use super::accumulators::Accumulators;
use super::block::Block;
use super::bulk::Stores;
use super::copies::Copies;
use super::lanes::Registers;
use crate::decode::Program;
use crate::memory::fill;

/// What a fragment waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nothing: it can run.
    None,
    /// A barrier's completion, counted by generation.
    Barrier { number: u8, generation: u32 },
    /// The cluster's barrier, likewise.
    Cluster { generation: u32 },
    /// Other lanes, to come to the same instruction.
    Lanes,
}

/// Lanes at one program counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment {
    pub(super) pc: u32,
    pub(super) mask: u32,
    pub(super) wait: Wait,
}

/// Why a warp stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Its turn is over.
    Slice,
    /// No fragment can run.
    Waiting,
    /// It looked whether something is complete, and it was not.
    Spinning,
    /// All lanes have exited.
    Done,
}

/// What an instruction does to the flow.
pub(super) enum Flow {
    /// On to the next instruction.
    Next,
    /// The fragment waits, at the next instruction.
    WaitAfter(Wait),
    /// The fragment waits and runs this instruction again.
    WaitHere(Wait),
    /// The fragment lets others run, then goes on after this instruction.
    Yield,
}

/// A warp.
#[derive(Debug)]
pub(super) struct Warp {
    /// Its number in the block.
    pub(super) id: u32,
    /// Its block in the gang.
    pub(super) block: usize,
    pub(super) agent: u16,
    pub(super) registers: Registers,
    pub(super) fragments: Vec<Fragment>,
    /// Local memory of all lanes, one after another.
    pub(super) local: Vec<u8>,
    pub(super) copies: Copies,
    pub(super) stores: Stores,
    pub(super) accumulators: Accumulators,
    /// Generation of the cluster's barrier when the warp arrived there.
    pub(super) cluster_generation: u32,
    /// Lanes that have come to a reducing barrier and have yet to take its result.
    pub(super) reduced: u32,
    /// Lanes that let others run first.
    pub(super) yielded: u32,
    /// Fragments that waited for lanes have been tried again, and nothing else can run.
    pub(super) desperate: bool,
    pub(super) turn_instructions: u64,
    /// Registers whose value is known before the kernel starts have theirs.
    pub(super) filled: bool,
}

impl Warp {
    pub(super) fn new(program: &Program, id: u32, block: usize, agent: u16) -> Self {
        Self {
            id,
            block,
            agent,
            registers: Registers::new(program.files),
            fragments: Vec::new(),
            local: vec![0; program.local_bytes as usize * 32],
            copies: Copies::default(),
            stores: Stores::default(),
            accumulators: Accumulators::new(program),
            cluster_generation: 0,
            reduced: 0,
            yielded: 0,
            desperate: false,
            turn_instructions: 0,
            filled: false,
        }
    }

    /// Makes it ready for another block.
    pub(super) fn start(&mut self, mask: u32) {
        self.fragments.clear();
        self.fragments.push(Fragment { pc: 0, mask, wait: Wait::None });
        fill(&mut self.local, 0xff);
        self.copies.clear();
        self.stores.clear();
        self.accumulators.clear();
        (self.cluster_generation, self.reduced, self.yielded, self.desperate) = (0, 0, 0, false);
    }

    pub(super) fn done(&self) -> bool {
        self.fragments.is_empty()
    }

    /// Lanes that have not exited.
    pub(super) fn alive(&self) -> u32 {
        self.fragments.iter().fold(0, |mask, f| mask | f.mask)
    }

    pub(super) fn pc(&self) -> u32 {
        self.fragments.first().map_or(0, |f| f.pc)
    }

    pub(super) fn waits_for(&self) -> String {
        match self.fragments.first().map(|f| f.wait) {
            Some(Wait::Barrier { number, .. }) => format!("waits at barrier {number}"),
            Some(Wait::Cluster { .. }) => "waits at the cluster's barrier".to_string(),
            Some(Wait::Lanes) => "waits for its other lanes".to_string(),
            _ => "waits for an mbarrier".to_string(),
        }
    }

    /// Sorts fragments, and makes one of those that can run at the same place.
    pub(super) fn merge(&mut self) {
        if self.fragments.len() < 2 {
            return;
        }
        self.fragments.sort_unstable_by_key(|f| (f.pc, !matches!(f.wait, Wait::None | Wait::Lanes)));
        self.fragments.dedup_by(|next, kept| {
            let free = |w: Wait| matches!(w, Wait::None | Wait::Lanes);
            let same = next.pc == kept.pc && free(next.wait) && free(kept.wait);
            if same {
                kept.mask |= next.mask;
                kept.wait = Wait::None;
            }
            same
        });
    }

    /// The fragment to run, and the place where it meets another.
    pub(super) fn choose(&mut self, block: &Block, cluster_generation: u32) -> Option<(usize, u32)> {
        for fragment in &mut self.fragments {
            let over = match fragment.wait {
                Wait::Barrier { number, generation } => {
                    block.barriers[number as usize].generation != generation
                }
                Wait::Cluster { generation } => cluster_generation != generation,
                Wait::None | Wait::Lanes => false,
            };
            if over {
                fragment.wait = Wait::None;
            }
        }
        self.merge();
        let ready = |f: &Fragment| f.wait == Wait::None;
        let yielded = std::mem::take(&mut self.yielded);
        let eager = self.fragments.iter().position(|f| ready(f) && f.mask & yielded == 0);
        let Some(index) = eager.or_else(|| self.fragments.iter().position(ready)) else {
            // Those that wait for lanes look once more whether they still must.
            let retry =
                self.fragments.iter().position(|f| f.wait == Wait::Lanes).filter(|_| !self.desperate)?;
            self.desperate = true;
            self.fragments[retry].wait = Wait::None;
            return Some((retry, u32::MAX));
        };
        let meets = self.fragments[index + 1..].iter().find(|f| matches!(f.wait, Wait::None | Wait::Lanes));
        Some((index, meets.map_or(u32::MAX, |f| f.pc)))
    }
}
