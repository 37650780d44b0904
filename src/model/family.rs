//! The families: a row each. A new Llama-like family is a row here and its tests.

use crate::ir::{Activation, NormKind, RopePairing};

use super::ModelError;
use super::recipe::{
    AttentionRecipe, EmbedRecipe, ExpertWeights, ExpertsRecipe, HeadRecipe, LayerRecipe, LocalLayers,
    LocalRope, LogitScale, MlpRecipe, NormPlacement, QueryKeyNorms, RotatedLayers,
};

/// What sets a family apart; everything else is in the file's hyperparameters.
#[derive(Debug, PartialEq)]
pub struct Family {
    /// `general.architecture` in GGUF, and the prefix of its keys.
    pub name: &'static str,
    /// Which elements of a head turn together, as the file orders them.
    pub pairing: RopePairing,
    /// What its norms compute, those of q and k apart, which have no mean.
    pub norm: NormKind,
    /// What becomes of embeddings.
    pub embed: EmbedRecipe,
    /// What a layer is made of.
    pub layer: LayerRecipe,
    /// Layers that see a window alone.
    pub local_layers: Option<LocalLayers>,
    /// What becomes of logits.
    pub head: HeadRecipe,
}

const ATTENTION: AttentionRecipe = AttentionRecipe {
    qkv_bias: false,
    norms: QueryKeyNorms::None,
    rotated: RotatedLayers::All,
    soft_cap: None,
    wide_scale_at: None,
};

const LAYER: LayerRecipe =
    LayerRecipe { attention: ATTENTION, mlp: MlpRecipe::Gated(Activation::Silu), norms: NormPlacement::Pre };

const EXPERTS: MlpRecipe =
    MlpRecipe::Experts(ExpertsRecipe { activation: Activation::Silu, weights: ExpertWeights::OfChosen });

const LLAMA: Family = Family {
    name: "llama",
    pairing: RopePairing::Interleaved,
    norm: NormKind::Rms,
    embed: EmbedRecipe::Plain,
    layer: LAYER,
    local_layers: None,
    head: HeadRecipe { scale: LogitScale::Factor, soft_cap: None },
};

const COHERE2: Family = Family {
    name: "cohere2",
    norm: NormKind::Layer,
    layer: LayerRecipe {
        attention: AttentionRecipe { rotated: RotatedLayers::Local, ..ATTENTION },
        norms: NormPlacement::Parallel,
        ..LAYER
    },
    local_layers: Some(LocalLayers { period: 4, window: 4096, rope: LocalRope::AsGlobal }),
    ..LLAMA
};

const EXAONE4: Family = Family {
    name: "exaone4",
    pairing: RopePairing::Halves,
    layer: LayerRecipe {
        attention: AttentionRecipe {
            norms: QueryKeyNorms::Heads,
            rotated: RotatedLayers::Local,
            ..ATTENTION
        },
        norms: NormPlacement::Post,
        ..LAYER
    },
    local_layers: Some(LocalLayers { period: 4, window: 0, rope: LocalRope::AsGlobal }),
    ..LLAMA
};

const GEMMA2: Family = Family {
    name: "gemma2",
    pairing: RopePairing::Halves,
    embed: EmbedRecipe::ByWidth,
    layer: LayerRecipe {
        attention: AttentionRecipe { soft_cap: Some(50.0), wide_scale_at: Some(46), ..ATTENTION },
        mlp: MlpRecipe::Gated(Activation::GeluTanh),
        norms: NormPlacement::Sandwich,
    },
    local_layers: Some(LocalLayers { period: 2, window: 4096, rope: LocalRope::AsGlobal }),
    head: HeadRecipe { soft_cap: Some(30.0), ..LLAMA.head },
    ..LLAMA
};

const GRANITE: Family =
    Family { name: "granite", head: HeadRecipe { scale: LogitScale::Divisor, ..LLAMA.head }, ..LLAMA };

const OLMO2: Family = Family {
    name: "olmo2",
    pairing: RopePairing::Halves,
    layer: LayerRecipe {
        attention: AttentionRecipe { norms: QueryKeyNorms::Rows, ..ATTENTION },
        norms: NormPlacement::Post,
        ..LAYER
    },
    local_layers: Some(LocalLayers { period: 4, window: 0, rope: LocalRope::Unscaled { base: None } }),
    ..LLAMA
};

