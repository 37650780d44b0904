//! GGUF writer: [`GgufWriter`] builds GGUF bytes from metadata and tensors, for tests and for quantised
//! files.

use std::io;

use half::{bf16, f16};

use crate::quant::{
    Bits, Codes, DenseMatrix, DenseValues, QuantError, QuantMatrix, WeightMatrix, q4_0, q4_1, q5_0, q5_1,
    q8_0,
};

use super::gguf::ALIGNMENT_DEFAULT;
use super::tensor::tensor_bytes;
use super::{Array, TensorType, Value};

/// An error of adding a tensor to a [`GgufWriter`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The length of the data does not match the shape.
    #[error("tensor `{tensor}`: expected {expected} bytes of {dtype} for dimensions {dims:?}, found {found}")]
    Length {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: TensorType,
        /// Its dimensions, columns first.
        dims: Vec<u64>,
        /// Bytes required by the shape.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// Invalid shape for this type: too large, or rows are not whole blocks.
    #[error("tensor `{tensor}`: {dtype} has no tensor of dimensions {dims:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: TensorType,
        /// Its dimensions, columns first.
        dims: Vec<u64>,
    },
    /// The type does not exist in GGUF.
    #[error("tensor `{tensor}`: GGUF has no type {dtype}")]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: TensorType,
    },
    /// The format cannot represent the matrix exactly.
    #[error("tensor `{tensor}`: {source}")]
    Inexact {
        /// The tensor.
        tensor: String,
        /// The value that cannot be represented.
        source: QuantError,
    },
}

/// Builds a GGUF file of version 3.
///
/// Entries and tensors are written in insertion order. Duplicate and overlong names are not checked here; the
/// reader refuses them.
///
/// ```
/// use ottava::checkpoint::{Checkpoint, GgufWriter, ModelFile, TensorType};
///
/// let mut writer = GgufWriter::new();
/// writer.metadata("llama.block_count", 2u32);
/// writer.tensor("a", TensorType::F32, &[2, 1], 1f32.to_le_bytes().repeat(2))?;
/// assert_eq!(ModelFile::from_bytes("a.gguf", writer.to_bytes())?.tensors().len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct GgufWriter {
    entries: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    number: u32,
    dims: Vec<u64>,
    data: Vec<u8>,
}

impl GgufWriter {
    /// An empty file.
    pub fn new() -> Self {
        GgufWriter::default()
    }

    /// Adds a metadata entry. `general.alignment`, if a u32 power of two, also sets the alignment of the
    /// file.
    pub fn metadata(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        self.entries.push((key.to_owned(), value.into()));
        self
    }

    /// Adds a tensor from its bytes in file format. `dims` is in file order: columns first.
    ///
    /// # Errors
    /// [`WriteError::Type`], [`WriteError::Shape`] or [`WriteError::Length`].
    pub fn tensor(
        &mut self,
        name: &str,
        dtype: TensorType,
        dims: &[u64],
        data: Vec<u8>,
    ) -> Result<&mut Self, WriteError> {
        let number = dtype.number().ok_or_else(|| WriteError::Type { tensor: name.to_owned(), dtype })?;
        let tensor = Tensor { name: name.to_owned(), number, dims: dims.to_vec(), data };
        let whole = dims.first().is_some_and(|&cols| cols.is_multiple_of(dtype.block_len() as u64));
        let expected = tensor_bytes(dtype, dims).filter(|_| whole && dims.len() <= 4);
        let found = tensor.data.len() as u64;
        let Tensor { name: tensor_name, dims, .. } = &tensor;
        match expected {
            None => Err(WriteError::Shape { tensor: tensor_name.clone(), dtype, dims: dims.clone() }),
            Some(expected) if expected != found => Err(WriteError::Length {
                tensor: tensor_name.clone(),
                dtype,
                dims: dims.clone(),
                expected,
                found,
            }),
            Some(_) => {
                self.tensors.push(tensor);
                Ok(self)
            }
        }
    }

