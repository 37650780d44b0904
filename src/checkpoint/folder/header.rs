//! Safetensors header parser: an eight-byte length, JSON, then contiguous tensor data.

use std::path::Path;

use safetensors::tensor::{Dtype, Metadata};

use crate::checkpoint::fault::GIT_LFS;
use crate::checkpoint::source::Source;
use crate::checkpoint::stored::{PARSED, StoredFile, make_sure, read_error};
use crate::checkpoint::tensor::tensor_bytes;
use crate::checkpoint::{Fault, OpenOptions, TensorInfo, TensorType, WeightsError};
use crate::headroom::json;

/// Maximum header length, a limit of the format.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bytes of the header length field.
const LENGTH_BYTES: usize = 8;

/// A tensor of a file, of any type, supported or not.
pub(super) struct TensorEntry {
    pub name: String,
    dtype: Dtype,
    /// Dimensions, rows first.
    shape: Vec<usize>,
    /// Byte offset from the start of the file.
    offset: u64,
    bytes: u64,
}

/// Opens a safetensors file and checks its header against its length.
pub(super) fn open(
    path: &Path,
    options: &OpenOptions,
) -> Result<(StoredFile, Vec<TensorEntry>), WeightsError> {
    let source = Source::open(path, options)?;
    let parsed = parse(path, &source);
    // The change check comes before the parse error: a file overwritten meanwhile can yield any error.
    source.check_unchanged(path)?;
    let (entries, header_bytes) = parsed?;
    source.release(0..header_bytes);
    Ok((StoredFile::new(path, source, header_bytes), entries))
}

fn parse(path: &Path, source: &Source) -> Result<(Vec<TensorEntry>, usize), WeightsError> {
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
        Some(TensorEntry { dtype: info.dtype, shape: info.shape.clone(), name, offset, bytes })
    };
    Ok((header.offset_keys().into_iter().filter_map(entry).collect(), start))
}

/// Parses the JSON of the header after checking the memory for it.
fn parse_json(path: &Path, bytes: &[u8]) -> Result<Metadata, WeightsError> {
    let refuse =
        |error: serde_json::Error| WeightsError::malformed(path, Fault::Header { reason: error.to_string() });
    make_sure(path, json::bytes_parsed(bytes).map_err(refuse)?)?;
    serde_json::from_slice(bytes).map_err(refuse)
}

impl TensorEntry {
    /// Whether the elements are E4M3 floats, which need scales.
    pub fn is_fp8(&self) -> bool {
        self.dtype == Dtype::F8_E4M3
    }

    /// Whether the elements are bytes, possibly packed pairs of 4-bit floats.
    pub fn is_bytes(&self) -> bool {
        self.dtype == Dtype::U8
    }

    /// The tensor table entry.
    pub fn info(self, path: &Path) -> Result<TensorInfo, WeightsError> {
        self.checked(false).map_err(|fault| WeightsError::malformed(path, fault))
    }

    /// The table entry of a byte tensor reinterpreted as packed pairs of 4-bit floats, under another name.
    pub fn pairs(self, path: &Path, name: String) -> Result<TensorInfo, WeightsError> {
        TensorEntry { name, ..self }.checked(true).map_err(|fault| WeightsError::malformed(path, fault))
    }

    fn checked(self, pairs: bool) -> Result<TensorInfo, Fault> {
        let TensorEntry { name, dtype, shape, offset, bytes } = self;
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
