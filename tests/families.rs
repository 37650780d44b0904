//! Every family end to end: tiny models with random weights, against logits from an independent
//! implementation in f64, which read the very files that these functions make, and agrees with transformers.

mod tiny;

use ottava::backend::cpu::{Compute, Cpu, CpuOptions};
use ottava::backend::{Backend, Reference};
use ottava::checkpoint::{Checkpoint, GgufWriter, ModelFile, TensorType};
use ottava::ir::{KvDtype, Precision, StepLimits};
use ottava::model::{Decoder, KvBudget, LoadOptions, Model, ModelConfig, ModelError};
use ottava::quant::{QuantFormat, WeightMatrix};

use tiny::edit::Parts;
use tiny::recorded::{EXPECTED, TINY, VOCAB, step};
use tiny::{EMBEDDING, Maker, Outcome, Tiny, file, file_with};

fn open(tiny: &Tiny, change: &[(&str, u32)]) -> Result<ModelFile, Box<dyn std::error::Error>> {
    Ok(ModelFile::from_bytes("tiny.gguf", file(tiny, change)?)?)
}

const OPTIONS: LoadOptions = LoadOptions {
    limits: StepLimits { tokens_max: 8, outputs_max: 2 },
    kv_dtype: KvDtype::F16,
    kv: KvBudget::Bytes(1 << 20),
    context_max: 32,
    quantise: None,
    sidecar: None,
    activations: Precision::F32,
};

fn load(tiny: &Tiny) -> Result<Model<Reference>, Box<dyn std::error::Error>> {
    let file = open(tiny, &[])?;
    let config = ModelConfig::from_file(&file)?;
    Ok(Model::load(&file, &config, Reference, &OPTIONS, &mut |_| {})?)
}

#[test]
fn every_family_matches_the_reference() -> Outcome {
    let mut worst = 0_f32;
    for (tiny, expected) in TINY.iter().zip(&EXPECTED) {
        let mut model = load(tiny)?;
        // A prompt in two chunks, then token by token.
        for range in [0..5, 5..8, 8..9, 9..10] {
            model.step(&step(range))?;
        }
        let mut logits = [f32::NAN; VOCAB];
        model.logits(0, &mut logits)?;
        for (found, expected) in logits.iter().zip(expected) {
            let off = (found - expected).abs();
            worst = worst.max(off);
            assert!(off < 5e-3, "{}: {found} is not {expected}\n{:?}", tiny.family, logits);
        }
    }
    println!("worst difference {worst:e}");
    Ok(())
}

/// Writes the files that the reference implementation reads.
#[test]
#[ignore = "run by hand to make EXPECTED anew"]
fn write_the_models() -> Outcome {
    for (index, tiny) in TINY.iter().enumerate() {
        let path = format!("{}/tiny{index}.gguf", env!("CARGO_TARGET_TMPDIR"));
        std::fs::write(&path, file(tiny, &[])?)?;
        println!("{path}");
    }
    Ok(())
}

fn refusal(tiny: &Tiny, change: &[(&str, u32)]) -> Result<String, Box<dyn std::error::Error>> {
    match ModelConfig::from_file(&open(tiny, change)?) {
        Ok(_) => Err("accepted".into()),
        Err(error) => Ok(error.to_string()),
    }
}

