//! Tests of repairs: the right tokens, and one warning per guess.

use super::*;
use crate::checkpoint::{Array, Metadata, Value};

const KINDS: [(&str, u32); 8] = [
    ("<unk>", 2),
    ("<s>", 3),
    ("</s>", 3),
    ("<0x41>", 6),
    ("▁", 1),
    ("ab", 1),
    ("abc", 1),
    ("<|im_end|>", 3),
];

/// A SentencePiece vocabulary without inconsistencies.
fn spm() -> VocabParts {
    VocabParts {
        model: "llama".to_owned(),
        tokens: KINDS.iter().map(|(piece, _)| piece).collect(),
        types: Some(KINDS.iter().map(|&(_, kind)| kind).collect()),
        scores: Some((0..KINDS.len()).map(|index| -(index as f32)).collect()),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        ..VocabParts::default()
    }
}

/// A byte-level vocabulary with these tokens.
fn bpe(tokens: &[(&str, u32)]) -> VocabParts {
    VocabParts {
        model: "gpt2".to_owned(),
        pre: "gpt-2".to_owned(),
        tokens: tokens.iter().map(|(piece, _)| piece).collect(),
        types: Some(tokens.iter().map(|&(_, kind)| kind).collect()),
        eos: Some(0),
        ..VocabParts::default()
    }
}

fn repaired(parts: VocabParts) -> VocabData {
    VocabData::new(parts).unwrap()
}

/// Checks that the only warning contains all these words.
fn told(repaired: &VocabData, words: &[&str]) {
    let [line] = repaired.warnings.lines() else { panic!("one line: {:?}", repaired.warnings.lines()) };
    for word in words {
        assert!(line.contains(word), "{line:?} lacks {word:?}");
    }
}

