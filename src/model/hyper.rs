//! Hyperparameters: parsed from a file's metadata and checked against its tensors.
//!
//! Nothing is allocated for a model before [`ModelConfig::from_file`] has accepted its file: it
//! checks each value, then builds the graph and holds every weight that the graph declares
//! against the tensor of that name.

use std::collections::BTreeSet;

use crate::backend::Heads;
use crate::graph::{Graph, RopeSpec};
use crate::weights::{Metadata, ModelFile, Strings};

use super::family::{Family, LocalLayers};
use super::rope::{RopeBase, RopeScaling, Yarn};
use super::{ModelError, decoder};

/// Longest context that a file may claim: positions stay far below `u32::MAX`.
const CONTEXT_LIMIT: usize = 1 << 27;

/// A model's hyperparameters, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The row of the table of families.
    pub family: &'static Family,
    /// Rows of the embedding table.
    pub vocab_size: usize,
    /// The trained context, in tokens.
    pub context_length: usize,
    /// Elements of the residual stream.
    pub embedding_length: usize,
    /// Elements between the MLP's matrices.
    pub feed_forward_length: usize,
    /// Layers.
    pub block_count: usize,
    /// The attention's heads.
    pub heads: Heads,
    /// Added to the mean square by every norm.
    pub rms_epsilon: f32,
    /// The rotation of global layers.
    pub rope: RopeSpec,
    /// Layers with a window and a rotation of their own.
    pub local: Option<LocalAttention>,
    /// Multiplies the attention's products.
    pub attention_scale: f32,
    /// Multiplies the embeddings.
    pub embedding_scale: f32,
    /// Soft cap of the attention's scaled products.
    pub attention_soft_cap: Option<f32>,
    /// Soft cap of the logits.
    pub logit_soft_cap: Option<f32>,
    /// Whether the embedding table is the head, too.
    pub tied_embeddings: bool,
    /// Names of the biases that the file has.
    pub biases: BTreeSet<String>,
}

/// What local layers do otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalAttention {
    /// Which layers.
    pub layers: LocalLayers,
    /// Positions that a query sees, itself included; all if none.
    pub window: Option<u32>,
    /// Their rotation.
    pub rope: RopeSpec,
}

impl ModelConfig {
    /// Reads and checks the hyperparameters of a GGUF file.
    ///
    /// # Errors
    /// [`ModelError::Architecture`]; [`ModelError::Key`] names a key that is missing or absurd;
    /// [`ModelError::MissingTensor`], [`ModelError::TensorShape`] and
    /// [`ModelError::UnusedTensor`] name a tensor that does not fit them.
    pub fn from_file(file: &ModelFile) -> Result<ModelConfig, ModelError> {
        let config = Reader::new(file)?.config()?;
        check_tensors(file, &decoder::build(&config)?, config.family)?;
        Ok(config)
    }

    /// The rotation of a layer.
    pub fn rope(&self, layer: usize) -> &RopeSpec {
        self.local_layer(layer).map_or(&self.rope, |local| &local.rope)
    }

    /// The window of a layer.
    pub fn layer_window(&self, layer: usize) -> Option<u32> {
        self.local_layer(layer).and_then(|local| local.window)
    }

    /// Whether the file has a bias of this name.
    pub fn has_bias(&self, name: &str) -> bool {
        self.biases.contains(name)
    }

    fn local_layer(&self, layer: usize) -> Option<&LocalAttention> {
        self.local.as_ref().filter(|local| local.layers.is_local(layer))
    }
}

/// Reads keys under the architecture's prefix.
struct Reader<'f> {
    file: &'f ModelFile,
    metadata: &'f Metadata,
    family: &'static Family,
}

impl<'f> Reader<'f> {
    fn new(file: &'f ModelFile) -> Result<Self, ModelError> {
        let metadata = file.metadata();
        let name = metadata.str("general.architecture")?;
        let name = name.ok_or_else(|| key("general.architecture", "an architecture", "no such key"))?;
        Ok(Reader { file, metadata, family: Family::named(name)? })
    }

