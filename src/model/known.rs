//! Rules for metadata keys under an architecture's prefix. Each key is read, ignored, or rejected by name if
//! its value would change the computation.

use crate::checkpoint::{TensorType, Value};
use crate::ir::NormKind;

use super::family::Family;
use super::keys::{Keys, equal_element, number, shown_value, whole};
use super::recipe::{ExpertsRecipe, MlpRecipe, RouterNorm};
use super::{ModelError, key_error};

/// Treatment of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// Read by `hyper`.
    Read,
    /// Ignored: the logits of text do not depend on the value.
    Note,
    /// Indicates experts, unless 0.
    Experts,
    /// Must be off: 0, false, an empty string, or an array of these.
    Off,
    /// Must be a neutral factor: 1, or 0 for none.
    Factor,
    /// Must be true.
    On,
    /// Must match the family's router weights: true if the weights of the selected experts sum to 1.
    Weights,
    /// Must equal the value of another key, or be 0 for none.
    Same(&'static str),
    /// Must be this string.
    Text(&'static str),
}

use Rule::{Experts, Factor, Note, Off, On, Read, Same, Text, Weights};

/// Every key of the GGUF convention for language models, without the architecture's prefix. Unlisted keys are
/// treated as [`Rule::Off`], because their effect is unknown.
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
    ("vocab_size", Note),
    // Pooling of text embeddings, and label names of classifiers.
    ("pooling_type", Note),
    ("classifier.output_labels", Note),
    // LayerNorm only.
    ("attention.layer_norm_epsilon", Note),
    // M-RoPE sections: their positions differ only for images.
    ("rope.dimension_sections", Note),
    // Whether the model was trained with its scaling.
    ("rope.scaling.finetuned", Note),
    // Encoder-decoder models only.
    ("decoder_start_token_id", Note),
    ("expert_count", Experts),
    ("expert_used_count", Experts),
    ("expert_shared_count", Experts),
    // No effect without experts.
    ("expert_chunk_feed_forward_length", Note),
    ("expert_feed_forward_length", Note),
    ("expert_gating_func", Note),
    ("expert_group_count", Note),
    ("expert_group_scale", Note),
    ("expert_group_used_count", Note),
    ("expert_shared_feed_forward_length", Note),
    ("expert_weights_norm", Note),
    ("expert_weights_scale", Note),
    ("experts_per_group", Note),
    ("interleave_moe_layer_step", Note),
    ("leading_dense_block_count", Note),
    ("moe_every_n_layers", Note),
    ("moe_latent_size", Note),
    ("router_logit_softcapping", Note),
    ("attention.causal", On),
    ("attention.key_length_swa", Same("attention.key_length")),
    ("attention.value_length_swa", Same("attention.value_length")),
    ("embedding_length_out", Same("embedding_length")),
    // Row order for interleaved rotary pairs.
    ("tensor_data_layout", Text("Meta AI original pth")),
    ("attention.output_scale", Factor),
    ("embedding_scale", Factor),
    ("logit_scale", Factor),
    ("residual_scale", Factor),
    ("rope.scaling.alpha", Factor),
    ("full_attention_interval", Factor),
    ("activation_sparsity_scale", Off),
    ("altup.active_idx", Off),
    ("altup.num_inputs", Off),
    ("attention.clamp_kqv", Off),
    ("attention.decay_lora_rank", Off),
    ("attention.gate_lora_rank", Off),
    ("attention.group_norm_epsilon", Off),
    ("attention.group_norm_groups", Off),
    ("attention.iclr_lora_rank", Off),
    ("attention.indexer.head_count", Off),
    ("attention.indexer.key_length", Off),
    ("attention.indexer.top_k", Off),
    ("attention.key_length_mla", Off),
    ("attention.kv_lora_rank", Off),
    ("attention.max_alibi_bias", Off),
    ("attention.q_lora_rank", Off),
    ("attention.relative_buckets_count", Off),
    ("attention.shared_kv_layers", Off),
    ("attention.temperature_length", Off),
    ("attention.temperature_scale", Off),
    ("attention.value_length_mla", Off),
    ("attention.value_residual_mix_lora_rank", Off),
    ("convnext.block_count", Off),
    ("convnext.embedding_length", Off),
    ("decoder_block_count", Off),
    ("dense_2_feat_in", Off),
    ("dense_2_feat_out", Off),
    ("dense_3_feat_in", Off),
    ("dense_3_feat_out", Off),
    ("embedding_length_per_layer_input", Off),
    ("features_length", Off),
    ("kda.head_dim", Off),
    ("n_deepstack_layers", Off),
    ("nextn_predict_layers", Off),
    ("posnet.block_count", Off),
    ("posnet.embedding_length", Off),
    ("rescale_every_n_layers", Off),
    ("shortconv.l_cache", Off),
    ("ssm.conv_kernel", Off),
    ("ssm.dt_b_c_rms", Off),
    ("ssm.group_count", Off),
    ("ssm.inner_size", Off),
    ("ssm.state_size", Off),
    ("ssm.time_step_rank", Off),
    ("swiglu_clamp_exp", Off),
    ("swiglu_clamp_shexp", Off),
    ("swin_norm", Off),
    ("time_decay_extra_dim", Off),
    ("time_mix_extra_dim", Off),
    ("token_shift_count", Off),
    ("use_parallel_residual", Off),
    ("wkv.head_size", Off),
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
    ("expert_group_scale", Off),
    ("expert_shared_count", Off),
    ("expert_shared_feed_forward_length", Off),
    ("expert_chunk_feed_forward_length", Off),
    ("experts_per_group", Off),
    ("interleave_moe_layer_step", Factor),
    ("leading_dense_block_count", Off),
    ("moe_every_n_layers", Factor),
    ("moe_latent_size", Off),
    ("router_logit_softcapping", Off),
];

