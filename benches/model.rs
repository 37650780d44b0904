//! A whole model on the CPU: one decode step and one prefill chunk of 256 tokens, of six layers of
//! SmolLM2-135M's shape with random weights, made in memory.
//!
//! Before anything is timed the logits are asserted finite, and the same for a prompt in one chunk
//! and in several. A decode step's throughput counts the bytes of weights that it reads.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use ottava::TokenId;
use ottava::backend::cpu::{Cpu, CpuOptions};
use ottava::backend::{
    KvDtype, PAGE_TOKENS, PageId, PageRef, Precision, StepInput, StepLimits, StepSequence,
};
use ottava::model::{Decoder, LoadOptions, Model, ModelConfig};
use ottava::quant::{Bits, QuantMatrix, QuantParts, WeightMatrix, code_bytes_per_row};
use ottava::weights::{GgufWriter, ModelFile};

const LAYERS: usize = 6;
const WIDTH: usize = 576;
const HIDDEN: usize = 1536;
const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 64;
const VOCAB: usize = 49152;
const CHUNK: usize = 256;

struct Maker {
    writer: GgufWriter,
    random: u64,
    /// Bytes of all matrices.
    bytes: usize,
}

impl Maker {
    fn next(&mut self) -> u32 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as u32
    }

    /// Random codes; the scale keeps a product about as large as its source.
    fn matrix(&mut self, name: &str, rows: usize, cols: usize, bits: Bits) {
        let (spread, mean) = match bits {
            Bits::Four => (4.6, Some(7.5)),
            Bits::Eight => (73.9, None),
        };
        let scale = 1.0 / (spread * (cols as f32).sqrt());
        let codes = (0..rows * code_bytes_per_row(bits, cols)).map(|_| self.next() as u8).collect();
        let groups = rows * cols / 32;
        let scales = vec![f16::from_f32(scale); groups];
        let mins = mean.map(|mean| vec![f16::from_f32(-mean * scale); groups]);
        let parts = QuantParts { rows, cols, bits, group: 32, codes, scales, mins };
        let matrix = QuantMatrix::new(parts).expect("a valid shape");
        self.bytes += matrix.bytes();
        self.writer.matrix(name, &WeightMatrix::Quant(matrix)).expect("a format that holds it");
    }

    fn ones(&mut self, name: &str) {
        self.writer.vector(name, &[1.0; WIDTH]).expect("a new name");
    }

    fn layer(&mut self, layer: usize) {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        self.ones(&name("attn_norm"));
        self.ones(&name("ffn_norm"));
        let (query, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let matrices = [
            ("attn_q", query, WIDTH),
            ("attn_k", kv, WIDTH),
            ("attn_v", kv, WIDTH),
            ("attn_output", WIDTH, query),
            ("ffn_gate", HIDDEN, WIDTH),
            ("ffn_up", HIDDEN, WIDTH),
            ("ffn_down", WIDTH, HIDDEN),
        ];
        for (part, rows, cols) in matrices {
            self.matrix(&name(part), rows, cols, Bits::Four);
        }
    }
}

/// The model's file, and the bytes of its matrices.
fn file() -> (ModelFile, usize) {
    let mut maker = Maker { writer: GgufWriter::new(), random: 1, bytes: 0 };
    maker.writer.metadata("general.architecture", "llama");
    let counts = [
        ("block_count", LAYERS),
        ("context_length", 2048),
        ("embedding_length", WIDTH),
        ("feed_forward_length", HIDDEN),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
        ("rope.dimension_count", HEAD_DIM),
    ];
    for (key, value) in counts {
        maker.writer.metadata(&format!("llama.{key}"), value as u32);
    }
    maker.writer.metadata("llama.attention.layer_norm_rms_epsilon", 1e-5_f32);
    maker.writer.metadata("llama.rope.freq_base", 100_000.0_f32);
    maker.matrix("token_embd.weight", VOCAB, WIDTH, Bits::Eight);
    (0..LAYERS).for_each(|layer| maker.layer(layer));
    maker.ones("output_norm.weight");
    let file = ModelFile::from_bytes("random.gguf", maker.writer.to_bytes()).expect("a valid file");
    (file, maker.bytes)
}

/// Tokens `range` of one sequence; the last row is an output.
fn step(range: std::ops::Range<usize>) -> StepInput {
    let page = |index: usize| PageRef { page: PageId(index as u32), start: (index * PAGE_TOKENS) as u32 };
    let pages: Vec<PageRef> = (0..range.end.div_ceil(PAGE_TOKENS)).map(page).collect();
    let rows = range.len() as u32;
    StepInput {
        tokens: range.clone().map(|at| TokenId((at * 7919 % VOCAB) as u32)).collect(),
        positions: range.map(|at| at as u32).collect(),
        sequences: vec![StepSequence { rows: 0..rows, pages: 0..pages.len() as u32, window: None }],
        pages,
        outputs: vec![rows - 1],
    }
}

fn logits(model: &mut Model<Cpu>, steps: &[StepInput]) -> Vec<f32> {
    for step in steps {
        model.step(step).expect("a valid step");
    }
    let mut logits = vec![f32::NAN; VOCAB];
    model.logits(0, &mut logits).expect("an output");
    logits
}

fn benches(criterion: &mut Criterion) {
    let (file, bytes) = file();
    let config = ModelConfig::from_file(&file).expect("a known family");
    let options = LoadOptions {
        limits: StepLimits { tokens_max: CHUNK, outputs_max: 1 },
        kv_dtype: KvDtype::F16,
        kv_bytes: 16 << 20,
        context_max: 2 * CHUNK,
        quantise: None,
        activations: Precision::F32,
    };
    let cpu = Cpu::new(&CpuOptions::default()).expect("the machine's own instruction set");
    let mut model = Model::load(&file, &config, cpu, &options, &mut |_| {}).expect("a model that fits");
    let (prefill, decode) = (step(0..CHUNK), step(CHUNK..CHUNK + 1));
    let chunked = logits(&mut model, &[step(0..7), step(7..100), step(100..CHUNK), decode.clone()]);
    let whole = logits(&mut model, &[prefill.clone(), decode.clone()]);
    assert!(whole.iter().all(|logit| logit.is_finite()), "logits that are not finite");
    assert!(whole.iter().any(|&logit| logit.abs() > 0.1), "logits that say nothing");
    assert_eq!(chunked, whole, "a prompt in chunks against a prompt in one");
    println!("{LAYERS} layers, {bytes} bytes of weights");

    let mut group = criterion.benchmark_group("model");
    group.sample_size(20);
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function("decode", |bencher| bencher.iter(|| model.step(&decode).expect("a valid step")));
    group.throughput(Throughput::Elements(CHUNK as u64));
    group.bench_function("prefill", |bencher| bencher.iter(|| model.step(&prefill).expect("a valid step")));
    group.finish();
}

criterion_group!(model, benches);
criterion_main!(model);
