//! No number of a file sizes memory or work that the file does not hold, and no key of the GGUF convention is
//! passed over in silence.

mod peak_memory;
mod tiny;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ottava::checkpoint::{ModelFile, Value};
use ottava::graph::{AttentionSpec, CompileOptions, Fusion, Graph};
use ottava::ir::{Precision, StepLimits};
use ottava::model::{FAMILIES, ModelConfig};

use tiny::edit::Parts;
use tiny::recorded::TINY;
use tiny::{Maker, Outcome, Tiny};

/// What the file is to a model, and the bytes that finding it out takes at its peak.
fn configure(file: &ModelFile) -> (Result<ModelConfig, String>, usize) {
    peak_memory::peak_of(|| ModelConfig::from_file(file).map_err(|error| error.to_string()))
}

/// The keys of gguf 0.19 (the Python package) under an architecture's prefix, and the names that llama.cpp and
/// Ollama read beside them.
const KEYS: &str = "
    activation_sparsity_scale altup.active_idx altup.num_inputs attention.causal attention.clamp_kqv
    attention.decay_lora_rank attention.gate_lora_rank attention.group_norm_epsilon attention.group_norm_groups
    attention.head_count attention.head_count_kv attention.iclr_lora_rank attention.indexer.head_count
    attention.indexer.key_length attention.indexer.top_k attention.key_length attention.key_length_mla
    attention.key_length_swa attention.kv_lora_rank attention.layer_norm_epsilon attention.layer_norm_rms_epsilon
    attention.max_alibi_bias attention.output_scale attention.q_lora_rank attention.relative_buckets_count
    attention.scale attention.shared_kv_layers attention.sliding_window attention.sliding_window_pattern
    attention.temperature_length attention.temperature_scale attention.value_length attention.value_length_mla
    attention.value_length_swa attention.value_residual_mix_lora_rank attn_logit_softcapping block_count
    classifier.output_labels context_length convnext.block_count convnext.embedding_length decoder_block_count
    decoder_start_token_id dense_2_feat_in dense_2_feat_out dense_3_feat_in dense_3_feat_out embedding_length
    embedding_length_out embedding_length_per_layer_input embedding_scale expert_chunk_feed_forward_length
    expert_count expert_feed_forward_length expert_gating_func expert_group_count expert_group_scale
    expert_group_used_count expert_shared_count expert_shared_feed_forward_length expert_used_count
    expert_weights_norm expert_weights_scale experts_per_group features_length feed_forward_length
    final_logit_softcapping full_attention_interval interleave_moe_layer_step kda.head_dim
    leading_dense_block_count logit_scale moe_every_n_layers moe_latent_size n_deepstack_layers
    nextn_predict_layers pooling_type posnet.block_count posnet.embedding_length rescale_every_n_layers
    residual_scale rope.dimension_count rope.dimension_count_swa rope.dimension_sections rope.freq_base
    rope.freq_base_swa rope.global.freq_base rope.local.freq_base rope.scale_linear rope.scaling.alpha
    rope.scaling.attn_factor rope.scaling.factor rope.scaling.finetuned rope.scaling.original_context_length
    rope.scaling.type rope.scaling.yarn_attn_factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow
    rope.scaling.yarn_ext_factor rope.scaling.yarn_log_multiplier router_logit_softcapping shortconv.l_cache
    ssm.conv_kernel ssm.dt_b_c_rms ssm.group_count ssm.inner_size ssm.state_size ssm.time_step_rank
    swiglu_clamp_exp swiglu_clamp_shexp swin_norm tensor_data_layout time_decay_extra_dim time_mix_extra_dim
    token_shift_count use_parallel_residual vocab_size wkv.head_size";

/// Keys whose value leaves the logits of a text as they are; those of experts do so without experts.
const WITHOUT_EFFECT: &str = "
    attention.layer_norm_epsilon classifier.output_labels decoder_start_token_id
    expert_chunk_feed_forward_length expert_feed_forward_length expert_gating_func expert_group_count
    expert_group_scale expert_group_used_count expert_shared_feed_forward_length expert_weights_norm
    expert_weights_scale experts_per_group interleave_moe_layer_step leading_dense_block_count
    moe_every_n_layers moe_latent_size pooling_type rope.dimension_sections rope.scaling.finetuned
    router_logit_softcapping vocab_size";

