//! Key rules of `config.json`: every key is read, ignored as irrelevant to the logits, or refused if its
//! value could change the result.

use serde_json::Value;

use crate::checkpoint::WeightsError;

use super::json::{Object, shown_value};
use super::model_type::{
    EXPERTS, EXPERTS_EVERY, EXPERTS_USED, ModelType, NOPE_KEYS, ORIGINAL_CONTEXT, WEIGHTS_SUM,
};

/// Keys read by `config`, `rope` and `quantization` for every model type.
const READ: &[&str] = &[
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "max_position_embeddings",
    ORIGINAL_CONTEXT,
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "rope_theta",
    "rope_local_base_freq",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "quantization_config",
];

/// Ignored keys: settings for training, generation and other tools, without effect on the logits.
const IGNORED: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "base_model",
    "begin_suppress_tokens",
    "boi_token_id",
    "boi_token_index",
    "bos_token",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "eoi_token_id",
    "eoi_token_index",
    "eos_token",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "hidden_dropout",
    "id2label",
    "image_token_id",
    "image_token_index",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "license",
    "max_length",
    "max_sequence_length",
    "min_length",
    "mm_tokens_per_image",
    "model_max_length",
    "multimodal_projector_bias",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "projector_hidden_act",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "spatial_merge_size",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "tokenizer_model_max_length",
    "tokenizer_padding_side",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_feature_layer",
    "vision_start_token_id",
];

/// Keys that must be true: a value of false changes the computation in transformers, such as attention to
/// later tokens, no position encoding, or unscaled scores.
const ALWAYS: &[&str] = &["causal", "is_causal", "rotary", "scale_attn_weights", "use_rope"];

/// Refuses a text model's configuration with an unknown key, unless its value is empty or off.
pub(super) fn check(config: &Object<'_>, model: &ModelType) -> Result<(), WeightsError> {
    check_keys(config, |key| READ.contains(&key) || IGNORED.contains(&key) || is_own(model, key))
}

/// Whether a key is read or ignored for this model type only.
fn is_own(model: &ModelType, key: &str) -> bool {
    model.epsilon.0 == key
        || model.ignored_keys.contains(&key)
        || model.scalars.iter().any(|scalar| scalar.name == key)
        || model.expert_size.is_some_and(|size| {
            key == size || EXPERTS.contains(&key) || [EXPERTS_USED, EXPERTS_EVERY, WEIGHTS_SUM].contains(&key)
        })
        || model.nope_interval.is_some() && [NOPE_KEYS.0, NOPE_KEYS.1].contains(&key)
}

/// [`check`] for the multimodal configuration around a text model's.
pub(super) fn check_around(config: &Object<'_>) -> Result<(), WeightsError> {
    check_keys(config, |key| key == "text_config" || READ.contains(&key) || IGNORED.contains(&key))
}

/// [`check`] with another set of known keys.
pub(super) fn check_keys(object: &Object<'_>, known: impl Fn(&str) -> bool) -> Result<(), WeightsError> {
    let unfit = |&(key, value): &(&str, &Value)| match ALWAYS.contains(&key) {
        true => value != &Value::Bool(true),
        false => !known(key) && !is_off(value),
    };
    match object.entries().find(unfit) {
        Some((key, value)) if ALWAYS.contains(&key) => {
            Err(object.refuse(key, "true or null", shown_value(value)))
        }
        Some((key, value)) => {
            Err(object.refuse(key, "a key whose effect is known, or null", shown_value(value)))
        }
        None => Ok(()),
    }
}

/// Whether a value is empty or off: null, false, 0, "", "none", [] or {}.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text == "none",
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_one_rule() {
        let mut names: Vec<&str> = READ.iter().chain(IGNORED).chain(ALWAYS).copied().collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
