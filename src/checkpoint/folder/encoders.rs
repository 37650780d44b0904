//! Model types of text encoders, and the parts of their configuration that decoders lack.

use crate::checkpoint::WeightsError;
use crate::checkpoint::role::Names;

use super::json::Object;
use super::model_type::{CLASSIFIER, EncoderType, Entries, ModelType, Windows};
use super::model_types::{GEMMA3, LLAMA};
use super::rope;

/// Window of ModernBERT: positions on both sides together.
pub(super) const WINDOW: &str = "local_attention";
/// Period of ModernBERT's global layers.
pub(super) const PERIOD: &str = "global_attn_every_n_layers";
/// RoPE bases of ModernBERT in older documents.
const BASES: [(&str, &str); 2] =
    [("global_rope_theta", "rope.freq_base"), ("local_rope_theta", "rope.freq_base_swa")];
/// Whether a Gemma 3 text model attends in both directions.
const BOTH_WAYS: &str = "use_bidirectional_attention";
/// Kind of BERT's positions.
const POSITIONS: &str = "position_embedding_type";
/// Number of token types.
const TOKEN_TYPES: &str = "type_vocab_size";
/// Pooling before ModernBERT's classification head.
const CLASS_POOLING: &str = "classifier_pooling";

const BERT: ModelType = ModelType {
    name: "bert",
    family: "bert",
    names: &Names::BERT,
    activation: "gelu",
    context: 512,
    tied: true,
    epsilon: ("layer_norm_eps", 1e-12),
    encoder: Some(EncoderType {
        bodies: &["", "bert."],
        is_rotary: false,
        position_offset: 0,
        unused: &["pooler.", "embeddings.position_ids", "cls.predictions.", "cls.seq_relationship."],
    }),
    ignored_keys: &[
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "directionality",
        "gradient_checkpointing",
        "hidden_dropout_prob",
        "layer_norm_eps",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        POSITIONS,
        TOKEN_TYPES,
    ],
    ..LLAMA
};

const ROBERTA: ModelType = ModelType {
    name: "roberta",
    names: &Names::ROBERTA,
    epsilon: ("layer_norm_eps", 1e-5),
    encoder: Some(EncoderType {
        bodies: &["", "roberta."],
        is_rotary: false,
        // The rows before are for padding.
        position_offset: 2,
        unused: &["pooler.", "embeddings.position_ids", "lm_head."],
    }),
    ..BERT
};

/// Model types of text encoders.
pub(super) const ENCODER_TYPES: &[ModelType] = &[
    BERT,
    ROBERTA,
    ModelType { name: "xlm-roberta", ..ROBERTA },
    ModelType {
        name: "modernbert",
        family: "modern-bert",
        names: &Names::MODERN_BERT,
        context: 8192,
        epsilon: ("norm_eps", 1e-5),
        sliding_window_layers: Windows::AfterFirst(3),
        window: Some(128),
        rope_base: 160_000.0,
        local_rope_theta: Some(10_000.0),
        encoder: Some(EncoderType {
            bodies: &["", "model."],
            is_rotary: true,
            position_offset: 0,
            unused: &["head.", "decoder."],
        }),
        ignored_keys: &[
            "classifier_activation",
            "classifier_bias",
            "classifier_dropout",
            CLASS_POOLING,
            "cls_token_id",
            "decoder_bias",
            "deterministic_flash_attn",
            "embedding_dropout",
            "initializer_cutoff_factor",
            "layer_norm_eps",
            "mlp_dropout",
            "norm_bias",
            "norm_eps",
            "reference_compile",
            "repad_logits_with_grad",
            "sparse_pred_ignore_index",
            WINDOW,
            PERIOD,
            BASES[0].0,
            BASES[1].0,
            POSITIONS,
        ],
        ..BERT
    },
    ModelType {
        family: "gemma-embedding",
        encoder: Some(EncoderType {
            bodies: &["", "model."],
            is_rotary: true,
            position_offset: 0,
            unused: &[],
        }),
        ignored_keys: &["sliding_window_size", BOTH_WAYS],
        ..GEMMA3
    },
];

/// The encoder type of this name, if the document describes an encoder.
pub(super) fn model_type(text: &Object<'_>, name: &str) -> Result<Option<&'static ModelType>, WeightsError> {
    let found = ENCODER_TYPES.iter().find(|model| model.name == name);
    // Gemma 3 is a decoder without this flag.
    let both_ways = name != GEMMA3.name || text.flag(BOTH_WAYS)?.unwrap_or(false);
    Ok(found.filter(|_| both_ways))
}

/// Whether the document is of a model with a classification head.
pub(super) fn is_classifier(whole: &Object<'_>) -> Result<bool, WeightsError> {
    let classes = whole.list("architectures")?.unwrap_or_default();
    Ok(classes.iter().any(|class| class.as_str().is_some_and(|name| name.ends_with(CLASSIFIER))))
}

/// Adds the entries of an encoder: positions, token types, pooling before the head.
pub(super) fn read(
    text: &Object<'_>,
    model: &ModelType,
    encoder: EncoderType,
    head: u64,
    entries: &mut Entries,
) -> Result<(), WeightsError> {
    if let Some(kind) = text.text(POSITIONS)?.filter(|&kind| kind != "absolute" && !encoder.is_rotary) {
        return Err(text.refuse(POSITIONS, "absolute", kind));
    }
    if let Some(activation) = text.text("classifier_activation")?.filter(|&name| name != "gelu") {
        return Err(text.refuse("classifier_activation", "gelu", activation));
    }
    if encoder.position_offset > 0 {
        entries.put("position_offset", encoder.position_offset, "model_type".to_owned());
    }
    if let Some(count) = text.whole(TOKEN_TYPES)? {
        entries.put("token_type_count", count, text.name(TOKEN_TYPES));
    }
    if let Some(pooling) = text.text(CLASS_POOLING)? {
        entries.put(CLASS_POOLING, pooling, text.name(CLASS_POOLING));
    }
    if !encoder.is_rotary {
        return Ok(());
    }
    rope::read(text, model, head, entries)?;
    for (name, key) in BASES {
        if let Some(base) = text.number(name)? {
            entries.put(key, base, text.name(name));
        }
    }
    Ok(())
}
