//! Which core a thread runs on, where the system tells.

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

/// Has the calling thread leave core `core` for another that it may use, if there is one. It may come back.
pub(super) fn leave(core: usize) {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: no core in it.
        let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the calling thread, and a set of the length told.
        let told = unsafe { libc::sched_getaffinity(0, size_of_val(&all), &mut all) } == 0;
        if !told || core >= libc::CPU_SETSIZE as usize {
            return;
        }
        let mut others = all;
        // SAFETY: `core` is in the range of the set.
        unsafe { libc::CPU_CLR(core, &mut others) };
        for cores in [&others, &all] {
            // An empty set is refused, and the thread stays.
            // SAFETY: as above.
            unsafe { libc::sched_setaffinity(0, size_of_val(cores), cores) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = core;
}
