//! Tiny models with random weights, of every family: files for tests that need no download. The
//! tokenizers that a file may carry are in `vocabulary`, logits of an independent implementation in
//! `recorded`;
//! `edit` changes a file.

#![allow(dead_code, reason = "not every test that includes this module makes all of it")]

pub mod edit;
pub mod recorded;
pub mod vocabulary;

use ottava::checkpoint::{GgufWriter, TensorType, Value};

/// Of a test that passes its errors on.
pub type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Elements of the residual stream.
pub const EMBEDDING: usize = 32;
const FEED_FORWARD: usize = 48;
/// Of a mixture: experts of a layer, those that a row goes to, and elements between the matrices of each.
pub const EXPERTS: usize = 6;
pub const EXPERTS_USED: usize = 2;
pub const EXPERT_FEED_FORWARD: usize = 16;
const CONTEXT: usize = 256;

/// What a tiny model has.
#[derive(Clone, Copy)]
pub struct Tiny {
    pub vocab: usize,
    pub family: &'static str,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rope_dims: usize,
    pub tied: bool,
    pub window: u32,
    pub dtype: TensorType,
}

impl Tiny {
    /// A llama of one narrow layer: as large as its vocabulary.
    pub const fn narrow(vocab: usize) -> Tiny {
        Tiny {
            vocab,
            family: "llama",
            layers: 1,
            heads: 2,
            kv_heads: 1,
            head_dim: 16,
            rope_dims: 16,
            tied: true,
            window: 0,
            dtype: TensorType::F16,
        }
    }
}

/// SplitMix64 (Steele et al. 2014): the same weights on every machine.
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z >> 40) as f32 / (1 << 24) as f32 - 0.5
    }
}

/// Writes a file, a tensor at a time.
pub struct Maker {
    pub writer: GgufWriter,
    random: Random,
    dtype: TensorType,
}

impl Maker {
    /// An empty file whose matrices will be of `dtype`, F32 or F16.
    pub fn new(dtype: TensorType) -> Maker {
        Maker { writer: GgufWriter::new(), random: Random(42), dtype }
    }

