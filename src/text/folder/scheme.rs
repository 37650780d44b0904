//! Kind of tokenizer in a `tokenizer.json`: byte-level BPE or SentencePiece-style, with normalisation and
//! pre-tokenisation, or the kind of an encoder (`encoder`).

use super::super::encoder_parts::EncoderParts;
use super::super::frames::Frames;
use super::super::parts::{Normalization, RunsOfUnknown};
#[cfg(feature = "text")]
use super::super::pipeline::Pipeline;
#[cfg(feature = "text")]
use super::super::pretokenize::{GPT2_WORDS, PreTokenizer, WholeWords};
use super::super::spaces::{MARK, SpacePrefix, Spaces};
use super::super::warnings::Warnings;
use super::encoder::EncoderKind;
use super::needed;
use super::post_processor::PostProcessor;
use super::step::{flat, kind};
use crate::checkpoint::{Object, WeightsError};

/// Configuration of a tokenizer.
pub(super) struct Scheme<'j> {
    kind: Kind,
    runs: RunsOfUnknown,
    /// Unknown token, for text outside the vocabulary.
    pub unknown: Option<&'j str>,
    /// Special tokens at the start of a text.
    pub leading: Vec<&'j str>,
    /// Special tokens around a text and around a pair.
    pub frames: Option<Frames<&'j str>>,
}

/// Spelling of pieces.
enum Kind {
    /// GPT-2's byte alphabet, with the named pre-tokenizer.
    ByteLevel { pre: &'static str, normalization: Normalization },
    /// Plain text with a mark for spaces.
    SentencePiece(Spaces),
    /// WordPiece or Unigram.
    Encoder(EncoderKind),
}

impl<'j> Scheme<'j> {
    pub fn read(root: &Object<'j>, warnings: &mut Warnings) -> Result<Scheme<'j>, WeightsError> {
        let model = needed(root, "model")?;
        let post = PostProcessor::read(root)?;
        if let Some(encoder) = EncoderKind::read(root, &model)? {
            let unknown = encoder.unknown(&model)?;
            let (leading, frames) = (post.leading, post.frames.or_else(|| Some(Frames::plain())));
            return Ok(Scheme {
                kind: Kind::Encoder(encoder),
                runs: RunsOfUnknown::OneToken,
                unknown,
                leading,
                frames,
            });
        }
        check_model(&model)?;
        let normalizers = flat(root, "normalizer", "normalizers")?;
        let cutters = flat(root, "pre_tokenizer", "pretokenizers")?;
        let is_byte_level = cutters.iter().any(|cutter| kind(cutter).is_ok_and(|kind| kind == "ByteLevel"));
        let whole = model.flag("ignore_merges")?.unwrap_or(false);
        let kind = if is_byte_level {
            byte_level(root, &normalizers, &cutters, whole)?
        } else if model.flag("byte_fallback")? == Some(true) {
            if whole {
                return Err(model.refuse("ignore_merges", "false with byte_fallback", true));
            }
            sentence_piece(&normalizers, &cutters)?
        } else {
            return Err(model.refuse("byte_fallback", "true where no pre-tokenizer is ByteLevel", "false"));
        };
        let runs = match model.flag("fuse_unk")? {
            Some(true) => RunsOfUnknown::OneToken,
            _ => RunsOfUnknown::EachCharacter,
        };
        if post.ends_with_special {
            warnings.add("the tokenizer puts a special token behind a text: it is left out");
        }
        let (leading, frames) = (post.leading, post.frames);
        Ok(Scheme { kind, runs, unknown: model.text("unk_token")?, leading, frames })
    }

    /// Name of this kind in GGUF (`tokenizer.ggml.model`).
    pub fn model(&self) -> &'static str {
        match &self.kind {
            Kind::ByteLevel { .. } => "gpt2",
            Kind::SentencePiece(_) => "llama",
            Kind::Encoder(encoder) => encoder.model(),
        }
    }

