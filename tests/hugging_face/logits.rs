//! The same weights from both formats give the same logits, which are those that transformers has computed.

use ottava::backend::cpu::{Compute, Cpu, CpuOptions};
use ottava::checkpoint::{self, Checkpoint, OpenOptions};
use ottava::ir::{KvDtype, Precision, StepLimits};
use ottava::model::{Decoder, KvBudget, LoadOptions, Model, ModelConfig};
use ottava::quant::QuantFormat;
use serde_json::Value;

use crate::folder::{Dtype, Folder, document, shard, twin};
use crate::tiny::Outcome;
use crate::tiny::recorded::step_of;

const FAMILIES: [&str; 4] = ["llama", "qwen2", "qwen3", "gemma3"];
/// How far logits may be from the record, as a part of the largest: f16 pages put them up to 1.8e-3 off.
const TOLERANCE: f64 = 3e-3;
/// How far those of a folder may be from its twin's, likewise, where a head's elements are in another order: sums of
/// their products are rounded otherwise.
const REORDERED: f64 = 2e-4;

const OPTIONS: LoadOptions = LoadOptions {
    limits: StepLimits { tokens_max: 48, outputs_max: 48 },
    kv_dtype: KvDtype::F16,
    kv: KvBudget::Bytes(4 << 20),
    context_max: 64,
    quantise: None,
    sidecar: None,
    activations: Precision::F32,
};

/// The record of a family.
struct Record {
    tokens: Vec<u32>,
    /// Of each token: ids and their logits.
    logits: Vec<Vec<(usize, f64)>>,
    largest: f64,
}

fn record(name: &str) -> Outcome<Record> {
    let json: Value = document(&format!("families/{name}.json"))?;
    let best: Vec<Vec<(usize, f64)>> = serde_json::from_value(json["top"].clone())?;
    let all: Vec<Vec<f64>> = serde_json::from_value(json["logits"].clone())?;
    let all = all.into_iter().map(|row| row.into_iter().enumerate().collect());
    Ok(Record {
        tokens: serde_json::from_value(json["tokens"].clone())?,
        logits: best.into_iter().chain(all).collect(),
        largest: json["peer"]["largest"].as_f64().ok_or("no largest logit")?,
    })
}

/// The logits behind each token, in f32.
pub fn run(
    checkpoint: &dyn Checkpoint,
    tokens: &[u32],
    quantise: Option<QuantFormat>,
) -> Outcome<Vec<Vec<f32>>> {
    let cpu = Cpu::new(&CpuOptions { compute: Compute::F32, ..CpuOptions::default() })?;
    let config = ModelConfig::from_file(checkpoint)?;
    let context_max = OPTIONS.context_max.min(config.context_length);
    let options = LoadOptions { quantise, context_max, ..OPTIONS };
    let mut model = Model::load(checkpoint, &config, cpu, &options, &mut |_| {})?;
    model.step(&step_of(tokens, 0..tokens.len()))?;
    let row = |row| -> Outcome<_> {
        let mut logits = vec![f32::NAN; model.vocab_size()];
        model.logits(row, &mut logits)?;
        Ok(logits)
    };
    (0..tokens.len()).map(row).collect()
}

fn run_folder(folder: &Folder, tokens: &[u32]) -> Outcome<Vec<Vec<f32>>> {
    let folder = folder.write()?;
    run(&*checkpoint::open(folder.path(), &OpenOptions::default())?, tokens, None)
}

/// The largest distance; NaN is as far as can be.
fn furthest(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    pairs
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |most: f64, off| if off.is_nan() { off } else { most.max(off) })
}

pub fn apart(found: &[Vec<f32>], other: &[Vec<f32>]) -> f64 {
    assert_eq!(found.len(), other.len());
    let pairs = found.iter().flatten().zip(other.iter().flatten());
    furthest(pairs.map(|(&a, &b)| (f64::from(a), f64::from(b))))
}

#[test]
fn every_family_has_the_logits_of_its_twin_and_of_the_record() -> Outcome {
    for family in FAMILIES {
        let record = record(family)?;
        let of_twin = run(&twin(family)?, &record.tokens, None)?;
        // In f16 as the twin has them; their values are exact in all three types but bf16.
        for dtype in [Dtype::F16, Dtype::F32] {
            let found = run_folder(&Folder { dtype, ..Folder::of(family)? }, &record.tokens)?;
            let pairs = found.iter().zip(&record.logits);
            let off = furthest(
                pairs.flat_map(|(row, want)| want.iter().map(|&(id, want)| (f64::from(row[id]), want))),
            ) / record.largest;
            let from_twin = apart(&found, &of_twin) / record.largest;
            println!("{family} {dtype:?}: {off:.2e} from the record, {from_twin:.2e} from the twin");
            assert!(off <= TOLERANCE, "{family} {dtype:?}: {off}");
            let most = if family == "llama" { REORDERED } else { 0.0 };
            assert!(from_twin <= most, "{family} {dtype:?}: {from_twin} from the twin");
        }
    }
    Ok(())
}