    /// Random values around 0, as large as keeps a product's variance near that of its source.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Outcome {
        self.tensor(name, &[cols, rows])
    }

    /// The same for matrices of one shape, `[rows, cols]`, in one tensor.
    fn stack(&mut self, name: &str, count: usize, [rows, cols]: [usize; 2]) -> Outcome {
        self.tensor(name, &[cols, rows, count])
    }

    fn tensor(&mut self, name: &str, dims: &[usize]) -> Outcome {
        let (cols, elements) = (dims[0], dims.iter().product::<usize>());
        let scale = 3.0 / (cols as f32).sqrt();
        let values = (0..elements).map(|_| half::f16::from_f32(scale * self.random.unit()));
        let bytes: Vec<u8> = match self.dtype {
            TensorType::F16 => values.flat_map(|value| value.to_le_bytes()).collect(),
            _ => values.flat_map(|value| value.to_f32().to_le_bytes()).collect(),
        };
        let dims: Vec<u64> = dims.iter().map(|&dim| dim as u64).collect();
        self.writer.tensor(name, self.dtype, &dims, bytes)?;
        Ok(())
    }

    /// Random values around `around`.
    pub fn vector(&mut self, name: &str, len: usize, around: f32) -> Outcome {
        let values: Vec<f32> = (0..len).map(|_| around + self.random.unit()).collect();
        self.writer.vector(name, &values)?;
        Ok(())
    }

    /// The tensors of a layer.
    pub fn layer(&mut self, tiny: &Tiny, layer: usize) -> Outcome {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (query, kv) = (tiny.heads * tiny.head_dim, tiny.kv_heads * tiny.head_dim);
        let norms_before = !matches!(tiny.family, "olmo2" | "exaone4");
        if norms_before {
            self.norm(tiny, &name("attn_norm"))?;
        }
        let separate = [("attn_q", query), ("attn_k", kv), ("attn_v", kv)];
        let fused = [("attn_qkv", query + 2 * kv)];
        for &(part, rows) in if tiny.family == "phi3" { &fused[..] } else { &separate } {
            self.matrix(&name(&format!("{part}.weight")), rows, EMBEDDING)?;
            if matches!(tiny.family, "qwen2" | "glm4" | "starcoder2") {
                self.vector(&name(&format!("{part}.bias")), rows, 0.0)?;
            }
        }
        let normed = match tiny.family {
            "qwen3" | "qwen3vl" | "qwen3moe" | "qwen3vlmoe" | "gemma3" | "exaone4" => [tiny.head_dim; 2],
            "olmo2" | "olmoe" => [query, kv],
            _ => [0; 2],
        };
        for (part, len) in ["attn_q_norm.weight", "attn_k_norm.weight"].into_iter().zip(normed) {
            if len > 0 {
                self.vector(&name(part), len, 1.0)?;
            }
        }
        self.matrix(&name("attn_output.weight"), EMBEDDING, query)?;
        if tiny.family == "starcoder2" {
            self.vector(&name("attn_output.bias"), EMBEDDING, 0.0)?;
        }
        if matches!(tiny.family, "gemma2" | "gemma3" | "glm4" | "olmo2" | "exaone4") {
            self.vector(&name("post_attention_norm.weight"), EMBEDDING, 1.0)?;
            self.vector(&name("post_ffw_norm.weight"), EMBEDDING, 1.0)?;
        }
        if norms_before && !matches!(tiny.family, "cohere2" | "command-r") {
            self.norm(tiny, &name("ffn_norm"))?;
        }
        match tiny.family {
            "qwen3moe" | "qwen3vlmoe" | "olmoe" | "granitemoe" => return self.experts(layer),
            "starcoder2" => return self.plain(layer),
            _ => {}
        }
        let gate_up = [("ffn_gate.weight", FEED_FORWARD), ("ffn_up.weight", FEED_FORWARD)];
        let fused = [("ffn_up.weight", 2 * FEED_FORWARD)];
        let fuses = matches!(tiny.family, "phi3" | "glm4");
        for &(part, rows) in if fuses { &fused[..] } else { &gate_up } {
            self.matrix(&name(part), rows, EMBEDDING)?;
        }
        self.matrix(&name("ffn_down.weight"), EMBEDDING, FEED_FORWARD)
    }

    /// A norm, with a bias where the family has one.
    pub fn norm(&mut self, tiny: &Tiny, name: &str) -> Outcome {
        self.vector(&format!("{name}.weight"), EMBEDDING, 1.0)?;
        match tiny.family {
            "starcoder2" => self.vector(&format!("{name}.bias"), EMBEDDING, 0.0),
            _ => Ok(()),
        }
    }

    /// An MLP without a gate.
    fn plain(&mut self, layer: usize) -> Outcome {
        for (part, rows, cols) in [("up", FEED_FORWARD, EMBEDDING), ("down", EMBEDDING, FEED_FORWARD)] {
            self.matrix(&format!("blk.{layer}.ffn_{part}.weight"), rows, cols)?;
            self.vector(&format!("blk.{layer}.ffn_{part}.bias"), rows, 0.0)?;
        }
        Ok(())
    }

    /// A router, and the experts of a layer.
    fn experts(&mut self, layer: usize) -> Outcome {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        self.matrix(&name("ffn_gate_inp"), EXPERTS, EMBEDDING)?;
        for (part, rows, cols) in [
            ("ffn_gate_exps", EXPERT_FEED_FORWARD, EMBEDDING),
            ("ffn_up_exps", EXPERT_FEED_FORWARD, EMBEDDING),
            ("ffn_down_exps", EMBEDDING, EXPERT_FEED_FORWARD),
        ] {
            self.stack(&name(part), EXPERTS, [rows, cols])?;
        }
        Ok(())
    }

    /// Tensors of no layer that a family has.
    pub fn around(&mut self, tiny: &Tiny) -> Outcome {
        if tiny.family == "phi3" {
            self.vector("rope_factors_long.weight", tiny.rope_dims / 2, 4.0)?;
            self.vector("rope_factors_short.weight", tiny.rope_dims / 2, 1.5)?;
        }
        Ok(())
    }

    /// The hyperparameters; `change` may replace entries.
    pub fn metadata(&mut self, tiny: &Tiny, change: &[(&str, u32)]) {
        self.writer.metadata("general.architecture", tiny.family);
        let counts = [
            ("block_count", tiny.layers),
            ("context_length", CONTEXT),
            ("embedding_length", EMBEDDING),
            ("feed_forward_length", FEED_FORWARD),
            ("attention.head_count", tiny.heads),
            ("attention.head_count_kv", tiny.kv_heads),
            ("attention.key_length", tiny.head_dim),
            ("attention.value_length", tiny.head_dim),
            ("attention.sliding_window", tiny.window as usize),
            ("rope.dimension_count", tiny.rope_dims),
        ];
        for (key, value) in counts {
            let changed = change.iter().find(|(other, _)| *other == key).map(|&(_, value)| value);
            self.writer.metadata(&format!("{}.{key}", tiny.family), changed.unwrap_or(value as u32));
        }
        let has_mean = matches!(tiny.family, "cohere2" | "command-r" | "starcoder2");
        let norm = if has_mean { "layer_norm" } else { "layer_norm_rms" };
        self.writer.metadata(&format!("{}.attention.{norm}_epsilon", tiny.family), 1e-5_f32);
        self.writer.metadata(&format!("{}.rope.freq_base", tiny.family), 5000.0_f32);
        for (key, value) in own_settings(tiny.family) {
            self.writer.metadata(&format!("{}.{key}", tiny.family), value);
        }
    }
}

