//! Table of pre-tokenizers: the names in `tokenizer.ggml.pre` and their regular expressions.
//!
//! A new name for an existing rule is added to its row. Expressions are those of the models' own tokenizers,
//! without look-ahead (see [`Spaces`]).

use super::WholeWords;

/// A row of the table.
pub(super) struct Rule {
    /// The names in `tokenizer.ggml.pre`.
    pub(super) names: &'static [&'static str],
    /// Splitting steps in order. Each splits the words of the previous one.
    pub(super) steps: &'static [Step],
    pub(super) whole_words: WholeWords,
}

/// An expression with matches that become words of their own.
pub(super) struct Step {
    pub(super) pattern: &'static str,
    pub(super) spaces: Spaces,
}

/// Treatment of white space at the end of a match, before other text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spaces {
    /// Part of the word: the expression has no look-ahead.
    Kept,
    /// The last character goes to the next word: `\s+(?!\S)`.
    LastToWord,
    /// Like [`Spaces::LastToWord`], but white space up to a line end is a word: `\s*[\r
    /// ]+` comes first.
    LastToWordButLineEnds,
}

const fn isolate(pattern: &'static str) -> Step {
    Step { pattern, spaces: Spaces::Kept }
}

const fn words(pattern: &'static str) -> Step {
    Step { pattern, spaces: Spaces::LastToWord }
}

const fn words_and_line_ends(pattern: &'static str) -> Step {
    Step { pattern, spaces: Spaces::LastToWordButLineEnds }
}

