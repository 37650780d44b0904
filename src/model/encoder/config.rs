//! [`EncoderConfig`]: hyperparameters of a text encoder, checked against the tensors of its file.

use std::fmt;
use std::str::FromStr;

use crate::checkpoint::{Checkpoint, Role, TensorInfo};

use super::graph;
use crate::model::family::Family;
use crate::model::keys::{Keys, family_name};
use crate::model::{ModelConfig, ModelError, key_error, missing, tensors};

/// Maximum number of token types that a file may declare.
const TOKEN_TYPES_MAX: usize = 16;

/// Pooling: how the rows of a text become one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pooling {
    /// Mean of all rows.
    Mean,
    /// First row (CLS).
    Cls,
    /// Last row.
    Last,
    /// Classification head over a pooled row, for rerankers: one score per label.
    Rank,
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
            Pooling::Last => "last",
            Pooling::Rank => "rank",
        })
    }
}

impl FromStr for Pooling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Pooling::Mean, Pooling::Cls, Pooling::Last, Pooling::Rank];
        let named = all.into_iter().find(|pooling| pooling.to_string() == text);
        named.ok_or_else(|| format!("expected mean, cls, last or rank, found {text}"))
    }
}

/// Validated hyperparameters of a text encoder, or of a decoder that embeds texts.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderConfig {
    /// Layers, heads and widths.
    pub model: ModelConfig,
    /// Pooling of the file; `None` if the file does not declare any.
    pub pooling: Option<Pooling>,
    /// Default length of texts in tokens: less than the context where sentence-transformers cuts earlier.
    pub context_usual: usize,
    /// Pooling before a classification head.
    pub class_pooling: Pooling,
    /// Rows of the position table before the first position, in encoders with learned positions.
    pub first_position: Option<usize>,
    /// Number of token types; 0 without.
    pub token_types: usize,
    /// Output widths of the projections after pooling: the modules 2 and 3 of sentence-transformers.
    pub projections: Vec<(u8, usize)>,
    /// Classification head: whether it has a first projection, whether that is normalised, and the number of
    /// labels of its last projection.
    pub class_head: ClassHead,
}

/// Tensors of a classification head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassHead {
    /// Whether the head has a first projection.
    pub dense: bool,
    /// Whether the first projection's output is normalised.
    pub norm: bool,
    /// Number of labels: rows of the last projection; `None` without.
    pub labels: Option<usize>,
}

impl ClassHead {
    /// Whether the file has a head.
    pub fn is_some(self) -> bool {
        self.dense || self.labels.is_some()
    }
}

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

    /// Names of the tables that are added to the token embeddings.
    pub(super) fn tables(&self) -> Vec<String> {
        let dialect = &self.model.dialect;
        let positions = self.first_position.map(|_| dialect.weight(Role::PositionEmbedding));
        let types = (self.token_types > 0).then(|| dialect.weight(Role::TokenTypes));
        positions.into_iter().chain(types).collect()
    }

    /// Elements of a pooled row.
    pub fn width(&self, pooling: Pooling) -> usize {
        let (hidden, ClassHead { labels, .. }) = (self.model.embedding_length, self.class_head);
        match pooling {
            Pooling::Rank => labels.unwrap_or(hidden),
            _ => self.projections.last().map_or(hidden, |&(_, rows)| rows),
        }
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
        let class_head = self.class_head(&model);
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

    /// Pooling of an encoder whose file declares none, as in sentence-transformers.
    fn usual_pooling(&self, class_head: ClassHead) -> Option<Pooling> {
        self.keys.family.encoder.map(|_| if class_head.is_some() { Pooling::Rank } else { Pooling::Mean })
    }

    fn tensor(&self, role: Role) -> Option<&TensorInfo> {
        self.file.tensor(&self.file.dialect().weight(role))
    }

    /// Learned positions. They bound the context.
    fn positions(&self, model: ModelConfig) -> Result<(Option<usize>, ModelConfig), ModelError> {
        let Some(encoder) = self.keys.family.encoder.filter(|encoder| encoder.learned_positions) else {
            return Ok((None, model));
        };
        debug_assert!(encoder.learned_positions);
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
        // The same in a folder.
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

    fn class_head(&self, model: &ModelConfig) -> ClassHead {
        let has = |role| self.tensor(role).is_some();
        let dense = has(Role::ClassDense);
        let labels = self.tensor(Role::ClassOutput).map(TensorInfo::rows);
        // Some heads are one projection, under the name of the first.
        let only = self.tensor(Role::ClassDense).map(TensorInfo::rows);
        match labels {
            None if only.is_some_and(|rows| rows != model.embedding_length) => ClassHead::default(),
            labels => ClassHead { dense, norm: has(Role::ClassNorm), labels },
        }
    }
}
