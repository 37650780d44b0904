//! Every family on a card: tiny models with random weights, against logits of independent implementations.
//!
//! The models of `tiny::recorded` are made here; their logits were computed in f64. Those of
//! `tests/golden/families` were written by llama.cpp's converter, and transformers computed their logits in
//! f32. All are part of this program, which may run on another machine.

#![cfg(feature = "cuda")]

mod tiny;

use ottava::backend::cuda::{Cuda, CudaOptions};
use ottava::checkpoint::ModelFile;
use ottava::ir::{KvDtype, Precision, StepLimits};
use ottava::model::{Decoder, KvBudget, LoadOptions, LoadProgress, Model, ModelConfig};
use serde_json::Value;
use tiny::recorded::{EXPECTED, TINY, VOCAB, step, step_of};
use tiny::{Outcome, Tiny};

/// How a recorded sequence is cut into steps: at once, which is a prompt's work; in pieces as decodes and short
/// prompts are; and in two that no tile divides.
const CUTS: [&[usize]; 3] = [&[48], &[1, 7, 1, 16, 23], &[17, 31]];
/// A converted model and what is recorded of it.
struct Golden {
    name: &'static str,
    file: &'static [u8],
    record: &'static str,
}

macro_rules! goldens {
    ($($name:literal),* $(,)?) => {
        [$(Golden {
            name: $name,
            file: include_bytes!(concat!("golden/families/", $name, ".gguf")),
            record: include_str!(concat!("golden/families/", $name, ".json")),
        }),*]
    };
}

const GOLDENS: [Golden; 7] =
    goldens!["gemma3", "llama", "llama_llama3rope", "llama_q4_0", "llama_q8_0", "qwen2", "qwen3"];

/// How far logits may be off: the largest distance and the root mean square, as parts of the largest logit.
struct Tolerance {
    kv: KvDtype,
    most: f64,
    rms: f64,
}

/// Pages alone put the reference backend, all else in f64, up to 1.2e-3 and 2.2e-4 off where they are f16, 0.021
/// and 0.0043 where they are 8 bits. A card also rounds what it multiplies to f16, which is somewhat more than
/// f16 pages by itself, and moves some 8-bit codes to their neighbours. A weight or a setting that is wrong
/// moves some logit by more than 1e-3 of the largest, mostly by far more.
const TOLERANCES: [Tolerance; 2] = [
    Tolerance { kv: KvDtype::F16, most: 3e-3, rms: 6e-4 },
    Tolerance { kv: KvDtype::Int8, most: 0.045, rms: 7e-3 },
];

fn load(file: &ModelFile, kv_dtype: KvDtype, batch_invariant: bool) -> Outcome<Model<Cuda>> {
    load_with(file, kv_dtype, batch_invariant, &mut |_| {})
}

