//! Gangs: making blocks and warps ready, and giving warps their turns.

use super::block::{Barrier, Block, Cluster};
use super::lanes::LANES;
use super::trap::{Trap, place};
use super::warp::{Pause, Warp};
use super::{Env, Shared};
use crate::decode::{Broadcast, Special, WIDE};
use crate::error::{Fault, FaultKind};
use crate::memory::clocks::{Clocks, Released};
use crate::memory::fill;
use crate::memory::shadow::Shadow;
use crate::stats::LaunchStats;

impl Shared<'_> {
    /// Blocks of a gang: how many in each direction.
    fn gang_shape(&self) -> [u32; 3] {
        if self.launch.cooperative { self.launch.grid } else { self.launch.cluster }
    }

    /// How many gangs the launch has.
    pub(super) fn gangs(&self) -> u64 {
        let shape = self.gang_shape();
        (0..3).map(|d| u64::from(self.launch.grid[d] / shape[d])).product()
    }
}

/// Runs gangs until there are no more.
pub(super) fn run_all<'l>(shared: &'l Shared<'l>) -> Result<LaunchStats, Box<Fault>> {
    let mut env = Env::new(shared);
    let mut warps = env.make_gang();
    let gangs = shared.gangs();
    loop {
        let turn = shared.next_gang.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if turn >= gangs || shared.stopped() {
            return Ok(env.into_stats());
        }
        // Nothing promises an order of blocks: with every other seed the last are first.
        let gang = if shared.config.seed % 2 == 1 { gangs - 1 - turn } else { turn };
        env.start_gang(&mut warps, gang);
        if let Err(fault) = env.run_gang(&mut warps) {
            shared.stop.store(true, std::sync::atomic::Ordering::Relaxed);
            return Err(fault);
        }
    }
}

fn coordinates(index: u64, shape: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(shape[0]), u64::from(shape[1]));
    [(index % x) as u32, (index / x % y) as u32, (index / x / y) as u32]
}

/// Rounds in which no warp gets anywhere before that is a deadlock: a warp that asks once whether a
/// phase is complete, or sleeps, goes on in the next.
const IDLE_ROUNDS_MAX: u32 = 64;
/// The same where one looks at what others than the gang change.
const OUTSIDE_ROUNDS_MAX: u32 = 1 << 24;
/// Rounds in which warps may keep copies from coming, by doing what some other one may wait for: it may also be a
/// warp that waits for the copy, and takes a lock each time it looks.
const LATE_ROUNDS_MAX: u32 = 64;

