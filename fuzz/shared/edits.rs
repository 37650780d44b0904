//! Files of tiny models with random changes: what the fuzzer mutates is the list of changes, so that
//! nearly every input is a sound file that says something else about its model.

use std::collections::BTreeMap;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use ottava::checkpoint::{Array, GgufWriter, TensorType, Value};
use ottava::model::FAMILIES;

use crate::tiny::{EMBEDDING, Maker, Tiny, own_settings};

/// Of the layers that `Maker` makes.
const FEED_FORWARD: usize = 48;

/// Keys behind the family's name that change what is computed.
const KEYS: [&str; 32] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.scale",
    "attention.causal",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "expert_count",
    "expert_used_count",
    "rope.dimension_count",
    "rope.dimension_sections",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.finetuned",
    "rope.scale_linear",
];
/// Keys as they are.
const GENERAL: [&str; 5] =
    ["general.architecture", "general.name", "general.file_type", "split.count", "quantize.version"];
const TEXTS: [&str; 10] =
    ["", "llama", "qwen2", "qwen3", "gemma3", "linear", "yarn", "none", "longrope", "\u{1b}[31m\n"];

/// Counts at which something may change.
const KNOWN: [u32; 8] = [0, 2, 64, 1 << 16, 1 << 20, 1 << 24, 1 << 31, u32::MAX];
/// Keys that must have one value.
const HEAD_SIZES: [&str; 3] = ["attention.key_length", "attention.value_length", "rope.dimension_count"];

/// A value of an entry.
#[derive(Arbitrary, Debug)]
pub enum Change {
    /// As families write counts.
    Small(u8),
    /// One of a few, so that keys which must agree do.
    Known(u8),
    Unsigned(u32),
    Signed(i32),
    Float(f32),
    Wide(u64),
    Double(f64),
    Flag(bool),
    Text(u8),
    Unsigneds(Vec<u32>),
    Floats(Vec<f32>),
    Flags(Vec<bool>),
}

impl Change {
    fn value(&self) -> Value {
        match self {
            Change::Small(value) => u32::from(*value).into(),
            Change::Known(at) => KNOWN[usize::from(*at) % KNOWN.len()].into(),
            Change::Unsigned(value) => (*value).into(),
            Change::Signed(value) => Value::I32(*value),
            Change::Float(value) => (*value).into(),
            Change::Wide(value) => Value::U64(*value),
            Change::Double(value) => Value::F64(*value),
            Change::Flag(value) => (*value).into(),
            Change::Text(at) => TEXTS[usize::from(*at) % TEXTS.len()].into(),
            Change::Unsigneds(values) => Value::Array(Array::U32(values.clone())),
            Change::Floats(values) => Value::Array(Array::F32(values.clone())),
            Change::Flags(values) => Value::Array(Array::Bool(values.clone())),
        }
    }
}

/// A tensor beside those of the model, or in the place of one.
#[derive(Arbitrary, Debug)]
pub struct Extra {
    name: u8,
    layer: u8,
    dtype: u8,
    rows: u8,
    blocks: u8,
    fill: u8,
}

const NAMES: [&str; 12] = [
    "rope_freqs.weight",
    "output.weight",
    "output_norm.bias",
    "output.bias",
    "blk.{}.attn_q.bias",
    "blk.{}.attn_q_norm.weight",
    "blk.{}.attn_sinks.weight",
    "blk.{}.ffn_gate_exps.weight",
    "blk.{}.ffn_gate_inp.weight",
    "blk.{}.post_attention_norm.weight",
    "blk.{}.attn_qkv.weight",
    "blk.{}.attn_rot_embd",
];

/// A tiny model and what is different about its file.
#[derive(Arbitrary, Debug)]
pub struct Edits {
    family: u8,
    layers: u8,
    heads: u8,
    kv_heads: u8,
    head_dim: u8,
    tied: bool,
    half: bool,
    changes: Vec<(u8, Change)>,
    /// Another size of heads than the tensors have.
    head_size: Option<Change>,
    extras: Vec<Extra>,
    /// Bytes of the finished file that are another, as place and value.
    bytes: Vec<(u16, u8)>,
}

