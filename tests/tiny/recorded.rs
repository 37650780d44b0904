//! A tiny model of each family with the logits that an independent implementation in f64 has computed for it
//! (numpy; it read the very files that `file` makes).

use ottava::TokenId;
use ottava::checkpoint::TensorType;
use ottava::ir::{PAGE_TOKENS, PageId, PageRef, StepInput, StepSequence};

use super::Tiny;

/// Tokens of the vocabularies.
pub const VOCAB: usize = 16;
/// One sequence.
const TOKENS: [u32; 10] = [1, 7, 3, 15, 0, 4, 4, 9, 12, 2];

/// The models.
pub const TINY: [Tiny; 5] = [
    Tiny {
        vocab: VOCAB,
        family: "llama",
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        rope_dims: 8,
        tied: false,
        window: 0,
        dtype: TensorType::F32,
    },
    Tiny {
        vocab: VOCAB,
        family: "llama",
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        rope_dims: 8,
        tied: true,
        window: 0,
        dtype: TensorType::F16,
    },
    Tiny {
        vocab: VOCAB,
        family: "qwen2",
        layers: 2,
        heads: 4,
        kv_heads: 1,
        head_dim: 8,
        rope_dims: 8,
        tied: true,
        window: 0,
        dtype: TensorType::F32,
    },
    Tiny {
        vocab: VOCAB,
        family: "qwen3",
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        rope_dims: 16,
        tied: false,
        window: 0,
        dtype: TensorType::F32,
    },
    Tiny {
        vocab: VOCAB,
        family: "gemma3",
        layers: 7,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        rope_dims: 16,
        tied: true,
        window: 4,
        dtype: TensorType::F32,
    },
];

/// The reference's logits of the last token, a row a model.
pub const EXPECTED: [[f32; VOCAB]; 5] = [
    [
        -0.21055, -1.11943, -1.91871, -0.31245, -1.75929, -0.80117, 0.72951, 0.20048, -1.13636, -0.50849,
        -2.05939, 0.34733, 0.49454, 0.33677, -0.62453, -0.49863,
    ],
    [
        0.67542, 0.67681, 0.06204, 1.1477, -0.90426, -0.77053, -0.50905, -0.33101, 0.83433, 1.72039, 0.59513,
        0.01301, 0.2804, 0.65617, 1.41264, -0.9836,
    ],
    [
        0.0792, 1.28846, -0.04382, -0.09071, -1.09713, 0.57908, -0.20424, 0.18241, 1.06971, -0.76897,
        -0.53226, -0.72125, 0.94168, 0.3253, 1.22054, 0.00196,
    ],
    [
        0.05667, -0.04129, 1.11002, 0.17205, -0.2046, -0.20388, -0.87833, 0.26769, 0.00293, 0.19808,
        -0.67774, 0.68441, -0.17839, -0.12001, 1.72503, -0.66463,
    ],
    [
        -1.06081, -1.78791, 2.13509, 0.28104, -0.36716, -0.90231, 0.79409, 1.03173, 0.47633, -0.39669,
        1.06935, 0.51006, -0.20349, -1.55254, -0.28828, -1.26416,
    ],
];

/// Tokens `range` of the sequence; the last row is an output.
pub fn step(range: std::ops::Range<usize>) -> StepInput {
    let rows = range.len() as u32;
    StepInput { outputs: vec![rows - 1], ..step_of(&TOKENS, range) }
}

/// Tokens `range` of a sequence on pages 1, 2, …; all rows are outputs.
pub fn step_of(tokens: &[u32], range: std::ops::Range<usize>) -> StepInput {
    let pages: Vec<PageRef> = (0..range.end.div_ceil(PAGE_TOKENS))
        .map(|page| PageRef { page: PageId(page as u32 + 1), start: (page * PAGE_TOKENS) as u32 })
        .collect();
    let rows = range.len() as u32;
    StepInput {
        tokens: tokens[range.clone()].iter().map(|&id| TokenId(id)).collect(),
        positions: range.map(|position| position as u32).collect(),
        sequences: vec![StepSequence { rows: 0..rows, pages: 0..pages.len() as u32, window: None }],
        pages,
        outputs: (0..rows).collect(),
        ..StepInput::default()
    }
}