/// What the files of a family say beside the numbers that all have.
pub fn own_settings(family: &str) -> Vec<(&'static str, Value)> {
    let soft_caps = vec![("attn_logit_softcapping", 2_f32.into()), ("final_logit_softcapping", 4_f32.into())];
    let scales = vec![
        ("attention.scale", 0.2_f32.into()),
        ("embedding_scale", 3_f32.into()),
        ("residual_scale", 0.4_f32.into()),
        ("logit_scale", 1.5_f32.into()),
    ];
    let experts = vec![
        ("expert_count", (EXPERTS as u32).into()),
        ("expert_used_count", (EXPERTS_USED as u32).into()),
        ("expert_feed_forward_length", (EXPERT_FEED_FORWARD as u32).into()),
    ];
    let original_context = |tokens: u32| ("rope.scaling.original_context_length", tokens.into());
    let yarn = vec![
        ("rope.scaling.type", "yarn".into()),
        ("rope.scaling.factor", 8_f32.into()),
        original_context(32),
    ];
    let temperature = vec![
        ("rope.scaling.yarn_log_multiplier", 0.5_f32.into()),
        ("attention.temperature_scale", 0.1_f32.into()),
    ];
    match family {
        "gemma2" => soft_caps,
        "command-r" | "cohere2" => vec![("logit_scale", 0.25_f32.into())],
        "granite" => scales,
        "granitemoe" => [scales, experts].concat(),
        "qwen3moe" | "qwen3vlmoe" | "olmoe" => experts,
        "olmo2" => yarn,
        "mistral3" => [yarn, temperature].concat(),
        "phi3" => vec![("rope.scaling.attn_factor", 1.25_f32.into()), original_context(16)],
        _ => Vec::new(),
    }
}

/// The file of a tiny model.
pub fn file(tiny: &Tiny, change: &[(&str, u32)]) -> Outcome<Vec<u8>> {
    file_with(tiny, change, |_| Ok(()))
}

/// The file of a tiny model with what `add` adds.
pub fn file_with(
    tiny: &Tiny,
    change: &[(&str, u32)],
    add: impl Fn(&mut GgufWriter) -> Outcome,
) -> Outcome<Vec<u8>> {
    let mut maker = Maker::new(tiny.dtype);
    maker.metadata(tiny, change);
    maker.matrix("token_embd.weight", tiny.vocab, EMBEDDING)?;
    (0..tiny.layers).try_for_each(|layer| maker.layer(tiny, layer))?;
    maker.norm(tiny, "output_norm")?;
    if !tiny.tied {
        maker.matrix("output.weight", tiny.vocab, EMBEDDING)?;
    }
    maker.around(tiny)?;
    add(&mut maker.writer)?;
    Ok(maker.writer.to_bytes())
}

/// A model of the llama family with a byte-level tokenizer and a chat template.
pub fn llama() -> Outcome<Vec<u8>> {
    llama_of(CONTEXT)
}

/// The same for sequences of so many tokens.
pub fn llama_of(context: usize) -> Outcome<Vec<u8>> {
    llama_with(context, |_| ())
}

/// The same with another vocabulary.
pub fn llama_with(context: usize, change: impl Fn(&mut vocabulary::Vocabulary)) -> Outcome<Vec<u8>> {
    let mut vocabulary = vocabulary::byte_level();
    change(&mut vocabulary);
    let tiny = Tiny {
        vocab: vocabulary.tokens.len(),
        family: "llama",
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        rope_dims: 8,
        tied: false,
        window: 0,
        dtype: TensorType::F16,
    };
    file_with(&tiny, &[("context_length", context as u32)], |writer| {
        writer.metadata("general.name", "tiny llama");
        vocabulary.describe(writer);
        Ok(())
    })
}

/// A model of the gemma3 family, local and global layers, with a SentencePiece tokenizer.
pub fn gemma3() -> Outcome<Vec<u8>> {
    let vocabulary = vocabulary::sentence_piece();
    let tiny = Tiny {
        vocab: vocabulary.tokens.len(),
        family: "gemma3",
        layers: 7,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        rope_dims: 16,
        tied: true,
        window: 24,
        dtype: TensorType::F32,
    };
    file_with(&tiny, &[], |writer| {
        writer.metadata("general.name", "tiny gemma");
        vocabulary.describe(writer);
        Ok(())
    })
}

/// A mixture of experts of the qwen3moe family with a byte-level tokenizer.
pub fn mixture() -> Outcome<Vec<u8>> {
    let vocabulary = vocabulary::byte_level();
    let tiny = Tiny {
        family: "qwen3moe",
        layers: 2,
        head_dim: 16,
        rope_dims: 16,
        tied: false,
        ..Tiny::narrow(vocabulary.tokens.len())
    };
    file_with(&tiny, &[], |writer| {
        writer.metadata("general.name", "tiny mixture");
        vocabulary.describe(writer);
        Ok(())
    })
}