const QWEN3: Family = Family {
    name: "qwen3",
    pairing: RopePairing::Halves,
    layer: LayerRecipe { attention: AttentionRecipe { norms: QueryKeyNorms::Heads, ..ATTENTION }, ..LAYER },
    ..LLAMA
};

/// All families.
pub const FAMILIES: &[Family] = &[
    LLAMA,
    Family {
        name: "qwen2",
        pairing: RopePairing::Halves,
        layer: LayerRecipe { attention: AttentionRecipe { qkv_bias: true, ..ATTENTION }, ..LAYER },
        ..LLAMA
    },
    QWEN3,
    Family { name: "qwen3moe", layer: LayerRecipe { mlp: EXPERTS, ..QWEN3.layer }, ..QWEN3 },
    Family { name: "qwen3vl", ..QWEN3 },
    Family { name: "qwen3vlmoe", layer: LayerRecipe { mlp: EXPERTS, ..QWEN3.layer }, ..QWEN3 },
    Family {
        name: "gemma",
        layer: LayerRecipe { mlp: GEMMA2.layer.mlp, ..LAYER },
        local_layers: None,
        head: LLAMA.head,
        ..GEMMA2
    },
    GEMMA2,
    Family {
        name: "gemma3",
        layer: LayerRecipe {
            attention: AttentionRecipe { norms: QueryKeyNorms::Heads, wide_scale_at: Some(62), ..ATTENTION },
            ..GEMMA2.layer
        },
        local_layers: Some(LocalLayers {
            period: 6,
            window: 0,
            rope: LocalRope::Unscaled { base: Some(10_000.0) },
        }),
        head: LLAMA.head,
        ..GEMMA2
    },
    Family {
        name: "command-r",
        layer: LayerRecipe { norms: NormPlacement::Parallel, ..LAYER },
        local_layers: None,
        ..COHERE2
    },
    COHERE2,
    Family { name: "ernie4_5", ..LLAMA },
    EXAONE4,
    Family { name: "glm4", layer: LayerRecipe { norms: NormPlacement::Sandwich, ..LAYER }, ..LLAMA },
    GRANITE,
    Family { name: "granitemoe", layer: LayerRecipe { mlp: EXPERTS, ..LAYER }, ..GRANITE },
    Family { name: "mistral3", ..LLAMA },
    OLMO2,
    Family {
        name: "olmoe",
        layer: LayerRecipe {
            attention: OLMO2.layer.attention,
            mlp: MlpRecipe::Experts(ExpertsRecipe {
                activation: Activation::Silu,
                weights: ExpertWeights::OfAll,
            }),
            ..LAYER
        },
        local_layers: None,
        ..OLMO2
    },
    Family { name: "phi3", pairing: RopePairing::Halves, ..LLAMA },
    Family {
        name: "smollm3",
        layer: LayerRecipe {
            attention: AttentionRecipe { rotated: RotatedLayers::AllBut(4), ..ATTENTION },
            ..LAYER
        },
        ..LLAMA
    },
    Family {
        name: "starcoder2",
        pairing: RopePairing::Halves,
        norm: NormKind::Layer,
        layer: LayerRecipe { mlp: MlpRecipe::Plain(Activation::GeluTanh), ..LAYER },
        ..LLAMA
    },
];

impl Family {
    /// The family of a `general.architecture`.
    ///
    /// # Errors
    /// [`ModelError::Architecture`] names it and those supported.
    pub fn named(name: &str) -> Result<&'static Family, ModelError> {
        let supported = || FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().join(", ");
        let unknown = || ModelError::Architecture { found: name.into(), supported: supported() };
        FAMILIES.iter().find(|family| family.name == name).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_architecture_is_named_with_those_supported() {
        let error = Family::named("mamba").expect_err("unknown").to_string();
        assert!(error.contains("mamba"), "{error}");
        for family in FAMILIES {
            assert!(error.contains(family.name), "{error}");
        }
    }
}