/// Of these families it is the other way about: those of experts, those whose norms have a mean, and some more.
const OTHERWISE: &[(&[&str], &str)] = &[
    (
        &["qwen3moe", "qwen3vlmoe", "olmoe", "granitemoe"],
        "expert_chunk_feed_forward_length expert_feed_forward_length expert_gating_func expert_group_count
        expert_group_scale expert_group_used_count expert_shared_feed_forward_length expert_weights_norm
        expert_weights_scale experts_per_group feed_forward_length interleave_moe_layer_step
        leading_dense_block_count moe_every_n_layers moe_latent_size router_logit_softcapping",
    ),
    (
        &["command-r", "cohere2", "starcoder2"],
        "attention.layer_norm_epsilon attention.layer_norm_rms_epsilon",
    ),
    (&["granite", "granitemoe"], "rope.scaling.finetuned"),
    (&["glm4"], "rope.dimension_sections"),
    (&["qwen3vl", "qwen3vlmoe"], "n_deepstack_layers"),
    // Within the first context it is nothing.
    (&["mistral3"], "attention.temperature_scale"),
];

/// A model on which every key that is honoured has an effect: it has a window, and YaRN over a context whose
/// ramp has some width.
fn lively(tiny: &Tiny) -> Outcome<Parts> {
    let name = tiny.family;
    Ok(Parts::of(tiny)?
        .unset(&format!("{name}.rope.freq_base"))
        .set(&format!("{name}.attention.sliding_window"), 4_u32)
        .set(&format!("{name}.rope.scaling.type"), "yarn")
        .set(&format!("{name}.rope.scaling.original_context_length"), 1024_u32)
        .set(&format!("{name}.rope.scaling.factor"), 3_f32))
}

#[test]
fn every_key_is_honoured_or_refused_by_its_name_or_listed_as_without_effect() -> Outcome {
    let quiet: Vec<&str> = WITHOUT_EFFECT.split_whitespace().collect();
    for family in FAMILIES {
        let tiny = TINY.iter().find(|tiny| tiny.family == family.name).ok_or("a tiny model")?;
        for name in KEYS.split_whitespace() {
            let key = format!("{}.{name}", family.name);
            let mut base = lively(tiny)?;
            if name == "rope.scale_linear" {
                base = base.unset(&format!("{}.rope.scaling.factor", family.name));
            }
            let before = configure(&base.open()?).0?;
            let has_effect = |value: &Value| -> Outcome<bool> {
                match configure(&base.clone().set(&key, value.clone()).open()?).0 {
                    Ok(config) => Ok(config != before),
                    // A size is refused by the tensor that has another one, two lengths by either.
                    Err(error) => {
                        let by = [key.as_str(), "tensor ", "as attention.key_length"];
                        let named = by.iter().any(|by| error.contains(by));
                        assert!(named, "{key} = {value:?}: {error}");
                        Ok(true)
                    }
                }
            };
            let numbers = [has_effect(&Value::U32(2))?, has_effect(&Value::U32(5))?];
            let otherwise = OTHERWISE.iter().any(|(families, keys)| {
                families.contains(&family.name) && keys.split_whitespace().any(|key| key == name)
            });
            let is_quiet = quiet.contains(&name) != otherwise;
            assert_eq!(numbers.contains(&true), !is_quiet, "{key}: {numbers:?}");
            for value in [
                Value::F32(0.625),
                Value::Bool(true),
                Value::Bool(false),
                Value::from("other"),
                Value::from(vec![2_u32; tiny.layers]),
            ] {
                has_effect(&value)?;
            }
        }
        for unknown in ["attention.rotation_gate", "sparse_threshold", "rope.scaling.theta"] {
            let key = format!("{}.{unknown}", family.name);
            let error = configure(&lively(tiny)?.set(&key, 0.5_f32).open()?).0.err().ok_or("accepted")?;
            assert!(error.contains(&key), "{error}");
            assert!(configure(&lively(tiny)?.set(&key, 0_u32).open()?).0.is_ok(), "{key} = 0 is nothing");
        }
    }
    Ok(())
}