/// GPT-2's words: contractions, letters, digits and other characters, each with a preceding space.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const DIGIT: Step = isolate(r"\p{N}");
const THREE_DIGITS: Step = isolate(r"\p{N}{1,3}");
/// Han and kana, as split off by DeepSeek's newer tokenizers.
const HAN_AND_KANA: Step = isolate(r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+");
/// Han, Hangul and more above U+0800, as split off by DeepSeek's older tokenizers.
const EAST_ASIAN: Step = isolate(r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+");
/// Words of Bloom and its relatives: everything up to white space or a sentence mark.
const SENTENCE_WORDS: Step = isolate(r" ?[^(\s|.,!?…。，、।۔،)]+");

/// English contractions in any case.
macro_rules! contractions {
    () => {
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}

/// Llama 3's pattern and its variants: words with a preceding character, digits, other characters with line
/// ends.
macro_rules! modern {
    ($words:expr, $digits:expr, $rest:expr) => {
        concat!($words, "|", $digits, "|", $rest, r"|\s*[\r\n]+|\s+")
    };
}

macro_rules! letters {
    () => {
        r"[^\r\n\p{L}\p{N}]?\p{L}+"
    };
}

/// Other characters: neither letters nor digits nor white space.
macro_rules! marks {
    () => {
        r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    };
}

/// Words of uppercase letters followed by lowercase ones, as in GPT-4o and Tekken.
macro_rules! cased {
    ($end:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $end,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $end
        )
    };
}

/// Like [`cased`], with runs of Chinese characters as separate words.
macro_rules! cased_without_han {
    () => {
        concat!(
            r"\p{Han}+|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]--\p{Han}]*[[\p{Ll}\p{Lm}\p{Lo}\p{M}]--\p{Han}]+",
            contractions!(),
            r"?|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]--\p{Han}]+[[\p{Ll}\p{Lm}\p{Lo}\p{M}]--\p{Han}]*",
            contractions!(),
            "?"
        )
    };
}

/// DeepSeek 3's words: a mark may start a Latin word, and combining marks belong to letters.
macro_rules! deepseek3 {
    ($marks:expr) => {
        concat!(
            r#"[!"\#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"#,
            $marks,
            r"|\s+"
        )
    };
}

/// Digits in groups of up to three.
const LLAMA3: &str = modern!(concat!(contractions!(), "|", letters!()), r"\p{N}{1,3}", marks!());
/// Like Llama 3, with single digits.
const QWEN2: &str = modern!(concat!(contractions!(), "|", letters!()), r"\p{N}", marks!());
/// Like Qwen 2, with combining marks as part of words.
const QWEN35: &str = modern!(
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"),
    r"\p{N}",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
);
const GPT4O: &str =
    modern!(cased!(concat!(contractions!(), "?")), r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*");

/// Cased letters as listed in DeepSeek's tokenizer, without scripts and blocks that are newer than the list.
const DEEPSEEK_LETTERS: Step = isolate(concat!(
    r"\s?[[\p{Lu}\p{Ll}\p{Lt}]--[\x{560}-\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c8a}\x{2d00}-\x{2d2d}\x{a790}-\x{a7fa}",
    r"\x{ab30}-\x{ab68}\x{10570}-\x{105bc}\x{10d50}-\x{10d85}\x{16e40}-\x{16e7f}\x{1d400}-\x{1d7cb}\x{1df00}-\x{1df2a}]]+"
));

pub(super) const RULES: &[Rule] = &[
    Rule {
        names: &[
            "gpt-2",
            "gpt2",
            "default",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "phi-2",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "roberta-bpe",
            "jina-es",
            "jina-de",
            "jina-v1-en",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
        ],
        steps: &[words(GPT2)],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        steps: &[DIGIT, words(GPT2)],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
            "glm4",
            "glm5",
        ],
        steps: &[words_and_line_ends(LLAMA3)],
        whole_words: WholeWords::Taken,
    },
    Rule {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        steps: &[words_and_line_ends(LLAMA3)],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "megrez",
            "kormo",
            "f2llmv2",
            "grok-2",
        ],
        steps: &[words_and_line_ends(QWEN2)],
        whole_words: WholeWords::Merged,
    },
    Rule { names: &["qwen35"], steps: &[words_and_line_ends(QWEN35)], whole_words: WholeWords::Merged },
    Rule {
        names: &["laguna"],
        steps: &[isolate(r"[^\n]+|\n+"), words_and_line_ends(QWEN2)],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["ufakzeka"],
        steps: &[words_and_line_ends(modern!(letters!(), r"\p{N}", marks!()))],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["minicpm5"],
        steps: &[
            THREE_DIGITS,
            words_and_line_ends(modern!(concat!(contractions!(), "|", letters!()), r"\p{N}+", marks!())),
        ],
        whole_words: WholeWords::Taken,
    },
    Rule {
        names: &["seed-coder"],
        steps: &[words_and_line_ends(modern!(
            concat!(contractions!(), "|", letters!()),
            r"\p{N}",
            r" ?[^\s\p{L}\p{N}\r\n]+"
        ))],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        steps: &[words_and_line_ends(concat!(
            contractions!(),
            "|",
            letters!(),
            r"|\p{N}|",
            marks!(),
            r"|\s*[\r\n]|\s+"
        ))],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["exaone-moe"],
        steps: &[words_and_line_ends(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+"
        ))],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        steps: &[words_and_line_ends(GPT4O)],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["granite-embed-multi-97m"],
        steps: &[words_and_line_ends(GPT4O)],
        whole_words: WholeWords::Taken,
    },
    Rule {
        names: &["tekken"],
        steps: &[words_and_line_ends(modern!(cased!(""), r"\p{N}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*"))],
        whole_words: WholeWords::Taken,
    },
    Rule {
        names: &["kimi-k2"],
        steps: &[words_and_line_ends(modern!(cased_without_han!(), r"\p{N}{1,3}", marks!()))],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["deepseek-llm"],
        steps: &[
            isolate(r"[\r\n]"),
            DEEPSEEK_LETTERS,
            isolate(r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+"),
            isolate(r"\s+$"),
            EAST_ASIAN,
            DIGIT,
        ],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["deepseek-coder"],
        steps: &[isolate(r"[\r\n]"), isolate(r"\s?\p{L}+"), isolate(r"\s?\p{P}+"), EAST_ASIAN, DIGIT],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        steps: &[
            THREE_DIGITS,
            HAN_AND_KANA,
            words_and_line_ends(deepseek3!(r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+")),
        ],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["spark2_5"],
        steps: &[THREE_DIGITS, HAN_AND_KANA, words(deepseek3!(r" ?[\p{P}\p{S}]+|[\r\n]")), DIGIT],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["falcon"],
        steps: &[isolate(r"[\p{P}$+<=>^~|`]+"), words(GPT2), isolate("[0-9]{3}")],
        whole_words: WholeWords::Merged,
    },
    Rule {
        names: &["bloom", "poro-chat", "gpt3-finnish"],
        steps: &[SENTENCE_WORDS],
        whole_words: WholeWords::Merged,
    },
    Rule { names: &["viking"], steps: &[SENTENCE_WORDS, DIGIT], whole_words: WholeWords::Merged },
    Rule {
        names: &["chameleon"],
        steps: &[
            isolate("<sentinel:[0-9]+>"),
            isolate("IMGIMG[A-I]{1,4}Z"),
            isolate(r"[\t\n]|    |  "),
            DIGIT,
            isolate(r"[\p{P}!-/:-@\[-`{-~]"),
            words(GPT2),
        ],
        whole_words: WholeWords::Merged,
    },
];