impl Edits {
    fn tiny(&self) -> Tiny {
        let heads = usize::from(self.heads % 4) + 1;
        Tiny {
            vocab: 16,
            family: FAMILIES[usize::from(self.family) % FAMILIES.len()].name,
            layers: usize::from(self.layers % 3) + 1,
            heads,
            kv_heads: usize::from(self.kv_heads) % heads + 1,
            head_dim: 2 * (usize::from(self.head_dim % 8) + 1),
            rope_dims: 2 * (usize::from(self.head_dim % 8) + 1),
            tied: self.tied,
            window: 4,
            dtype: if self.half { TensorType::F16 } else { TensorType::F32 },
        }
    }

    /// What the file says beside its tensors: the model's own entries, and the changes in their place.
    fn entries(&self, tiny: &Tiny) -> BTreeMap<String, Value> {
        let counts = [
            ("block_count", tiny.layers),
            ("context_length", 256),
            ("embedding_length", EMBEDDING),
            ("feed_forward_length", FEED_FORWARD),
            ("attention.head_count", tiny.heads),
            ("attention.head_count_kv", tiny.kv_heads),
            ("attention.key_length", tiny.head_dim),
            ("attention.value_length", tiny.head_dim),
            ("attention.sliding_window", tiny.window as usize),
            ("rope.dimension_count", tiny.rope_dims),
        ];
        let own = |key: &str| format!("{}.{key}", tiny.family);
        let mut entries: BTreeMap<String, Value> =
            counts.into_iter().map(|(key, value)| (own(key), Value::U32(value as u32))).collect();
        entries.insert("general.architecture".into(), tiny.family.into());
        entries.insert(own("attention.layer_norm_rms_epsilon"), 1e-5_f32.into());
        entries.insert(own("rope.freq_base"), 5000.0_f32.into());
        for (key, value) in own_settings(tiny.family) {
            entries.insert(own(key), value);
        }
        for (key, change) in self.changes.iter().take(16) {
            let at = usize::from(*key) % (KEYS.len() + GENERAL.len());
            let key = KEYS.get(at).map_or_else(|| GENERAL[at - KEYS.len()].into(), |key| own(key));
            entries.insert(key, change.value());
        }
        for (key, size) in
            HEAD_SIZES.iter().flat_map(|key| self.head_size.iter().map(move |size| (key, size)))
        {
            entries.insert(own(key), size.value());
        }
        entries
    }

    fn add_extras(&self, writer: &mut GgufWriter) {
        for extra in self.extras.iter().take(4) {
            let types: Vec<TensorType> = TensorType::all().collect();
            let dtype = types[usize::from(extra.dtype) % types.len()];
            let (rows, blocks) = (usize::from(extra.rows % 65), usize::from(extra.blocks % 5));
            let cols = blocks * dtype.block_len().max(EMBEDDING / 4);
            let bytes = rows * cols / dtype.block_len() * dtype.block_bytes();
            let name = NAMES[usize::from(extra.name) % NAMES.len()];
            let name = name.replace("{}", &(extra.layer % 4).to_string());
            // What the writer refuses is not in the file.
            let _ = writer.tensor(&name, dtype, &[cols as u64, rows as u64], vec![extra.fill; bytes]);
        }
    }

    /// The file.
    pub fn file(&self) -> Option<Vec<u8>> {
        let tiny = self.tiny();
        let mut maker = Maker::new(tiny.dtype);
        for (key, value) in self.entries(&tiny) {
            maker.writer.metadata(&key, value);
        }
        maker.matrix("token_embd.weight", tiny.vocab, EMBEDDING).ok()?;
        (0..tiny.layers).try_for_each(|layer| maker.layer(&tiny, layer)).ok()?;
        maker.norm(&tiny, "output_norm").ok()?;
        if !tiny.tied {
            maker.matrix("output.weight", tiny.vocab, EMBEDDING).ok()?;
        }
        maker.around(&tiny).ok()?;
        self.add_extras(&mut maker.writer);
        let mut file = maker.writer.to_bytes();
        for &(place, value) in self.bytes.iter().take(8) {
            let place = usize::from(place) % file.len();
            file[place] = value;
        }
        Some(file)
    }
}
