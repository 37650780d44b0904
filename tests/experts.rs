//! Mixtures of experts: stacked matrices load, a row's bits are its own whichever rows go to its experts, and what does
//! not fit is refused by name.

mod tiny;

use std::num::NonZeroUsize;

use ottava::backend::cpu::{Cpu, CpuOptions};
use ottava::backend::{PreparedMatrix, Reference};
use ottava::checkpoint::{ModelFile, Value};
use ottava::ir::{KvDtype, PAGE_TOKENS, PageId, Precision, StepInput, StepLimits, StepSequence};
use ottava::model::{Decoder, KvBudget, LoadOptions, Model, ModelConfig, SidecarUse};
use ottava::quant::QuantFormat;
use tiny::edit::{Parts, Tensor};
use tiny::recorded::{TINY, VOCAB, step_of};
use tiny::{Outcome, Tiny};

const TOKENS: usize = 48;
const OPTIONS: LoadOptions = LoadOptions {
    limits: StepLimits { tokens_max: 2 * TOKENS, outputs_max: 2 * TOKENS },
    kv_dtype: KvDtype::F16,
    kv: KvBudget::Bytes(1 << 20),
    context_max: 64,
    quantise: None,
    sidecar: None,
    activations: Precision::F32,
};

fn mixture() -> Tiny {
    *TINY.iter().find(|tiny| tiny.family == "qwen3moe").expect("a tiny mixture")
}

fn open() -> Outcome<ModelFile> {
    Ok(ModelFile::from_bytes("tiny.gguf", tiny::file(&mixture(), &[])?)?)
}

fn load(options: &LoadOptions) -> Outcome<Model<Cpu>> {
    let file = open()?;
    let cpu = Cpu::new(&CpuOptions { threads: NonZeroUsize::new(2), ..CpuOptions::default() })?;
    Ok(Model::load(&file, &ModelConfig::from_file(&file)?, cpu, options, &mut |_| {})?)
}

/// A sequence of random tokens.
fn tokens(seed: u32) -> Vec<u32> {
    (0..TOKENS as u32).map(|i| (i * i * 7 + i * seed + seed) % VOCAB as u32).collect()
}

/// The logits behind each row of a step.
fn run(model: &mut Model<Cpu>, step: &StepInput) -> Outcome<Vec<Vec<f32>>> {
    model.step(step)?;
    let row = |row| -> Outcome<_> {
        let mut logits = vec![f32::NAN; VOCAB];
        model.logits(row, &mut logits)?;
        Ok(logits)
    };
    (0..step.outputs.len()).map(row).collect()
}

/// One step of the rows of two, the second on pages behind those of the first.
fn beside(first: &StepInput, second: &StepInput) -> StepInput {
    let (rows, pages) = (first.tokens.len() as u32, first.pages.len() as u32);
    let mut both = first.clone();
    both.tokens.extend(&second.tokens);
    both.positions.extend(&second.positions);
    both.outputs.extend(second.outputs.iter().map(|row| row + rows));
    both.pages.extend(second.pages.iter().map(|page| {
        let mut page = *page;
        page.page = PageId(page.page.0 + (TOKENS / PAGE_TOKENS) as u32);
        page
    }));
    both.sequences.extend(second.sequences.iter().map(|sequence| StepSequence {
        rows: sequence.rows.start + rows..sequence.rows.end + rows,
        pages: sequence.pages.start + pages..sequence.pages.end + pages,
        window: sequence.window,
    }));
    both
}

#[test]
fn bits_do_not_depend_on_chunks_or_on_who_shares_the_experts() -> Outcome {
    for quantise in [None, Some(QuantFormat::W8G32)] {
        let options = LoadOptions { quantise, ..OPTIONS };
        let (own, other) = (tokens(3), tokens(5));
        let whole = run(&mut load(&options)?, &step_of(&own, 0..TOKENS))?;
        for chunk in [1, 7] {
            let mut model = load(&options)?;
            let mut found = Vec::new();
            while found.len() < TOKENS {
                let range = found.len()..(found.len() + chunk).min(TOKENS);
                found.extend(run(&mut model, &step_of(&own, range))?);
            }
            assert_eq!(found, whole, "in chunks of {chunk}, {quantise:?}");
        }
        let step = beside(&step_of(&other, 0..TOKENS), &step_of(&own, 0..TOKENS));
        assert_eq!(run(&mut load(&options)?, &step)?[TOKENS..], whole, "beside another, {quantise:?}");
    }
    Ok(())
}

#[test]
fn a_router_keeps_its_floats_and_its_experts_do_not() -> Outcome {
    let (file, mut kept, mut lost) = (open()?, Vec::new(), 0);
    let options = LoadOptions { quantise: Some(QuantFormat::W8G32), ..OPTIONS };
    Model::load(&file, &ModelConfig::from_file(&file)?, Reference, &options, &mut |progress| {
        let is_matrix = !progress.tensor.contains("norm");
        match progress.quality {
            None if is_matrix => kept.push(progress.tensor.to_owned()),
            None => {}
            Some(_) => lost += usize::from(progress.tensor.contains("_exps")),
        }
        assert_eq!(progress.done == progress.total, progress.bytes_done == progress.bytes_total);
    })?;
    assert_eq!(kept, ["blk.0.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight"]);
    // Three stacks of six in each of two layers.
    assert_eq!(lost, 3 * 6 * 2);
    Ok(())
}

