//! [`ModelFile`]: an open, checked file, and its tensors as canonical matrices.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::quant::QuantError;
use crate::room;

use super::source::Source;
use super::{Fault, Metadata, OpenOptions, TensorInfo, WeightsError, gguf};

/// Bytes that [`ModelFile::fingerprint`] takes from each of three places of a tensor.
const SAMPLE_BYTES: usize = 1024;
/// A system maps up to so many bytes on either side of a page that is touched, where it has them (Linux does
/// 64 KiB).
const AROUND_BYTES: usize = 64 << 10;
/// A header is hardly larger.
const HEADER_BYTES_USUAL: usize = 16 << 20;
/// What a header becomes takes about so many times its bytes; a vocabulary with its indexes takes the most.
const PARSED: usize = 8;
/// Bytes of a file that is not mapped in which its header is looked for first.
const HEAD_BYTES: usize = 1 << 20;

/// An open model file whose header has been checked from end to end.
///
/// ```
/// use ottava::checkpoint::{GgufWriter, ModelFile, TensorType};
///
/// let mut writer = GgufWriter::new();
/// writer.metadata("general.architecture", "llama").vector("output_norm.weight", &[1.0, 2.0])?;
/// let file = ModelFile::from_bytes("tiny.gguf", writer.to_bytes())?;
/// assert_eq!(file.metadata().str("general.architecture")?, Some("llama"));
/// assert_eq!(file.vector("output_norm.weight")?, [1.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ModelFile {
    path: PathBuf,
    source: Source,
    version: u32,
    header_bytes: usize,
    metadata: Metadata,
    /// Of all parts, one part behind the other.
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    /// The parts behind this one, each with the number of tensors before its own.
    others: Vec<(usize, ModelFile)>,
}

impl ModelFile {
    pub(super) fn open_one(path: &Path, options: &OpenOptions) -> Result<ModelFile, WeightsError> {
        ModelFile::from_source(path, Source::open(path, options)?)
    }

