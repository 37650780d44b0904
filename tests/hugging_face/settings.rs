//! What a `config.json` may say: every spelling of a setting is one setting, and each is honoured.

use ottava::checkpoint::{self, OpenOptions};
use ottava::model::ModelConfig;
use serde_json::{Value, json};

use crate::folder::{Folder, Tensor, twin};
use crate::tiny::Outcome;

fn config(folder: &Folder) -> Outcome<ModelConfig> {
    let folder = folder.write()?;
    Ok(ModelConfig::from_file(&*checkpoint::open(folder.path(), &OpenOptions::default())?)?)
}

#[test]
fn a_folder_has_the_configuration_of_its_twin() -> Outcome {
    for family in ["llama", "qwen2", "qwen3", "gemma3"] {
        let (found, twin) = (config(&Folder::of(family)?)?, ModelConfig::from_file(&twin(family)?)?);
        let same =
            ModelConfig { dialect: twin.dialect.clone(), biases: twin.biases.clone(), ..found.clone() };
        let pairing = |config: &ModelConfig| config.rope.global.pairing;
        let mut same = same;
        (same.rope.global.pairing, same.rope.local.pairing) = (pairing(&twin), pairing(&twin));
        assert_eq!(same, twin, "{family}");
        assert_eq!(found.biases.len(), twin.biases.len());
    }
    Ok(())
}

