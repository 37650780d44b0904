//! `ottava inspect`: metadata and tensors of a model file, and the memory that the model needs.

use std::collections::BTreeMap;

use super::output::Bytes;
use clap::Args;
use ottava::checkpoint::{Checkpoint, Value};
use ottava::ir::PAGE_TOKENS;
use ottava::model::{ModelConfig, ModelError};
use serde_json::json;

use super::options::{ModelOptions, of_file};
use super::visible::in_line;
use super::{Failure, output};

/// Maximum characters of a metadata value; longer ones are truncated.
const VALUE_CHARS: usize = 80;

/// Arguments of `inspect`.
#[derive(Args)]
pub struct Inspect {
    /// List every tensor
    #[arg(long)]
    tensors: bool,
    /// Print one JSON object, tensors included
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

/// Memory that the model needs at a context length.
struct Need {
    context: usize,
    kv_bytes: usize,
}

impl Inspect {
    /// Prints the file's contents. A model that is not supported is printed, too, with the reason.
    pub fn run(self) -> Result<(), Failure> {
        let checkpoint = self.model.checkpoint()?;
        let file = &*checkpoint;
        let config = ModelConfig::from_file(file).map_err(ottava::Error::from);
        let need = config.as_ref().ok().map(|config| self.need(file, config)).transpose()?;
        let obstacle = config.err().map(|error| error.to_string());
        if self.json { print_json(file, need, obstacle) } else { self.print(file, need, obstacle) }
    }

    /// Memory need at the context of `-c`. Default and limit are the trained context, as in the engine.
    fn need(&self, file: &dyn Checkpoint, config: &ModelConfig) -> Result<Need, Failure> {
        let trained = config.context_length;
        let context = self.model.context.unwrap_or(trained);
        if context > trained {
            let error = ModelError::Context { asked: context, trained };
            return Err(of_file(file.path(), error.into()));
        }
        let layout = config.kv_layout(self.model.kv_dtype());
        Ok(Need { context, kv_bytes: context.div_ceil(PAGE_TOKENS).saturating_mul(layout.page_bytes()) })
    }

    fn print(
        &self,
        file: &dyn Checkpoint,
        need: Option<Need>,
        obstacle: Option<String>,
    ) -> Result<(), Failure> {
        let mut page = output::Page::new();
        let size = Bytes(file.file_bytes());
        page.line(format_args!("{}: {}, {size}", in_line(&file.path().to_string_lossy()), file.format()))?;
        for (key, value) in file.metadata().iter() {
            let (key, mut text) = (in_line(key), to_json(value).to_string());
            if let Some((cut, _)) = text.char_indices().nth(VALUE_CHARS) {
                text.truncate(cut);
                text.push('…');
            }
            page.line(format_args!("  {key} = {text}"))?;
        }
        page.line(format_args!("{} tensors:", file.tensors().len()))?;
        for (dtype, (count, bytes)) in by_type(file) {
            page.line(format_args!("  {count:>5} {dtype:<5} {}", Bytes(bytes)))?;
        }
        if self.tensors {
            for tensor in file.tensors() {
                let (dtype, dims) = (tensor.dtype.name(), &tensor.dims);
                page.line(format_args!(
                    "  {:<40} {dtype:<5} {dims:?} at {}",
                    in_line(&tensor.name),
                    tensor.offset
                ))?;
            }
        }
        match (need, obstacle) {
            (Some(need), _) => {
                let (context, kv) = (need.context, Bytes(need.kv_bytes as u64));
                page.line(format_args!(
                    "memory: {size} weights as stored, {kv} keys and values for {context} tokens"
                ))?;
            }
            (None, obstacle) => {
                page.line(format_args!("cannot run: {}", in_line(&obstacle.unwrap_or_default())))?
            }
        }
        page.finish()
    }
}

/// A metadata value as JSON. Arrays, such as a vocabulary, are reduced to type and length.
fn to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::U8(v) => json!(v),
        Value::I8(v) => json!(v),
        Value::U16(v) => json!(v),
        Value::I16(v) => json!(v),
        Value::U32(v) => json!(v),
        Value::I32(v) => json!(v),
        Value::U64(v) => json!(v),
        Value::I64(v) => json!(v),
        Value::F32(v) => json!(v),
        Value::F64(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::Array(v) => json!({ "type": v.type_name(), "length": v.len() }),
    }
}

fn by_type(file: &dyn Checkpoint) -> BTreeMap<&'static str, (usize, u64)> {
    let mut types = BTreeMap::new();
    for tensor in file.tensors() {
        let entry: &mut (usize, u64) = types.entry(tensor.dtype.name()).or_default();
        *entry = (entry.0 + 1, entry.1 + tensor.bytes);
    }
    types
}

fn print_json(file: &dyn Checkpoint, need: Option<Need>, obstacle: Option<String>) -> Result<(), Failure> {
    let metadata: serde_json::Map<_, _> =
        file.metadata().iter().map(|(key, value)| (key.to_owned(), to_json(value))).collect();
    let tensors: Vec<_> = file
        .tensors()
        .iter()
        .map(|t| json!({ "name": t.name, "type": t.dtype.name(), "dims": t.dims, "offset": t.offset, "bytes": t.bytes }))
        .collect();
    output::print_json(&json!({
        "file": file.path().to_string_lossy(),
        "file_bytes": file.file_bytes(),
        "format": file.format(),
        "metadata": metadata,
        "tensors": tensors,
        "memory": need.map(|need| json!({
            "weight_bytes": file.tensors().iter().map(|t| t.bytes).sum::<u64>(),
            "kv_bytes": need.kv_bytes,
            "context": need.context,
        })),
        "cannot_run": obstacle,
    }))
}