#[test]
fn keys_of_no_architecture_that_change_the_model_are_refused() -> Outcome {
    let base = || Parts::of(&TINY[0]);
    for (key, value) in [
        ("general.type", Value::from("adapter")),
        ("general.type", Value::from("mmproj")),
        ("adapter.type", Value::from("lora")),
        ("diffusion.shift_logits", Value::Bool(true)),
        ("xielu.alpha_p", Value::from(vec![0.5_f32])),
    ] {
        let error = configure(&base()?.set(key, value).open()?).0.err().ok_or("accepted")?;
        assert!(error.contains(key), "{error}");
    }
    for (key, value) in [
        ("general.quantization_version", Value::U32(2)),
        // All tensors are floats here.
        ("general.quantization_version", Value::U32(1)),
        ("general.file_type", Value::U32(0)),
        ("quantize.imatrix.chunks_count", Value::I32(7)),
        ("qwen2.attention.clamp_kqv", Value::F32(1.0)),
    ] {
        configure(&base()?.set(key, value).open()?).0?;
    }
    Ok(())
}

#[test]
fn no_number_sizes_memory_that_the_file_does_not_hold() -> Outcome {
    let whole = [0, 1, 3, 1 << 31, u64::from(u32::MAX), 1 << 32, u64::MAX];
    let floats = [0.0, -1.0, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN];
    let mut accepted = 0;
    for tiny in &TINY {
        let base = Parts::of(tiny)?;
        let len = base.bytes()?.len();
        for name in KEYS.split_whitespace() {
            let key = format!("{}.{name}", tiny.family);
            let wholes = whole.iter().map(|&value| Value::U64(value));
            let by_layer = whole.iter().map(|&value| Value::from(vec![value; tiny.layers]));
            let values = wholes.chain(by_layer).chain(floats.iter().map(|&value| Value::F32(value)));
            for value in values {
                let (config, peak) = configure(&base.clone().set(&key, value.clone()).open()?);
                assert!(peak < 8 * len, "{key} = {value:?}: {peak} bytes for a file of {len}");
                let finite = |config: &ModelConfig| {
                    let ropes = [&config.rope.global, &config.rope.local];
                    let freqs = ropes.iter().all(|rope| rope.inv_freq.iter().all(|freq| freq.is_finite()));
                    let scales = [config.rope.global.magnitude, config.attention_scale, config.logit_scale];
                    freqs && scales.iter().all(|scale| scale.is_finite())
                };
                accepted += usize::from(config.as_ref().is_ok_and(finite));
                assert!(config.as_ref().is_err() || config.as_ref().is_ok_and(finite), "{key} = {value:?}");
            }
        }
        // The length of values alone follows that of keys.
        let both = |value: u64| {
            let key = |part: &str| format!("{}.attention.{part}_length", tiny.family);
            base.clone().set(&key("key"), value).set(&key("value"), value)
        };
        for value in [1 << 31, u64::from(u32::MAX), 1 << 20] {
            let (config, peak) = configure(&both(value).open()?);
            let error = config.err().ok_or("accepted")?;
            assert!(error.contains("blk.0.attn_q") && peak < 8 * len, "{error}: {peak} bytes");
        }
    }
    assert!(accepted > 100, "keys without effect are accepted: {accepted}");
    Ok(())
}

/// A model of the smallest layers there are.
const SLIM: Tiny = Tiny {
    vocab: 2,
    family: "llama",
    layers: 1,
    heads: 1,
    kv_heads: 1,
    head_dim: 2,
    rope_dims: 2,
    tied: true,
    window: 0,
    dtype: ottava::checkpoint::TensorType::F16,
};

/// What the thread has computed so far: the machine may be busy with others.
fn computed() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = stat.and_then(|stat| stat.split(' ').next()?.parse().ok());
    static START: OnceLock<Instant> = OnceLock::new();
    nanoseconds.map_or_else(|| START.get_or_init(Instant::now).elapsed(), Duration::from_nanos)
}

fn time<T>(run: impl FnOnce() -> T) -> Duration {
    let start = computed();
    std::hint::black_box(run());
    computed().saturating_sub(start)
}

/// Layers of a deep model, and of one that is sixteen times as deep.
const FEW: usize = 400;
const MANY: usize = 6400;

/// Sixteen times the layers take about sixteen times as long; what is quadratic takes 256 times.
fn is_linear(what: &str, run: impl Fn(usize) -> Duration) {
    let (few, many) = (run(FEW).max(Duration::from_millis(20)), run(MANY));
    println!("{what}: {few:?} for {FEW} layers, {many:?} for {MANY}");
    assert!(many < 48 * few, "{what}: {few:?} for {FEW} layers, {many:?} for {MANY}");
}

