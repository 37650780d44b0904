//! Every model type that a folder may be of: the tiny models of `tiny::recorded` under transformers' names, in its
//! order, have the logits that an independent implementation in f64 computes of their GGUF files.

use ottava::checkpoint::{self, Checkpoint as _, ModelFile, OpenOptions};
use ottava::model::ModelConfig;
use ottava::quant::WeightMatrix;
use serde_json::{Value, json};

use crate::folder::{Dtype, Folder, Tensor, in_halves};
use crate::fp8::{Share, assert_stands_for, quantised, refused};
use crate::logits::run;
use crate::tiny::recorded::{EXPECTED, TINY, TOKENS, VOCAB};
use crate::tiny::{EMBEDDING, EXPERT_FEED_FORWARD, EXPERTS, EXPERTS_USED, Outcome, Tiny, file};

/// How far logits may be from the record, as that of the GGUF files.
const TOLERANCE: f32 = 5e-3;

/// Names of a layer's parts that most families have, in GGUF and in folders.
const PARTS: [(&str, &str); 18] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.N.gate_proj"),
    ("ffn_up_exps", "mlp.experts.N.up_proj"),
    ("ffn_down_exps", "mlp.experts.N.down_proj"),
];

/// The parts that a model type calls otherwise.
fn own_parts(model_type: &str) -> &'static [(&'static str, &'static str)] {
    match model_type {
        "gemma2" | "gemma3_text" => &[("ffn_norm", "pre_feedforward_layernorm")],
        "glm4" => &[
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        "phi3" => &[("ffn_up", "mlp.gate_up_proj")],
        "starcoder2" => &[("ffn_up", "mlp.c_fc"), ("ffn_down", "mlp.c_proj")],
        _ => &[],
    }
}

fn renamed(name: &str, model_type: &str) -> String {
    for (other, renamed) in
        [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")]
    {
        if let Some(end @ (".weight" | ".bias")) = name.strip_prefix(other) {
            return format!("{renamed}{end}");
        }
    }
    let (layer, part) = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).expect("a layer's");
    let (part, end) = part.split_once('.').expect("a weight or a bias");
    let mut names = own_parts(model_type).iter().chain(&PARTS);
    let (_, part) = names.find(|(other, _)| *other == part).expect("a part that is known");
    format!("model.layers.{layer}.{part}.{end}")
}

/// A model type, the family of its tiny model, whether rows of queries and keys have another order than in GGUF, and its
/// configuration beside what all have.
type Row = (&'static str, &'static str, bool, Value);

fn model_types() -> Vec<Row> {
    [first_types(), other_types()].concat()
}

fn first_types() -> Vec<Row> {
    vec![
        ("llama", "llama", true, json!({})),
        ("mistral", "llama", true, json!({ "sliding_window": null })),
        ("qwen2", "qwen2", false, json!({})),
        ("qwen3", "qwen3", false, json!({ "head_dim": 16 })),
        ("qwen3_vl_text", "qwen3vl", false, json!({ "head_dim": 16 })),
        ("gemma", "gemma", false, json!({ "hidden_act": "gelu", "head_dim": 8 })),
        (
            "gemma2",
            "gemma2",
            false,
            json!({
                "hidden_activation": "gelu_pytorch_tanh", "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 4,
                "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0,
            }),
        ),
        (
            "gemma3_text",
            "gemma3",
            false,
            json!({
                "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 4, "rope_local_base_freq": 10_000.0,
            }),
        ),
    ]
}

