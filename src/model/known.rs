//! Rules for metadata keys under an architecture's prefix. Each key is read, ignored, or rejected by name if
//! its value would change the computation.

use crate::checkpoint::{TensorType, Value};
use crate::ir::NormKind;

use super::family::Family;
use super::keys::{Keys, equal_element, number, shown_value, whole};
use super::recipe::{ExpertsRecipe, MlpRecipe, RotatedLayers, RouterNorm};
use super::{ModelError, key_error};

/// Treatment of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// Read by `hyper`.
    Read,
    /// Ignored: the logits of text do not depend on the value.
    Ignored,
    /// Indicates experts, unless 0.
    Experts,
    /// Must be off: 0, false, an empty string, or an array of these.
    MustBeOff,
    /// Must be a neutral factor: 1, or 0 for none.
    Factor,
    /// Must be true.
    MustBeTrue,
    /// Must match the family's router weights: true if the weights of the selected experts sum to 1.
    Weights,
    /// Must equal the value of another key, or be 0 for none.
    MustEqual(&'static str),
    /// Must be this string.
    Text(&'static str),
}

use Rule::{Experts, Factor, Ignored, MustBeOff, MustBeTrue, MustEqual, Read, Text, Weights};

/// Every key of the GGUF convention for language models, without the architecture's prefix. Unlisted keys are
/// treated as [`Rule::MustBeOff`], because their effect is unknown.
const KNOWN: &[(&str, Rule)] = &[
    ("block_count", Read),
    ("context_length", Read),
    ("embedding_length", Read),
    ("feed_forward_length", Read),
    ("attn_logit_softcapping", Read),
    ("final_logit_softcapping", Read),
    ("attention.head_count", Read),
    ("attention.head_count_kv", Read),
    ("attention.key_length", Read),
    ("attention.value_length", Read),
    ("attention.layer_norm_rms_epsilon", Read),
    ("attention.scale", Read),
    ("attention.sliding_window", Read),
    ("attention.sliding_window_pattern", Read),
    ("rope.dimension_count", Read),
    ("rope.dimension_count_swa", Read),
    ("rope.freq_base", Read),
    ("rope.freq_base_swa", Read),
    // Ollama's names of the two keys above.
    ("rope.global.freq_base", Read),
    ("rope.local.freq_base", Read),
    // Older name, from before scaling types.
    ("rope.scale_linear", Read),
    ("rope.scaling.type", Read),
    ("rope.scaling.factor", Read),
    ("rope.scaling.attn_factor", Read),
    ("rope.scaling.original_context_length", Read),
    // Llama 3 scaling; GGUF files have its factors as a tensor.
    ("rope.scaling.high_freq_factor", Read),
    ("rope.scaling.low_freq_factor", Read),
    // LongRoPE; GGUF files have these factors as tensors.
    ("rope.scaling.long_factors", Read),
    ("rope.scaling.short_factors", Read),
    ("rope.scaling.yarn_attn_factor", Read),
    ("rope.scaling.yarn_beta_fast", Read),
    ("rope.scaling.yarn_beta_slow", Read),
    ("rope.scaling.yarn_ext_factor", Read),
    ("rope.scaling.yarn_log_multiplier", Read),
    // The vocabulary size is the number of rows in the embedding table. This key may differ by padding.
    ("vocab_size", Ignored),
    // Pooling and length of texts for embedding, and label names of classifiers.
    ("pooling_type", Ignored),
    ("text_length", Ignored),
    ("classifier.output_labels", Ignored),
    // LayerNorm only.
    ("attention.layer_norm_epsilon", Ignored),
    // M-RoPE sections: their positions differ only for images.
    ("rope.dimension_sections", Ignored),
    // Whether the model was trained with its scaling.
    ("rope.scaling.finetuned", Ignored),
    // Encoder-decoder models only.
    ("decoder_start_token_id", Ignored),
    ("expert_count", Experts),
    ("expert_used_count", Experts),
    ("expert_shared_count", Experts),
    // No effect without experts.
    ("expert_chunk_feed_forward_length", Ignored),
    ("expert_feed_forward_length", Ignored),
    ("expert_gating_func", Ignored),
    ("expert_group_count", Ignored),
    ("expert_group_scale", Ignored),
    ("expert_group_used_count", Ignored),
    ("expert_shared_feed_forward_length", Ignored),
    ("expert_weights_norm", Ignored),
    ("expert_weights_scale", Ignored),
    ("experts_per_group", Ignored),
    ("interleave_moe_layer_step", Ignored),
    ("leading_dense_block_count", Ignored),
    ("moe_every_n_layers", Ignored),
    ("moe_latent_size", Ignored),
    ("router_logit_softcapping", Ignored),
    ("attention.causal", MustBeTrue),
    ("attention.key_length_swa", MustEqual("attention.key_length")),
    ("attention.value_length_swa", MustEqual("attention.value_length")),
    ("embedding_length_out", MustEqual("embedding_length")),
    // Row order for interleaved rotary pairs.
    ("tensor_data_layout", Text("Meta AI original pth")),
    ("attention.output_scale", Factor),
    ("embedding_scale", Factor),
    ("logit_scale", Factor),
    ("residual_scale", Factor),
    ("rope.scaling.alpha", Factor),
    ("full_attention_interval", Factor),
    ("activation_sparsity_scale", MustBeOff),
    ("altup.active_idx", MustBeOff),
    ("altup.num_inputs", MustBeOff),
    ("attention.clamp_kqv", MustBeOff),
    ("attention.decay_lora_rank", MustBeOff),
    ("attention.gate_lora_rank", MustBeOff),
    ("attention.group_norm_epsilon", MustBeOff),
    ("attention.group_norm_groups", MustBeOff),
    ("attention.iclr_lora_rank", MustBeOff),
    ("attention.indexer.head_count", MustBeOff),
    ("attention.indexer.key_length", MustBeOff),
    ("attention.indexer.top_k", MustBeOff),
    ("attention.key_length_mla", MustBeOff),
    ("attention.kv_lora_rank", MustBeOff),
    ("attention.max_alibi_bias", MustBeOff),
    ("attention.q_lora_rank", MustBeOff),
    ("attention.relative_buckets_count", MustBeOff),
    ("attention.shared_kv_layers", MustBeOff),
    ("attention.temperature_length", MustBeOff),
    ("attention.temperature_scale", MustBeOff),
    ("attention.value_length_mla", MustBeOff),
    ("attention.value_residual_mix_lora_rank", MustBeOff),
    ("convnext.block_count", MustBeOff),
    ("convnext.embedding_length", MustBeOff),
    ("decoder_block_count", MustBeOff),
    ("dense_2_feat_in", MustBeOff),
    ("dense_2_feat_out", MustBeOff),
    ("dense_3_feat_in", MustBeOff),
    ("dense_3_feat_out", MustBeOff),
    ("embedding_length_per_layer_input", MustBeOff),
    ("features_length", MustBeOff),
    ("kda.head_dim", MustBeOff),
    ("n_deepstack_layers", MustBeOff),
    ("nextn_predict_layers", MustBeOff),
    ("posnet.block_count", MustBeOff),
    ("posnet.embedding_length", MustBeOff),
    ("rescale_every_n_layers", MustBeOff),
    ("shortconv.l_cache", MustBeOff),
    ("ssm.conv_kernel", MustBeOff),
    ("ssm.dt_b_c_rms", MustBeOff),
    ("ssm.group_count", MustBeOff),
    ("ssm.inner_size", MustBeOff),
    ("ssm.state_size", MustBeOff),
    ("ssm.time_step_rank", MustBeOff),
    ("swiglu_clamp_exp", MustBeOff),
    ("swiglu_clamp_shexp", MustBeOff),
    ("swin_norm", MustBeOff),
    ("time_decay_extra_dim", MustBeOff),
    ("time_mix_extra_dim", MustBeOff),
    ("token_shift_count", MustBeOff),
    ("use_parallel_residual", MustBeOff),
    ("wkv.head_size", MustBeOff),
];

/// Rules for mixture-of-experts families. They take precedence over [`KNOWN`].
const OF_EXPERTS: &[(&str, Rule)] = &[
    ("feed_forward_length", Read),
    ("expert_count", Read),
    ("expert_used_count", Read),
    ("expert_feed_forward_length", Read),
    // 1 is the softmax.
    ("expert_gating_func", Factor),
    ("expert_group_count", Factor),
    ("expert_group_used_count", Factor),
    ("expert_weights_scale", Factor),
    ("expert_weights_norm", Weights),
    ("expert_group_scale", MustBeOff),
    ("expert_shared_count", MustBeOff),
    ("expert_shared_feed_forward_length", MustBeOff),
    ("expert_chunk_feed_forward_length", MustBeOff),
    ("experts_per_group", MustBeOff),
    ("interleave_moe_layer_step", Factor),
    ("leading_dense_block_count", MustBeOff),
    ("moe_every_n_layers", Factor),
    ("moe_latent_size", MustBeOff),
    ("router_logit_softcapping", MustBeOff),
];

/// Rules for families with LayerNorm. They take precedence over [`KNOWN`].
const OF_LAYER_NORMS: &[(&str, Rule)] =
    &[("attention.layer_norm_epsilon", Read), ("attention.layer_norm_rms_epsilon", Ignored)];

/// Rules for text encoders. They take precedence over [`KNOWN`].
const OF_ENCODERS: &[(&str, Rule)] = &[
    ("attention.causal", MustBeOff),
    ("attn_logit_softcapping", MustBeOff),
    // Encoders have no logits.
    ("final_logit_softcapping", Ignored),
    ("classifier_pooling", Read),
    ("pooling_type", Read),
    // Keys of folders.
    ("position_offset", Read),
    ("text_length", Read),
    ("token_type_count", Read),
];

const COHERE: &[&str] = &["command-r", "cohere2"];
const GRANITE: &[&str] = &["granite", "granitemoe"];
const QWEN_VL: &[&str] = &["qwen3vl", "qwen3vlmoe"];

/// Rules for single families. They take precedence over all others.
const OF_FAMILIES: &[(&[&str], &str, Rule)] = &[
    (COHERE, "logit_scale", Read),
    // With sections, the rows of q and k have another order.
    (&["glm4"], "rope.dimension_sections", MustBeOff),
    (GRANITE, "embedding_scale", Read),
    (GRANITE, "logit_scale", Read),
    (GRANITE, "residual_scale", Read),
    // Granite models without it have no rotary embedding.
    (GRANITE, "rope.scaling.finetuned", MustBeTrue),
    (&["mistral3"], "attention.temperature_scale", Read),
    (&["modern-bert"], "hidden_activation", Text("gelu")),
    (&["gemma-embedding"], "dense_2_feat_in", Read),
    (&["gemma-embedding"], "dense_2_feat_out", Read),
    (&["gemma-embedding"], "dense_3_feat_in", Read),
    (&["gemma-embedding"], "dense_3_feat_out", Read),
    // DeepStack: the number of layers that add image features.
    (QWEN_VL, "n_deepstack_layers", Ignored),
];

/// Rejects a file by the first key with an unsupported effect.
pub(super) fn check(keys: Keys<'_>) -> Result<(), ModelError> {
    check_general(keys)?;
    for (key, value) in keys.file.metadata().iter() {
        let own = key.strip_prefix(keys.family.name).and_then(|rest| rest.strip_prefix('.'));
        if let Some(name) = own {
            check_value(keys, name, value, rule_of(keys.family, name))?;
        }
    }
    Ok(())
}

fn rule_of(family: &Family, name: &str) -> Option<Rule> {
    let of = |rules: &[(&str, Rule)]| rules.iter().find(|&&(known, _)| known == name).map(|&(_, rule)| rule);
    let own =
        OF_FAMILIES.iter().find(|(families, known, _)| *known == name && families.contains(&family.name));
    let norms = || if family.norm == NormKind::Layer { of(OF_LAYER_NORMS) } else { None };
    let experts = || if router_norm(family).is_some() { of(OF_EXPERTS) } else { None };
    let rotated = family.layer.attention.rotated != RotatedLayers::None;
    let unrotated = || (!rotated && name.starts_with("rope.")).then_some(MustBeOff);
    let encoders = || if family.encoder.is_some() { of(OF_ENCODERS).or_else(unrotated) } else { None };
    let own = own.map(|&(_, _, rule)| rule);
    own.or_else(norms).or_else(experts).or_else(encoders).or_else(|| of(KNOWN))
}

/// Router weights of families with experts; `None` for dense families.
fn router_norm(family: &Family) -> Option<RouterNorm> {
    match family.layer.mlp {
        MlpRecipe::Experts(ExpertsRecipe { router_norm, .. }) => Some(router_norm),
        MlpRecipe::Gated(_) | MlpRecipe::Plain(_) => None,
    }
}

fn check_value(keys: Keys<'_>, name: &str, value: &Value, rule: Option<Rule>) -> Result<(), ModelError> {
    let refused = |expected: &str| Err(keys.refuse(name, expected, shown_value(value)));
    match rule {
        Some(Read | Ignored) => Ok(()),
        Some(Experts) if is_off(value) => Ok(()),
        Some(Experts) => {
            Err(ModelError::Experts { shown_by: format!("{} is {}", keys.name(name), shown_value(value)) })
        }
        Some(MustBeOff) if is_off(value) => Ok(()),
        Some(MustBeOff) => refused("0 or no such key: what it stands for is not supported"),
        Some(Factor) if is_off(value) || scalar(value).is_some_and(|v| number(&v) == Some(1.0)) => Ok(()),
        Some(Factor) => refused("1 or no such key: it is not supported"),
        Some(MustBeTrue) if is_on(value) => Ok(()),
        Some(MustBeTrue) => refused("true or no such key: it is another model otherwise"),
        Some(Weights) => {
            let sums_to_1 = router_norm(keys.family) == Some(RouterNorm::SoftmaxTopK);
            let same = if sums_to_1 { is_on(value) } else { is_off(value) };
            if same { Ok(()) } else { refused(&format!("{sums_to_1}, as in this family")) }
        }
        Some(MustEqual(other)) => {
            let same = keys.whole(name)?;
            let expected = keys.whole(other)?;
            if matches!(same, None | Some(0)) || same == expected {
                return Ok(());
            }
            refused(&format!("the value of {}", keys.name(other)))
        }
        Some(Text(text)) if *value == Value::from(text) => Ok(()),
        Some(Text(text)) => refused(text),
        None if is_off(value) => Ok(()),
        None => refused("a key whose effect is known"),
    }
}

fn is_on(value: &Value) -> bool {
    scalar(value).is_some_and(|v| v == Value::Bool(true) || whole(&v) == Some(1))
}

/// The value; for a per-layer array, the value that all layers share.
fn scalar(value: &Value) -> Option<Value> {
    match value {
        Value::Array(array) => equal_element(array),
        other => Some(other.clone()),
    }
}

/// Whether a value turns its feature off.
fn is_off(value: &Value) -> bool {
    match scalar(value) {
        Some(Value::Bool(flag)) => !flag,
        Some(Value::String(text)) => text.is_empty() || text == "none",
        Some(other) => number(&other) == Some(0.0),
        None => matches!(value, Value::Array(array) if array.is_empty()),
    }
}

/// Prefixes of keys without architecture that indicate another kind of model.
const FOREIGN: [&str; 3] = ["adapter.", "diffusion.", "xielu."];

fn check_general(keys: Keys<'_>) -> Result<(), ModelError> {
    let metadata = keys.file.metadata();
    if let Some(kind) = metadata.str("general.type")?.filter(|&kind| kind != "model") {
        return Err(key_error("general.type", "model", kind));
    }
    let foreign = |key: &str| FOREIGN.iter().any(|section| key.starts_with(section));
    if let Some((key, value)) = metadata.iter().find(|(key, _)| foreign(key)) {
        return Err(key_error(key, "no such key: what it stands for is not supported", &shown_value(value)));
    }
    // Version 2 is the current one of all block formats. Float tensors have no version.
    let version = metadata.u32("general.quantization_version")?.unwrap_or(2);
    let floats = [TensorType::F32, TensorType::F16, TensorType::Bf16];
    let quantised = keys.file.tensors().iter().any(|info| !floats.contains(&info.dtype));
    if version != 2 && quantised {
        return Err(key_error("general.quantization_version", "2", &version.to_string()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_one_rule() {
        let mut names: Vec<&str> = KNOWN.iter().map(|&(name, _)| name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
