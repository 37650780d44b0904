//! The header of a safetensors file: eight bytes of length, JSON, and then the tensors without a gap.

use std::path::Path;

use safetensors::tensor::{Dtype, Metadata};

use crate::checkpoint::fault::GIT_LFS;
use crate::checkpoint::source::Source;
use crate::checkpoint::stored::{PARSED, StoredFile, make_sure, read_error};
use crate::checkpoint::tensor::tensor_bytes;
use crate::checkpoint::{Fault, OpenOptions, TensorInfo, TensorType, WeightsError};
use crate::room::json;

/// Longest header that is read; the format's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bytes that say how long the header is.
const LENGTH_BYTES: usize = 8;

/// A tensor of a file, which may be of a type that cannot be read.
pub(super) struct Entry {
    pub name: String,
    dtype: Dtype,
    /// Rows first.
    shape: Vec<usize>,
    /// From the start of the file.
    offset: u64,
    bytes: u64,
}

/// Opens a safetensors file and checks all that its header says against its length.
pub(super) fn open(path: &Path, options: &OpenOptions) -> Result<(StoredFile, Vec<Entry>), WeightsError> {
    let source = Source::open(path, options)?;
    let parsed = parse(path, &source);
    // One that was written over meanwhile may look like anything.
    source.check_unchanged(path)?;
    let (entries, header_bytes) = parsed?;
    source.release(0..header_bytes);
    Ok((StoredFile::new(path, source, header_bytes), entries))
}

fn parse(path: &Path, source: &Source) -> Result<(Vec<Entry>, usize), WeightsError> {
    let read = |error| read_error(path, error);
    let malformed = |fault| WeightsError::malformed(path, fault);
    let file_bytes = source.len() as u64;
    let left = file_bytes
        .checked_sub(LENGTH_BYTES as u64)
        .ok_or_else(|| malformed(Fault::Truncated { what: "header length", needed: 8, left: file_bytes }))?;
    let length = source.with(0..LENGTH_BYTES, |bytes| bytes.first_chunk().copied().map(u64::from_le_bytes));
    let found = length.map_err(read)?.unwrap_or(u64::MAX);
    if GIT_LFS.starts_with(&found.to_le_bytes()) {
        return Err(malformed(Fault::Pointer));
    }
    let most = left.min(HEADER_BYTES_MAX);
    if found > most {
        return Err(malformed(Fault::HeaderLength { found, most }));
    }
    let start = LENGTH_BYTES + found as usize;
    make_sure(path, (found as usize).saturating_mul(PARSED))?;
    let header = source.with(LENGTH_BYTES..start, |bytes| parse_json(path, bytes)).map_err(read)??;
    let (expected, found) = (header.data_len() as u64, left - found);
    if expected != found {
        return Err(malformed(Fault::DataLength { expected, found }));
    }
    let entry = |name: String| {
        let info = header.info(&name)?;
        let (from, to) = info.data_offsets;
        let (offset, bytes) = ((start + from) as u64, (to - from) as u64);
        Some(Entry { dtype: info.dtype, shape: info.shape.clone(), name, offset, bytes })
    };
    Ok((header.offset_keys().into_iter().filter_map(entry).collect(), start))
}

/// The header's own part, where there is room for what it becomes.
fn parse_json(path: &Path, bytes: &[u8]) -> Result<Metadata, WeightsError> {
    let refuse =
        |error: serde_json::Error| WeightsError::malformed(path, Fault::Header { reason: error.to_string() });
    make_sure(path, json::bytes_parsed(bytes).map_err(refuse)?)?;
    serde_json::from_slice(bytes).map_err(refuse)
}

impl Entry {
    /// Whether its elements are floats of eight bits that can be read, with scales.
    pub fn is_fp8(&self) -> bool {
        self.dtype == Dtype::F8_E4M3
    }

    /// Whether its elements are bytes, which may be pairs of floats of four bits.
    pub fn is_bytes(&self) -> bool {
        self.dtype == Dtype::U8
    }

    /// The row of the tensor table.
    pub fn info(self, path: &Path) -> Result<TensorInfo, WeightsError> {
        self.checked(false).map_err(|fault| WeightsError::malformed(path, fault))
    }

    /// The same of a tensor of bytes that are pairs of floats of four bits, under another name.
    pub fn pairs(self, path: &Path, name: String) -> Result<TensorInfo, WeightsError> {
        Entry { name, ..self }.checked(true).map_err(|fault| WeightsError::malformed(path, fault))
    }

    fn checked(self, pairs: bool) -> Result<TensorInfo, Fault> {
        let Entry { name, dtype, shape, offset, bytes } = self;
        let dtype = match dtype {
            Dtype::U8 if pairs => TensorType::F4E2m1,
            Dtype::F32 => TensorType::F32,
            Dtype::F16 => TensorType::F16,
            Dtype::BF16 => TensorType::Bf16,
            Dtype::F8_E4M3 => TensorType::F8E4m3,
            other => return Err(Fault::NoFloat { tensor: name, found: other.to_string() }),
        };
        let mut dims: Vec<u64> = shape.iter().rev().map(|&dim| dim as u64).collect();
        if dims.is_empty() {
            dims.push(1);
        }
        if pairs {
            dims[0] = dims[0].saturating_mul(2);
        }
        if dims.len() > 4 {
            return Err(Fault::Dimensions { tensor: name, found: dims.len() as u32 });
        }
        if dims.contains(&0) {
            return Err(Fault::ZeroDimension { tensor: name, dims });
        }
        match tensor_bytes(dtype, &dims) {
            Some(expected) if expected == bytes => Ok(TensorInfo { name, dtype, dims, offset, bytes }),
            _ => Err(Fault::TooLarge { tensor: name, dims }),
        }
    }
}
