//! Tensor roles and their names: [`Role`] is the function of a weight in a model, [`Dialect`] the naming
//! scheme of a checkpoint.
//!
//! Models address weights by role. The dialect also describes storage conventions that differ from the
//! graph's, such as the row order of rotary embeddings.

/// The function of a weight in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Token embedding table.
    TokenEmbedding,
    /// Final norm, before the output projection.
    OutputNorm,
    /// Output projection (`lm_head`). Models without one use the token embeddings.
    Head,
    /// Learned position embeddings of an encoder, one row per position.
    PositionEmbedding,
    /// Embeddings of an encoder's segments, one row per token type.
    TokenTypes,
    /// Norm of an encoder's embeddings.
    EmbeddingNorm,
    /// First projection of a classification head.
    ClassDense,
    /// Norm after the first projection of a classification head.
    ClassNorm,
    /// Last projection of a classification head: one row per label.
    ClassOutput,
    /// Projection of the pooled row in sentence-transformers, 2 or 3 for their modules of these numbers.
    Projection(u8),
    /// A weight of a layer.
    Layer {
        /// Layer index, from 0.
        index: usize,
        /// The weight within the layer.
        part: Part,
    },
}

/// A weight within a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Norm before attention.
    AttentionNorm,
    /// Query projection.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Fused query, key and value projection, in this order.
    QueryKeyValue,
    /// Norm of the queries.
    QueryNorm,
    /// Norm of the keys.
    KeyNorm,
    /// Attention output projection.
    AttentionOutput,
    /// Norm after attention, before the residual addition.
    AttentionOutputNorm,
    /// Norm before the MLP.
    MlpNorm,
    /// Gate projection of the MLP.
    Gate,
    /// Up projection of the MLP.
    Up,
    /// Fused gate and up projection, in this order.
    GateUp,
    /// Down projection of the MLP.
    Down,
    /// Expert router.
    Router,
    /// Gate projections of all experts, stacked.
    GateExperts,
    /// Up projections of all experts, stacked.
    UpExperts,
    /// Down projections of all experts, stacked.
    DownExperts,
    /// Norm after the MLP, before the residual addition.
    MlpOutputNorm,
    /// Norm after attention and its residual addition (post-LN).
    AttentionResidualNorm,
    /// Norm after the MLP and its residual addition (post-LN).
    MlpResidualNorm,
}

/// Row order of the query and key projections within a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryRows {
    /// The order that the family's GGUF converter writes.
    OfFamily,
    /// NeoX order: element i rotates with element i + rotary_dim / 2.
    Halves,
}

/// Naming scheme and storage conventions of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Dialect {
    /// Prefix of all names but the output projection's.
    body: &'static str,
    head: &'static str,
    names: &'static Names,
}

/// Tensor names of a format, without `.weight` and `.bias`, and its storage conventions.
#[derive(Debug, PartialEq)]
pub(super) struct Names {
    token_embedding: &'static str,
    output_norm: &'static str,
    /// Prefix of the layer number.
    layers: &'static str,
    parts: [(Part, &'static str); 21],
    encoder: EncoderNames,
    rotary_rows: RotaryRows,
    /// Offset added to the weights of all norms.
    norm_offset: f32,
}

/// Names of the roles that only encoders have. Those of the classification head have no prefix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EncoderNames {
    position_embedding: &'static str,
    token_types: &'static str,
    embedding_norm: &'static str,
    class_dense: &'static str,
    class_norm: &'static str,
    class_output: &'static str,
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
        // If fused, `ffn_up` has twice the rows and there is no `ffn_gate`.
        (Part::GateUp, "ffn_up"),
        (Part::Down, "ffn_down"),
        (Part::MlpOutputNorm, "post_ffw_norm"),
        (Part::Router, "ffn_gate_inp"),
        (Part::GateExperts, "ffn_gate_exps"),
        (Part::UpExperts, "ffn_up_exps"),
        (Part::DownExperts, "ffn_down_exps"),
        (Part::AttentionResidualNorm, "attn_output_norm"),
        (Part::MlpResidualNorm, "layer_output_norm"),
    ],
    encoder: EncoderNames {
        position_embedding: "position_embd",
        token_types: "token_types",
        embedding_norm: "token_embd_norm",
        class_dense: "cls",
        class_norm: "cls.norm",
        class_output: "cls.output",
    },
    rotary_rows: RotaryRows::OfFamily,
    norm_offset: 0.0,
};