    /// Whether the file is mapped ([`OpenOptions::mmap`]).
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.source, Source::Mapped(_))
    }

    /// Checks that each part is as long as when it was opened, and was not written since. What was read of it
    /// before is one file's content then.
    ///
    /// # Errors
    /// [`WeightsError::Changed`]; [`WeightsError::Io`] if the system does not say.
    pub fn check_unchanged(&self) -> Result<(), WeightsError> {
        self.parts().try_for_each(|part| part.source.check_unchanged(&part.path))
    }

    pub(super) fn from_source(path: &Path, source: Source) -> Result<ModelFile, WeightsError> {
        let header = read_header(path, &source);
        // One that was written over meanwhile may look like anything.
        source.check_unchanged(path)?;
        let gguf::Header { version, metadata, tensors, bytes: header_bytes } = header?;
        make_sure(path, header_bytes.saturating_mul(PARSED))?;
        source.release(0..header_bytes);
        let index = tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        let (path, others) = (path.to_owned(), Vec::new());
        Ok(ModelFile { path, source, version, header_bytes, metadata, tensors, index, others })
    }

    /// One model of its first part and the others, in order: path and metadata are the first one's.
    pub(super) fn from_parts(first: ModelFile, others: Vec<ModelFile>) -> Result<ModelFile, WeightsError> {
        let mut whole = first;
        for part in others {
            let before = whole.tensors.len();
            for info in &part.tensors {
                if whole.index.insert(info.name.clone(), whole.tensors.len()).is_some() {
                    let fault = Fault::DuplicateTensor { tensor: info.name.clone() };
                    return Err(WeightsError::malformed(&part.path, fault));
                }
                whole.tensors.push(info.clone());
            }
            whole.others.push((before, part));
        }
        Ok(whole)
    }

    /// The parts, in order: of a model in one file the file.
    fn parts(&self) -> impl Iterator<Item = &ModelFile> {
        std::iter::once(self).chain(self.others.iter().map(|(_, part)| part))
    }

    /// Tensors whose data are in this part.
    fn own_tensors(&self) -> &[TensorInfo] {
        let own = self.others.first().map_or(self.tensors.len(), |&(before, _)| before);
        self.tensors.get(..own).unwrap_or_default()
    }

    /// The file's path (its first part's), or the name given to [`ModelFile::from_bytes`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// When the file, or the newest of its parts, had last been changed when it was opened; none of bytes in
    /// memory, or where the system does not say.
    pub fn modified(&self) -> Option<SystemTime> {
        self.parts().filter_map(|part| part.source.modified()).max()
    }

    /// Bytes of the whole file, or of all its parts.
    pub fn file_bytes(&self) -> u64 {
        self.parts().map(|part| part.source.len() as u64).sum()
    }

    /// The GGUF version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Takes the metadata out, for who has no more use for them than for the file's bytes: a vocabulary's are
    /// megabytes.
    pub(crate) fn take_metadata(&mut self) -> Metadata {
        std::mem::take(&mut self.metadata)
    }

    /// The tensor table, in file order; each tensor's offset is within its own part.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The entry of the tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).and_then(|&index| self.tensors.get(index))
    }

    /// Asks the system to read the tensor's pages ahead of use. Nothing happens for a file that is
    /// not mapped, or a name that is not there.
    pub fn prefetch(&self, name: &str) {
        if let Ok((part, info)) = self.find(name) {
            part.source.prefetch(range(info));
        }
    }

    /// Gives the tensor's pages back to the system, and those around it, which came with them; they are read
    /// again when next used. Nothing happens for a file that is not mapped, or a name that is not there.
    pub fn release(&self, name: &str) {
        if let Ok((part, info)) = self.find(name) {
            part.release_around(range(info));
        }
    }

    fn release_around(&self, range: Range<usize>) {
        let end = range.end.saturating_add(AROUND_BYTES);
        self.release_bytes(range.start.saturating_sub(AROUND_BYTES)..end);
    }

    pub(super) fn release_bytes(&self, range: Range<usize>) {
        self.source.release(range);
    }

    /// A hash that tells models apart: BLAKE3 of the header (metadata and tensor table), the file's
    /// length, and 1 KiB from the start, the middle and the end of each tensor. Cheap, and no proof
    /// against someone who means to deceive.
    ///
    /// # Errors
    /// [`WeightsError::Io`] if the file cannot be read, [`WeightsError::Changed`] if it is shorter than it was.
    pub fn fingerprint(&self) -> Result<[u8; 32], WeightsError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.file_bytes().to_le_bytes());
        self.parts().try_for_each(|part| part.hash_into(&mut hasher))?;
        Ok(*hasher.finalize().as_bytes())
    }

    fn hash_into(&self, hasher: &mut blake3::Hasher) -> Result<(), WeightsError> {
        let mut update = |range: Range<usize>| {
            self.with(range, |bytes| {
                hasher.update(bytes);
            })
        };
        update(0..self.header_bytes)?;
        self.release_bytes(0..self.header_bytes);
        for info in self.own_tensors() {
            let Range { start, end } = range(info);
            let last = (end - start).saturating_sub(SAMPLE_BYTES);
            for at in [start, start + last / 2, start + last] {
                update(at..end.min(at + SAMPLE_BYTES))?;
            }
            self.release_around(start..end);
        }
        Ok(())
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

    /// The part that holds a tensor, and the tensor.
    pub(super) fn find(&self, name: &str) -> Result<(&ModelFile, &TensorInfo), WeightsError> {
        let missing = || WeightsError::Missing { file: self.path.clone(), tensor: name.to_owned() };
        let index = *self.index.get(name).ok_or_else(missing)?;
        let after = self.others.partition_point(|&(before, _)| before <= index);
        let part = after.checked_sub(1).and_then(|other| self.others.get(other));
        let info = self.tensors.get(index).ok_or_else(missing)?;
        Ok((part.map_or(self, |(_, part)| part), info))
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

fn read_error(path: &Path, source: std::io::Error) -> WeightsError {
    WeightsError::Io { file: path.to_owned(), action: "read", source }
}

/// Refuses a file where there is no memory for what is made of its header.
fn make_sure(path: &Path, bytes: usize) -> Result<(), WeightsError> {
    match room::has(bytes.saturating_add(room::SMALL_BYTES)) {
        true => Ok(()),
        false => Err(read_error(path, std::io::ErrorKind::OutOfMemory.into())),
    }
}

/// Where a tensor lies: never beyond the file's end, which was checked at open.
fn range(info: &TensorInfo) -> Range<usize> {
    info.offset as usize..(info.offset + info.bytes) as usize
}

/// The header, of a file that is not mapped from as many of its first bytes as it takes.
fn read_header(path: &Path, source: &Source) -> Result<gguf::Header, WeightsError> {
    let len = source.len();
    let mut head = if let Source::Read(_) = source { len.min(HEAD_BYTES) } else { len };
    loop {
        // Where that is missing, parsing would end the process.
        make_sure(path, head.min(HEADER_BYTES_USUAL).saturating_mul(PARSED))?;
        let parsed = source.with(0..head, |bytes| gguf::parse(path, bytes, len as u64));
        match parsed.map_err(|source| read_error(path, source))? {
            Ok(header) => return Ok(header),
            Err(gguf::Located { fault: Fault::Truncated { needed, left, .. }, .. })
                if needed <= left && head < len =>
            {
                head = head.saturating_mul(4).min(len);
            }
            Err(gguf::Located { offset, fault }) => {
                return Err(WeightsError::Malformed { file: path.to_owned(), offset, fault });
            }
        }
    }
}
