//! GGUF header parser: magic, version, counts, metadata and tensor table. Every field is checked before use.
//!
//! All fields are little-endian: `"GGUF"`, version u32, tensor count u64, metadata count u64; then
//! metadata entries (key, type u32, value), tensor entries (name, dimension count u32, dimensions
//! u64, type u32, offset u64 from the start of the data), and, at the next multiple of
//! `general.alignment`, the data. Strings are a u64 length and bytes of UTF-8.

mod cursor;
mod memory;

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

pub(super) use cursor::Located;
use cursor::{Cursor, Parsed, repeat};
pub(super) use memory::table_bytes;
use memory::{check_memory, check_strings};

use super::fault::GIT_LFS;
use super::tensor::{TypeNumber, tensor_bytes, type_from_number};
use super::{Array, Fault, Metadata, Strings, TensorInfo, TensorType, Value};

/// Maximum length of a metadata key in the format, in bytes.
const KEY_BYTES_MAX: u64 = 65_535;
/// Maximum length of a tensor name in the format, in bytes.
const NAME_BYTES_MAX: u64 = 64;
/// Memory overhead of a nested array, in addition to its elements.
const NESTED_BYTES: u64 = size_of::<Array>() as u64;
/// Maximum nesting depth of arrays.
const NESTING_MAX: usize = 4;
/// Minimum bytes of a metadata entry: key length, key, type, value.
const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// Minimum bytes of a tensor entry: name length, name, dimension count, dimension, type, offset.
const TENSOR_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;
/// Default of `general.alignment`.
pub(super) const ALIGNMENT_DEFAULT: u32 = 32;

/// A parsed header.
pub(super) struct Header {
    pub version: u32,
    pub metadata: Metadata,
    pub tensors: Vec<TensorInfo>,
    /// Bytes of the header, without the padding before the tensor data.
    pub bytes: usize,
}

/// Parses and checks the whole header of `file`. `bytes` is a prefix of the file's `file_bytes` bytes; if it
/// ends inside the header, the error is [`Fault::Truncated`].
pub(super) fn parse(file: &Path, bytes: &[u8], file_bytes: u64) -> Parsed<Header> {
    if bytes.starts_with(GIT_LFS) {
        return Err(Located { offset: 0, fault: Fault::Pointer });
    }
    let mut cursor = Cursor::new(bytes, file_bytes);
    let version = parse_version(&mut cursor)?;
    let (tensors_at, tensor_count) = (cursor.offset(), cursor.u64("tensor count")?);
    let (entries_at, entry_count) = (cursor.offset(), cursor.u64("metadata count")?);
    check_count("tensors", tensors_at, tensor_count, cursor.left() / TENSOR_BYTES_MIN)?;
    check_count("metadata entries", entries_at, entry_count, cursor.left() / ENTRY_BYTES_MIN)?;

    let mut metadata = Metadata::new(file);
    let mut alignment = u64::from(ALIGNMENT_DEFAULT);
    for _ in 0..entry_count {
        let offset = cursor.offset();
        let (key, value) = parse_entry(&mut cursor)?;
        if key == "general.alignment" {
            alignment = check_alignment(&value).map_err(|fault| Located { offset, fault })?;
        }
        metadata.insert(key, value).map_err(|key| Located { offset, fault: Fault::DuplicateKey { key } })?;
    }

    let entries = repeat(tensor_count, || parse_tensor(&mut cursor))?;
    let tensors = place_tensors(entries, cursor.offset(), file_bytes, alignment)?;
    Ok(Header { version, metadata, tensors, bytes: cursor.offset() as usize })
}

fn parse_version(cursor: &mut Cursor<'_>) -> Parsed<u32> {
    let magic = cursor.take(cursor.left().min(4), "magic")?;
    if magic != b"GGUF" {
        return Err(Located { offset: 0, fault: Fault::Magic { found: magic.to_vec() } });
    }
    let offset = cursor.offset();
    let found = cursor.u32("version")?;
    let fault = match found {
        2 | 3 => return Ok(found),
        _ if (1..=0xffff).contains(&found.swap_bytes()) => Fault::BigEndian { version: found.swap_bytes() },
        _ => Fault::Version { found },
    };
    Err(Located { offset, fault })
}

fn check_count(what: &'static str, offset: u64, found: u64, most: u64) -> Parsed<()> {
    if found > most {
        return Err(Located { offset, fault: Fault::Count { what, found, most } });
    }
    Ok(())
}

fn check_alignment(value: &Value) -> Result<u64, Fault> {
    match *value {
        Value::U32(alignment) if alignment.is_power_of_two() => Ok(alignment.into()),
        Value::U32(alignment) => Err(Fault::Alignment { found: alignment.to_string() }),
        ref other => Err(Fault::Alignment { found: other.type_name().to_owned() }),
    }
}

