//! Whole models on the CPU with random weights, made in memory at the shapes of real ones: one
//! decode step behind 256 tokens, and one prefill chunk of 256.
//!
//! Before anything is timed, the logits of a short prompt are asserted against the f64 reference,
//! and those of a long one to be the same bits in one chunk and in several. Bytes are those of the
//! weights that a step reads. The models are shallower when they are only tested.

use std::cell::{LazyCell, RefCell};

use criterion::{Criterion, criterion_group, criterion_main};
use ottava::backend::cpu::{Cpu, CpuOptions};
use ottava::backend::{Backend, Reference};
use ottava::checkpoint::{GgufWriter, ModelFile};
use ottava::ir::{KvDtype, Precision, StepInput, StepLimits};
use ottava::model::{Decoder, KvBudget, LoadOptions, Model, ModelConfig};
use ottava::quant::WeightMatrix;

mod support;
use support::random::{Codes, Random};
use support::shapes::{GEMMA3_270M, MODELS, SMOLLM2_135M, Shape};
use support::timing::{Bench, Work, time};
use support::{brief, step};

const CHUNK: usize = 256;
/// Layers that are enough for a test: Gemma's sixth is the first that sees all of the past.
const TESTED: [Shape; 2] = [Shape { layers: 2, ..SMOLLM2_135M }, Shape { layers: 6, ..GEMMA3_270M }];
/// Positions of a local layer's window.
const WINDOW: u32 = 512;
/// Tokens of the prompt that the reference reads, too.
const SHORT: usize = 3;
/// Most that int8 activations may put logits off, root mean square, as a part of the logits' own.
const OFF_MAX: f64 = 0.03;

struct Maker {
    writer: GgufWriter,
    random: Random,
    shape: Shape,
}

impl Maker {
    fn metadata(&mut self) {
        let Shape { family, layers, width, hidden, heads, .. } = self.shape;
        self.writer.metadata("general.architecture", family);
        let counts = [
            ("block_count", layers as u32),
            ("context_length", 2048),
            ("embedding_length", width as u32),
            ("feed_forward_length", hidden as u32),
            ("attention.head_count", heads.query as u32),
            ("attention.head_count_kv", heads.kv as u32),
            ("attention.key_length", heads.dim as u32),
            ("attention.value_length", heads.dim as u32),
            ("attention.sliding_window", WINDOW),
            ("rope.dimension_count", heads.dim as u32),
        ];
        for (key, value) in counts {
            self.writer.metadata(&format!("{family}.{key}"), value);
        }
        self.writer.metadata(&format!("{family}.attention.layer_norm_rms_epsilon"), 1e-5_f32);
        self.writer.metadata(&format!("{family}.rope.freq_base"), 100_000.0_f32);
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize, codes: Codes) {
        let matrix = WeightMatrix::Quant(self.random.matrix(rows, cols, codes));
        self.writer.matrix(name, &matrix).expect("a format that holds it");
    }

    fn ones(&mut self, name: &str, len: usize) {
        self.writer.vector(name, &vec![1.0; len]).expect("a new name");
    }

