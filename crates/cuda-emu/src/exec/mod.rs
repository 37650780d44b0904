//! Runs decoded kernels: blocks on threads of the host, warps of a block in turns.
//!
//! Blocks that may wait for each other (those of a cluster, or all of a cooperative launch) form a
//! gang, which one thread runs; other blocks are gangs of their own. `warp` has the loop over
//! instructions, the other files what instructions do, by group.

mod access;
mod accumulators;
mod address;
mod arithmetic;
mod arrival;
mod atomic;
mod barrier;
mod block;
mod branch;
mod bulk;
mod check;
mod collective;
mod convert;
mod copies;
mod counts;
mod float;
mod gang;
mod half;
mod int;
mod interpret;
mod isa;
mod lanes;
mod matrix;
mod mbarrier;
mod number;
mod print;
mod scalar;
mod select;
mod strong;
mod tensor;
mod traffic;
mod trap;
mod warp;
mod wgmma;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
mod x86_entry;
#[cfg(target_arch = "x86_64")]
mod x86_half;
#[cfg(target_arch = "x86_64")]
mod x86_lanes;
#[cfg(target_arch = "x86_64")]
mod x86_loads;
#[cfg(target_arch = "x86_64")]
mod x86_matrix;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use crate::decode::Program;
use crate::device::{Checks, Device, DeviceConfig};
use crate::error::Fault;
use crate::launch::Launch;
use crate::memory::arrivals::Arrivals;
use crate::memory::{Allocation, Region, View};
use crate::stats::LaunchStats;
use block::{Block, Cluster};
use counts::Counts;

/// Start of the shared window in the generic address space.
const SHARED_WINDOW: u64 = 1 << 60;
/// Start of the local window.
const LOCAL_WINDOW: u64 = 1 << 61;
/// Threads below which a launch is not worth a second thread of the host.
const THREADS_ALONE_MAX: u64 = 4096;

/// What all threads of the host share in a launch.
struct Shared<'l> {
    program: &'l Program,
    version: isa::Version,
    /// What the program's instructions do that only compute.
    computes: Vec<Option<isa::Compute>>,
    launch: &'l Launch<'l>,
    config: &'l DeviceConfig,
    view: View,
    /// Address of the parameter block, and of the workspace of grid-wide barriers.
    params: u64,
    workspace: u64,
    /// The predecessor has been run.
    predecessor: Once,
    stop: AtomicBool,
    next_gang: AtomicU64,
    instructions: AtomicU64,
    footprint: Mutex<traffic::Footprint>,
    /// What blocks hand to each other; none where that is not looked at.
    arrivals: Option<Mutex<Arrivals>>,
    start: std::time::Instant,
}

/// What a thread of the host works with: one gang at a time.
struct Env<'l> {
    shared: &'l Shared<'l>,
    program: &'l Program,
    view: &'l View,
    check: bool,
    measure: bool,
    /// Of each instruction, the region that its last access was in.
    hits: Vec<u32>,
    counts: Counts,
    traffic: LaunchStats,
    footprint: traffic::Footprint,
    blocks: Vec<Block>,
    clusters: Vec<Cluster>,
    /// Grows with everything that may let a waiting warp go on.
    events: u64,
    /// Since one went on, a warp has looked at what others than the gang change: global memory, or the time.
    looked_outside: bool,
    /// Where a trap happened.
    trap_pc: u32,
    /// State of the generator that shuffles; 0 is in order.
    random: u64,
    /// The gang that runs.
    gang: u64,
    unfolded: matrix::Unfolded,
}

