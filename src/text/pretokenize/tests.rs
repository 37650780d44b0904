//! Tests of the pre-tokenizers on texts that distinguish the rules.

use std::convert::Infallible;

use super::*;
use proptest::prelude::*;

fn words<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
    let mut words = Vec::new();
    let Ok(()) = PreTokenizer::named(name).unwrap().try_words(text, &mut |word| {
        words.push(word);
        Ok::<(), Infallible>(())
    });
    words
}

fn names() -> impl Iterator<Item = &'static str> {
    RULES.iter().flat_map(|rule| rule.names).copied()
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
fn names_of_one_rule_cut_alike() {
    // Digits, line ends, uppercase contractions, marks before letters, and white space at the end.
    let text = "It'S 12345 (x) a.\n\n  \n\tb é\u{301}te 日本かな...  ";
    for (name, others) in [
        ("gpt-2", &["mpt", "olmo", "jais", "trillion", "granite-docling", "phi-2", "exaone4"][..]),
        ("smollm", &["starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"]),
        ("llama-bpe", &["falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx", "smaug-bpe", "glm4"]),
        ("qwen2", &["deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez", "solar-open", "kormo"]),
        ("gpt-4o", &["llama4", "kanana2", "minimax-m2"]),
        ("bloom", &["poro-chat", "gpt3-finnish"]),
    ] {
        for other in others {
            assert_eq!(words(other, text), words(name, text), "{other}");
        }
    }
}

#[test]
fn whole_words_are_taken_by_name() {
    for (taken, merged) in
        [("falcon3", "dbrx"), ("glm4", "chatglm-bpe"), ("tekken", "gpt-4o"), ("lfm2", "smaug-bpe")]
    {
        assert_eq!(PreTokenizer::named(taken).unwrap().whole_words(), WholeWords::Taken, "{taken}");
        assert_eq!(PreTokenizer::named(merged).unwrap().whole_words(), WholeWords::Merged, "{merged}");
    }
}

#[test]
fn rules_differ_where_their_tokenizers_do() {
    for (name, text, expected) in [
        // Combining marks are part of the word, or of the following word.
        ("qwen35", "e\u{301}a 1", &["e\u{301}a", " ", "1"][..]),
        ("qwen2", "e\u{301}a 1", &["e", "\u{301}a", " ", "1"]),
        ("gpt-4o", "HelloWorld it's 1234/\n", &["Hello", "World", " it's", " ", "123", "4", "/\n"]),
        ("tekken", "HelloWorld it's 12/\n", &["Hello", "World", " it", "'s", " ", "1", "2", "/\n"]),
        ("tekken", "ÉCOLE École", &["ÉCOLE", " École"]),
        ("kimi-k2", "Ab中文cd 1234", &["Ab", "中文", "cd", " ", "123", "4"]),
        ("deepseek-v3", "x(y 1234日本a\n\n b", &["x", "(y", " ", "123", "4", "日本", "a", "\n\n", " b"]),
        (
            "deepseek-llm",
            "He said 12!\n a 日本",
            &["He", " said", " ", "1", "2", "!", "\n", " a", " ", "日本"],
        ),
        ("deepseek-llm", "a\u{562}", &["a", "\u{562}"]),
        ("deepseek-coder", "a 12.x\n", &["a", " ", "1", "2", ".", "x", "\n"]),
        ("falcon", "a==b 12345 'tis", &["a", "==", "b", " ", "123", "45", " ", "'", "tis"]),
        ("bloom", "a, b  c.", &["a", ",", " b", " ", " c", "."]),
        ("viking", "a12", &["a", "1", "2"]),
        ("laguna", "a .\n\nb", &["a", " .", "\n\n", "b"]),
        ("ufakzeka", "Ali's 12", &["Ali", "'s", " ", "1", "2"]),
        ("minicpm5", "x 12345", &["x", " ", "123", "45"]),
        ("seed-coder", "a!\n\nb", &["a", "!", "\n\n", "b"]),
        ("bailingmoe", "a!\n \n\nb", &["a", "!\n", " \n\n", "b"]),
        ("exaone-moe", "a b!\n\nc", &["a b", "!\n", "\n", "c"]),
        ("spark2_5", "a \n\n b\n!", &["a", " \n\n", " b", "\n", "!"]),
        ("chameleon", "a    b!?", &["a", "    ", "b", "!", "?"]),
    ] {
        assert_eq!(words(name, text), expected, "{name}: {text:?}");
    }
}

