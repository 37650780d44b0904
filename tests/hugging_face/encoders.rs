//! Tokenizers of encoder models: small vocabularies with inputs, ids, token types and decoded texts as
//! Hugging Face's `tokenizers` 0.23 made them (`tests/golden/encoders`), from a `tokenizer.json` and from
//! the same vocabulary in GGUF.

use ottava::checkpoint::{self, Array, Checkpoint, GgufWriter, ModelFile, OpenOptions, Value as Entry};
use ottava::text::{Encoding, Special, TextError, Texts, Tokenizer, TokensMax};
use serde_json::Value;

use crate::folder::{Folder, document};
use crate::tiny::Outcome;

#[derive(serde::Deserialize)]
struct Case {
    text: String,
    second: Option<String>,
    max: Option<usize>,
    ids: Vec<u32>,
    types: Vec<u32>,
    decoded: String,
}

fn golden(name: &str) -> Outcome<(Value, Vec<Case>)> {
    let mut golden = document(&format!("encoders/{name}.json"))?;
    let cases: Vec<Case> = serde_json::from_value(golden["cases"].take())?;
    assert!(cases.len() > 40);
    Ok((golden["tokenizer"].take(), cases))
}

fn tokenizer(document: &Value) -> Outcome<Tokenizer> {
    let folder =
        Folder::of("llama")?.with("tokenizer.json", document).without("tokenizer_config.json").write()?;
    Ok(Tokenizer::from_checkpoint(&*checkpoint::open(folder.path(), &OpenOptions::default())?)?)
}

fn encode(tokenizer: &Tokenizer, case: &Case) -> Result<Encoding, TextError> {
    let texts = Texts { first: &case.text, second: case.second.as_deref() };
    let max = case.max.map_or(TokensMax::Refuse(usize::MAX), TokensMax::Truncate);
    tokenizer.encode_input(texts, Special::Text, max)
}

fn compare(tokenizer: &Tokenizer, cases: &[Case]) -> Outcome {
    for case in cases {
        let found = encode(tokenizer, case)?;
        let ids: Vec<u32> = found.ids.iter().map(|id| id.0).collect();
        assert_eq!(ids, case.ids, "{:?}, {:?}, {:?}", case.text, case.second, case.max);
        assert_eq!(found.types, case.types, "{:?}, {:?}", case.text, case.second);
        assert_eq!(tokenizer.decode(&found.ids), case.decoded, "{:?}, {:?}", case.text, case.second);
    }
    Ok(())
}

#[test]
fn wordpiece_inputs_have_the_recorded_ids() -> Outcome {
    let (document, cases) = golden("wordpiece")?;
    let tokenizer = tokenizer(&document)?;
    assert_eq!(tokenizer.vocab().warnings(), &[] as &[String]);
    assert_eq!((tokenizer.special_tokens(false), tokenizer.special_tokens(true)), (2, 3));
    compare(&tokenizer, &cases)
}

#[test]
fn unigram_inputs_have_the_recorded_ids() -> Outcome {
    let (document, cases) = golden("unigram")?;
    let tokenizer = tokenizer(&document)?;
    assert_eq!((tokenizer.special_tokens(false), tokenizer.special_tokens(true)), (2, 4));
    compare(&tokenizer, &cases)
}

