//! Any messages, tools and variables to a few templates: rendered or stopped with an error. The input is JSON,
//! `{"template": 0, "messages": [...], "tools": [...], "variables": {...}}`.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ottava::checkpoint::{Checkpoint, GgufWriter, ModelFile};
use ottava::text::{ChatTemplate, Message, RenderOptions, Vocab};
use serde_json::Value;

#[path = "../shared/templates.rs"]
mod templates;

static TEMPLATES: LazyLock<Vec<ChatTemplate>> = LazyLock::new(|| {
    let mut writer = GgufWriter::new();
    writer.metadata("tokenizer.ggml.model", "gpt2");
    writer.metadata("tokenizer.ggml.tokens", ["<s>", "</s>", "a"].map(String::from).to_vec());
    writer.metadata("tokenizer.ggml.bos_token_id", 0_u32).metadata("tokenizer.ggml.eos_token_id", 1_u32);
    let file = ModelFile::from_bytes("vocab.gguf", writer.to_bytes()).expect("a valid file");
    let vocab = Vocab::from_metadata(file.metadata()).expect("a valid vocabulary");
    let template = |source: &&str| ChatTemplate::from_source(source, &vocab).expect("a template");
    templates::TEMPLATES.iter().map(template).collect()
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(Value::Object(mut input)) = serde_json::from_slice(bytes) else { return };
    let messages = input.remove("messages").unwrap_or_default();
    let Ok(messages) = serde_json::from_value::<Vec<Message>>(messages) else { return };
    let number = input.get("template").and_then(Value::as_u64).unwrap_or(0) as usize;
    let mut options = RenderOptions::default();
    options.add_generation_prompt = bytes.len().is_multiple_of(2);
    options.tools = input.remove("tools");
    if let Some(Value::Object(variables)) = input.remove("variables") {
        options.variables = variables;
    }
    let _ = TEMPLATES[number % TEMPLATES.len()].render(&messages, &options);
});
