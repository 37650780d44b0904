//! How many cores there are, and on which one a thread runs, where the system says.

use std::num::NonZeroUsize;
use std::thread;

/// The core that the calling thread runs on now.
pub(super) fn current() -> Option<usize> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: no arguments; a negative number where the system does not tell.
        usize::try_from(unsafe { libc::sched_getcpu() }).ok()
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// Moves the calling thread off core `core`, if it may use another. It may be moved back later. Call it
/// rarely: it migrates the thread, and it fixes the thread's affinity to what is allowed now (Linux 6.2 and
/// later treat that as the user's choice).
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

/// The default number of threads: one per physical core that this process may use.
pub(crate) fn default_threads() -> NonZeroUsize {
    let logical = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    physical_cores().map_or(logical, |physical| physical.min(logical))
}

/// Distinct sibling sets among the machine's CPUs, where the system says.
fn physical_cores() -> Option<NonZeroUsize> {
    let mut siblings = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir("/sys/devices/system/cpu").ok()?.flatten() {
        if let Ok(list) = std::fs::read_to_string(entry.path().join("topology/thread_siblings_list")) {
            siblings.insert(list);
        }
    }
    NonZeroUsize::new(siblings.len())
}
