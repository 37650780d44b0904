//! Odd but legal model files, on the reference backend: twins say the same in two ways and have equal logits;
//! what would change the computation and is not supported is refused by the key's or the tensor's name.

mod tiny;

use ottava::backend::Reference;
use ottava::checkpoint::{Array, Value};
use ottava::ir::{KvDtype, Precision, StepLimits};
use ottava::model::{Decoder, KvBudget, LoadOptions, Model, ModelConfig, ModelError};

use tiny::Outcome;
use tiny::edit::Parts;
use tiny::recorded::{TINY, VOCAB, step};

const OPTIONS: LoadOptions = LoadOptions {
    limits: StepLimits { tokens_max: 8, outputs_max: 2 },
    kv_dtype: KvDtype::F16,
    kv: KvBudget::Bytes(1 << 20),
    context_max: 32,
    quantise: None,
    sidecar: None,
    activations: Precision::F32,
};

fn base(family: &str) -> Parts {
    let tiny = TINY.iter().find(|tiny| tiny.family == family).expect("a family");
    Parts::of(tiny).expect("a sound file")
}

fn logits(parts: &Parts) -> Outcome<Vec<f32>> {
    let file = parts.open()?;
    let mut model = Model::load(&file, &ModelConfig::from_file(&file)?, Reference, &OPTIONS, &mut |_| {})?;
    for range in [0..5, 5..8, 8..9, 9..10] {
        model.step(&step(range))?;
    }
    let mut logits = vec![f32::NAN; VOCAB];
    model.logits(0, &mut logits)?;
    Ok(logits)
}

/// The refusal of a file.
fn refusal(parts: &Parts) -> Outcome<String> {
    match ModelConfig::from_file(&parts.open()?) {
        Ok(_) => Ok("accepted".to_owned()),
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with("odd.gguf: "), "the file is named: {text}");
            assert!(text.chars().count() <= 400 && !text.contains('\n'), "one short line: {text}");
            Ok(text)
        }
    }
}

/// Both have the same logits, which are `plain`'s exactly if the change is `none`.
fn twins(name: &str, one: Parts, other: Parts) -> Outcome<Vec<f32>> {
    let (one, other) = (logits(&one)?, logits(&other)?);
    assert_eq!(one, other, "{name}");
    Ok(one)
}

fn flags(layers: usize, local: impl Fn(usize) -> bool) -> Vec<bool> {
    (0..layers).map(local).collect()
}

const WINDOW: &str = "gemma3.attention.sliding_window";
const PATTERN: &str = "gemma3.attention.sliding_window_pattern";
const LOCAL_BASE: &str = "gemma3.rope.freq_base_swa";

#[test]
fn gemma_without_a_window_has_no_local_layers() -> Outcome {
    let plain = logits(&base("gemma3"))?;
    // A window as long as the context, with the global layers' base, is none.
    let twin = base("gemma3").set(WINDOW, 256_u32).set(LOCAL_BASE, 5000_f32);
    let global = twins("no window", base("gemma3").unset(WINDOW), twin.clone())?;
    twins("window 0", base("gemma3").set(WINDOW, 0_u32), twin.clone())?;
    twins("base without a window", base("gemma3").unset(WINDOW).set(LOCAL_BASE, 77_f32), twin.clone())?;
    twins("pattern of none", base("gemma3").set(PATTERN, flags(7, |_| false)), twin.clone())?;
    twins("period 1", base("gemma3").set(PATTERN, 1_u32), twin)?;
    assert_ne!(plain, global, "the window matters");
    Ok(())
}

#[test]
fn a_pattern_says_which_layers_are_local() -> Outcome {
    let sixth = |layer: usize| !(layer + 1).is_multiple_of(6);
    let plain = twins("period 6", base("gemma3"), base("gemma3").set(PATTERN, 6_u32))?;
    twins("flags", base("gemma3"), base("gemma3").set(PATTERN, flags(7, sixth)))?;
    let numbers: Vec<i32> = (0..7).map(|layer| i32::from(sixth(layer))).collect();
    twins("numbers", base("gemma3"), base("gemma3").set(PATTERN, numbers))?;
    let third = base("gemma3").set(PATTERN, flags(7, |layer| layer % 3 != 2));
    assert_ne!(twins("period 3", base("gemma3").set(PATTERN, 3_u64), third)?, plain);
    twins("all", base("gemma3").set(PATTERN, 0_u8), base("gemma3").set(PATTERN, flags(7, |_| true)))?;
    for bad in [Value::from(flags(6, sixth)), Value::from(vec![2_i32; 7]), Value::from("6")] {
        let error = refusal(&base("gemma3").set(PATTERN, bad))?;
        assert!(error.contains(&format!("{PATTERN}: expected a period, or 7 flags")), "{error}");
    }
    Ok(())
}

