//! Table of model families, one row per architecture. A new Llama-like family is a row and its tests.

use crate::ir::{Activation, NormKind, RopePairing};

use super::ModelError;
use super::recipe::{
    AttentionRecipe, EmbedRecipe, EncoderRecipe, ExpertsRecipe, GlobalLayer, HeadRecipe, LayerRecipe,
    LocalRope, LogitScale, MlpRecipe, NormPlacement, QueryKeyNorms, RotatedLayers, RouterNorm,
    SlidingWindowLayers,
};

/// Architecture differences between families. Everything else is a hyperparameter of the file.
#[derive(Debug, PartialEq)]
pub struct Family {
    /// Value of `general.architecture` in GGUF, and prefix of the keys.
    pub name: &'static str,
    /// Pairs of head elements that rotate together, in the file's order.
    pub pairing: RopePairing,
    /// Type of norms. Norms of q and k are always RMSNorm.
    pub norm: NormKind,
    /// Default epsilon of norms, as in the training code.
    pub epsilon: f64,
    /// Scaling of embeddings.
    pub embed: EmbedRecipe,
    /// Structure of a layer.
    pub layer: LayerRecipe,
    /// Sliding-window layers.
    pub sliding_window_layers: Option<SlidingWindowLayers>,
    /// Processing of logits.
    pub head: HeadRecipe,
    /// For text encoders: their own parts. `None` for decoders.
    pub encoder: Option<EncoderRecipe>,
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
    MlpRecipe::Experts(ExpertsRecipe { activation: Activation::Silu, router_norm: RouterNorm::SoftmaxTopK });

const LLAMA: Family = Family {
    name: "llama",
    pairing: RopePairing::Interleaved,
    norm: NormKind::Rms,
    epsilon: 1e-6,
    embed: EmbedRecipe::Plain,
    layer: LAYER,
    sliding_window_layers: None,
    head: HeadRecipe { scale: LogitScale::Factor(1.0), soft_cap: None },
    encoder: None,
};

/// Every fourth layer is global. The window is a hyperparameter of the file.
const GLOBAL_EVERY_FOURTH: SlidingWindowLayers =
    SlidingWindowLayers { period: 4, global: GlobalLayer::Last, window: 0, rope: LocalRope::AsGlobal };

const COMMAND_R: Family = Family {
    name: "command-r",
    norm: NormKind::Layer,
    epsilon: 1e-5,
    layer: LayerRecipe { norms: NormPlacement::Parallel, ..LAYER },
    head: HeadRecipe { scale: LogitScale::Factor(0.0625), ..LLAMA.head },
    ..LLAMA
};

const EXAONE4: Family = Family {
    name: "exaone4",
    pairing: RopePairing::Halves,
    epsilon: 1e-5,
    layer: LayerRecipe {
        attention: AttentionRecipe {
            norms: QueryKeyNorms::Heads,
            rotated: RotatedLayers::Local,
            ..ATTENTION
        },
        norms: NormPlacement::Post,
        ..LAYER
    },
    sliding_window_layers: Some(GLOBAL_EVERY_FOURTH),
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
    sliding_window_layers: Some(SlidingWindowLayers { period: 2, window: 4096, ..GLOBAL_EVERY_FOURTH }),
    head: HeadRecipe { soft_cap: Some(30.0), ..LLAMA.head },
    ..LLAMA
};

const GEMMA3: Family = Family {
    name: "gemma3",
    layer: LayerRecipe {
        attention: AttentionRecipe { norms: QueryKeyNorms::Heads, wide_scale_at: Some(62), ..ATTENTION },
        ..GEMMA2.layer
    },
    sliding_window_layers: Some(SlidingWindowLayers {
        period: 6,
        window: 0,
        global: GlobalLayer::Last,
        rope: LocalRope::Unscaled { base: Some(10_000.0) },
    }),
    head: LLAMA.head,
    ..GEMMA2
};

const GRANITE: Family =
    Family { name: "granite", head: HeadRecipe { scale: LogitScale::Divisor, ..LLAMA.head }, ..LLAMA };

const OLMO2: Family = Family {
    name: "olmo2",
    pairing: RopePairing::Halves,
    epsilon: 1e-5,
    layer: LayerRecipe {
        attention: AttentionRecipe { norms: QueryKeyNorms::Rows, ..ATTENTION },
        norms: NormPlacement::Post,
        ..LAYER
    },
    sliding_window_layers: Some(SlidingWindowLayers {
        rope: LocalRope::Unscaled { base: None },
        ..GLOBAL_EVERY_FOURTH
    }),
    ..LLAMA
};

const QWEN3: Family = Family {
    name: "qwen3",
    pairing: RopePairing::Halves,
    layer: LayerRecipe { attention: AttentionRecipe { norms: QueryKeyNorms::Heads, ..ATTENTION }, ..LAYER },
    ..LLAMA
};

const QWEN3_MOE: Family =
    Family { name: "qwen3moe", layer: LayerRecipe { mlp: EXPERTS, ..QWEN3.layer }, ..QWEN3 };

/// All families of decoders.
pub const FAMILIES: &[Family] = &[
    LLAMA,
    Family {
        name: "qwen2",
        pairing: RopePairing::Halves,
        layer: LayerRecipe { attention: AttentionRecipe { qkv_bias: true, ..ATTENTION }, ..LAYER },
        ..LLAMA
    },
    QWEN3,
    QWEN3_MOE,
    Family { name: "qwen3vl", ..QWEN3 },
    Family { name: "qwen3vlmoe", ..QWEN3_MOE },
    Family {
        name: "gemma",
        layer: LayerRecipe { mlp: GEMMA2.layer.mlp, ..LAYER },
        sliding_window_layers: None,
        head: LLAMA.head,
        ..GEMMA2
    },
    GEMMA2,
    GEMMA3,
    COMMAND_R,
    Family {
        name: "cohere2",
        layer: LayerRecipe {
            attention: AttentionRecipe { rotated: RotatedLayers::Local, ..ATTENTION },
            ..COMMAND_R.layer
        },
        sliding_window_layers: Some(SlidingWindowLayers { window: 4096, ..GLOBAL_EVERY_FOURTH }),
        ..COMMAND_R
    },
    Family { name: "ernie4_5", epsilon: 1e-5, ..LLAMA },
    EXAONE4,
    Family {
        name: "glm4",
        epsilon: 1.562_5e-7,
        layer: LayerRecipe { norms: NormPlacement::Sandwich, ..LAYER },
        ..LLAMA
    },
    GRANITE,
    Family { name: "granitemoe", layer: LayerRecipe { mlp: EXPERTS, ..LAYER }, ..GRANITE },
    Family { name: "mistral3", epsilon: 1e-5, ..LLAMA },
    OLMO2,
    Family {
        name: "olmoe",
        layer: LayerRecipe {
            attention: OLMO2.layer.attention,
            mlp: MlpRecipe::Experts(ExpertsRecipe {
                activation: Activation::Silu,
                router_norm: RouterNorm::SoftmaxAll,
            }),
            ..LAYER
        },
        sliding_window_layers: None,
        ..OLMO2
    },
    Family { name: "phi3", pairing: RopePairing::Halves, epsilon: 1e-5, ..LLAMA },
    Family {
        name: "smollm3",
        layer: LayerRecipe {
            attention: AttentionRecipe { rotated: RotatedLayers::NopeEvery(4), ..ATTENTION },
            ..LAYER
        },
        ..LLAMA
    },
    Family {
        name: "starcoder2",
        pairing: RopePairing::Halves,
        norm: NormKind::Layer,
        epsilon: 1e-5,
        layer: LayerRecipe { mlp: MlpRecipe::Plain(Activation::GeluTanh), ..LAYER },
        ..LLAMA
    },
];

const BERT: Family = Family {
    name: "bert",
    pairing: RopePairing::Halves,
    norm: NormKind::Layer,
    epsilon: 1e-12,
    layer: LayerRecipe {
        attention: AttentionRecipe { rotated: RotatedLayers::None, ..ATTENTION },
        mlp: MlpRecipe::Plain(Activation::Gelu),
        norms: NormPlacement::AfterResidual,
    },
    encoder: Some(EncoderRecipe {
        learned_positions: true,
        embedding_norm: true,
        first_norm: true,
        output_norm: false,
    }),
    ..LLAMA
};

/// All families of text encoders.
pub const ENCODERS: &[Family] = &[
    BERT,
    Family {
        name: "nomic-bert",
        layer: LayerRecipe { attention: ATTENTION, mlp: LAYER.mlp, ..BERT.layer },
        encoder: Some(EncoderRecipe {
            learned_positions: false,
            embedding_norm: true,
            first_norm: true,
            output_norm: false,
        }),
        ..BERT
    },
    Family {
        name: "modern-bert",
        epsilon: 1e-5,
        layer: LayerRecipe { mlp: MlpRecipe::Gated(Activation::Gelu), ..LAYER },
        sliding_window_layers: Some(SlidingWindowLayers {
            period: 3,
            global: GlobalLayer::First,
            window: 128,
            rope: LocalRope::Unscaled { base: Some(10_000.0) },
        }),
        encoder: Some(EncoderRecipe {
            learned_positions: false,
            embedding_norm: true,
            first_norm: false,
            output_norm: true,
        }),
        ..BERT
    },
    Family {
        name: "gemma-embedding",
        encoder: Some(EncoderRecipe {
            learned_positions: false,
            embedding_norm: false,
            first_norm: true,
            output_norm: true,
        }),
        layer: LayerRecipe {
            attention: AttentionRecipe { wide_scale_at: None, ..GEMMA3.layer.attention },
            ..GEMMA3.layer
        },
        ..GEMMA3
    },
];

impl Family {
    /// Looks up the decoder family of a `general.architecture`.
    ///
    /// # Errors
    /// [`ModelError::Architecture`] with the name and the supported families, [`ModelError::Encoder`] for a
    /// text encoder.
    pub fn named(name: &str) -> Result<&'static Family, ModelError> {
        let family = Family::of_any(name)?;
        let encoder = || ModelError::Encoder { family: family.name };
        family.encoder.is_none().then_some(family).ok_or_else(encoder)
    }

    /// Looks up the family of a `general.architecture`, decoder or encoder.
    ///
    /// # Errors
    /// [`ModelError::Architecture`] with the name and the supported families.
    pub fn of_any(name: &str) -> Result<&'static Family, ModelError> {
        let all = || FAMILIES.iter().chain(ENCODERS);
        let supported = || all().map(|family| family.name).collect::<Vec<_>>().join(", ");
        let unknown = || ModelError::Architecture { found: name.into(), supported: supported() };
        all().find(|family| family.name == name).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_architecture_is_named_with_those_supported() {
        let error = Family::named("mamba").expect_err("unknown").to_string();
        assert!(error.contains("mamba"), "{error}");
        for family in FAMILIES.iter().chain(ENCODERS) {
            assert!(error.contains(family.name), "{error}");
        }
    }
}
