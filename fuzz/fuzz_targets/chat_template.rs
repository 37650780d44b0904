//! Any text as a chat template: compiled or refused, rendered or stopped, within its time and
//! memory limits.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ottava::checkpoint::{Checkpoint, GgufWriter, ModelFile};
use ottava::text::{ChatTemplate, Message, RenderOptions, Vocab};

/// Three tokens are enough to name the first and the last.
static VOCAB: LazyLock<Vocab> = LazyLock::new(|| {
    let mut writer = GgufWriter::new();
    writer.metadata("tokenizer.ggml.model", "gpt2");
    writer.metadata("tokenizer.ggml.tokens", ["<s>", "</s>", "a"].map(String::from).to_vec());
    writer.metadata("tokenizer.ggml.bos_token_id", 0_u32);
    writer.metadata("tokenizer.ggml.eos_token_id", 1_u32);
    let file = ModelFile::from_bytes("vocab.gguf", writer.to_bytes()).expect("a valid file");
    Vocab::from_metadata(file.metadata()).expect("a valid vocabulary")
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let Ok(template) = ChatTemplate::from_source(source, &VOCAB) else { return };
    let messages = [Message::new("system", "Be brief."), Message::new("user", "Hi <there> & \"you\"")];
    let _ = template.render(&messages, &RenderOptions::default());
});
