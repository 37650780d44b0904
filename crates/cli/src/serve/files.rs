//! The limit of open files, which bounds the connections of a server.

/// Raises the soft limit to the hard one, for this process and those that it starts.
pub fn raise_limit() {
    #[cfg(unix)]
    {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};
        /// Highest soft limit of macOS below an unlimited hard one.
        const OPEN_MAX: u64 = 10_240;
        let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
        let limits = [hard, hard.min(OPEN_MAX)].into_iter().filter(|limit| *limit > soft);
        // A limit that cannot be raised bounds the connections.
        let _ = limits.map(|limit| setrlimit(Resource::RLIMIT_NOFILE, limit, hard)).find(Result::is_ok);
    }
}