    fn layer(&mut self, layer: usize) {
        let Shape { width, hidden, heads, more_norms, .. } = self.shape;
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (query, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        let mut norms = vec![("attn_norm", width), ("ffn_norm", width)];
        if more_norms {
            norms.extend([("post_attention_norm", width), ("post_ffw_norm", width)]);
            norms.extend([("attn_q_norm", heads.dim), ("attn_k_norm", heads.dim)]);
        }
        for (part, len) in norms {
            self.ones(&name(part), len);
        }
        let matrices = [
            ("attn_q", query, width),
            ("attn_k", kv, width),
            ("attn_v", kv, width),
            ("attn_output", width, query),
            ("ffn_gate", hidden, width),
            ("ffn_up", hidden, width),
            ("ffn_down", width, hidden),
        ];
        for (part, rows, cols) in matrices {
            self.matrix(&name(part), rows, cols, Codes::Q4_1);
        }
    }
}

fn file(shape: Shape) -> ModelFile {
    let mut maker = Maker { writer: GgufWriter::new(), random: Random(1), shape };
    maker.metadata();
    maker.matrix("token_embd.weight", shape.vocab, shape.width, Codes::Q8_0);
    (0..shape.layers).for_each(|layer| maker.layer(layer));
    maker.ones("output_norm.weight", shape.width);
    ModelFile::from_bytes("random.gguf", maker.writer.to_bytes()).expect("a valid file")
}

fn load<B: Backend>(file: &ModelFile, backend: B) -> Model<B> {
    let config = ModelConfig::from_file(file).expect("a known family");
    let options = LoadOptions {
        limits: StepLimits { tokens_max: CHUNK, outputs_max: 1 },
        kv_dtype: KvDtype::F16,
        kv: KvBudget::Bytes(64 << 20),
        context_max: 2 * CHUNK,
        quantise: None,
        sidecar: None,
        activations: Precision::F32,
    };
    Model::load(file, &config, backend, &options, &mut |_| {}).expect("a model that fits")
}

/// Of the last step.
fn logits<B: Backend>(model: &mut Model<B>, steps: &[StepInput]) -> Vec<f32> {
    for step in steps {
        model.step(step).expect("a valid step");
    }
    let mut logits = vec![f32::NAN; model.vocab_size()];
    model.logits(0, &mut logits).expect("an output");
    logits
}

/// A model on the CPU that has been seen to answer right.
fn checked(shape: Shape) -> Model<Cpu> {
    let file = file(shape);
    let cpu = Cpu::new(&CpuOptions::default()).expect("the machine's own instruction set");
    let mut model = load(&file, cpu);
    assert_eq!(model.step_weight_bytes(), work(shape, 1).bytes, "bytes of weights");
    let of = |range| step(range, shape.vocab);
    let chunks = logits(&mut model, &[of(0..7), of(7..100), of(100..CHUNK), of(CHUNK..CHUNK + 1)]);
    let whole = logits(&mut model, &[of(0..CHUNK), of(CHUNK..CHUNK + 1)]);
    assert_eq!(chunks, whole, "a prompt in chunks against a prompt in one");
    let found = logits(&mut model, &[of(0..SHORT)]);
    let expected = logits(&mut load(&file, Reference), &[of(0..SHORT)]);
    let square = |x: f64| x * x;
    let size: f64 = expected.iter().map(|&x| square(x.into())).sum();
    let off: f64 = found.iter().zip(&expected).map(|(&x, &y)| square(f64::from(x) - f64::from(y))).sum();
    let off = (off / size).sqrt();
    assert!(off <= OFF_MAX, "{}: logits are off by {off} of their size", shape.name);
    println!("{}, {} layers: logits are off by {off:.4} of their size", shape.name, shape.layers);
    model
}

/// What a step of `tokens` does with its weights; the head's come with the one output row.
fn work(shape: Shape, tokens: usize) -> Work {
    let Shape { layers, width, hidden, heads, vocab, .. } = shape;
    let (query, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
    let (inner, head) = (layers * width * (2 * query + 2 * kv + 3 * hidden), vocab * width);
    // Half a byte and a byte each, with two bytes a group for a scale or a minimum.
    let bytes = inner * 20 / 32 + head * 34 / 32;
    Work { bytes, macs: inner * tokens + head }
}

fn benches(criterion: &mut Criterion) {
    let models = if brief() { &TESTED[..] } else { &MODELS[..] };
    for &shape in models {
        let model = LazyCell::new(|| RefCell::new(checked(shape)));
        for (kind, range) in [("decode", CHUNK..CHUNK + 1), ("prefill", 0..CHUNK)] {
            let step = step(range, shape.vocab);
            let (name, work) = (format!("{}/{kind}", shape.name), work(shape, step.tokens.len()));
            time(criterion, &Bench { group: "model", name: &name, work, operations: 1 }, || {
                let model = LazyCell::force(&model);
                move || model.borrow_mut().step(&step).expect("a valid step")
            });
        }
    }
}

criterion_group!(model, benches);
criterion_main!(model);
