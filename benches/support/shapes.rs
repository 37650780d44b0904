//! The shapes of real models.

use ottava::backend::{Activation, Heads};

/// What a model's operations work on.
#[derive(Clone, Copy)]
pub struct Shape {
    pub name: &'static str,
    /// The row of the crate's table of families.
    pub family: &'static str,
    pub layers: usize,
    pub width: usize,
    pub hidden: usize,
    pub heads: Heads,
    pub vocab: usize,
    /// Whether q and k are normalised a head at a time, and what attention and MLP yield a row.
    pub more_norms: bool,
    pub activation: Activation,
}

pub const SMOLLM2_135M: Shape = Shape {
    name: "smollm2-135m",
    family: "llama",
    layers: 30,
    width: 576,
    hidden: 1536,
    heads: Heads { query: 9, kv: 3, dim: 64 },
    vocab: 49152,
    more_norms: false,
    activation: Activation::Silu,
};

pub const GEMMA3_270M: Shape = Shape {
    name: "gemma3-270m",
    family: "gemma3",
    layers: 18,
    width: 640,
    hidden: 2048,
    heads: Heads { query: 4, kv: 1, dim: 256 },
    vocab: 262_144,
    more_norms: true,
    activation: Activation::GeluTanh,
};

/// The layers of Llama 3 8B, two of them, and the vocabulary of Mistral 7B, which has them too.
pub const SIZE_8B: Shape = Shape {
    name: "8b",
    family: "llama",
    layers: 2,
    width: 4096,
    hidden: 14336,
    heads: Heads { query: 32, kv: 8, dim: 128 },
    vocab: 32768,
    more_norms: false,
    activation: Activation::Silu,
};

pub const MODELS: [Shape; 3] = [SMOLLM2_135M, GEMMA3_270M, SIZE_8B];
