//! A byte-level vocabulary that does not say how text is split before it is merged: it is split as by
//! `default`, and as by no other rule.

#![cfg(feature = "text")]

mod tiny;

use ottava::TokenId;
use ottava::checkpoint::{Checkpoint, GgufWriter, ModelFile};
use ottava::text::{AddBos, Special, Tokenizer};
use tiny::Outcome;

/// Bytes, and merges that only one rule of splitting lets through.
fn tokenizer(pre: Option<&str>) -> Outcome<Tokenizer> {
    let mut tokens: Vec<String> = ('!'..='~').map(String::from).collect();
    let pairs =
        [("1", "2"), ("12", "3"), ("123", "4"), ("'", "S"), ("Ġ", "Ġ"), ("a", "b"), ("!", "!"), ("Ġ", "1")];
    tokens.extend(["Ġ", "Ċ"].map(String::from));
    tokens.extend(pairs.map(|(left, right)| format!("{left}{right}")));
    let mut writer = GgufWriter::new();
    writer.metadata("tokenizer.ggml.model", "gpt2");
    writer.metadata("tokenizer.ggml.token_type", vec![1_i32; tokens.len()]);
    writer.metadata("tokenizer.ggml.tokens", tokens);
    writer.metadata("tokenizer.ggml.merges", pairs.map(|(left, right)| format!("{left} {right}")).to_vec());
    if let Some(pre) = pre {
        writer.metadata("tokenizer.ggml.pre", pre);
    }
    let file = ModelFile::from_bytes("vocabulary.gguf", writer.to_bytes())?;
    Ok(Tokenizer::from_metadata(file.metadata())?)
}

const TEXTS: [&str; 8] = ["1234", "ab 1234!!", "I'S", "a  b", "  ab", "ab\n\nab", "!!ab", " 1 12 123"];

fn encoded(tokenizer: &Tokenizer) -> Outcome<Vec<Vec<TokenId>>> {
    TEXTS.iter().map(|text| Ok(tokenizer.encode(text, Special::Text, AddBos::No)?)).collect()
}

#[test]
fn no_rule_is_the_default_rule() -> Outcome {
    let without = tokenizer(None)?;
    let found = encoded(&without)?;
    assert_eq!(found, encoded(&tokenizer(Some("default"))?)?);
    assert_eq!(found, encoded(&tokenizer(Some(""))?)?);
    for (ids, text) in found.iter().zip(TEXTS) {
        assert_eq!(without.decode(ids), text);
    }
    for other in ["llama-bpe", "qwen2", "smollm"] {
        assert_ne!(found, encoded(&tokenizer(Some(other))?)?, "the texts do not tell {other} from it");
    }
    Ok(())
}

#[test]
fn a_rule_that_nobody_has_is_refused_by_name() -> Outcome {
    let error = tokenizer(Some("no-such-rule")).err().ok_or("accepted")?.to_string();
    assert!(error.contains("no-such-rule") && error.contains("tokenizer.ggml.pre"), "{error}");
    Ok(())
}