fn parse_entry(cursor: &mut Cursor<'_>) -> Parsed<(String, Value)> {
    let offset = cursor.offset();
    let found = cursor.u64("metadata key length")?;
    if !(1..=KEY_BYTES_MAX).contains(&found) {
        return Err(Located { offset, fault: Fault::KeyLength { found, most: KEY_BYTES_MAX } });
    }
    let bytes = cursor.take(found, "metadata key")?;
    let key = std::str::from_utf8(bytes)
        .map_err(|_| Located { offset, fault: Fault::KeyText { found: bytes.to_vec() } })?
        .to_owned();
    let value = parse_value(cursor, &key)?;
    Ok((key, value))
}

fn parse_value(cursor: &mut Cursor<'_>, key: &str) -> Parsed<Value> {
    let offset = cursor.offset();
    Ok(match cursor.u32("metadata value type")? {
        0 => Value::U8(u8::from_le_bytes(cursor.scalar()?)),
        1 => Value::I8(i8::from_le_bytes(cursor.scalar()?)),
        2 => Value::U16(u16::from_le_bytes(cursor.scalar()?)),
        3 => Value::I16(i16::from_le_bytes(cursor.scalar()?)),
        4 => Value::U32(u32::from_le_bytes(cursor.scalar()?)),
        5 => Value::I32(i32::from_le_bytes(cursor.scalar()?)),
        6 => Value::F32(f32::from_le_bytes(cursor.scalar()?)),
        7 => Value::Bool(parse_bool(cursor, key)?),
        8 => Value::String(parse_string(cursor, key)?.into_owned()),
        9 => Value::Array(parse_array(cursor, key, 1)?),
        10 => Value::U64(u64::from_le_bytes(cursor.scalar()?)),
        11 => Value::I64(i64::from_le_bytes(cursor.scalar()?)),
        12 => Value::F64(f64::from_le_bytes(cursor.scalar()?)),
        found => return Err(Located { offset, fault: Fault::ValueType { key: key.to_owned(), found } }),
    })
}

fn parse_bool(cursor: &mut Cursor<'_>, key: &str) -> Parsed<bool> {
    let offset = cursor.offset();
    let [byte] = cursor.scalar()?;
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        found => Err(Located { offset, fault: Fault::Boolean { key: key.to_owned(), found } }),
    }
}

/// Whether a key only describes the model (name, licence, ...) and is never used in a computation.
fn only_describes(key: &str) -> bool {
    key.starts_with("general.") && !["general.architecture", "general.type"].contains(&key)
}

/// A string. Invalid UTF-8 in a descriptive key is replaced by U+FFFD: old converters cut texts at byte
/// boundaries.
fn parse_string<'a>(cursor: &mut Cursor<'a>, key: &str) -> Parsed<Cow<'a, str>> {
    let offset = cursor.offset();
    let found = cursor.u64("string length")?;
    let left = cursor.left();
    if found > left {
        return Err(Located { offset, fault: Fault::StringLength { key: key.to_owned(), found, left } });
    }
    let bytes = cursor.take(found, "string")?;
    check_memory(key, offset, found)?;
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(Cow::Borrowed(text)),
        Err(_) if only_describes(key) => Ok(String::from_utf8_lossy(bytes)),
        Err(error) => {
            let bad = error.valid_up_to() as u64;
            Err(Located { offset, fault: Fault::StringText { key: key.to_owned(), bad } })
        }
    }
}

/// `count` strings. The caller has checked `count` against the bytes left.
fn parse_strings(cursor: &mut Cursor<'_>, key: &str, count: u64) -> Parsed<Strings> {
    let mut strings = Strings::with_capacity(count as usize);
    let (start, mut checked) = (cursor.offset(), 0);
    for _ in 0..count {
        let offset = cursor.offset();
        checked = check_strings(key, start..offset, checked)?;
        let (string, left) = (parse_string(cursor, key)?, strings.room());
        if string.len() > left {
            let (found, left) = (string.len() as u64, left as u64);
            return Err(Located { offset, fault: Fault::StringLength { key: key.to_owned(), found, left } });
        }
        strings.push(&string);
    }
    strings.shrink();
    Ok(strings)
}

/// An array at nesting level `depth`: 1 for the value of an entry.
fn parse_array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Parsed<Array> {
    let offset = cursor.offset();
    if depth > NESTING_MAX {
        return Err(Located { offset, fault: Fault::Nesting { key: key.to_owned(), most: NESTING_MAX } });
    }
    let element = cursor.u32("array element type")?;
    let length_at = cursor.offset();
    let found = cursor.u64("array length")?;
    // Minimum bytes per element: a string has at least its length, a nested array its type and length.
    let element_bytes = match element {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        9 => 12,
        found => return Err(Located { offset, fault: Fault::ValueType { key: key.to_owned(), found } }),
    };
    let most = cursor.left() / element_bytes;
    if found > most {
        let fault = Fault::ArrayLength { key: key.to_owned(), found, most };
        return Err(Located { offset: length_at, fault });
    }
    check_memory(
        key,
        length_at,
        found.saturating_mul(if element == 9 { NESTED_BYTES } else { element_bytes }),
    )?;
    Ok(match element {
        0 => Array::U8(cursor.scalars(found, u8::from_le_bytes)?),
        1 => Array::I8(cursor.scalars(found, i8::from_le_bytes)?),
        2 => Array::U16(cursor.scalars(found, u16::from_le_bytes)?),
        3 => Array::I16(cursor.scalars(found, i16::from_le_bytes)?),
        4 => Array::U32(cursor.scalars(found, u32::from_le_bytes)?),
        5 => Array::I32(cursor.scalars(found, i32::from_le_bytes)?),
        6 => Array::F32(cursor.scalars(found, f32::from_le_bytes)?),
        7 => Array::Bool(repeat(found, || parse_bool(cursor, key))?),
        8 => Array::String(parse_strings(cursor, key, found)?),
        9 => Array::Nested(repeat(found, || parse_array(cursor, key, depth + 1))?),
        10 => Array::U64(cursor.scalars(found, u64::from_le_bytes)?),
        11 => Array::I64(cursor.scalars(found, i64::from_le_bytes)?),
        _ => Array::F64(cursor.scalars(found, f64::from_le_bytes)?),
    })
}