    /// Name of the pre-tokenizer; empty for SentencePiece-style tokenizers.
    pub fn pre(&self) -> &'static str {
        match self.kind {
            Kind::ByteLevel { pre, .. } => pre,
            Kind::SentencePiece(_) | Kind::Encoder(_) => "",
        }
    }

    /// Normalisation before bytes.
    pub fn normalization(&self) -> Normalization {
        match self.kind {
            Kind::ByteLevel { normalization, .. } => normalization,
            Kind::SentencePiece(_) | Kind::Encoder(_) => Normalization::None,
        }
    }

    /// Treatment of unknown characters, for SentencePiece-style tokenizers.
    pub fn by_rules(&self) -> Option<RunsOfUnknown> {
        matches!(self.kind, Kind::SentencePiece(_)).then_some(self.runs)
    }

    /// Treatment of spaces, for SentencePiece-style tokenizers.
    pub fn spaces(&self) -> Option<Spaces> {
        match &self.kind {
            Kind::ByteLevel { .. } => None,
            Kind::SentencePiece(spaces) => Some(*spaces),
            Kind::Encoder(encoder) => encoder.spaces(),
        }
    }

    /// Whether the model has merge rules.
    pub fn has_merges(&self) -> bool {
        !matches!(self.kind, Kind::Encoder(_))
    }

    /// Whether pieces like `<0x41>` are bytes.
    pub fn has_bytes(&self) -> bool {
        match &self.kind {
            Kind::ByteLevel { .. } => false,
            Kind::SentencePiece(_) => true,
            Kind::Encoder(encoder) => encoder.byte_fallback(),
        }
    }

    /// Parameters of WordPiece or Unigram. `scores` are those of the pieces.
    pub fn encoder(&self, scores: Vec<f64>) -> Option<EncoderParts> {
        match &self.kind {
            Kind::Encoder(encoder) => Some(encoder.parts(scores)),
            _ => None,
        }
    }

    /// Normalisation and splits of WordPiece and Unigram.
    #[cfg(feature = "text")]
    pub fn pipeline(&self) -> Pipeline {
        match &self.kind {
            Kind::Encoder(encoder) => encoder.pipeline.clone(),
            _ => Pipeline::default(),
        }
    }
}

/// Rejects other models, and unsupported merge options.
fn check_model(model: &Object<'_>) -> Result<(), WeightsError> {
    if let Some(other) = model.text("type")?.filter(|&kind| kind != "BPE") {
        return Err(model.refuse("type", "BPE, WordPiece or Unigram", other));
    }
    if let Some(dropout) = model.number("dropout")?.filter(|&share| share != 0.0) {
        return Err(model.refuse("dropout", "0", dropout));
    }
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if let Some(text) = model.text(key)?.filter(|text| !text.is_empty()) {
            return Err(model.refuse(key, "an empty text", text));
        }
    }
    Ok(())
}

#[cfg(not(feature = "text"))]
fn byte_level(_: &Object<'_>, _: &[Object<'_>], _: &[Object<'_>], _: bool) -> Result<Kind, WeightsError> {
    // Only the tokenizer needs the pre-tokenizer, and this build has none.
    Ok(Kind::ByteLevel { pre: "gpt-2", normalization: Normalization::None })
}

