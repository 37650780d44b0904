//! Kind of tokenizer in a `tokenizer.json`: byte-level BPE or SentencePiece-style, with normalisation and
//! pre-tokenisation.

use super::super::parts::{Normalization, RunsOfUnknown};
#[cfg(feature = "text")]
use super::super::pretokenize::{GPT2_WORDS, PreTokenizer, WholeWords};
use super::super::spaces::{MARK, SpacePrefix, Spaces};
use super::super::warnings::Warnings;
use super::needed;
use crate::checkpoint::{Object, WeightsError};

/// Maximum number of special tokens at the start of a text. Whisper has two.
const LEADING_MAX: usize = 8;

/// Configuration of a BPE tokenizer.
pub(super) struct Scheme<'j> {
    kind: Kind,
    runs: RunsOfUnknown,
    /// Unknown token, for text outside the vocabulary.
    pub unknown: Option<&'j str>,
    /// Special tokens at the start of a text.
    pub leading: Vec<&'j str>,
}

/// Spelling of pieces.
enum Kind {
    /// GPT-2's byte alphabet, with the named pre-tokenizer.
    ByteLevel { pre: &'static str, normalization: Normalization },
    /// Plain text with a mark for spaces.
    SentencePiece(Spaces),
}

impl<'j> Scheme<'j> {
    pub fn read(root: &Object<'j>, warnings: &mut Warnings) -> Result<Scheme<'j>, WeightsError> {
        let model = needed(root, "model")?;
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
        Ok(Scheme { kind, runs, unknown: model.text("unk_token")?, leading: leading(root, warnings)? })
    }

    /// Name of this kind in GGUF (`tokenizer.ggml.model`).
    pub fn model(&self) -> &'static str {
        if self.is_byte_level() { "gpt2" } else { "llama" }
    }

    pub fn is_byte_level(&self) -> bool {
        matches!(self.kind, Kind::ByteLevel { .. })
    }

    /// Name of the pre-tokenizer; empty for SentencePiece-style tokenizers.
    pub fn pre(&self) -> &'static str {
        match self.kind {
            Kind::ByteLevel { pre, .. } => pre,
            Kind::SentencePiece(_) => "",
        }
    }

    /// Normalisation before bytes.
    pub fn normalization(&self) -> Normalization {
        match self.kind {
            Kind::ByteLevel { normalization, .. } => normalization,
            Kind::SentencePiece(_) => Normalization::None,
        }
    }

    /// Treatment of unknown characters, for SentencePiece-style tokenizers.
    pub fn by_rules(&self) -> Option<RunsOfUnknown> {
        (!self.is_byte_level()).then_some(self.runs)
    }

    /// Treatment of spaces, for SentencePiece-style tokenizers.
    pub fn spaces(&self) -> Option<Spaces> {
        match self.kind {
            Kind::ByteLevel { .. } => None,
            Kind::SentencePiece(spaces) => Some(spaces),
        }
    }
}

/// Rejects other models than BPE, and unsupported merge options.
fn check_model(model: &Object<'_>) -> Result<(), WeightsError> {
    if let Some(other) = model.text("type")?.filter(|&kind| kind != "BPE") {
        return Err(model.refuse("type", "BPE", other));
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

/// Steps under a key: none, one, or those of a sequence.
fn flat<'j>(root: &Object<'j>, key: &str, list: &str) -> Result<Vec<Object<'j>>, WeightsError> {
    let Some(step) = root.object(key)? else { return Ok(Vec::new()) };
    if kind(&step)? != "Sequence" {
        return Ok(vec![step]);
    }
    step.objects(list)
}

fn kind<'j>(step: &Object<'j>) -> Result<&'j str, WeightsError> {
    step.text("type")?.ok_or_else(|| step.refuse("type", "a type", "no such key"))
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

/// Special tokens at the start of a text. Those at the end are dropped, because an answer continues the text.
fn leading<'j>(root: &Object<'j>, warnings: &mut Warnings) -> Result<Vec<&'j str>, WeightsError> {
    let (mut leading, mut ends_with_special) = (Vec::new(), false);
    for step in flat(root, "post_processor", "processors")? {
        match kind(&step)? {
            // Affects only the offsets of tokens.
            "ByteLevel" => {}
            "TemplateProcessing" => {
                let template = step.objects("single")?;
                let special = |part: &Object<'j>| part.object("SpecialToken");
                let specials = template.iter().map(special).collect::<Result<Vec<_>, _>>()?;
                let text = specials.iter().position(Option::is_none).unwrap_or(specials.len());
                let (before, after) = specials.split_at(text);
                if before.len() > LEADING_MAX {
                    let expected = format!("at most {LEADING_MAX} special tokens before the text");
                    return Err(step.refuse("single", expected, before.len()));
                }
                let names = before.iter().flatten().map(|token| token.text("id"));
                leading = names.filter_map(Result::transpose).collect::<Result<_, _>>()?;
                ends_with_special |= after.iter().any(Option::is_some);
            }
            other => return Err(step.refuse("type", "ByteLevel or TemplateProcessing", other)),
        }
    }
    if ends_with_special {
        warnings.add("the tokenizer puts a special token behind a text: it is left out");
    }
    Ok(leading)
}
