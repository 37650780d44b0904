//! The families: a row each. A new Llama-like family is a row here and its tests.

use crate::ir::{Activation, RopePairing};

use super::ModelError;

/// What sets a family apart; everything else is in the file's hyperparameters.
#[derive(Debug, PartialEq)]
pub struct Family {
    /// `general.architecture` in GGUF, and the prefix of its keys.
    pub name: &'static str,
    /// Which elements of a head turn together, as the file orders them.
    pub pairing: RopePairing,
    /// The gate's activation function.
    pub activation: Activation,
    /// Whether q, k and v must have biases. (Those that a file has are used in any family.)
    pub qkv_bias: bool,
    /// Whether q and k are normalised a head at a time.
    pub head_norms: bool,
    /// Whether what attention and MLP yield is normalised before it is added.
    pub sandwich_norms: bool,
    /// Whether embeddings are multiplied by the square root of their length.
    pub scaled_embeddings: bool,
    /// Layers that see a window alone, with a rotation of their own.
    pub local_layers: Option<LocalLayers>,
}

/// All layers but each `period`-th are local.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalLayers {
    /// Every so many layers, the last one is global.
    pub period: usize,
    /// The rotation's base in local layers, unless the file says.
    pub rope_base: f64,
}

impl LocalLayers {
    /// Whether layer number `layer`, from 0, is local.
    pub fn is_local(&self, layer: usize) -> bool {
        !(layer + 1).is_multiple_of(self.period)
    }
}

const LLAMA: Family = Family {
    name: "llama",
    pairing: RopePairing::Interleaved,
    activation: Activation::Silu,
    qkv_bias: false,
    head_norms: false,
    sandwich_norms: false,
    scaled_embeddings: false,
    local_layers: None,
};

/// All families.
pub const FAMILIES: &[Family] = &[
    LLAMA,
    Family { name: "qwen2", pairing: RopePairing::Halves, qkv_bias: true, ..LLAMA },
    Family { name: "qwen3", pairing: RopePairing::Halves, head_norms: true, ..LLAMA },
    Family {
        name: "gemma3",
        pairing: RopePairing::Halves,
        activation: Activation::GeluTanh,
        qkv_bias: false,
        head_norms: true,
        sandwich_norms: true,
        scaled_embeddings: true,
        local_layers: Some(LocalLayers { period: 6, rope_base: 10_000.0 }),
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
        for name in ["mamba", "llama", "qwen2", "qwen3", "gemma3"] {
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn every_sixth_layer_of_gemma3_is_global() {
        let local = Family::named("gemma3").expect("known").local_layers.expect("local layers");
        let globals: Vec<usize> = (0..18).filter(|&layer| !local.is_local(layer)).collect();
        assert_eq!(globals, [5, 11, 17]);
    }
}
