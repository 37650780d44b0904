//! How a model is loaded.

use std::path::PathBuf;

use crate::ir::{KvDtype, Precision, StepLimits};
use crate::quant::QuantFormat;

/// Memory for keys and values of all sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum KvBudget {
    /// So many bytes.
    Bytes(u64),
    /// Room for so many sequences of the longest context.
    Contexts(usize),
    /// A share, above 0 and at most 1, of what the device has free once weights and intermediates have theirs. It
    /// buys no more contexts than a step has outputs. Refused where free memory is unknown: on CPUs outside Linux.
    FreeShare(f32),
}

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// Room for the rows of a step.
    pub limits: StepLimits,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// Memory for keys and values; as many pages as fit are allocated.
    pub kv: KvBudget,
    /// Most tokens of a sequence, at most the model's trained context.
    pub context_max: usize,
    /// What F32, F16 and BF16 matrices become; kept as they are if none.
    pub quantise: Option<QuantFormat>,
    /// A file of the matrices as the backend prepared them: read instead of preparing them again, written
    /// or replaced where that cannot be. It is safe to delete at any time. None is kept if none.
    pub sidecar: Option<PathBuf>,
    /// How activations are asked to be stored; the residual stream is f32 always.
    pub activations: Precision,
}

impl LoadOptions {
    /// For sequences of at most so many tokens: room for two of them, steps of 256 prompt tokens and 64 outputs, and
    /// weights as they are.
    pub fn new(context_max: usize) -> LoadOptions {
        LoadOptions {
            limits: StepLimits { tokens_max: 256 + 64, outputs_max: 64 },
            kv_dtype: KvDtype::F16,
            kv: KvBudget::Contexts(2),
            context_max,
            quantise: None,
            sidecar: None,
            activations: Precision::F32,
        }
    }
}
