//! What streams and graphs are made of: one piece of [`Work`], and how it runs.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use super::abi::Handle;
use super::graph::GraphRun;
use super::report::Report;
use crate::device::Device;
use crate::launch::{self, Launch};
use crate::memory::MemoryError;
use crate::module::Kernel;
use crate::stats::LaunchStats;

/// A range of host memory that the program owns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostRange {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
}

impl HostRange {
    /// The bytes as they are now.
    ///
    /// # Safety
    /// They must be readable, and not written meanwhile: what the manual demands of a copy's source.
    pub(crate) unsafe fn read<'a>(self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: passed on to the caller.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }

    /// The bytes, to be overwritten.
    ///
    /// # Safety
    /// They must be writable and not used meanwhile: what the manual demands of a copy's target.
    pub(crate) unsafe fn write<'a>(self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: passed on to the caller.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.bytes) }
    }
}

/// The source of an upload.
#[derive(Clone, Debug)]
pub(crate) enum HostBytes {
    /// Read when the copy runs: pinned memory, and all memory in a graph.
    Range(HostRange),
    /// Read when the copy was asked for: pageable memory.
    Staged(Arc<[u8]>),
}

/// A kernel launch, with its parameters copied.
#[derive(Clone, Debug)]
pub(crate) struct KernelLaunch {
    pub(crate) kernel: Kernel,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) cluster: [u32; 3],
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) params: Box<[u8]>,
    pub(crate) cooperative: bool,
    /// It may start before the kernel before it in the stream has ended.
    pub(crate) programmatic: bool,
}

impl KernelLaunch {
    /// As the interpreter takes it.
    pub(crate) fn as_launch<'a>(&'a self, predecessor: Option<&'a (dyn Fn() + Sync)>) -> Launch<'a> {
        Launch {
            kernel: &self.kernel,
            grid: self.grid,
            block: self.block,
            cluster: self.cluster,
            dynamic_shared_bytes: self.dynamic_shared_bytes,
            params: &self.params,
            cooperative: self.cooperative,
            predecessor,
        }
    }
}

/// A host function of `cuLaunchHostFunc`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCall {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    pub(crate) data: usize,
}

/// One piece of work.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// Nothing: it is there to wait for others.
    Join,
    /// Notes the time in an event.
    Record(Handle),
    Launch(Arc<KernelLaunch>),
    Upload {
        to: u64,
        from: HostBytes,
    },
    Download {
        to: HostRange,
        from: u64,
    },
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
    },
    /// Writes the first `width` bytes of the pattern so often.
    Fill {
        to: u64,
        pattern: [u8; 4],
        width: usize,
        count: u64,
    },
    Free(u64),
    Call(HostCall),
    Graph(GraphRun),
}

impl Work {
    /// The launch, where it is one.
    pub(crate) fn launch(&self) -> Option<&Arc<KernelLaunch>> {
        match self {
            Work::Launch(launch) => Some(launch),
            _ => None,
        }
    }

    /// Whether it is a launch that may overlap with the kernel before it.
    pub(crate) fn is_programmatic(&self) -> bool {
        self.launch().is_some_and(|launch| launch.programmatic)
    }

