//! How text is cut before byte-pair merging: each family of tokenizers has its own regular expression.
//!
//! The public definitions end in `\s+(?!\S)|\s+`: a run of white space leaves its last character to the
//! word after it. That look-ahead is done here by hand, so that the expressions need no backtracking and
//! every text takes linear time.

use super::error::TextError;
use regex::Regex;

/// GPT-2's words: contractions, letters, digits and the rest, each with the space before it.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
/// Llama 3: numbers in groups of three, line ends kept with what is before them.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";
/// Qwen 2: as Llama 3, but a digit at a time.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+";

/// A row of the table of pre-tokenizers.
struct Rule {
    /// The names in `tokenizer.ggml.pre`.
    names: &'static [&'static str],
    pattern: &'static str,
    digits: Digits,
    line_ends: LineEnds,
    whole_words: WholeWords,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Digits {
    /// Every digit is cut out before the pattern sees the text.
    Alone,
    ByPattern,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnds {
    /// White space up to a line end is a word of its own (`\s*[\r\n]+`).
    OwnWord,
    /// Line ends are white space like any other.
    AsSpace,
}

/// Whether a word that is a token is taken as it is, without merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WholeWords {
    Taken,
    Merged,
}

const RULES: [Rule; 4] = [
    Rule {
        names: &["default", "gpt-2", "gpt2"],
        pattern: GPT2,
        digits: Digits::ByPattern,
        line_ends: LineEnds::AsSpace,
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["smollm"],
        pattern: GPT2,
        digits: Digits::Alone,
        line_ends: LineEnds::AsSpace,
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["llama-bpe", "llama3", "llama-v3"],
        pattern: LLAMA3,
        digits: Digits::ByPattern,
        line_ends: LineEnds::OwnWord,
        whole_words: WholeWords::Taken,
    },
    Rule {
        names: &["qwen2"],
        pattern: QWEN2,
        digits: Digits::ByPattern,
        line_ends: LineEnds::OwnWord,
        whole_words: WholeWords::Merged,
    },
];

/// Cuts text into the words within which bytes are merged.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    pattern: Regex,
    digit: Option<Regex>,
    line_ends: LineEnds,
    whole_words: WholeWords,
}

impl PreTokenizer {
    /// The pre-tokenizer of this name; an empty name means `default`.
    pub(crate) fn named(name: &str) -> Result<PreTokenizer, TextError> {
        let wanted = if name.is_empty() { "default" } else { name };
        let rule = RULES.iter().find(|rule| rule.names.contains(&wanted));
        let rule = rule.ok_or_else(|| unknown(name))?;
        Ok(PreTokenizer {
            pattern: compile(rule.pattern)?,
            digit: (rule.digits == Digits::Alone).then(|| compile(r"\p{N}")).transpose()?,
            line_ends: rule.line_ends,
            whole_words: rule.whole_words,
        })
    }

    /// Whether words that are tokens are taken whole.
    pub(crate) fn whole_words(&self) -> WholeWords {
        self.whole_words
    }

    /// The words of `text`, in order; together they are the text.
    pub(crate) fn words<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut words = Vec::new();
        let Some(digit) = &self.digit else {
            self.cut(text, &mut words);
            return words;
        };
        let mut start = 0;
        for found in digit.find_iter(text) {
            self.cut(&text[start..found.start()], &mut words);
            words.push(found.as_str());
            start = found.end();
        }
        self.cut(&text[start..], &mut words);
        words
    }

    fn cut<'t>(&self, text: &'t str, words: &mut Vec<&'t str>) {
        let mut start = 0;
        while let Some(found) = self.pattern.find_at(text, start) {
            if found.start() > start {
                words.push(&text[start..found.start()]);
            }
            let kept = self.leave_last_space(found.as_str(), found.end() == text.len());
            start = found.start() + kept;
            words.push(&text[found.start()..start]);
        }
        if start < text.len() {
            words.push(&text[start..]);
        }
    }

    /// How much of a match is the word: `\s+(?!\S)` gives its last character back to the word that follows.
    fn leave_last_space(&self, found: &str, at_end: bool) -> usize {
        let Some(last) = found.chars().next_back() else { return found.len() };
        let own_word = self.line_ends == LineEnds::OwnWord && matches!(last, '\r' | '\n');
        if at_end || !last.is_whitespace() || own_word || found.len() == last.len_utf8() {
            found.len()
        } else {
            found.len() - last.len_utf8()
        }
    }
}

fn unknown(name: &str) -> TextError {
    let supported: Vec<&str> = RULES.iter().flat_map(|rule| rule.names).copied().collect();
    TextError::UnknownPreTokenizer { name: name.to_owned(), supported: supported.join(", ") }
}

fn compile(pattern: &str) -> Result<Regex, TextError> {
    Regex::new(pattern).map_err(|error| TextError::Tokenizer(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        PreTokenizer::named(name).unwrap().words(text)
    }

    #[test]
    fn gpt2_gives_the_last_space_to_the_word() {
        assert_eq!(words("default", "a  b   "), ["a", " ", " b", "   "]);
        assert_eq!(words("gpt-2", "it's 123!?\n\nx"), ["it", "'s", " 123", "!?", "\n", "\n", "x"]);
    }

    #[test]
    fn smollm_cuts_every_digit() {
        assert_eq!(words("smollm", "in 1984\u{b2}  5"), ["in", " ", "1", "9", "8", "4", "\u{b2}", "  ", "5"]);
    }

    #[test]
    fn llama3_groups_digits_and_keeps_line_ends() {
        assert_eq!(
            words("llama-bpe", "It'S 12345 a.\n\n  \n  b"),
            ["It", "'S", " ", "123", "45", " a", ".\n\n", "  \n", " ", " b"]
        );
        assert_eq!(words("llama3", "\t\tx(y"), ["\t", "\tx", "(y"]);
    }

    #[test]
    fn qwen2_takes_a_digit_at_a_time() {
        assert_eq!(words("qwen2", "a 12\r\nb"), ["a", " ", "1", "2", "\r\n", "b"]);
        assert_eq!(words("qwen2", "\u{3000}\u{3000}日本 "), ["\u{3000}", "\u{3000}日本", " "]);
    }

    #[test]
    fn an_unknown_name_is_named() {
        let message = PreTokenizer::named("tekken").unwrap_err().to_string();
        assert!(message.contains("`tekken`") && message.contains("qwen2"), "{message}");
    }

    #[test]
    fn a_million_spaces_take_no_time() {
        let text = format!("{}x", " ".repeat(1_000_000));
        for name in ["default", "smollm", "llama-bpe", "qwen2"] {
            assert_eq!(words(name, &text).len(), 2, "{name}");
        }
    }

    proptest! {
        #[test]
        fn words_are_the_text(text in "[ \t\r\na-c'0-9é\u{3000}\u{a0}!ſ]{0,40}|\\PC*") {
            for name in ["default", "smollm", "llama-bpe", "qwen2"] {
                let words = words(name, &text);
                prop_assert!(words.iter().all(|word| !word.is_empty()));
                prop_assert_eq!(words.concat(), text.as_str());
            }
        }
    }
}
