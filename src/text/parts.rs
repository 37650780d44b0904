//! [`VocabParts`]: the tokenizer metadata of a model file as plain values.
//!
//! Values of any equivalent type are accepted: converters have written ids as signed numbers, flags as 0 and
//! 1, scores as integers. `vocab_data.rs` checks their consistency.

#[cfg(feature = "text")]
use super::charsmap::Charsmap;
use super::encoder_parts::EncoderParts;
use super::error::TextError;
use super::frames::Frames;
#[cfg(feature = "text")]
use super::normalizer::BertOptions;
#[cfg(feature = "text")]
use super::pipeline::Pipeline;
use super::spaces::Spaces;
use super::warnings::Warnings;
use crate::TokenId;
use crate::checkpoint::{Array, Metadata, Strings, Value};

/// Metadata keys, as in files and error messages.
pub(crate) mod key {
    pub(crate) const MODEL: &str = "tokenizer.ggml.model";
    pub(crate) const PRE: &str = "tokenizer.ggml.pre";
    pub(crate) const TOKENS: &str = "tokenizer.ggml.tokens";
    pub(crate) const SCORES: &str = "tokenizer.ggml.scores";
    pub(crate) const TYPES: &str = "tokenizer.ggml.token_type";
    #[cfg(any(feature = "text", feature = "safetensors"))]
    pub(crate) const MERGES: &str = "tokenizer.ggml.merges";
    pub(crate) const BOS: &str = "tokenizer.ggml.bos_token_id";
    pub(crate) const EOS: &str = "tokenizer.ggml.eos_token_id";
    pub(crate) const EOT: &str = "tokenizer.ggml.eot_token_id";
    pub(crate) const EOM: &str = "tokenizer.ggml.eom_token_id";
    pub(crate) const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
    pub(crate) const PADDING: &str = "tokenizer.ggml.padding_token_id";
    pub(crate) const CLS: &str = "tokenizer.ggml.cls_token_id";
    // The convention's spelling.
    pub(crate) const SEPARATOR: &str = "tokenizer.ggml.seperator_token_id";
    pub(crate) const MASK: &str = "tokenizer.ggml.mask_token_id";
    pub(crate) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
    pub(crate) const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
    pub(crate) const ADD_SEPARATOR: &str = "tokenizer.ggml.add_sep_token";
    pub(crate) const TOKEN_TYPES: &str = "tokenizer.ggml.token_type_count";
    pub(crate) const ADD_SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
    #[cfg(feature = "text")]
    pub(crate) const JOIN_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
    #[cfg(feature = "text")]
    pub(crate) const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
    #[cfg(feature = "text")]
    pub(crate) const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
    #[cfg(feature = "text")]
    pub(crate) const STRIP_ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";
    #[cfg(feature = "text")]
    pub(crate) const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

    /// Counterpart of a GGUF key in the documents of a folder.
    #[cfg(feature = "safetensors")]
    pub(crate) fn in_documents(key: &'static str) -> &'static str {
        match key {
            MODEL => "model.type",
            PRE => "pre_tokenizer",
            TOKENS => "model.vocab",
            TYPES => "added_tokens",
            SCORES | MERGES => "model.merges",
            BOS => "bos_token_id",
            EOS => "eos_token_id",
            UNKNOWN => "model.unk_token",
            PADDING => "pad_token",
            other => other,
        }
    }
}

/// Code of a token that is never produced from text.
pub(crate) const UNUSED: u32 = 5;

/// Spelling of a vocabulary's pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// `gpt2`: each byte is a printable character.
    ByteLevel,
    /// `gpt2` vocabulary with plain text instead of the byte alphabet, by mistake of the converter.
    Plain,
    /// `llama` and `t5`: UTF-8 with `▁` for a space, `<0xNN>` for single bytes.
    SentencePiece,
    /// `bert`: UTF-8 with marks for the place in a word.
    WordPiece,
}

/// Treatment of characters outside the vocabulary (`fuse_unk`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(any(feature = "text", feature = "safetensors")),
    allow(dead_code, reason = "only folders have them")
)]
pub(crate) enum RunsOfUnknown {
    /// One unknown token per run of such characters.
    OneToken,
    /// One unknown token per character.
    EachCharacter,
}

/// Unicode normalisation of text before it is split into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "text"), allow(dead_code, reason = "for text to ids"))]
pub(crate) enum Normalization {
    None,
    /// Canonical composition.
    Nfc,
}

