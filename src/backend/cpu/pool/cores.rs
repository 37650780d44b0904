//! The number of cores and the core of a thread, as far as the system reports them.

use std::num::NonZeroUsize;
use std::thread;

/// The core that the calling thread runs on.
pub(super) fn current() -> Option<usize> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: no arguments; the result is negative if the system does not report the core.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// Moves the calling thread off core `core`, if it may use another. It may be moved back later. Rare calls
/// only: this migrates the thread, and fixes its affinity to the cores that are allowed now (Linux 6.2 and
/// later treat that as the user's choice).
pub(super) fn leave(core: usize) {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: all zeros is an empty set.
        let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the calling thread, and a set of the given length.
        let told = unsafe { libc::sched_getaffinity(0, size_of_val(&all), &mut all) } == 0;
        // SAFETY: a whole set.
        if !told || core >= libc::CPU_SETSIZE as usize || unsafe { libc::CPU_COUNT(&all) } < 2 {
            return;
        }
        let mut others = all;
        // SAFETY: `core` is in the range of the set.
        unsafe { libc::CPU_CLR(core, &mut others) };
        // SAFETY: the calling thread, and sets of the given length.
        unsafe {
            if libc::sched_setaffinity(0, size_of_val(&others), &others) == 0 {
                libc::sched_setaffinity(0, size_of_val(&all), &all);
            }
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = core;
}

/// The default number of threads: one per physical core that this process may use.
pub(crate) fn default_threads() -> NonZeroUsize {
    let logical = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    physical_cores().map_or(logical, |physical| physical.min(logical))
}

/// Number of distinct sibling sets among the machine's CPUs, if the system reports them.
fn physical_cores() -> Option<NonZeroUsize> {
    let mut siblings = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir("/sys/devices/system/cpu").ok()?.flatten() {
        if let Ok(list) = std::fs::read_to_string(entry.path().join("topology/thread_siblings_list")) {
            siblings.insert(list);
        }
    }
    NonZeroUsize::new(siblings.len())
}