    /// Whether it is a copy or memset of no bytes.
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Work::Upload { from: HostBytes::Range(range), .. } => range.bytes == 0,
            Work::Upload { from: HostBytes::Staged(bytes), .. } => bytes.is_empty(),
            Work::Download { to, .. } => to.bytes == 0,
            Work::Copy { bytes, .. } => *bytes == 0,
            Work::Fill { count, .. } => *count == 0,
            _ => false,
        }
    }

    /// The host memory that it uses when it runs.
    pub(crate) fn pinned(&self) -> Option<HostRange> {
        match self {
            Work::Upload { from: HostBytes::Range(range), .. } | Work::Download { to: range, .. } => {
                Some(*range)
            }
            _ => None,
        }
    }

    /// What it is, for reports.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Work::Join => "wait",
            Work::Record(_) => "event record",
            Work::Launch(_) => "kernel launch",
            Work::Upload { .. } => "copy from host to device",
            Work::Download { .. } => "copy from device to host",
            Work::Copy { .. } => "copy on the device",
            Work::Fill { .. } => "memset",
            Work::Free(_) => "stream-ordered free",
            Work::Call(_) => "host function",
            Work::Graph(_) => "graph",
        }
    }

    /// Runs what is no launch and no graph.
    fn run_simple(&self, device: &Device) -> Result<(), MemoryError> {
        let memory = device.memory();
        match self {
            Work::Upload { to, from: HostBytes::Range(range) } => {
                // SAFETY: the program vouches for the source until the copy has run; a program that
                // does not keep its word has the same fault on a card.
                memory.copy_in(*to, unsafe { range.read() })
            }
            Work::Upload { to, from: HostBytes::Staged(bytes) } => memory.copy_in(*to, bytes),
            // SAFETY: likewise for the target.
            Work::Download { to, from } => memory.copy_out(*from, unsafe { to.write() }),
            Work::Copy { to, from, bytes } => memory.copy(*to, *from, *bytes),
            Work::Fill { to, pattern, width, count } => memory.fill(*to, &pattern[..*width], *count),
            Work::Free(address) => memory.free(*address),
            Work::Call(call) => {
                super::thread::in_host_function(|| {
                    // SAFETY: the program gave function and argument for this call.
                    unsafe { (call.function)(call.data as *mut c_void) }
                });
                Ok(())
            }
            Work::Join | Work::Record(_) | Work::Launch(_) | Work::Graph(_) => Ok(()),
        }
    }
}

/// Kernels of a chain: a card holds no more grids at once (CUDA's table of technical specifications).
pub(crate) const CHAIN_MAX: usize = 128;

/// What running work gave.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Kernels that ran to their end.
    pub(crate) launches: Vec<(String, LaunchStats)>,
    /// What stopped the work.
    pub(crate) failure: Option<Report>,
}

/// Runs a chain of work: one piece, or kernels of which each may start before its predecessor has
/// ended. Such a chain runs from its end: a kernel's predecessor runs when the kernel waits for it.
pub(crate) fn run(device: &Device, chain: &[Work]) -> Outcome {
    let Some((last, before)) = chain.split_last() else { return Outcome::default() };
    let Work::Launch(kernel_launch) = last else {
        let failure = last.run_simple(device).err();
        return Outcome { launches: Vec::new(), failure: failure.map(|e| Report::memory(last.kind(), &e)) };
    };
    let earlier = Mutex::new(None);
    let run_earlier = || {
        // Once: it may be called when a kernel waits and again at its end.
        let mut earlier = earlier.lock().unwrap_or_else(PoisonError::into_inner);
        earlier.get_or_insert_with(|| run_apart(device, before));
    };
    let predecessor: Option<&(dyn Fn() + Sync)> = if before.is_empty() { None } else { Some(&run_earlier) };
    let result = launch::launch(device, &kernel_launch.as_launch(predecessor));
    if predecessor.is_some() && result.is_ok() {
        run_earlier();
    }
    let mut outcome = earlier.into_inner().unwrap_or_else(PoisonError::into_inner).unwrap_or_default();
    match result {
        Ok(stats) => outcome.launches.push((kernel_launch.kernel.name().to_string(), stats)),
        Err(error) => outcome.failure = outcome.failure.or(Some(Report::launch(&error))),
    }
    outcome
}

/// Runs a chain on a stack of its own: each kernel runs inside the wait of the one behind it, and a
/// long chain would overflow the stack of the one thread that comes to all waits.
fn run_apart(device: &Device, chain: &[Work]) -> Outcome {
    let work = || run(device, chain);
    std::thread::scope(|scope| match std::thread::Builder::new().spawn_scoped(scope, work) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(_) => work(),
    })
}
