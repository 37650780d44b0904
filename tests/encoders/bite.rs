//! Every weight and every setting of an encoder's file moves an embedding, or is refused by its name.

use ottava::checkpoint::{ModelFile, TensorType, Value};
use ottava::model::{EncoderConfig, ModelError};

use crate::tiny::edit::{Parts, Tensor};
use crate::{GOLDENS, Golden, Outcome, cpu, distance, load, rows, unit, whole};

/// Elements with another value than before.
fn moved(tensor: &mut Tensor) {
    match tensor.dtype {
        TensorType::F16 => tensor.bytes.chunks_exact_mut(2).enumerate().for_each(|(index, bytes)| {
            let value = half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
            let other = half::f16::from_f32(value + 0.3 * (index as f32).sin());
            bytes.copy_from_slice(&other.to_le_bytes());
        }),
        _ => tensor.bytes.chunks_exact_mut(4).enumerate().for_each(|(index, bytes)| {
            let value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            bytes.copy_from_slice(&(value + 0.3 * (index as f32).sin()).to_le_bytes());
        }),
    }
}

/// The distance of an embedding of changed parts from the recorded one, or the refusal.
fn embedded(golden: &Golden, parts: &Parts) -> Outcome<Result<f64, ModelError>> {
    let file = ModelFile::from_bytes(golden.name, parts.bytes()?)?;
    if let Err(error) = EncoderConfig::from_file(&file) {
        return Ok(Err(error));
    }
    let found = rows(&mut load(&file, golden.pooling, cpu()?)?, &[whole(&golden.tokens()?)])?;
    Ok(Ok(distance(&unit(&found[0]), &golden.embedding()?)))
}

#[test]
fn every_weight_moves_an_embedding() -> Outcome {
    for golden in &GOLDENS {
        let parts = Parts::of_file(golden.file.to_vec())?;
        for index in 0..parts.tensors.len() {
            let mut parts = parts.clone();
            moved(&mut parts.tensors[index]);
            let name = parts.tensors[index].name.clone();
            // A bias of keys adds the same to all scores of a query, which softmax cancels.
            if name.ends_with("attn_k.bias") {
                continue;
            }
            let error = embedded(golden, &parts)??;
            assert!(error > 1e-3, "{}: {name} moved it by {error:e}", golden.name);
        }
    }
    Ok(())
}

#[test]
fn a_missing_or_surplus_weight_is_refused_by_name() -> Outcome {
    for golden in &GOLDENS {
        let parts = Parts::of_file(golden.file.to_vec())?;
        for tensor in &parts.tensors {
            // Biases and token types may be absent.
            if tensor.name.ends_with(".bias") || tensor.name.starts_with("token_types") {
                continue;
            }
            let error = embedded(golden, &parts.clone().without(&tensor.name))?;
            let error = error.err().ok_or_else(|| format!("{} is missing", tensor.name))?.to_string();
            let fused = tensor.name.contains("attn_qkv") || tensor.name.contains("ffn_up");
            assert!(fused || error.contains(&tensor.name), "{}: {error}", tensor.name);
        }
        for surplus in ["blk.0.attn_sinks.weight", "position_more.weight"] {
            let error = embedded(golden, &parts.clone().vector(surplus, &[1.0; 64]))?.err();
            let error = error.ok_or("a surplus tensor")?.to_string();
            assert!(error.contains(surplus), "{error}");
        }
    }
    Ok(())
}

#[test]
fn every_setting_moves_an_embedding_or_is_refused_by_its_name() -> Outcome {
    let number = |value: f32| Value::F32(value);
    for golden in &GOLDENS {
        let parts = Parts::of_file(golden.file.to_vec())?;
        let family = golden.open()?;
        let family = EncoderConfig::from_file(&family)?.model.family.name;
        let rotary = family != "bert";
        let epsilon = if ["gemma-embedding", "qwen3"].contains(&family) { "rms_epsilon" } else { "epsilon" };
        let epsilon = format!("attention.layer_norm_{epsilon}");
        let moves = [(epsilon.as_str(), number(0.3)), ("attention.scale", number(0.9))];
        let rope = [("rope.freq_base", number(3.0)), ("rope.scaling.factor", number(3.0))];
        for (key, value) in moves.into_iter().chain(rope.into_iter().filter(|_| rotary)) {
            let mut parts = parts.clone().set(&format!("{family}.{key}"), value);
            if key == "rope.scaling.factor" {
                parts = parts.set(&format!("{family}.rope.scaling.type"), "linear");
            }
            let error = embedded(golden, &parts)??;
            assert!(error > 1e-3, "{family}.{key} moved it by {error:e}");
        }
        if ["modern-bert", "gemma-embedding"].contains(&family) {
            for (key, value) in [("attention.sliding_window", 6_u32), ("attention.sliding_window_pattern", 2)]
            {
                let error = embedded(golden, &parts.clone().set(&format!("{family}.{key}"), value))??;
                assert!(error > 1e-3, "{family}.{key} moved it by {error:e}");
            }
        }
        let mut refused = vec![
            ("embedding_length", Value::U32(32)),
            ("feed_forward_length", Value::U32(32)),
            ("block_count", Value::U32(2)),
            ("pooling_type", Value::U32(9)),
            ("attention.max_alibi_bias", number(8.0)),
            ("attn_logit_softcapping", number(30.0)),
            ("something_new", number(1.0)),
        ];
        let encoder = family != "qwen3";
        refused.push(("attention.causal", Value::Bool(encoder)));
        if !rotary {
            refused.extend([("rope.freq_base", number(10.0)), ("rope.scaling.factor", number(2.0))]);
        }
        for (key, value) in refused {
            let key = format!("{family}.{key}");
            let error = embedded(golden, &parts.clone().set(&key, value))?;
            let error = error.err().ok_or_else(|| format!("{key} is accepted"))?.to_string();
            assert!(error.contains(&key) || error.contains("tensor "), "{key}: {error}");
        }
    }
    Ok(())
}

/// The window of an encoder counts the positions on both sides, so it may exceed the context.
#[test]
fn a_window_may_be_wider_than_the_context() -> Outcome {
    let golden = GOLDENS.iter().find(|golden| golden.name == "modern-bert").ok_or("a golden")?;
    let parts = Parts::of_file(golden.file.to_vec())?.set("modern-bert.context_length", 48_u32);
    let window = |width: u32| -> Outcome<f64> {
        Ok(embedded(golden, &parts.clone().set("modern-bert.attention.sliding_window", width))??)
    };
    // Half of 94 positions reaches from the first token to the last.
    assert!(window(94)? == window(5000)? && window(94)? != window(60)?);
    assert!(window(16)? < 1e-4);
    Ok(())
}

/// Learned positions end where the table ends, whatever the file declares.
#[test]
fn the_position_table_bounds_the_context() -> Outcome {
    let parts = Parts::of_file(GOLDENS[0].file.to_vec())?;
    let file = parts.clone().set("bert.context_length", 5000_u32).open()?;
    assert_eq!(EncoderConfig::from_file(&file)?.model.context_length, 64);
    let error = EncoderConfig::from_file(&parts.set("tokenizer.ggml.token_type_count", 3_u32).open()?);
    assert!(error.err().ok_or("3 types")?.to_string().contains("token_type_count"));
    Ok(())
}