fn load_with(
    file: &ModelFile,
    kv_dtype: KvDtype,
    batch_invariant: bool,
    progress: &mut dyn FnMut(LoadProgress<'_>),
) -> Outcome<Model<Cuda>> {
    cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU"))?;
    let cuda = Cuda::new(&CudaOptions { batch_invariant, ..CudaOptions::default() })?;
    let config = ModelConfig::from_file(file)?;
    let options = LoadOptions {
        limits: StepLimits { tokens_max: 48, outputs_max: 48 },
        kv_dtype,
        kv: KvBudget::Bytes(4 << 20),
        context_max: config.context_length.min(64),
        quantise: None,
        sidecar: None,
        activations: Precision::F32,
    };
    Ok(Model::load(file, &config, cuda, &options, progress)?)
}

/// What is recorded of a model: a sequence, and of each token some of the logits behind it.
struct Recorded {
    tokens: Vec<u32>,
    /// Of each token: ids and their logits.
    logits: Vec<Vec<(usize, f64)>>,
    largest: f64,
}

fn recorded(text: &str) -> Outcome<Recorded> {
    let json: Value = serde_json::from_str(text)?;
    let best: Vec<Vec<(usize, f64)>> = serde_json::from_value(json["top"].clone())?;
    let all: Vec<Vec<f64>> = serde_json::from_value(json["logits"].clone())?;
    let all = all.into_iter().map(|row| row.into_iter().enumerate().collect());
    Ok(Recorded {
        tokens: serde_json::from_value(json["tokens"].clone())?,
        logits: best.into_iter().chain(all).collect(),
        largest: json["peer"]["largest"].as_f64().ok_or("no largest logit")?,
    })
}

/// The logits behind each token, computed in steps of so many.
fn run(model: &mut Model<Cuda>, tokens: &[u32], cut: &[usize]) -> Outcome<Vec<Vec<f32>>> {
    let mut rows = Vec::new();
    for &count in cut {
        model.step(&step_of(tokens, rows.len()..rows.len() + count))?;
        for row in 0..count {
            let mut logits = vec![f32::NAN; model.vocab_size()];
            model.logits(row, &mut logits)?;
            rows.push(logits);
        }
    }
    Ok(rows)
}

/// The largest distance and the root mean square, as parts of the largest logit.
fn distance(found: &[Vec<f32>], want: &Recorded) -> (f64, f64) {
    assert_eq!(found.len(), want.logits.len(), "a row of logits for each token");
    let rows = found.iter().zip(&want.logits);
    let off =
        rows.flat_map(|(found, want)| want.iter().map(|&(id, want)| (f64::from(found[id]) - want).abs()));
    let off: Vec<f64> = off.map(|off| off / want.largest).collect();
    let squares: f64 = off.iter().map(|off| off * off).sum();
    // A NaN is as far as can be.
    let most = off.iter().fold(0.0, |most: f64, &off| if off.is_nan() { off } else { most.max(off) });
    (most, (squares / off.len() as f64).sqrt())
}

/// Holds a model against its record, in every cut; where rows are to have their own bits, cuts do not matter.
fn check(Golden { name, file, record }: &Golden) -> Outcome {
    let (file, want) = (ModelFile::from_bytes(name, file.to_vec())?, recorded(record)?);
    for Tolerance { kv, most, rms } in &TOLERANCES {
        for batch_invariant in [false, true] {
            let mut first: Option<Vec<Vec<f32>>> = None;
            for cut in CUTS {
                // A cache of its own, so that nothing of the cut before is there.
                let found = run(&mut load(&file, *kv, batch_invariant)?, &want.tokens, cut)?;
                let off = distance(&found, &want);
                let what = format!("{name}, KV {kv:?}, cut {cut:?}, batch-invariant: {batch_invariant}");
                println!("{what}: {:.2e} off, root mean square {:.2e}", off.0, off.1);
                assert!(off.0 <= *most && off.1 <= *rms, "{what}: {off:?}, may be {most:.0e}, {rms:.0e}");
                if batch_invariant && *first.get_or_insert_with(|| found.clone()) != found {
                    return Err(format!("{what}: other bits than at once").into());
                }
            }
        }
    }
    Ok(())
}

#[test]
fn converted_models_have_the_recorded_logits() -> Outcome {
    GOLDENS.iter().try_for_each(check)
}

/// Families with operations that have no kernel, and how these are called.
const WITHOUT_KERNELS: [(&str, &str); 7] = [
    ("command-r", "a layer norm"),
    ("cohere2", "a layer norm"),
    ("starcoder2", "a layer norm"),
    ("qwen3moe", "route"),
    ("qwen3vlmoe", "route"),
    ("olmoe", "route"),
    ("granitemoe", "route"),
];

#[test]
fn a_family_without_kernels_is_refused_before_its_weights_are_read() -> Outcome {
    for (family, operation) in WITHOUT_KERNELS {
        let tiny = TINY.iter().find(|tiny| tiny.family == family).ok_or("a tiny model")?;
        let file = ModelFile::from_bytes("tiny.gguf", tiny::file(tiny, &[])?)?;
        let mut read = 0;
        let error = load_with(&file, KvDtype::F16, false, &mut |_| read += 1).err().ok_or("accepted")?;
        let error = error.to_string();
        assert!(error.starts_with(operation) && error.contains("the CUDA backend has no kernel"), "{error}");
        assert_eq!(read, 0, "{family}");
    }
    Ok(())
}

#[test]
fn every_family_has_the_recorded_logits() -> Outcome {
    let mut worst = 0_f32;
    let has_kernels = |tiny: &Tiny| WITHOUT_KERNELS.iter().all(|&(family, _)| family != tiny.family);
    for (tiny, expected) in TINY.iter().zip(&EXPECTED).filter(|(tiny, _)| has_kernels(tiny)) {
        let file = ModelFile::from_bytes("tiny.gguf", tiny::file(tiny, &[])?)?;
        for batch_invariant in [false, true] {
            let mut model = load(&file, KvDtype::F16, batch_invariant)?;
            // A prompt in two chunks, then token by token.
            for range in [0..5, 5..8, 8..9, 9..10] {
                model.step(&step(range))?;
            }
            let mut logits = [f32::NAN; VOCAB];
            model.logits(0, &mut logits)?;
            for (found, expected) in logits.iter().zip(expected) {
                let off = (found - expected).abs();
                worst = worst.max(off);
                assert!(off < 5e-3, "{}: {found} is not {expected}\n{logits:?}", tiny.family);
            }
        }
    }
    println!("worst difference {worst:e}");
    Ok(())
}
