//! Tiny models with random changes: loaded on the CPU and stepped, or refused with a typed error, in memory
//! that the file's size and the limits bound.

#![no_main]

#[path = "../shared/allocations.rs"]
mod allocations;
#[path = "../shared/edits.rs"]
mod edits;
#[path = "../../tests/tiny/mod.rs"]
mod tiny;

use std::num::NonZeroUsize;
use std::sync::LazyLock;

use allocations::{Counting, most_bytes};
use edits::Edits;
use libfuzzer_sys::fuzz_target;
use ottava::backend::cpu::{Compute, Cpu, CpuOptions};
use ottava::checkpoint::ModelFile;
use ottava::ir::{KvDtype, Precision, StepLimits};
use ottava::model::{Decoder, KvBudget, LoadOptions, Model, ModelConfig};
use ottava::quant::QuantFormat;
use tiny::recorded::step;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that any file may cost, its pages of keys and values included, beside so many times its own.
const FLAT: usize = 24 << 20;
const TIMES: usize = 64;

static CPU: LazyLock<CpuOptions> = LazyLock::new(|| CpuOptions {
    threads: NonZeroUsize::new(1),
    compute: Compute::F32,
    ..CpuOptions::default()
});

fuzz_target!(|edits: Edits| {
    let Some(bytes) = edits.file() else { return };
    let bytes_max = FLAT + TIMES * bytes.len();
    let (_, most) = most_bytes(|| load_and_step(bytes));
    assert!(most <= bytes_max, "{most} bytes");
});

/// None where the file is refused.
fn load_and_step(bytes: Vec<u8>) -> Option<()> {
    let quantise = bytes.len().is_multiple_of(2).then_some(QuantFormat::W8G32);
    let file = ModelFile::from_bytes("fuzz.gguf", bytes).ok()?;
    let config = ModelConfig::from_file(&file).ok()?;
    let options = LoadOptions {
        limits: StepLimits { tokens_max: 8, outputs_max: 2 },
        kv_dtype: KvDtype::F16,
        kv: KvBudget::Bytes(1 << 20),
        context_max: 32.min(config.context_length),
        quantise,
        sidecar: None,
        activations: Precision::F32,
    };
    let cpu = Cpu::new(&CPU).expect("a backend");
    let mut model = Model::load(&file, &config, cpu, &options, &mut |_| {}).ok()?;
    // Weights of any bits give logits of any bits; a step of a loaded model is no error.
    model.step(&step(0..5)).expect("a step of a loaded model");
    let mut logits = vec![0.0; model.vocab_size()];
    model.logits(0, &mut logits).expect("logits of the step");
    Some(())
}