/// Added-token options: the effect of a token on adjacent text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AddedTokenRule {
    /// `lstrip`: absorbs white space before the token.
    pub(crate) lstrip: bool,
    /// `rstrip`: absorbs white space after the token.
    pub(crate) rstrip: bool,
    /// `single_word`: no match inside a word.
    pub(crate) single_word: bool,
}

/// The tokenizer's metadata as plain values. Ids and codes are not validated.
#[derive(Clone, Debug, Default)]
pub(crate) struct VocabParts {
    pub(crate) model: String,
    pub(crate) pre: String,
    pub(crate) tokens: Strings,
    pub(crate) scores: Option<Vec<f32>>,
    pub(crate) types: Option<Vec<u32>>,
    pub(crate) bos: Option<i64>,
    /// Special tokens between BOS and a text.
    pub(crate) after_bos: Vec<i64>,
    pub(crate) eos: Option<i64>,
    pub(crate) eot: Option<i64>,
    pub(crate) eom: Option<i64>,
    pub(crate) unknown: Option<i64>,
    pub(crate) padding: Option<i64>,
    pub(crate) separator: Option<i64>,
    pub(crate) mask: Option<i64>,
    /// Further end-of-sequence tokens, if a file lists several.
    pub(crate) ends: Vec<i64>,
    pub(crate) add_bos: Option<bool>,
    /// Whether EOS follows a text in [`Frames`].
    pub(crate) add_eos: Option<bool>,
    /// Whether the separator is put between the texts of a pair, or after a text without EOS.
    pub(crate) add_separator: Option<bool>,
    /// Number of token types.
    pub(crate) token_types: Option<u32>,
    /// Special tokens around a text and around a pair; `None` if they follow from the ids above.
    pub(crate) frames: Option<Frames<i64>>,
    /// Present for WordPiece and Unigram.
    pub(crate) encoder: Option<EncoderParts>,
    /// Normalisation and splits, for WordPiece and Unigram.
    #[cfg(feature = "text")]
    pub(crate) pipeline: Pipeline,
    /// Treatment of spaces, for SentencePiece-style vocabularies.
    pub(crate) spaces: Option<Spaces>,
    /// Present for SentencePiece-style vocabularies with merge rules instead of scores.
    pub(crate) by_rules: Option<RunsOfUnknown>,
    /// Normalisation; `None` if the pre-tokenizer's name decides, as in GGUF.
    #[cfg_attr(not(feature = "text"), expect(dead_code, reason = "for text to ids"))]
    pub(crate) normalization: Option<Normalization>,
    /// Options of added tokens, where not default.
    #[cfg_attr(not(feature = "text"), expect(dead_code, reason = "for text to ids"))]
    pub(crate) added_tokens: Vec<(TokenId, AddedTokenRule)>,
    pub(crate) warnings: Warnings,
}

impl VocabParts {
    /// Reads the parts of a [`super::Vocab`].
    pub(crate) fn read(metadata: &Metadata) -> Result<VocabParts, TextError> {
        let model = metadata.str(key::MODEL)?.ok_or(TextError::MissingKey { key: key::MODEL })?;
        let tokens = metadata.strings(key::TOKENS)?.ok_or(TextError::MissingKey { key: key::TOKENS })?;
        let mut reader = Reader { metadata, tokens, warnings: Warnings::of(metadata.file()) };
        let eos = reader.ids(key::EOS);
        Ok(VocabParts {
            model: model.to_owned(),
            pre: metadata.str(key::PRE)?.unwrap_or_default().to_owned(),
            tokens: tokens.clone(),
            scores: reader.array(key::SCORES, "numbers", scores),
            types: reader.array(key::TYPES, "integers", types),
            bos: reader.ids(key::BOS).first().or(reader.ids(key::CLS).first()).copied(),
            after_bos: Vec::new(),
            eos: eos.first().copied(),
            eot: reader.ids(key::EOT).first().copied(),
            eom: reader.ids(key::EOM).first().copied(),
            unknown: reader.ids(key::UNKNOWN).first().copied(),
            padding: reader.ids(key::PADDING).first().copied(),
            separator: reader.ids(key::SEPARATOR).first().copied(),
            mask: reader.ids(key::MASK).first().copied(),
            ends: eos.get(1..).unwrap_or_default().to_vec(),
            add_bos: reader.flag(key::ADD_BOS),
            add_eos: reader.flag(key::ADD_EOS),
            add_separator: reader.flag(key::ADD_SEPARATOR),
            token_types: metadata.get(key::TOKEN_TYPES).and_then(integer).and_then(|n| u32::try_from(n).ok()),
            frames: None,
            encoder: EncoderParts::of_gguf(model),
            #[cfg(feature = "text")]
            pipeline: reader.pipeline(model)?,
            by_rules: None,
            spaces: reader.flag(key::ADD_SPACE_PREFIX).map(Spaces::before_each),
            normalization: None,
            added_tokens: if model == "llama" { added_tokens(metadata, tokens) } else { Vec::new() },
            warnings: reader.warnings,
        })
    }

