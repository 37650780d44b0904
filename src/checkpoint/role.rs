//! What a tensor is to a model, and what a format calls it.
//!
//! A model knows a weight by its [`Role`]. A [`Dialect`] gives the name that the checkpoint has for it, and says
//! what the format stores otherwise than the graph computes with it.

/// What a weight is to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The table of token embeddings.
    TokenEmbedding,
    /// The norm before the head.
    OutputNorm,
    /// From the last row to logits; models without one use the table of embeddings.
    Head,
    /// A part of a layer.
    Layer {
        /// The layer, from 0.
        index: usize,
        /// What it is there.
        part: Part,
    },
}

/// A weight within a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The norm before attention.
    AttentionNorm,
    /// Queries.
    Query,
    /// Keys.
    Key,
    /// Values.
    Value,
    /// Queries, keys and values in one matrix, in this order.
    QueryKeyValue,
    /// The norm of queries.
    QueryNorm,
    /// The norm of keys.
    KeyNorm,
    /// What attention yields, back to the residual stream.
    AttentionOutput,
    /// The norm behind attention, before it is added.
    AttentionOutputNorm,
    /// The norm before the MLP.
    MlpNorm,
    /// The gate of the MLP.
    Gate,
    /// What the gate multiplies.
    Up,
    /// The gate and what it multiplies in one matrix, in this order.
    GateUp,
    /// Back to the residual stream.
    Down,
    /// The logits of experts.
    Router,
    /// The gates of all experts.
    GateExperts,
    /// What they multiply, of all experts.
    UpExperts,
    /// Back to the residual stream, of all experts.
    DownExperts,
    /// The norm behind the MLP, before it is added.
    MlpOutputNorm,
}

/// The order of a matrix's rows that make queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryRows {
    /// As the family's converter writes them.
    OfFamily,
    /// The first half of a head turns with the second.
    Halves,
}

/// Names and conventions of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Dialect {
    /// Before every name but the head's.
    body: &'static str,
    head: &'static str,
    names: &'static Names,
    /// Added to the weights of all norms.
    norm_offset: f32,
}