    /// Adds a one-dimensional F32 tensor.
    ///
    /// # Errors
    /// [`WriteError::Shape`] if `values` is too large for a tensor, which no slice in memory is.
    pub fn vector(&mut self, name: &str, values: &[f32]) -> Result<&mut Self, WriteError> {
        let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, TensorType::F32, &[values.len() as u64], data)
    }

    /// Adds a matrix in a format that stores it exactly: floats in their own type, codes in groups of 32 as
    /// Q8_0, Q4_0, Q4_1 or Q5_1.
    ///
    /// # Errors
    /// [`WriteError::Inexact`] if no format stores the matrix exactly: other groups, 8-bit codes with mins
    /// beyond 31, float codes.
    pub fn matrix(&mut self, name: &str, matrix: &WeightMatrix) -> Result<&mut Self, WriteError> {
        let dims = [matrix.cols() as u64, matrix.rows() as u64];
        let (dtype, data) = match matrix {
            WeightMatrix::Dense(dense) => dense_bytes(dense),
            WeightMatrix::Quant(quant) => quant_bytes(quant)
                .map_err(|source| WriteError::Inexact { tensor: name.to_owned(), source })?,
        };
        self.tensor(name, dtype, &dims, data)
    }

    /// Adds a matrix as `dtype`, which must store it exactly. Q5_0 is available only here.
    ///
    /// # Errors
    /// [`WriteError::Inexact`] if it does not.
    pub fn matrix_as(
        &mut self,
        name: &str,
        matrix: &QuantMatrix,
        dtype: TensorType,
    ) -> Result<&mut Self, WriteError> {
        let dims = [matrix.cols() as u64, matrix.rows() as u64];
        let data = encode(matrix, dtype)
            .map_err(|source| WriteError::Inexact { tensor: name.to_owned(), source })?;
        self.tensor(name, dtype, &dims, data)
    }

    /// Serialises the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.put_header(&mut bytes);
        let alignment = self.alignment();
        for tensor in &self.tensors {
            bytes.extend_from_slice(&tensor.data);
            pad(&mut bytes, alignment);
        }
        bytes
    }

    /// Writes the file to `out`.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write(&self, mut out: impl io::Write) -> io::Result<()> {
        let alignment = self.alignment();
        let mut bytes = Vec::new();
        self.put_header(&mut bytes);
        out.write_all(&bytes)?;
        for tensor in &self.tensors {
            out.write_all(&tensor.data)?;
            let padding = tensor.data.len().next_multiple_of(alignment) - tensor.data.len();
            io::copy(&mut io::Read::take(io::repeat(0), padding as u64), &mut out)?;
        }
        out.flush()
    }

    fn alignment(&self) -> usize {
        let stated = self.entries.iter().find_map(|(key, value)| match value {
            Value::U32(alignment) if key == "general.alignment" && alignment.is_power_of_two() => {
                Some(*alignment)
            }
            _ => None,
        });
        stated.unwrap_or(ALIGNMENT_DEFAULT) as usize
    }

    fn put_header(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(b"GGUF");
        bytes.extend_from_slice(&3u32.to_le_bytes());
        bytes.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&(self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            put_string(bytes, key);
            put_value(bytes, value);
        }
        let (alignment, mut offset) = (self.alignment(), 0);
        for tensor in &self.tensors {
            put_string(bytes, &tensor.name);
            bytes.extend_from_slice(&(tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| bytes.extend_from_slice(&dim.to_le_bytes()));
            bytes.extend_from_slice(&tensor.number.to_le_bytes());
            bytes.extend_from_slice(&(offset as u64).to_le_bytes());
            offset += tensor.data.len().next_multiple_of(alignment);
        }
        pad(bytes, alignment);
    }
}

fn pad(bytes: &mut Vec<u8>, alignment: usize) {
    bytes.resize(bytes.len().next_multiple_of(alignment), 0);
}

