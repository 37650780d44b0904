//! Hugging Face folders, written from their GGUF twins in `tests/golden/families`: the same weights under the other
//! names, in the other order, with the configuration and the tokenizer that transformers wrote
//! (`tests/golden/hf`).

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use ottava::checkpoint::{Checkpoint, ModelFile, OpenOptions};
use serde_json::{Map, Value, json};

use crate::tiny::Outcome;

/// Names of a layer's tensors: in GGUF, in folders, and in folders of Gemma where these differ.
const PARTS: [(&str, &str, &str); 16] = [
    ("attn_norm.weight", "input_layernorm.weight", ""),
    ("attn_q.weight", "self_attn.q_proj.weight", ""),
    ("attn_k.weight", "self_attn.k_proj.weight", ""),
    ("attn_v.weight", "self_attn.v_proj.weight", ""),
    ("attn_q.bias", "self_attn.q_proj.bias", ""),
    ("attn_k.bias", "self_attn.k_proj.bias", ""),
    ("attn_v.bias", "self_attn.v_proj.bias", ""),
    ("attn_q_norm.weight", "self_attn.q_norm.weight", ""),
    ("attn_k_norm.weight", "self_attn.k_norm.weight", ""),
    ("attn_output.weight", "self_attn.o_proj.weight", ""),
    ("post_attention_norm.weight", "-", "post_attention_layernorm.weight"),
    ("ffn_norm.weight", "post_attention_layernorm.weight", "pre_feedforward_layernorm.weight"),
    ("ffn_gate.weight", "mlp.gate_proj.weight", ""),
    ("ffn_up.weight", "mlp.up_proj.weight", ""),
    ("ffn_down.weight", "mlp.down_proj.weight", ""),
    ("post_ffw_norm.weight", "-", "post_feedforward_layernorm.weight"),
];

/// A path below `tests/golden`.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A JSON document below `tests/golden`.
pub fn document(name: &str) -> Outcome<Value> {
    Ok(serde_json::from_slice(&std::fs::read(golden(name))?)?)
}

/// The GGUF twin of a folder.
pub fn twin(name: &str) -> Outcome<ModelFile> {
    Ok(ModelFile::open(&golden(&format!("families/{name}.gguf")), &OpenOptions::default())?)
}

/// How elements are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

/// A tensor in f32, rows first.
#[derive(Clone)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// A tensor as the file has it, rows first.
#[derive(Clone)]
pub struct Raw {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// A folder in the making.
#[derive(Clone)]
pub struct Folder {
    pub config: Value,
    pub tensors: Vec<Tensor>,
    /// Beside those, of types of their own.
    pub raw: Vec<Raw>,
    pub dtype: Dtype,
    /// Files beside configuration and weights.
    pub documents: Vec<(&'static str, Vec<u8>)>,
}

impl Folder {
    /// The folder of one of the families, with its tokenizer.
    pub fn of(family: &str) -> Outcome<Folder> {
        Folder::of_twin(family, &twin(family)?)
    }

    /// The folder with the configuration of a family and the weights of a GGUF file.
    pub fn of_twin(family: &str, twin: &ModelFile) -> Outcome<Folder> {
        let config = document(&format!("hf/{family}/config.json"))?;
        let read =
            |name: &'static str| -> Outcome<_> { Ok((name, std::fs::read(golden(&format!("hf/{name}")))?)) };
        let names = ["tokenizer.json", "tokenizer_config.json", "generation_config.json"];
        let documents = names.into_iter().map(read).collect::<Outcome<_>>()?;
        let heads = |key: &str| config[key].as_u64().unwrap_or(0) as usize;
        let mut tensors = Vec::new();
        for info in twin.tensors().iter().filter(|info| info.name != "rope_freqs.weight") {
            let matrix = twin.matrix(&info.name)?;
            let mut values = vec![0.0; matrix.rows() * matrix.cols()];
            values
                .chunks_mut(matrix.cols())
                .enumerate()
                .for_each(|(row, out)| matrix.dequantize_row(row, out));
            let is_rotated = |part: &str| family == "llama" && info.name.contains(part);
            if is_rotated("attn_q.") {
                values = in_halves(&values, heads("num_attention_heads"), matrix.cols());
            } else if is_rotated("attn_k.") {
                values = in_halves(&values, heads("num_key_value_heads"), matrix.cols());
            }
            if family == "gemma3" && info.name.contains("norm") {
                values.iter_mut().for_each(|value| *value -= 1.0);
            }
            let shape = info.dims.iter().rev().map(|&dim| dim as usize).collect();
            tensors.push(Tensor { name: renamed(&info.name, family == "gemma3"), shape, values });
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Folder { config, tensors, raw: Vec::new(), dtype: Dtype::F32, documents })
    }