#[test]
fn absurd_hyperparameters_are_refused_by_name() -> Outcome {
    let cases: [(&str, u32, &str); 11] = [
        ("block_count", 0, "llama.block_count: expected at least 1, found 0"),
        (
            "block_count",
            u32::MAX,
            "llama.block_count: expected 2, the blocks among the tensors, found 4294967295",
        ),
        ("context_length", u32::MAX, "llama.context_length: expected at most"),
        ("embedding_length", 33, "tensor token_embd.weight: expected [16, 33], found [16, 32]"),
        ("feed_forward_length", 47, "tensor blk.0.ffn_gate.weight: expected [47, 32], found [48, 32]"),
        ("attention.head_count", 0, "llama.attention.head_count: expected at least 1"),
        ("attention.head_count_kv", 3, "a divisor of the 4 query heads, found 3"),
        ("attention.key_length", u32::MAX, "llama.attention.value_length"),
        ("attention.value_length", 4, "llama.attention.value_length: expected 8"),
        ("rope.dimension_count", 7, "llama.rope.dimension_count: expected an even number up to the head's 8"),
        ("rope.dimension_count", 10, "llama.rope.dimension_count"),
    ];
    for (key, value, expected) in cases {
        let error = refusal(&TINY[0], &[(key, value)])?;
        assert!(error.contains(expected), "{key} = {value}: {error}");
    }
    Ok(())
}

/// The refusal of a file that says it is `told` and has the layers of `made`.
fn disguised(told: &Tiny, made: &Tiny) -> Result<String, Box<dyn std::error::Error>> {
    let mut maker = Maker::new(TensorType::F32);
    maker.metadata(told, &[]);
    maker.matrix("token_embd.weight", VOCAB, EMBEDDING)?;
    (0..told.layers).try_for_each(|layer| maker.layer(made, layer))?;
    maker.vector("output_norm.weight", EMBEDDING, 1.0)?;
    let file = ModelFile::from_bytes("tiny.gguf", maker.writer.to_bytes())?;
    Ok(ModelConfig::from_file(&file).err().map_or("accepted".into(), |error| error.to_string()))
}

#[test]
fn tensors_must_be_those_of_the_family() -> Outcome {
    let qwen2 = TINY[2];
    let plain = Tiny { family: "llama", ..qwen2 };
    assert_eq!(disguised(&qwen2, &plain)?, "tiny.gguf: tensor blk.0.attn_q.bias is missing: expected [32]");
    let normed = Tiny { family: "qwen3", ..qwen2 };
    let unused = "tiny.gguf: tensor blk.0.attn_q_norm.weight has no place in a llama model";
    assert_eq!(disguised(&plain, &normed)?, unused);
    let missing = "tiny.gguf: tensor blk.0.attn_q_norm.weight is missing: expected [1, 8]";
    assert_eq!(disguised(&normed, &plain)?, missing);
    // Biases are used wherever a file has them.
    assert_eq!(disguised(&plain, &qwen2)?, "accepted");
    Ok(())
}

/// The configuration of a tiny model with what `add` adds.
fn config_with(
    tiny: &Tiny,
    add: impl Fn(&mut GgufWriter) -> Outcome,
) -> Result<ModelConfig, Box<dyn std::error::Error>> {
    let file = ModelFile::from_bytes("tiny.gguf", file_with(tiny, &[], add)?)?;
    Ok(ModelConfig::from_file(&file)?)
}

#[test]
fn rotations_follow_the_scaling_keys() -> Outcome {
    let plain = config_with(&TINY[4], |_| Ok(()))?;
    let linear = config_with(&TINY[4], |writer| {
        writer.metadata("gemma3.rope.scaling.type", "linear");
        writer.metadata("gemma3.rope.scaling.factor", 8.0_f32);
        writer.metadata("gemma3.rope.freq_base_swa", 500.0_f32);
        Ok(())
    })?;
    // Layer 5 is global: its frequencies are divided. Local layers have a base alone.
    let last = |config: &ModelConfig, layer| config.rope(layer).expect("it rotates").inv_freq[7];
    assert!((last(&linear, 5) / last(&plain, 5) - 0.125).abs() < 1e-12);
    assert!((last(&plain, 5) - 5000_f64.powf(-14.0 / 16.0)).abs() < 1e-12);
    assert!((last(&plain, 4) - 10_000_f64.powf(-14.0 / 16.0)).abs() < 1e-12);
    assert!((last(&linear, 4) - 500_f64.powf(-14.0 / 16.0)).abs() < 1e-12);
    assert_eq!((plain.layer_window(4), plain.layer_window(5)), (Some(4), None));

    let plain = config_with(&TINY[0], |_| Ok(()))?;
    let factors = config_with(&TINY[0], |writer| {
        writer.vector("rope_freqs.weight", &[1.0, 1.0, 2.0, 8.0])?;
        Ok(())
    })?;
    assert_eq!(factors.rope.global.inv_freq[3] * 8.0, plain.rope.global.inv_freq[3]);
    assert_eq!(factors.rope.global.inv_freq[1], plain.rope.global.inv_freq[1]);
    let yarn = config_with(&TINY[0], |writer| {
        writer.metadata("llama.rope.scaling.type", "yarn");
        writer.metadata("llama.rope.scaling.factor", 4.0_f32);
        writer.metadata("llama.rope.scaling.original_context_length", 64_u32);
        Ok(())
    })?;
    assert_eq!(yarn.rope.global.inv_freq[3] * 4.0, plain.rope.global.inv_freq[3]);
    assert!(yarn.rope.global.magnitude > 1.1);
    Ok(())
}

