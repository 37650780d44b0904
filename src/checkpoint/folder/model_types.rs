//! Supported model types: one row each, with the defaults of transformers.

use crate::checkpoint::role::Names;

use super::model_type::{ModelType, Scalar, Unwindowed, Windows, scalar};

const SCORES: Scalar =
    Scalar { inverse_root: true, ..scalar("query_pre_attn_scalar", "attention.scale", Some(256.0)) };
const SCORES_CAP: &str = "attn_logit_softcapping";
const LOGITS_CAP: &str = "final_logit_softcapping";

pub(super) const LLAMA: ModelType = ModelType {
    name: "llama",
    family: "llama",
    names: &Names::LLAMA,
    activation: "silu",
    activation_alias: "",
    heads: None,
    kv_heads: None,
    head_dim: None,
    context: 2048,
    tied: false,
    epsilon: ("rms_norm_eps", 1e-6),
    sliding_window_layers: Windows::None,
    window: Some(4096),
    nope_on_global: None,
    rope_base: 10_000.0,
    local_rope_theta: None,
    is_scaled: false,
    original_context: None,
    partial_rotary_factor: None,
    scalars: &[],
    expert_size: None,
    nope_interval: None,
    ignored_keys: &[],
    encoder: None,
};

const QWEN2: ModelType = ModelType {
    name: "qwen2",
    family: "qwen2",
    context: 32_768,
    sliding_window_layers: Windows::Last,
    kv_heads: Some(32),
    ..LLAMA
};

const QWEN3: ModelType = ModelType { name: "qwen3", family: "qwen3", head_dim: Some(128), ..QWEN2 };

const GEMMA: ModelType = ModelType {
    name: "gemma",
    family: "gemma",
    names: &Names::GEMMA,
    activation: "gelu_pytorch_tanh",
    // The first Gemma checkpoints have this name, but use the tanh approximation.
    activation_alias: "gelu",
    heads: Some(16),
    kv_heads: Some(16),
    head_dim: Some(256),
    context: 8192,
    tied: true,
    ..LLAMA
};

const GEMMA2: ModelType = ModelType {
    name: "gemma2",
    family: "gemma2",
    names: &Names::GEMMA2,
    activation_alias: "",
    heads: Some(8),
    kv_heads: Some(4),
    sliding_window_layers: Windows::Every(2),
    ignored_keys: &["sliding_window_size"],
    scalars: &[
        SCORES,
        scalar(SCORES_CAP, SCORES_CAP, Some(50.0)),
        scalar(LOGITS_CAP, LOGITS_CAP, Some(30.0)),
    ],
    ..GEMMA
};

pub(super) const GEMMA3: ModelType = ModelType {
    name: "gemma3_text",
    family: "gemma3",
    context: 131_072,
    sliding_window_layers: Windows::Every(6),
    rope_base: 1_000_000.0,
    local_rope_theta: Some(10_000.0),
    // transformers ignores the attention soft cap in Gemma 3, so a nonzero one is refused.
    scalars: &[SCORES, scalar(LOGITS_CAP, LOGITS_CAP, None)],
    ..GEMMA2
};

const OLMO2: ModelType = ModelType {
    name: "olmo2",
    family: "olmo2",
    names: &Names::OLMO2,
    epsilon: ("rms_norm_eps", 1e-5),
    ..LLAMA
};

const COHERE: ModelType = ModelType {
    name: "cohere",
    family: "command-r",
    names: &Names::COHERE,
    context: 8192,
    tied: true,
    epsilon: ("layer_norm_eps", 1e-5),
    rope_base: 500_000.0,
    scalars: &[scalar("logit_scale", "logit_scale", Some(0.0625))],
    ..LLAMA
};