#[test]
fn prepared_experts_come_back_from_their_file() -> Outcome {
    let folder = tempfile::tempdir()?;
    let options = LoadOptions { sidecar: Some(folder.path().join("prepared")), ..OPTIONS };
    let (mut first, mut again) = (load(&options)?, load(&options)?);
    assert!(matches!(first.sidecar(), SidecarUse::Written { replaced: None }), "{:?}", first.sidecar());
    assert_eq!(*again.sidecar(), SidecarUse::Read);
    let step = step_of(&tokens(3), 0..TOKENS);
    assert_eq!(run(&mut first, &step)?, run(&mut again, &step)?);
    Ok(())
}

#[test]
fn what_a_step_reads_counts_the_experts_of_one_row() -> Outcome {
    let model = load(&OPTIONS)?;
    let session = model.session();
    let matrices = session.plan().matrices().iter().zip(&session.weights().matrices);
    let bytes = |is_read: fn(&str, usize) -> bool| -> usize {
        let read = matrices.clone().filter(|(spec, _)| is_read(&spec.name, spec.first_row / spec.rows));
        read.map(|(_, matrix)| matrix.bytes()).sum()
    };
    assert_eq!(model.weight_bytes(), bytes(|_, _| true));
    // A row goes to two experts, and takes one row of the table.
    assert_eq!(model.step_weight_bytes(), bytes(|name, expert| name != "token_embd.weight" && expert < 2));
    Ok(())
}

/// The mixture with another shape of a stack, whose elements stay.
fn reshaped(name: &str, dims: [u64; 3]) -> Outcome<Parts> {
    let mut parts = Parts::of(&mixture())?;
    let found = parts.tensors.iter_mut().find(|tensor| tensor.name == name).ok_or("no such stack")?;
    *found = Tensor { dims: dims.to_vec(), ..found.clone() };
    Ok(parts)
}

#[test]
fn a_mixture_that_does_not_fit_is_refused_by_name() -> Outcome {
    let refused = |parts: &Parts| -> Outcome<String> {
        Ok(ModelConfig::from_file(&parts.open()?).err().map_or("accepted".into(), |error| error.to_string()))
    };
    let key = |key: &str, value: Value| -> Outcome<String> {
        refused(&Parts::of(&mixture())?.set(&format!("qwen3moe.{key}"), value))
    };
    for (name, value, expected) in [
        ("expert_count", Value::U32(3), "blk.0.ffn_gate_inp.weight: expected [3, 32], found [6, 32]"),
        ("expert_count", Value::U32(1024), "blk.0.ffn_gate_inp.weight: expected [1024, 32]"),
        ("expert_count", Value::U32(1025), "expert_count: expected at most 1024, found 1025"),
        ("expert_count", Value::U32(u32::MAX), "expert_count: expected at most 1024"),
        ("expert_used_count", Value::U32(7), "expert_used_count: expected at most 6"),
        ("expert_used_count", Value::U32(0), "expert_used_count: expected at least 1"),
        ("expert_feed_forward_length", Value::U32(8), "blk.0.ffn_gate_exps.weight: expected [48, 32]"),
        ("expert_gating_func", Value::U32(2), "qwen3moe.expert_gating_func"),
        ("expert_weights_norm", Value::Bool(false), "expert_weights_norm: expected true, as in this family"),
        ("expert_weights_scale", Value::F32(2.5), "qwen3moe.expert_weights_scale"),
        ("expert_shared_count", Value::U32(1), "qwen3moe.expert_shared_count"),
        ("leading_dense_block_count", Value::U32(1), "qwen3moe.leading_dense_block_count"),
    ] {
        let error = key(name, value)?;
        assert!(error.contains(expected), "{error}");
    }
    for (name, value) in [
        ("expert_gating_func", Value::U32(1)),
        ("expert_weights_norm", Value::Bool(true)),
        ("expert_weights_scale", Value::F32(1.0)),
    ] {
        assert_eq!(key(name, value)?, "accepted", "{name}");
    }
    let gate = "blk.1.ffn_gate_exps.weight";
    let error = refused(&reshaped(gate, [32, 32, 3])?)?;
    assert!(
        error.contains(&format!("{gate}: expected matrices of [16, 32], found 3 of [32, 32]")),
        "{error}"
    );
    let error = refused(&Parts::of(&mixture())?.without(gate))?;
    assert!(error.contains(&format!("{gate} is missing")), "{error}");
    let error = refused(&Parts::of(&mixture())?.copy(gate, "blk.1.ffn_gate_shexp.weight"))?;
    assert!(error.contains("blk.1.ffn_gate_shexp.weight has no place in a qwen3moe model"), "{error}");
    Ok(())
}