/// Mistral's windows are those of all layers, with the one rotation that there is.
#[test]
fn windows_of_other_families_are_honoured() -> Outcome {
    for family in ["llama", "qwen2", "qwen3"] {
        let key = |name: &str| format!("{family}.attention.{name}");
        let windowed = base(family).set(&key("sliding_window"), 4_u32);
        let plain = logits(&base(family))?;
        let every = windowed.clone().set(&key("sliding_window_pattern"), flags(2, |_| true));
        assert_ne!(twins(family, windowed.clone(), every)?, plain, "{family}");
        let none = windowed.clone().set(&key("sliding_window_pattern"), flags(2, |_| false));
        assert_eq!(logits(&none)?, plain, "{family}");
        let wide = windowed.clone().set(&key("sliding_window"), u64::from(u32::MAX) + 1);
        assert_eq!(logits(&wide)?, plain, "{family}: a window beyond the context");
        let base_swa = format!("{family}.rope.freq_base_swa");
        let turned = windowed.clone().set(&base_swa, 50_f32);
        assert_ne!(logits(&turned)?, logits(&windowed)?, "{family}");
        assert_eq!(logits(&base(family).set(&base_swa, 50_f32))?, plain, "{family}: no local layer");
    }
    Ok(())
}

fn scaled(keys: &[(&str, Value)]) -> Parts {
    keys.iter()
        .fold(base("llama"), |parts, (key, value)| parts.set(&format!("llama.rope.{key}"), value.clone()))
}

#[test]
fn linear_scaling_is_one_thing_under_its_names() -> Outcome {
    let four = || ("scaling.factor", Value::F32(4.0));
    let kind = |name: &str| ("scaling.type", Value::from(name));
    let plain = logits(&base("llama"))?;
    let linear = twins("no type", scaled(&[four()]), scaled(&[kind("linear"), four()]))?;
    assert_ne!(linear, plain);
    twins("its old name", scaled(&[("scale_linear", Value::F32(4.0))]), scaled(&[four()]))?;
    twins("as an integer", scaled(&[("scaling.factor", Value::U32(4))]), scaled(&[four()]))?;
    let freqs = base("llama").vector("rope_freqs.weight", &[4.0; 4]);
    twins("factors", freqs.clone(), scaled(&[four()]))?;
    let both = freqs.set("llama.rope.scaling.factor", 2_f32);
    twins("factors and a factor", both, scaled(&[("scaling.factor", Value::F32(8.0))]))?;
    let no_ramp = [kind("yarn"), four(), ("scaling.yarn_ext_factor", Value::F32(0.0))];
    twins("YaRN without extrapolation", scaled(&no_ramp), scaled(&[four()]))?;
    for none in [
        vec![kind("none"), four()],
        vec![kind("linear")],
        vec![("scaling.factor", Value::F32(0.0))],
        vec![("scaling.original_context_length", Value::U32(64))],
        vec![("scaling.finetuned", Value::Bool(true)), ("scaling.yarn_log_multiplier", Value::F32(0.5))],
    ] {
        assert_eq!(logits(&scaled(&none))?, plain, "{none:?}");
    }
    let error = refusal(&scaled(&[four(), ("scaling.yarn_ext_factor", Value::F32(1.0))]))?;
    assert!(error.contains("llama.rope.scaling.yarn_ext_factor: expected 0"), "{error}");
    Ok(())
}