impl Shared<'_> {
    /// Runs the predecessor, once.
    fn wait_predecessor(&self) {
        if let Some(predecessor) = self.launch.predecessor {
            self.predecessor.call_once(predecessor);
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Counts instructions; whether the launch has had too many.
    fn too_many(&self, instructions: u64) -> Option<u64> {
        let total = self.instructions.fetch_add(instructions, Ordering::Relaxed) + instructions;
        (total > self.config.warp_instructions_max).then_some(total)
    }

    fn nanoseconds(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// Runs all blocks of a launch.
pub(crate) fn run(device: &Device, launch: &Launch) -> Result<LaunchStats, Box<Fault>> {
    let program = &*launch.kernel.program;
    let mut view =
        View { regions: device.memory().view().regions.clone(), freed: device.memory().view().freed.clone() };
    let params = private(&mut view, launch.params);
    let workspace = private(&mut view, &[0; 256]);
    view.regions.sort_by_key(|region| region.start);
    let version = isa::version(device.config().vectors);
    let computes = program.code.iter().map(version.compute).collect();
    let shared = Shared {
        program,
        version,
        computes,
        launch,
        config: device.config(),
        view,
        params,
        workspace,
        predecessor: Once::new(),
        stop: AtomicBool::new(false),
        next_gang: AtomicU64::new(0),
        instructions: AtomicU64::new(0),
        footprint: Mutex::default(),
        arrivals: (program.arrivals && device.config().checks == Checks::All).then(Mutex::default),
        start: std::time::Instant::now(),
    };
    let result = Mutex::new(Ok(LaunchStats::default()));
    let work = || {
        let outcome = gang::run_all(&shared);
        let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
        match (&mut *result, outcome) {
            (Ok(total), Ok(part)) => total.add(&part),
            (whole @ Ok(_), Err(fault)) => *whole = Err(fault),
            (Err(_), _) => {}
        }
    };
    let blocks = launch.grid.iter().map(|d| u64::from(*d)).product::<u64>();
    let threads = blocks * launch.block.iter().map(|d| u64::from(*d)).product::<u64>();
    let helpers = if threads <= THREADS_ALONE_MAX {
        0
    } else {
        shared.config.threads.min(shared.gangs() as usize).saturating_sub(1)
    };
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            // Without it the launch takes longer.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    shared.wait_predecessor();
    let mut stats = result.into_inner().unwrap_or_else(PoisonError::into_inner)?;
    let footprint = shared.footprint.into_inner().unwrap_or_else(PoisonError::into_inner);
    stats.global_footprint_bytes = footprint.bytes();
    Ok(stats)
}

/// Bytes of this launch alone that kernels can address.
fn private(view: &mut View, bytes: &[u8]) -> u64 {
    // An allocation of a few hundred bytes fails only where nothing works any more; address 0 is
    // then out of bounds.
    let Some(allocation) = Allocation::new(bytes.len() as u64) else { return 0 };
    let allocation = std::sync::Arc::new(allocation);
    let start = allocation.base();
    // SAFETY: the allocation is as long as `bytes`, and nobody else has it yet.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start as *mut u8, bytes.len()) };
    allocation.mark_valid(0, bytes.len() as u64);
    allocation.settle();
    view.regions.push(Region { start, end: start + bytes.len() as u64, allocation });
    start
}

impl<'l> Env<'l> {
    fn new(shared: &'l Shared<'l>) -> Self {
        let length = shared.program.code.len();
        Self {
            shared,
            program: shared.program,
            view: &shared.view,
            check: shared.config.checks == Checks::All,
            measure: shared.config.memory_statistics,
            hits: vec![u32::MAX; length],
            counts: Counts::new(length),
            traffic: LaunchStats::default(),
            footprint: traffic::Footprint::default(),
            blocks: Vec::new(),
            clusters: Vec::new(),
            events: 0,
            looked_outside: false,
            trap_pc: 0,
            random: 0,
            gang: 0,
            unfolded: matrix::Unfolded::new(),
        }
    }

    /// The next number of the shuffle; only for a state that is not 0.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// What was counted, summed up.
    fn into_stats(self) -> LaunchStats {
        self.shared.footprint.lock().unwrap_or_else(PoisonError::into_inner).merge(self.footprint);
        let mut stats = self.traffic;
        for (inst, [warps, lanes]) in self.program.code.iter().zip(self.counts.each()) {
            if warps > 0 {
                stats.warp_instructions += warps;
                stats.thread_instructions += lanes;
                *stats.by_class.entry(inst.op.class()).or_default() += warps;
            }
        }
        stats
    }
}
