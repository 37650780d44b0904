//! Whether there is memory for what a header becomes: a few bytes of it can stand for hundreds.

use std::ops::Range;

use super::cursor::{Cursor, Located, Parsed};
use super::{ENTRY_BYTES_MIN, Fault, TENSOR_BYTES_MIN, parse_version};
use crate::room;

/// What a metadata entry takes at most beside a long key or value: its place, its key twice, an index of keys; all of
/// them grow by doubling.
const ENTRY_MEMORY: u64 = 400;
/// What a tensor takes likewise: while it is checked, and by its name in the index of all tensors.
const TENSOR_MEMORY: u64 = 600;
/// Bytes from which a value's memory is looked for before it is taken.
const LARGE: u64 = 1 << 20;

/// Bytes that the tables of a header take, by the counts at its beginning; 0 where these are missing or wrong, which
/// parsing says.
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

/// Refuses a value of so many bytes for which there is no memory.
pub(super) fn check_memory(key: &str, offset: u64, bytes: u64) -> Parsed<()> {
    let needed = usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(room::SMALL_BYTES);
    if bytes < LARGE || room::has(needed) {
        return Ok(());
    }
    Err(Located { offset, fault: Fault::Memory { key: key.to_owned(), bytes } })
}

/// The same of an array's strings that were read from a part of the file, as they double their room; gives how many
/// bytes of them there is room for.
pub(super) fn check_strings(key: &str, read: Range<u64>, checked: u64) -> Parsed<u64> {
    let bytes = read.end.saturating_sub(read.start);
    if bytes < checked.max(LARGE) {
        return Ok(checked);
    }
    // Twice as many, beside those that are copied there.
    check_memory(key, read.end, bytes.saturating_mul(3))?;
    Ok(bytes.saturating_mul(2))
}
