//! A device's state of being broken: the sticky error, failures that tests inject, and a launch that hangs.

use std::time::{Duration, Instant};

use super::abi::Handle;
use super::report::Report;
use super::status::{Answer, Status};

/// A failure to come on one device, for tests of what a program does then. Counts start at 1 for the next
/// one there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Injection {
    /// The allocation of that number (`cuMemAlloc`, `cuMemAllocAsync`, `cuMemHostAlloc`, …) fails for lack of memory.
    OutOfMemory {
        /// 1 is the next allocation.
        allocation: u64,
    },
    /// The kernel of that number fails when it runs; the error then sticks to the context. Kernels
    /// of graphs count too.
    Error {
        /// 1 is the next kernel that runs.
        launch: u64,
        /// The `CUresult`, such as 700 (`CUDA_ERROR_ILLEGAL_ADDRESS`).
        code: u32,
    },
    /// The kernel of that number never ends: events after it are not ready and waits hang, until it
    /// is stopped with `CUDA_ERROR_LAUNCH_TIMEOUT`, which then sticks to the context.
    NeverEnds {
        /// 1 is the next kernel that runs.
        launch: u64,
        /// How long it runs.
        stopped_after: Duration,
    },
}

/// A launch that hangs.
#[derive(Clone, Debug)]
pub(crate) struct Hang {
    pub(crate) stream: Handle,
    pub(crate) kernel: String,
    pub(crate) until: Instant,
}

/// What happens instead of running kernels.
#[derive(Debug)]
pub(crate) enum Instead {
    Fail(Status),
    Hang(Duration),
}

/// The state.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    sticky: Option<Status>,
    /// The last failure.
    pub(crate) last: Option<Report>,
    injected: Vec<Injection>,
    /// The launch that hangs.
    pub(crate) hang: Option<Hang>,
}

impl Faults {
    /// The sticky error, if there is one.
    pub(crate) fn check(&self) -> Answer {
        self.sticky.map_or(Ok(()), Err)
    }

    /// Notes a failure of the device at an index, which sticks.
    pub(crate) fn fail(&mut self, ordinal: usize, report: Report) {
        let device = if ordinal == 0 { String::new() } else { format!(" on device {ordinal}") };
        eprintln!("[cuda-emu] {}{device}: {}", report.status.symbol().to_string_lossy(), report.text);
        self.sticky.get_or_insert(report.status);
        self.last = Some(report);
        self.hang = None;
    }

    /// Adds a failure to come.
    pub(crate) fn inject(&mut self, injection: Injection) {
        self.injected.push(injection);
    }

    /// Counts an allocation; whether it shall fail.
    pub(crate) fn allocation_fails(&mut self) -> bool {
        let mut fails = false;
        self.injected.retain_mut(|injection| match injection {
            Injection::OutOfMemory { allocation } => {
                *allocation = allocation.saturating_sub(1);
                fails |= *allocation == 0;
                *allocation != 0
            }
            _ => true,
        });
        fails
    }

    /// Counts kernels about to run; what shall happen instead.
    pub(crate) fn instead_of_launches(&mut self, count: u64) -> Option<Instead> {
        let mut instead = None;
        self.injected.retain_mut(|injection| match injection {
            Injection::Error { launch, code } => {
                *launch = launch.saturating_sub(count);
                if *launch == 0 {
                    instead = Some(Instead::Fail(Status::from_code(*code).unwrap_or(Status::Unknown)));
                }
                *launch != 0
            }
            Injection::NeverEnds { launch, stopped_after } => {
                *launch = launch.saturating_sub(count);
                if *launch == 0 {
                    instead = Some(Instead::Hang(*stopped_after));
                }
                *launch != 0
            }
            Injection::OutOfMemory { .. } => true,
        });
        instead
    }
}