/// More of them.
fn other_types() -> Vec<Row> {
    let yarn = |more: Value| {
        let mut scheme =
            json!({ "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32 });
        merge(&mut scheme, more);
        scheme
    };
    vec![
        ("cohere", "command-r", false, json!({ "logit_scale": 0.25 })),
        (
            "cohere2",
            "cohere2",
            false,
            json!({ "logit_scale": 0.25, "sliding_window": 4, "rotary_pct": 1.0, "layer_switch": 4 }),
        ),
        ("ernie4_5", "ernie4_5", false, json!({ "head_dim": 16, "tie_word_embeddings": false })),
        ("olmoe", "olmoe", false, mixture("num_experts", "intermediate_size", false)),
        ("qwen3_moe", "qwen3moe", false, {
            let mut more = mixture("num_local_experts", "moe_intermediate_size", true);
            more["head_dim"] = 16.into();
            more
        }),
        ("exaone4", "exaone4", false, json!({ "sliding_window": 4, "sliding_window_pattern": "LLLG" })),
        (
            "glm4",
            "glm4",
            false,
            json!({ "head_dim": 16, "partial_rotary_factor": 0.5, "attention_bias": true }),
        ),
        (
            "granite",
            "granite",
            true,
            json!({
                "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.4,
                "logits_scaling": 1.5,
            }),
        ),
        ("ministral3", "mistral3", true, {
            let scheme = yarn(json!({
                "rope_theta": 5000.0, "mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.1,
            }));
            json!({ "rope_parameters": scheme, "head_dim": 8 })
        }),
        ("olmo3", "olmo2", false, {
            let ropes = json!({
                "full_attention": yarn(json!({ "rope_theta": 5000.0 })),
                "sliding_attention": { "rope_type": "default", "rope_theta": 5000.0 },
            });
            json!({ "sliding_window": 4, "rope_parameters": ropes })
        }),
        ("phi3", "phi3", false, {
            let (long, short) = factors();
            json!({
                "original_max_position_embeddings": 16,
                "rope_scaling": {
                    "type": "su", "long_factor": long, "short_factor": short, "attention_factor": 1.25,
                },
            })
        }),
        (
            "smollm3",
            "smollm3",
            true,
            json!({ "no_rope_layers": [1, 1, 1, 0], "no_rope_layer_interval": 4, "tie_word_embeddings": false }),
        ),
        ("starcoder2", "starcoder2", false, json!({ "use_bias": true, "tie_word_embeddings": false })),
    ]
}

/// A mixture: what it calls the number of experts and the elements between their matrices, and whether weights sum to 1.
fn mixture(count: &str, size: &str, sums: bool) -> Value {
    json!({
        count: EXPERTS, size: EXPERT_FEED_FORWARD, "num_experts_per_tok": EXPERTS_USED, "norm_topk_prob": sums,
        "router_aux_loss_coef": 0.01,
    })
}

fn merge(into: &mut Value, more: Value) {
    let (Some(into), Value::Object(more)) = (into.as_object_mut(), more) else { panic!("two objects") };
    into.extend(more);
}

fn tiny(family: &str) -> (&'static Tiny, &'static [f32; VOCAB]) {
    TINY.iter().zip(&EXPECTED).find(|(tiny, _)| tiny.family == family).expect("a recorded model")
}

fn twin(tiny: &Tiny) -> Outcome<ModelFile> {
    Ok(ModelFile::from_bytes("tiny.gguf", file(tiny, &[])?)?)
}

/// LongRoPE's, which are tensors in GGUF.
fn factors() -> (Vec<f32>, Vec<f32>) {
    let file = twin(tiny("phi3").0).expect("a file");
    let of = |name: &str| file.vector(name).expect("factors");
    (of("rope_factors_long.weight"), of("rope_factors_short.weight"))
}

fn folder(model_type: &str, tiny: &Tiny, reorders: bool, more: Value) -> Outcome<Folder> {
    let twin = twin(tiny)?;
    let mut tensors = Vec::new();
    for info in twin.tensors().iter().filter(|info| !info.name.starts_with("rope_")) {
        let matrix = twin.matrix(&info.name)?;
        let mut values = vec![0.0; matrix.rows() * matrix.cols()];
        values.chunks_mut(matrix.cols()).enumerate().for_each(|(row, out)| matrix.dequantize_row(row, out));
        for (part, heads) in [(".attn_q.", tiny.heads), (".attn_k.", tiny.kv_heads)] {
            if reorders && info.name.contains(part) {
                values = in_halves(&values, heads, matrix.cols());
            }
        }
        if model_type.starts_with("gemma") && info.name.contains("norm") {
            values.iter_mut().for_each(|value| *value -= 1.0);
        }
        let (name, mut shape) =
            (renamed(&info.name, model_type), info.dims.iter().rev().map(|&dim| dim as usize).collect());
        let experts = if info.dims.len() == 3 { Vec::remove(&mut shape, 0) } else { 1 };
        // Each expert has tensors of its own.
        for (number, values) in values.chunks(values.len() / experts).enumerate() {
            let name = name.replace(".N.", &format!(".{number}."));
            tensors.push(Tensor { name, shape: shape.clone(), values: values.to_vec() });
        }
    }
    // By name, so that the matrices of one role are apart.
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut config = json!({
        "model_type": model_type, "hidden_size": EMBEDDING, "intermediate_size": 48, "vocab_size": VOCAB,
        "num_hidden_layers": tiny.layers, "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads, "max_position_embeddings": 256, "rope_theta": 5000.0,
        "tie_word_embeddings": tiny.tied,
    });
    let epsilon = match model_type {
        "cohere" | "cohere2" => "layer_norm_eps",
        "starcoder2" => "norm_epsilon",
        _ => "rms_norm_eps",
    };
    config[epsilon] = 1e-5.into();
    merge(&mut config, more);
    Ok(Folder { config, tensors, raw: Vec::new(), dtype: Dtype::F32, documents: Vec::new() })
}

#[test]
fn every_model_type_has_the_logits_of_the_reference() -> Outcome {
    for (model_type, family, reorders, more) in model_types() {
        let (tiny, expected) = tiny(family);
        let folder = folder(model_type, tiny, reorders, more)?.write()?;
        let folder = checkpoint::open(folder.path(), &OpenOptions::default())?;
        let found = run(&*folder, &TOKENS, None).map_err(|error| format!("{model_type}: {error}"))?;
        let off = found[TOKENS.len() - 1].iter().zip(expected).map(|(a, b)| (a - b).abs());
        let off = off.fold(0.0, |most: f32, off| if off.is_nan() { off } else { most.max(off) });
        println!("{model_type}: {off:.1e}");
        assert!(off <= TOLERANCE, "{model_type}: {off}");
    }
    Ok(())
}

/// A mixture with its experts in several files, in floats of 32 and of 8 bits.
#[test]
fn experts_may_be_in_any_file_and_of_few_bits() -> Outcome {
    let types = model_types();
    let (model_type, family, _, more) = types.iter().find(|row| row.0 == "qwen3_moe").expect("a mixture");
    let whole = folder(model_type, tiny(family).0, false, more.clone())?;
    for share in [Share::Row, Share::Block] {
        assert_stands_for(&whole, quantised(&whole, share), [2e-3, 3e-3])?;
    }
    let rows = |folder: tempfile::TempDir| -> Outcome<_> {
        let file = checkpoint::open(folder.path(), &OpenOptions::default())?;
        let name = "model.layers.1.mlp.experts.down_proj.weight";
        assert_eq!(file.tensor(name).expect("a stack").dims, [16, 32, EXPERTS as u64]);
        let fingerprint = file.fingerprint()?;
        Ok((file.matrix(name)?, fingerprint))
    };
    let (of_one, fingerprint) = rows(whole.write()?)?;
    assert_eq!(rows(whole.write_sharded(3)?)?.0, of_one);
    let mut other = whole.clone();
    let last = other
        .tensors
        .iter_mut()
        .rfind(|tensor| tensor.name.contains(".experts.5."))
        .expect("the last expert");
    last.values[0] += 1.0;
    assert_ne!(rows(other.write()?)?.1, fingerprint);
    Ok(())
}

#[test]
fn experts_that_do_not_fit_each_other_are_named() -> Outcome {
    const ONE: &str = "model.layers.1.mlp.experts.2.up_proj.weight";
    let types = model_types();
    let (model_type, family, _, more) = types.iter().find(|row| row.0 == "qwen3_moe").expect("a mixture");
    let whole = folder(model_type, tiny(family).0, false, more.clone())?;
    let with = |change: fn(&mut Tensor)| {
        let mut folder = whole.clone();
        change(folder.tensors.iter_mut().find(|tensor| tensor.name == ONE).expect("an expert"));
        folder
    };
    refused(&with(|_| {}), &["accepted"])?;
    refused(&with(|one| one.name = one.name.replace("up_proj", "other")), &["experts.0.other.weight"])?;
    refused(&with(|one| one.name = one.name.replace(".2.", ".02.")), &[ONE])?;
    refused(&with(|one| one.shape.reverse()), &[ONE, "the shape and the type of the first expert's"])?;
    refused(&with(|one| one.shape = vec![one.values.len()]), &[ONE, "the shape and the type"])?;
    let mut both = whole.clone();
    let one = both.tensors.iter().find(|tensor| tensor.name == ONE).expect("an expert").clone();
    both.tensors.push(Tensor { name: ONE.replace(".2.", "."), ..one });
    refused(&both, &["experts.up_proj.weight", "twice"])?;
    let [mut few, _] = quantised(&whole, Share::Row);
    few.raw.retain(|raw| raw.name != ONE.replace("weight", "weight_scale"));
    refused(&few, &[ONE, "expected its scales"])?;
    for (key, value, words) in [
        ("num_local_experts", json!(5), "mlp.gate.weight: expected [5, 32], found [6, 32]"),
        ("num_local_experts", json!(null), "num_experts: expected a count"),
        ("norm_topk_prob", json!(null), "norm_topk_prob: expected true"),
        ("decoder_sparse_step", json!(2), "decoder_sparse_step: expected 1"),
        ("mlp_only_layers", json!([0]), "mlp_only_layers: expected a key whose effect"),
        ("num_experts_per_tok", json!(7), "num_experts_per_tok: expected at most 6"),
    ] {
        refused(&whole.clone().set(key, value), &[words])?;
    }
    Ok(())
}

#[test]
fn what_a_document_leaves_out_is_the_default_of_its_model_type() -> Outcome {
    let config = |model_type: &str, family: &str, more: Value| -> Outcome<ModelConfig> {
        let folder = folder(model_type, tiny(family).0, false, more)?.write()?;
        Ok(ModelConfig::from_file(&*checkpoint::open(folder.path(), &OpenOptions::default())?)?)
    };
    // Not 1 by the root of a head's length, as in other families.
    let granite = config("granite", "granite", json!({}))?;
    assert_eq!((granite.attention_scale, granite.logit_scale, granite.residual_scale), (1.0, 1.0, 1.0));
    let gemma = config("gemma2", "gemma2", json!({ "head_dim": 8 }))?;
    assert_eq!((gemma.attention_scale, gemma.attention_soft_cap), (1.0 / 16.0, Some(50.0)));
    assert_eq!((gemma.layer_window(0), gemma.layer_window(1)), (Some(256), None), "4096 of 256");
    let uncapped = json!({ "head_dim": 8, "attn_logit_softcapping": null, "final_logit_softcapping": null });
    let gemma = config("gemma2", "gemma2", uncapped)?;
    assert_eq!((gemma.attention_soft_cap, gemma.logit_soft_cap), (None, None));
    let unwindowed = json!({ "head_dim": 8, "sliding_window": null });
    assert_eq!(config("gemma2", "gemma2", unwindowed)?.layer_window(0), None);
    // A scheme for layers without a window, whichever way it is written; the others have a base of their own.
    let olmo = |more: Value| config("olmo3", "olmo2", more);
    let scheme = json!({
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "rope_theta": 5000.0,
    });
    let old = olmo(json!({ "rope_scaling": scheme, "rope_theta": 5000.0 }))?;
    let local = json!({ "rope_type": "default", "rope_theta": 500_000.0 });
    let new = json!({ "full_attention": scheme, "sliding_attention": local });
    assert_eq!(olmo(json!({ "rope_parameters": new }))?, old);
    assert_ne!(old.rope.global.inv_freq, old.rope.local.inv_freq);
    // The older name counts, and an empty one says nothing.
    let linear = json!({ "rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0 });
    let of = |old: Value, new: Value| {
        config("llama", "llama", json!({ "rope_scaling": old, "rope_parameters": new }))
    };
    assert_eq!(of(linear.clone(), json!({ "rope_theta": 1.0 }))?, of(json!({}), linear)?);
    // Null is as many as there are query heads.
    let error =
        config("qwen2", "qwen2", json!({ "num_key_value_heads": null })).expect_err("4 heads").to_string();
    assert!(error.contains("k_proj.weight: expected [32, 32]"), "{error}");
    // Null is the width by the heads, of which half turns.
    let mut narrow = *tiny("glm4").0;
    narrow.head_dim = 8;
    let folder = folder("glm4", &narrow, false, json!({ "head_dim": null }))?.write()?;
    let glm = ModelConfig::from_file(&*checkpoint::open(folder.path(), &OpenOptions::default())?)?;
    assert_eq!((glm.heads.dim, glm.rope.global.inv_freq.len()), (8, 2));
    let phi = config("phi3", "phi3", json!({ "partial_rotary_factor": 0.5 }))?;
    assert_eq!((phi.rope.global.inv_freq.len(), phi.layer_window(0)), (2, None));
    let windows = config("phi3", "phi3", json!({ "sliding_window": 4 }))?;
    assert_eq!((windows.layer_window(0), windows.layer_window(1)), (Some(4), Some(4)));
    Ok(())
}

/// LongRoPE's factor of scores (Ding et al. 2024): √(1 + ln s / ln of the first context).
#[test]
fn scores_of_long_contexts_are_scaled_by_how_much_longer_they_are() -> Outcome {
    let magnitude = |more: Value, scheme: Value| -> Outcome<f64> {
        let mut rope =
            json!({ "rope_type": "longrope", "long_factor": [1, 1, 1, 1], "short_factor": [1, 1, 1, 1] });
        merge(&mut rope, scheme);
        let mut config = json!({ "rope_parameters": rope });
        merge(&mut config, more);
        let folder = folder("phi3", tiny("phi3").0, false, config)?.write()?;
        let config = ModelConfig::from_file(&*checkpoint::open(folder.path(), &OpenOptions::default())?)?;
        Ok(f64::from(config.rope.global.magnitude))
    };
    let of = |ratio: f64, first: f64| (1.0 + ratio.ln() / first.ln()).sqrt();
    let cases = [
        // The context is 256. Without a key the first one is the class's 4096, whatever the scheme says.
        (json!({}), json!({ "original_max_position_embeddings": 16 }), 1.0),
        (json!({ "original_max_position_embeddings": 16 }), json!({}), of(16.0, 16.0)),
        (json!({ "original_max_position_embeddings": 16 }), json!({ "factor": 4.0 }), of(4.0, 16.0)),
        (json!({ "max_position_embeddings": 8192 }), json!({}), of(2.0, 4096.0)),
        (json!({ "original_max_position_embeddings": 512 }), json!({}), 1.0),
        (json!({ "original_max_position_embeddings": 16 }), json!({ "attention_factor": 1.5 }), 1.5),
    ];
    for (more, scheme, expected) in cases {
        let found = magnitude(more.clone(), scheme.clone())?;
        assert!((found - expected).abs() < 1e-6, "{more} {scheme}: {found}, not {expected}");
    }
    Ok(())
}

/// By number, not by name.
#[test]
fn a_stack_of_many_is_in_the_order_of_numbers_and_read_in_any_pieces() -> Outcome {
    let types = model_types();
    let (model_type, family, _, more) = types.iter().find(|row| row.0 == "qwen3_moe").expect("a mixture");
    let mut whole = folder(model_type, tiny(family).0, false, more.clone())?;
    let is_first = |tensor: &&Tensor| tensor.name == "model.layers.0.mlp.experts.0.up_proj.weight";
    let first = whole.tensors.iter().find(is_first).expect("an expert").clone();
    whole.tensors.retain(|tensor| !tensor.name.contains("layers.0.mlp.experts"));
    for number in 0..12_u8 {
        let name = first.name.replace(".0.up", &format!(".{number}.up"));
        let (rows, cols) = (first.shape[0], first.shape[1]);
        let values = (0..rows).flat_map(|row| vec![f32::from(number) * 100.0 + row as f32; cols]).collect();
        whole.tensors.push(Tensor { name, shape: first.shape.clone(), values });
    }
    let each = first.shape[0];
    let folder = whole.write_sharded(3)?;
    let file = checkpoint::open(folder.path(), &OpenOptions::default())?;
    let stack = file.rows("model.layers.0.mlp.experts.up_proj.weight")?;
    assert_eq!(stack.rows(), 12 * each);
    for range in
        [0..12 * each, 3..5, each - 1..each + 1, each..2 * each, 2..3 * each, 7..7, 12 * each..12 * each]
    {
        let mut found = WeightMatrix::default();
        stack.read(range.clone(), &mut found)?;
        assert_eq!(found.rows(), range.len(), "{range:?}");
        for (at, row) in range.enumerate() {
            let mut values = vec![0.0; found.cols()];
            found.dequantize_row(at, &mut values);
            assert_eq!(values[1], (row / each * 100 + row % each) as f32);
        }
    }
    Ok(())
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table, a row a case")]
fn settings_that_a_model_type_cannot_have_are_named() -> Outcome {
    let cases = [
        (
            "smollm3",
            "smollm3",
            json!({ "no_rope_layers": [1, 1, 0, 1] }),
            "no_rope_layers: expected 0 for each 4th",
        ),
        ("smollm3", "smollm3", json!({ "no_rope_layers": [1, 1, 1] }), "no_rope_layers"),
        (
            "smollm3",
            "smollm3",
            json!({ "no_rope_layer_interval": 2 }),
            "no_rope_layer_interval: expected 4, found 2",
        ),
        (
            "llama",
            "llama",
            json!({ "no_rope_layers": [1, 1] }),
            "no_rope_layers: expected a key whose effect is known",
        ),
        ("llama", "llama", json!({ "embedding_multiplier": 3.0 }), "embedding_multiplier"),
        ("cohere", "command-r", json!({ "use_qk_norm": true }), "use_qk_norm"),
        ("granite", "granite", json!({ "rms_norm_eps": 1.0 }), "rms_norm_eps: expected a number from 0 to 1"),
        (
            "glm4",
            "glm4",
            json!({ "head_dim": 16, "partial_rotary_factor": 1.5 }),
            "partial_rotary_factor: expected a number above 0",
        ),
        (
            "glm4",
            "glm4",
            json!({ "head_dim": 16, "partial_rotary_factor": 0.45 }),
            "partial_rotary_factor: expected an even number",
        ),
        (
            "exaone4",
            "exaone4",
            json!({ "sliding_window_pattern": "LGLG" }),
            "sliding_window_pattern: expected a period",
        ),
        ("ministral3", "mistral3", json!({ "head_dim": 8 }), "rope_parameters: expected how positions"),
        (
            "gemma2",
            "gemma2",
            json!({ "head_dim": 8, "query_pre_attn_scalar": -1 }),
            "query_pre_attn_scalar: expected a positive number",
        ),
        ("smollm3", "smollm3", json!({ "use_sliding_window": true }), "use_sliding_window: expected false"),
        (
            "exaone4",
            "exaone4",
            json!({ "sliding_window": 4, "layer_types": vec!["full_attention"; 4] }),
            "layer_types: expected a layer with",
        ),
        (
            "exaone4",
            "exaone4",
            json!({ "sliding_window": 4, "sliding_window_pattern": "G" }),
            "sliding_window_pattern: expected a layer",
        ),
        ("cohere2", "cohere2", json!({ "sliding_window": null }), "sliding_window: expected a window"),
        (
            "gemma3_text",
            "gemma3",
            json!({ "head_dim": 16, "attn_logit_softcapping": 30.0 }),
            "attn_logit_softcapping",
        ),
        (
            "ministral3",
            "mistral3",
            json!({ "rope_parameters": { "rope_type": "linear", "factor": 2, "llama_4_scaling_beta": 0.1 }}),
            "rope_parameters.llama_4_scaling_beta",
        ),
        (
            "olmo3",
            "olmo2",
            json!({ "rope_scaling": { "rope_type": "default" }, "rope_parameters": { "rope_type": "default" }}),
            "rope_scaling: expected no such key",
        ),
    ];
    for (model_type, family, more, words) in cases {
        let folder = folder(model_type, tiny(family).0, false, more)?.write()?;
        let open = checkpoint::open(folder.path(), &OpenOptions::default());
        let error = match open.map(|file| ModelConfig::from_file(&*file)) {
            Err(error) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(_)) => "accepted".to_owned(),
        };
        assert!(error.contains(&format!("config.json: {words}")), "{model_type}: {error}");
    }
    Ok(())
}
