//! A tiny model of each family with the logits that an independent implementation in f64 has computed for it;
//! it read the very files that `file` makes, and has the logits that transformers has of larger models.

use ottava::TokenId;
use ottava::checkpoint::TensorType;
use ottava::ir::{PAGE_TOKENS, PageId, PageRef, StepInput, StepSequence};

use super::Tiny;

/// Tokens of the vocabularies.
pub const VOCAB: usize = 16;
/// One sequence.
pub const TOKENS: [u32; 10] = [1, 7, 3, 15, 0, 4, 4, 9, 12, 2];

/// The models.
pub const TINY: [Tiny; 23] = [
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
    Tiny { family: "gemma2", layers: 3, tied: true, window: 4, ..SMALL },
    // The fourth layer is a global one, or one that does not rotate.
    Tiny { family: "smollm3", layers: 4, ..SMALL },
    Tiny { family: "olmo2", layers: 4, window: 4, ..SMALL },
    Tiny { family: "exaone4", layers: 4, window: 4, ..SMALL },
    Tiny { family: "cohere2", layers: 4, tied: true, window: 4, ..SMALL },
    Tiny { family: "granite", ..SMALL },
    Tiny { family: "glm4", head_dim: 16, ..SMALL },
    Tiny { family: "phi3", ..SMALL },
    Tiny { family: "qwen3vl", head_dim: 16, rope_dims: 16, ..SMALL },
    Tiny { family: "qwen3moe", head_dim: 16, rope_dims: 16, ..SMALL },
    Tiny { family: "qwen3vlmoe", head_dim: 16, rope_dims: 16, ..SMALL },
    Tiny { family: "olmoe", ..SMALL },
    Tiny { family: "granitemoe", ..SMALL },
    Tiny { family: "gemma", tied: true, ..SMALL },
    Tiny { family: "command-r", tied: true, ..SMALL },
    Tiny { family: "starcoder2", ..SMALL },
    Tiny { family: "ernie4_5", head_dim: 16, rope_dims: 16, ..SMALL },
    Tiny { family: "mistral3", ..SMALL },
];

const SMALL: Tiny = Tiny {
    vocab: VOCAB,
    family: "",
    layers: 2,
    heads: 4,
    kv_heads: 2,
    head_dim: 8,
    rope_dims: 8,
    tied: false,
    window: 0,
    dtype: TensorType::F32,
};

/// The reference's logits of the last token, a row a model.
pub const EXPECTED: [[f32; VOCAB]; 23] = [
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
    [
        0.53424, 0.09700, 1.91772, 1.72818, -0.39517, 0.50485, 0.98153, 1.10815, 1.87224, 0.03994, -0.42274,
        0.35401, 1.23020, 0.24779, 0.28649, -1.13024,
    ],
    [
        0.88164, 0.39981, -0.46512, -0.21460, 1.83786, -0.58806, -0.36058, 0.32076, 0.69783, -0.14508,
        1.02215, -1.47155, 1.38709, 0.41417, 1.10022, -0.59921,
    ],
    [
        -0.08292, -0.65450, 0.11180, -1.20458, -0.50673, -0.26718, 1.85714, 0.20409, -0.72432, 1.79315,
        1.22601, -0.21571, -0.02871, -0.07913, 0.08079, -0.15427,
    ],
    [
        -1.47994, -1.12485, -0.54678, 1.50356, 0.16589, -1.31227, -0.02613, 0.72981, 1.14026, 0.87878,
        -0.69846, -1.35960, 0.62503, 0.27927, -1.44114, 0.49175,
    ],
    [
        0.04557, -0.10932, 0.05481, -0.09037, -0.22197, -0.00555, -0.08995, 0.35776, 0.12594, 0.05102,
        0.19231, -0.12764, 0.12100, 0.07204, 0.22842, -0.26646,
    ],
    [
        0.92154, 0.09799, 0.06565, -0.74608, -0.12121, 0.53590, -0.85105, -0.20910, 0.49667, -1.61837,
        -0.36154, 0.54730, -1.00681, 0.36540, 0.10509, 0.35188,
    ],
    [
        -0.57476, 0.23804, 0.77003, -0.16488, 0.04060, -1.16248, -0.63564, -0.79183, 1.05991, -0.02854,
        0.22901, -0.84882, 0.98112, -0.41759, -0.17776, 0.06005,
    ],
    [
        -0.61167, -0.77220, 0.08898, -0.52550, -1.73387, -1.47654, 1.59400, -0.43894, -0.79533, -0.27882,
        -1.61200, -0.75905, 1.20884, 0.76236, 0.31777, 1.04130,
    ],
    [
        0.05667, -0.04129, 1.11002, 0.17205, -0.20460, -0.20388, -0.87833, 0.26769, 0.00293, 0.19808,
        -0.67774, 0.68441, -0.17839, -0.12001, 1.72503, -0.66463,
    ],
    [
        0.06586, -1.92322, -1.26158, 1.11985, 0.12668, -0.39046, -0.60786, 1.29483, 1.57408, 0.68377,
        0.44884, 0.95728, 1.19551, -0.99303, 1.08520, 0.31132,
    ],
    [
        0.06586, -1.92322, -1.26158, 1.11985, 0.12668, -0.39046, -0.60786, 1.29483, 1.57408, 0.68377,
        0.44884, 0.95728, 1.19551, -0.99303, 1.08520, 0.31132,
    ],
    [
        1.47777, 0.80249, 0.06804, 0.17024, 1.81202, -0.99810, -1.11398, -0.59571, -1.23976, 0.61469,
        -1.40146, -1.61295, 1.02726, -0.77059, 0.47152, -0.57616,
    ],
    [
        0.07795, -0.02286, 0.20319, -0.31723, -0.39775, 0.46448, 0.00739, -0.60043, 0.60612, -0.19071,
        -0.50826, 0.66445, 0.02245, 0.14311, 0.56712, 0.35361,
    ],
    [
        0.57009, 1.19637, 2.93319, 0.71352, -1.36463, 0.11937, 0.78391, 0.63641, 0.85335, 0.83720, 0.28977,
        -0.18973, 1.08867, -0.35961, -0.63286, -0.69708,
    ],
    [
        -0.13722, 0.19425, 0.33001, -0.33501, -0.09496, 0.10408, -0.19068, 0.33365, -0.22059, -0.00606,
        0.26042, -0.17073, -0.06784, 0.06646, -0.07070, 0.03696,
    ],
    [
        0.12710, -2.29383, -2.01338, -0.68004, -0.02750, -1.09363, 0.76568, -0.56222, 0.46616, 0.27868,
        -0.03034, 0.17193, 1.43384, -0.79883, -0.63397, -1.50738,
    ],
    [
        -1.20454, 0.24619, 0.04283, -0.27686, 1.57622, 0.33189, 1.00761, -0.88232, -0.54369, 0.02903,
        0.24716, 0.48615, -1.56323, -0.87732, 0.87520, -1.70567,
    ],
    [
        0.05879, -1.47759, -1.74846, -0.51933, -1.59546, -1.04993, 0.66157, 0.14970, -0.88462, -0.30148,
        -1.88309, 0.34505, 0.49960, 0.40196, -0.60058, -0.36045,
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
