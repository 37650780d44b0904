//! Hyperparameters of a model, read from a file's metadata and checked against its tensors.
//!
//! Nothing is allocated for a model before [`ModelConfig::from_file`] has accepted its file. It rejects keys
//! with an unsupported effect (`known`), reads the others (`keys`, `scaling`) and checks all sizes against
//! the tensors (`tensors`). Then it builds the graph and checks its weights against the file's tensors.

use std::collections::BTreeSet;

use crate::checkpoint::{Array, Checkpoint, Part, Role, Strings, TensorInfo, Value};
use crate::ir::{Heads, NormKind};

use super::config::{Experts, LocalAttention, ModelConfig};
use super::family::Family;
use super::keys::{Keys, family_name, shown_value, whole};
use super::recipe::{EmbedRecipe, GlobalLayer, LogitScale, MlpRecipe};
use super::rotation::rotations;
use super::{ModelError, decoder, key_error, known, missing, tensors};

/// Maximum context that a file may declare, in tokens. Positions stay far below `u32::MAX`.
const CONTEXT_LIMIT: usize = 1 << 27;
/// Maximum number of experts per layer. Each has its own matrices, regardless of their size.
const EXPERTS_MAX: usize = 1024;

impl ModelConfig {
    /// Reads and validates the hyperparameters of a checkpoint.
    ///
    /// # Errors
    /// [`ModelError::File`] with the file and one of these reasons: [`ModelError::Architecture`];
    /// [`ModelError::Key`] for a key that is missing, out of range or unsupported; [`ModelError::Experts`];
    /// [`ModelError::MissingTensor`], [`ModelError::TensorShape`] and [`ModelError::UnusedTensor`] for a
    /// tensor that does not match.
    pub fn from_file(file: &dyn Checkpoint) -> Result<ModelConfig, ModelError> {
        ModelConfig::read(file).map_err(|error| error.of(file))
    }

    fn read(file: &dyn Checkpoint) -> Result<ModelConfig, ModelError> {
        let config = ModelConfig::of_family(file, Family::named(family_name(file)?)?)?;
        tensors::check(file, &decoder::build(&config)?, &config, &[])?;
        Ok(config)
    }

    /// Reads the hyperparameters of a family, decoder or encoder, and checks all sizes. The weights of the
    /// graph are not checked.
    pub(super) fn of_family(
        file: &dyn Checkpoint,
        family: &'static Family,
    ) -> Result<ModelConfig, ModelError> {
        let keys = Keys { file, family };
        known::check(keys)?;
        Reader { file, keys }.config()
    }
}

/// Builds a configuration from keys and tensors.
struct Reader<'f> {
    file: &'f dyn Checkpoint,
    keys: Keys<'f>,
}

