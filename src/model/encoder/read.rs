//! Reads an [`EncoderConfig`] from a file's metadata and checks it against the tensors.

use crate::checkpoint::{Checkpoint, Role, TensorInfo};
use crate::model::family::Family;
use crate::model::keys::{Keys, family_name};
use crate::model::{ModelConfig, ModelError, key_error, missing, tensors};

use super::config::{ClassHead, EncoderConfig, Pooling};
use super::graph;

/// Maximum number of token types that a file may declare.
const TOKEN_TYPES_MAX: usize = 16;

impl EncoderConfig {
    /// Reads and validates the hyperparameters of a checkpoint.
    ///
    /// # Errors
    /// As [`ModelConfig::from_file`]; [`ModelError::Key`] for a decoder with windows or soft caps, which
    /// encoders do not have.
    pub fn from_file(file: &dyn Checkpoint) -> Result<EncoderConfig, ModelError> {
        EncoderConfig::read(file).map_err(|error| error.of(file))
    }

    fn read(file: &dyn Checkpoint) -> Result<EncoderConfig, ModelError> {
        let family = Family::of_any(family_name(file)?)?;
        let reader = Reader { file, keys: Keys { file, family } };
        if family.encoder.is_none() {
            let model = reader.causal(ModelConfig::from_file(file)?)?;
            return reader.config(model);
        }
        let config = reader.config(ModelConfig::of_family(file, family)?)?;
        let pooling = if config.class_head.is_some() { Pooling::Rank } else { Pooling::Mean };
        tensors::check(file, &graph::build(&config, pooling)?, &config.model, &config.tables())?;
        Ok(config)
    }
}

struct Reader<'f> {
    file: &'f dyn Checkpoint,
    keys: Keys<'f>,
}

impl Reader<'_> {
    fn config(&self, model: ModelConfig) -> Result<EncoderConfig, ModelError> {
        let class_pooling = match self.keys.text("classifier_pooling")? {
            None if self.keys.family.name == "modern-bert" => Pooling::Mean,
            None | Some("cls") => Pooling::Cls,
            Some("mean") => Pooling::Mean,
            Some(other) => return Err(self.keys.refuse("classifier_pooling", "cls or mean", other)),
        };
        let (first_position, model) = self.positions(model)?;
        let class_head = self.class_head();
        let context_usual = self.keys.count("text_length", Some(model.context_length))?;
        Ok(EncoderConfig {
            pooling: self.pooling()?.or_else(|| self.usual_pooling(class_head)),
            context_usual: context_usual.min(model.context_length),
            class_pooling,
            first_position,
            token_types: self.token_types(&model)?,
            projections: self.projections(model.embedding_length)?,
            class_head,
            model,
        })
    }

    /// A decoder without parts that its attention over rows lacks.
    fn causal(&self, model: ModelConfig) -> Result<ModelConfig, ModelError> {
        if let Some(local) = &model.local {
            let expected = "no window: decoders with windows embed no texts";
            return Err(self.keys.refuse("attention.sliding_window", expected, local.window));
        }
        if let Some(cap) = model.attention_soft_cap {
            let expected = "no soft cap: decoders with soft caps embed no texts";
            return Err(self.keys.refuse("attn_logit_softcapping", expected, cap));
        }
        Ok(model)
    }

    fn pooling(&self) -> Result<Option<Pooling>, ModelError> {
        Ok(match self.keys.whole("pooling_type")? {
            // 0 leaves the rows of all tokens, without a choice of pooling.
            None | Some(0) => None,
            Some(1) => Some(Pooling::Mean),
            Some(2) => Some(Pooling::Cls),
            Some(3) => Some(Pooling::Last),
            Some(4) => Some(Pooling::Rank),
            Some(other) => return Err(self.keys.refuse("pooling_type", "0 to 4", other)),
        })
    }

    /// Default pooling of an encoder, as in sentence-transformers; `None` for decoders.
    fn usual_pooling(&self, class_head: ClassHead) -> Option<Pooling> {
        self.keys.family.encoder.map(|_| if class_head.is_some() { Pooling::Rank } else { Pooling::Mean })
    }

    fn tensor(&self, role: Role) -> Option<&TensorInfo> {
        self.file.tensor(&self.file.dialect().weight(role))
    }

    /// Learned positions. They bound the context.
    fn positions(&self, model: ModelConfig) -> Result<(Option<usize>, ModelConfig), ModelError> {
        if !self.keys.family.encoder.is_some_and(|encoder| encoder.learned_positions) {
            return Ok((None, model));
        }
        let first = self.keys.whole("position_offset")?.unwrap_or(0) as usize;
        let name = model.dialect.weight(Role::PositionEmbedding);
        let shape = || format!("[{}, {}]", first + model.context_length, model.embedding_length);
        let info = self.tensor(Role::PositionEmbedding).ok_or_else(|| missing(&name, &shape()))?;
        let fits = info.cols() == model.embedding_length && info.rows() > first;
        if !fits {
            let found = format!("[{}, {}]", info.rows(), info.cols());
            return Err(ModelError::TensorShape { tensor: name, expected: shape(), found });
        }
        let context_length = model.context_length.min(info.rows() - first);
        Ok((Some(first), ModelConfig { context_length, ..model }))
    }

    fn token_types(&self, model: &ModelConfig) -> Result<usize, ModelError> {
        let Some(info) = self.tensor(Role::TokenTypes).filter(|_| self.keys.family.encoder.is_some()) else {
            return Ok(0);
        };
        let (rows, cols) = (info.rows(), info.cols());
        if cols != model.embedding_length || rows > TOKEN_TYPES_MAX {
            let expected = format!("[at most {TOKEN_TYPES_MAX}, {}]", model.embedding_length);
            let (tensor, found) = (info.name.clone(), format!("[{rows}, {cols}]"));
            return Err(ModelError::TensorShape { tensor, expected, found });
        }
        let expected = format!("{rows}, the rows of {}", info.name);
        let key = "tokenizer.ggml.token_type_count";
        if let Some(found) = self.file.metadata().u32(key)?.filter(|&found| found as usize != rows) {
            return Err(key_error(key, &expected, &found.to_string()));
        }
        // Folders have the number under the family's prefix.
        match self.keys.whole("token_type_count")? {
            Some(found) if found != rows as u64 => {
                Err(self.keys.refuse("token_type_count", &expected, found))
            }
            _ => Ok(rows),
        }
    }

    /// Projections after pooling, each from the width of the one before.
    fn projections(&self, mut cols: usize) -> Result<Vec<(u8, usize)>, ModelError> {
        let mut found = Vec::new();
        for number in [2, 3] {
            let Some(info) = self.tensor(Role::Projection(number)) else { continue };
            let sizes = [("in", cols, info.cols()), ("out", info.rows(), info.rows())];
            for (side, expected, stored) in sizes {
                let key = format!("dense_{number}_feat_{side}");
                let declared = self.keys.count(&key, Some(stored))?;
                if declared != expected {
                    return Err(self.keys.refuse(&key, &expected.to_string(), declared));
                }
            }
            cols = info.rows();
            found.push((number, cols));
        }
        Ok(found)
    }

    fn class_head(&self) -> ClassHead {
        let has = |role| self.tensor(role).is_some();
        let labels = self.tensor(Role::ClassOutput).map(TensorInfo::rows);
        ClassHead { dense: has(Role::ClassDense), norm: has(Role::ClassNorm), labels }
    }
}
