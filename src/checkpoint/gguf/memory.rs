//! Memory checks for a header: a few bytes of it can require hundreds of bytes in memory.

use std::ops::Range;

use super::cursor::{Cursor, Located, Parsed};
use super::{ENTRY_BYTES_MIN, Fault, TENSOR_BYTES_MIN, parse_version};
use crate::headroom;

/// Upper bound of the memory per metadata entry, without long keys and values: the entry, its key twice and
/// the index slot, in tables that grow by doubling.
const ENTRY_MEMORY: u64 = 400;
/// Upper bound of the memory per tensor: the parsed entry, the set of names, and the index of all tensors.
const TENSOR_MEMORY: u64 = 600;
/// Values of at least this size are checked against the free memory before they are allocated.
const LARGE: u64 = 1 << 20;

/// Memory for the tables of a header, from the counts at its start. 0 if these are missing or too large,
/// which is an error in the parser.
pub(in crate::checkpoint) fn table_bytes(bytes: &[u8], file_bytes: u64) -> usize {
    let mut cursor = Cursor::new(bytes, file_bytes);
    let mut counts = || -> Parsed<(u64, u64)> {
        parse_version(&mut cursor)?;
        Ok((cursor.u64("tensor count")?, cursor.u64("metadata count")?))
    };
    let Ok((tensors, entries)) = counts() else { return 0 };
    let table = |count: u64, least: u64, each: u64| match count <= file_bytes / least {
        true => count.saturating_mul(each),
        false => 0,
    };
    let tensors = table(tensors, TENSOR_BYTES_MIN, TENSOR_MEMORY);
    let bytes = tensors.saturating_add(table(entries, ENTRY_BYTES_MIN, ENTRY_MEMORY));
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Refuses a value of `bytes` bytes if the memory for it is not available.
pub(super) fn check_memory(key: &str, offset: u64, bytes: u64) -> Parsed<()> {
    let needed = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(headroom::SMALL_BYTES);
    if bytes < LARGE || headroom::has(needed) {
        return Ok(());
    }
    Err(Located { offset, fault: Fault::Memory { key: key.to_owned(), bytes } })
}

/// Memory check for the strings of an array, repeated each time their buffer doubles. `read` is the byte
/// range parsed so far. Returns the number of bytes up to which no further check is needed.
pub(super) fn check_strings(key: &str, read: Range<u64>, checked: u64) -> Parsed<u64> {
    let bytes = read.end.saturating_sub(read.start);
    if bytes < checked.max(LARGE) {
        return Ok(checked);
    }
    // The new buffer has twice the size, and the old one lives until the copy is done.
    check_memory(key, read.end, bytes.saturating_mul(3))?;
    Ok(bytes.saturating_mul(2))
}