#[test]
fn short_contexts_have_factors_of_their_own() -> Outcome {
    let phi3 = TINY.iter().find(|tiny| tiny.family == "phi3").ok_or("a tiny model")?;
    let fingerprints = std::cell::RefCell::new(Vec::new());
    let logits = |context_max, file: &ModelFile| -> Outcome<[f32; VOCAB]> {
        let options = LoadOptions { context_max, ..OPTIONS };
        let mut model = Model::load(file, &ModelConfig::from_file(file)?, Reference, &options, &mut |_| {})?;
        let mut logits = [f32::NAN; VOCAB];
        model.step(&step(0..8))?;
        model.logits(0, &mut logits)?;
        fingerprints.borrow_mut().push(model.fingerprint());
        Ok(logits)
    };
    // The first context is of 16 tokens.
    let file = open(phi3, &[])?;
    let [short, long] = [logits(16, &file)?, logits(17, &file)?];
    // Keys of the one rotation must not be found, or restored, by a model of the other.
    let [of_short, of_long] = [0, 1].map(|at| fingerprints.borrow()[at]);
    assert_ne!(of_short, of_long);
    let parts = Parts::of(phi3)?;
    let of = |name: &str| file.vector(&format!("rope_factors_{name}.weight"));
    let swapped = parts
        .vector("rope_factors_long.weight", &of("short")?)
        .vector("rope_factors_short.weight", &of("long")?)
        .open()?;
    assert_eq!((logits(17, &swapped)?, logits(16, &swapped)?), (short, long));
    assert_ne!(short, long);
    let half = Parts::of(phi3)?.without("rope_factors_short.weight").open()?;
    let error = ModelConfig::from_file(&half).err().ok_or("accepted")?.to_string();
    assert_eq!(error, "odd.gguf: tensor rope_factors_short.weight is missing: expected [4]");
    Ok(())
}

#[test]
fn what_files_of_gemma_need_not_say() -> Outcome {
    let gemma2 = *TINY.iter().find(|tiny| tiny.family == "gemma2").ok_or("a tiny model")?;
    let keys = ["attn_logit_softcapping", "final_logit_softcapping", "attention.sliding_window"];
    let plain = keys.iter().fold(Parts::of(&gemma2)?, |parts, key| parts.unset(&format!("gemma2.{key}")));
    let config = ModelConfig::from_file(&plain.open()?)?;
    assert_eq!((config.attention_soft_cap, config.logit_soft_cap), (Some(50.0), Some(30.0)));
    // No window is longer than the context.
    let windows: Vec<_> = (0..3).map(|layer| config.layer_window(layer)).collect();
    assert_eq!(windows, [Some(256), None, Some(256)]);
    let off = keys.iter().fold(plain, |parts, key| parts.set(&format!("gemma2.{key}"), 0_u32));
    let config = ModelConfig::from_file(&off.open()?)?;
    assert_eq!((config.attention_soft_cap, config.logit_soft_cap, config.local), (None, None, None));
    // One size of each family scales by its width a head: 32 for 4 heads, not the heads' 16.
    for (family, layers) in [("gemma2", 46), ("gemma3", 62)] {
        let scale = |layers| -> Outcome<f32> {
            let tiny = Tiny { family, layers, head_dim: 16, ..gemma2 };
            Ok(ModelConfig::from_file(&open(&tiny, &[])?)?.attention_scale)
        };
        assert_eq!((scale(layers)?, scale(layers - 1)?), (1.0 / 8_f32.sqrt(), 0.25), "{family}");
    }
    Ok(())
}