#[test]
fn the_work_grows_as_the_layers_do() -> Outcome {
    let file = |layers: usize| -> Outcome<ModelFile> {
        Ok(ModelFile::from_bytes("deep.gguf", tiny::file(&Tiny { layers, ..SLIM }, &[])?)?)
    };
    let (few, many) = (file(FEW)?, file(MANY)?);
    let of = |layers: usize| if layers == FEW { &few } else { &many };
    is_linear("hyperparameters", |layers| time(|| ModelConfig::from_file(of(layers)).expect("a sound file")));
    Ok(())
}

/// The graph of a deep model that attends and adds to a residual stream.
fn deep(layers: usize) -> Graph {
    let mut graph = Graph::new();
    let heads = ottava::ir::Heads { query: 1, kv: 1, dim: 2 };
    let mut build = || -> Result<(), ottava::graph::GraphError> {
        let table = graph.matrix("table", 4, 2)?;
        let mut x = graph.embed(table, 1.0)?;
        for layer in 0..layers {
            let gain = graph.vector(&format!("{layer}.gain"), 2)?;
            let h = graph.rms_norm(x, gain, 1e-5)?;
            let mut product = |part: &str| {
                let matrix = graph.matrix(&format!("{layer}.{part}"), 2, 2)?;
                graph.matmul(h, matrix)
            };
            let (q, k, v) = (product("q")?, product("k")?, product("v")?);
            let spec = AttentionSpec { layer, heads, scale: 1.0, window: None, soft_cap: None };
            let y = graph.attention(q, k, v, spec)?;
            x = graph.add(x, y)?;
        }
        graph.output("x", x)
    };
    build().expect("a sound graph");
    graph
}

#[test]
fn compiling_grows_as_the_nodes_do() {
    let (few, many) = (deep(FEW), deep(MANY));
    for fuse in [Fusion::On, Fusion::Off] {
        let limits = StepLimits { tokens_max: 8, outputs_max: 2 };
        let options = CompileOptions { limits, element_bytes: &|_| 4, fuse, activations: Precision::F32 };
        is_linear("compiling", |layers| {
            let graph = if layers == FEW { &few } else { &many };
            time(|| graph.compile(&options).expect("compiles"))
        });
    }
    is_linear("building", |layers| time(|| deep(layers)));
    let plan = many.compile(&CompileOptions {
        limits: StepLimits { tokens_max: 8, outputs_max: 2 },
        element_bytes: &|_| 4,
        fuse: Fusion::On,
        activations: Precision::F32,
    });
    // The layers' values lie on each other.
    assert!(plan.expect("compiles").arena_bytes() < 4096);
}

#[test]
fn many_empty_layers_build_nothing() -> Outcome {
    let mut maker = Maker::new(SLIM.dtype);
    maker.metadata(&SLIM, &[("block_count", 20_000)]);
    maker.matrix("token_embd.weight", SLIM.vocab, tiny::EMBEDDING)?;
    maker.vector("output_norm.weight", tiny::EMBEDDING, 1.0)?;
    (0..20_000).try_for_each(|layer| maker.vector(&format!("blk.{layer}.x"), 1, 0.0))?;
    let bytes = maker.writer.to_bytes();
    let len = bytes.len();
    let (config, peak) = configure(&ModelFile::from_bytes("empty.gguf", bytes)?);
    let error = config.err().ok_or("accepted")?;
    assert_eq!(error, "empty.gguf: tensor blk.0.attn_norm.weight is missing: expected [1, 32]");
    assert!(peak < len, "{peak} bytes for a file of {len}");
    Ok(())
}

#[test]
fn a_key_that_nobody_knows_counts_unless_it_says_that_there_is_nothing() -> Outcome {
    let open = |value: Value| Parts::of(&TINY[0])?.set("llama.new_feature", value).open();
    for nothing in [Value::U32(0), Value::Bool(false), Value::from("none"), Value::F32(0.0)] {
        assert!(configure(&open(nothing.clone())?).0.is_ok(), "{nothing:?}");
    }
    for something in [Value::U32(1), Value::Bool(true), Value::from("some"), Value::F32(0.5)] {
        let error = configure(&open(something.clone())?).0.expect_err("a feature");
        assert!(error.contains("llama.new_feature: expected a key whose effect is known"), "{error}");
    }
    Ok(())
}
