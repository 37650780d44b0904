//! Special tokens around a text and around a pair, from the post-processor of a `tokenizer.json`.

use super::super::frames::{FrameTokens, Frames, Part, What};
use super::step::{flat, kind};
use crate::checkpoint::{Object, WeightsError};

/// Maximum number of special tokens at the start of a text. Whisper has two.
const LEADING_MAX: usize = 8;
/// Maximum number of parts of a template.
const PARTS_MAX: usize = 64;

/// Special tokens by their texts.
#[derive(Default)]
pub(super) struct PostProcessor<'j> {
    /// Special tokens at the start of a text.
    pub leading: Vec<&'j str>,
    /// Whether a special token follows a text.
    pub ends_with_special: bool,
    /// Special tokens around a text and around a pair; `None` if the document has no template.
    pub frames: Option<Frames<&'j str>>,
}

impl<'j> PostProcessor<'j> {
    pub fn read(root: &Object<'j>) -> Result<PostProcessor<'j>, WeightsError> {
        let mut post = PostProcessor::default();
        for step in flat(root, "post_processor", "processors")? {
            post.frames = match kind(&step)? {
                // Affects only the offsets of tokens.
                "ByteLevel" => continue,
                "TemplateProcessing" => Some(template(&step)?),
                "BertProcessing" => Some(around(&step, 1, None)?),
                "RobertaProcessing" => Some(around(&step, 0, Some("sep"))?),
                other => {
                    let expected = "ByteLevel, TemplateProcessing, BertProcessing or RobertaProcessing";
                    return Err(step.refuse("type", expected, other));
                }
            };
        }
        let single = post.frames.as_ref().map_or(&[][..], |frames| &frames.single);
        let special = |part: &Part<&'j str>| match part.what {
            What::Special(name) => Some(name),
            What::First | What::Second => None,
        };
        post.leading = single.iter().map_while(special).collect();
        post.ends_with_special = single.iter().skip(post.leading.len()).any(|part| special(part).is_some());
        if post.leading.len() > LEADING_MAX {
            let expected = format!("at most {LEADING_MAX} special tokens before the text");
            return Err(root.refuse("post_processor.single", expected, post.leading.len()));
        }
        Ok(post)
    }
}

/// Frames of a template.
fn template<'j>(step: &Object<'j>) -> Result<Frames<&'j str>, WeightsError> {
    let plain = Frames::plain();
    let single = parts(step, "single")?.unwrap_or(plain.single);
    let pair = parts(step, "pair")?.unwrap_or(plain.pair);
    for (key, parts) in [("single", &single), ("pair", &pair)] {
        let count = |text| parts.iter().filter(|part| part.what == text).count();
        if count(What::First) > 1 || count(What::Second) > 1 {
            return Err(step.refuse(key, "each text at most once", "a text twice"));
        }
    }
    Ok(Frames { single, pair })
}

fn parts<'j>(step: &Object<'j>, key: &str) -> Result<Option<Vec<Part<&'j str>>>, WeightsError> {
    let listed = step.objects(key)?;
    if listed.is_empty() {
        return Ok(None);
    }
    if listed.len() > PARTS_MAX {
        return Err(step.refuse(key, format!("at most {PARTS_MAX} parts"), listed.len()));
    }
    let mut parts = Vec::with_capacity(listed.len());
    for part in listed {
        let (token, text) = (part.object("SpecialToken")?, part.object("Sequence")?);
        let described = token.as_ref().or(text.as_ref());
        let described = described.ok_or_else(|| part.refuse("Sequence", "an object", "no such key"))?;
        let name = described.text("id")?.unwrap_or_default();
        let what = match (token.is_some(), name) {
            (true, name) => What::Special(name),
            (false, "A") => What::First,
            (false, "B") => What::Second,
            (false, other) => return Err(described.refuse("id", "A or B", other)),
        };
        let kind = described.whole("type_id")?.unwrap_or(0);
        let kind = u32::try_from(kind).map_err(|_| described.refuse("type_id", "a token type", kind))?;
        parts.push(Part { what, kind });
    }
    Ok(Some(parts))
}

/// Frames of a first and a last token. `between` is the key of a further token between the texts of a pair.
fn around<'j>(
    step: &Object<'j>,
    second_kind: u32,
    between: Option<&str>,
) -> Result<Frames<&'j str>, WeightsError> {
    let token = |key: &str| {
        let named = step.list(key)?.and_then(|pair| pair.first()?.as_str());
        named.ok_or_else(|| step.refuse(key, "a token and its id", "no such pair"))
    };
    Ok(Frames::of_tokens(&FrameTokens {
        leading: vec![token("cls")?],
        end: Some(token("sep")?),
        separator: between.map(token).transpose()?,
        second_kind,
    }))
}