fn put_string(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

fn put_value(bytes: &mut Vec<u8>, value: &Value) {
    let mut put = |number: u32, value: &[u8]| {
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(value);
    };
    match value {
        Value::U8(v) => put(0, &v.to_le_bytes()),
        Value::I8(v) => put(1, &v.to_le_bytes()),
        Value::U16(v) => put(2, &v.to_le_bytes()),
        Value::I16(v) => put(3, &v.to_le_bytes()),
        Value::U32(v) => put(4, &v.to_le_bytes()),
        Value::I32(v) => put(5, &v.to_le_bytes()),
        Value::F32(v) => put(6, &v.to_le_bytes()),
        Value::Bool(v) => put(7, &[u8::from(*v)]),
        Value::String(v) => {
            put(8, &[]);
            put_string(bytes, v);
        }
        Value::Array(v) => {
            put(9, &[]);
            put_array(bytes, v);
        }
        Value::U64(v) => put(10, &v.to_le_bytes()),
        Value::I64(v) => put(11, &v.to_le_bytes()),
        Value::F64(v) => put(12, &v.to_le_bytes()),
    }
}

fn put_array(bytes: &mut Vec<u8>, array: &Array) {
    let number: u32 = match array {
        Array::U8(_) => 0,
        Array::I8(_) => 1,
        Array::U16(_) => 2,
        Array::I16(_) => 3,
        Array::U32(_) => 4,
        Array::I32(_) => 5,
        Array::F32(_) => 6,
        Array::Bool(_) => 7,
        Array::String(_) => 8,
        Array::Nested(_) => 9,
        Array::U64(_) => 10,
        Array::I64(_) => 11,
        Array::F64(_) => 12,
    };
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&(array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => bytes.extend_from_slice(v),
        Array::I8(v) => bytes.extend(v.iter().copied().flat_map(i8::to_le_bytes)),
        Array::U16(v) => bytes.extend(v.iter().copied().flat_map(u16::to_le_bytes)),
        Array::I16(v) => bytes.extend(v.iter().copied().flat_map(i16::to_le_bytes)),
        Array::U32(v) => bytes.extend(v.iter().copied().flat_map(u32::to_le_bytes)),
        Array::I32(v) => bytes.extend(v.iter().copied().flat_map(i32::to_le_bytes)),
        Array::F32(v) => bytes.extend(v.iter().copied().flat_map(f32::to_le_bytes)),
        Array::Bool(v) => bytes.extend(v.iter().copied().map(u8::from)),
        Array::String(v) => v.iter().for_each(|text| put_string(bytes, text)),
        Array::Nested(v) => v.iter().for_each(|array| put_array(bytes, array)),
        Array::U64(v) => bytes.extend(v.iter().copied().flat_map(u64::to_le_bytes)),
        Array::I64(v) => bytes.extend(v.iter().copied().flat_map(i64::to_le_bytes)),
        Array::F64(v) => bytes.extend(v.iter().copied().flat_map(f64::to_le_bytes)),
    }
}

fn dense_bytes(matrix: &DenseMatrix) -> (TensorType, Vec<u8>) {
    match matrix.values() {
        DenseValues::F32(v) => (TensorType::F32, v.iter().copied().flat_map(f32::to_le_bytes).collect()),
        DenseValues::F16(v) => (TensorType::F16, v.iter().copied().flat_map(f16::to_le_bytes).collect()),
        DenseValues::Bf16(v) => (TensorType::Bf16, v.iter().copied().flat_map(bf16::to_le_bytes).collect()),
    }
}

fn quant_bytes(matrix: &QuantMatrix) -> Result<(TensorType, Vec<u8>), QuantError> {
    let dtype = match (matrix.kind(), matrix.mins()) {
        (Codes::Int(Bits::Four), None) => TensorType::Q4_0,
        (Codes::Int(Bits::Four), Some(_)) => TensorType::Q4_1,
        (Codes::Int(Bits::Five | Bits::Six | Bits::Eight), None) => TensorType::Q8_0,
        (Codes::Int(Bits::Five | Bits::Six | Bits::Eight), Some(_)) => TensorType::Q5_1,
        (Codes::E2m1, _) => TensorType::Mxfp4,
        (Codes::E4m3, _) => TensorType::F8E4m3,
    };
    encode(matrix, dtype).map(|data| (dtype, data))
}

fn encode(matrix: &QuantMatrix, dtype: TensorType) -> Result<Vec<u8>, QuantError> {
    match dtype {
        TensorType::Q4_0 => q4_0::encode(matrix),
        TensorType::Q4_1 => q4_1::encode(matrix),
        TensorType::Q5_0 => q5_0::encode(matrix),
        TensorType::Q5_1 => q5_1::encode(matrix),
        TensorType::Q8_0 => q8_0::encode(matrix),
        other => Err(QuantError::Inexact { format: other.name(), reason: "it cannot be written" }),
    }
}
