//! Tests of the tokenizers on small synthetic vocabularies. Real vocabularies are tested in
//! `tests/text_golden.rs`.

use super::super::byte_level::char_of;
use super::super::parts::AddedTokenRule;
use super::super::spaces::Spaces;
use super::*;
use proptest::prelude::*;

/// All 256 bytes, a few merges, two control tokens and a user-defined token.
fn byte_level_parts(pre: &str) -> (VocabParts, Strings) {
    let mut tokens: Vec<String> = (0..=255).map(|byte| char_of(byte).to_string()).collect();
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "Ġ Ġ", "a a", "aa aa"];
    tokens.extend(merges.iter().map(|rule| rule.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    for (piece, kind) in [("<|end|>", 3), ("<|end|><|x|>", 3), ("[tool]", 4)] {
        tokens.push(piece.to_owned());
        types.push(kind);
    }
    let parts = VocabParts {
        model: "gpt2".to_owned(),
        pre: pre.to_owned(),
        tokens: tokens.into_iter().collect(),
        types: Some(types),
        bos: Some(265),
        ..VocabParts::default()
    };
    (parts, merges.into_iter().collect())
}

fn build((parts, rules): &(VocabParts, Strings)) -> Result<Tokenizer, TextError> {
    Tokenizer::from_parts(parts.clone(), rules)
}

fn byte_level() -> Tokenizer {
    build(&byte_level_parts("smollm")).unwrap()
}

/// SentencePiece: all bytes, some pieces with scores, a control token and user-defined tokens.
fn spm_parts() -> VocabParts {
    let mut rows: Vec<(String, u32, f32)> = vec![
        ("<unk>".to_owned(), 2, 0.0),
        ("<s>".to_owned(), 3, 0.0),
        ("\n\n".to_owned(), 4, 0.0),
        ("\n\n\n".to_owned(), 4, 0.0),
    ];
    rows.extend((0..=255).map(|byte| (format!("<0x{byte:02X}>"), 6, 0.0)));
    for (index, piece) in ["ab", "bc", "▁a", "abc", "▁abc", "▁", "a", "b", "c", "aa"].iter().enumerate()
    {
        rows.push(((*piece).to_owned(), 1, -(index as f32)));
    }
    VocabParts {
        model: "llama".to_owned(),
        tokens: rows.iter().map(|row| &row.0).collect(),
        types: Some(rows.iter().map(|row| row.1).collect()),
        scores: Some(rows.iter().map(|row| row.2).collect()),
        bos: Some(1),
        unknown: Some(0),
        spaces: Some(Spaces::before_each(false)),
        ..VocabParts::default()
    }
}

fn spm() -> Tokenizer {
    Tokenizer::from_parts(spm_parts(), &Strings::default()).unwrap()
}

fn pieces(tokenizer: &Tokenizer, text: &str, special: Special) -> Vec<String> {
    let ids = tokenizer.encode(text, special, AddBos::No).unwrap();
    ids.iter().map(|&id| tokenizer.vocab().piece(id).unwrap().to_owned()).collect()
}

#[test]
fn merges_apply_in_order_within_words() {
    let tokenizer = byte_level();
    assert_eq!(pieces(&tokenizer, "hello hello", Special::Text), ["hello", "Ġhello"]);
    assert_eq!(pieces(&tokenizer, "hell12", Special::Text), ["hell", "1", "2"]);
    let tokenizer = build(&byte_level_parts("qwen2")).unwrap();
    assert_eq!(pieces(&tokenizer, "é   aaa", Special::Text), ["Ã", "©", "ĠĠ", "Ġ", "aa", "a"]);
}

#[test]
fn of_rules_for_the_same_pair_the_first_counts() {
    let (mut parts, _) = byte_level_parts("default");
    parts.tokens.push("xa");
    parts.types.as_mut().unwrap().push(1);
    for (rules, expected) in [(&["a a", "x a", "a a"][..], ["x", "aa"]), (&["x a", "a a"], ["xa", "a"])] {
        let tokenizer = Tokenizer::from_parts(parts.clone(), &rules.iter().collect()).unwrap();
        assert_eq!(pieces(&tokenizer, "xaa", Special::Text), expected);
    }
}

#[test]
fn control_tokens_are_matched_only_when_parsed() {
    let tokenizer = byte_level();
    assert_eq!(pieces(&tokenizer, "he<|end|>", Special::Parse), ["he", "<|end|>"]);
    assert_eq!(pieces(&tokenizer, "<|end|><|x|>", Special::Parse), ["<|end|><|x|>"]);
    let typed = pieces(&tokenizer, "<|end|>[tool]", Special::Text);
    assert_eq!(typed, ["<", "|", "e", "n", "d", "|", ">", "[tool]"]);
}

#[test]
fn bos_comes_once_and_only_where_the_model_wants_it() {
    let (mut parts, rules) = byte_level_parts("default");
    let bare = Tokenizer::from_parts(parts.clone(), &rules).unwrap();
    assert_eq!(bare.encode("1", Special::Parse, AddBos::AsModel).unwrap(), [TokenId(49)]);
    parts.add_bos = Some(true);
    let tokenizer = Tokenizer::from_parts(parts.clone(), &rules).unwrap();
    let ids = [TokenId(265), TokenId(49)];
    assert_eq!(tokenizer.encode("1", Special::Parse, AddBos::AsModel).unwrap(), ids);
    assert_eq!(tokenizer.encode("<|end|>1", Special::Parse, AddBos::AsModel).unwrap(), ids);
    assert_eq!(tokenizer.encode("1", Special::Parse, AddBos::No).unwrap(), [TokenId(49)]);
}

#[test]
fn llama_bpe_takes_whole_words_and_others_merge() {
    let (mut parts, rules) = byte_level_parts("llama-bpe");
    parts.tokens.push("xyz");
    parts.types.as_mut().unwrap().push(1);
    let taken = Tokenizer::from_parts(parts.clone(), &rules).unwrap();
    assert_eq!(pieces(&taken, "xyz", Special::Text), ["xyz"]);
    parts.pre = "qwen2".to_owned();
    let merged = Tokenizer::from_parts(parts.clone(), &rules).unwrap();
    assert_eq!(pieces(&merged, "xyz", Special::Text), ["x", "y", "z"]);
}

#[test]
fn rules_that_are_none_are_left_out_and_told() {
    for rule in ["he", " he", "he ", ""] {
        let (parts, mut rules) = byte_level_parts("default");
        rules.push(rule);
        let tokenizer = Tokenizer::from_parts(parts.clone(), &rules).unwrap();
        assert_eq!(pieces(&tokenizer, "hello aa", Special::Text), ["hello", "Ġ", "aa"]);
        let told = tokenizer.vocab().warnings().last().unwrap();
        assert!(told.contains("merges") && told.contains(&format!("[9], {rule:?}")), "{rule:?}: {told}");
    }
    let (parts, mut rules) = byte_level_parts("gpt-2");
    rules = ["#version: 0.2"].into_iter().chain(rules.iter()).collect();
    let tokenizer = Tokenizer::from_parts(parts, &rules).unwrap();
    assert_eq!(tokenizer.vocab().warnings(), [""; 0]);
}

#[test]
fn rules_of_pieces_that_are_no_tokens_go_on_to_those_that_are() {
    let (mut parts, _) = byte_level_parts("gpt-2");
    parts.tokens.push("xyz");
    parts.types.as_mut().unwrap().push(1);
    let rules: Strings = ["x y", "xy z", "q r"].into_iter().collect();
    let tokenizer = Tokenizer::from_parts(parts.clone(), &rules).unwrap();
    assert_eq!(pieces(&tokenizer, "xyz", Special::Text), ["xyz"]);
    assert_eq!(pieces(&tokenizer, "xy qrq", Special::Text), ["x", "y", "Ġ", "q", "r", "q"]);
    let told = tokenizer.vocab().warnings().last().unwrap();
    assert!(told.contains("no token") && told.contains("3 of them") && told.contains("\"x y\""), "{told}");
}

#[test]
fn rules_may_be_pairs_or_hold_spaces() {
    let (mut parts, lines) = byte_level_parts("gpt-2");
    // A piece of two words; its rule contains the space.
    parts.tokens = parts.tokens.iter().chain(["a b", "Ġb"]).collect();
    parts.types.as_mut().unwrap().extend([1, 1]);
    let mut spaced = lines.clone();
    ["Ġ b", "a  b"].into_iter().for_each(|rule| spaced.push(rule));
    let tokenizer = Tokenizer::from_parts(parts.clone(), &spaced).unwrap();
    assert_eq!(pieces(&tokenizer, "hello 12", Special::Text), ["hello", "Ġ", "12"]);
    assert_eq!(tokenizer.vocab().warnings(), [""; 0], "both pieces and what they make are tokens");

    let read = |value: Value| merges(&[(key::MERGES, value)].into_iter().collect()).unwrap().unwrap();
    let pairs: Vec<Array> = lines.iter().map(|rule| Array::String(rule.split(' ').collect())).collect();
    assert_eq!(read(Value::Array(Array::Nested(pairs))), lines);
    let flat: Strings = lines.iter().flat_map(|rule| rule.split(' ')).collect();
    assert_eq!(read(Value::Array(Array::String(flat))), lines);
    assert_eq!(read(Value::Array(Array::String(lines.clone()))), lines);
    let spaced = Array::Nested(vec![Array::String(["a b", " c"].into_iter().collect())]);
    assert_eq!(read(Value::Array(spaced)).get(0), Some("aĠb Ġc"));
}

#[test]
fn pieces_written_as_text_are_taken_as_text() {
    let (mut parts, rules) = byte_level_parts("gpt-2");
    // Each byte of the alphabet except those without a text form, then the merged pieces as text.
    let plain = |piece: &str| piece.replace('Ġ', " ").replace('Ċ', "\n");
    parts.tokens = parts.tokens.iter().map(plain).collect();
    let tokenizer = Tokenizer::from_parts(parts, &rules).unwrap();
    assert_eq!(pieces(&tokenizer, "hello hello\n", Special::Text), ["hello", " hello", "\n"]);
    assert_eq!(tokenizer.decode(&[TokenId(260)]), " hello");
    assert!(tokenizer.vocab().warnings()[0].contains("plain text"));
}

#[test]
fn a_space_in_a_piece_is_the_space_of_the_alphabet() {
    let (mut parts, rules) = byte_level_parts("gpt-2");
    // One plain-text piece among pieces in the byte alphabet.
    parts.tokens =
        parts.tokens.iter().map(|piece| if piece == "Ġhello" { " hello" } else { piece }).collect();
    let tokenizer = Tokenizer::from_parts(parts, &rules).unwrap();
    assert_eq!(tokenizer.encode("a hello", Special::Text, AddBos::No).unwrap(), [TokenId(97), TokenId(260)]);
}

#[test]
fn a_piece_written_as_text_does_not_hide_one_in_the_alphabet() {
    let (mut parts, mut rules) = byte_level_parts("gpt-2");
    // Two tokens with the same bytes: plain text with the lower id, and the byte alphabet, which the rule
    // produces.
    parts.tokens = ["é"].into_iter().chain(parts.tokens.iter()).chain(["Ã©", "x y", "xĠ", "xĠy"]).collect();
    let types = parts.types.as_mut().unwrap();
    types.insert(0, 4);
    types.extend([1, 4, 1, 1]);
    ["Ã ©", "x Ġ", "xĠ y"].into_iter().for_each(|rule| rules.push(rule));
    let tokenizer = Tokenizer::from_parts(parts, &rules).unwrap();
    let ids = tokenizer.encode("x y", Special::Text, AddBos::No).unwrap();
    assert_eq!(ids, [TokenId(270)], "a user-defined token is found before words are cut");
    let mut found = Ids::new(usize::MAX, None);
    tokenizer.encode_plain("éx", 0..3, &mut found).unwrap();
    assert_eq!(found.after(&[]).unwrap(), [TokenId(269), TokenId(121)]);
}

#[test]
fn a_limit_refuses_what_is_longer() {
    for tokenizer in [byte_level(), spm()] {
        let within = |text: &str, limit| tokenizer.encode_within(text, Special::Text, AddBos::No, limit);
        for text in ["aaaa aaaa", "a", "bbbb", "a\n\nb", ""] {
            let ids = tokenizer.encode(text, Special::Text, AddBos::No).unwrap();
            assert_eq!(within(text, ids.len()).unwrap(), ids);
            let Some(less) = ids.len().checked_sub(1) else { continue };
            match within(text, less).unwrap_err() {
                TextError::TooLong { at_least, limit } => {
                    assert!(
                        limit == less && (less + 1..=ids.len()).contains(&at_least),
                        "{text:?}: {at_least}"
                    );
                }
                other => panic!("{other}"),
            }
        }
    }
    let (mut parts, rules) = byte_level_parts("smollm");
    parts.add_bos = Some(true);
    let tokenizer = build(&(parts, rules)).unwrap();
    assert!(tokenizer.encode_within("12", Special::Text, AddBos::AsModel, 2).is_err(), "BOS counts");
    assert!(tokenizer.encode_within("12", Special::Text, AddBos::AsModel, 3).is_ok());
}

#[test]
fn what_cannot_be_short_enough_is_refused_before_it_is_cut() {
    // The longest piece has 12 bytes, so a megabyte has at least 87382 tokens; the exact number is not
    // computed.
    let text = " ".repeat(1 << 20);
    let found = byte_level().encode_within(&text, Special::Text, AddBos::No, 4096).unwrap_err();
    let least = text.len().div_ceil("<|end|><|x|>".len());
    assert!(matches!(found, TextError::TooLong { at_least, limit: 4096 } if at_least == least), "{found}");
    assert_eq!(
        found.to_string(),
        format!("tokenizer: the text has at least {least} tokens, the limit is 4096")
    );
    // Within the bound by length, work ends with the first token over the limit.
    let found = byte_level().encode_within(&text, Special::Text, AddBos::No, least).unwrap_err();
    assert!(matches!(found, TextError::TooLong { at_least, .. } if at_least == least + 1), "{found}");
    let found = spm().encode_within(&"é".repeat(1 << 16), Special::Text, AddBos::No, 40_000).unwrap_err();
    assert!(matches!(found, TextError::TooLong { at_least: 40_001, .. }), "{found}");
}

#[test]
fn long_words_are_cut_as_short_ones() {
    // Longer than a window, with and without a place to split.
    let run = "a".repeat(10_001);
    let expected: Vec<&str> = std::iter::repeat_n("aaaa", 2500).chain(["a"]).collect();
    assert_eq!(pieces(&byte_level(), &run, Special::Text), expected);
    let expected: Vec<&str> = std::iter::repeat_n("aa", 5000).chain(["a"]).collect();
    assert_eq!(pieces(&spm(), &run, Special::Text), expected);
    let text = "abc".repeat(5_000);
    let expected: Vec<&str> = std::iter::repeat_n("abc", 5000).collect();
    assert_eq!(pieces(&spm(), &text, Special::Text), expected);
}

#[test]
fn of_tokens_spelled_alike_the_lower_id_is_used() {
    let (mut parts, rules) = byte_level_parts("default");
    ["hello", "<|end|>"].into_iter().for_each(|piece| parts.tokens.push(piece));
    parts.types.as_mut().unwrap().extend([1, 3]);
    let tokenizer = Tokenizer::from_parts(parts.clone(), &rules).unwrap();
    let ids = tokenizer.encode("hello<|end|>", Special::Parse, AddBos::No).unwrap();
    assert_eq!(ids, [TokenId(259), TokenId(265)]);
    assert_eq!(tokenizer.decode(&[TokenId(268)]), "hello");
    let mut parts = spm_parts();
    parts.tokens.push("abc");
    parts.types.as_mut().unwrap().push(1);
    parts.scores.as_mut().unwrap().push(9.0);
    let tokenizer = Tokenizer::from_parts(parts.clone(), &Strings::default()).unwrap();
    assert_eq!(tokenizer.encode("abc", Special::Text, AddBos::No).unwrap(), [TokenId(263)]);
}

#[test]
fn sentencepiece_merges_greedily_by_score() {
    let tokenizer = spm();
    // "ab" has priority over "bc" and "▁a"; then "abc" and "▁abc" follow.
    assert_eq!(pieces(&tokenizer, " abc", Special::Text), ["▁abc"]);
    assert_eq!(pieces(&tokenizer, "aab", Special::Text), ["a", "ab"]);
    // Of equal pairs, the leftmost is merged first.
    assert_eq!(pieces(&tokenizer, "aaa", Special::Text), ["aa", "a"]);
    assert_eq!(pieces(&tokenizer, "é", Special::Text), ["<0xC3>", "<0xA9>"]);
    assert_eq!(pieces(&tokenizer, "a\n\n\n\na", Special::Text), ["a", "\n\n\n", "<0x0A>", "a"]);
    assert_eq!(pieces(&tokenizer, "<s>a", Special::Parse), ["<s>", "a"]);
    assert_eq!(pieces(&tokenizer, "<s>", Special::Text), ["<0x3C>", "<0x73>", "<0x3E>"]);
}

#[test]
fn the_space_prefix_goes_before_text_not_before_nothing() {
    let mut parts = spm_parts();
    parts.spaces = Some(Spaces::before_each(true));
    let tokenizer = Tokenizer::from_parts(parts.clone(), &Strings::default()).unwrap();
    assert_eq!(pieces(&tokenizer, "abc<s>abc", Special::Parse), ["▁abc", "<s>", "▁abc"]);
    assert_eq!(tokenizer.encode("", Special::Parse, AddBos::AsModel).unwrap(), [TokenId(1)]);
    assert_eq!(tokenizer.decode(&tokenizer.encode(" abc", Special::Text, AddBos::No).unwrap()), " abc");
}

#[test]
fn what_cannot_be_spelled_is_unknown_or_an_error() {
    let mut parts = spm_parts();
    parts.types.as_mut().unwrap().iter_mut().filter(|kind| **kind == 6).for_each(|kind| *kind = 5);
    let tokenizer = Tokenizer::from_parts(parts.clone(), &Strings::default()).unwrap();
    assert_eq!(pieces(&tokenizer, "aé", Special::Text), ["a", "<unk>"]);
    // Without the id, the kind determines the unknown token.
    parts.unknown = None;
    let tokenizer = Tokenizer::from_parts(parts.clone(), &Strings::default()).unwrap();
    assert_eq!(pieces(&tokenizer, "aé", Special::Text), ["a", "<unk>"]);
    parts.types.as_mut().unwrap()[0] = 3;
    let tokenizer = Tokenizer::from_parts(parts.clone(), &Strings::default()).unwrap();
    let message = tokenizer.encode("aé", Special::Text, AddBos::No).unwrap_err().to_string();
    assert!(message.contains("`é` at byte 1"), "{message}");
}

#[test]
fn an_unknown_pre_tokenizer_is_refused() {
    let message = build(&byte_level_parts("klingon")).unwrap_err().to_string();
    assert!(message.contains("`klingon`") && message.contains("smollm"), "{message}");
}

/// Reference implementation of `spm.rs`: repeatedly merges the best adjacent pair.
fn naive_spm(parts: &VocabParts, text: &str) -> Vec<String> {
    let score = |piece: &str| {
        let at = parts.tokens.iter().position(|token| token == piece)?;
        (parts.types.as_ref()?[at] == 1).then(|| parts.scores.as_ref().unwrap()[at])
    };
    let mut symbols: Vec<String> = text.replace(' ', "▁").chars().map(String::from).collect();
    loop {
        let mut best: Option<(f32, usize)> = None;
        for left in 1..symbols.len() {
            if let Some(score) = score(&symbols[left - 1..=left].concat())
                && best.is_none_or(|(highest, _)| score > highest)
            {
                best = Some((score, left - 1));
            }
        }
        let Some((_, left)) = best else { return symbols };
        let right = symbols.remove(left + 1);
        symbols[left].push_str(&right);
    }
}

/// Reference implementation of `bpe.rs`: repeatedly applies the first applicable rule at its first match.
fn naive_bpe(rules: &[[String; 2]], text: &str) -> Vec<String> {
    let mut symbols: Vec<String> = text.chars().map(String::from).collect();
    let applies = |symbols: &[String], rule: &[String; 2]| symbols.windows(2).position(|pair| pair == rule);
    while let Some(left) = rules.iter().find_map(|rule| applies(&symbols, rule)) {
        let right = symbols.remove(left + 1);
        symbols[left].push_str(&right);
    }
    symbols
}

/// Rules that each join two existing tokens: characters, and results of earlier rules.
fn rules_of(picks: &[[prop::sample::Index; 2]]) -> Vec<[String; 2]> {
    let mut tokens: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
    let rule = |pick: &[prop::sample::Index; 2]| {
        let rule = [pick[0].get(&tokens).clone(), pick[1].get(&tokens).clone()];
        tokens.push(rule.concat());
        rule
    };
    picks.iter().map(rule).collect()
}

proptest! {
    #[test]
    fn byte_level_agrees_with_the_naive_model(
        picks in prop::collection::vec(any::<[prop::sample::Index; 2]>(), 0..12),
        order in any::<prop::sample::Index>(),
        text in "[abc]{0,40}",
    ) {
        let mut rules = rules_of(&picks);
        // Rules may also precede those that produce their symbols.
        let middle = order.index(rules.len() + 1);
        rules.rotate_left(middle);
        let (mut parts, _) = byte_level_parts("default");
        parts.tokens = (0..=255).map(|byte| char_of(byte).to_string()).chain(rules.iter().map(|rule| rule.concat())).collect();
        (parts.types, parts.bos) = (None, None);
        let lines: Strings = rules.iter().map(|rule| rule.join(" ")).collect();
        let tokenizer = build(&(parts, lines)).unwrap();
        prop_assert_eq!(pieces(&tokenizer, &text, Special::Text), naive_bpe(&rules, &text));
    }

    #[test]
    fn byte_level_round_trip(text in "[ -~\n\t]{0,30}|\\PC{0,30}|(<\\|end|hello|aa| ){0,9}") {
        for pre in ["default", "smollm", "llama-bpe", "qwen2"] {
            let tokenizer = build(&byte_level_parts(pre)).unwrap();
            let ids = tokenizer.encode(&text, Special::Text, AddBos::No).unwrap();
            prop_assert_eq!(tokenizer.decode(&ids), tokenizer.normalization.apply(&text));
        }
    }

    #[test]
    fn sentencepiece_round_trip(text in "[abc é\n]{0,30}|\\PC{0,30}") {
        prop_assume!(!text.contains('▁'));
        let tokenizer = spm();
        let ids = tokenizer.encode(&text, Special::Text, AddBos::No).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids), text.as_str());
    }

    #[test]
    fn sentencepiece_agrees_with_the_naive_model(text in "[abc ]{0,40}") {
        prop_assert_eq!(pieces(&spm(), &text, Special::Text), naive_spm(&spm_parts(), &text));
    }
}

