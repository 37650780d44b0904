//! Writes a model with random weights and a tokenizer of bytes, for speed where no real one can be had:
//! `cargo run --release --example random_model -- FILE [1b|1.5b|8b|tiny [q8_0|q4_0|f16]]`, then
//! `ottava bench --model FILE`; what GGUF has no format for is quantised at load from f16
//! (`--weights w8g128`). What it says is noise; what it costs is what a real one of that shape costs.

#[path = "../tests/tiny/vocabulary.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod vocabulary;

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write as _};

use ottava::checkpoint::{GgufWriter, TensorType};

/// What decides a model's cost. Heads are of 64 elements, or what `width` leaves.
#[derive(Clone, Copy)]
struct Shape {
    family: &'static str,
    layers: usize,
    width: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    vocab: usize,
}

const LLAMA_1B: Shape =
    Shape { family: "llama", layers: 16, width: 2048, hidden: 8192, heads: 32, kv_heads: 8, vocab: 128_256 };

/// Llama-3.2-1B, Qwen2.5-1.5B, Llama-3.1-8B, and one that an emulated card runs in seconds.
const SHAPES: [(&str, Shape); 4] = [
    ("1b", LLAMA_1B),
    (
        "1.5b",
        Shape {
            family: "qwen2",
            layers: 28,
            width: 1536,
            hidden: 8960,
            heads: 12,
            kv_heads: 2,
            vocab: 151_936,
        },
    ),
    ("8b", Shape { layers: 32, width: 4096, hidden: 14_336, ..LLAMA_1B }),
    ("tiny", Shape { layers: 2, width: 64, hidden: 192, heads: 4, kv_heads: 2, vocab: 320, ..LLAMA_1B }),
];
/// The formats that weights are written in.
const FORMATS: [(&str, TensorType); 3] =
    [("q8_0", TensorType::Q8_0), ("q4_0", TensorType::Q4_0), ("f16", TensorType::F16)];
/// Elements of a Q8_0 or Q4_0 block, which has an f16 scale before its codes.
const BLOCK: usize = 32;

/// SplitMix64 (Steele et al. 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Blocks of [rows, cols], about as large as keeps a product's variance near that of its source: random
/// codes have a root mean square of 74 with 8 bits, of 4.6 with 4.
fn blocks(random: &mut Random, format: TensorType, rows: usize, cols: usize) -> Vec<u8> {
    let size = 1.0 / (cols as f32).sqrt();
    let (spread, codes) = match format {
        TensorType::F16 => return halves(random, size, rows * cols),
        TensorType::Q4_0 => (4.6, BLOCK / 2),
        _ => (74.0, BLOCK),
    };
    let scale = half::f16::from_f32(size / spread).to_le_bytes();
    let mut bytes = Vec::with_capacity(rows * cols / BLOCK * (codes + 2));
    for _ in 0..rows * cols / BLOCK {
        bytes.extend_from_slice(&scale);
        (0..codes / 8).for_each(|_| bytes.extend_from_slice(&random.next().to_le_bytes()));
    }
    bytes
}

/// f16 values with the exponent of `size` and random signs and mantissas: no NaN, and all about as large.
fn halves(random: &mut Random, size: f32, count: usize) -> Vec<u8> {
    let exponent = u64::from(half::f16::from_f32(size).to_bits() & 0x7c00) * 0x0001_0001_0001_0001;
    let mut bytes = Vec::with_capacity(2 * count + 8);
    while bytes.len() < 2 * count {
        let four = (random.next() & 0x83ff_83ff_83ff_83ff) | exponent;
        bytes.extend_from_slice(&four.to_le_bytes());
    }
    bytes.truncate(2 * count);
    bytes
}

fn model(shape: Shape, format: TensorType) -> Result<GgufWriter, Box<dyn Error>> {
    let Shape { family, layers, width, hidden, heads, kv_heads, vocab } = shape;
    let (mut writer, mut random) = (GgufWriter::new(), Random(1));
    let head_dim = width / heads;
    writer.metadata("general.architecture", family);
    let counts = [
        ("block_count", layers),
        ("context_length", 16_384),
        ("embedding_length", width),
        ("feed_forward_length", hidden),
        ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads),
        ("rope.dimension_count", head_dim),
    ];
    for (key, value) in counts {
        writer.metadata(&format!("{family}.{key}"), value as u32);
    }
    writer.metadata(&format!("{family}.attention.layer_norm_rms_epsilon"), 1e-5_f32);
    writer.metadata(&format!("{family}.rope.freq_base"), 500_000.0_f32);
    let mut vocabulary = vocabulary::byte_level();
    vocabulary.pad(vocab);
    vocabulary.describe(&mut writer);

    let mut matrix = |writer: &mut GgufWriter, name: &str, rows: usize, cols: usize| {
        let data = blocks(&mut random, format, rows, cols);
        writer.tensor(name, format, &[cols as u64, rows as u64], data).map(drop)
    };
    matrix(&mut writer, "token_embd.weight", vocab, width)?;
    for layer in 0..layers {
        let matrices = [
            ("attn_q", width, width),
            ("attn_k", kv_heads * head_dim, width),
            ("attn_v", kv_heads * head_dim, width),
            ("attn_output", width, width),
            ("ffn_gate", hidden, width),
            ("ffn_up", hidden, width),
            ("ffn_down", width, hidden),
        ];
        for (part, rows, cols) in matrices {
            matrix(&mut writer, &format!("blk.{layer}.{part}.weight"), rows, cols)?;
        }
        if family == "qwen2" {
            for (part, rows) in [("q", width), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)] {
                writer.vector(&format!("blk.{layer}.attn_{part}.bias"), &vec![0.1; rows])?;
            }
        }
        for part in ["attn_norm", "ffn_norm"] {
            writer.vector(&format!("blk.{layer}.{part}.weight"), &vec![1.0; width])?;
        }
    }
    writer.vector("output_norm.weight", &vec![1.0; width])?;
    Ok(writer)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, name, format) = match arguments.as_slice() {
        [path] => (path, "1b", "q8_0"),
        [path, name] => (path, name.as_str(), "q8_0"),
        [path, name, format] => (path, name.as_str(), format.as_str()),
        _ => return Err("expected FILE [1b|1.5b|8b|tiny [q8_0|q4_0|f16]]".into()),
    };
    let shape = SHAPES.iter().find(|(known, _)| *known == name);
    let (_, shape) = shape.ok_or_else(|| format!("expected 1b, 1.5b, 8b or tiny, found {name}"))?;
    let format = FORMATS.iter().find_map(|(known, of)| (*known == format).then_some(*of));
    let format = format.ok_or("expected a format of q8_0, q4_0 or f16")?;
    let mut out = BufWriter::new(File::create(path)?);
    model(*shape, format)?.write(&mut out)?;
    out.flush()?;
    Ok(())
}
