//! Classes of characters that the tokenizers of Hugging Face distinguish.
//!
//! Their tables are those of Unicode 8 (BERT) and 9 (marks and normal forms). Models were trained with
//! them, so later characters have no class here. The classes differ from `regex-syntax` also where a later
//! version of Unicode changed a character's category.

use regex_syntax::hir::{Class, HirKind};

use super::error::TextError;

/// A set of characters.
#[derive(Clone, Debug)]
pub(crate) struct Characters(Box<[(char, char)]>);

/// Characters that `clean_text` drops: line ends and tabs become spaces instead.
const DROPPED: &str = r"[[\p{Cc}[\p{Cf}&&\p{age=8.0}]\p{Co}\x{FFFD}]--[\t\n\r]]";
const PUNCTUATION: &str = r"[[:punct:][\p{P}&&\p{age=8.0}]\x{166D}\x{111C9}]";
const ACCENTS: &str = r"[[[\p{Mn}&&\p{age=8.0}]--[\x{1885}\x{1886}\x{A9BD}\x{111C9}\x{1171E}]]\x{1734}]";
const MARKS: &str = r"[[[\p{M}&&\p{age=9.0}]--[\x{111C9}]]\x{1CF2}\x{1CF3}]";
const LATER: &str = r"\P{age=9.0}";

impl Characters {
    /// Control and format characters, except white space, and U+FFFD.
    pub(crate) fn dropped() -> Result<Characters, TextError> {
        Characters::of(DROPPED)
    }

    /// Punctuation of BERT: every ASCII character that is no letter, digit or space counts.
    pub(crate) fn punctuation() -> Result<Characters, TextError> {
        Characters::of(PUNCTUATION)
    }

    /// Nonspacing marks, which BERT strips.
    pub(crate) fn accents() -> Result<Characters, TextError> {
        Characters::of(ACCENTS)
    }

    /// Combining marks of any kind, which `StripAccents` strips.
    #[cfg_attr(not(feature = "safetensors"), allow(dead_code, reason = "only folders have it"))]
    pub(crate) fn marks() -> Result<Characters, TextError> {
        Characters::of(MARKS)
    }

    /// Characters of Unicode 10 and later, which normal forms leave as they are.
    pub(crate) fn later() -> Result<Characters, TextError> {
        Characters::of(LATER)
    }

    fn of(expression: &str) -> Result<Characters, TextError> {
        let set = regex_syntax::parse(expression).map_err(|error| TextError::Tokenizer(error.to_string()))?;
        match set.into_kind() {
            HirKind::Class(Class::Unicode(class)) => {
                Ok(Characters(class.iter().map(|range| (range.start(), range.end())).collect()))
            }
            _ => Err(TextError::Tokenizer(format!("expected a class of characters, found {expression}"))),
        }
    }

    /// Whether the character is in the set.
    pub(crate) fn contain(&self, c: char) -> bool {
        let after = self.0.partition_point(|&(_, end)| end < c);
        self.0.get(after).is_some_and(|&(start, _)| start <= c)
    }
}

/// Ideographs that BERT makes words of. The first bound of Extension E is that of Hugging Face.
pub(crate) fn is_chinese(c: char) -> bool {
    matches!(c,
        '\u{4E00}'..='\u{9FFF}' | '\u{3400}'..='\u{4DBF}' | '\u{20000}'..='\u{2A6DF}'
        | '\u{2A700}'..='\u{2B73F}' | '\u{2B740}'..='\u{2B81F}' | '\u{2B920}'..='\u{2CEAF}'
        | '\u{F900}'..='\u{FAFF}' | '\u{2F800}'..='\u{2FA1F}')
}
