//! A model file taken apart, changed and put together again: for files that are unusual in one way.

use ottava::checkpoint::{Checkpoint, GgufWriter, ModelFile, TensorType, Value};

use super::{Outcome, Tiny, file};

/// A tensor with its bytes.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: TensorType,
    pub dims: Vec<u64>,
    pub bytes: Vec<u8>,
}

/// What a file holds.
#[derive(Clone)]
pub struct Parts {
    pub entries: Vec<(String, Value)>,
    pub tensors: Vec<Tensor>,
}

impl Parts {
    /// Those of a tiny model.
    pub fn of(tiny: &Tiny) -> Outcome<Parts> {
        Parts::of_file(file(tiny, &[])?)
    }

    /// Those of a file.
    pub fn of_file(bytes: Vec<u8>) -> Outcome<Parts> {
        let file = ModelFile::from_bytes("tiny.gguf", bytes.clone())?;
        let entries = file.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        let tensors = file.tensors().iter().map(|info| Tensor {
            name: info.name.clone(),
            dtype: info.dtype,
            dims: info.dims.clone(),
            bytes: bytes[info.offset as usize..(info.offset + info.bytes) as usize].to_vec(),
        });
        Ok(Parts { entries, tensors: tensors.collect() })
    }

    /// Sets a key, whether it is there or not.
    pub fn set(mut self, key: &str, value: impl Into<Value>) -> Parts {
        self.entries.retain(|(other, _)| other != key);
        self.entries.push((key.to_owned(), value.into()));
        self
    }

    /// Removes a key, which must be there.
    pub fn unset(mut self, key: &str) -> Parts {
        let before = self.entries.len();
        self.entries.retain(|(other, _)| other != key);
        assert_eq!(self.entries.len() + 1, before, "{key}");
        self
    }

    /// Adds a vector in F32, or replaces it.
    pub fn vector(mut self, name: &str, values: &[f32]) -> Parts {
        self.tensors.retain(|tensor| tensor.name != name);
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let (name, dims) = (name.to_owned(), vec![values.len() as u64]);
        self.tensors.push(Tensor { name, dtype: TensorType::F32, dims, bytes });
        self
    }

    /// Adds a tensor that has the bytes of another one.
    pub fn copy(mut self, from: &str, to: &str) -> Parts {
        let tensor = self.tensors.iter().find(|tensor| tensor.name == from).expect("it is there").clone();
        self.tensors.push(Tensor { name: to.to_owned(), ..tensor });
        self
    }

    /// Removes a tensor, which must be there.
    pub fn without(mut self, name: &str) -> Parts {
        let before = self.tensors.len();
        self.tensors.retain(|tensor| tensor.name != name);
        assert_eq!(self.tensors.len() + 1, before, "{name}");
        self
    }

    /// The file.
    pub fn bytes(&self) -> Outcome<Vec<u8>> {
        let mut writer = GgufWriter::new();
        self.entries.iter().for_each(|(key, value)| {
            writer.metadata(key, value.clone());
        });
        for Tensor { name, dtype, dims, bytes } in &self.tensors {
            writer.tensor(name, *dtype, dims, bytes.clone())?;
        }
        Ok(writer.to_bytes())
    }

    /// The opened file.
    pub fn open(&self) -> Outcome<ModelFile> {
        Ok(ModelFile::from_bytes("odd.gguf", self.bytes()?)?)
    }
}