    /// Parts of a vocabulary of ids without text. `ends` are the end-of-sequence tokens.
    pub(crate) fn of_numbers(count: usize, ends: impl IntoIterator<Item = impl Into<i64>>) -> VocabParts {
        let ends: Vec<i64> = ends.into_iter().map(Into::into).collect();
        VocabParts {
            model: "gpt2".to_owned(),
            pre: "gpt-2".to_owned(),
            tokens: std::iter::repeat_n("", count).collect(),
            types: Some(vec![UNUSED; count]),
            eos: ends.first().copied(),
            ends: ends.get(1..).unwrap_or_default().to_vec(),
            add_bos: Some(false),
            ..VocabParts::default()
        }
    }

    /// Spelling of the tokens, by the kind of tokenizer.
    pub(crate) fn spelling(&self) -> Result<Spelling, TextError> {
        match self.model.as_str() {
            "gpt2" => Ok(Spelling::ByteLevel),
            "llama" | "t5" => Ok(Spelling::SentencePiece),
            "bert" => Ok(Spelling::WordPiece),
            other => Err(TextError::UnknownModel { name: other.to_owned() }),
        }
    }
}

/// Options of added tokens, which GGUF has no key for. Phi 3's markers absorb the following white space: its
/// tokenizer sets `rstrip`, and llama.cpp detects the model by name.
fn added_tokens(metadata: &Metadata, tokens: &Strings) -> Vec<(TokenId, AddedTokenRule)> {
    if !metadata.str("general.architecture").is_ok_and(|name| name == Some("phi3")) {
        return Vec::new();
    }
    let is_marker = |piece: &str| {
        piece == "</s>" || (piece.starts_with("<|") && piece.ends_with("|>") && piece != "<|endoftext|>")
    };
    let rule = AddedTokenRule { rstrip: true, ..AddedTokenRule::default() };
    let markers = tokens.iter().enumerate().filter(|(_, piece)| is_marker(piece));
    markers.filter_map(|(index, _)| Some((TokenId(u32::try_from(index).ok()?), rule))).collect()
}

/// Reader that tolerates the type confusions of converters.
struct Reader<'m> {
    metadata: &'m Metadata,
    tokens: &'m Strings,
    warnings: Warnings,
}

impl Reader<'_> {
    /// Token ids of a key: a number of any width, a piece, or a list of either.
    fn ids(&mut self, key: &str) -> Vec<i64> {
        let Some(value) = self.metadata.get(key) else { return Vec::new() };
        let found = match value {
            Value::Array(Array::String(pieces)) => {
                pieces.iter().filter_map(|piece| self.find(piece)).collect()
            }
            Value::Array(array) => integers(array).unwrap_or_default(),
            Value::String(piece) => self.find(piece).into_iter().collect(),
            scalar => integer(scalar).into_iter().collect(),
        };
        let is_number = !matches!(value, Value::Array(_) | Value::String(_));
        if found.is_empty() {
            let found = value.type_name();
            self.warnings.add(format_args!("`{key}`: expected a token id, found {found}: left out"));
        } else if !is_number {
            let found_type = value.type_name();
            self.warnings.add(format_args!(
                "`{key}`: expected a token id, found {found_type}, which is taken for the ids {found:?}"
            ));
        }
        found
    }

    /// Normalisation and splits of the encoder tokenizers.
    #[cfg(feature = "text")]
    fn pipeline(&mut self, model: &str) -> Result<Pipeline, TextError> {
        match model {
            "bert" => {
                let lowercase = self.flag(key::LOWERCASE).unwrap_or(true);
                let strip_accents = self.flag(key::STRIP_ACCENTS).unwrap_or(lowercase);
                let options =
                    BertOptions { clean_text: true, handle_chinese_chars: true, strip_accents, lowercase };
                Pipeline::bert(options)
            }
            "t5" => {
                let charsmap = match self.metadata.get(key::CHARSMAP) {
                    Some(Value::Array(Array::U8(bytes))) => Some(bytes.clone()),
                    Some(Value::Array(Array::I8(bytes))) => {
                        Some(bytes.iter().map(|&byte| byte as u8).collect())
                    }
                    Some(other) => return Err(bad_charsmap(other.type_name())),
                    None => None,
                };
                let charsmap = charsmap.filter(|bytes| !bytes.is_empty());
                let charsmap =
                    charsmap.map(|bytes| Charsmap::new(&bytes).ok_or_else(|| bad_charsmap("other bytes")));
                let spaces = Spaces::before_each(self.flag(key::ADD_SPACE_PREFIX).unwrap_or(true));
                let joins_spaces = self.flag(key::JOIN_SPACES).unwrap_or(false);
                Ok(Pipeline::sentence_piece(charsmap.transpose()?, joins_spaces, spaces))
            }
            _ => Ok(Pipeline::default()),
        }
    }

    fn find(&self, piece: &str) -> Option<i64> {
        self.tokens.iter().position(|token| token == piece)?.try_into().ok()
    }

    fn array<T>(
        &mut self,
        key: &str,
        expected: &str,
        read: impl Fn(&Array) -> Option<Vec<T>>,
    ) -> Option<Vec<T>> {
        let value = self.metadata.get(key)?;
        let found = match value {
            Value::Array(array) => read(array),
            _ => None,
        };
        if found.is_none() {
            let found = value.type_name();
            self.warnings
                .add(format_args!("`{key}`: expected an array of {expected}, found {found}: left out"));
        }
        found
    }

    fn flag(&mut self, key: &str) -> Option<bool> {
        let value = self.metadata.get(key)?;
        let flag = match value {
            Value::Bool(flag) => Some(*flag),
            Value::String(text) => text.to_ascii_lowercase().parse().ok(),
            number => integer(number).and_then(|number| match number {
                0 => Some(false),
                1 => Some(true),
                _ => None,
            }),
        };
        if flag.is_none() {
            let found = value.type_name();
            self.warnings.add(format_args!("`{key}`: expected a boolean, found {found}: the default counts"));
        }
        flag
    }
}

