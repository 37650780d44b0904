//! WordPiece and Unigram in a `tokenizer.json`.

use super::super::encoder_parts::{EncoderParts, WORD_CHARS_MAX};
#[cfg(feature = "text")]
use super::super::pipeline::Pipeline;
use super::super::spaces::Spaces;
use super::super::word_marks::WordMarks;
use crate::checkpoint::{Object, WeightsError};

/// Configuration of an encoder tokenizer.
pub(super) struct EncoderKind {
    model: Model,
    /// Normalisation and splits.
    #[cfg(feature = "text")]
    pub pipeline: Pipeline,
}

enum Model {
    WordPiece { prefix: Box<str>, chars_max: usize },
    Unigram { byte_fallback: bool },
}

impl EncoderKind {
    /// Reads the configuration; `None` for another kind of model.
    #[cfg_attr(not(feature = "text"), expect(unused_variables, reason = "for text to ids"))]
    pub fn read(root: &Object<'_>, model: &Object<'_>) -> Result<Option<EncoderKind>, WeightsError> {
        let kind = match model.text("type")? {
            Some("WordPiece") => {
                let chars_max = model.whole("max_input_chars_per_word")?;
                let chars_max =
                    chars_max.map_or(WORD_CHARS_MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
                let prefix = model.text("continuing_subword_prefix")?.unwrap_or("##").into();
                Model::WordPiece { prefix, chars_max }
            }
            Some("Unigram") => {
                Model::Unigram { byte_fallback: model.flag("byte_fallback")?.unwrap_or(false) }
            }
            _ => return Ok(None),
        };
        Ok(Some(EncoderKind {
            model: kind,
            #[cfg(feature = "text")]
            pipeline: super::pipeline::read(root)?,
        }))
    }

    /// Name of this kind in GGUF (`tokenizer.ggml.model`).
    pub fn model(&self) -> &'static str {
        match self.model {
            Model::WordPiece { .. } => "bert",
            Model::Unigram { .. } => "t5",
        }
    }

    /// Unknown token, by its piece or by its id in the list.
    pub fn unknown<'j>(&self, model: &Object<'j>) -> Result<Option<&'j str>, WeightsError> {
        let Some(id) = model.whole("unk_id")? else { return model.text("unk_token") };
        let entry = usize::try_from(id).ok().and_then(|id| model.list("vocab").ok()??.get(id));
        let piece = entry.and_then(|entry| entry.get(0)?.as_str());
        piece.map(Some).ok_or_else(|| model.refuse("unk_id", "the index of a piece", id))
    }

    /// Whether unknown text becomes byte tokens.
    pub fn byte_fallback(&self) -> bool {
        matches!(self.model, Model::Unigram { byte_fallback: true })
    }

    /// Treatment of spaces, which decoding reverts.
    pub fn spaces(&self) -> Option<Spaces> {
        match self.model {
            Model::WordPiece { .. } => None,
            #[cfg(feature = "text")]
            Model::Unigram { .. } => Some(self.pipeline.spaces().unwrap_or_default()),
            #[cfg(not(feature = "text"))]
            Model::Unigram { .. } => None,
        }
    }

    /// Parameters of the tokenizer. `scores` are those of the pieces.
    pub fn parts(&self, scores: Vec<f64>) -> EncoderParts {
        match &self.model {
            Model::WordPiece { prefix, chars_max } => {
                EncoderParts::WordPiece { marks: WordMarks::Rests(prefix.clone()), chars_max: *chars_max }
            }
            Model::Unigram { byte_fallback } => {
                EncoderParts::Unigram { scores: Some(scores), byte_fallback: *byte_fallback }
            }
        }
    }
}
