//! [`Fault`]: what is wrong inside a model file, whose name [`super::WeightsError`] has.

use super::TensorType;
use super::shown::{part_name, shown, shown_bytes};

/// How a text begins that stands for a file that Git keeps elsewhere.
pub(super) const GIT_LFS: &[u8] = b"version https://git-lfs";

/// What is wrong inside a file of weights.
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
        /// The version, with its bytes turned round.
        version: u32,
    },
    /// A version that cannot be read.
    #[error("expected GGUF version 2 or 3, found {found}")]
    Version {
        /// The version.
        found: u32,
    },
    /// The file is one part of several, and its name does not tell where the others are.
    #[error(
        "found part {part} of {count} alone: rename it {}, beside {}",
        part_name("NAME", *part, *count),
        part_name("NAME", if *part == 1 { 2 } else { 1 }, *count)
    )]
    Split {
        /// This part, from 1.
        part: u64,
        /// Parts in all.
        count: u64,
    },
    /// Another part of the model is not beside this one.
    #[error("found part {part} of {count}: part {missing} is missing, expected beside it as {}", shown(name))]
    MissingPart {
        /// This part, from 1.
        part: u64,
        /// Parts in all.
        count: u64,
        /// The part that is not there, from 1.
        missing: u64,
        /// The file name that it must have.
        name: String,
    },
    /// A file says that it is another part than its name does.
    #[error("expected part {part} of {count} by the file's name, found part {found} of {found_count}")]
    OtherPart {
        /// The part that its name says, from 1.
        part: u64,
        /// Parts in all, by the first file.
        count: u64,
        /// What it says itself, from 1.
        found: u64,
        /// Parts in all that it says itself; 1 where it says nothing.
        found_count: u64,
    },
    /// The parts do not have the tensors that they should have together.
    #[error("metadata `split.tensors.count`: expected {expected} tensors, found {found} in the parts")]
    PartTensors {
        /// What the first part says.
        expected: u64,
        /// Tensors of all parts.
        found: u64,
    },
    /// The file ends too early.
    #[error("{what}: expected {needed} bytes, found {left} before the end of the file")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// More entries are announced than the rest of the file could hold.
    #[error("{what}: expected at most {most} in the rest of the file, found a count of {found}")]
    Count {
        /// What is counted: "tensors", "metadata entries".
        what: &'static str,
        /// The count.
        found: u64,
        /// What fits.
        most: u64,
    },
    /// A metadata key is empty or too long.
    #[error("metadata key: expected a length of 1 to {most} bytes, found {found}")]
    KeyLength {
        /// Its length.
        found: u64,
        /// The longest allowed.
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
        /// The type's number.
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
    /// A string reaches beyond the end of the file, or is more than fits into its array's 4 GiB.
    #[error(
        "metadata `{}`: expected a string of at most {left} bytes, found a length of {found}",
        shown(key)
    )]
    StringLength {
        /// The key.
        key: String,
        /// The string's length.
        found: u64,
        /// Bytes left in the file or the array.
        left: u64,
    },
    /// A string is not UTF-8.
    #[error("metadata `{}`: expected UTF-8, found a bad byte at {bad} of the string", shown(key))]
    StringText {
        /// The key.
        key: String,
        /// Bytes of the string before the bad one.
        bad: u64,
    },
    /// An array reaches beyond the end of the file.
    #[error(
        "metadata `{}`: expected an array of at most {most} elements, found a length of {found}",
        shown(key)
    )]
    ArrayLength {
        /// The key.
        key: String,
        /// The array's length.
        found: u64,
        /// What fits in the rest of the file.
        most: u64,
    },
    /// The system has no memory for a value.
    #[error("metadata `{}`: expected memory for {bytes} bytes, found too little", shown(key))]
    Memory {
        /// The key.
        key: String,
        /// Bytes that its value takes.
        bytes: u64,
    },
    /// Arrays within arrays, too deep.
    #[error("metadata `{}`: expected arrays nested at most {most} deep", shown(key))]
    Nesting {
        /// The key.
        key: String,
        /// The deepest allowed.
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
        /// The longest allowed.
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
    /// The number of elements or bytes does not fit the address space.
    #[error("tensor `{}`: dimensions {dims:?} are too large", shown(tensor))]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Its dimensions, columns first.
        dims: Vec<u64>,
    },
    /// A tensor type that is known but cannot be read.
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
    /// A tensor type that is not known at all.
    #[error("tensor `{}`: expected a known tensor type, found number {found}", shown(tensor))]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// The type's number.
        found: u32,
    },
    /// A safetensors file has a tensor of a type that is no float of 16 or 32 bits.
    #[error("tensor `{}`: the type {found} is not supported; expected F32, F16 or BF16", shown(tensor))]
    NoFloat {
        /// The tensor.
        tensor: String,
        /// The type's name.
        found: String,
    },
    /// A tensor of 8-bit or 4-bit floats has no scales beside it.
    #[error("tensor `{}`: expected its scales in a tensor `{}`, found none", shown(tensor), shown(scales))]
    NoScales {
        /// The tensor.
        tensor: String,
        /// The name that its scales must have.
        scales: String,
    },
    /// The scales of a tensor of floats of few bits have another shape than it asks for.
    #[error("tensor `{}`: expected {expected}, found {found:?}", shown(tensor))]
    ScaleShape {
        /// The scales.
        tensor: String,
        /// The shapes that they may have, rows first, and that of the tensor that they are for.
        expected: Box<str>,
        /// Their dimensions, rows first.
        found: Box<[usize]>,
    },
    /// The header of a safetensors file is longer than the file, or than the format allows.
    #[error("header length: expected at most {most} bytes, found {found}")]
    HeaderLength {
        /// Its length.
        found: u64,
        /// The longest that there could be.
        most: u64,
    },
    /// The header of a safetensors file is no JSON, or its tensors do not lie one behind the other.
    #[error("header: {}", shown(reason))]
    Header {
        /// What is wrong.
        reason: String,
    },
    /// Git keeps the file elsewhere, and a short text stands for it.
    #[error("expected the file itself, found a pointer of Git LFS: `git lfs pull` fetches it")]
    Pointer,
    /// A safetensors file is longer or shorter than its tensors.
    #[error("tensor data: expected {expected} bytes behind the header, found {found}")]
    DataLength {
        /// Bytes of all tensors.
        expected: u64,
        /// Bytes behind the header.
        found: u64,
    },
    /// Rows of a block format are not whole blocks.
    #[error("tensor `{}`: {dtype} needs rows of a multiple of {} elements, found {cols}", shown(tensor), dtype.block_len())]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: TensorType,
        /// Elements of a row.
        cols: u64,
    },
    /// A tensor's offset is not a multiple of the file's alignment.
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
    /// A tensor's data does not lie inside the file.
    #[error(
        "tensor `{}`: {bytes} bytes at offset {found} reach beyond the {available} bytes of tensor data",
        shown(tensor)
    )]
    Outside {
        /// The tensor.
        tensor: String,
        /// The offset, from the start of the data.
        found: u64,
        /// Bytes that the tensor takes.
        bytes: u64,
        /// Bytes from the start of the data to the end of the file.
        available: u64,
    },
    /// Two tensors share bytes.
    #[error("tensor `{}` overlaps tensor `{}`", shown(tensor), shown(other))]
    Overlap {
        /// The tensor that starts later, or is listed later.
        tensor: String,
        /// The tensor that starts earlier.
        other: String,
    },
}
