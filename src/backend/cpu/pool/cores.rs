//! How many cores there are, and which one a thread runs on, where the system tells.

use std::num::NonZeroUsize;
use std::thread;

/// The core that the calling thread runs on at this moment.
pub(super) fn current() -> Option<usize> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: no arguments; a negative number where the system does not tell.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// Has the calling thread leave core `core` for another that it may use, if there is one. It may come back. Seldom, please:
/// it migrates, and what it may use at this moment is from then on what its user has chosen (Linux 6.2).
pub(super) fn leave(core: usize) {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: no core in it.
        let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the calling thread, and a set of the length told.
        let told = unsafe { libc::sched_getaffinity(0, size_of_val(&all), &mut all) } == 0;
        // SAFETY: a whole set.
        if !told || core >= libc::CPU_SETSIZE as usize || unsafe { libc::CPU_COUNT(&all) } < 2 {
            return;
        }
        let mut others = all;
        // SAFETY: `core` is in the range of the set.
        unsafe { libc::CPU_CLR(core, &mut others) };
        // SAFETY: the calling thread, and sets of the length told.
        unsafe {
            if libc::sched_setaffinity(0, size_of_val(&others), &others) == 0 {
                libc::sched_setaffinity(0, size_of_val(&all), &all);
            }
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = core;
}

/// Threads for a pool when none are asked for: the physical cores that this process may use.
pub(crate) fn default_threads() -> NonZeroUsize {
    let logical = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    physical_cores().map_or(logical, |physical| physical.min(logical))
}

/// Distinct sibling sets among the machine's CPUs, where the system tells.
fn physical_cores() -> Option<NonZeroUsize> {
    let mut siblings = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir("/sys/devices/system/cpu").ok()?.flatten() {
        if let Ok(list) = std::fs::read_to_string(entry.path().join("topology/thread_siblings_list")) {
            siblings.insert(list);
        }
    }
    NonZeroUsize::new(siblings.len())
}
