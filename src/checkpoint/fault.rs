//! Format faults: [`Fault`] lists the ways in which a GGUF or safetensors file can be malformed.

use super::TensorType;
use super::shown::{part_name, shown, shown_bytes};

/// Prefix of a Git LFS pointer file.
pub(super) const GIT_LFS: &[u8] = b"version https://git-lfs";

/// A violation of the file format. The file's name is in [`super::WeightsError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The file does not start with `GGUF`.
    #[error("expected the magic bytes \"GGUF\", found \"{}\"", shown_bytes(found))]
    Magic {
        /// The first bytes, at most four.
        found: Vec<u8>,
    },
    /// The file was written for a big-endian machine.
    #[error("expected a little-endian file, found a big-endian one of version {version}")]
    BigEndian {
        /// The version, byte-swapped to little-endian.
        version: u32,
    },
    /// The GGUF version is not supported.
    #[error("expected GGUF version 2 or 3, found {found}")]
    Version {
        /// The version.
        found: u32,
    },
    /// The file is one part of a split model, and its name does not follow the pattern of split models, so
    /// the other parts cannot be found.
    #[error(
        "found part {part} of {count} alone: rename it {}, beside {}",
        part_name("NAME", *part, *count),
        part_name("NAME", if *part == 1 { 2 } else { 1 }, *count)
    )]
    Split {
        /// This part, from 1.
        part: u64,
        /// Total number of parts.
        count: u64,
    },
    /// Another part of a split model is missing from the folder.
    #[error("found part {part} of {count}: part {missing} is missing, expected beside it as {}", shown(name))]
    MissingPart {
        /// This part, from 1.
        part: u64,
        /// Total number of parts.
        count: u64,
        /// The missing part, from 1.
        missing: u64,
        /// The expected file name of the missing part.
        name: String,
    },
    /// The part number in a file's metadata differs from the one in its name.
    #[error("expected part {part} of {count} by the file's name, found part {found} of {found_count}")]
    OtherPart {
        /// The part number in the file name, from 1.
        part: u64,
        /// Total number of parts, from the file names.
        count: u64,
        /// The part number in the metadata, from 1.
        found: u64,
        /// Total number of parts in the metadata; 1 if the metadata has no such key.
        found_count: u64,
    },
    /// The number of tensors in all parts differs from the first part's metadata.
    #[error("metadata `split.tensors.count`: expected {expected} tensors, found {found} in the parts")]
    PartTensors {
        /// `split.tensors.count` of the first part.
        expected: u64,
        /// Tensors in all parts.
        found: u64,
    },
    /// The file ends too early.
    #[error("{what}: expected {needed} bytes, found {left} before the end of the file")]
    Truncated {
        /// The field being read.
        what: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes left in the file.
        left: u64,
    },
    /// A count exceeds the most entries that the rest of the file could hold.
    #[error("{what}: expected at most {most} in the rest of the file, found a count of {found}")]
    Count {
        /// The kind of entry: "tensors", "metadata entries".
        what: &'static str,
        /// The count.
        found: u64,
        /// The most that fit.
        most: u64,
    },
    /// A metadata key is empty or too long.
    #[error("metadata key: expected a length of 1 to {most} bytes, found {found}")]
    KeyLength {
        /// Its length.
        found: u64,
        /// The maximum length.
        most: u64,
    },
    /// A metadata key is not UTF-8.
    #[error("metadata key: expected UTF-8, found \"{}\"", shown_bytes(found))]
    KeyText {
        /// Its bytes.
        found: Vec<u8>,
    },
    /// Two metadata entries have the same key.
    #[error("metadata `{}` is there twice", shown(key))]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A metadata value has no known type.
    #[error("metadata `{}`: expected a value type of 0 to 12, found {found}", shown(key))]
    ValueType {
        /// The key.
        key: String,
        /// The type number.
        found: u32,
    },
    /// A boolean is neither 0 nor 1.
    #[error("metadata `{}`: expected a boolean of 0 or 1, found {found}", shown(key))]
    Boolean {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
    },
    /// A string extends beyond the end of the file, or beyond the 4 GiB limit of its array.
    #[error(
        "metadata `{}`: expected a string of at most {left} bytes, found a length of {found}",
        shown(key)
    )]
    StringLength {
        /// The key.
        key: String,
        /// The string's length.
        found: u64,
        /// Bytes left in the file or in the array.
        left: u64,
    },
    /// A string is not valid UTF-8.
    #[error("metadata `{}`: expected UTF-8, found a bad byte at {bad} of the string", shown(key))]
    StringText {
        /// The key.
        key: String,
        /// Valid bytes before the first invalid one.
        bad: u64,
    },
    /// An array extends beyond the end of the file.
    #[error(
        "metadata `{}`: expected an array of at most {most} elements, found a length of {found}",
        shown(key)
    )]
    ArrayLength {
        /// The key.
        key: String,
        /// The array's length.
        found: u64,
        /// Most elements that fit in the rest of the file.
        most: u64,
    },
    /// A metadata value cannot be allocated.
    #[error("metadata `{}`: expected memory for {bytes} bytes, found too little", shown(key))]
    Memory {
        /// The key.
        key: String,
        /// Bytes needed for the value.
        bytes: u64,
    },
    /// Arrays are nested too deep.
    #[error("metadata `{}`: expected arrays nested at most {most} deep", shown(key))]
    Nesting {
        /// The key.
        key: String,
        /// The deepest nesting allowed.
        most: usize,
    },
    /// `general.alignment` is not a power of two that fits 32 bits.
    #[error("metadata `general.alignment`: expected a u32 power of two, found {found}")]
    Alignment {
        /// The value, or its type.
        found: String,
    },
    /// A tensor's name is empty or too long.
    #[error("tensor name: expected a length of 1 to {most} bytes, found {found}")]
    NameLength {
        /// Its length.
        found: u64,
        /// The maximum length.
        most: u64,
    },
    /// A tensor's name is not UTF-8.
    #[error("tensor name: expected UTF-8, found \"{}\"", shown_bytes(found))]
    NameText {
        /// Its bytes.
        found: Vec<u8>,
    },
    /// Two tensors have the same name.
    #[error("tensor `{}` is there twice", shown(tensor))]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// A tensor has no dimension, or too many.
    #[error("tensor `{}`: expected 1 to 4 dimensions, found {found}", shown(tensor))]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// Its number of dimensions.
        found: u32,
    },
    /// A dimension is zero.
    #[error("tensor `{}`: expected dimensions above zero, found {dims:?}", shown(tensor))]
    ZeroDimension {
        /// The tensor.
        tensor: String,
        /// Its dimensions, columns first.
        dims: Vec<u64>,
    },
    /// The size of a tensor in elements or bytes overflows the address space.
    #[error("tensor `{}`: dimensions {dims:?} are too large", shown(tensor))]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its dimensions, columns first.
        dims: Vec<u64>,
    },
    /// A known tensor type that is not supported.
    #[error(
        "tensor `{}`: the type {found} is not supported; re-quantise to Q8_0, Q4_0 or a K format",
        shown(tensor)
    )]
    UnsupportedType {
        /// The tensor.
        tensor: String,
        /// The type's name.
        found: &'static str,
    },
    /// An unknown tensor type.
    #[error("tensor `{}`: expected a known tensor type, found number {found}", shown(tensor))]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// The type number.
        found: u32,
    },
    /// A tensor of a safetensors file is not of type F32, F16 or BF16.
    #[error("tensor `{}`: the type {found} is not supported; expected F32, F16 or BF16", shown(tensor))]
    NoFloat {
        /// The tensor.
        tensor: String,
        /// The type's name.
        found: String,
    },
    /// An FP8 or NVFP4 tensor has no tensor of scales.
    #[error("tensor `{}`: expected its scales in a tensor `{}`, found none", shown(tensor), shown(scales))]
    NoScales {
        /// The tensor.
        tensor: String,
        /// The expected name of the scales.
        scales: String,
    },
    /// The scales of an FP8 or NVFP4 tensor have an unexpected shape.
    #[error("tensor `{}`: expected {expected}, found {found:?}", shown(tensor))]
    ScaleShape {
        /// The scales.
        tensor: String,
        /// The expected shapes, rows first, and the shape of the scaled tensor.
        expected: Box<str>,
        /// Dimensions of the scales, rows first.
        found: Box<[usize]>,
    },
    /// The header length of a safetensors file exceeds the file or the format's limit.
    #[error("header length: expected at most {most} bytes, found {found}")]
    HeaderLength {
        /// Its length.
        found: u64,
        /// The maximum length.
        most: u64,
    },
    /// The header of a safetensors file is not valid JSON, or its tensors are not contiguous.
    #[error("header: {}", shown(reason))]
    Header {
        /// The reason.
        reason: String,
    },
    /// The file is a Git LFS pointer instead of the data itself.
    #[error("expected the file itself, found a pointer of Git LFS: `git lfs pull` fetches it")]
    Pointer,
    /// The data section of a safetensors file differs in length from its tensors.
    #[error("tensor data: expected {expected} bytes behind the header, found {found}")]
    DataLength {
        /// Total bytes of all tensors.
        expected: u64,
        /// Bytes after the header.
        found: u64,
    },
    /// The row length is not a multiple of the block length.
    #[error("tensor `{}`: {dtype} needs rows of a multiple of {} elements, found {cols}", shown(tensor), dtype.block_len())]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: TensorType,
        /// Elements per row.
        cols: u64,
    },
    /// A tensor's offset is not a multiple of the alignment.
    #[error(
        "tensor `{}`: expected an offset that is a multiple of {alignment}, found {found}",
        shown(tensor)
    )]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// The file's alignment.
        alignment: u64,
        /// The offset, from the start of the data.
        found: u64,
    },
    /// A tensor's data extends beyond the file.
    #[error(
        "tensor `{}`: {bytes} bytes at offset {found} reach beyond the {available} bytes of tensor data",
        shown(tensor)
    )]
    Outside {
        /// The tensor.
        tensor: String,
        /// The offset, from the start of the data.
        found: u64,
        /// Bytes of the tensor.
        bytes: u64,
        /// Bytes of tensor data in the file.
        available: u64,
    },
    /// Two tensors overlap.
    #[error("tensor `{}` overlaps tensor `{}`", shown(tensor), shown(other))]
    Overlap {
        /// The tensor that starts later, or is listed later.
        tensor: String,
        /// The tensor that starts earlier.
        other: String,
    },
}
