//! Writes a model of the llama family with random weights in Q8_0 and a tokenizer of bytes, for speed
//! where no real one can be had: `cargo run --release --example random_model -- FILE [1b|8b|tiny]`,
//! then `ottava bench --model FILE`. What it says is noise; what it costs is what a real one of that
//! shape costs.

#[path = "../tests/tiny/vocabulary.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod vocabulary;

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write as _};

use ottava::weights::{GgufWriter, TensorType};

/// What decides a model's cost. Heads are of 64 elements, or what `width` leaves.
#[derive(Clone, Copy)]
struct Shape {
    layers: usize,
    width: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    vocab: usize,
}

/// Llama-3.2-1B, Llama-3.1-8B, and one that an emulated card runs in seconds.
const SHAPES: [(&str, Shape); 3] = [
    ("1b", Shape { layers: 16, width: 2048, hidden: 8192, heads: 32, kv_heads: 8, vocab: 128_256 }),
    ("8b", Shape { layers: 32, width: 4096, hidden: 14_336, heads: 32, kv_heads: 8, vocab: 128_256 }),
    ("tiny", Shape { layers: 2, width: 64, hidden: 192, heads: 4, kv_heads: 2, vocab: 320 }),
];
/// Elements of a Q8_0 block, which has an f16 scale before its codes.
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

/// Q8_0 blocks of [rows, cols], about as large as keeps a product's variance near that of its source.
fn blocks(random: &mut Random, rows: usize, cols: usize) -> Vec<u8> {
    let scale = half::f16::from_f32(1.0 / (74.0 * (cols as f32).sqrt())).to_le_bytes();
    let mut bytes = Vec::with_capacity(rows * cols / BLOCK * (BLOCK + 2));
    for _ in 0..rows * cols / BLOCK {
        bytes.extend_from_slice(&scale);
        (0..BLOCK / 8).for_each(|_| bytes.extend_from_slice(&random.next().to_le_bytes()));
    }
    bytes
}

fn model(shape: Shape) -> Result<GgufWriter, Box<dyn Error>> {
    let Shape { layers, width, hidden, heads, kv_heads, vocab } = shape;
    let (mut writer, mut random) = (GgufWriter::new(), Random(1));
    let head_dim = width / heads;
    writer.metadata("general.architecture", "llama");
    let counts = [
        ("block_count", layers),
        ("context_length", 8192),
        ("embedding_length", width),
        ("feed_forward_length", hidden),
        ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads),
        ("rope.dimension_count", head_dim),
    ];
    for (key, value) in counts {
        writer.metadata(&format!("llama.{key}"), value as u32);
    }
    writer.metadata("llama.attention.layer_norm_rms_epsilon", 1e-5_f32);
    writer.metadata("llama.rope.freq_base", 500_000.0_f32);
    vocabulary::byte_level().describe(&mut writer);

    let mut matrix = |writer: &mut GgufWriter, name: &str, rows: usize, cols: usize| {
        let data = blocks(&mut random, rows, cols);
        writer.tensor(name, TensorType::Q8_0, &[cols as u64, rows as u64], data).map(drop)
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
        for part in ["attn_norm", "ffn_norm"] {
            writer.vector(&format!("blk.{layer}.{part}.weight"), &vec![1.0; width])?;
        }
    }
    writer.vector("output_norm.weight", &vec![1.0; width])?;
    Ok(writer)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, name) = match arguments.as_slice() {
        [path] => (path, "1b"),
        [path, name] => (path, name.as_str()),
        _ => return Err("expected FILE [1b|8b|tiny]".into()),
    };
    let shape = SHAPES.iter().find(|(known, _)| *known == name);
    let (_, shape) = shape.ok_or_else(|| format!("expected a shape of 1b, 8b or tiny, found {name}"))?;
    let mut out = BufWriter::new(File::create(path)?);
    model(*shape)?.write(&mut out)?;
    out.flush()?;
    Ok(())
}
