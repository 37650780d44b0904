//! Classification heads of rerankers, against a naive evaluation in f64.

use ottava::TokenId;
use ottava::checkpoint::{ModelFile, TensorType};
use ottava::model::{Pooling, TextTokens};

use crate::tiny::edit::{Parts, Tensor};
use crate::{GOLDENS, Golden, Outcome, cpu, load, rows, whole};

const WIDTH: usize = 64;

fn values(count: usize, seed: f32) -> Vec<f32> {
    (0..count).map(|index| 0.2 * (index as f32 * 1.7 + seed).sin()).collect()
}

fn matrix(parts: &mut Parts, name: &str, [rows, cols]: [usize; 2], values: &[f32]) {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let dims = vec![cols as u64, rows as u64];
    parts.tensors.push(Tensor { name: name.to_owned(), dtype: TensorType::F32, dims, bytes });
}

fn linear(x: &[f64], weights: &[f32], bias: &[f32]) -> Vec<f64> {
    let row = |(row, bias): (&[f32], &f32)| {
        row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>() + f64::from(*bias)
    };
    weights.chunks(x.len()).zip(bias).map(row).collect()
}

fn encoded(file: &ModelFile, pooling: Pooling, text: TextTokens<'_>) -> Outcome<Vec<f64>> {
    let found = rows(&mut load(file, pooling, cpu()?)?, &[text])?;
    Ok(found[0].iter().map(|&x| f64::from(x)).collect())
}

fn assert_near(found: &[f64], want: &[f64]) {
    assert_eq!(found.len(), want.len());
    for (found, want) in found.iter().zip(want) {
        assert!((found - want).abs() < 1e-4, "{found} of {want}");
    }
}

fn named(name: &str) -> &'static Golden {
    GOLDENS.iter().find(|golden| golden.name == name).expect("a golden")
}

#[test]
fn berts_head_is_a_tanh_between_two_projections() -> Outcome {
    let golden = named("bert");
    let mut parts = Parts::of_file(golden.file.to_vec())?.set("bert.pooling_type", 4_u32);
    let (dense, dense_bias) = (values(WIDTH * WIDTH, 1.0), values(WIDTH, 2.0));
    let (output, output_bias) = (values(2 * WIDTH, 3.0), values(2, 4.0));
    matrix(&mut parts, "cls.weight", [WIDTH, WIDTH], &dense);
    matrix(&mut parts, "cls.output.weight", [2, WIDTH], &output);
    let parts = parts.vector("cls.bias", &dense_bias).vector("cls.output.bias", &output_bias);
    let (file, ids) = (parts.open()?, golden.tokens()?);
    let row = encoded(&file, Pooling::Cls, whole(&ids))?;
    let hidden: Vec<f64> = linear(&row, &dense, &dense_bias).iter().map(|x| x.tanh()).collect();
    let want = linear(&hidden, &output, &output_bias);
    assert_near(&encoded(&file, Pooling::Rank, whole(&ids))?, &want);
    // The second segment has another token type, and a place of its own.
    let pair = TextTokens { ids: &ids, first_segment: 20 };
    let found = encoded(&file, Pooling::Rank, pair)?;
    assert!((found[0] - want[0]).abs() > 1e-3, "{found:?} of {want:?}");
    Ok(())
}

#[test]
fn modern_berts_head_has_a_norm_after_the_mean() -> Outcome {
    let golden = named("modern-bert");
    let mut parts = Parts::of_file(golden.file.to_vec())?.set("modern-bert.pooling_type", 4_u32);
    let (dense, output) = (values(WIDTH * WIDTH, 1.0), values(WIDTH, 3.0));
    matrix(&mut parts, "cls.weight", [WIDTH, WIDTH], &dense);
    matrix(&mut parts, "cls.output.weight", [1, WIDTH], &output);
    let gain = vec![1.5; WIDTH];
    let (file, ids) = (parts.vector("cls.norm.weight", &gain).open()?, golden.tokens()?);
    let row = encoded(&file, Pooling::Mean, whole(&ids))?;
    let hidden: Vec<f64> = linear(&row, &dense, &[0.0; WIDTH]).into_iter().map(gelu).collect();
    let mean = hidden.iter().sum::<f64>() / WIDTH as f64;
    let variance = hidden.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / WIDTH as f64;
    let normed: Vec<f64> = hidden.iter().map(|x| 1.5 * (x - mean) / (variance + 1e-5).sqrt()).collect();
    assert_near(&encoded(&file, Pooling::Rank, whole(&ids))?, &linear(&normed, &output, &[0.0]));
    Ok(())
}

/// The exact GELU, by the midpoint rule.
fn gelu(x: f64) -> f64 {
    const PARTS: i32 = 4000;
    let width = x / f64::from(PARTS);
    let bell = |part: i32| (-((f64::from(part) + 0.5) * width).powi(2) / 2.0).exp();
    x * (0.5 + (0..PARTS).map(bell).sum::<f64>() * width / (2.0 * std::f64::consts::PI).sqrt())
}

#[test]
fn a_model_without_a_head_ranks_nothing() -> Outcome {
    let error = load(&named("bert").open()?, Pooling::Rank, cpu()?).err().ok_or("it has no head")?;
    assert!(error.to_string().contains("no classification head"), "{error}");
    let ids = [TokenId(1), TokenId(2)];
    let rows = rows(&mut load(&named("bert").open()?, Pooling::Last, cpu()?)?, &[whole(&ids)])?;
    assert_eq!(rows[0].len(), WIDTH);
    Ok(())
}
