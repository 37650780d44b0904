//! Normalisation steps of encoder tokenizers, in the order of a `tokenizer.json`.

use regex::{NoExpand, Regex};
use unicode_normalization::UnicodeNormalization;

use super::characters::{Characters, is_chinese};
use super::charsmap::Charsmap;
use super::error::TextError;

/// A normalisation step.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "safetensors"), allow(dead_code, reason = "only folders have the others"))]
pub(crate) enum Step {
    /// Drops these characters and replaces white space by spaces.
    Clean(Characters),
    /// Puts spaces around Chinese characters.
    SpaceChinese,
    /// Drops these characters.
    Drop(Characters),
    Lowercase,
    Form(Form, Characters),
    Strip {
        left: bool,
        right: bool,
    },
    Replace(Regex, Box<str>),
    /// Puts a text before a text that is not empty.
    Prepend(Box<str>),
    Charsmap(Charsmap),
    /// Drops white space at both ends and replaces runs of spaces by one.
    JoinSpaces,
}

/// Unicode normal forms. Characters of the set are left as they are.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "safetensors"), allow(dead_code, reason = "only folders have the others"))]
pub(crate) enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

/// Options of BERT's normaliser.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BertOptions {
    pub(crate) clean_text: bool,
    pub(crate) handle_chinese_chars: bool,
    pub(crate) strip_accents: bool,
    pub(crate) lowercase: bool,
}

impl BertOptions {
    /// The steps of BERT's normaliser.
    pub(crate) fn steps(self) -> Result<Vec<Step>, TextError> {
        let mut steps = Vec::new();
        if self.clean_text {
            steps.push(Step::Clean(Characters::dropped()?));
        }
        if self.handle_chinese_chars {
            steps.push(Step::SpaceChinese);
        }
        if self.strip_accents {
            steps.push(Step::form(Form::Nfd)?);
            steps.push(Step::Drop(Characters::accents()?));
        }
        if self.lowercase {
            steps.push(Step::Lowercase);
        }
        Ok(steps)
    }
}

impl Step {
    /// A normal form, by the tables of Hugging Face.
    pub(crate) fn form(form: Form) -> Result<Step, TextError> {
        Ok(Step::Form(form, Characters::later()?))
    }

    /// The text after this step.
    pub(crate) fn apply(&self, text: &str) -> String {
        match self {
            Step::Clean(dropped) => {
                let kept = text.chars().filter(|&c| !dropped.contain(c));
                kept.map(|c| if c.is_whitespace() { ' ' } else { c }).collect()
            }
            Step::SpaceChinese => {
                let mut out = String::with_capacity(text.len());
                for c in text.chars() {
                    let around = is_chinese(c).then_some(' ');
                    out.extend(around.into_iter().chain([c]).chain(around));
                }
                out
            }
            Step::Drop(dropped) => text.chars().filter(|&c| c.is_ascii() || !dropped.contain(c)).collect(),
            Step::Lowercase => text.chars().flat_map(char::to_lowercase).collect(),
            Step::Form(form, later) => form.apply(text, later),
            Step::Strip { left, right } => {
                let text = if *left { text.trim_start() } else { text };
                (if *right { text.trim_end() } else { text }).to_owned()
            }
            Step::Replace(pattern, content) => pattern.replace_all(text, NoExpand(content)).into_owned(),
            Step::Prepend(prefix) if !text.is_empty() => format!("{prefix}{text}"),
            Step::Prepend(_) => String::new(),
            Step::Charsmap(map) => map.apply(text),
            Step::JoinSpaces => {
                let words = text.split(' ').filter(|word| !word.is_empty());
                words.collect::<Vec<_>>().join(" ")
            }
        }
    }
}

impl Form {
    fn apply(self, text: &str, later: &Characters) -> String {
        if text.is_ascii() {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len());
        let is_later = |c: char| !c.is_ascii() && later.contain(c);
        // Later characters end a run of marks, as characters without a combining class do.
        for run in text.split_inclusive(is_later) {
            let last = run.chars().next_back().filter(|&c| is_later(c));
            let known = run.strip_suffix(|c| Some(c) == last).unwrap_or(run);
            match self {
                Form::Nfc => out.extend(known.nfc()),
                Form::Nfd => out.extend(known.nfd()),
                Form::Nfkc => out.extend(known.nfkc()),
                Form::Nfkd => out.extend(known.nfkd()),
            }
            out.extend(last);
        }
        out
    }
}
