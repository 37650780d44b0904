//! [`StoredFile`]: one file of a checkpoint, read or mapped.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use crate::quant::QuantError;
use crate::room;

use super::scales::{RowScales, Spread};
use super::source::Source;
use super::{TensorInfo, WeightsError};

/// Bytes that a fingerprint takes from each of three places of a tensor.
const SAMPLE_BYTES: usize = 1024;
/// A system maps up to so many bytes on either side of a page that is touched, where it has them (Linux does
/// 64 KiB).
const AROUND_BYTES: usize = 64 << 10;
/// What a header becomes takes about so many times its bytes; a vocabulary with its indexes takes the most.
pub(super) const PARSED: usize = 8;

/// One file of a checkpoint.
pub struct StoredFile {
    path: PathBuf,
    source: Source,
    /// Bytes at its beginning that describe the rest; all of a document.
    head_bytes: usize,
}

impl StoredFile {
    pub(super) fn new(path: &Path, source: Source, head_bytes: usize) -> StoredFile {
        StoredFile { path: path.to_owned(), source, head_bytes }
    }

    /// A file that holds no tensor, which is read and never mapped.
    #[cfg(feature = "safetensors")]
    pub(super) fn document(path: &Path) -> Result<StoredFile, WeightsError> {
        let source = Source::open(path, &super::OpenOptions::default())?;
        let head_bytes = source.len();
        Ok(StoredFile::new(path, source, head_bytes))
    }

    /// Its path, as errors name it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the whole file.
    pub(super) fn len(&self) -> usize {
        self.source.len()
    }

    pub(super) fn is_mapped(&self) -> bool {
        matches!(self.source, Source::Mapped(_))
    }

    pub(super) fn check_unchanged(&self) -> Result<(), WeightsError> {
        self.source.check_unchanged(&self.path)
    }

    /// What `use_bytes` makes of the file's bytes in `range`.
    pub(super) fn with<T>(
        &self,
        range: Range<usize>,
        use_bytes: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, WeightsError> {
        self.source.with(range, use_bytes).map_err(|source| {
            // That it is shorter than it was says more than that there are no more bytes.
            self.check_unchanged().err().unwrap_or_else(|| read_error(&self.path, source))
        })
    }

    /// When it had last been changed when it was opened.
    pub(super) fn modified(&self) -> Option<SystemTime> {
        self.source.modified()
    }

    pub(super) fn prefetch(&self, info: &TensorInfo) {
        self.source.prefetch(range(info));
    }

    pub(super) fn release(&self, range: Range<usize>) {
        self.source.release(range);
    }

    /// Gives a tensor's pages back, and those that came with them.
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

/// The tensor beside one of 8-bit or 4-bit floats that has its scales.
pub(super) struct Scales {
    /// The file that has them, which may be another shard than the tensor's.
    pub file: Arc<StoredFile>,
    /// Floats, of the shape that the spread asks for.
    pub info: TensorInfo,
    pub spread: Spread,
    /// What multiplies all of them.
    pub factor: f32,
}

impl Scales {
    /// Those of some rows of the tensor.
    pub fn read(&self, rows: &Range<usize>) -> Result<RowScales, WeightsError> {
        let Scales { file, info, spread, factor } = self;
        let place = RowScales::place(info, *spread, rows);
        file.with(place, |bytes| RowScales::new(info, *spread, *factor, rows, bytes))
    }
}

pub(super) fn read_error(path: &Path, source: std::io::Error) -> WeightsError {
    WeightsError::Io { file: path.to_owned(), action: "read", source }
}

/// Refuses a file where there is no memory for what is made of its header.
pub(super) fn make_sure(path: &Path, bytes: usize) -> Result<(), WeightsError> {
    match room::has(bytes.saturating_add(room::SMALL_BYTES)) {
        true => Ok(()),
        false => Err(read_error(path, std::io::ErrorKind::OutOfMemory.into())),
    }
}

/// Where a tensor lies: never beyond the file's end, which was checked at open.
fn range(info: &TensorInfo) -> Range<usize> {
    info.offset as usize..(info.offset + info.bytes) as usize
}
