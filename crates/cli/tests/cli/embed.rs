//! `ottava embed`: vectors of texts, as lines and as JSON.

use super::*;

const BERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/families/bert.gguf");
const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/families/llama.gguf");

/// Vectors and token counts of a call with `--json`.
fn embedded(arguments: &[&str], input: &[u8]) -> (Vec<Vec<f64>>, Vec<u64>) {
    let output = ottava_with(&[&["embed", "--model", BERT, "--json"], arguments].concat(), input);
    assert!(output.status.success(), "{arguments:?}: {}", told(&output));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let numbers = |vector: &Value| vector.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    let vectors = json["embeddings"].as_array().unwrap().iter().map(numbers).collect();
    let tokens = json["tokens"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).collect();
    (vectors, tokens)
}

#[test]
fn texts_and_lines_become_unit_vectors() {
    let (vectors, tokens) = embedded(&["the cat", "-", "the dog"], b"one line\nthe cat\n");
    assert_eq!((vectors.len(), tokens.len()), (4, 4));
    assert_eq!((&vectors[0], tokens[0]), (&vectors[2], tokens[2]));
    for vector in &vectors {
        let length: f64 = vector.iter().map(|x| x * x).sum();
        assert!(vector.len() == 64 && (length - 1.0).abs() < 1e-5);
    }
    let (short, _) = embedded(&["the cat", "--dimensions", "8"], b"");
    assert_eq!(short[0].len(), 8);
    let (prefixed, _) = embedded(&["cat", "--prefix", "the "], b"");
    assert_eq!(prefixed[0], vectors[0]);
    let (first, _) = embedded(&["the cat", "--pooling", "cls"], b"");
    assert_ne!(first[0], vectors[0]);
    let lines = ottava(&["embed", "--model", BERT, "the cat", "the dog"]);
    let lines = String::from_utf8(lines.stdout).unwrap();
    assert_eq!(lines.lines().map(|line| line.split(' ').count()).collect::<Vec<_>>(), [64, 64]);
}

#[test]
fn what_cannot_be_embedded_is_told_in_one_line() {
    let long = "the cat ".repeat(100);
    fails(&["embed", "--model", BERT, &long], 1, &["text 0", "context of 64"]);
    assert_eq!(embedded(&[&long, "--truncate"], b"").1, [64]);
    fails(&["embed", "--model", BERT, ""], 1, &["text 0", "at least 1 token"]);
    fails(&["embed", "--model", BERT, "x", "--dimensions", "65"], 1, &["1 to 64"]);
    fails(&["embed", "--model", BERT, "x", "--prompt-name", "query"], 1, &["query", "none"]);
    fails(&["embed", "--model", BERT, "x", "--pooling", "max"], 2, &["max"]);
    fails(&["embed", "--model", LLAMA, "x"], 1, &["pooling"]);
    fails(&["run", "--model", BERT, "x"], 1, &["bert", "text encoder"]);
    fails(&["embed", "--model", BERT], 2, &["TEXT"]);
}
