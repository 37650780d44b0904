//! The tokenizer's metadata, read from a model file into plain values.
//!
//! Types are checked here (by `crate::weights`); whether the values fit each other is checked by who uses
//! them, `vocab.rs` and `tokenizer.rs`.

use super::error::TextError;
use crate::weights::{Metadata, Strings};

/// The keys, as they stand in the file and in error messages.
pub(crate) mod key {
    pub(crate) const MODEL: &str = "tokenizer.ggml.model";
    pub(crate) const PRE: &str = "tokenizer.ggml.pre";
    pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
    pub(crate) const SCORES: &str = "tokenizer.ggml.scores";
    pub(crate) const TYPES: &str = "tokenizer.ggml.token_type";
    #[cfg(feature = "text")]
    pub(crate) const MERGES: &str = "tokenizer.ggml.merges";
    pub(crate) const BOS: &str = "tokenizer.ggml.bos_token_id";
    pub(crate) const EOS: &str = "tokenizer.ggml.eos_token_id";
    pub(crate) const EOT: &str = "tokenizer.ggml.eot_token_id";
    pub(crate) const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
    pub(crate) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
    pub(crate) const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
    #[cfg(feature = "text")]
    pub(crate) const CHAT_TEMPLATE: &str = "tokenizer.chat_template";
}

/// How the pieces of a vocabulary are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// `gpt2`: each byte is a printable character.
    ByteLevel,
    /// `llama`: UTF-8 with `▁` for a space, `<0xNN>` for lone bytes.
    SentencePiece,
}

/// The tokenizer's metadata as plain values.
#[derive(Clone, Debug, Default)]
pub(crate) struct VocabParts {
    pub(crate) model: String,
    pub(crate) pre: String,
    pub(crate) tokens: Strings,
    pub(crate) scores: Option<Vec<f32>>,
    pub(crate) types: Option<Vec<u32>>,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) eot: Option<u32>,
    pub(crate) unknown: Option<u32>,
    pub(crate) add_bos: Option<bool>,
    pub(crate) add_space_prefix: Option<bool>,
}

impl VocabParts {
    /// Reads what [`super::Vocab`] needs.
    pub(crate) fn read(metadata: &Metadata) -> Result<VocabParts, TextError> {
        let model = metadata.str(key::MODEL)?.ok_or(TextError::MissingKey { key: key::MODEL })?;
        let tokens = metadata.strings(key::TOKENS)?.ok_or(TextError::MissingKey { key: key::TOKENS })?;
        Ok(VocabParts {
            model: model.to_owned(),
            pre: metadata.str(key::PRE)?.unwrap_or_default().to_owned(),
            tokens: tokens.clone(),
            scores: metadata.f32s(key::SCORES)?,
            types: metadata.u32s(key::TYPES)?,
            bos: metadata.u32(key::BOS)?,
            eos: metadata.u32(key::EOS)?,
            eot: metadata.u32(key::EOT)?,
            unknown: metadata.u32(key::UNKNOWN)?,
            add_bos: metadata.bool(key::ADD_BOS)?,
            add_space_prefix: metadata.bool(key::ADD_SPACE_PREFIX)?,
        })
    }

    /// How the tokens are written, by the kind of the tokenizer.
    pub(crate) fn spelling(&self) -> Result<Spelling, TextError> {
        match self.model.as_str() {
            "gpt2" => Ok(Spelling::ByteLevel),
            "llama" => Ok(Spelling::SentencePiece),
            other => Err(TextError::UnknownModel { name: other.to_owned() }),
        }
    }
}
