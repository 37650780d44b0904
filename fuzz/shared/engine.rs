//! An engine on a tiny model, made once a process.

use std::num::NonZeroUsize;

use ottava::{Device, Engine, EngineConfig, KvBudget};

use crate::{files, tiny};

/// Most tokens of a sequence.
pub const CONTEXT: usize = 64;

/// Of the llama family with a byte-level tokenizer and a chat template, and a cache of two contexts.
pub fn tiny() -> Engine {
    let path = files::path("model.gguf");
    std::fs::write(&path, tiny::llama_of(CONTEXT).expect("a model")).expect("a file");
    let engine = Engine::builder(&path).device(Device::Cpu).threads(NonZeroUsize::MIN);
    let engine = engine.context_max(CONTEXT).kv(KvBudget::Bytes(1 << 20)).scheduling(EngineConfig::default());
    let engine = engine.build().expect("an engine");
    // It is mapped, or read: either way its name is not needed any more.
    std::fs::remove_file(&path).expect("the file that was written");
    engine
}