/// Tensor names of the decoders in transformers.
#[cfg(feature = "safetensors")]
impl Names {
    /// Pre-norm families: norms before attention and before the MLP.
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
            // Each expert has its number before the last component; `stack` removes it.
            (Part::GateExperts, "mlp.experts.gate_proj"),
            (Part::UpExperts, "mlp.experts.up_proj"),
            (Part::DownExperts, "mlp.experts.down_proj"),
            (Part::AttentionResidualNorm, ""),
            (Part::MlpResidualNorm, ""),
        ],
        encoder: EncoderNames {
            position_embedding: "",
            token_types: "",
            embedding_norm: "",
            class_dense: "",
            class_norm: "",
            class_output: "",
        },
        rotary_rows: RotaryRows::Halves,
        norm_offset: 0.0,
    };
    /// Post-norm only: norms after attention and after the MLP.
    pub const OLMO2: Names =
        Names::LLAMA.with(Part::MlpNorm, "").with(Part::AttentionOutputNorm, "post_attention_layernorm");
    /// Norms multiply by 1 + weight.
    pub const GEMMA: Names = Names { norm_offset: 1.0, ..Names::LLAMA };
    /// Sandwich norms. `post_attention_layernorm` is the norm *after* attention here; in Llama that name is
    /// the norm before the MLP.
    pub const GEMMA2: Names = Names::GEMMA
        .with(Part::MlpNorm, "pre_feedforward_layernorm")
        .with(Part::AttentionOutputNorm, "post_attention_layernorm");
    /// Interleaved rotary pairs (neighbours rotate together), as in GGUF.
    pub const COHERE: Names = Names { rotary_rows: RotaryRows::OfFamily, ..Names::LLAMA };
    /// Sandwich norms under GLM's own names.
    pub const GLM4: Names = Names::COHERE
        .with(Part::AttentionOutputNorm, "post_self_attn_layernorm")
        .with(Part::MlpOutputNorm, "post_mlp_layernorm");
    /// BERT: norms after the residual additions.
    pub const BERT: Names = Names {
        token_embedding: "embeddings.word_embeddings",
        layers: "encoder.layer.",
        encoder: EncoderNames {
            position_embedding: "embeddings.position_embeddings",
            token_types: "embeddings.token_type_embeddings",
            embedding_norm: "embeddings.LayerNorm",
            class_dense: "bert.pooler.dense",
            class_norm: "",
            class_output: "classifier",
        },
        ..Names::LLAMA
            .with(Part::AttentionNorm, "")
            .with(Part::Query, "attention.self.query")
            .with(Part::Key, "attention.self.key")
            .with(Part::Value, "attention.self.value")
            .with(Part::AttentionOutput, "attention.output.dense")
            .with(Part::AttentionResidualNorm, "attention.output.LayerNorm")
            .with(Part::MlpNorm, "")
            .with(Part::Up, "intermediate.dense")
            .with(Part::Down, "output.dense")
            .with(Part::MlpResidualNorm, "output.LayerNorm")
    };
    /// RoBERTa: BERT with another classification head.
    pub const ROBERTA: Names = Names {
        encoder: EncoderNames {
            class_dense: "classifier.dense",
            class_output: "classifier.out_proj",
            ..Names::BERT.encoder
        },
        ..Names::BERT
    };
    /// ModernBERT: fused projections.
    pub const MODERN_BERT: Names = Names {
        token_embedding: "embeddings.tok_embeddings",
        output_norm: "final_norm",
        encoder: EncoderNames {
            embedding_norm: "embeddings.norm",
            class_dense: "head.dense",
            class_norm: "head.norm",
            class_output: "classifier",
            ..Names::LLAMA.encoder
        },
        ..Names::LLAMA
            .with(Part::AttentionNorm, "attn_norm")
            .with(Part::QueryKeyValue, "attn.Wqkv")
            .with(Part::AttentionOutput, "attn.Wo")
            .with(Part::MlpNorm, "mlp_norm")
            .with(Part::GateUp, "mlp.Wi")
            .with(Part::Down, "mlp.Wo")
    };
    /// MLP without a gate.
    pub const STARCODER2: Names = Names::LLAMA.with(Part::Up, "mlp.c_fc").with(Part::Down, "mlp.c_proj");

    /// A copy of the names with one part renamed.
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
    /// The naming scheme of GGUF.
    pub fn gguf() -> Dialect {
        Dialect { body: "", head: "output", names: &GGUF }
    }

    /// A Hugging Face naming scheme with the prefix `body`.
    #[cfg(feature = "safetensors")]
    pub(super) fn hugging_face(body: &'static str, head: &'static str, names: &'static Names) -> Dialect {
        Dialect { body, head, names }
    }

    /// Name of a weight tensor.
    pub fn weight(&self, role: Role) -> String {
        format!("{}.weight", self.stem(role))
    }

    /// Name of a bias tensor.
    pub fn bias(&self, role: Role) -> String {
        format!("{}.bias", self.stem(role))
    }

    fn stem(&self, role: Role) -> String {
        let Names { token_embedding, output_norm, layers, parts, encoder, .. } = self.names;
        let body = self.body;
        match role {
            Role::TokenEmbedding => format!("{body}{token_embedding}"),
            Role::OutputNorm => format!("{body}{output_norm}"),
            Role::Head => self.head.to_owned(),
            Role::PositionEmbedding => format!("{body}{}", encoder.position_embedding),
            Role::TokenTypes => format!("{body}{}", encoder.token_types),
            Role::EmbeddingNorm => format!("{body}{}", encoder.embedding_norm),
            Role::ClassDense => encoder.class_dense.to_owned(),
            Role::ClassNorm => encoder.class_norm.to_owned(),
            Role::ClassOutput => encoder.class_output.to_owned(),
            Role::Projection(number) => format!("dense_{number}"),
            Role::Layer { index, part } => {
                let name = parts.iter().find(|&&(other, _)| other == part).map_or("", |&(_, name)| name);
                format!("{body}{layers}{index}.{name}")
            }
        }
    }

    /// The layer index in a tensor name, and the rest of the name.
    pub fn layer_of<'n>(&self, name: &'n str) -> Option<(usize, &'n str)> {
        let rest = name.strip_prefix(self.body)?.strip_prefix(self.names.layers)?;
        let (index, part) = rest.split_once('.')?;
        Some((index.parse().ok()?, part))
    }

    /// Whether `name` is the weight of `part` in some layer.
    pub fn is_part(&self, name: &str, part: Part) -> bool {
        self.layer_of(name).is_some_and(|(index, _)| name == self.weight(Role::Layer { index, part }))
    }

    /// Prefix of all names but those of output projection and classification head.
    #[cfg(feature = "safetensors")]
    pub(super) fn body(&self) -> &'static str {
        self.body
    }

    /// Row order of the query and key projections.
    pub fn rotary_rows(&self) -> RotaryRows {
        self.names.rotary_rows
    }

    /// Offset to add to the vector `name` before use. Gemma's norms multiply by 1 + weight: Hugging Face
    /// folders store the weight, GGUF the sum.
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
