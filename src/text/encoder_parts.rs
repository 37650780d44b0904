//! [`EncoderParts`]: tokenizers of encoder models, as described by a file.

use super::word_marks::WordMarks;

/// Maximum characters of a word in BERT's tokenizer.
pub(crate) const WORD_CHARS_MAX: usize = 100;

/// WordPiece or Unigram, with its parameters.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "text"), expect(dead_code, reason = "for text to ids"))]
pub(crate) enum EncoderParts {
    WordPiece {
        marks: WordMarks,
        /// Maximum characters of a word; a longer word is unknown.
        chars_max: usize,
    },
    Unigram {
        /// Log-probability by token id; `None` if the vocabulary's own scores count, as in GGUF.
        scores: Option<Vec<f64>>,
        /// Whether unknown text becomes byte tokens.
        byte_fallback: bool,
    },
}

impl EncoderParts {
    /// The tokenizer of a GGUF file by `tokenizer.ggml.model`.
    pub(crate) fn of_gguf(model: &str) -> Option<EncoderParts> {
        match model {
            "bert" => Some(EncoderParts::WordPiece { marks: WordMarks::Starts, chars_max: WORD_CHARS_MAX }),
            // A vocabulary with byte tokens was trained with the fallback to them.
            "t5" => Some(EncoderParts::Unigram { scores: None, byte_fallback: true }),
            _ => None,
        }
    }

    /// Whether the file has scores apart from those of the vocabulary.
    pub(crate) fn has_scores(&self) -> bool {
        matches!(self, EncoderParts::Unigram { scores: Some(_), .. })
    }
}
