//! [`ModelFile`]: an open, checked file, and its tensors as canonical matrices.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::{bf16, f16};

use crate::quant::{
    DenseMatrix, DenseValues, QuantError, WeightMatrix, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k,
    q8_0,
};

use super::source::Source;
use super::{Metadata, TensorInfo, TensorType, WeightsError, gguf};

/// Bytes that [`ModelFile::fingerprint`] takes from each of three places of a tensor.
const SAMPLE_BYTES: usize = 1024;

/// How a file is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Map the file (the default) instead of reading it into memory at once.
    ///
    /// A mapped file must not be cut short while it is open: touching bytes that are gone ends the
    /// process (SIGBUS). Read files that others may write to.
    pub mmap: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { mmap: true }
    }
}

/// An open model file whose header has been checked from end to end.
///
/// ```
/// use ottava::weights::{GgufWriter, ModelFile, TensorType};
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
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

impl ModelFile {
    /// Opens and checks the file at `path`.
    ///
    /// # Errors
    /// [`WeightsError::Io`] if it cannot be opened, mapped or read; [`WeightsError::Malformed`] if it
    /// is not a sound GGUF file, holds a tensor type that cannot be read, or is one part of several.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<ModelFile, WeightsError> {
        ModelFile::from_source(path, Source::open(path, options)?)
    }

    /// A file from its bytes; errors call it `name`.
    ///
    /// # Errors
    /// [`WeightsError::Malformed`], as [`ModelFile::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<ModelFile, WeightsError> {
        ModelFile::from_source(Path::new(name), Source::Owned(bytes))
    }

    fn from_source(path: &Path, source: Source) -> Result<ModelFile, WeightsError> {
        let header = gguf::parse(path, source.bytes()).map_err(|located| WeightsError::Malformed {
            file: path.to_owned(),
            offset: located.offset,
            fault: located.fault,
        })?;
        let gguf::Header { version, metadata, tensors, bytes: header_bytes } = header;
        let index = tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Ok(ModelFile { path: path.to_owned(), source, version, header_bytes, metadata, tensors, index })
    }

    /// The file's path, or the name given to [`ModelFile::from_bytes`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.source.bytes().len() as u64
    }

    /// The GGUF version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensor table, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The entry of the tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).and_then(|&index| self.tensors.get(index))
    }

    /// The tensor called `name` as a canonical matrix: quantised types as codes, floats as they are.
    ///
    /// A tensor of one dimension is one row. One thread decodes; decode several tensors at once for
    /// more.
    ///
    /// # Errors
    /// [`WeightsError::Missing`]; [`WeightsError::Shape`] if it has more than two dimensions above 1;
    /// [`WeightsError::Tensor`] if a scale or a float is not finite.
    pub fn matrix(&self, name: &str) -> Result<WeightMatrix, WeightsError> {
        let info = self.find(name)?;
        if info.dims.iter().skip(2).any(|&dim| dim != 1) {
            return Err(self.shape_error(info, "one or two dimensions"));
        }
        decode(info, self.data(info)).map_err(|source| WeightsError::Tensor {
            file: self.path.clone(),
            tensor: info.name.clone(),
            offset: info.offset,
            source,
        })
    }

    /// The one row of the tensor called `name`, of any type, widened to f32.
    ///
    /// # Errors
    /// As [`ModelFile::matrix`]; [`WeightsError::Shape`] if it has more than one row.
    pub fn vector(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        let info = self.find(name)?;
        if info.rows() != 1 {
            return Err(self.shape_error(info, "one row"));
        }
        let matrix = self.matrix(name)?;
        let mut values = vec![0.0; matrix.cols()];
        matrix.dequantize_row(0, &mut values);
        Ok(values)
    }

    /// Asks the system to read the tensor's pages ahead of use. Nothing happens for a file that is
    /// not mapped, or a name that is not there.
    pub fn prefetch(&self, name: &str) {
        if let Some(info) = self.tensor(name) {
            self.source.prefetch(range(info));
        }
    }

    /// Gives the tensor's pages back to the system; they are read again when next used. Nothing
    /// happens for a file that is not mapped, or a name that is not there.
    pub fn release(&self, name: &str) {
        if let Some(info) = self.tensor(name) {
            self.source.release(range(info));
        }
    }

    /// A hash that tells models apart: BLAKE3 of the header (metadata and tensor table), the file's
    /// length, and 1 KiB from the start, the middle and the end of each tensor. Cheap, and no proof
    /// against someone who means to deceive.
    pub fn fingerprint(&self) -> [u8; 32] {
        let bytes = self.source.bytes();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.file_bytes().to_le_bytes());
        hasher.update(bytes.get(..self.header_bytes).unwrap_or(bytes));
        for info in &self.tensors {
            let data = self.data(info);
            let last = data.len().saturating_sub(SAMPLE_BYTES);
            for start in [0, last / 2, last] {
                hasher.update(data.get(start..data.len().min(start + SAMPLE_BYTES)).unwrap_or(data));
            }
        }
        *hasher.finalize().as_bytes()
    }

    fn find(&self, name: &str) -> Result<&TensorInfo, WeightsError> {
        self.tensor(name)
            .ok_or_else(|| WeightsError::Missing { file: self.path.clone(), tensor: name.to_owned() })
    }

    /// The tensor's bytes: never shorter than the table says, which was checked at open.
    fn data(&self, info: &TensorInfo) -> &[u8] {
        self.source.bytes().get(range(info)).unwrap_or(&[])
    }

    fn shape_error(&self, info: &TensorInfo, expected: &'static str) -> WeightsError {
        WeightsError::Shape {
            file: self.path.clone(),
            tensor: info.name.clone(),
            offset: info.offset,
            expected,
            found: info.dims.clone(),
        }
    }
}

fn range(info: &TensorInfo) -> Range<usize> {
    info.offset as usize..(info.offset + info.bytes) as usize
}

fn decode(info: &TensorInfo, data: &[u8]) -> Result<WeightMatrix, QuantError> {
    let (rows, cols) = (info.rows(), info.cols());
    let decode = match info.dtype {
        TensorType::F32 => return dense(rows, cols, DenseValues::F32(floats(data, f32::from_le_bytes))),
        TensorType::F16 => return dense(rows, cols, DenseValues::F16(floats(data, f16::from_le_bytes))),
        TensorType::Bf16 => return dense(rows, cols, DenseValues::Bf16(floats(data, bf16::from_le_bytes))),
        TensorType::Q4_0 => q4_0::decode,
        TensorType::Q4_1 => q4_1::decode,
        TensorType::Q5_0 => q5_0::decode,
        TensorType::Q5_1 => q5_1::decode,
        TensorType::Q8_0 => q8_0::decode,
        TensorType::Q2K => q2_k::decode,
        TensorType::Q3K => q3_k::decode,
        TensorType::Q4K => q4_k::decode,
        TensorType::Q5K => q5_k::decode,
        TensorType::Q6K => q6_k::decode,
    };
    decode(data, rows, cols).map(WeightMatrix::Quant)
}

fn floats<const N: usize, T>(data: &[u8], from: fn([u8; N]) -> T) -> Vec<T> {
    data.as_chunks::<N>().0.iter().map(|&chunk| from(chunk)).collect()
}

fn dense(rows: usize, cols: usize, values: DenseValues) -> Result<WeightMatrix, QuantError> {
    let matrix = DenseMatrix::new(rows, cols, values)?;
    match matrix.first_non_finite() {
        Some((row, col, value)) => Err(QuantError::NonFinite { row, col, value }),
        None => Ok(WeightMatrix::Dense(matrix)),
    }
}
