//! The shapes of real models.

use ottava::ir::{Activation, Heads};

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

pub const LLAMA_3_2_1B: Shape = Shape {
    name: "1b",
    family: "llama",
    layers: 16,
    width: 2048,
    hidden: 8192,
    heads: Heads { query: 32, kv: 8, dim: 64 },
    vocab: 128_256,
    more_norms: false,
    activation: Activation::Silu,
};

pub const QWEN2_5_1_5B: Shape = Shape {
    name: "1.5b",
    family: "qwen2",
    layers: 28,
    width: 1536,
    hidden: 8960,
    heads: Heads { query: 12, kv: 2, dim: 128 },
    vocab: 151_936,
    more_norms: false,
    activation: Activation::Silu,
};

pub const LLAMA_3_1_8B: Shape = Shape {
    name: "8b",
    family: "llama",
    layers: 32,
    width: 4096,
    hidden: 14336,
    heads: Heads { query: 32, kv: 8, dim: 128 },
    vocab: 128_256,
    more_norms: false,
    activation: Activation::Silu,
};

/// The layers of Llama 3 8B, two of them, and the vocabulary of Mistral 7B, which has them too.
pub const SIZE_8B: Shape = Shape { layers: 2, vocab: 32768, ..LLAMA_3_1_8B };

pub const MODELS: [Shape; 3] = [SMOLLM2_135M, GEMMA3_270M, SIZE_8B];