/// Rules for families with LayerNorm. They take precedence over [`KNOWN`].
const OF_LAYER_NORMS: &[(&str, Rule)] =
    &[("attention.layer_norm_epsilon", Read), ("attention.layer_norm_rms_epsilon", Note)];

const COHERE: &[&str] = &["command-r", "cohere2"];
const GRANITE: &[&str] = &["granite", "granitemoe"];
const QWEN_VL: &[&str] = &["qwen3vl", "qwen3vlmoe"];

/// Rules for single families. They take precedence over all others.
const OF_FAMILIES: &[(&[&str], &str, Rule)] = &[
    (COHERE, "logit_scale", Read),
    // With sections, the rows of q and k have another order.
    (&["glm4"], "rope.dimension_sections", Off),
    (GRANITE, "embedding_scale", Read),
    (GRANITE, "logit_scale", Read),
    (GRANITE, "residual_scale", Read),
    // Granite models without it have no rotary embedding.
    (GRANITE, "rope.scaling.finetuned", On),
    (&["mistral3"], "attention.temperature_scale", Read),
    // DeepStack: the number of layers that add image features.
    (QWEN_VL, "n_deepstack_layers", Note),
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
    own.map(|&(_, _, rule)| rule).or_else(norms).or_else(experts).or_else(|| of(KNOWN))
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
        Some(Read | Note) => Ok(()),
        Some(Experts) if is_off(value) => Ok(()),
        Some(Experts) => {
            Err(ModelError::Experts { shown_by: format!("{} is {}", keys.name(name), shown_value(value)) })
        }
        Some(Off) if is_off(value) => Ok(()),
        Some(Off) => refused("0 or no such key: what it stands for is not supported"),
        Some(Factor) if is_off(value) || scalar(value).is_some_and(|v| number(&v) == Some(1.0)) => Ok(()),
        Some(Factor) => refused("1 or no such key: it is not supported"),
        Some(On) if is_on(value) => Ok(()),
        Some(On) => refused("true or no such key: it is another model otherwise"),
        Some(Weights) => {
            let sums_to_1 = router_norm(keys.family) == Some(RouterNorm::SoftmaxTopK);
            let same = if sums_to_1 { is_on(value) } else { is_off(value) };
            if same { Ok(()) } else { refused(&format!("{sums_to_1}, as in this family")) }
        }
        Some(Same(other)) => {
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
