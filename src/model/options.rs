//! [`LoadOptions`]: step limits, KV cache, context and weight formats of a loaded model.

use std::path::PathBuf;

use crate::ir::{KvDtype, Precision, StepLimits};
use crate::quant::QuantFormat;

/// Memory budget of the KV cache, for all sequences together.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum KvBudget {
    /// Size in bytes.
    Bytes(u64),
    /// Room for this number of sequences with the maximum context.
    Contexts(usize),
    /// Share, above 0 and at most 1, of the device memory that is free after weights and activations are
    /// allocated. Limited to one maximum context per output of a step. An error if free memory is unknown: on
    /// CPUs outside Linux.
    FreeShare(f32),
}

/// Options for loading a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// Maximum tokens and outputs of a step. Default: 320 tokens (256 of prompts, 64 of decoding sequences),
    /// 64 outputs.
    pub limits: StepLimits,
    /// Data type of the KV cache. Default: F16.
    pub kv_dtype: KvDtype,
    /// Memory budget of the KV cache; all pages that fit are allocated. Default: 2 contexts.
    pub kv: KvBudget,
    /// Maximum context of a sequence in tokens, at most the model's trained context.
    pub context_max: usize,
    /// Format to which F32, F16 and BF16 matrices are quantised. Default: `None`, which keeps them.
    pub quantise: Option<QuantFormat>,
    /// Sidecar file with the matrices as the backend prepared them. Read instead of preparing them again;
    /// written or replaced if it is missing or unusable. Safe to delete at any time. Default: `None`, no
    /// sidecar.
    pub sidecar: Option<PathBuf>,
    /// Requested storage precision of activations; the residual stream is always f32. Default: F32.
    pub activations: Precision,
}

impl LoadOptions {
    /// Options for a maximum context of `context_max` tokens, with defaults for the rest.
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
