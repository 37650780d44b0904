//! Memory headroom: checks before large allocations and thread starts. Rust aborts the process when an
//! allocation fails, so large requests are refused early, and enough memory is left for small allocations.

#[cfg(feature = "safetensors")]
pub(crate) mod json;

use std::fs;
use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use memmap2::MmapMut;

/// Headroom in bytes for small allocations: a large vocabulary, and the working memory of a model's steps.
pub(crate) const SMALL_BYTES: usize = 64 << 20;
/// Minimum bytes of a new thread: its stack, and allocations before its function runs.
const THREAD_BYTES: usize = 8 << 20;

/// Whether `bytes` can be allocated now, within the address space limit (`ulimit -v`) and the system's
/// overcommit policy.
pub(crate) fn has(bytes: usize) -> bool {
    match addresses_left() {
        // A trial allocation would take address space from concurrent threads.
        Some(left) => bytes <= left,
        // The mapping is never touched, so nothing becomes resident.
        None => MmapMut::map_anon(bytes.max(1)).is_ok(),
    }
}

/// Remaining address space of the process; `None` if unlimited or unknown.
fn addresses_left() -> Option<usize> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let limit: usize = limit.split_whitespace().next()?.parse().ok()?;
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let taken = status.lines().find_map(|line| line.strip_prefix("VmSize:"))?;
    let taken: usize = taken.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(limit.saturating_sub(taken.saturating_mul(1024)))
}

/// Total memory of the machine and the memory available without swapping, in bytes; `None` if unknown.
pub(crate) fn machine() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let bytes = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
    };
    bytes("MemTotal:").zip(bytes("MemAvailable:"))
}

/// Spawns a thread if there is memory for it.
pub(crate) fn spawn<T: Send + 'static>(
    name: String,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    room_to_start()?;
    Builder::new().name(name).spawn(work)
}

/// Spawns a thread with a stack of `stack` bytes if there is memory for it.
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

/// Spawns a scoped thread if there is memory for it.
pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    room_to_start()?;
    Builder::new().spawn_scoped(scope, work)
}

/// A thread that runs out of memory before its function runs aborts the process, so the check comes first.
fn room_to_start() -> io::Result<()> {
    if has(THREAD_BYTES) { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}