impl Env<'_> {
    /// Allocates the blocks, clusters and warps that every gang then uses again.
    fn make_gang(&mut self) -> Vec<Warp> {
        let launch = self.shared.launch;
        let threads: u32 = launch.block.iter().product();
        let warps = threads.div_ceil(LANES as u32);
        let blocks: u32 = self.shared.gang_shape().iter().product();
        let per_cluster: u32 = launch.cluster.iter().product();
        let bytes = (self.program.shared_bytes + launch.dynamic_shared_bytes) as usize;
        let per_block = if self.program.async_proxy { 2 * warps + 1 } else { warps + 1 };
        for number in 0..blocks {
            self.blocks.push(Block {
                index: [0; 3],
                cluster: (number / per_cluster) as usize,
                rank: number % per_cluster,
                warps,
                agents: per_block,
                memory: vec![0; bytes],
                shadow: self.check.then(|| Shadow::new(bytes)),
                barriers: std::array::from_fn(|_| Barrier::default()),
                alive: 0,
                mbarriers: std::collections::HashMap::new(),
                flags: std::collections::HashMap::new(),
                bulk: Vec::new(),
            });
        }
        let agents = (per_cluster * per_block) as usize;
        self.clusters = (0..blocks / per_cluster)
            .map(|number| Cluster {
                clocks: Clocks::new(agents),
                first: (number * per_cluster) as usize,
                blocks: per_cluster,
                arrived: 0,
                generation: 0,
                released: Released::default(),
                completed: Released::default(),
            })
            .collect();
        (0..blocks * warps)
            .map(|n| {
                let (block, id) = ((n / warps) as usize, n % warps);
                Warp::new(self.program, id, block, self.blocks[block].agent(id))
            })
            .collect()
    }

    fn start_gang(&mut self, warps: &mut [Warp], gang: u64) {
        self.gang = gang;
        let launch = self.shared.launch;
        let shape = self.shared.gang_shape();
        let gang_grid = std::array::from_fn(|d| launch.grid[d] / shape[d]);
        let origin = coordinates(gang, gang_grid);
        let threads: u32 = launch.block.iter().product();
        // Blocks of a gang are numbered cluster by cluster, and inside of those by rank.
        let clusters = std::array::from_fn(|d| shape[d] / launch.cluster[d]);
        for block in &mut self.blocks {
            let cluster = coordinates(block.cluster as u64, clusters);
            let inner = coordinates(u64::from(block.rank), launch.cluster);
            block.index =
                std::array::from_fn(|d| origin[d] * shape[d] + cluster[d] * launch.cluster[d] + inner[d]);
            fill(&mut block.memory, 0xff);
            if let Some(shadow) = &mut block.shadow {
                shadow.restart();
            }
            block.barriers.iter_mut().for_each(Barrier::restart);
            block.alive = threads;
            block.mbarriers.clear();
            block.flags.clear();
            block.bulk.clear();
        }
        for cluster in &mut self.clusters {
            cluster.clocks.restart();
            (cluster.arrived, cluster.generation) = (0, 0);
            (cluster.released, cluster.completed) = Default::default();
        }
        let seed = self.shared.config.seed;
        self.random = if seed == 0 { 0 } else { (seed ^ gang.wrapping_mul(0x9e37_79b9_7f4a_7c15)).max(1) };
        for warp in warps {
            let left = threads - warp.id * LANES as u32;
            warp.start(if left >= 32 { u32::MAX } else { (1 << left) - 1 });
            self.fill_broadcasts(warp);
            warp.filled = true;
        }
    }

    /// Fills the registers whose value is known before the kernel starts.
    fn fill_broadcasts(&self, warp: &mut Warp) {
        for (slot, value) in &self.program.broadcasts {
            // All but the block's place are the same for the next block.
            let place = matches!(
                value,
                Broadcast::Special(
                    Special::Ctaid(_) | Special::ClusterId(_) | Special::ClusterCtaid(_) | Special::Sm
                )
            );
            if warp.filled && !place {
                continue;
            }
            // The block's place is also the same for all lanes.
            let values = if place {
                [self.broadcast(*value, warp, 0); LANES]
            } else {
                std::array::from_fn(|lane| self.broadcast(*value, warp, lane as u32))
            };
            if slot & WIDE != 0 {
                warp.registers.wide[(slot & !WIDE) as usize].0 = values;
            } else {
                warp.registers.narrow[*slot as usize].0 = values.map(|value| value as u32);
            }
        }
    }

    fn broadcast(&self, value: Broadcast, warp: &Warp, lane: u32) -> u64 {
        match value {
            Broadcast::Const(value) => value,
            Broadcast::ParamAddress(offset) => self.shared.params + u64::from(offset),
            Broadcast::Param(offset, bytes, signed) => {
                let mut raw = [0; 8];
                let (start, bytes) = (offset as usize, bytes as usize);
                raw[..bytes].copy_from_slice(&self.shared.launch.params[start..start + bytes]);
                let unused = 64 - bytes as u32 * 8;
                let value = u64::from_le_bytes(raw);
                if signed { ((value << unused) as i64 >> unused) as u64 } else { value }
            }
            Broadcast::Special(special) => u64::from(self.special(special, warp, lane)),
        }
    }

    fn special(&self, special: Special, warp: &Warp, lane: u32) -> u32 {
        let launch = self.shared.launch;
        let (grid, block, cluster) = (launch.grid, launch.block, launch.cluster);
        let at = self.blocks[warp.block].index;
        let thread = warp.id * LANES as u32 + lane;
        let bit = 1u32 << lane;
        match special {
            Special::Tid(0) => thread % block[0],
            Special::Tid(1) => thread / block[0] % block[1],
            Special::Tid(_) => thread / block[0] / block[1],
            Special::Ntid(d) => block[d as usize],
            Special::Ctaid(d) => at[d as usize],
            Special::Nctaid(d) => grid[d as usize],
            Special::ClusterId(d) => at[d as usize] / cluster[d as usize],
            Special::NclusterId(d) => grid[d as usize] / cluster[d as usize],
            Special::ClusterCtaid(d) => at[d as usize] % cluster[d as usize],
            Special::ClusterNctaid(d) => cluster[d as usize],
            Special::ClusterCtarank => self.blocks[warp.block].rank,
            Special::ClusterNctarank => cluster.iter().product(),
            Special::IsExplicitCluster => u32::from(cluster != [1, 1, 1]),
            Special::Lane => lane,
            Special::Warp => warp.id,
            Special::Nwarp => self.blocks[warp.block].warps,
            Special::Sm => at[0] % 132,
            Special::Nsm => 132,
            Special::GridId => 1,
            Special::LaneEq => bit,
            Special::LaneLe => bit | (bit - 1),
            Special::LaneLt => bit - 1,
            Special::LaneGe => !(bit - 1),
            Special::LaneGt => !(bit | (bit - 1)),
            Special::DynamicShared => launch.dynamic_shared_bytes,
            Special::TotalShared => self.program.shared_bytes + launch.dynamic_shared_bytes,
            Special::Env(1) => (self.shared.workspace >> 32) as u32,
            Special::Env(_) => self.shared.workspace as u32,
        }
    }

    /// Gives warps their turns until all are done.
    fn run_gang(&mut self, warps: &mut [Warp]) -> Result<(), Box<Fault>> {
        let mut order: Vec<usize> = (0..warps.len()).collect();
        let (mut idle, mut late) = (0, 0);
        self.looked_outside = false;
        loop {
            if self.random != 0 {
                for last in (1..order.len()).rev() {
                    let other = self.random() % (last as u64 + 1);
                    order.swap(last, other as usize);
                }
            }
            let (events, mut moved, mut done) = (self.events, false, true);
            for number in &order {
                let warp = &mut warps[*number];
                if warp.done() {
                    continue;
                }
                let pause = (self.shared.version.run)(self, warp).map_err(|trap| self.fault(*trap, warp))?;
                self.count(warp)?;
                moved |= pause == Pause::Slice;
                done &= pause == Pause::Done;
            }
            if done && warps.iter().all(Warp::done) {
                return self.finish_gang(warps);
            }
            if self.shared.stopped() {
                return Ok(());
            }
            // Copies under way come in when nothing else can: the latest that they may. Warps that go on
            // and on may do so until one comes.
            let went_on = self.events != events;
            late = if went_on && late < LATE_ROUNDS_MAX { late + 1 } else { 0 };
            let came = late == 0 && self.complete_bulk().map_err(|trap| self.fault(*trap, &warps[0]))?;
            let moved = moved || went_on || came;
            idle = if moved { 0 } else { idle + 1 };
            self.looked_outside &= !moved;
            if idle > if self.looked_outside { OUTSIDE_ROUNDS_MAX } else { IDLE_ROUNDS_MAX } {
                return Err(self.deadlock(warps));
            }
        }
    }

    /// Counts a turn's instructions against the launch's limit.
    fn count(&mut self, warp: &mut Warp) -> Result<(), Box<Fault>> {
        let instructions = std::mem::take(&mut warp.turn_instructions);
        match self.shared.too_many(instructions) {
            None => Ok(()),
            Some(warp_instructions) => {
                self.trap_pc = warp.pc();
                Err(self.fault(
                    Trap { kind: FaultKind::NeverEnds { warp_instructions }, lane: None, address: None },
                    warp,
                ))
            }
        }
    }

    fn finish_gang(&mut self, warps: &[Warp]) -> Result<(), Box<Fault>> {
        while self.complete_bulk().map_err(|trap| self.fault(*trap, &warps[0]))? {}
        Ok(())
    }

    fn fault(&self, trap: Trap, warp: &Warp) -> Box<Fault> {
        Box::new(trap.into_fault(self.program, self.trap_pc, self.blocks[warp.block].index, warp.id))
    }

    /// Nobody can go on: says what each warp waits for.
    fn deadlock(&mut self, warps: &[Warp]) -> Box<Fault> {
        let stuck: Vec<&Warp> = warps.iter().filter(|warp| !warp.done()).collect();
        let waits: Vec<String> = stuck
            .iter()
            .take(8)
            .map(|warp| {
                let at = place(self.program, warp.pc());
                let where_ =
                    at.source.first().map_or(format!("PTX line {}", at.ptx_line), ToString::to_string);
                format!(
                    "warp {} of block {:?} {} before {where_}",
                    warp.id,
                    self.blocks[warp.block].index,
                    warp.waits_for()
                )
            })
            .collect();
        let more =
            if stuck.len() > 8 { format!(", and {} warps more", stuck.len() - 8) } else { String::new() };
        self.trap_pc = stuck.first().map_or(0, |warp| warp.pc());
        let kind = FaultKind::Deadlock { waits: waits.join("; ") + &more };
        self.fault(Trap { kind, lane: None, address: None }, stuck.first().copied().unwrap_or(&warps[0]))
    }
}