    fn config(&self) -> Result<ModelConfig, ModelError> {
        let table = self.file.tensor("token_embd.weight");
        let table = table.ok_or_else(|| missing("token_embd.weight", "[vocabulary, embedding_length]"))?;
        let embedding_length = self.count("embedding_length", None)?;
        let heads = self.heads(embedding_length)?;
        let mut biases: BTreeSet<String> = BTreeSet::new();
        biases.extend(
            self.file.tensors().iter().map(|info| &info.name).filter(|name| name.ends_with(".bias")).cloned(),
        );
        let config = ModelConfig {
            family: self.family,
            vocab_size: self.vocab_size(table.rows())?,
            context_length: self.within(
                "context_length",
                self.count("context_length", None)?,
                CONTEXT_LIMIT,
            )?,
            embedding_length,
            feed_forward_length: self.count("feed_forward_length", None)?,
            block_count: self.block_count()?,
            heads,
            rms_epsilon: self.epsilon()?,
            rope: self
                .scaling(heads)?
                .spec(self.rope_base(heads, self.positive("rope.freq_base", 10_000.0)?)?),
            local: self.local(heads)?,
            attention_scale: self.attention_scale(embedding_length, heads)?,
            embedding_scale: if self.family.scaled_embeddings {
                (embedding_length as f32).sqrt()
            } else {
                1.0
            },
            attention_soft_cap: self.soft_cap("attn_logit_softcapping")?,
            logit_soft_cap: self.soft_cap("final_logit_softcapping")?,
            tied_embeddings: self.file.tensor("output.weight").is_none(),
            biases,
        };
        self.check_biases(&config)?;
        Ok(config)
    }

    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.family.name)
    }

    /// A count of at least one.
    fn count(&self, name: &str, default: Option<usize>) -> Result<usize, ModelError> {
        let full = self.name(name);
        match self.metadata.u32(&full)? {
            Some(0) => Err(key(&full, "at least 1", "0")),
            Some(count) => Ok(count as usize),
            None => default.ok_or_else(|| key(&full, "a count", "no such key")),
        }
    }

    fn within(&self, name: &str, value: usize, limit: usize) -> Result<usize, ModelError> {
        let fits = value <= limit;
        fits.then_some(value)
            .ok_or_else(|| key(&self.name(name), &format!("at most {limit}"), &value.to_string()))
    }

    fn float(&self, name: &str) -> Result<Option<f64>, ModelError> {
        Ok(self.metadata.f32(&self.name(name))?.map(f64::from))
    }

    fn positive(&self, name: &str, default: f64) -> Result<f64, ModelError> {
        let value = self.float(name)?.unwrap_or(default);
        let fits = value.is_finite() && value > 0.0;
        fits.then_some(value).ok_or_else(|| key(&self.name(name), "a positive number", &value.to_string()))
    }

    fn epsilon(&self) -> Result<f32, ModelError> {
        let name = "attention.layer_norm_rms_epsilon";
        let full = self.name(name);
        let value = self.float(name)?.ok_or_else(|| key(&full, "a number", "no such key"))?;
        let fits = (0.0..1.0).contains(&value);
        fits.then_some(value as f32).ok_or_else(|| key(&full, "a number from 0 to 1", &value.to_string()))
    }

    fn soft_cap(&self, name: &str) -> Result<Option<f32>, ModelError> {
        match self.float(name)? {
            // Converters write 0 for none.
            None | Some(0.0) => Ok(None),
            Some(_) => Ok(Some(self.positive(name, 0.0)? as f32)),
        }
    }

    fn heads(&self, embedding_length: usize) -> Result<Heads, ModelError> {
        let query = self.count("attention.head_count", None)?;
        let kv = self.count("attention.head_count_kv", Some(query))?;
        if !query.is_multiple_of(kv) {
            let expected = format!("a divisor of the {query} query heads");
            return Err(key(&self.name("attention.head_count_kv"), &expected, &kv.to_string()));
        }
        let even = embedding_length.is_multiple_of(query).then(|| embedding_length / query);
        let dim = match self.metadata.u32(&self.name("attention.key_length"))? {
            Some(_) => self.count("attention.key_length", None)?,
            None => even.ok_or_else(|| {
                let expected = format!("a divisor of embedding_length {embedding_length}");
                key(&self.name("attention.head_count"), &expected, &query.to_string())
            })?,
        };
        let value = self.count("attention.value_length", Some(dim))?;
        if value != dim || query.checked_mul(dim).is_none() {
            let expected = format!("{dim}, as attention.key_length");
            return Err(key(&self.name("attention.value_length"), &expected, &value.to_string()));
        }
        Ok(Heads { query, kv, dim })
    }

    fn vocab_size(&self, rows: usize) -> Result<usize, ModelError> {
        let told = self.count("vocab_size", Some(rows))?;
        if told != rows {
            let expected = format!("{rows}, the rows of token_embd.weight");
            return Err(key(&self.name("vocab_size"), &expected, &told.to_string()));
        }
        let pieces = self.metadata.strings("tokenizer.ggml.tokens")?.map_or(0, Strings::len);
        if pieces > rows {
            let expected = format!("at most {rows} pieces, the rows of token_embd.weight");
            return Err(key("tokenizer.ggml.tokens", &expected, &pieces.to_string()));
        }
        Ok(rows)
    }

    /// As many layers as there are blocks among the tensors, so that an absurd count builds
    /// nothing.
    fn block_count(&self) -> Result<usize, ModelError> {
        let count = self.count("block_count", None)?;
        let number = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse::<usize>().ok();
        let blocks: BTreeSet<usize> =
            self.file.tensors().iter().filter_map(|info| number(&info.name)).collect();
        let found = blocks.len();
        if found != count || blocks.last() != Some(&(count - 1)) {
            let expected = format!("{found}, the blocks among the tensors");
            return Err(key(&self.name("block_count"), &expected, &count.to_string()));
        }
        Ok(count)
    }

    fn rope_base(&self, heads: Heads, base: f64) -> Result<RopeBase, ModelError> {
        let dims = self.count("rope.dimension_count", Some(heads.dim))?;
        if !dims.is_multiple_of(2) || dims > heads.dim {
            let expected = format!("an even number up to the head's {}", heads.dim);
            return Err(key(&self.name("rope.dimension_count"), &expected, &dims.to_string()));
        }
        Ok(RopeBase { dims, base, pairing: self.family.pairing })
    }

    fn scaling(&self, heads: Heads) -> Result<RopeScaling, ModelError> {
        if self.file.tensor("rope_freqs.weight").is_some() {
            return self.rope_factors(heads);
        }
        let name = self.name("rope.scaling.type");
        match self.metadata.str(&name)? {
            None | Some("none") => match self.float("rope.scale_linear")? {
                // The name before scaling had types.
                Some(_) => Ok(RopeScaling::Linear { factor: self.positive("rope.scale_linear", 1.0)? }),
                None => Ok(RopeScaling::None),
            },
            Some("linear") => Ok(RopeScaling::Linear { factor: self.positive("rope.scaling.factor", 1.0)? }),
            Some("yarn") => self.yarn().map(RopeScaling::Yarn),
            Some(other) => Err(key(&name, "none, linear or yarn", other)),
        }
    }

    fn rope_factors(&self, heads: Heads) -> Result<RopeScaling, ModelError> {
        let pairs = self.rope_base(heads, 1.0)?.dims / 2;
        let factors = self.file.vector("rope_freqs.weight")?;
        if factors.len() != pairs {
            let (expected, found) = (format!("[{pairs}]"), format!("[{}]", factors.len()));
            return Err(ModelError::TensorShape { tensor: "rope_freqs.weight".into(), expected, found });
        }
        match factors.iter().find(|factor| !factor.is_finite() || **factor <= 0.0) {
            Some(bad) => Err(key("rope_freqs.weight", "positive factors", &bad.to_string())),
            None => Ok(RopeScaling::Factors(factors.into_iter().map(f64::from).collect())),
        }
    }

    fn yarn(&self) -> Result<Yarn, ModelError> {
        let original = self.count("rope.scaling.original_context_length", None)?;
        let factor = self.positive("rope.scaling.factor", 1.0)?;
        let at_least_one = factor >= 1.0;
        if !at_least_one {
            return Err(key(&self.name("rope.scaling.factor"), "at least 1", &factor.to_string()));
        }
        let attention = self.positive("rope.scaling.attn_factor", 1.0)?;
        Ok(Yarn {
            factor,
            original_context: original as f64,
            attention_factor: self.positive("rope.scaling.yarn_attn_factor", attention)?,
            beta_fast: self.positive("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: self.positive("rope.scaling.yarn_beta_slow", 1.0)?,
        })
    }

    fn local(&self, heads: Heads) -> Result<Option<LocalAttention>, ModelError> {
        let Some(layers) = self.family.local_layers else { return Ok(None) };
        let base = self.positive("rope.freq_base_swa", layers.rope_base)?;
        let window = self.metadata.u32(&self.name("attention.sliding_window"))?;
        let window = window.filter(|&window| window > 0);
        // Scaling is for the layers that see far.
        let rope = RopeScaling::None.spec(self.rope_base(heads, base)?);
        Ok(Some(LocalAttention { layers, window, rope }))
    }

    fn attention_scale(&self, embedding_length: usize, heads: Heads) -> Result<f32, ModelError> {
        if self.float("attention.scale")?.is_some_and(|scale| scale != 0.0) {
            return Ok(self.positive("attention.scale", 1.0)? as f32);
        }
        // Gemma 3 27B alone scales by its model width a head, and no key of its files says so.
        let wide = self.family.name == "gemma3" && self.block_count()? == 62;
        let divisor = if wide { embedding_length / heads.query } else { heads.dim };
        Ok(1.0 / (divisor as f32).sqrt())
    }

    fn check_biases(&self, config: &ModelConfig) -> Result<(), ModelError> {
        let heads = config.heads;
        for layer in 0..if self.family.qkv_bias { config.block_count } else { 0 } {
            for (part, count) in [("q", heads.query), ("k", heads.kv), ("v", heads.kv)] {
                let name = format!("blk.{layer}.attn_{part}.bias");
                if !config.has_bias(&name) {
                    return Err(missing(&name, &format!("[{}]", count * heads.dim)));
                }
            }
        }
        Ok(())
    }
}