#[cfg(feature = "text")]
fn byte_level(
    root: &Object<'_>,
    normalizers: &[Object<'_>],
    cutters: &[Object<'_>],
    whole: bool,
) -> Result<Kind, WeightsError> {
    for step in normalizers {
        if kind(step)? != "NFC" {
            return Err(step.refuse("type", "NFC before bytes", kind(step)?));
        }
    }
    let normalization = if normalizers.is_empty() { Normalization::None } else { Normalization::Nfc };
    let mut expressions = Vec::new();
    for step in cutters {
        expressions.extend(expression(step)?);
    }
    let whole_words = if whole { WholeWords::Taken } else { WholeWords::Merged };
    let pre = PreTokenizer::name_of(&expressions, whole_words).ok_or_else(|| {
        let merged = if whole { " with ignore_merges" } else { "" };
        root.refuse(
            "pre_tokenizer",
            "a rule that is known",
            format!("{}{merged}", expressions.join(" then ")),
        )
    })?;
    Ok(Kind::ByteLevel { pre, normalization })
}

/// Regular expression of a pre-tokenisation step; `None` if the step does not split.
#[cfg(feature = "text")]
fn expression(step: &Object<'_>) -> Result<Option<String>, WeightsError> {
    match kind(step)? {
        "ByteLevel" if step.flag("add_prefix_space")? == Some(true) => {
            Err(step.refuse("add_prefix_space", "false", true))
        }
        "ByteLevel" => Ok(step.flag("use_regex")?.unwrap_or(true).then(|| GPT2_WORDS.to_owned())),
        "Digits" => match step.flag("individual_digits")? {
            Some(true) => Ok(Some(r"\p{N}".to_owned())),
            _ => Err(step.refuse("individual_digits", "true", false)),
        },
        "Split" => {
            let (behavior, invert) = (step.text("behavior")?.unwrap_or_default(), step.flag("invert")?);
            // Text between matches is a word, too. `Removed` with `invert` would drop it, but such
            // expressions match all text.
            let isolates =
                matches!((behavior, invert.unwrap_or(false)), ("Isolated", false) | ("Removed", true));
            if !isolates {
                return Err(step.refuse("behavior", "Isolated", format!("{behavior}, invert {invert:?}")));
            }
            let pattern = needed(step, "pattern")?;
            let found = pattern.text("Regex")?;
            let found = found.ok_or_else(|| pattern.refuse("Regex", "an expression", "no such key"))?;
            Ok(Some(found.to_owned()))
        }
        other => Err(step.refuse("type", "ByteLevel, Digits or Split", other)),
    }
}

fn sentence_piece(normalizers: &[Object<'_>], cutters: &[Object<'_>]) -> Result<Kind, WeightsError> {
    let (mut spaces, mut marks) = (Spaces::default(), false);
    for step in normalizers {
        match kind(step)? {
            "Prepend" if is_mark(step, "prepend")? => spaces.prefix = SpacePrefix::Each,
            "Replace"
                if needed(step, "pattern")?.text("String")? == Some(" ") && is_mark(step, "content")? =>
            {
                marks = true;
            }
            other => {
                return Err(step.refuse("type", "a space mark that is prepended, or replaces spaces", other));
            }
        }
    }
    for step in cutters {
        match kind(step)? {
            "Metaspace" if is_mark(step, "replacement")? => {
                marks = true;
                add_metaspace(step, &mut spaces)?;
            }
            // Spaces have been replaced by marks, so this step splits nothing.
            "Split" if marks && needed(step, "pattern")?.text("String")? == Some(" ") => {}
            other => return Err(step.refuse("type", "Metaspace", other)),
        }
    }
    match (marks, normalizers.first().or(cutters.first())) {
        (false, Some(step)) => Err(step.refuse("type", "a step that replaces spaces by marks", kind(step)?)),
        _ => Ok(Kind::SentencePiece(spaces)),
    }
}

/// Whether the value of a key is the space mark.
fn is_mark(step: &Object<'_>, key: &str) -> Result<bool, WeightsError> {
    Ok(step.text(key)?.is_some_and(|text| text.chars().eq([MARK])))
}

/// Applies a Metaspace step. An unconditional prefix from the normaliser takes precedence.
fn add_metaspace(step: &Object<'_>, spaces: &mut Spaces) -> Result<(), WeightsError> {
    let old = if step.flag("add_prefix_space")?.unwrap_or(true) { "always" } else { "never" };
    let prefix = match step.text("prepend_scheme")?.unwrap_or(old) {
        "never" => SpacePrefix::Never,
        "always" => SpacePrefix::EachUnlessMarked,
        "first" => SpacePrefix::FirstUnlessMarked,
        other => return Err(step.refuse("prepend_scheme", "never, always or first", other)),
    };
    if spaces.prefix == SpacePrefix::Never {
        spaces.prefix = prefix;
    }
    spaces.are_cut |= step.flag("split")?.unwrap_or(true);
    Ok(())
}