#[test]
fn yarn_has_its_defaults_and_heeds_its_keys() -> Outcome {
    let with = |more: &[(&str, Value)]| {
        let kind = [("scaling.type", Value::from("yarn")), ("scaling.factor", Value::F32(4.0))];
        scaled(&[&kind[..], more].concat())
    };
    let plain = with(&[]);
    let yarn = logits(&plain)?;
    for (key, default) in [
        ("scaling.original_context_length", Value::U32(256)),
        ("scaling.original_context_length", Value::U32(0)),
        ("scaling.yarn_ext_factor", Value::F32(1.0)),
        ("scaling.yarn_ext_factor", Value::F32(-1.0)),
        ("scaling.yarn_attn_factor", Value::F32(1.0)),
        ("scaling.attn_factor", Value::F32(1.0)),
        ("scaling.yarn_beta_fast", Value::F32(32.0)),
        ("scaling.yarn_beta_slow", Value::F64(1.0)),
        ("scaling.yarn_log_multiplier", Value::F32(0.0)),
    ] {
        assert_eq!(logits(&with(&[(key, default.clone())]))?, yarn, "{key} = {default:?}");
    }
    for (key, other) in [
        ("scaling.original_context_length", Value::U32(4096)),
        ("scaling.yarn_ext_factor", Value::F32(0.5)),
        ("scaling.yarn_attn_factor", Value::F32(1.5)),
        ("scaling.attn_factor", Value::F32(1.5)),
        ("scaling.yarn_beta_fast", Value::F32(4.0)),
        ("scaling.yarn_beta_slow", Value::F32(8.0)),
        ("scaling.yarn_log_multiplier", Value::F32(1.0)),
    ] {
        assert_ne!(logits(&with(&[(key, other)]))?, yarn, "{key}");
    }
    twins(
        "two names of one factor",
        with(&[("scaling.yarn_attn_factor", Value::F32(1.5))]),
        with(&[("scaling.attn_factor", Value::F32(1.5))]),
    )?;
    let error = refusal(&with(&[("scaling.yarn_ext_factor", Value::F32(1.5))]))?;
    assert!(error.contains("yarn_ext_factor: expected a number from 0 to 1, found 1.5"), "{error}");
    let error = refusal(&scaled(&[("scaling.type", Value::from("dynamic"))]))?;
    assert!(
        error.contains("llama.rope.scaling.type: expected none, linear, llama3 or yarn, found dynamic"),
        "{error}"
    );
    Ok(())
}

#[test]
fn a_missing_key_has_its_default() -> Outcome {
    let epsilon = "llama.attention.layer_norm_rms_epsilon";
    twins("epsilon", base("llama").unset(epsilon), base("llama").set(epsilon, 1e-6_f32))?;
    let freq_base = "llama.rope.freq_base";
    twins("base", base("llama").unset(freq_base), base("llama").set(freq_base, 10_000_f32))?;
    for key in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        twins(key, base("llama"), base("llama").unset(&format!("llama.{key}")))?;
    }
    // Without key_length the value's own default is the head, too.
    twins("head", base("qwen3"), base("qwen3").unset("qwen3.attention.value_length"))?;
    let heads = "llama.attention.head_count_kv";
    let error = refusal(&base("llama").unset(heads))?;
    assert!(error.contains("tensor blk.0.attn_k.weight: expected [32, 32], found [16, 32]"), "{error}");
    for key in ["block_count", "context_length", "embedding_length", "feed_forward_length"] {
        let error = refusal(&base("llama").unset(&format!("llama.{key}")))?;
        assert!(error.contains(&format!("llama.{key}: expected a count, found no such key")), "{error}");
    }
    Ok(())
}

#[test]
fn names_of_other_converters_are_honoured() -> Outcome {
    let one = base("gemma3")
        .unset("gemma3.rope.freq_base")
        .set("gemma3.rope.global.freq_base", 700_f32)
        .set("gemma3.rope.local.freq_base", 70_f32);
    let other = base("gemma3").set("gemma3.rope.freq_base", 700_f32).set(LOCAL_BASE, 70_f32);
    twins("bases", one, other)?;
    Ok(())
}