/// Beyond it, attention is scaled by position.
#[test]
fn a_temperature_by_position_limits_the_context_to_the_first_one() -> Outcome {
    let mistral = TINY.iter().find(|tiny| tiny.family == "mistral3").ok_or("a tiny model")?;
    assert_eq!(ModelConfig::from_file(&open(mistral, &[])?)?.context_length, 32);
    let plain = Parts::of(mistral)?.set("mistral3.attention.temperature_scale", 0_f32).open()?;
    assert_eq!(ModelConfig::from_file(&plain)?.context_length, 256);
    Ok(())
}

#[test]
fn scaling_that_is_not_known_is_refused() -> Outcome {
    let refused = |add: &dyn Fn(&mut GgufWriter) -> Outcome| {
        config_with(&TINY[0], add).err().map_or("accepted".into(), |error| error.to_string())
    };
    let error = refused(&|writer| {
        writer.metadata("llama.rope.scaling.type", "longrope");
        Ok(())
    });
    assert_eq!(
        error,
        "tiny.gguf: llama.rope.scaling.type: expected none, linear, llama3 or yarn, found longrope"
    );
    let error = refused(&|writer| {
        writer.vector("rope_freqs.weight", &[1.0; 3])?;
        Ok(())
    });
    assert_eq!(error, "tiny.gguf: tensor rope_freqs.weight: expected [4], found [3]");
    let error = refused(&|writer| {
        writer.vector("rope_freqs.weight", &[1.0, 1.0, 0.0, 1.0])?;
        Ok(())
    });
    assert_eq!(error, "tiny.gguf: rope_freqs.weight: expected positive factors, found 0");
    Ok(())
}

#[test]
fn an_unknown_architecture_is_refused() -> Outcome {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "mamba");
    writer.vector("token_embd.weight", &[0.0])?;
    let file = ModelFile::from_bytes("mamba.gguf", writer.to_bytes())?;
    let error = ModelConfig::from_file(&file).err().map(|error| error.to_string());
    let expected = r#"mamba.gguf: architecture "mamba" is not supported; supported: llama, qwen2, qwen3"#;
    assert!(error.as_deref().is_some_and(|error| error.starts_with(expected)), "{error:?}");
    Ok(())
}

#[test]
fn the_kv_budget_must_hold_one_context() -> Outcome {
    let file = open(&TINY[0], &[])?;
    let config = ModelConfig::from_file(&file)?;
    // Two pages of two layers, keys and values, two heads of 8 halves for 16 tokens.
    let needed = 2 * 2 * 2 * 2 * 16 * 16;
    let try_load = |kv_bytes, context_max| {
        let kv = KvBudget::Bytes(kv_bytes as u64);
        let options = LoadOptions { kv, context_max, ..OPTIONS };
        Model::load(&file, &config, Reference, &options, &mut |_| {}).map(|model| model.pages())
    };
    assert_eq!(try_load(needed, 32)?, 2);
    let error = try_load(needed - 1, 32).err();
    let told = matches!(error, Some(ModelError::KvBudget { bytes_needed, .. }) if bytes_needed == needed);
    assert!(told, "{error:?}");
    assert!(matches!(try_load(1 << 20, 257).err(), Some(ModelError::Context { asked: 257, trained: 256 })));
    Ok(())
}