/// The vocabulary as llama.cpp's converter writes it.
#[test]
fn wordpiece_of_gguf_has_the_recorded_ids() -> Outcome {
    let (document, mut cases) = golden("wordpiece")?;
    let vocab = document["model"]["vocab"].as_object().expect("pieces and ids");
    let is_special = |piece: &str| piece.starts_with('[') && piece.len() > 1;
    let spelled = vocab.keys().map(|piece| match piece.strip_prefix("##") {
        Some(rest) if !rest.is_empty() => rest.to_owned(),
        _ if is_special(piece) => piece.clone(),
        _ => format!("\u{2581}{piece}"),
    });
    let mut writer = GgufWriter::new();
    writer.metadata("tokenizer.ggml.model", "bert");
    writer.metadata("tokenizer.ggml.tokens", Entry::Array(Array::String(spelled.collect())));
    let kinds = vocab.keys().map(|piece| if is_special(piece) { 3 } else { 1 });
    writer.metadata("tokenizer.ggml.token_type", Entry::Array(Array::I32(kinds.collect())));
    for (key, id) in [("unknown", 1_u32), ("cls", 2), ("seperator", 3), ("mask", 4), ("padding", 0)] {
        writer.metadata(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    let file = ModelFile::from_bytes("bert.gguf", writer.to_bytes())?;
    let tokenizer = Tokenizer::from_metadata(file.metadata())?;
    // GGUF has no key for the longest word.
    cases.retain(|case| !case.text.contains("xxxx"));
    compare(&tokenizer, &cases)?;
    writer.metadata("tokenizer.ggml.token_type_count", 1_u32);
    let file = ModelFile::from_bytes("bert.gguf", writer.to_bytes())?;
    let one_type = Tokenizer::from_metadata(file.metadata())?;
    let pair = one_type.encode_input(Texts::pair("a", "b"), Special::Text, TokensMax::Refuse(9))?;
    assert_eq!(pair.types, [0; 5]);
    Ok(())
}

#[test]
fn long_inputs_are_refused_or_truncated() -> Outcome {
    let tokenizer = tokenizer(&golden("wordpiece")?.0)?;
    let encode = |texts, max| tokenizer.encode_input(texts, Special::Text, max);
    let whole = encode(Texts::pair("a b c", "d e"), TokensMax::Refuse(8))?;
    assert_eq!((whole.ids.len(), whole.untruncated), (8, 8));
    for (texts, max) in [
        (Texts::pair("a b c", "d e"), TokensMax::Refuse(7)),
        (Texts::single("a b c"), TokensMax::Refuse(4)),
        (Texts::single(""), TokensMax::Refuse(1)),
        (Texts::single("a"), TokensMax::Truncate(1)),
    ] {
        let error = encode(texts, max).expect_err("too long");
        assert!(matches!(error, TextError::TooLong { .. }), "{texts:?}: {error}");
    }
    let cut = encode(Texts::pair("a b c", "d e"), TokensMax::Truncate(7))?;
    assert_eq!((cut.ids.len(), cut.untruncated, &cut.ids[..3]), (7, 8, &whole.ids[..3]));
    // The names of special tokens are text, unless a caller trusts the text.
    let parsed = tokenizer.encode_input(Texts::single("[SEP]"), Special::Parse, TokensMax::Refuse(9))?;
    assert_eq!(parsed.ids[1], *parsed.ids.last().expect("a separator"));
    assert!(encode(Texts::single("[SEP]"), TokensMax::Refuse(9))?.ids.len() > 3);
    Ok(())
}

#[test]
fn damaged_encoder_documents_are_refused_by_key() -> Outcome {
    let [wordpiece, unigram] = [golden("wordpiece")?.0, golden("unigram")?.0];
    let cases: [(&Value, &str, Value, &str); 9] = [
        (&wordpiece, "/model/vocab", Value::Null, "model.vocab: expected an object"),
        (&wordpiece, "/normalizer/type", "Nmt".into(), "normalizer.type: expected a step of BERT"),
        (&wordpiece, "/pre_tokenizer/type", "Digits".into(), "pre_tokenizer.type: expected BertPreTokenizer"),
        (
            &wordpiece,
            "/post_processor/pair/0/SpecialToken/id",
            "[X]".into(),
            "post_processor: expected special",
        ),
        (&unigram, "/model/vocab/7", "piece".into(), "model.vocab: expected a piece and a score each"),
        (&unigram, "/model/unk_id", 9999.into(), "model.unk_id: expected the index of a piece"),
        (
            &unigram,
            "/normalizer/normalizers/0/precompiled_charsmap",
            "AAAA".into(),
            "precompiled_charsmap: expected a double array",
        ),
        (
            &unigram,
            "/normalizer/normalizers/2/pattern/Regex",
            "(?=a)".into(),
            "Regex: expected an expression",
        ),
        (&unigram, "/pre_tokenizer/replacement", "_".into(), "pre_tokenizer.replacement: expected"),
    ];
    for (document, pointer, value, words) in cases {
        let mut document = document.clone();
        *document.pointer_mut(pointer).expect("the place is there") = value;
        let error =
            tokenizer(&document).err().map_or_else(|| "accepted".to_owned(), |error| error.to_string());
        assert!(error.contains(words), "{pointer}: expected {words}, found {error}");
    }
    Ok(())
}
