//! Tests of end-of-turn detection.

use super::*;
use crate::checkpoint::{Array, Metadata, Value};

/// Vocabulary of all bytes, followed by these control tokens from id 256 on. The first is the end of
/// sequence.
fn tokenizer(markers: &[&str]) -> Tokenizer {
    let bytes = (0..=255).map(|byte| super::super::byte_level::char_of(byte).to_string());
    let tokens: Vec<String> = bytes.chain(markers.iter().map(|&marker| marker.to_owned())).collect();
    let kinds: Vec<i32> = tokens.iter().map(|token| if token.chars().count() > 1 { 3 } else { 1 }).collect();
    let merges = ["a b".to_owned()].into_iter().collect();
    let metadata: Metadata = [
        ("tokenizer.ggml.model", Value::from("gpt2")),
        ("tokenizer.ggml.pre", Value::from("gpt-2")),
        ("tokenizer.ggml.tokens", tokens.into()),
        ("tokenizer.ggml.token_type", kinds.into()),
        ("tokenizer.ggml.merges", Value::Array(Array::String(merges))),
        ("tokenizer.ggml.eos_token_id", Value::U32(256)),
        ("tokenizer.ggml.bos_token_id", Value::U32(258)),
    ]
    .into_iter()
    .collect();
    Tokenizer::from_metadata(&metadata).unwrap()
}

fn stops(source: &str) -> (Vec<u32>, usize) {
    let mut tokenizer = tokenizer(&["<e>", "<turn-end>", "<b>"]);
    let before = tokenizer.vocab().warnings().len();
    let template = ChatTemplate::from_source(source, tokenizer.vocab()).unwrap();
    tokenizer.end_turns_as(&template);
    let vocab = tokenizer.vocab();
    (vocab.stop_ids().iter().map(|id| id.0).collect(), vocab.warnings().len() - before)
}

#[test]
fn the_token_after_an_answer_ends_answers() {
    let messages = "{% for m in messages %}<b>{{ m.role }}: {{ m.content }}";
    let all = |end: &str| format!("{messages}{end}{{% endfor %}}");
    assert_eq!(stops(&all("<turn-end>\n")), (vec![256, 257], 1));
    assert_eq!(stops(&all("\n<turn-end>")), (vec![256, 257], 1));
    // No new stop token: the end of sequence, plain text, nothing, and the start of the next message.
    assert_eq!(stops(&all("<e>")), (vec![256], 0));
    assert_eq!(stops(&all("\n")), (vec![256], 0));
    assert_eq!(stops(&all("")), (vec![256], 0));
    assert_eq!(stops(&all("<b>")), (vec![256], 0));
    assert_eq!(stops("{{ raise_exception('no') }}"), (vec![256], 0));
}

#[test]
fn the_warning_names_the_token() {
    let mut tokenizer = tokenizer(&["<e>", "<turn-end>", "<b>"]);
    let source = "{% for m in messages %}{{ m.content }}<turn-end>{% endfor %}";
    let template = ChatTemplate::from_source(source, tokenizer.vocab()).unwrap();
    tokenizer.end_turns_as(&template);
    let told = tokenizer.vocab().warnings().last().unwrap();
    assert!(told.contains("\"<turn-end>\", token 257"), "{told}");
}