    /// Sets a key of the configuration; null removes it.
    pub fn set(mut self, key: &str, value: Value) -> Folder {
        let map = self.config.as_object_mut().expect("the configuration is an object");
        match value {
            Value::Null => drop(map.remove(key)),
            value => drop(map.insert(key.to_owned(), value)),
        }
        self
    }

    /// Removes a document.
    pub fn without(mut self, document: &str) -> Folder {
        self.documents.retain(|(name, _)| *name != document);
        self
    }

    /// Adds a document, or replaces it.
    pub fn with(self, name: &'static str, document: &Value) -> Folder {
        let mut folder = self.without(name);
        folder.documents.push((name, document.to_string().into_bytes()));
        folder
    }

    /// Writes it, its weights in one file.
    pub fn write(&self) -> Outcome<tempfile::TempDir> {
        let folder = self.write_documents()?;
        std::fs::write(folder.path().join("model.safetensors"), self.safetensors(&self.tensors, &self.raw))?;
        Ok(folder)
    }

    /// Writes it, its weights in several files with an index.
    pub fn write_sharded(&self, shards: usize) -> Outcome<tempfile::TempDir> {
        let folder = self.write_documents()?;
        let mut map = Map::new();
        let chunks = self.tensors.chunks(self.tensors.len().div_ceil(shards));
        for (index, tensors) in chunks.enumerate() {
            let name = shard(index, shards);
            // One here, the next one there.
            let raw: Vec<Raw> = self.raw.iter().skip(index).step_by(shards).cloned().collect();
            std::fs::write(folder.path().join(&name), self.safetensors(tensors, &raw))?;
            let names = tensors.iter().map(|tensor| &tensor.name).chain(raw.iter().map(|raw| &raw.name));
            names.for_each(|tensor| drop(map.insert(tensor.clone(), name.clone().into())));
        }
        let index = json!({ "metadata": { "total_size": 1 }, "weight_map": map });
        std::fs::write(folder.path().join("model.safetensors.index.json"), index.to_string())?;
        Ok(folder)
    }

    fn write_documents(&self) -> Outcome<tempfile::TempDir> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("config.json"), self.config.to_string())?;
        for (name, bytes) in &self.documents {
            std::fs::write(folder.path().join(name), bytes)?;
        }
        Ok(folder)
    }

    fn safetensors(&self, tensors: &[Tensor], raw: &[Raw]) -> Vec<u8> {
        let (mut header, mut data) = (Map::new(), Vec::new());
        for tensor in tensors {
            let start = data.len();
            let name = match self.dtype {
                Dtype::F32 => {
                    data.extend(tensor.values.iter().flat_map(|value| value.to_le_bytes()));
                    "F32"
                }
                Dtype::F16 => {
                    data.extend(tensor.values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()));
                    "F16"
                }
                Dtype::Bf16 => {
                    data.extend(tensor.values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()));
                    "BF16"
                }
            };
            let entry = json!({ "dtype": name, "shape": tensor.shape, "data_offsets": [start, data.len()] });
            header.insert(tensor.name.clone(), entry);
        }
        for Raw { name, dtype, shape, bytes } in raw {
            let start = data.len();
            data.extend(bytes);
            let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()] });
            header.insert(name.clone(), entry);
        }
        file(&Value::Object(header).to_string(), &data)
    }
}

/// The name of a shard.
pub fn shard(index: usize, shards: usize) -> String {
    format!("model-{:05}-of-{shards:05}.safetensors", index + 1)
}

/// A safetensors file of a header and data.
pub fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length, header.as_bytes(), data].concat()
}

/// The rows of neighbouring pairs, put where the first half of a head turns with the second.
pub fn in_halves(values: &[f32], heads: usize, cols: usize) -> Vec<f32> {
    let dim = values.len() / cols / heads;
    let row = |head: usize, element: usize| &values[(head * dim + element) * cols..][..cols];
    let order = |element: usize| if element < dim / 2 { 2 * element } else { 2 * element + 1 - dim };
    (0..heads).flat_map(|head| (0..dim).flat_map(move |element| row(head, order(element)).to_vec())).collect()
}

/// A tensor's name in a folder.
fn renamed(name: &str, gemma: bool) -> String {
    let whole = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    if let Some((_, renamed)) = whole.iter().find(|(other, _)| *other == name) {
        return (*renamed).to_owned();
    }
    let (layer, part) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).expect("a layer's");
    let (_, plain, of_gemma) = PARTS.iter().find(|(other, ..)| *other == part).expect("a part that is known");
    let part = if gemma && !of_gemma.is_empty() { of_gemma } else { plain };
    format!("model.layers.{layer}.{part}")
}