/// Model types of all supported families of decoders.
pub(super) const MODEL_TYPES: &[ModelType] = &[
    LLAMA,
    ModelType {
        name: "mistral",
        context: 131_072,
        kv_heads: Some(8),
        sliding_window_layers: Windows::All,
        ..LLAMA
    },
    ModelType {
        name: "ministral3",
        family: "mistral3",
        context: 262_144,
        kv_heads: Some(8),
        head_dim: Some(128),
        epsilon: ("rms_norm_eps", 1e-5),
        sliding_window_layers: Windows::All,
        window: None,
        is_scaled: true,
        ignored_keys: &["max_position_embeddings"],
        ..LLAMA
    },
    QWEN2,
    QWEN3,
    ModelType {
        name: "qwen3_moe",
        family: "qwen3moe",
        kv_heads: Some(4),
        head_dim: None,
        sliding_window_layers: Windows::Refused,
        expert_size: Some("moe_intermediate_size"),
        ignored_keys: &["output_router_logits", "router_aux_loss_coef", "use_qk_norm"],
        ..QWEN3
    },
    ModelType {
        name: "qwen3_vl_text",
        family: "qwen3vl",
        context: 128_000,
        rope_base: 500_000.0,
        sliding_window_layers: Windows::None,
        // Multimodal RoPE, for image positions only.
        ignored_keys: &["mrope_interleaved", "mrope_section"],
        ..QWEN3
    },
    GEMMA,
    GEMMA2,
    GEMMA3,
    COHERE,
    ModelType {
        name: "cohere2",
        family: "cohere2",
        nope_on_global: Some(Unwindowed::None),
        rope_base: 10_000.0,
        sliding_window_layers: Windows::Every(4),
        // Keys of early checkpoints, implied by the model type or by `sliding_window_pattern`.
        ignored_keys: &[
            "layer_switch",
            "order_of_interleaved_layers",
            "position_embedding_type",
            "rotary_pct",
            "use_embedding_sharing",
            "use_gated_activation",
            "use_parallel_block",
            "use_parallel_embedding",
        ],
        ..COHERE
    },
    ModelType {
        name: "ernie4_5",
        family: "ernie4_5",
        names: &Names::COHERE,
        kv_heads: Some(2),
        head_dim: Some(128),
        context: 131_072,
        tied: true,
        epsilon: ("rms_norm_eps", 1e-5),
        rope_base: 500_000.0,
        ignored_keys: &["use_bias"],
        ..LLAMA
    },
    ModelType {
        name: "exaone4",
        family: "exaone4",
        kv_heads: Some(32),
        sliding_window_layers: Windows::Every(4),
        nope_on_global: Some(Unwindowed::All),
        ..OLMO2
    },
    ModelType {
        name: "glm4",
        family: "glm4",
        names: &Names::GLM4,
        kv_heads: Some(2),
        head_dim: Some(128),
        context: 131_072,
        epsilon: ("rms_norm_eps", 1.562_5e-7),
        partial_rotary_factor: Some(0.5),
        ..LLAMA
    },
    ModelType {
        name: "granite",
        family: "granite",
        scalars: &[
            scalar("embedding_multiplier", "embedding_scale", Some(1.0)),
            scalar("attention_multiplier", "attention.scale", Some(1.0)),
            scalar("residual_multiplier", "residual_scale", Some(1.0)),
            scalar("logits_scaling", "logit_scale", Some(1.0)),
        ],
        ..LLAMA
    },
    ModelType {
        name: "olmoe",
        family: "olmoe",
        names: &Names::LLAMA,
        context: 4096,
        expert_size: Some("intermediate_size"),
        ignored_keys: &["output_router_logits", "router_aux_loss_coef"],
        ..OLMO2
    },
    OLMO2,
    ModelType {
        name: "olmo3",
        sliding_window_layers: Windows::Every(4),
        rope_base: 500_000.0,
        local_rope_theta: Some(500_000.0),
        ..OLMO2
    },
    ModelType {
        name: "phi3",
        family: "phi3",
        context: 4096,
        epsilon: ("rms_norm_eps", 1e-5),
        sliding_window_layers: Windows::All,
        window: None,
        partial_rotary_factor: Some(1.0),
        original_context: Some(4096),
        ignored_keys: &["full_attn_mod", "interpolate_factor"],
        ..LLAMA
    },
    ModelType {
        name: "smollm3",
        family: "smollm3",
        heads: Some(16),
        kv_heads: Some(4),
        context: 32_768,
        tied: true,
        rope_base: 2_000_000.0,
        sliding_window_layers: Windows::Refused,
        nope_interval: Some(4),
        ..LLAMA
    },
    ModelType {
        name: "starcoder2",
        family: "starcoder2",
        names: &Names::STARCODER2,
        activation: "gelu_pytorch_tanh",
        kv_heads: Some(2),
        context: 4096,
        tied: true,
        epsilon: ("norm_epsilon", 1e-5),
        sliding_window_layers: Windows::All,
        window: None,
        ignored_keys: &[
            // Keys of an older configuration class.
            "activation_function",
            "attention_softmax_in_fp32",
            "embedding_dropout",
            "layer_norm_epsilon",
            "mlp_type",
            "norm_type",
            "residual_dropout",
            "scale_attention_softmax_in_fp32",
            "scale_attn_weights",
            "use_bias",
        ],
        ..LLAMA
    },
];

/// Multimodal model types, each with the default type of its text model.
pub(super) const NESTED_TYPES: [(&str, &str); 3] =
    [("gemma3", "gemma3_text"), ("mistral3", "mistral"), ("qwen3_vl", "qwen3_vl_text")];

#[cfg(test)]
mod tests {
    use super::*;

    /// Defaults of the configuration classes in transformers 5.24: name, activation, context length, epsilon,
    /// query heads, KV heads, head_dim, tied embeddings, window, RoPE base, RoPE base of sliding-window
    /// layers, `partial_rotary_factor`, scalars.
    type Defaults = (
        &'static str,
        &'static str,
        u64,
        f64,
        u64,
        u64,
        Option<u64>,
        bool,
        Option<u64>,
        f64,
        Option<f64>,
        Option<f64>,
        &'static [Option<f64>],
    );

