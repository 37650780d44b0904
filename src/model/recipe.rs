//! Recipes: what the layers of a family, its embeddings and its head are made of. `family` puts them together, and
//! `decoder` makes a graph of them.

use crate::ir::Activation;

/// What a layer computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerRecipe {
    /// Its attention.
    pub attention: AttentionRecipe,
    /// Its MLP.
    pub mlp: MlpRecipe,
    /// Where it norms.
    pub norms: NormPlacement,
}

/// What an attention does; heads, windows and rotations are in the file's hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionRecipe {
    /// Whether q, k and v must have biases. (Those that a file has are used in any family.)
    pub qkv_bias: bool,
    /// How q and k are normalised.
    pub norms: QueryKeyNorms,
    /// Which layers rotate q and k.
    pub rotated: RotatedLayers,
    /// Soft cap of the scaled products, where the file does not say.
    pub soft_cap: Option<f64>,
    /// The number of layers of the one model of the family that scales by its width a head. No key says so.
    pub wide_scale_at: Option<usize>,
}

/// What norms of q and k work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKeyNorms {
    /// There are none.
    None,
    /// Each head.
    Heads,
    /// The whole row.
    Rows,
}

/// Which layers rotate q and k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotatedLayers {
    /// All.
    All,
    /// All but each layer of this period.
    AllBut(usize),
    /// Those with a window; all in models without windows.
    Local,
}

/// What an MLP computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MlpRecipe {
    /// `down · (activation(gate · x) ∘ (up · x))`
    Gated(Activation),
    /// `down · activation(up · x)`
    Plain(Activation),
    /// The weighted sum of some of many gated MLPs, which a router chooses for each row.
    Experts(ExpertsRecipe),
}

/// What a mixture of experts computes; how many there are is in the file's hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsRecipe {
    /// Of each expert's gate.
    pub activation: Activation,
    /// What the weights of the chosen experts are.
    pub weights: ExpertWeights,
}

/// What experts' outputs are multiplied by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertWeights {
    /// The softmax over all experts.
    OfAll,
    /// The softmax over those chosen.
    OfChosen,
}

/// Where a layer norms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before attention and before the MLP.
    Pre,
    /// Before and behind them.
    Sandwich,
    /// Behind them, before what they yield is added.
    Post,
    /// Once, before both: attention and MLP are beside each other.
    Parallel,
}

/// What becomes of embeddings; a factor may be in the file's hyperparameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbedRecipe {
    /// Nothing.
    Plain,
    /// They are multiplied by the square root of their length.
    ByWidth,
}

/// What becomes of logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadRecipe {
    /// What the file's scale does to them.
    pub scale: LogitScale,
    /// Their soft cap, where the file does not say.
    pub soft_cap: Option<f64>,
}

/// What the file's scale does to logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LogitScale {
    /// It multiplies them; by so much where the file does not say.
    Factor(f64),
    /// It divides them.
    Divisor,
}

/// Layers that see a window: all but each `period`-th.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalLayers {
    /// Every so many layers, the last one is global.
    pub period: usize,
    /// The window where the file does not say; none for 0.
    pub window: u64,
    /// How they rotate.
    pub rope: LocalRope,
}

/// How layers with a window rotate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LocalRope {
    /// As global ones.
    AsGlobal,
    /// Without the scaling of global layers, which is for those that see far.
    Unscaled {
        /// The base, where the file does not say; that of global layers if none.
        base: Option<f64>,
    },
}
