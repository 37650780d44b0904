//! Stored files: [`StoredFile`] is one file of a checkpoint, mapped or read on demand.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::headroom;
use crate::quant::QuantError;

use super::scales::{RowScales, Spread};
use super::source::Source;
use super::{TensorInfo, WeightsError};

/// Bytes of each of the three samples of a tensor in a fingerprint.
const SAMPLE_BYTES: usize = 1024;
/// Fault-around distance: on a page fault, Linux also maps up to 64 KiB of cached pages on either side.
const AROUND_BYTES: usize = 64 << 10;
/// Memory of a parsed header as a multiple of its bytes. A vocabulary with its indexes needs the most.
pub(super) const PARSED: usize = 8;

/// One file of a checkpoint.
pub struct StoredFile {
    path: PathBuf,
    source: Source,
    /// Length of the header in bytes; for a document, the whole file.
    head_bytes: usize,
}

impl StoredFile {
    pub(super) fn new(path: &Path, source: Source, head_bytes: usize) -> StoredFile {
        StoredFile { path: path.to_owned(), source, head_bytes }
    }

    /// Opens a file without tensors. Documents are read, never mapped.
    #[cfg(feature = "safetensors")]
    pub(super) fn document(path: &Path) -> Result<StoredFile, WeightsError> {
        let source = Source::open(path, &super::OpenOptions::default())?;
        let head_bytes = source.len();
        Ok(StoredFile::new(path, source, head_bytes))
    }

    /// Path for error messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the file in bytes.
    pub(super) fn len(&self) -> usize {
        self.source.len()
    }

    pub(super) fn is_mapped(&self) -> bool {
        matches!(self.source, Source::Mapped(_))
    }

    pub(super) fn check_unchanged(&self) -> Result<(), WeightsError> {
        self.source.check_unchanged(&self.path)
    }

    /// Calls `use_bytes` with the file's bytes in `range`.
    pub(super) fn with<T>(
        &self,
        range: Range<usize>,
        use_bytes: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, WeightsError> {
        self.source.with(range, use_bytes).map_err(|source| {
            // A truncated file is the more precise error than an unexpected end of file.
            self.check_unchanged().err().unwrap_or_else(|| read_error(&self.path, source))
        })
    }

    /// Modification time when the file was opened.
    pub(super) fn modified(&self) -> Option<SystemTime> {
        self.source.modified()
    }

    pub(super) fn prefetch(&self, info: &TensorInfo) {
        self.source.prefetch(range(info));
    }

    pub(super) fn release(&self, range: Range<usize>) {
        self.source.release(range);
    }

    /// Releases a tensor's pages and those mapped around them.
    pub(super) fn release_tensor(&self, info: &TensorInfo) {
        self.release_around(range(info));
    }

    fn release_around(&self, range: Range<usize>) {
        let end = range.end.saturating_add(AROUND_BYTES);
        self.release(range.start.saturating_sub(AROUND_BYTES)..end);
    }

    pub(super) fn hash_into(
        &self,
        tensors: &[TensorInfo],
        hasher: &mut blake3::Hasher,
    ) -> Result<(), WeightsError> {
        self.with(0..self.head_bytes, |bytes| {
            hasher.update(bytes);
        })?;
        self.release(0..self.head_bytes);
        tensors.iter().try_for_each(|info| self.hash_tensor(info, hasher))
    }

    pub(super) fn hash_tensor(
        &self,
        info: &TensorInfo,
        hasher: &mut blake3::Hasher,
    ) -> Result<(), WeightsError> {
        let Range { start, end } = range(info);
        let last = (end - start).saturating_sub(SAMPLE_BYTES);
        for at in [start, start + last / 2, start + last] {
            self.with(at..end.min(at + SAMPLE_BYTES), |bytes| {
                hasher.update(bytes);
            })?;
        }
        self.release_around(start..end);
        Ok(())
    }

    pub(super) fn shape_error(&self, info: &TensorInfo, expected: &'static str) -> WeightsError {
        WeightsError::Shape {
            file: self.path.clone(),
            tensor: info.name.clone(),
            offset: info.offset,
            expected,
            found: info.dims.clone(),
        }
    }

    pub(super) fn tensor_error(&self, info: &TensorInfo, source: QuantError) -> WeightsError {
        WeightsError::Tensor {
            file: self.path.clone(),
            tensor: info.name.clone(),
            offset: info.offset,
            source,
        }
    }
}

/// Separate scales of an FP8 or NVFP4 tensor.
pub(super) struct Scales {
    /// The file of the scales, which may be another shard than the tensor's.
    pub file: Arc<StoredFile>,
    /// Table entry of the scales: floats of shape `spread.shape()`.
    pub info: TensorInfo,
    pub spread: Spread,
    /// Global factor for all scales.
    pub factor: f32,
}

impl Scales {
    /// Reads the scales of `rows`.
    pub fn read(&self, rows: &Range<usize>) -> Result<RowScales, WeightsError> {
        let Scales { file, info, spread, factor } = self;
        let place = RowScales::place(info, *spread, rows);
        file.with(place, |bytes| RowScales::new(info, *spread, *factor, rows, bytes))
    }
}

pub(super) fn read_error(path: &Path, source: std::io::Error) -> WeightsError {
    WeightsError::Io { file: path.to_owned(), action: "read", source }
}

/// Out-of-memory error if `bytes` are not available for parsing a header.
pub(super) fn make_sure(path: &Path, bytes: usize) -> Result<(), WeightsError> {
    match headroom::has(bytes.saturating_add(headroom::SMALL_BYTES)) {
        true => Ok(()),
        false => Err(read_error(path, std::io::ErrorKind::OutOfMemory.into())),
    }
}

/// Byte range of a tensor: within the file, as checked on open.
fn range(info: &TensorInfo) -> Range<usize> {
    info.offset as usize..(info.offset + info.bytes) as usize
}
