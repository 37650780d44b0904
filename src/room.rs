//! Room for small allocations. Rust ends the process where one finds no memory, so what may be large is refused in
//! time: memory that is taken in one piece, and threads, leave this much.

#[cfg(feature = "safetensors")]
pub(crate) mod json;

use std::fs;
use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use memmap2::MmapMut;

/// Bytes that what is taken in one piece leaves: for a large vocabulary, and what the steps of a model take beside
/// its memory.
pub(crate) const SMALL_BYTES: usize = 64 << 20;
/// Bytes that a new thread needs at least: its stack, and what it allocates before its first function runs.
const THREAD_BYTES: usize = 8 << 20;

/// Whether so many bytes could be had now: of addresses (`ulimit -v`), and by what the system lets processes ask for.
pub(crate) fn has(bytes: usize) -> bool {
    match addresses_left() {
        // Trying would take from other threads what they need meanwhile.
        Some(left) => bytes <= left,
        // Nothing is touched, so nothing becomes resident.
        None => MmapMut::map_anon(bytes.max(1)).is_ok(),
    }
}

/// Bytes of addresses that the process may still take; none where they are not limited, or the system does not say.
fn addresses_left() -> Option<usize> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let limit: usize = limit.split_whitespace().next()?.parse().ok()?;
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let taken = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let taken: usize = taken.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(limit.saturating_sub(taken.saturating_mul(1024)))
}

/// Bytes of the machine's memory, and those that can be had before it swaps; none where the system does not say.
pub(crate) fn machine() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let bytes = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
    };
    bytes("MemTotal:").zip(bytes("MemAvailable:"))
}

/// Starts a thread, where there is room for it.
pub(crate) fn spawn<T: Send + 'static>(
    name: String,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    room_to_start()?;
    Builder::new().name(name).spawn(work)
}

/// Starts a thread with a stack of so many bytes, where there is room for it.
pub(crate) fn spawn_deep<T: Send + 'static>(
    name: String,
    stack: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    if !has(THREAD_BYTES + stack) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    Builder::new().name(name).stack_size(stack).spawn(work)
}

/// Starts a thread of a scope, where there is room for it.
pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    room_to_start()?;
    Builder::new().spawn_scoped(scope, work)
}

/// A thread that finds no memory before its function runs ends the process: no library can prevent that later.
fn room_to_start() -> io::Result<()> {
    if has(THREAD_BYTES) { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}
