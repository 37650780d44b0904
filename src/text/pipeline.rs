//! [`Pipeline`]: from plain text to the words that WordPiece or Unigram segment.

use std::borrow::Cow;

use super::characters::Characters;
use super::charsmap::Charsmap;
use super::error::TextError;
use super::normalizer::{BertOptions, Step};
use super::spaces::Spaces;

/// Normalisation steps, then splits of the whole into words.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pipeline {
    pub(crate) steps: Vec<Step>,
    pub(crate) splits: Vec<Split>,
}

/// A step that splits text.
#[derive(Clone, Debug)]
pub(crate) enum Split {
    /// At white space, which is dropped.
    WhiteSpace,
    /// Each of these characters is a word.
    Isolated(Characters),
    /// Spaces become marks. The text is split before marks, or not at all.
    Marks(Spaces),
}

/// Bound of the growth of a text by its normalisation. U+FDFA grows to eleven times its length in NFKC.
const GROWTH_MAX: usize = 128;

/// Consumer of words.
type Each<'e> = dyn FnMut(&str) -> Result<(), TextError> + 'e;

impl Pipeline {
    /// BERT's normaliser and pre-tokenizer.
    pub(crate) fn bert(options: BertOptions) -> Result<Pipeline, TextError> {
        Ok(Pipeline { steps: options.steps()?, splits: Split::bert()? })
    }

    /// SentencePiece's normaliser.
    pub(crate) fn sentence_piece(charsmap: Option<Charsmap>, joins_spaces: bool, spaces: Spaces) -> Pipeline {
        let steps = charsmap.map(Step::Charsmap).into_iter().chain(joins_spaces.then_some(Step::JoinSpaces));
        Pipeline { steps: steps.collect(), splits: vec![Split::Marks(spaces)] }
    }

    /// Passes each word of plain text to `each`. `start` is the byte offset of the plain text in the whole
    /// text.
    pub(crate) fn words(&self, plain: &str, start: usize, each: &mut Each<'_>) -> Result<(), TextError> {
        let mut text = Cow::Borrowed(plain);
        for step in &self.steps {
            text = Cow::Owned(step.apply(&text));
            if text.len() > plain.len().saturating_mul(GROWTH_MAX) {
                let found = text.len();
                return Err(TextError::Tokenizer(format!(
                    "expected a normalised text of at most {GROWTH_MAX} times the length, found {found} bytes of {}",
                    plain.len()
                )));
            }
        }
        split(&self.splits, &text, start, each)
    }

    /// Treatment of spaces, if they become marks.
    #[cfg_attr(not(feature = "safetensors"), allow(dead_code, reason = "only folders have it"))]
    pub(crate) fn spaces(&self) -> Option<Spaces> {
        self.splits.iter().find_map(|split| match split {
            Split::Marks(spaces) => Some(*spaces),
            _ => None,
        })
    }
}

impl Split {
    /// BERT's pre-tokenizer.
    pub(crate) fn bert() -> Result<Vec<Split>, TextError> {
        Ok(vec![Split::WhiteSpace, Split::Isolated(Characters::punctuation()?)])
    }
}

/// Applies the splits in order. `start` is the byte offset of `text`.
fn split(splits: &[Split], text: &str, start: usize, each: &mut Each<'_>) -> Result<(), TextError> {
    if text.is_empty() {
        return Ok(());
    }
    let Some((first, rest)) = splits.split_first() else { return each(text) };
    match first {
        Split::WhiteSpace => {
            let mut at = start;
            text.split_inclusive(char::is_whitespace).try_for_each(|part| {
                let word = part.strip_suffix(char::is_whitespace).unwrap_or(part);
                split(rest, word, at, each)?;
                at += part.len();
                Ok(())
            })
        }
        Split::Isolated(marks) => {
            let mut at = start;
            text.split_inclusive(|c| marks.contain(c)).try_for_each(|part| {
                let word = part.strip_suffix(|c| marks.contain(c)).unwrap_or(part);
                split(rest, word, at, each)?;
                let mark = part.get(word.len()..).unwrap_or_default();
                split(rest, mark, at + word.len(), each)?;
                at += part.len();
                Ok(())
            })
        }
        Split::Marks(spaces) => {
            let marked = spaces.marked(text, start);
            spaces.parts(&marked).try_for_each(|part| split(rest, part, start, each))
        }
    }
}
