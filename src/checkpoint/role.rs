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
}

/// The names of a format, without `.weight` and `.bias`, and what it stores otherwise than a graph reads it.
#[derive(Debug, PartialEq)]
pub(super) struct Names {
    token_embedding: &'static str,
    output_norm: &'static str,
    /// Before a layer's number.
    layers: &'static str,
    parts: [(Part, &'static str); 19],
    rotary_rows: RotaryRows,
    /// Added to the weights of all norms.
    norm_offset: f32,
}

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
        (Part::Router, "ffn_gate_inp"),
        (Part::GateExperts, "ffn_gate_exps"),
        (Part::UpExperts, "ffn_up_exps"),
        (Part::DownExperts, "ffn_down_exps"),
    ],
    rotary_rows: RotaryRows::OfFamily,
    norm_offset: 0.0,
};

/// The names of transformers' decoders.
#[cfg(feature = "safetensors")]
impl Names {
    /// Of families that norm before attention and before the MLP.
    pub const LLAMA: Names = Names {
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
            (Part::AttentionOutputNorm, ""),
            (Part::MlpNorm, "post_attention_layernorm"),
            (Part::Gate, "mlp.gate_proj"),
            (Part::Up, "mlp.up_proj"),
            (Part::GateUp, "mlp.gate_up_proj"),
            (Part::Down, "mlp.down_proj"),
            (Part::MlpOutputNorm, "post_feedforward_layernorm"),
            (Part::Router, "mlp.gate"),
            // Each expert has a number before the last part; `stack` leaves it out.
            (Part::GateExperts, "mlp.experts.gate_proj"),
            (Part::UpExperts, "mlp.experts.up_proj"),
            (Part::DownExperts, "mlp.experts.down_proj"),
        ],
        rotary_rows: RotaryRows::Halves,
        norm_offset: 0.0,
    };
    /// Norms behind them alone.
    pub const OLMO2: Names =
        Names::LLAMA.with(Part::MlpNorm, "").with(Part::AttentionOutputNorm, "post_attention_layernorm");
    /// Norms multiply by one more than their weights.
    pub const GEMMA: Names = Names { norm_offset: 1.0, ..Names::LLAMA };
    /// And stand behind attention and MLP, too. Of two norms of one name in other families one is another here.
    pub const GEMMA2: Names = Names::GEMMA
        .with(Part::MlpNorm, "pre_feedforward_layernorm")
        .with(Part::AttentionOutputNorm, "post_attention_layernorm");
    /// Neighbours turn together, as in GGUF.
    pub const COHERE: Names = Names { rotary_rows: RotaryRows::OfFamily, ..Names::LLAMA };
    /// And norms stand behind attention and MLP, too, by names of their own.
    pub const GLM4: Names = Names::COHERE
        .with(Part::AttentionOutputNorm, "post_self_attn_layernorm")
        .with(Part::MlpOutputNorm, "post_mlp_layernorm");
    /// An MLP without a gate.
    pub const STARCODER2: Names = Names::LLAMA.with(Part::Up, "mlp.c_fc").with(Part::Down, "mlp.c_proj");

    /// These names with another one for a part.
    const fn with(mut self, part: Part, name: &'static str) -> Names {
        let mut at = 0;
        while at < self.parts.len() {
            if self.parts[at].0 as usize == part as usize {
                self.parts[at].1 = name;
            }
            at += 1;
        }
        self
    }
}

impl Dialect {
    /// Files of GGUF.
    pub fn gguf() -> Dialect {
        Dialect { body: "", head: "output", names: &GGUF }
    }

    /// Hugging Face folders, whose names begin with `body`.
    #[cfg(feature = "safetensors")]
    pub(super) fn hugging_face(body: &'static str, head: &'static str, names: &'static Names) -> Dialect {
        Dialect { body, head, names }
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
                let name = parts.iter().find(|&&(other, _)| other == part).map_or("", |&(_, name)| name);
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
        if name.ends_with(".bias") { 0.0 } else { self.names.norm_offset }
    }
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
        let norm = |names, part| {
            let dialect = Dialect::hugging_face("model.", "lm_head", names);
            dialect.weight(Role::Layer { index: 0, part })
        };
        let behind_attention = "model.layers.0.post_attention_layernorm.weight";
        assert_eq!(norm(&Names::LLAMA, Part::MlpNorm), behind_attention);
        assert_eq!(norm(&Names::GEMMA2, Part::AttentionOutputNorm), behind_attention);
        assert_eq!(norm(&Names::OLMO2, Part::AttentionOutputNorm), behind_attention);
        let before_mlp = "model.layers.0.pre_feedforward_layernorm.weight";
        assert_eq!(norm(&Names::GEMMA2, Part::MlpNorm), before_mlp);
    }
}