#[test]
fn floats_of_16_bits_are_read_as_they_are() -> Outcome {
    let tokens = record("qwen2")?.tokens;
    let mut folder = Folder::of("qwen2")?;
    for value in folder.tensors.iter_mut().flat_map(|tensor| &mut tensor.values) {
        *value = half::bf16::from_f32(*value).to_f32();
    }
    let wide = run_folder(&folder, &tokens)?;
    let narrow = run_folder(&Folder { dtype: Dtype::Bf16, ..folder }, &tokens)?;
    assert!(wide == narrow, "{}", apart(&wide, &narrow));
    Ok(())
}

#[test]
fn shards_and_their_paths_are_one_model() -> Outcome {
    let tokens = record("llama")?.tokens;
    let folder = Folder::of("llama")?;
    let whole = run_folder(&folder, &tokens)?;
    let sharded = folder.write_sharded(3)?;
    let index = "model.safetensors.index.json".to_owned();
    for mmap in [false, true] {
        for name in [String::new(), "config.json".into(), index.clone(), shard(1, 3)] {
            let path = if name.is_empty() { sharded.path().to_owned() } else { sharded.path().join(&name) };
            let found = run(&*checkpoint::open(&path, &OpenOptions { mmap })?, &tokens, None)?;
            assert!(found == whole, "{name:?}, mmap {mmap}: {}", apart(&found, &whole));
        }
    }
    Ok(())
}

#[test]
fn a_tied_head_is_the_table_whatever_stands_beside_it() -> Outcome {
    let tokens = record("qwen3")?.tokens;
    let mut folder = Folder::of("qwen3")?;
    let tied = run_folder(&folder, &tokens)?;
    let table = folder.tensors.iter().find(|tensor| tensor.name == "model.embed_tokens.weight");
    let mut head = table.ok_or("no table")?.clone();
    head.name = "lm_head.weight".into();
    head.values.iter_mut().for_each(|value| *value *= 2.0);
    folder.tensors.push(head);
    assert!(run_folder(&folder, &tokens)? == tied);
    // A head of its own is another model.
    let own = run_folder(&folder.set("tie_word_embeddings", false.into()), &tokens)?;
    assert!(apart(&own, &tied) > 0.1);
    Ok(())
}

#[test]
fn the_rotation_of_llama_3_has_the_recorded_logits() -> Outcome {
    let record = record("llama_llama3rope")?;
    let rope = serde_json::json!({
        "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    });
    let folder = Folder::of_twin("llama", &twin("llama_llama3rope")?)?.set("rope_parameters", rope);
    let found = run_folder(&folder, &record.tokens)?;
    let pairs = found.iter().zip(&record.logits);
    let off =
        furthest(pairs.flat_map(|(row, want)| want.iter().map(|&(id, want)| (f64::from(row[id]), want))));
    assert!(off / record.largest <= TOLERANCE, "{off}");
    // Without the scheme they are others.
    let plain = run_folder(
        &folder.set("rope_parameters", serde_json::json!({ "rope_theta": 500_000.0 })),
        &record.tokens,
    )?;
    assert!(apart(&plain, &found) / record.largest > 2.0 * TOLERANCE);
    Ok(())
}

#[test]
fn weights_are_quantised_as_those_of_the_twin() -> Outcome {
    let tokens = record("qwen2")?.tokens;
    let format = Some(QuantFormat::W8G32);
    let folder = Folder::of("qwen2")?.write()?;
    let found = run(&*checkpoint::open(folder.path(), &OpenOptions::default())?, &tokens, format)?;
    assert!(found == run(&twin("qwen2")?, &tokens, format)?);
    Ok(())
}

#[test]
fn what_a_model_is_made_of_has_a_fingerprint() -> Outcome {
    let of = |folder: Folder| -> Outcome<_> {
        let folder = folder.write()?;
        Ok(checkpoint::open(folder.path(), &OpenOptions::default())?.fingerprint()?)
    };
    let first = of(Folder::of("qwen2")?)?;
    assert_eq!(of(Folder::of("qwen2")?)?, first);
    assert_ne!(of(Folder::of("qwen2")?.set("rms_norm_eps", 2e-6.into()))?, first);
    assert_ne!(of(Folder::of("qwen2")?.without("tokenizer.json"))?, first);
    let mut other = Folder::of("qwen2")?;
    other.tensors[3].values[0] += 1.0;
    assert_ne!(of(other)?, first);
    Ok(())
}

#[test]
fn a_file_that_changes_meanwhile_is_told() -> Outcome {
    let folder = Folder::of("qwen2")?.write()?;
    let open = checkpoint::open(folder.path(), &OpenOptions::default())?;
    let config = folder.path().join("config.json");
    std::fs::write(&config, std::fs::read_to_string(&config)? + " ")?;
    let error = open.check_unchanged().expect_err("the configuration is longer").to_string();
    assert!(error.contains("config.json: the file changed"), "{error}");
    Ok(())
}