#[test]
fn white_space_beside_tokens_that_take_it_is_none_of_the_text() {
    let (mut parts, rules) = byte_level_parts("smollm");
    let rule = |lstrip, rstrip, single_word| AddedTokenRule { lstrip, rstrip, single_word };
    parts.added_tokens =
        vec![(TokenId(265), rule(true, true, false)), (TokenId(267), rule(false, false, true))];
    let tokenizer = Tokenizer::from_parts(parts, &rules).unwrap();
    let found = |text| pieces(&tokenizer, text, Special::Parse).concat();
    assert_eq!(found("1 \n<|end|> \u{3000}\t2"), "1<|end|>2");
    assert_eq!(found(" <|end|>  <|end|> "), "<|end|><|end|>");
    assert_eq!(tokenizer.encode("[tool] 1[tool]", Special::Text, AddBos::No).unwrap().len(), 9);
    // A text of any length may produce no token.
    let spaces = format!("<|end|>{}", " ".repeat(1000));
    assert_eq!(tokenizer.least_tokens(spaces.len()), 0);
    assert_eq!(tokenizer.encode_within(&spaces, Special::Parse, AddBos::No, 1).unwrap(), [TokenId(265)]);
    let text = "a".repeat(1000);
    assert!(tokenizer.encode_within(&text, Special::Parse, AddBos::No, 10).is_err());
}