#[test]
fn values_by_layer_that_are_equal_are_one() -> Outcome {
    let (two, four) = (Value::from(vec![2_u32; 2]), Value::from(vec![4_i32; 2]));
    for (key, value) in [
        ("attention.head_count", four.clone()),
        ("attention.head_count_kv", two),
        ("feed_forward_length", Value::from(vec![48_u64; 2])),
        ("rope.dimension_count", Value::from(vec![8_u16; 2])),
        ("rope.freq_base", Value::from(vec![5000_f32; 2])),
        ("expert_count", Value::from(vec![0_u32; 2])),
        ("swiglu_clamp_exp", Value::from(vec![0_f32; 2])),
    ] {
        twins(key, base("llama"), base("llama").set(&format!("llama.{key}"), value))?;
    }
    let window = "llama.attention.sliding_window";
    let windows = base("llama").set(window, vec![4_u32; 2]);
    twins("windows", base("llama").set(window, 4_u32), windows)?;
    for (key, value) in [
        ("attention.head_count", Value::from(vec![4_u32, 2])),
        ("attention.head_count_kv", Value::from(vec![2_u32, 0])),
        ("feed_forward_length", Value::from(vec![48_u32, 64])),
        ("rope.dimension_count", Value::from(vec![8_u32, 4])),
        ("rope.freq_base", Value::from(vec![5000_f32, 1.0])),
        ("attention.sliding_window", Value::from(vec![4_u32, 0])),
        ("attention.head_count", Value::from(vec![4_u32; 3])),
        ("attention.head_count", Value::from(Vec::<u32>::new())),
        ("feed_forward_length", Value::from(vec!["48".to_owned(); 2])),
    ] {
        let key = format!("llama.{key}");
        let error = refusal(&base("llama").set(&key, value.clone()))?;
        assert!(error.contains(&key), "{value:?}: {error}");
    }
    Ok(())
}

#[test]
fn whole_numbers_may_have_any_type() -> Outcome {
    let types = |value: u8| {
        let wide = i64::from(value);
        let (u16s, i16s) = (u16::from(value), i16::from(value));
        [
            Value::U8(value),
            Value::U16(u16s),
            Value::I16(i16s),
            Value::I32(i32::from(value)),
            Value::U64(u64::from(value)),
            Value::I64(wide),
        ]
    };
    let plain = logits(&base("llama"))?;
    for (key, value) in [("block_count", 2), ("attention.head_count", 4), ("feed_forward_length", 48)] {
        for value in types(value) {
            let parts = base("llama").set(&format!("llama.{key}"), value.clone());
            assert_eq!(logits(&parts)?, plain, "{key} = {value:?}");
        }
    }
    for bad in [Value::I32(-1), Value::I64(i64::MIN), Value::F32(4.5), Value::from("4"), Value::Bool(true)] {
        let error = refusal(&base("llama").set("llama.attention.head_count", bad.clone()))?;
        assert!(
            error.contains("llama.attention.head_count: expected a whole number from 0"),
            "{bad:?}: {error}"
        );
    }
    let error = refusal(&base("llama").set("llama.attention.head_count", 1_u64 << 32))?;
    assert!(error.contains("llama.attention.head_count: expected at most 4294967295"), "{error}");
    let base_as_integer = base("llama").set("llama.rope.freq_base", 5000_i64);
    assert_eq!(logits(&base_as_integer)?, plain);
    Ok(())
}