/// The names of a format, without `.weight` and `.bias`.
#[derive(Debug, PartialEq)]
struct Names {
    token_embedding: &'static str,
    output_norm: &'static str,
    /// Before a layer's number.
    layers: &'static str,
    parts: [(Part, &'static str); 15],
    rotary_rows: RotaryRows,
}

/// The names of experts' parts. No family has them in folders yet.
const EXPERTS: [(Part, &str); 4] = [
    (Part::Router, "ffn_gate_inp"),
    (Part::GateExperts, "ffn_gate_exps"),
    (Part::UpExperts, "ffn_up_exps"),
    (Part::DownExperts, "ffn_down_exps"),
];

static GGUF: Names = Names {
    token_embedding: "token_embd",
    output_norm: "output_norm",
    layers: "blk.",
    parts: [
        (Part::AttentionNorm, "attn_norm"),
        (Part::Query, "attn_q"),
        (Part::Key, "attn_k"),
        (Part::Value, "attn_v"),
        (Part::QueryKeyValue, "attn_qkv"),
        (Part::QueryNorm, "attn_q_norm"),
        (Part::KeyNorm, "attn_k_norm"),
        (Part::AttentionOutput, "attn_output"),
        (Part::AttentionOutputNorm, "post_attention_norm"),
        (Part::MlpNorm, "ffn_norm"),
        (Part::Gate, "ffn_gate"),
        (Part::Up, "ffn_up"),
        // With twice the rows where there is no gate beside it.
        (Part::GateUp, "ffn_up"),
        (Part::Down, "ffn_down"),
        (Part::MlpOutputNorm, "post_ffw_norm"),
    ],
    rotary_rows: RotaryRows::OfFamily,
};

/// Of families that norm before attention and MLP alone.
#[cfg(feature = "safetensors")]
static HUGGING_FACE: Names = hugging_face("post_attention_layernorm", "");
/// Of families that norm behind them, too.
#[cfg(feature = "safetensors")]
static HUGGING_FACE_SANDWICH: Names = hugging_face("pre_feedforward_layernorm", "post_attention_layernorm");

/// The names of transformers' decoders, which call two norms alike that are not.
#[cfg(feature = "safetensors")]
const fn hugging_face(mlp_norm: &'static str, attention_output_norm: &'static str) -> Names {
    Names {
        token_embedding: "embed_tokens",
        output_norm: "norm",
        layers: "layers.",
        parts: [
            (Part::AttentionNorm, "input_layernorm"),
            (Part::Query, "self_attn.q_proj"),
            (Part::Key, "self_attn.k_proj"),
            (Part::Value, "self_attn.v_proj"),
            (Part::QueryKeyValue, "self_attn.qkv_proj"),
            (Part::QueryNorm, "self_attn.q_norm"),
            (Part::KeyNorm, "self_attn.k_norm"),
            (Part::AttentionOutput, "self_attn.o_proj"),
            (Part::AttentionOutputNorm, attention_output_norm),
            (Part::MlpNorm, mlp_norm),
            (Part::Gate, "mlp.gate_proj"),
            (Part::Up, "mlp.up_proj"),
            (Part::GateUp, "mlp.gate_up_proj"),
            (Part::Down, "mlp.down_proj"),
            (Part::MlpOutputNorm, "post_feedforward_layernorm"),
        ],
        rotary_rows: RotaryRows::Halves,
    }
}

impl Dialect {
    /// Files of GGUF.
    pub fn gguf() -> Dialect {
        Dialect { body: "", head: "output", names: &GGUF, norm_offset: 0.0 }
    }

    /// Folders of Hugging Face, whose names begin with `body`.
    #[cfg(feature = "safetensors")]
    pub(super) fn hugging_face(body: &'static str, head: &'static str, norms: Norms) -> Dialect {
        let (names, norm_offset) = match norms {
            Norms::Before => (&HUGGING_FACE, 0.0),
            Norms::BeforeAndBehind => (&HUGGING_FACE_SANDWICH, 1.0),
        };
        Dialect { body, head, names, norm_offset }
    }

    /// The name of a weight.
    pub fn weight(&self, role: Role) -> String {
        format!("{}.weight", self.stem(role))
    }

    /// The name of a bias.
    pub fn bias(&self, role: Role) -> String {
        format!("{}.bias", self.stem(role))
    }

    fn stem(&self, role: Role) -> String {
        let Names { token_embedding, output_norm, layers, parts, .. } = self.names;
        let body = self.body;
        match role {
            Role::TokenEmbedding => format!("{body}{token_embedding}"),
            Role::OutputNorm => format!("{body}{output_norm}"),
            Role::Head => self.head.to_owned(),
            Role::Layer { index, part } => {
                let name = parts
                    .iter()
                    .chain(&EXPERTS)
                    .find(|&&(other, _)| other == part)
                    .map_or("", |&(_, name)| name);
                format!("{body}{layers}{index}.{name}")
            }
        }
    }

    /// The layer that a tensor is a part of, and the rest of its name.
    pub fn layer_of<'n>(&self, name: &'n str) -> Option<(usize, &'n str)> {
        let rest = name.strip_prefix(self.body)?.strip_prefix(self.names.layers)?;
        let (index, part) = rest.split_once('.')?;
        Some((index.parse().ok()?, part))
    }

    /// Whether this is the name of a part of some layer.
    pub fn is_part(&self, name: &str, part: Part) -> bool {
        self.layer_of(name).is_some_and(|(index, _)| name == self.weight(Role::Layer { index, part }))
    }

    /// The order of the rows that make queries and keys.
    pub fn rotary_rows(&self) -> RotaryRows {
        self.names.rotary_rows
    }

    /// What is added to the vector called `name` before the graph multiplies by it: Gemma's norms multiply by one
    /// more than Hugging Face's folders say.
    pub fn offset(&self, name: &str) -> f32 {
        if name.ends_with(".bias") { 0.0 } else { self.norm_offset }
    }
}

/// Where a family norms.
#[cfg(feature = "safetensors")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Norms {
    /// Before attention and MLP.
    Before,
    /// Before and behind them, by one more than their weights: Gemma.
    BeforeAndBehind,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_has_a_name_in_each_dialect() {
        let query = Role::Layer { index: 3, part: Part::Query };
        let gguf = Dialect::gguf();
        assert_eq!(
            (gguf.weight(query), gguf.weight(Role::Head)),
            ("blk.3.attn_q.weight".into(), "output.weight".into())
        );
        assert_eq!(gguf.layer_of("blk.12.ffn_gate.weight"), Some((12, "ffn_gate.weight")));
        assert_eq!(gguf.layer_of("token_embd.weight"), None);
    }

    #[cfg(feature = "safetensors")]
    #[test]
    fn norms_of_one_name_have_two_roles() {
        let norm = |norms, part| {
            let dialect = Dialect::hugging_face("model.", "lm_head", norms);
            dialect.weight(Role::Layer { index: 0, part })
        };
        let behind_attention = "model.layers.0.post_attention_layernorm.weight";
        assert_eq!(norm(Norms::Before, Part::MlpNorm), behind_attention);
        assert_eq!(norm(Norms::BeforeAndBehind, Part::AttentionOutputNorm), behind_attention);
        let before_mlp = "model.layers.0.pre_feedforward_layernorm.weight";
        assert_eq!(norm(Norms::BeforeAndBehind, Part::MlpNorm), before_mlp);
    }
}