#[cfg(feature = "text")]
fn bad_charsmap(found: &str) -> TextError {
    TextError::BadValue {
        key: key::CHARSMAP,
        expected: "the bytes of a double array and of its replacements".to_owned(),
        found: found.to_owned(),
    }
}

/// Integer of any type. Out-of-range values saturate and stay invalid.
fn integer(value: &Value) -> Option<i64> {
    Some(match *value {
        Value::U8(v) => v.into(),
        Value::I8(v) => v.into(),
        Value::U16(v) => v.into(),
        Value::I16(v) => v.into(),
        Value::U32(v) => v.into(),
        Value::I32(v) => v.into(),
        Value::U64(v) => i64::try_from(v).unwrap_or(i64::MAX),
        Value::I64(v) => v,
        Value::F32(v) if v.fract() == 0.0 => v as i64,
        Value::F64(v) if v.fract() == 0.0 => v as i64,
        _ => return None,
    })
}

fn integers(array: &Array) -> Option<Vec<i64>> {
    Some(match array {
        Array::U8(v) => v.iter().map(|&v| v.into()).collect(),
        Array::I8(v) => v.iter().map(|&v| v.into()).collect(),
        Array::U16(v) => v.iter().map(|&v| v.into()).collect(),
        Array::I16(v) => v.iter().map(|&v| v.into()).collect(),
        Array::U32(v) => v.iter().map(|&v| v.into()).collect(),
        Array::I32(v) => v.iter().map(|&v| v.into()).collect(),
        Array::U64(v) => v.iter().map(|&v| i64::try_from(v).unwrap_or(i64::MAX)).collect(),
        Array::I64(v) => v.clone(),
        // Casts truncate fractions and saturate out-of-range values.
        Array::F32(v) => v.iter().map(|&v| v as i64).collect(),
        Array::F64(v) => v.iter().map(|&v| v as i64).collect(),
        _ => return None,
    })
}

/// Codes of kinds. Values that do not fit u32 are no valid kind in any case.
fn types(array: &Array) -> Option<Vec<u32>> {
    match array {
        // The usual type, without an intermediate copy.
        Array::I32(codes) => {
            Some(codes.iter().map(|&code| u32::try_from(code).unwrap_or(u32::MAX)).collect())
        }
        other => {
            let codes = integers(other)?;
            Some(codes.into_iter().map(|code| u32::try_from(code).unwrap_or(u32::MAX)).collect())
        }
    }
}

fn scores(array: &Array) -> Option<Vec<f32>> {
    match array {
        Array::F32(scores) => Some(scores.clone()),
        Array::F64(scores) => Some(scores.iter().map(|&score| score as f32).collect()),
        other => Some(integers(other)?.into_iter().map(|score| score as f32).collect()),
    }
}
