//! [`EncoderConfig`]: hyperparameters of a text encoder. `read` reads them from a file.

use std::fmt;
use std::str::FromStr;

use crate::checkpoint::Role;
use crate::model::ModelConfig;

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
