//! Recipes: the parts of layers, embedding and head that families differ in. `family` combines them, and
//! `decoder` builds a graph from them.

use crate::ir::Activation;

/// Structure of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerRecipe {
    /// Attention.
    pub attention: AttentionRecipe,
    /// MLP.
    pub mlp: MlpRecipe,
    /// Placement of norms.
    pub norms: NormPlacement,
}

/// Attention variant. Heads, windows and rotations are hyperparameters of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionRecipe {
    /// Whether q, k and v require biases. Biases in the file are used in any family.
    pub qkv_bias: bool,
    /// Normalisation of q and k.
    pub norms: QueryKeyNorms,
    /// Layers with rotary embedding.
    pub rotated: RotatedLayers,
    /// Default soft cap of the scaled attention scores.
    pub soft_cap: Option<f64>,
    /// Layer count of the one model in the family that scales attention by `embedding_length / heads` instead
    /// of the head's dimension. GGUF has no key for it.
    pub wide_scale_at: Option<usize>,
}

/// Normalisation of q and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKeyNorms {
    /// No norms.
    None,
    /// Per head.
    Heads,
    /// Over the whole row.
    Rows,
}

/// Layers with rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotatedLayers {
    /// All layers.
    All,
    /// All but every n-th layer, which is a NoPE layer.
    NopeEvery(usize),
    /// Sliding-window layers; all layers in models without windows.
    Local,
    /// No layer.
    None,
}

/// MLP variant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MlpRecipe {
    /// `down · (activation(gate · x) ∘ (up · x))`
    Gated(Activation),
    /// `down · activation(up · x)`
    Plain(Activation),
    /// Mixture of experts: the weighted sum of the gated MLPs that a router selects for each row.
    Experts(ExpertsRecipe),
}

/// Mixture-of-experts variant. The number of experts is a hyperparameter of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsRecipe {
    /// Activation of each expert's gate.
    pub activation: Activation,
    /// Weights of the selected experts.
    pub router_norm: RouterNorm,
}

/// Router weights, which multiply the experts' outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterNorm {
    /// Softmax over all experts, not renormalised after selection.
    SoftmaxAll,
    /// Softmax over the selected experts.
    SoftmaxTopK,
}

/// Placement of norms in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before attention and before the MLP (pre-norm).
    Pre,
    /// Sandwich norm: before and after attention and MLP.
    Sandwich,
    /// After attention and MLP, before their outputs are added to the residual stream (post-norm).
    Post,
    /// One norm before attention and MLP, which run in parallel.
    Parallel,
    /// After each residual addition: `x = norm(x + y)` (post-LN, Vaswani et al. 2017).
    AfterResidual,
}

/// Scaling of embeddings. The file may have a further factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbedRecipe {
    /// No scaling.
    Plain,
    /// Factor: the square root of the embedding length.
    ByWidth,
}

/// Processing of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadRecipe {
    /// Effect of the file's logit scale.
    pub scale: LogitScale,
    /// Default soft cap.
    pub soft_cap: Option<f64>,
}

/// Effect of the file's logit scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LogitScale {
    /// Multiplies the logits; the value is the default factor.
    Factor(f64),
    /// Divides the logits.
    Divisor,
}

/// Sliding-window layers: all but one layer of each `period`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingWindowLayers {
    /// Period of global layers.
    pub period: usize,
    /// Place of the global layer in its period.
    pub global: GlobalLayer,
    /// Default window in positions; 0 for none.
    pub window: u64,
    /// Rotary embedding of sliding-window layers.
    pub rope: LocalRope,
}

/// Place of the global layer in its period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GlobalLayer {
    /// The first layer.
    First,
    /// The last layer.
    Last,
}

/// Rotary embedding of sliding-window layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LocalRope {
    /// Same as in global layers.
    AsGlobal,
    /// Without the context scaling of global layers.
    Unscaled {
        /// Default base; `None` for the base of global layers.
        base: Option<f64>,
    },
}

/// Text encoder: attention in both directions, over the rows of a step instead of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderRecipe {
    /// Whether learned position embeddings are added to the token embeddings.
    pub learned_positions: bool,
    /// Whether the embeddings are normalised.
    pub embedding_norm: bool,
    /// Whether the first layer has a norm before attention, in families with such norms.
    pub first_norm: bool,
    /// Whether the last layer's output is normalised.
    pub output_norm: bool,
}