#[test]
fn what_changes_nothing_is_no_reason_to_refuse() -> Outcome {
    let untied = base("qwen2").copy("token_embd.weight", "output.weight");
    twins("a head that is the table", base("qwen2"), untied)?;
    let same = [
        ("vocab_size padded", base("llama").set("llama.vocab_size", 64_u32)),
        ("no causal", base("llama").set("llama.attention.causal", true)),
        ("no scale", base("llama").set("llama.logit_scale", 0_f32)),
        ("scale 1", base("llama").set("llama.residual_scale", 1_f32)),
        ("the default scale", base("llama").set("llama.attention.scale", 8_f32.sqrt().recip())),
        ("layout", base("llama").set("llama.tensor_data_layout", "Meta AI original pth")),
        ("type", base("llama").set("general.type", "model")),
        ("same lengths", base("llama").set("llama.attention.key_length_swa", 8_u32)),
        ("norm bias", base("llama").vector("blk.1.ffn_norm.bias", &[0.0; 32])),
        ("matrix bias", base("llama").vector("blk.0.attn_q.bias", &[0.0; 32])),
        ("head bias", base("llama").vector("output.bias", &[0.0; VOCAB])),
        (
            "frequencies",
            base("llama").vector(
                "blk.0.attn_rot_embd.weight",
                &[0, 1, 2, 3].map(|pair| 5000_f32.powf(-pair as f32 / 4.0)),
            ),
        ),
    ];
    let plain = logits(&base("llama"))?;
    for (name, parts) in same {
        assert_eq!(logits(&parts)?, plain, "{name}");
    }
    let factors = base("llama").vector("rope_freqs.weight", &[1.0, 2.0, 3.0, 4.0]);
    let twice = factors.clone().vector("blk.1.rope_freqs.weight", &[1.0, 2.0, 3.0, 4.0]);
    twins("factors of a layer", factors.clone(), twice)?;
    for (name, parts) in [
        ("blk.1.ffn_norm.bias", base("llama").vector("blk.1.ffn_norm.bias", &[1.0; 32])),
        ("blk.1.rope_freqs.weight", factors.clone().vector("blk.1.rope_freqs.weight", &[1.0, 2.0, 3.0, 5.0])),
        ("blk.0.attn_rot_embd.weight", base("llama").vector("blk.0.attn_rot_embd.weight", &[1.0; 4])),
        ("rope_factors_long.weight", factors.vector("rope_factors_long.weight", &[1.0; 4])),
    ] {
        let error = refusal(&parts)?;
        assert!(error.contains(&format!("tensor {name} has no place")), "{error}");
    }
    // A head's bias is added with and without a head of its own.
    let biases: Vec<f32> = (0..VOCAB).map(|row| row as f32).collect();
    for family in ["llama", "qwen2"] {
        let biased = logits(&base(family).vector("output.bias", &biases))?;
        for ((found, plain), bias) in biased.iter().zip(logits(&base(family))?).zip(&biases) {
            assert!((found - plain - bias).abs() < 1e-5, "{family}: {found} is not {plain} + {bias}");
        }
    }
    Ok(())
}

#[test]
fn experts_are_named() -> Outcome {
    let told = |parts: &Parts| -> Outcome<String> {
        let error = ModelConfig::from_file(&parts.open()?).err().ok_or("accepted")?;
        let ModelError::File { reason, .. } = &error else { return Err("no file".into()) };
        assert!(matches!(**reason, ModelError::Experts { .. }), "{error}");
        refusal(parts)
    };
    let tensor = |name: &str| base("llama").without("blk.0.ffn_gate.weight").vector(name, &[1.0; 32]);
    for (parts, expected) in [
        (base("llama").set("llama.expert_count", 2_u32), "llama.expert_count is 2"),
        (base("qwen2").set("qwen2.expert_used_count", 1_u64), "qwen2.expert_used_count is 1"),
        (tensor("blk.0.ffn_gate_exps.weight"), "tensor blk.0.ffn_gate_exps.weight"),
        (tensor("blk.1.ffn_down_shexp.weight"), "tensor blk.1.ffn_down_shexp.weight"),
        (tensor("blk.0.ffn_gate_inp.weight"), "tensor blk.0.ffn_gate_inp.weight"),
        (tensor("blk.0.ffn_gate.0.weight"), "tensor blk.0.ffn_gate.0.weight"),
    ] {
        let error = told(&parts)?;
        assert!(
            error.contains("experts are not supported in this family") && error.contains(expected),
            "{error}"
        );
    }
    Ok(())
}

#[test]
fn a_message_is_one_short_line_whatever_the_file_holds() -> Outcome {
    let long = "x".repeat(60_000);
    let error = refusal(&base("llama").set(&format!("llama.{long}"), 1_u32))?;
    assert!(error.contains("llama.xxx"), "{error}");
    for odd in [long.as_str(), "a\nb", "\x1b[2Jgone"] {
        let error = refusal(&base("llama").set("llama.rope.scaling.type", odd))?;
        assert!(!error.contains('\x1b'), "{error:?}");
        let nested = Value::Array(Array::Nested(vec![Array::U8(vec![1])]));
        refusal(&base("llama").set(&format!("llama.{odd}"), nested))?;
        assert_ne!(refusal(&base("llama").set("general.architecture", odd))?, "accepted");
    }
    assert!(refusal(&base("llama").vector("blk.0.\n.weight", &[1.0]))?.contains("has no place"));
    Ok(())
}
