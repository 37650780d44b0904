//! Normaliser and pre-tokenizer of WordPiece and Unigram in a `tokenizer.json`.

use regex::Regex;

use super::super::characters::Characters;
use super::super::charsmap::Charsmap;
use super::super::error::TextError;
use super::super::normalizer::{BertOptions, Form, Step};
use super::super::pipeline::{Pipeline, Split};
use super::super::spaces::{MARK, SpacePrefix, Spaces};
use super::step::{flat, kind};
use super::{base64, needed};
use crate::checkpoint::{Object, WeightsError};

/// Maximum length of a replacement pattern and of its replacement, in bytes.
const REPLACE_MAX: usize = 64;
/// Maximum number of steps. ALBERT has eight.
const STEPS_MAX: usize = 64;

/// Reads the normalisation steps and the splits.
pub(super) fn read(root: &Object<'_>) -> Result<Pipeline, WeightsError> {
    let mut pipeline = Pipeline::default();
    for step in flat(root, "normalizer", "normalizers")? {
        add_steps(&step, &mut pipeline.steps)?;
    }
    for step in flat(root, "pre_tokenizer", "pretokenizers")? {
        add_splits(&step, &mut pipeline.splits)?;
    }
    let steps = pipeline.steps.len() + pipeline.splits.len();
    if steps > STEPS_MAX {
        return Err(root.refuse("normalizer", format!("at most {STEPS_MAX} steps"), steps));
    }
    Ok(pipeline)
}

fn add_steps(step: &Object<'_>, steps: &mut Vec<Step>) -> Result<(), WeightsError> {
    let flag = |key: &str, default: bool| Ok::<_, WeightsError>(step.flag(key)?.unwrap_or(default));
    let built = |found: Result<Step, TextError>| {
        found.map_err(|error| step.refuse("type", "known characters", error))
    };
    steps.push(match kind(step)? {
        "BertNormalizer" => {
            let lowercase = flag("lowercase", true)?;
            let options = BertOptions {
                clean_text: flag("clean_text", true)?,
                handle_chinese_chars: flag("handle_chinese_chars", true)?,
                strip_accents: flag("strip_accents", lowercase)?,
                lowercase,
            };
            let bert = options.steps().map_err(|error| step.refuse("type", "known characters", error))?;
            steps.extend(bert);
            return Ok(());
        }
        "Lowercase" => Step::Lowercase,
        "StripAccents" => built(Characters::marks().map(Step::Drop))?,
        "NFC" => built(Step::form(Form::Nfc))?,
        "NFD" => built(Step::form(Form::Nfd))?,
        "NFKC" => built(Step::form(Form::Nfkc))?,
        "NFKD" => built(Step::form(Form::Nfkd))?,
        "Strip" => Step::Strip { left: flag("strip_left", true)?, right: flag("strip_right", true)? },
        "Prepend" => Step::Prepend(short(step, "prepend")?.into()),
        "Replace" => Step::Replace(pattern(&needed(step, "pattern")?)?, short(step, "content")?.into()),
        "Precompiled" => {
            let bytes = step.text("precompiled_charsmap")?.unwrap_or_default();
            let map = base64::decode(bytes).and_then(|bytes| Charsmap::new(&bytes));
            let expected = "a double array and its replacements in Base64";
            let map = map.ok_or_else(|| step.refuse("precompiled_charsmap", expected, "other bytes"))?;
            built(map.by_clusters().map(Step::Charsmap))?
        }
        other => {
            let expected =
                "a step of BERT or SentencePiece, a normal form, Lowercase, Strip, Prepend or Replace";
            return Err(step.refuse("type", expected, other));
        }
    });
    Ok(())
}

/// Text of a key, which bounds the growth of a text.
fn short<'j>(step: &Object<'j>, key: &str) -> Result<&'j str, WeightsError> {
    let text = step.text(key)?.ok_or_else(|| step.refuse(key, "a text", "no such key"))?;
    if text.len() > REPLACE_MAX {
        return Err(step.refuse(key, format!("at most {REPLACE_MAX} bytes"), text.len()));
    }
    Ok(text)
}

/// Pattern of a replacement: a text or an expression.
fn pattern(pattern: &Object<'_>) -> Result<Regex, WeightsError> {
    let (key, expression) = match pattern.get("String") {
        Some(_) => ("String", regex::escape(short(pattern, "String")?)),
        None => ("Regex", short(pattern, "Regex")?.to_owned()),
    };
    Regex::new(&expression).map_err(|error| pattern.refuse(key, "an expression without look-around", error))
}

fn add_splits(step: &Object<'_>, splits: &mut Vec<Split>) -> Result<(), WeightsError> {
    match kind(step)? {
        "BertPreTokenizer" => {
            let bert = Split::bert().map_err(|error| step.refuse("type", "known characters", error))?;
            splits.extend(bert);
        }
        "WhitespaceSplit" => splits.push(Split::WhiteSpace),
        "Metaspace" => splits.push(Split::Marks(metaspace(step)?)),
        other => {
            return Err(step.refuse("type", "BertPreTokenizer, WhitespaceSplit or Metaspace", other));
        }
    }
    Ok(())
}

/// Treatment of spaces of a Metaspace step.
fn metaspace(step: &Object<'_>) -> Result<Spaces, WeightsError> {
    let replacement = step.text("replacement")?.unwrap_or_default();
    if !replacement.chars().eq([MARK]) {
        return Err(step.refuse("replacement", format!("`{MARK}`"), format!("`{replacement}`")));
    }
    let old = if step.flag("add_prefix_space")?.unwrap_or(true) { "always" } else { "never" };
    let prefix = match step.text("prepend_scheme")?.unwrap_or(old) {
        "never" => SpacePrefix::Never,
        "always" => SpacePrefix::EachUnlessMarked,
        "first" => SpacePrefix::FirstUnlessMarked,
        other => return Err(step.refuse("prepend_scheme", "never, always or first", other)),
    };
    Ok(Spaces { prefix, are_cut: step.flag("split")?.unwrap_or(true) })
}
