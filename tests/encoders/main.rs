//! Text encoders: embeddings of tiny models against recorded ones of transformers, in f32. The models in
//! `tests/golden/families` were written by llama.cpp's converter. Every weight and every setting moves an
//! embedding, or is refused.

mod api;
mod bite;
mod folder;
mod minilm;
mod rank;
#[path = "../real_models/mod.rs"]
mod real_models;
#[path = "../tiny/mod.rs"]
mod tiny;

use std::num::NonZeroUsize;

use ottava::TokenId;
use ottava::backend::cpu::{Compute, Cpu, CpuOptions};
use ottava::backend::{Backend, Reference};
use ottava::checkpoint::{Checkpoint, ModelFile};
use ottava::ir::StepLimits;
use ottava::model::{Encoder, EncoderConfig, EncoderOptions, Pooling, TextEncoder as _, TextTokens};
use serde_json::Value;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// A converted model, its pooling and its recorded embedding.
struct Golden {
    name: &'static str,
    file: &'static [u8],
    record: &'static str,
    pooling: Pooling,
}

macro_rules! golden {
    ($name:literal, $record:literal, $pooling:expr) => {
        Golden {
            name: $record,
            file: include_bytes!(concat!("../golden/families/", $name, ".gguf")),
            record: include_str!(concat!("../golden/families/", $record, ".json")),
            pooling: $pooling,
        }
    };
}

const GOLDENS: [Golden; 6] = [
    golden!("bert", "bert", Pooling::Mean),
    golden!("bert", "bert_cls", Pooling::Cls),
    golden!("nomic-bert", "nomic-bert", Pooling::Mean),
    golden!("modern-bert", "modern-bert", Pooling::Cls),
    golden!("gemma-embedding", "gemma-embedding", Pooling::Mean),
    golden!("qwen3_embedding", "qwen3_embedding", Pooling::Last),
];

impl Golden {
    fn open(&self) -> Outcome<ModelFile> {
        Ok(ModelFile::from_bytes(self.name, self.file.to_vec())?)
    }

    fn tokens(&self) -> Outcome<Vec<TokenId>> {
        let record: Value = serde_json::from_str(self.record)?;
        let ids = record["tokens"].as_array().ok_or("tokens")?;
        Ok(ids.iter().filter_map(Value::as_u64).map(|id| TokenId(id as u32)).collect())
    }

    fn embedding(&self) -> Outcome<Vec<f64>> {
        let record: Value = serde_json::from_str(self.record)?;
        let values = record["embedding"].as_array().ok_or("embedding")?;
        Ok(values.iter().filter_map(Value::as_f64).collect())
    }
}

fn cpu() -> Outcome<Cpu> {
    let options =
        CpuOptions { threads: NonZeroUsize::new(2), compute: Compute::F32, ..CpuOptions::default() };
    Ok(Cpu::new(&options)?)
}

fn load<B: Backend>(file: &dyn Checkpoint, pooling: Pooling, backend: B) -> Outcome<Encoder<B>> {
    let config = EncoderConfig::from_file(file)?;
    let context_max = config.model.context_length;
    let limits = StepLimits { tokens_max: 256, outputs_max: 8 };
    let options = EncoderOptions { limits, context_max, pooling, quantise: None, sidecar: None };
    Ok(Encoder::load(file, &config, backend, &options, &mut |_| {})?)
}

fn whole(ids: &[TokenId]) -> TextTokens<'_> {
    TextTokens { ids, first_segment: ids.len() }
}

/// Pooled rows of texts in one step.
fn rows<B: Backend>(encoder: &mut Encoder<B>, texts: &[TextTokens<'_>]) -> Outcome<Vec<Vec<f32>>> {
    let width = encoder.width();
    let mut out = vec![0.0; texts.len() * width];
    encoder.encode(texts, &mut out)?;
    Ok(out.chunks(width).map(<[f32]>::to_vec).collect())
}

/// The row at unit length.
fn unit(row: &[f32]) -> Vec<f64> {
    let length = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    row.iter().map(|&x| f64::from(x) / length).collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn embeddings_are_those_of_transformers() -> Outcome {
    for golden in &GOLDENS {
        let (file, ids, want) = (golden.open()?, golden.tokens()?, golden.embedding()?);
        let on_reference = rows(&mut load(&file, golden.pooling, Reference)?, &[whole(&ids)])?;
        let on_cpu = rows(&mut load(&file, golden.pooling, cpu()?)?, &[whole(&ids)])?;
        for (found, tolerance) in [(on_reference, 2e-5), (on_cpu, 1e-4)] {
            let error = distance(&unit(&found[0]), &want);
            assert!(error <= tolerance, "{}: {error:e}", golden.name);
        }
    }
    Ok(())
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() -> Outcome {
    for golden in &GOLDENS {
        let mut encoder = load(&golden.open()?, golden.pooling, cpu()?)?;
        let ids = golden.tokens()?;
        let texts = [&ids[..], &ids[..1], &ids[5..22], &ids[47..], &ids[3..40]].map(whole);
        let together = rows(&mut encoder, &texts)?;
        for (text, row) in texts.iter().zip(&together) {
            assert_eq!(&rows(&mut encoder, &[*text])?[0], row, "{}", golden.name);
        }
        assert_ne!(together[0], together[1]);
    }
    Ok(())
}
