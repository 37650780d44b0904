//! A file's `attention.scale` is what queries are multiplied with: a model that says so is the twin of one
//! whose weights have the factor in them.

mod tiny;

use ottava::backend::Reference;
use ottava::checkpoint::{Checkpoint, ModelFile, TensorType};
use ottava::ir::{KvDtype, Precision, StepLimits};
use ottava::model::{Decoder, KvBudget, LoadOptions, Model, ModelConfig};

use tiny::recorded::{TINY, VOCAB, step};
use tiny::{Outcome, Tiny, file_with};

const OPTIONS: LoadOptions = LoadOptions {
    limits: StepLimits { tokens_max: 8, outputs_max: 2 },
    kv_dtype: KvDtype::F16,
    kv: KvBudget::Bytes(1 << 20),
    context_max: 32,
    quantise: None,
    sidecar: None,
    activations: Precision::F32,
};

/// The file of a model that says `scale`, if anything.
fn scaled(tiny: &Tiny, scale: Option<f32>) -> Outcome<Vec<u8>> {
    file_with(tiny, &[], |writer| {
        if let Some(scale) = scale {
            writer.metadata(&format!("{}.attention.scale", tiny.family), scale);
        }
        Ok(())
    })
}

/// Multiplies all f32 values of tensors whose names end in `part`.
fn multiply(bytes: &mut [u8], part: &str, factor: f32) -> Outcome {
    let file = ModelFile::from_bytes("twin.gguf", bytes.to_vec())?;
    let mut found = 0;
    for tensor in file.tensors().iter().filter(|tensor| tensor.name.ends_with(part)) {
        assert_eq!(tensor.dtype, TensorType::F32);
        let start = tensor.offset as usize;
        let values = bytes[start..start + 4 * tensor.dims.iter().product::<u64>() as usize].as_chunks_mut().0;
        for value in values {
            *value = (f32::from_le_bytes(*value) * factor).to_le_bytes();
        }
        found += 1;
    }
    assert!(found > 0, "no tensor is named {part}");
    Ok(())
}

fn logits(bytes: Vec<u8>) -> Outcome<Vec<f32>> {
    let file = ModelFile::from_bytes("tiny.gguf", bytes)?;
    let config = ModelConfig::from_file(&file)?;
    let mut model = Model::load(&file, &config, Reference, &OPTIONS, &mut |_| {})?;
    model.step(&step(0..8))?;
    let mut logits = vec![f32::NAN; VOCAB];
    model.logits(0, &mut logits)?;
    Ok(logits)
}

fn farthest(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_scale_is_that_of_a_twin_with_other_queries() -> Outcome {
    // What makes queries larger: their projection, or the norm behind it. The bias of qwen2 counts, too.
    let cases: [(Tiny, &[&str]); 4] = [
        (TINY[0], &["attn_q.weight"]),
        (TINY[2], &["attn_q.weight", "attn_q.bias"]),
        (TINY[3], &["attn_q_norm.weight"]),
        (TINY[4], &["attn_q_norm.weight"]),
    ];
    for (tiny, parts) in cases {
        let usual = 1.0 / (tiny.head_dim as f32).sqrt();
        let plain = logits(scaled(&tiny, None)?)?;
        assert_eq!(logits(scaled(&tiny, Some(usual))?)?, plain, "{}: the usual scale", tiny.family);
        for factor in [0.25, 4.0] {
            let found = logits(scaled(&tiny, Some(usual * factor))?)?;
            let mut twin = scaled(&tiny, None)?;
            for part in parts {
                multiply(&mut twin, part, factor)?;
            }
            let off = farthest(&found, &logits(twin)?);
            assert!(off < 1e-4, "{} times {factor}: {off} from its twin", tiny.family);
            let apart = farthest(&found, &plain);
            assert!(apart > 1e-2, "{} times {factor}: only {apart} from the usual scale", tiny.family);
        }
    }
    Ok(())
}

/// Converters write 0 where nothing is said; what is no scale is refused by its key.
#[test]
fn what_is_no_scale_is_the_default_or_refused() -> Outcome {
    let config = |scale| -> Outcome<ModelConfig> {
        Ok(ModelConfig::from_file(&ModelFile::from_bytes("tiny.gguf", scaled(&TINY[0], Some(scale))?)?)?)
    };
    let usual = 1.0 / (TINY[0].head_dim as f32).sqrt();
    assert_eq!(config(0.0)?.attention_scale, usual);
    assert_eq!(config(-0.0)?.attention_scale, usual);
    assert_eq!(config(0.5)?.attention_scale, 0.5);
    for bad in [-1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let error = config(bad).err().ok_or("accepted")?.to_string();
        assert!(error.contains("llama.attention.scale"), "{bad}: {error}");
    }
    Ok(())
}
