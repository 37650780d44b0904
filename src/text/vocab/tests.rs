//! Tests of the vocabulary: spelling, kinds, ids, and metadata that do not fit together.

use super::*;
use crate::weights::Value;

fn spm(tokens: &[(&str, u32)]) -> VocabParts {
    VocabParts {
        model: "llama".to_owned(),
        tokens: tokens.iter().map(|(piece, _)| piece).collect(),
        types: Some(tokens.iter().map(|&(_, kind)| kind).collect()),
        scores: Some(vec![0.0; tokens.len()]),
        ..VocabParts::default()
    }
}

fn error(parts: &VocabParts) -> String {
    Vocab::from_parts(parts).unwrap_err().to_string()
}

#[test]
fn sentencepiece_spells_spaces_and_bytes() {
    let vocab = Vocab::from_parts(&spm(&[
        ("▁a▁", 1),
        ("<0xC3>", 6),
        ("<0xC3>", 1),
        ("<bos>", 3),
        ("▁", 4),
        ("<unk>", 2),
    ]))
    .unwrap();
    let spelled: Vec<&[u8]> = vocab.ids().filter_map(|id| vocab.bytes(id)).collect();
    assert_eq!(spelled, [b" a ".as_slice(), b"\xc3", b"<0xC3>", b"<bos>", "▁".as_bytes(), b"<unk>"]);
    assert_eq!(vocab.piece(TokenId(0)), Some("▁a▁"));
    assert_eq!(vocab.bytes(TokenId(6)), None);
    assert!(vocab.is_control(TokenId(3)) && vocab.is_control(TokenId(5)) && !vocab.is_control(TokenId(4)));
    assert!(vocab.add_bos() && vocab.add_space_prefix());
    assert_eq!(vocab.find("<0xC3>"), Some(TokenId(1)));
}

#[test]
fn byte_level_spells_the_alphabet() {
    let parts = VocabParts {
        model: "gpt2".to_owned(),
        tokens: ["Ġhi", "Ã", "<|im_end|>", "日"].into_iter().collect(),
        types: Some(vec![1, 1, 3, 1]),
        ..VocabParts::default()
    };
    let vocab = Vocab::from_parts(&parts).unwrap();
    let spelled: Vec<&[u8]> = vocab.ids().filter_map(|id| vocab.bytes(id)).collect();
    assert_eq!(spelled, [b" hi".as_slice(), b"\xc3", b"<|im_end|>", "日".as_bytes()]);
    assert!(!vocab.add_bos() && !vocab.add_space_prefix());
    assert_eq!(vocab.stop_ids(), [TokenId(2)]);
}

#[test]
fn stop_ids_are_eos_and_control_markers() {
    let mut parts = spm(&[("<eos>", 3), ("<end_of_turn>", 3), ("<|im_end|>", 1), ("x", 1)]);
    parts.eos = Some(0);
    parts.eot = Some(3);
    assert_eq!(Vocab::from_parts(&parts).unwrap().stop_ids(), [TokenId(0), TokenId(1), TokenId(3)]);
}

#[test]
fn metadata_that_do_not_fit_are_named() {
    let good = spm(&[("a", 1), ("b", 1)]);
    let cases = [
        (
            VocabParts { tokens: Strings::default(), ..good.clone() },
            "`tokenizer.ggml.tokens`: expected between 1",
        ),
        (VocabParts { model: "t5".to_owned(), ..good.clone() }, "`tokenizer.ggml.model` is `t5`"),
        (
            VocabParts { types: Some(vec![1]), ..good.clone() },
            "`tokenizer.ggml.token_type`: expected 2 values",
        ),
        (VocabParts { types: Some(vec![1, 77]), ..good.clone() }, "found 77 at index 1"),
        (VocabParts { scores: None, ..good.clone() }, "key `tokenizer.ggml.scores` expected"),
        (VocabParts { scores: Some(vec![]), ..good.clone() }, "`tokenizer.ggml.scores`: expected 2 values"),
        (VocabParts { scores: Some(vec![0.0, f32::NAN]), ..good.clone() }, "found NaN at index 1"),
        (VocabParts { bos: Some(2), ..good.clone() }, "`tokenizer.ggml.bos_token_id`: expected a token id"),
        (VocabParts { eos: Some(u32::MAX), ..good.clone() }, "`tokenizer.ggml.eos_token_id`"),
        (VocabParts { eot: Some(9), ..good.clone() }, "`tokenizer.ggml.eot_token_id`"),
        (VocabParts { unknown: Some(9), ..good.clone() }, "`tokenizer.ggml.unknown_token_id`"),
    ];
    for (parts, expected) in cases {
        let message = error(&parts);
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
}

#[test]
fn metadata_of_a_file_are_read() {
    use crate::weights::{Array, GgufWriter, ModelFile};
    let read = |writer: &GgufWriter| {
        let file = ModelFile::from_bytes("tiny.gguf", writer.to_bytes()).unwrap();
        Vocab::from_metadata(file.metadata()).map_err(|error| error.to_string())
    };
    let mut writer = GgufWriter::new();
    assert_eq!(
        read(&writer).unwrap_err(),
        "tokenizer: key `tokenizer.ggml.model` expected, but the file has none"
    );
    writer.metadata(key::MODEL, Value::String("llama".to_owned()));
    assert!(read(&writer).unwrap_err().contains("key `tokenizer.ggml.tokens` expected"));
    let tokens = ["<s>", "▁a"].into_iter().collect();
    writer.metadata(key::TOKENS, Value::Array(Array::String(tokens)));
    writer.metadata(key::SCORES, Value::Array(Array::F32(vec![0.0, -1.0])));
    writer.metadata(key::TYPES, Value::Array(Array::I32(vec![3, 1])));
    writer.metadata(key::BOS, Value::U32(0));
    writer.metadata(key::ADD_BOS, Value::Bool(false));
    let vocab = read(&writer).unwrap();
    assert_eq!((vocab.len(), vocab.bos(), vocab.add_bos()), (2, Some(TokenId(0)), false));
    assert_eq!(vocab.bytes(TokenId(1)), Some(b" a".as_slice()));
    writer.metadata(key::EOS, Value::String("</s>".to_owned()));
    assert!(read(&writer).unwrap_err().contains("`tokenizer.ggml.eos_token_id`: expected an integer"));
}
