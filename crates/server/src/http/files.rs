//! Open files: their limit bounds the connections of a server.

use std::io::{Error, ErrorKind};

/// Files in reserve for everything but connections: probes, a process that starts, a library's own files.
const RESERVE: usize = 32;
/// Files that are open at most before the first connection, if their number is unknown.
const OPEN: usize = 64;

/// Number of connections within `most` and the process's limit of open files. Each takes `each` files;
/// `reserve` more files stay free.
pub(crate) fn connections_within(most: usize, each: usize, reserve: usize) -> usize {
    let Some(limit) = limit() else { return most.max(1) };
    let left = limit.saturating_sub(open().unwrap_or(OPEN) + RESERVE + reserve);
    most.min(left / each).max(1)
}

/// Whether an error is a shortage of this process or of the system: of files, memory, processes or ports. The
/// peer has no part in it.
pub(crate) fn is_shortage(error: &Error) -> bool {
    #[cfg(unix)]
    {
        use nix::errno::Errno;
        let own = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::EAGAIN];
        if error.raw_os_error().is_some_and(|code| own.contains(&Errno::from_raw(code))) {
            return true;
        }
    }
    matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::AddrNotAvailable)
}

/// Limit of open files (`ulimit -n`).
fn limit() -> Option<usize> {
    #[cfg(unix)]
    {
        use nix::sys::resource::{Resource, getrlimit};
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
        Some(usize::try_from(soft).unwrap_or(usize::MAX))
    }
    #[cfg(not(unix))]
    None
}

/// Number of open files.
fn open() -> Option<usize> {
    std::fs::read_dir("/dev/fd").ok().map(Iterator::count)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_files_bounds_connections_and_leaves_a_reserve() {
        let limit = limit().expect("a limit");
        let all = connections_within(usize::MAX, 1, 0);
        assert!(all < limit - RESERVE, "{all} of {limit}");
        assert!(connections_within(usize::MAX, 2, 0) <= all.div_ceil(2));
        assert_eq!(connections_within(3, 1, 0), 3);
        assert_eq!(connections_within(3, 1, limit), 1);
    }

    #[test]
    fn a_lack_of_files_is_no_fault_of_the_peer() {
        let of = |code: nix::errno::Errno| is_shortage(&Error::from_raw_os_error(code as i32));
        assert!(of(nix::errno::Errno::EMFILE) && of(nix::errno::Errno::ENFILE));
        assert!(!of(nix::errno::Errno::ECONNREFUSED) && !of(nix::errno::Errno::ENOENT));
    }
}
