//! Tests of the vocabulary: spelling, kinds, ids, and inconsistent metadata.

use super::super::parts::key;
use super::*;
use crate::checkpoint::Value;

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
    let mut parts =
        spm(&[("<eos>", 3), ("<end_of_turn>", 3), ("</s>", 1), ("x", 1), ("<b>", 3), ("</s>", 3)]);
    parts.eos = Some(0);
    parts.eot = Some(3);
    parts.ends = vec![4];
    let stops = [0, 1, 3, 4, 5].map(TokenId);
    assert_eq!(Vocab::from_parts(&parts).unwrap().stop_ids(), stops);
}

#[test]
fn where_messages_end_otherwise_their_end_is_not_the_answers() {
    let parts = spm(&[("<|end|>", 3), ("<|return|>", 3), ("<|call|>", 3), ("a", 1)]);
    assert_eq!(Vocab::from_parts(&parts).unwrap().stop_ids(), [TokenId(1), TokenId(2)]);
    let parts = spm(&[("<|end|>", 3), ("<|call|>", 3), ("a", 1)]);
    assert_eq!(Vocab::from_parts(&parts).unwrap().stop_ids(), [TokenId(0)]);
}

#[test]
fn metadata_that_say_nothing_are_named() {
    let good = spm(&[("a", 1), ("b", 1)]);
    let cases = [
        (
            VocabParts { tokens: Strings::default(), ..good.clone() },
            "`tokenizer.ggml.tokens`: expected between 1",
        ),
        (VocabParts { model: "rwkv".to_owned(), ..good.clone() }, "`tokenizer.ggml.model` is `rwkv`"),
    ];
    for (parts, expected) in cases {
        let message = error(&parts);
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
}

#[test]
fn metadata_of_a_file_are_read() {
    use crate::checkpoint::{Array, Checkpoint, GgufWriter, ModelFile};
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
    assert_eq!((vocab.eos(), vocab.warnings()), (None, &[] as &[String]));
    // Errors and warnings name the file and the key.
    writer.metadata(key::EOS, Value::String("</s>".to_owned()));
    let vocab = read(&writer).unwrap();
    let told =
        "tiny.gguf: tokenizer: `tokenizer.ggml.eos_token_id`: expected a token id, found string: left out";
    assert_eq!((vocab.eos(), vocab.warnings()), (None, [told.to_owned()].as_slice()));
}
