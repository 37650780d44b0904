//! The table of pre-tokenizers: what `tokenizer.ggml.pre` may name, and the expressions that it stands for.
//!
//! A name that is not here and has the rule of one that is here is a word more in a row. Expressions are those
//! of the models' own tokenizers, without their look-ahead (see [`Spaces`]).

use super::WholeWords;

/// A row of the table.
pub(super) struct Rule {
    /// The names in `tokenizer.ggml.pre`.
    pub(super) names: &'static [&'static str],
    /// One after the other: each cuts what the one before it made.
    pub(super) steps: &'static [Step],
    pub(super) whole_words: WholeWords,
}

/// An expression whose matches become words of their own.
pub(super) struct Step {
    pub(super) pattern: &'static str,
    pub(super) spaces: Spaces,
}

/// What becomes of white space at the end of a match, before something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spaces {
    /// It is part of the word: the expression has no look-ahead.
    Kept,
    /// The last character goes to the word that follows: `\s+(?!\S)`.
    LastToWord,
    /// As before, but white space up to a line end is a word of its own: `\s*[\r\n]+` comes before it.
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

/// GPT-2's words: contractions, letters, digits and the rest, each with the space before it.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
const DIGIT: Step = isolate(r"\p{N}");
const THREE_DIGITS: Step = isolate(r"\p{N}{1,3}");
/// Han and kana, as DeepSeek's newer tokenizers cut them out.
const HAN_AND_KANA: Step = isolate(r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+");
/// Han, Hangul and much else above U+0800, as DeepSeek's older tokenizers cut them out.
const EAST_ASIAN: Step = isolate(r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+");
/// The words of Bloom and its kin: all up to white space or a mark that ends a sentence.
const SENTENCE_WORDS: Step = isolate(r" ?[^(\s|.,!?…。，、।۔،)]+");

/// English contractions in any case.
macro_rules! contractions {
    () => {
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}

/// What Llama 3 began and others vary: words with the character before them, digits, and the rest with its line ends.
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

/// The rest: neither letters nor digits nor white space.
macro_rules! marks {
    () => {
        r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    };
}

/// Words that begin with large letters and go on with small ones, as GPT-4o and Tekken cut them.
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

/// As [`cased`], with Chinese characters as words of their own.
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

/// DeepSeek 3's words: a mark may begin a Latin word, combining marks belong to letters.
macro_rules! deepseek3 {
    ($marks:expr) => {
        concat!(
            r#"[!"\#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"#,
            $marks,
            r"|\s+"
        )
    };
}

/// Numbers in groups of three.
const LLAMA3: &str = modern!(concat!(contractions!(), "|", letters!()), r"\p{N}{1,3}", marks!());
/// As Llama 3, but a digit at a time.
const QWEN2: &str = modern!(concat!(contractions!(), "|", letters!()), r"\p{N}", marks!());
/// As Qwen 2, with combining marks as part of words.
const QWEN35: &str = modern!(
    concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+"),
    r"\p{N}",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
);
const GPT4O: &str =
    modern!(cased!(concat!(contractions!(), "?")), r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*");

/// Cased letters as DeepSeek's tokenizer lists them: without the scripts and blocks that are younger than its list.
const DEEPSEEK_LETTERS: Step = isolate(concat!(
    r"\s?[[\p{Lu}\p{Ll}\p{Lt}]--[\x{560}\x{588}\x{10c7}-\x{10ff}\x{1c80}-\x{1c8a}\x{2d00}-\x{2d2d}\x{a790}-\x{a7fa}",
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
            isolate(r"\p{N}+"),
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