/// A tensor entry with its position in the file; the tensor's offset is relative to the data section.
struct Entry {
    info: TensorInfo,
    at: u64,
}

fn parse_tensor(cursor: &mut Cursor<'_>) -> Parsed<Entry> {
    let at = cursor.offset();
    let located = |fault| Located { offset: at, fault };
    let found = cursor.u64("tensor name length")?;
    if !(1..=NAME_BYTES_MAX).contains(&found) {
        return Err(located(Fault::NameLength { found, most: NAME_BYTES_MAX }));
    }
    let bytes = cursor.take(found, "tensor name")?;
    let name = std::str::from_utf8(bytes)
        .map_err(|_| located(Fault::NameText { found: bytes.to_vec() }))?
        .to_owned();
    let dim_count = cursor.u32("tensor dimension count")?;
    if !(1..=4).contains(&dim_count) {
        return Err(located(Fault::Dimensions { tensor: name, found: dim_count }));
    }
    let dims = repeat(dim_count.into(), || cursor.u64("tensor dimension"))?;
    let number = cursor.u32("tensor type")?;
    let offset = cursor.u64("tensor offset")?;
    let (dtype, bytes) = check_shape(&name, &dims, number).map_err(located)?;
    Ok(Entry { info: TensorInfo { name, dtype, dims, offset, bytes }, at })
}

fn check_shape(name: &str, dims: &[u64], number: u32) -> Result<(TensorType, u64), Fault> {
    let tensor = name.to_owned();
    let dtype = match type_from_number(number) {
        TypeNumber::Supported(dtype) => dtype,
        TypeNumber::Unsupported(found) => return Err(Fault::UnsupportedType { tensor, found }),
        TypeNumber::Unknown => return Err(Fault::UnknownType { tensor, found: number }),
    };
    if dims.contains(&0) {
        return Err(Fault::ZeroDimension { tensor, dims: dims.to_vec() });
    }
    let cols = dims.first().copied().unwrap_or(0);
    if !cols.is_multiple_of(dtype.block_len() as u64) {
        return Err(Fault::PartialBlock { tensor, dtype, cols });
    }
    let bytes = tensor_bytes(dtype, dims).ok_or_else(|| Fault::TooLarge { tensor, dims: dims.to_vec() })?;
    Ok((dtype, bytes))
}

/// Makes tensor offsets absolute. Refuses tensors that are misaligned, outside the file, or overlapping.
fn place_tensors(
    entries: Vec<Entry>,
    header_bytes: u64,
    file_bytes: u64,
    alignment: u64,
) -> Parsed<Vec<TensorInfo>> {
    let data_start = header_bytes.next_multiple_of(alignment);
    let available = file_bytes.saturating_sub(data_start);
    let mut names = HashSet::new();
    for Entry { info, at } in &entries {
        let tensor = || info.name.clone();
        let fault = if !names.insert(info.name.as_str()) {
            Fault::DuplicateTensor { tensor: tensor() }
        } else if !info.offset.is_multiple_of(alignment) {
            Fault::Misaligned { tensor: tensor(), alignment, found: info.offset }
        } else if info.offset.checked_add(info.bytes).is_none_or(|end| end > available) {
            Fault::Outside { tensor: tensor(), found: info.offset, bytes: info.bytes, available }
        } else {
            continue;
        };
        return Err(Located { offset: *at, fault });
    }
    check_overlap(&entries)?;
    Ok(entries
        .into_iter()
        .map(|Entry { info, .. }| TensorInfo { offset: data_start + info.offset, ..info })
        .collect())
}

fn check_overlap(entries: &[Entry]) -> Parsed<()> {
    let mut by_offset: Vec<&Entry> = entries.iter().collect();
    by_offset.sort_by_key(|entry| entry.info.offset);
    for (before, after) in by_offset.iter().zip(by_offset.iter().skip(1)) {
        if before.info.offset + before.info.bytes > after.info.offset {
            let fault = Fault::Overlap { tensor: after.info.name.clone(), other: before.info.name.clone() };
            return Err(Located { offset: after.at, fault });
        }
    }
    Ok(())
}