impl Reader<'_> {
    fn config(&self) -> Result<ModelConfig, ModelError> {
        let (keys, family) = (self.keys, self.keys.family);
        let (dialect, table) = (self.file.dialect(), self.file.dialect().weight(Role::TokenEmbedding));
        let rows = self.file.tensor(&table).map(TensorInfo::rows);
        let rows = rows.ok_or_else(|| missing(&table, "[vocabulary, embedding_length]"))?;
        let embedding_length = keys.count("embedding_length", None)?;
        let (experts, feed_forward_length) = self.experts()?;
        let (block_count, heads) = (self.block_count()?, self.heads(embedding_length)?);
        let fused = self.fused(block_count, feed_forward_length);
        let sizes =
            tensors::Sizes { family, block_count, heads, embedding_length, feed_forward_length, experts };
        // From here on, all sizes are bounded by the file.
        tensors::check_sizes(self.file, sizes, &fused)?;
        let context_length = self.context_length()?;
        let (rope, short_rope) = rotations(keys, heads, context_length)?;
        let attention = &family.layer.attention;
        Ok(ModelConfig {
            family,
            vocab_size: self.vocab_size(rows)?,
            context_length,
            embedding_length,
            feed_forward_length,
            experts,
            block_count,
            heads,
            norm_epsilon: self.epsilon()?,
            rope,
            short_rope,
            local: self.local(block_count, context_length)?,
            attention_scale: self.attention_scale(sizes)?,
            embedding_scale: self.embedding_scale(embedding_length)?,
            residual_scale: keys.positive_or("residual_scale", 1.0)? as f32,
            logit_scale: self.logit_scale()?,
            attention_soft_cap: self.soft_cap("attn_logit_softcapping", attention.soft_cap)?,
            logit_soft_cap: self.soft_cap("final_logit_softcapping", family.head.soft_cap)?,
            tied_embeddings: self.file.tensor(&dialect.weight(Role::Head)).is_none(),
            dialect: dialect.clone(),
            biases: self.biases(block_count)?,
            fused,
        })
    }

    /// Experts of a layer and the MLP width: per expert, or of the dense MLP.
    fn experts(&self) -> Result<(Option<Experts>, usize), ModelError> {
        let (keys, key) = (self.keys, "feed_forward_length");
        if !matches!(keys.family.layer.mlp, MlpRecipe::Experts(_)) {
            tensors::refuse_experts(self.file)?;
            return Ok((None, keys.count(key, None)?));
        }
        let count = keys.count("expert_count", None)?;
        let used = keys.count("expert_used_count", None)?;
        if count > EXPERTS_MAX {
            return Err(keys.refuse("expert_count", &format!("at most {EXPERTS_MAX}"), count));
        }
        if used > count {
            let expected = format!("at most {count}, the experts that there are");
            return Err(keys.refuse("expert_used_count", &expected, used));
        }
        let own = "expert_feed_forward_length";
        let key = if keys.raw(own).is_some() { own } else { key };
        Ok((Some(Experts { count, used }), keys.count(key, None)?))
    }

    fn context_length(&self) -> Result<usize, ModelError> {
        let length = self.keys.count("context_length", None)?;
        // Beyond the original context, q is scaled by position, which no operation supports.
        let length = match self.keys.float("attention.temperature_scale")? {
            None | Some(0.0) => length,
            Some(_) => length.min(self.keys.count_or("rope.scaling.original_context_length", length)?),
        };
        let fits = length <= CONTEXT_LIMIT;
        fits.then_some(length)
            .ok_or_else(|| self.keys.refuse("context_length", &format!("at most {CONTEXT_LIMIT}"), length))
    }

    fn epsilon(&self) -> Result<f32, ModelError> {
        let key = match self.keys.family.norm {
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
            NormKind::Layer => "attention.layer_norm_epsilon",
        };
        let value = self.keys.float(key)?.unwrap_or(self.keys.family.epsilon);
        let fits = (0.0..1.0).contains(&value);
        fits.then_some(value as f32).ok_or_else(|| self.keys.refuse(key, "a number from 0 to 1", value))
    }

    /// Soft cap. Converters write 0 for none.
    fn soft_cap(&self, key: &str, default: Option<f64>) -> Result<Option<f32>, ModelError> {
        if self.keys.raw(key).is_none() {
            return Ok(default.map(|cap| cap as f32));
        }
        let cap = self.keys.positive_or(key, f64::INFINITY)?;
        Ok((cap < f64::INFINITY).then_some(cap as f32))
    }

    fn embedding_scale(&self, embedding_length: usize) -> Result<f32, ModelError> {
        let own = match self.keys.family.embed {
            EmbedRecipe::Plain => 1.0,
            EmbedRecipe::ByWidth => (embedding_length as f32).sqrt(),
        };
        Ok(own * self.keys.positive_or("embedding_scale", 1.0)? as f32)
    }

    fn logit_scale(&self) -> Result<f32, ModelError> {
        let (default, divides) = match self.keys.family.head.scale {
            LogitScale::Factor(default) => (default, false),
            LogitScale::Divisor => (1.0, true),
        };
        let scale = self.keys.positive_or("logit_scale", default)?;
        let factor = if divides { 1.0 / scale } else { scale } as f32;
        let fits = factor.is_finite() && factor > 0.0;
        fits.then_some(factor)
            .ok_or_else(|| self.keys.refuse("logit_scale", "a number that f32 can divide by", scale))
    }

    fn heads(&self, embedding_length: usize) -> Result<Heads, ModelError> {
        let keys = self.keys;
        let query = keys.count("attention.head_count", None)?;
        let kv = keys.count("attention.head_count_kv", Some(query))?;
        if !query.is_multiple_of(kv) {
            let expected = format!("a divisor of the {query} query heads");
            return Err(keys.refuse("attention.head_count_kv", &expected, kv));
        }
        let even = embedding_length.is_multiple_of(query).then(|| embedding_length / query);
        let dim = match keys.raw("attention.key_length") {
            Some(_) => keys.count("attention.key_length", None)?,
            None => even.ok_or_else(|| {
                let expected = format!("a divisor of embedding_length {embedding_length}");
                keys.refuse("attention.head_count", &expected, query)
            })?,
        };
        let value = keys.count("attention.value_length", Some(dim))?;
        if value != dim {
            let expected = format!("{dim}, as attention.key_length");
            return Err(keys.refuse("attention.value_length", &expected, value));
        }
        Ok(Heads { query, kv, dim })
    }

    fn vocab_size(&self, rows: usize) -> Result<usize, ModelError> {
        let pieces = self.file.metadata().strings("tokenizer.ggml.tokens")?.map_or(0, Strings::len);
        if pieces > rows {
            let table = self.file.dialect().weight(Role::TokenEmbedding);
            let expected = format!("at most {rows} pieces, the rows of {table}");
            return Err(key_error("tokenizer.ggml.tokens", &expected, &pieces.to_string()));
        }
        Ok(rows)
    }

    /// Number of layers. It must match the blocks among the tensors, so that an absurd count builds nothing.
    fn block_count(&self) -> Result<usize, ModelError> {
        let count = self.keys.count("block_count", None)?;
        let number = |info: &TensorInfo| self.file.dialect().layer_of(&info.name).map(|(layer, _)| layer);
        let blocks: BTreeSet<usize> = self.file.tensors().iter().filter_map(number).collect();
        let found = blocks.len();
        if found != count || blocks.last() != Some(&(count - 1)) {
            return Err(self.keys.refuse(
                "block_count",
                &format!("{found}, the blocks among the tensors"),
                count,
            ));
        }
        Ok(count)
    }

    /// Sliding-window layers; `None` without a window.
    fn local(&self, block_count: usize, context_length: usize) -> Result<Option<LocalAttention>, ModelError> {
        let default = self.keys.family.sliding_window_layers.map_or(0, |local| local.window);
        let window = self.keys.whole("attention.sliding_window")?.unwrap_or(default);
        let layers = self.sliding_window_layers(block_count)?;
        if window == 0 || !layers.contains(&true) {
            return Ok(None);
        }
        // The window of an encoder counts the positions on both sides.
        let sides = if self.keys.family.encoder.is_some() { 2 } else { 1 };
        let window = window.min(sides * context_length as u64);
        let window = u32::try_from(window).unwrap_or(u32::MAX);
        Ok(Some(LocalAttention { layers, window }))
    }

    /// Whether each layer is a sliding-window layer. A period n leaves every n-th layer global, 0 none.
    fn sliding_window_layers(&self, layers: usize) -> Result<Vec<bool>, ModelError> {
        let key = "attention.sliding_window_pattern";
        let expected = format!("a period, or {layers} flags, one a layer");
        let refuse = |found: &Value| self.keys.refuse(key, &expected, shown_value(found));
        let flags = match self.keys.raw(key) {
            None => {
                let local = self.keys.family.sliding_window_layers;
                let (period, global) =
                    local.map_or((0, GlobalLayer::Last), |local| (local.period, local.global));
                return Ok(every(period as u64, global, layers));
            }
            Some(Value::Array(Array::Bool(flags))) => Some(flags.clone()),
            Some(Value::Array(array)) => array.to_u32s().and_then(|flags| {
                let flag = |&flag: &u32| (flag < 2).then_some(flag == 1);
                flags.iter().map(flag).collect()
            }),
            Some(value) => {
                let global =
                    self.keys.family.sliding_window_layers.map_or(GlobalLayer::Last, |local| local.global);
                return whole(value).map(|n| every(n, global, layers)).ok_or_else(|| refuse(value));
            }
        };
        let fitting = flags.filter(|flags| flags.len() == layers);
        fitting.ok_or_else(|| self.keys.raw(key).map_or_else(|| missing(key, &expected), refuse))
    }

    fn attention_scale(&self, sizes: tensors::Sizes) -> Result<f32, ModelError> {
        let tensors::Sizes { block_count, heads, embedding_length, .. } = sizes;
        let wide = self.keys.family.layer.attention.wide_scale_at == Some(block_count);
        let divisor = if wide { (embedding_length / heads.query).max(1) } else { heads.dim };
        let default = 1.0 / (divisor as f32).sqrt();
        Ok(self.keys.positive_or("attention.scale", f64::from(default))? as f32)
    }

    /// Fused matrices of the file, which hold the rows of several.
    fn fused(&self, block_count: usize, feed_forward_length: usize) -> BTreeSet<String> {
        let (file, dialect) = (self.file, self.file.dialect());
        let of_layer = |index: usize| {
            let name = |part| dialect.weight(Role::Layer { index, part });
            let (gate_up, gate) = (name(Part::GateUp), name(Part::Gate));
            // Some files give the fused matrix the name of the up matrix.
            let both = file.tensor(&gate).is_none()
                && file.tensor(&gate_up).is_some_and(|info| info.rows() / 2 == feed_forward_length);
            let whole = name(Part::QueryKeyValue);
            let whole = file.tensor(&whole).is_some().then_some(whole);
            whole.into_iter().chain(both.then_some(gate_up))
        };
        (0..block_count).flat_map(of_layer).collect()
    }

    /// Biases of the file, including those that the family requires.
    fn biases(&self, block_count: usize) -> Result<BTreeSet<String>, ModelError> {
        let names = self.file.tensors().iter().map(|info| &info.name);
        let biases: BTreeSet<String> = names.filter(|name| name.ends_with(".bias")).cloned().collect();
        let dialect = self.file.dialect();
        for index in 0..if self.keys.family.layer.attention.qkv_bias { block_count } else { 0 } {
            for part in [Part::Query, Part::Key, Part::Value] {
                let role = Role::Layer { index, part };
                let name = dialect.bias(role);
                let rows = self.file.tensor(&dialect.weight(role)).map_or(0, TensorInfo::rows);
                biases.get(&name).ok_or_else(|| missing(&name, &format!("[{rows}]")))?;
            }
        }
        Ok(biases)
    }
}

/// All layers but one of each `period`; all for a period of 0.
fn every(period: u64, global: GlobalLayer, layers: usize) -> Vec<bool> {
    let first = u64::from(global == GlobalLayer::Last);
    (first..first + layers as u64).map(|layer| period == 0 || !layer.is_multiple_of(period)).collect()
}