/// Holds every weight of the graph against the file, and every tensor against the graph.
fn check_tensors(file: &ModelFile, graph: &Graph, family: &Family) -> Result<(), ModelError> {
    let matrices = graph.matrices().iter().map(|spec| (&spec.name, spec.rows, spec.cols));
    let vectors = graph.vectors().iter().map(|spec| (&spec.name, 1, spec.len));
    let mut used: BTreeSet<&str> = BTreeSet::from(["rope_freqs.weight"]);
    for (name, rows, cols) in matrices.chain(vectors) {
        let expected = format!("[{rows}, {cols}]");
        let info = file.tensor(name).ok_or_else(|| missing(name, &expected))?;
        if (info.rows(), info.cols()) != (rows, cols) {
            let found = format!("[{}, {}]", info.rows(), info.cols());
            return Err(ModelError::TensorShape { tensor: name.clone(), expected, found });
        }
        used.insert(name);
    }
    // A tensor that no operation reads means that the file's model is another one.
    match file.tensors().iter().find(|info| !used.contains(info.name.as_str())) {
        Some(info) => Err(ModelError::UnusedTensor { tensor: info.name.clone(), family: family.name }),
        None => Ok(()),
    }
}

fn key(key: &str, expected: &str, found: &str) -> ModelError {
    ModelError::Key { key: key.into(), expected: expected.into(), found: found.into() }
}

fn missing(tensor: &str, expected: &str) -> ModelError {
    ModelError::MissingTensor { tensor: tensor.into(), expected: expected.into() }
}
