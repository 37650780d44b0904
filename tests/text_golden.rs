//! Tokenizers and chat templates of real models against what llama.cpp made of them.
//!
//! `OTTAVA_TEST_MODELS` names a folder with `smollm2.gguf` and `gemma3.gguf`, `OTTAVA_TEST_GOLDEN` one with
//! the recorded cases (by default `../shared/golden` beside this package). What is not there is skipped,
//! and said to be.

#![cfg(feature = "text")]

use ottava::TokenId;
use ottava::text::{AddBos, ChatTemplate, Detokenizer, Message, RenderOptions, Special, Tokenizer};
use ottava::weights::{ModelFile, OpenOptions};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

/// Says so past the test runner, which would swallow what `eprintln!` prints in a test that passes.
fn skipped<T>(why: &str) -> Option<T> {
    std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes()).unwrap();
    None
}

fn model(name: &str) -> Option<ModelFile> {
    let Some(folder) = std::env::var_os("OTTAVA_TEST_MODELS") else {
        return skipped("OTTAVA_TEST_MODELS is not set");
    };
    let path = PathBuf::from(folder).join(format!("{name}.gguf"));
    if !path.exists() {
        return skipped(&format!("{} is not there", path.display()));
    }
    Some(ModelFile::open(&path, &OpenOptions::default()).unwrap())
}

fn golden(name: &str) -> Option<Vec<Value>> {
    let beside = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/golden");
    let folder = std::env::var_os("OTTAVA_TEST_GOLDEN").map_or_else(beside, PathBuf::from);
    let path = folder.join(name);
    if !path.exists() {
        return skipped(&format!("{} is not there", path.display()));
    }
    Some(serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap())
}

/// Every recorded text gives the recorded ids, and comes back from them.
fn tokens(name: &str) {
    let (Some(file), Some(cases)) = (model(name), golden(&format!("{name}.tokens.json"))) else { return };
    let start = Instant::now();
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    eprintln!("{name}: {} tokens, loaded in {:?}", tokenizer.vocab().len(), start.elapsed());
    assert!(cases.len() >= 25);
    for case in &cases {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = serde_json::from_value(case["tokens"].clone()).unwrap();
        let ids = tokenizer.encode(text, Special::Parse, AddBos::AsModel).unwrap();
        assert_eq!(ids.iter().map(|id| id.0).collect::<Vec<_>>(), expected, "{name}: {text:?}");

        let ids = tokenizer.encode(text, Special::Text, AddBos::No).unwrap();
        assert_eq!(tokenizer.decode(&ids), text, "{name}");
        let mut detokenizer = Detokenizer::new(tokenizer.vocab());
        let mut streamed = String::new();
        ids.iter().for_each(|&id| streamed.push_str(detokenizer.push(id)));
        assert_eq!(streamed, text, "{name}: streamed");
    }
}

#[test]
fn smollm2_tokens() {
    tokens("smollm2");
}

#[test]
fn gemma3_tokens() {
    tokens("gemma3");
}

#[test]
fn smollm2_chat() {
    let (Some(file), Some(cases)) = (model("smollm2"), golden("smollm2.chat.json")) else { return };
    let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
    let template = ChatTemplate::from_metadata(file.metadata(), tokenizer.vocab()).unwrap().unwrap();
    assert!(!cases.is_empty());
    for case in &cases {
        let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
        let prompt = template.render(&messages, &RenderOptions::default()).unwrap();
        assert_eq!(prompt, case["prompt"].as_str().unwrap());
        let ids = tokenizer.encode(&prompt, Special::Parse, AddBos::AsModel).unwrap();
        assert_eq!(ids.first(), Some(&TokenId(1)), "<|im_start|> is one token");
    }
}

#[test]
fn stop_ids_of_real_models() {
    for (name, expected) in [("smollm2", [0, 2]), ("gemma3", [1, 106])] {
        let Some(file) = model(name) else { continue };
        let tokenizer = Tokenizer::from_metadata(file.metadata()).unwrap();
        assert_eq!(tokenizer.vocab().stop_ids(), expected.map(TokenId), "{name}");
        let bos = tokenizer.vocab().bos().unwrap();
        assert!(tokenizer.vocab().is_control(bos), "{name}");
    }
}