#[test]
fn qwens_texts_are_normalised_between_tokens() {
    let text = "e\u{301}<|end|>\u{301}e\u{301}[tool]";
    let decoded = |pre: &str, normalization| {
        let (mut parts, rules) = byte_level_parts(pre);
        parts.normalization = normalization;
        let tokenizer = Tokenizer::from_parts(parts, &rules).unwrap();
        tokenizer.decode_with_control(&tokenizer.encode(text, Special::Parse, AddBos::No).unwrap())
    };
    let composed = "\u{e9}<|end|>\u{301}\u{e9}[tool]";
    for pre in ["qwen2", "qwen35"] {
        assert_eq!(decoded(pre, None), composed, "{pre}");
        assert_eq!(decoded(pre, Some(Normalization::None)), text, "{pre}");
    }
    for pre in ["deepseek-r1-qwen", "llama-bpe", "default"] {
        assert_eq!(decoded(pre, None), text, "{pre}");
        assert_eq!(decoded(pre, Some(Normalization::Nfc)), composed, "{pre}");
    }
}

/// Composition shortens a text, so its length in bytes is no reason to refuse it.
#[test]
fn a_text_that_fits_once_composed_is_taken() {
    let tokenizer = build(&byte_level_parts("qwen2")).unwrap();
    let text = "\u{1fbe}\u{308}\u{301}".repeat(40);
    let ids = tokenizer.encode(&text, Special::Text, AddBos::No).unwrap();
    assert_eq!(ids.len(), 80);
    assert!(tokenizer.least_tokens(text.len()) <= 80);
    assert_eq!(tokenizer.encode_within(&text, Special::Text, AddBos::No, 80).unwrap(), ids);
    assert!(tokenizer.encode_within(&text, Special::Text, AddBos::No, 79).is_err());
}

#[test]
fn phi_3_takes_white_space_behind_markers() {
    let rows =
        [("<s>", 3), ("</s>", 3), ("▁a", 1), ("a", 1), ("▁", 1), ("<|user|>", 4), ("<|endoftext|>", 3)];
    let found = |architecture: &str| {
        let entries: Vec<(&str, Value)> = vec![
            ("general.architecture", architecture.into()),
            (key::MODEL, "llama".into()),
            (key::TOKENS, Value::Array(Array::String(rows.iter().map(|row| row.0).collect()))),
            (key::TYPES, rows.map(|row| row.1).to_vec().into()),
            (key::SCORES, (0..7).map(|index| -(index as f32)).collect::<Vec<_>>().into()),
        ];
        let tokenizer = Tokenizer::from_metadata(&entries.into_iter().collect()).unwrap();
        pieces(&tokenizer, "<|user|>\n a</s> a<|endoftext|> a<s> a", Special::Parse).join(" ")
    };
    assert_eq!(found("phi3"), "<|user|> ▁a </s> ▁a <|endoftext|> ▁ ▁a <s> ▁ ▁a");
}