#[test]
fn loading_tells_its_progress_and_prepares_a_tied_table_once() -> Outcome {
    let file = open(&TINY[1], &[])?;
    let config = ModelConfig::from_file(&file)?;
    assert!(config.tied_embeddings);
    let (mut seen, mut last) = (Vec::new(), 0);
    let model = Model::load(&file, &config, Reference, &OPTIONS, &mut |progress| {
        seen.push(progress.tensor.to_owned());
        assert_eq!((progress.done, progress.total), (seen.len(), file.tensors().len()));
        last = progress.bytes_total - progress.bytes_done;
    })?;
    assert_eq!(last, 0);
    seen.sort();
    let mut names: Vec<&str> = file.tensors().iter().map(|info| info.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(seen, names);
    assert_eq!(model.vocab_size(), VOCAB);
    Ok(())
}

#[test]
fn float_matrices_are_quantised_on_request() -> Outcome {
    let file = open(&TINY[1], &[])?;
    let config = ModelConfig::from_file(&file)?;
    let options = LoadOptions { quantise: Some(QuantFormat::W8G32), ..OPTIONS };
    let mut measured = 0;
    let mut model = Model::load(&file, &config, Reference, &options, &mut |progress| {
        measured += usize::from(progress.quality.is_some_and(|quality| quality.snr_db > 30.0));
    })?;
    assert_eq!(measured, 8, "seven matrices of the layer and the table");
    model.step(&step(0..8))?;
    model.step(&step(8..10))?;
    let mut logits = [f32::NAN; VOCAB];
    model.logits(0, &mut logits)?;
    let worst = logits.iter().zip(&EXPECTED[1]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst > 1e-4 && worst < 0.1, "{worst}");
    assert_ne!(model.fingerprint(), load(&TINY[1])?.fingerprint());
    Ok(())
}

/// Values as MXFP4: each block's exponent from its largest, each code the nearest.
fn mxfp4(values: &[f32]) -> Vec<u8> {
    const VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let code = |x: f32| {
        let apart = |code: &usize| (VALUES[*code] - x.abs()).abs();
        let nearest = (0..8).min_by(|a, b| apart(a).total_cmp(&apart(b))).unwrap_or(0) as u8;
        nearest | u8::from(x < 0.0) << 3
    };
    let block = |values: &[f32]| {
        let largest = values.iter().fold(1e-4f32, |most, x| most.max(x.abs()));
        let power = largest.log2().floor() as i32 - 2;
        let codes: Vec<u8> = values.iter().map(|x| code(x * 2f32.powi(-power))).collect();
        let pairs = (0..16).map(|at| codes[at] | codes[at + 16] << 4);
        std::iter::once((power + 127) as u8).chain(pairs).collect::<Vec<u8>>()
    };
    values.chunks(32).flat_map(block).collect()
}

/// A model of floats of four bits computes what ones of the same values in f32 and in integers do.
#[test]
fn weights_of_four_bit_floats_are_their_values() -> Outcome {
    let mut parts = Parts::of(&TINY[0])?;
    let original = parts.open()?;
    let (mut changed, mut wide, mut eight) = (0, parts.clone(), parts.clone());
    for ((four, wide), eight) in parts.tensors.iter_mut().zip(&mut wide.tensors).zip(&mut eight.tensors) {
        if four.dims.len() < 2 || !four.dims[0].is_multiple_of(32) {
            continue;
        }
        let matrix = original.matrix(&four.name)?;
        let mut values = vec![0.0; matrix.rows() * matrix.cols()];
        values.chunks_mut(matrix.cols()).enumerate().for_each(|(row, out)| matrix.dequantize_row(row, out));
        (four.dtype, four.bytes) = (TensorType::Mxfp4, mxfp4(&values));
        let mut writer = GgufWriter::new();
        writer.tensor("w", TensorType::Mxfp4, &four.dims, four.bytes.clone())?;
        let matrix = ModelFile::from_bytes("one.gguf", writer.to_bytes())?.matrix("w")?;
        let WeightMatrix::Quant(matrix) = matrix else { return Err("not quantised".into()) };
        values.chunks_mut(matrix.cols()).enumerate().for_each(|(row, out)| matrix.dequantize_row(row, out));
        wide.dtype = TensorType::F32;
        wide.bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        eight.dtype = TensorType::Q8_0;
        let groups = matrix.groups_per_row();
        eight.bytes = (0..matrix.rows() * groups)
            .flat_map(|group| {
                let code = |col| matrix.code(group / groups, group % groups * 32 + col) as i8 as u8;
                matrix.scales()[group].to_le_bytes().into_iter().chain((0..32).map(code)).collect::<Vec<u8>>()
            })
            .collect();
        changed += 1;
    }
    assert!(changed > 3, "only {changed} of the matrices");
    let expected = logits_of(&wide, Reference)?;
    assert!(logits_of(&parts, Reference)? == expected);
    assert!(logits_of(&Parts::of(&TINY[0])?, Reference)? != expected, "the values are others");
    for compute in [Compute::F32, Compute::Int8] {
        let cpu = || Cpu::new(&CpuOptions { compute, ..CpuOptions::default() });
        let found = logits_of(&parts, cpu()?)?;
        let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // Activations of eight bits, in a model whose sums are short.
        assert!(off < if compute == Compute::F32 { 1e-3 } else { 0.1 }, "{compute:?}: {off}");
        assert!(found == logits_of(&eight, cpu()?)?, "{compute:?}: integers of the same values");
    }
    Ok(())
}

/// The logits behind the recorded tokens.
fn logits_of<B: Backend>(parts: &Parts, backend: B) -> Outcome<[f32; VOCAB]> {
    let file = parts.open()?;
    let config = ModelConfig::from_file(&file)?;
    let mut model = Model::load(&file, &config, backend, &OPTIONS, &mut |_| {})?;
    model.step(&step(0..8))?;
    model.step(&step(8..10))?;
    let mut logits = [f32::NAN; VOCAB];
    model.logits(0, &mut logits)?;
    Ok(logits)
}

#[test]
fn what_cannot_be_quantised_is_named() -> Outcome {
    let mut bytes = file(&TINY[0], &[])?;
    // The last value of one matrix becomes a NaN.
    let file = ModelFile::from_bytes("tiny.gguf", bytes.clone())?;
    let info = file.tensor("blk.1.ffn_down.weight").ok_or("no such tensor")?;
    let end = (info.offset + info.bytes) as usize;
    bytes[end - 4..end].copy_from_slice(&f32::NAN.to_le_bytes());
    let file = ModelFile::from_bytes("tiny.gguf", bytes)?;
    let config = ModelConfig::from_file(&file)?;
    let options = LoadOptions { quantise: Some(QuantFormat::W8G32), ..OPTIONS };
    let error = Model::load(&file, &config, Reference, &options, &mut |_| {}).err().ok_or("accepted")?;
    let error = error.to_string();
    assert!(error.contains("blk.1.ffn_down.weight") && error.contains("row 31, column 47"), "{error}");
    Ok(())
}

#[test]
fn logits_are_those_of_the_last_step_alone() -> Outcome {
    let mut model = load(&TINY[0])?;
    let mut logits = [0.0; VOCAB];
    assert!(matches!(model.logits(0, &mut logits), Err(ModelError::Output { found: 0, outputs: 0 })));
    model.step(&step(0..3))?;
    assert!(matches!(model.logits(0, &mut logits[1..]), Err(ModelError::Logits { expected: 16, found: 15 })));
    model.logits(0, &mut logits)?;
    assert!(model.logits(1, &mut logits).is_err());
    Ok(())
}