#[test]
fn older_spellings_of_the_rotation_are_the_same() -> Outcome {
    let scheme = json!({ "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0 });
    let with = |kind: &str, value: &str| {
        let mut scheme = scheme.clone();
        scheme[kind] = value.into();
        scheme
    };
    let mut new = with("rope_type", "yarn");
    new["rope_theta"] = 500_000.0.into();
    let new = config(&Folder::of("llama")?.set("rope_parameters", new))?;
    let old = Folder::of("llama")?.set("rope_parameters", Value::Null).set("rope_theta", 500_000.into());
    let old = config(&old.set("rope_scaling", with("type", "yarn")))?;
    assert_eq!(new, old);
    // Half of the last frequency's pair does not turn once in the trained context.
    let plain = config(&Folder::of("llama")?.set("rope_parameters", json!({ "rope_theta": 500_000.0 })))?;
    assert!((new.rope.global.inv_freq[15] * 4.0 / plain.rope.global.inv_freq[15] - 1.0).abs() < 1e-12);
    assert_eq!(new.rope.global.inv_freq[0], plain.rope.global.inv_freq[0]);
    assert!((f64::from(new.rope.global.magnitude) - (0.1 * 4_f64.ln() + 1.0)).abs() < 1e-6);
    Ok(())
}

#[test]
fn scales_of_yarn_and_linear_factors_are_honoured() -> Outcome {
    let of = |scheme: Value| config(&Folder::of("llama")?.set("rope_parameters", scheme));
    let plain = of(json!({ "rope_theta": 10_000.0 }))?;
    let linear = of(json!({ "rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0 }))?;
    assert!(
        plain.rope.global.inv_freq.iter().zip(linear.rope.global.inv_freq.iter()).all(|(a, b)| *a == b * 2.0)
    );
    let yarn = |more: Value| {
        let mut scheme = json!({ "rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0 });
        for (key, value) in more.as_object().into_iter().flatten() {
            scheme[key.as_str()] = value.clone();
        }
        of(scheme).map(|config| f64::from(config.rope.global.magnitude))
    };
    let of_log = |multiplier: f64| 0.1 * multiplier * 4_f64.ln() + 1.0;
    assert!((yarn(json!({ "attention_factor": 1.5 }))? - 1.5).abs() < 1e-6);
    let found = yarn(json!({ "mscale": 2.0, "mscale_all_dim": 0.5 }))?;
    assert!((found - of_log(2.0) / of_log(0.5)).abs() < 1e-6, "{found}");
    assert!((yarn(json!({ "mscale": 2.0 }))? - of_log(1.0)).abs() < 1e-6);
    Ok(())
}

#[test]
fn gemma_says_its_windows_in_three_ways() -> Outcome {
    let listed = config(&Folder::of("gemma3")?)?;
    let plain = || Ok::<_, Box<dyn std::error::Error>>(Folder::of("gemma3")?.set("layer_types", Value::Null));
    for key in ["sliding_window_pattern", "_sliding_window_pattern"] {
        let folder = plain()?.set("_sliding_window_pattern", Value::Null).set(key, 6.into());
        assert_eq!(config(&folder)?, listed, "{key}");
    }
    assert_eq!(config(&plain()?.set("_sliding_window_pattern", Value::Null))?, listed, "the default");
    let third = config(
        &plain()?.set("_sliding_window_pattern", Value::Null).set("sliding_window_pattern", 3.into()),
    )?;
    assert_eq!((third.layer_window(1), third.layer_window(2)), (Some(16), None));
    // Older documents have two bases, and a scheme for global layers alone.
    let old = Folder::of("gemma3")?.set("rope_parameters", Value::Null).set("rope_theta", 1_000_000.0.into());
    let old = old.set("rope_local_base_freq", 10_000.0.into());
    assert_eq!(config(&old)?, listed);
    let scaled = config(&old.set("rope_scaling", json!({ "rope_type": "linear", "factor": 8.0 })))?;
    assert_eq!(scaled.rope(0), listed.rope(0));
    assert_eq!(scaled.rope.global.inv_freq[3] * 8.0, listed.rope.global.inv_freq[3]);
    // A divisor of its own for the products of queries and keys.
    let wide = config(&Folder::of("gemma3")?.set("query_pre_attn_scalar", 64.into()))?;
    assert_eq!(wide.attention_scale, 0.125);
    Ok(())
}

#[test]
fn windows_of_other_families_are_honoured() -> Outcome {
    let qwen = |uses: bool| -> Outcome<_> {
        let folder = Folder::of("qwen2")?.set("layer_types", Value::Null).set("sliding_window", 8.into());
        config(&folder.set("use_sliding_window", uses.into()).set("max_window_layers", 3.into()))
    };
    let windows = |config: &ModelConfig| (0..4).map(|layer| config.layer_window(layer)).collect::<Vec<_>>();
    assert_eq!(windows(&qwen(true)?), [None, None, None, Some(8)]);
    assert_eq!(windows(&qwen(false)?), [None; 4]);
    let mistral = Folder::of("llama")?.set("model_type", "mistral".into());
    assert_eq!(windows(&config(&mistral.clone().set("sliding_window", 8.into()))?), [Some(8); 4]);
    // Null is no default.
    let mut none = mistral;
    none.config["sliding_window"] = Value::Null;
    assert_eq!(windows(&config(&none)?), [None; 4]);
    Ok(())
}

/// What stands around a text model, and the parts beside it.
fn seeing(outer: &Value, plain: &Folder, [body, head]: [&str; 2]) -> Folder {
    let mut folder = plain.clone();
    folder.config = outer.clone();
    folder.config["text_config"] = plain.config.clone();
    for tensor in &mut folder.tensors {
        tensor.name = match tensor.name.strip_prefix("model.") {
            Some(rest) => format!("{body}{rest}"),
            None => format!("{head}.weight"),
        };
    }
    let other = |name: &str| Tensor { name: name.into(), shape: vec![2], values: vec![0.0; 2] };
    let beside =
        ["vision_tower.ln_pre.weight", "model.multi_modal_projector.norm.weight", "model.visual.norm.weight"];
    folder.tensors.extend(beside.map(other));
    folder
}

#[test]
fn the_text_part_of_a_model_that_sees_is_the_model() -> Outcome {
    let gemma = json!({
        "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "mm_tokens_per_image": 256,
        "vision_config": { "hidden_size": 4 },
    });
    let mistral = json!({
        "model_type": "mistral3", "image_token_index": 10, "multimodal_projector_bias": true, "spatial_merge_size": 2,
        "projector_hidden_act": "gelu", "vision_feature_layer": -1, "vision_config": { "model_type": "pixtral" },
    });
    let qwen = json!({
        "model_type": "qwen3_vl", "image_token_id": 1, "video_token_id": 2, "vision_start_token_id": 3,
        "vision_end_token_id": 4, "vision_config": { "deepstack_visual_indexes": [8] }, "tie_word_embeddings": true,
    });
    let mrope = json!({ "rope_type": "default", "rope_theta": 5e6, "mrope_section": [6, 5, 5], "mrope_interleaved": true });
    let qwen_text = Folder::of("qwen3")?.set("model_type", "qwen3_vl_text".into());
    for (outer, plain) in [
        (gemma, Folder::of("gemma3")?),
        (mistral, Folder::of("llama")?.set("model_type", "mistral".into())),
        (qwen, qwen_text.set("rope_parameters", mrope)),
    ] {
        for names in
            [["language_model.model.", "language_model.lm_head"], ["model.language_model.", "lm_head"]]
        {
            let (found, expected) = (config(&seeing(&outer, &plain, names))?, config(&plain)?);
            assert_eq!(
                ModelConfig { dialect: expected.dialect.clone(), ..found.clone() },
                expected,
                "{names:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_model_without_a_head_of_its_own_names_tensors_without_a_prefix() -> Outcome {
    let mut folder = Folder::of("qwen3")?;
    for tensor in &mut folder.tensors {
        tensor.name = tensor.name.trim_start_matches("model.").to_owned();
    }
    let expected = config(&Folder::of("qwen3")?)?;
    assert_eq!(ModelConfig { dialect: expected.dialect.clone(), ..config(&folder)? }, expected);
    Ok(())
}