fn read(entries: Vec<(&'static str, Value)>) -> VocabData {
    let tokens: Strings = KINDS.iter().map(|(piece, _)| piece).collect();
    let given: Vec<&str> = entries.iter().map(|(key, _)| *key).collect();
    let codes: Vec<i32> = KINDS.iter().map(|&(_, kind)| kind as i32).collect();
    let scores: Vec<f32> = (0..KINDS.len()).map(|index| -(index as f32)).collect();
    let usual = [
        (key::MODEL, Value::from("llama")),
        (key::TOKENS, Value::Array(Array::String(tokens))),
        (key::TYPES, codes.into()),
        (key::SCORES, scores.into()),
        (key::EOS, Value::U32(2)),
        (key::BOS, Value::U32(1)),
    ];
    let usual = usual.into_iter().filter(|(key, _)| !given.contains(key)).collect::<Vec<_>>();
    let metadata: Metadata = entries.iter().cloned().chain(usual).collect();
    repaired(VocabParts::read(&metadata).unwrap())
}

#[test]
fn a_good_vocabulary_is_left_as_it_is() {
    let repaired = repaired(spm());
    assert_eq!(repaired.warnings.lines(), [""; 0]);
    assert_eq!(
        (repaired.bos, repaired.eos, repaired.unknown),
        (Some(TokenId(1)), Some(TokenId(2)), Some(TokenId(0)))
    );
    assert_eq!(repaired.scores, spm().scores.unwrap());
    assert!(repaired.add_bos && repaired.spaces == Spaces::before_each(true));
}

#[test]
fn an_id_outside_the_vocabulary_is_no_token() {
    let count = KINDS.len() as i64;
    for bad in [count, i64::from(u32::MAX), -1, i64::MAX, i64::MIN] {
        let expected = ["expected a token id below 8", &format!("found {bad}:")];
        let found = repaired(VocabParts { eos: Some(bad), ..spm() });
        told(&found, &[&["`tokenizer.ggml.eos_token_id`"], &expected[..]].concat());
        assert_eq!((found.eos, found.bos), (None, Some(TokenId(1))));
        let found = repaired(VocabParts { bos: Some(bad), ..spm() });
        told(&found, &[&["`tokenizer.ggml.bos_token_id`"], &expected[..]].concat());
        assert_eq!((found.bos, found.eos), (None, Some(TokenId(2))));
        let found = repaired(VocabParts { unknown: Some(bad), ..spm() });
        told(&found, &[&["`tokenizer.ggml.unknown_token_id`"], &expected[..]].concat());
        assert_eq!(found.unknown, None);
        let found = repaired(VocabParts { eot: Some(bad), ..spm() });
        told(&found, &[&["`tokenizer.ggml.eot_token_id`"], &expected[..]].concat());
        assert_eq!(found.ends, [TokenId(2)]);
        let found = repaired(VocabParts { padding: Some(bad), ..spm() });
        told(&found, &[&["`tokenizer.ggml.padding_token_id`"], &expected[..]].concat());
    }
}

#[test]
fn ids_of_any_type_are_read() {
    for (value, expected) in [
        (Value::I32(2), Some(2)),
        (Value::U8(2), Some(2)),
        (Value::I64(2), Some(2)),
        (Value::U64(2), Some(2)),
        (Value::F32(2.0), Some(2)),
    ] {
        let found = read(vec![(key::EOS, value)]);
        assert_eq!(found.eos.map(|id| id.0), expected);
        assert_eq!(found.warnings.lines(), [""; 0]);
    }
    for value in [Value::I32(-1), Value::I64(-1), Value::U64(u64::MAX), Value::F64(-1.0)] {
        let found = read(vec![(key::EOS, value)]);
        assert_eq!(found.eos, None);
        told(&found, &["`tokenizer.ggml.eos_token_id`", "no such token", "(memory)"]);
    }
    for value in [Value::F64(0.5), Value::Bool(true), Value::from("<none>"), Value::from(vec![true])] {
        let (found_type, found) = (value.type_name(), read(vec![(key::PADDING, value)]));
        told(&found, &["`tokenizer.ggml.padding_token_id`: expected a token id", found_type, "left out"]);
    }
}

#[test]
fn ids_may_be_pieces_or_lists() {
    let found = read(vec![(key::EOS, Value::from("</s>"))]);
    assert_eq!(found.eos, Some(TokenId(2)));
    told(&found, &["found string", "the ids [2]"]);
    let found = read(vec![(key::EOS, Value::from(vec![2i32, 7]))]);
    assert_eq!((found.eos, found.ends.as_slice()), (Some(TokenId(2)), &[TokenId(7), TokenId(2)][..]));
    told(&found, &["found array of i32", "the ids [2, 7]"]);
}

#[test]
fn kinds_of_any_type_are_read() {
    let codes = || KINDS.iter().map(|&(_, kind)| kind);
    for value in [
        Value::from(codes().collect::<Vec<u32>>()),
        codes().map(|code| code as u8).collect::<Vec<_>>().into(),
        codes().map(i64::from).collect::<Vec<_>>().into(),
        codes().map(|code| code as f32).collect::<Vec<_>>().into(),
    ] {
        let found = read(vec![(key::TYPES, value)]);
        assert_eq!(found.kinds, repaired(spm()).kinds);
        assert_eq!(found.warnings.lines(), [""; 0]);
    }
}

#[test]
fn missing_kinds_are_known_by_the_spelling() {
    for types in [None, Some(vec![]), Some(vec![2])] {
        let found = repaired(VocabParts { types, ..spm() });
        assert_eq!(found.kinds, repaired(spm()).kinds);
        let lines = found.warnings.lines();
        assert!(lines[0].contains("`tokenizer.ggml.token_type`"), "{lines:?}");
    }
    let text = Value::from(vec!["control".to_owned()]);
    let found = read(vec![(key::TYPES, text)]);
    assert!(found.warnings.lines()[0].contains("expected an array of integers, found array of string"));
    assert_eq!(found.kinds[7], TokenKind::Control);
}

#[test]
fn further_kinds_and_codes_that_are_none_are_told() {
    let good = repaired(spm()).kinds;
    let mut types = spm().types.unwrap();
    types.extend([1, 1]);
    let found = repaired(VocabParts { types: Some(types.clone()), ..spm() });
    told(&found, &["has 10 values, the vocabulary 8 tokens"]);
    assert_eq!(found.kinds, good);
    types.truncate(8);
    (types[4], types[5]) = (77, u32::MAX);
    let found = repaired(VocabParts { types: Some(types), ..spm() });
    told(&found, &["expected 0 to 6, found 2 other values, the first at index 4"]);
    assert_eq!(found.kinds, good);
}

#[test]
fn control_tokens_that_are_marked_as_text_are_control_tokens() {
    for (piece, kind) in [
        ("<|im_end|>", 1),
        ("<|eot_id|>", 1),
        ("<|endoftext|>", 0),
        ("<end_of_turn>", 1),
        ("<|im_start|>", 1),
        ("<|some_role|>", 1),
        // Known names are control tokens even if the file lists them as user-defined.
        ("<|im_end|>", 4),
        ("<|im_start|>", 4),
        ("<end_of_turn>", 5),
        // Markers of DeepSeek's distilled models, EXAONE, Command R and Phi, listed as user-defined.
        ("<｜User｜>", 1),
        ("<｜User｜>", 4),
        ("<｜Assistant｜>", 4),
        ("<｜tool▁calls▁begin｜>", 4),
        ("<|START_OF_TURN_TOKEN|>", 4),
        ("<|/tool_call|>", 4),
        ("[|user|]", 4),
        ("[INST]", 4),
        ("[/INST]", 1),
    ] {
        let found = repaired(bpe(&[("<e>", 3), (piece, kind), ("a", 1)]));
        assert_eq!(found.kinds, [TokenKind::Control, TokenKind::Control, TokenKind::Normal], "{piece}");
        told(&found, &["`tokenizer.ggml.token_type`", &format!("{piece:?} is taken for a control token")]);
    }
    for (piece, kind) in [
        ("<think>", 4),
        ("<tool_call>", 4),
        ("<b>", 1),
        ("<|", 1),
        ("<||>", 4),
        ("<｜｜>", 4),
        ("<|a b|>", 4),
        ("<|a|>|>", 4),
        ("<｜a|>", 4),
        ("[|", 1),
        ("</s>", 1),
    ] {
        let found = repaired(bpe(&[("<e>", 3), (piece, kind), ("a", 1)]));
        assert_eq!(found.warnings.lines(), [""; 0], "{piece}");
        assert_ne!(found.kinds[1], TokenKind::Control, "{piece}");
    }
    let found = repaired(bpe(&[("<|im_end|>", 1), ("<|im_start|>", 1), ("<|x|>", 1)]));
    told(&found, &["\"<|im_end|>\" (and 2 more)"]);
}

#[test]
fn a_special_id_makes_a_special_token() {
    let found =
        repaired(VocabParts { bos: Some(1), unknown: Some(2), ..bpe(&[("</s>", 1), ("[B]", 1), ("?", 1)]) });
    assert_eq!(found.kinds, [TokenKind::Control, TokenKind::Control, TokenKind::Unknown]);
    let found = repaired(VocabParts { bos: Some(1), ..bpe(&[("</s>", 4), ("[B]", 4), ("<think>", 4)]) });
    assert_eq!(found.kinds, [TokenKind::Control, TokenKind::Control, TokenKind::UserDefined]);
    let found = repaired(bpe(&[(",", 1), ("a", 1)]));
    assert_eq!((found.eos, found.kinds[0]), (Some(TokenId(0)), TokenKind::Normal));
    told(&found, &["is 0, the text \",\": answers end there"]);
}

#[test]
fn byte_tokens_are_known_by_their_spelling() {
    let mut parts = spm();
    parts.types.as_mut().unwrap()[3] = 1;
    let found = repaired(parts.clone());
    assert_eq!(found.kinds[3], TokenKind::Byte);
    told(&found, &["\"<0x41>\" is taken for a byte"]);
    // If the byte has a token, the other one is text.
    parts.types.as_mut().unwrap()[3] = 6;
    parts.tokens.push("<0x41>");
    parts.types.as_mut().unwrap().push(1);
    parts.scores.as_mut().unwrap().push(-9.0);
    let found = repaired(parts);
    assert_eq!((found.kinds[8], found.warnings.lines()), (TokenKind::Normal, &[] as &[String]));
}

#[test]
fn missing_scores_are_known_by_the_order() {
    // The fifth piece is a space.
    let expected = [0.0, -1.0, -2.0, -3.0, -1e9, -5.0, -6.0, -7.0];
    for (scores, what) in [
        (None, "is missing"),
        (Some(vec![]), "is missing"),
        (Some(vec![0.0; 8]), "is the same for all pieces"),
    ] {
        let found = repaired(VocabParts { scores, ..spm() });
        assert_eq!(found.scores, expected);
        told(&found, &["`tokenizer.ggml.scores`", what]);
    }
    let found = repaired(VocabParts { scores: None, ..bpe(&[("<e>", 3), ("ab", 1), ("abc", 1)]) });
    assert_eq!(found.warnings.lines(), [""; 0], "byte-level vocabularies have none");
}

#[test]
fn scores_that_do_not_fit_are_cut_or_lowest() {
    let mut scores = spm().scores.unwrap();
    scores.truncate(6);
    let found = repaired(VocabParts { scores: Some(scores.clone()), ..spm() });
    assert_eq!((found.scores[5], found.scores[6], found.scores[7]), (-5.0, -1000.0, -1000.0));
    told(&found, &["has 6 values, the vocabulary 8 tokens"]);
    scores.extend([-6.0, -7.0, -8.0]);
    scores[5] = f32::NAN;
    let found = repaired(VocabParts { scores: Some(scores), ..spm() });
    assert_eq!((found.scores.len(), found.scores[5], found.scores[7]), (8, -1000.0, -7.0));
    assert!(found.warnings.lines()[1].contains("1 values are no numbers, the first at index 5"));
    let integers = Value::from((0..8).map(|score| -score).collect::<Vec<i32>>());
    let found = read(vec![(key::SCORES, integers)]);
    assert_eq!((found.scores[7], found.warnings.lines()), (-7.0, &[] as &[String]));
}

#[test]
fn missing_ids_are_known_by_their_names() {
    let found = repaired(VocabParts { bos: None, eos: None, unknown: None, ..spm() });
    assert_eq!((found.bos, found.eos, found.unknown), (Some(TokenId(1)), Some(TokenId(2)), Some(TokenId(0))));
    let lines = found.warnings.lines();
    assert!(
        lines[0].contains("`tokenizer.ggml.eos_token_id` is missing: `</s>`, token 2, is taken"),
        "{lines:?}"
    );
    assert!(
        lines[1].contains("`tokenizer.ggml.bos_token_id` is missing: `<s>`, token 1, is taken"),
        "{lines:?}"
    );
    // BOS is not needed if the text does not start with it.
    let found = repaired(VocabParts { bos: None, add_bos: Some(false), ..spm() });
    assert_eq!((found.bos, found.warnings.lines()), (None, &[] as &[String]));
}

#[test]
fn flags_of_any_type_are_read() {
    for (value, expected) in [
        (Value::Bool(false), false),
        (Value::U8(0), false),
        (Value::I32(1), true),
        (Value::from("False"), false),
        (Value::from("true"), true),
    ] {
        let found = read(vec![(key::ADD_BOS, value)]);
        assert_eq!((found.add_bos, found.warnings.lines()), (expected, &[] as &[String]));
    }
    let found = read(vec![(key::ADD_BOS, Value::U32(7))]);
    assert!(found.add_bos, "the default of SentencePiece");
    told(&found, &["`tokenizer.ggml.add_bos_token`: expected a boolean, found u32"]);
}

/// Like [`bpe`], with a given pre-tokenizer.
fn recognised(tokens: &[(&str, u32)], pre: &str) -> VocabData {
    repaired(VocabParts { pre: pre.to_owned(), bos: Some(1), ..bpe(tokens) })
}

#[test]
fn a_missing_pre_tokenizer_is_known_by_the_vocabulary() {
    let end = ("<|endoftext|>", 3);
    let llama3 = [end, ("<|begin_of_text|>", 3), ("<|eot_id|>", 3), ("<|start_header_id|>", 3)];
    for (tokens, expected) in [
        (&llama3[..], "llama-bpe"),
        (&[end, ("<|begin_of_text|>", 3), ("<|header_start|>", 3), ("<|eot|>", 3)], "llama4"),
        (&[end, (";Ċ", 1), ("1", 1), ("a", 1)], "qwen2"),
        (&[end, (");ĊĊ", 1), ("12", 1), ("a", 1)], "dbrx"),
        (&[end, ("<|object_ref_start|>", 3), ("12", 1)], "qwen2"),
        (&[end, ("<jupyter_start>", 3), ("a", 1)], "starcoder"),
        (&[end, ("[AVAILABLE_TOOLS]", 3), ("a", 1)], "tekken"),
        (&[end, (">>TITLE<<", 3), ("a", 1)], "falcon"),
    ] {
        for pre in ["", "default"] {
            let found = recognised(tokens, pre);
            assert_eq!(found.pre, expected);
            told(&found, &["`tokenizer.ggml.pre`", &format!("the rule `{expected}` is used"), "looks like"]);
        }
        let found = recognised(tokens, "smollm");
        assert_eq!((found.pre.as_str(), found.warnings.lines()), ("smollm", &[] as &[String]));
    }
    // Llama 3 starts with BOS by default; the others do not.
    assert!(repaired(VocabParts { bos: Some(1), ..recognised_parts(&llama3) }).add_bos);
    assert!(!repaired(VocabParts { bos: Some(1), ..recognised_parts(&[end, (";Ċ", 1)]) }).add_bos);
    let found = recognised(&[end, ("a", 1), ("12", 1)], "");
    assert_eq!(found.pre, "gpt-2");
    told(&found, &["is missing", "`gpt-2`", "a guess"]);
}

fn recognised_parts(tokens: &[(&str, u32)]) -> VocabParts {
    VocabParts { pre: String::new(), ..bpe(tokens) }
}

#[test]
fn large_vocabularies_without_numbers_cut_digits() {
    let words: Vec<String> =
        (0..10_000u32).map(|n| n.to_string().bytes().map(|b| char::from(b + 49)).collect()).collect();
    let mut tokens: Vec<(&str, u32)> = vec![("<|endoftext|>", 3)];
    tokens.extend(words.iter().map(|word| (word.as_str(), 1)));
    assert_eq!(recognised(&tokens, "").pre, "smollm");
    tokens.push(("Ġ1984", 1));
    assert_eq!(recognised(&tokens, "").pre, "gpt-2");
}

#[test]
fn empty_and_equal_pieces_are_no_fault() {
    let found = repaired(bpe(&[("<e>", 3), ("", 1), ("", 5), ("a", 1), ("a", 1), ("", 3)]));
    assert_eq!(found.warnings.lines(), [""; 0]);
}

#[test]
fn a_warning_is_one_line_of_bounded_length() {
    let piece = format!("<|{}|>", "x".repeat(1000));
    let found = repaired(bpe(&[("<e>", 3), (&piece, 1), ("a\u{1b}[2J\n", 1)]));
    let [line] = found.warnings.lines() else { panic!("one line") };
    assert!(line.chars().count() <= 300 && !line.contains(char::is_control), "{line}");
}

#[test]
fn runs_of_spaces_alone_come_last() {
    let scores = ["a", "▁the", "▁▁"].map(|piece| score_by_order((7, piece)));
    assert_eq!(scores, [-7.0, -7.0, SPACES_SCORE]);
}
