//! Pre-tokenizers: regular expressions that split text into words before byte-pair merging, one set per
//! tokenizer family.
//!
//! The public definitions end in `\s+(?!\S)|\s+`: a run of white space leaves its last character to the next
//! word. That look-ahead is implemented by hand, so that the expressions need no backtracking and every text
//! takes linear time. The table of names and rules is in `rules.rs`.

#[cfg(feature = "safetensors")]
mod meaning;
mod rules;

use super::error::TextError;
#[cfg(feature = "safetensors")]
use meaning::Meaning;
use regex::Regex;
use rules::{RULES, Rule, Spaces, Step};

/// Whether a word that is a token is taken without merging (`ignore_merges`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WholeWords {
    Taken,
    Merged,
}

/// Splits text into the words within which bytes are merged.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    /// Splitting steps. Each splits the words of the previous one.
    cuts: Vec<Cut>,
    whole_words: WholeWords,
}

/// A splitting step. Matches are words, and so is the text between them.
#[derive(Debug)]
struct Cut {
    pattern: Regex,
    spaces: Spaces,
}

impl PreTokenizer {
    /// The pre-tokenizer with this name.
    pub(crate) fn named(name: &str) -> Result<PreTokenizer, TextError> {
        let rule = RULES.iter().find(|rule| rule.names.contains(&name)).ok_or_else(|| unknown(name))?;
        let cuts = rule.steps.iter().map(Cut::new).collect::<Result<_, _>>()?;
        Ok(PreTokenizer { cuts, whole_words: rule.whole_words })
    }

    /// Name of the rule with these expressions, applied in order, as `tokenizer.json` has them; `None` if
    /// there is no such rule. Expressions are compared by meaning.
    #[cfg(feature = "safetensors")]
    pub(crate) fn name_of(expressions: &[String], whole_words: WholeWords) -> Option<&'static str> {
        let wanted = expressions.iter().map(|expression| Meaning::of_expression(expression));
        let wanted: Vec<Meaning> = wanted.collect::<Option<_>>()?;
        let same = |rule: &&Rule| {
            rule.whole_words == whole_words
                && rule.steps.len() == wanted.len()
                && rule
                    .steps
                    .iter()
                    .zip(&wanted)
                    .all(|(step, wanted)| Meaning::of_step(step).as_ref() == Some(wanted))
        };
        RULES.iter().find(same).and_then(|rule| rule.names.first()).copied()
    }

    /// Whether words that are tokens are taken without merging.
    pub(crate) fn whole_words(&self) -> WholeWords {
        self.whole_words
    }

    /// Passes the words of `text` to `each`, in order; their concatenation is the text. Stops at an error of
    /// `each`.
    pub(crate) fn try_words<'t, E>(
        &self,
        text: &'t str,
        each: &mut dyn FnMut(&'t str) -> Result<(), E>,
    ) -> Result<(), E> {
        cut(&self.cuts, text, each)
    }
}

fn cut<'t, E>(cuts: &[Cut], text: &'t str, each: &mut dyn FnMut(&'t str) -> Result<(), E>) -> Result<(), E> {
    if text.is_empty() {
        return Ok(());
    }
    let Some((first, rest)) = cuts.split_first() else { return each(text) };
    let mut start = 0;
    while let Some(found) = first.pattern.find_at(text, start) {
        let kept = first.kept(found.as_str(), found.end() == text.len());
        let end = found.start() + kept;
        cut(rest, text.get(start..found.start()).unwrap_or_default(), each)?;
        cut(rest, text.get(found.start()..end).unwrap_or_default(), each)?;
        start = end;
    }
    cut(rest, text.get(start..).unwrap_or_default(), each)
}

impl Cut {
    fn new(step: &Step) -> Result<Cut, TextError> {
        let pattern = Regex::new(step.pattern).map_err(|error| TextError::Tokenizer(error.to_string()))?;
        Ok(Cut { pattern, spaces: step.spaces })
    }

    /// Length of the word in a match: `\s+(?!\S)` leaves the last character to the next word.
    fn kept(&self, found: &str, at_end: bool) -> usize {
        let Some(last) = found.chars().next_back() else { return found.len() };
        let own_word = match self.spaces {
            Spaces::Kept => true,
            Spaces::LastToWord => false,
            Spaces::LastToWordButLineEnds => matches!(last, '\r' | '\n'),
        };
        if at_end || !last.is_whitespace() || own_word || found.len() == last.len_utf8() {
            found.len()
        } else {
            found.len() - last.len_utf8()
        }
    }
}

/// GPT-2's expression, as in `tokenizer.json`.
#[cfg(feature = "safetensors")]
pub(crate) const GPT2_WORDS: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

fn unknown(name: &str) -> TextError {
    let supported: Vec<&str> = RULES.iter().flat_map(|rule: &Rule| rule.names).copied().collect();
    TextError::UnknownPreTokenizer { name: name.to_owned(), supported: supported.join(", ") }
}

#[cfg(test)]
mod tests;