    #[rustfmt::skip]
    const TRANSFORMERS: [Defaults; 22] = [
        ("llama", "silu", 2048, 1e-06, 32, 32, Some(128), false, None, 10000.0, None, None, &[]),
        ("mistral", "silu", 131072, 1e-06, 32, 8, Some(128), false, Some(4096), 10000.0, None, None, &[]),
        ("ministral3", "silu", 262144, 1e-05, 32, 8, Some(128), false, None, 1000000.0, None, None, &[]),
        ("qwen2", "silu", 32768, 1e-06, 32, 32, None, false, None, 10000.0, None, None, &[]),
        ("qwen3", "silu", 32768, 1e-06, 32, 32, Some(128), false, None, 10000.0, None, None, &[]),
        ("qwen3_moe", "silu", 32768, 1e-06, 32, 4, None, false, None, 10000.0, None, None, &[]),
        ("qwen3_vl_text", "silu", 128000, 1e-06, 32, 32, Some(128), false, None, 500000.0, None, None, &[]),
        ("gemma", "gelu_pytorch_tanh", 8192, 1e-06, 16, 16, Some(256), true, None, 10000.0, None, None, &[]),
        ("gemma2", "gelu_pytorch_tanh", 8192, 1e-06, 8, 4, Some(256), true, Some(4096), 10000.0, None, None, &[Some(256.0), Some(50.0), Some(30.0)]),
        ("gemma3_text", "gelu_pytorch_tanh", 131072, 1e-06, 8, 4, Some(256), true, Some(4096), 1000000.0, Some(10000.0), None, &[Some(256.0), None]),
        ("cohere", "silu", 8192, 1e-05, 64, 64, None, true, None, 500000.0, None, None, &[Some(0.0625)]),
        ("cohere2", "silu", 8192, 1e-05, 64, 64, Some(128), true, Some(4096), 10000.0, None, None, &[Some(0.0625)]),
        ("ernie4_5", "silu", 131072, 1e-05, 16, 2, Some(128), true, None, 500000.0, None, None, &[]),
        ("exaone4", "silu", 2048, 1e-05, 32, 32, None, false, Some(4096), 10000.0, None, None, &[]),
        ("glm4", "silu", 131072, 1.5625e-07, 32, 2, Some(128), false, None, 10000.0, None, Some(0.5), &[]),
        ("granite", "silu", 2048, 1e-06, 32, 32, None, false, None, 10000.0, None, None, &[Some(1.0), Some(1.0), Some(1.0), Some(1.0)]),
        ("olmoe", "silu", 4096, 1e-05, 16, 16, None, false, None, 10000.0, None, None, &[]),
        ("olmo2", "silu", 2048, 1e-05, 32, 32, None, false, None, 10000.0, None, None, &[]),
        ("olmo3", "silu", 2048, 1e-05, 32, 32, None, false, Some(4096), 500000.0, Some(500000.0), None, &[]),
        ("phi3", "silu", 4096, 1e-05, 32, 32, None, false, None, 10000.0, None, Some(1.0), &[]),
        ("smollm3", "silu", 32768, 1e-06, 16, 4, None, true, None, 2000000.0, None, None, &[]),
        ("starcoder2", "gelu_pytorch_tanh", 4096, 1e-05, 24, 2, None, true, None, 10000.0, None, None, &[]),
    ];

    #[test]
    fn what_a_document_leaves_out_is_what_transformers_takes() {
        assert_eq!(MODEL_TYPES.len(), TRANSFORMERS.len());
        for (
            name,
            activation,
            context,
            epsilon,
            heads,
            kv_heads,
            head_dim,
            tied,
            window,
            base,
            local,
            partial_rotary_factor,
            scalars,
        ) in TRANSFORMERS
        {
            let row = MODEL_TYPES.iter().find(|row| row.name == name).expect(name);
            let found = (row.activation, row.context, row.epsilon.1, row.tied, row.local_rope_theta);
            assert_eq!(found, (activation, context, epsilon, tied, local), "{name}");
            // Ministral's base in `TRANSFORMERS` is the default without any RoPE parameters, which
            // `is_scaled` refuses.
            assert!(row.is_scaled || row.rope_base == base, "{name}");
            // A value that is absent from the row is required in the document or derived from it.
            assert_eq!(row.heads.unwrap_or(heads), heads, "{name}");
            assert_eq!(row.kv_heads.unwrap_or(heads), kv_heads, "{name}");
            assert_eq!(row.head_dim.or(head_dim), head_dim, "{name}");
            assert_eq!(row.partial_rotary_factor, partial_rotary_factor, "{name}");
            if row.sliding_window_layers != Windows::None {
                assert_eq!(row.window.filter(|_| window.is_some()), window, "{name}");
            }
            let found: Vec<_> = row.scalars.iter().map(|scalar| scalar.default).collect();
            assert_eq!(found, scalars, "{name}");
        }
    }
}