#[cfg(feature = "safetensors")]
fn name_of(expressions: &[&str]) -> Option<&'static str> {
    let expressions: Vec<String> = expressions.iter().map(|&expression| expression.to_owned()).collect();
    PreTokenizer::name_of(&expressions, WholeWords::Merged)
}

/// Expressions as in `tokenizer.json`, once with escapes and once with the characters themselves.
#[cfg(feature = "safetensors")]
#[test]
fn expressions_are_compared_by_meaning() {
    let digits = r"\p{N}{1,3}";
    let plain = concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    );
    let escaped =
        plain.replace('\r', r"\r").replace('\n', r"\n").replace('#', r"\#").replace("A-Za", r"A-Z\x61");
    let han = ["[一-龥\u{3040}-ゟ゠-ヿ]+", r"[\x{4e00}-\x{9fa5}\x{3040}-\x{30ff}]+", "[\u{3040}-ヿ一-龥]+"];
    for han in han {
        assert_eq!(name_of(&[digits, han, plain]), Some("deepseek-v3"));
        assert_eq!(name_of(&[digits, han, &escaped]), Some("deepseek-v3"));
    }
    // Another class, another order, a step less, another end.
    assert_eq!(name_of(&[digits, "[一-龦\u{3040}-ヿ]+", plain]), None);
    assert_eq!(name_of(&[han[0], digits, plain]), None);
    assert_eq!(name_of(&[digits, han[0]]), None);
    assert_eq!(name_of(&[digits, han[0], &plain.replace(r"\s+(?!\S)|", "")]), None);
    assert_eq!(name_of(&[digits, han[0], &plain.replace("\\s*[\r\n]+|", "")]), None);
    let coder = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\u{d7ff}]+", r"\p{N}"];
    assert_eq!(name_of(&coder), Some("deepseek-coder"));
}

/// DeepSeek LLM's list of letters, which the table has as a difference of classes.
#[cfg(feature = "safetensors")]
#[test]
fn a_list_of_letters_is_a_class() {
    let letters = concat!(
        "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u{1f7d}",
        "ᾀ-ᾴᾶ-ᾼ\u{1fbe}ῂ-ῄῆ-ῌῐ-\u{1fd3}ῖ-\u{1fdb}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212a}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎ",
        "ꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
    );
    let steps = [
        "[\r\n]",
        letters,
        r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+",
        r"\s+$",
        "[一-龥ࠀ-一가-\u{d7ff}]+",
        r"\p{N}",
    ];
    let steps = steps.map(|step| step.replace(r"\u{3000}", "\u{3000}"));
    assert_eq!(name_of(&steps.each_ref().map(String::as_str)), Some("deepseek-llm"));
}

/// Every rule is found by its own expressions, and oversized or malformed expressions by none.
#[cfg(feature = "safetensors")]
#[test]
fn expressions_of_a_rule_have_its_name() {
    for rule in RULES {
        let with_look_ahead = |step: &Step| match (step.spaces, step.pattern.strip_suffix(r"|\s+")) {
            (Spaces::LastToWord | Spaces::LastToWordButLineEnds, Some(rest)) => {
                format!(r"{rest}|\s+(?!\S)|\s+")
            }
            _ => step.pattern.to_owned(),
        };
        let expressions: Vec<String> = rule.steps.iter().map(with_look_ahead).collect();
        let found = PreTokenizer::name_of(&expressions, rule.whole_words);
        assert_eq!(found, rule.names.first().copied(), "{expressions:?}");
    }
    for expression in ["(", r"\p{N", r"(?<=a)b", &"a|".repeat(1 << 14)] {
        assert_eq!(name_of(&[expression]), None);
    }
}

#[test]
fn an_unknown_name_is_named() {
    let message = PreTokenizer::named("klingon").unwrap_err().to_string();
    assert!(message.contains("`klingon`") && message.contains("qwen2"), "{message}");
}

#[test]
fn no_name_stands_twice() {
    let mut all: Vec<&str> = names().collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn an_error_ends_the_cutting() {
    let mut seen = 0;
    let ended = PreTokenizer::named("gpt-2").unwrap().try_words("a b c d", &mut |_| {
        seen += 1;
        if seen < 2 { Ok(()) } else { Err("full") }
    });
    assert_eq!((ended, seen), (Err("full"), 2));
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
    fn words_are_the_text(text in "[ \t\r\na-c'0-9é\u{3000}\u{a0}!ſ日]{0,40}|\\PC{0,40}", index in any::<prop::sample::Index>()) {
        let name = *index.get(&names().collect::<Vec<_>>());
        let words = words(name, &text);
        prop_assert!(words.iter().all(|word| !word.is_empty()));
        prop_assert_eq!(words.concat(), text.as_str());
    }
}
