//! GGUF models: [`ModelFile`] is an open, checked GGUF file, or a split model of several.

use std::path::{Path, PathBuf};

use super::files::TensorFiles;
use super::source::Source;
use super::stored::{PARSED, StoredFile, make_sure, read_error};
use super::{Checkpoint, Dialect, Fault, Metadata, OpenOptions, TensorInfo, TextSource, WeightsError, gguf};

/// Upper bound of usual header sizes, for the memory check before parsing.
const HEADER_BYTES_USUAL: usize = 16 << 20;
/// First read of a header from a file that is not mapped. The size is quadrupled until the header fits.
const HEAD_BYTES: usize = 1 << 20;

/// An open model file with a fully checked header.
///
/// ```
/// use ottava::checkpoint::{Checkpoint, GgufWriter, ModelFile, TensorType};
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
    version: u32,
    metadata: Metadata,
    dialect: Dialect,
    files: TensorFiles,
}

/// One GGUF file: a whole model, or one part of a split model.
pub(super) struct GgufFile {
    pub version: u32,
    pub metadata: Metadata,
    pub tensors: Vec<TensorInfo>,
    pub file: StoredFile,
}

impl GgufFile {
    pub fn open(path: &Path, options: &OpenOptions) -> Result<GgufFile, WeightsError> {
        GgufFile::read(path, Source::open(path, options)?)
    }

    pub fn read(path: &Path, source: Source) -> Result<GgufFile, WeightsError> {
        let header = read_header(path, &source);
        // The change check comes before the parse error: a file overwritten meanwhile can yield any error.
        source.check_unchanged(path)?;
        let gguf::Header { version, metadata, tensors, bytes: header_bytes } = header?;
        make_sure(path, header_bytes.saturating_mul(PARSED))?;
        source.release(0..header_bytes);
        Ok(GgufFile { version, metadata, tensors, file: StoredFile::new(path, source, header_bytes) })
    }
}

impl ModelFile {
    /// Joins the parts of a split model, in order. Path and metadata come from the first part.
    pub(super) fn of_parts(
        first: GgufFile,
        others: impl IntoIterator<Item = GgufFile>,
    ) -> Result<ModelFile, WeightsError> {
        let GgufFile { version, metadata, tensors, file } = first;
        let (path, mut files) = (file.path().to_owned(), TensorFiles::default());
        files.add(file, tensors)?;
        for GgufFile { file, tensors, .. } in others {
            files.add(file, tensors)?;
        }
        Ok(ModelFile { path, version, metadata, dialect: Dialect::gguf(), files })
    }

    /// GGUF version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }
}

impl Checkpoint for ModelFile {
    fn format(&self) -> String {
        format!("GGUF version {}", self.version)
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn dialect(&self) -> &Dialect {
        &self.dialect
    }

    fn text(&self) -> TextSource<'_> {
        TextSource::Metadata(&self.metadata)
    }

    fn files(&self) -> &TensorFiles {
        &self.files
    }
}

/// Reads and parses the header. A file that is not mapped is read in growing prefixes until the header fits.
fn read_header(path: &Path, source: &Source) -> Result<gguf::Header, WeightsError> {
    let len = source.len();
    let mut head = if let Source::Read(_) = source { len.min(HEAD_BYTES) } else { len };
    loop {
        // Without this check, an allocation failure in the parser would abort the process.
        make_sure(path, head.min(HEADER_BYTES_USUAL).saturating_mul(PARSED))?;
        let parsed = source.with(0..head, |bytes| {
            make_sure(path, gguf::table_bytes(bytes, len as u64))?;
            Ok(gguf::parse(path, bytes, len as u64))
        });
        match parsed.map_err(|source| read_error(path, source))?? {
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
