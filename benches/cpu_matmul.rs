//! Matrix products of the CPU backend at the shapes of SmolLM2-135M, Gemma-3-270m and a 1 B model:
//! one token (bound by memory) and 256 (bound by the dot product units).
//!
//! Each answer is asserted before it is timed. Beside criterion's times a line gives GB/s of
//! weights and giga multiply-adds a second.
//! Name a benchmark that does not exist to get these lines alone.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use ottava::TokenId;
use ottava::backend::cpu::{Compute, Cpu, CpuOptions, Isa};
use ottava::backend::{
    Backend, Epilogue, Frame, KvDtype, KvLayout, Matmul, MatrixId, Op, Place, Precision, Product, Rows,
    StepInput, StepLimits, Weights, Write,
};
use ottava::quant::{Bits, QuantMatrix, QuantParts, WeightMatrix, code_bytes_per_row};

/// A named matrix: rows, columns, bits, group, mins.
type Shape = (&'static str, usize, usize, Bits, usize, bool);

const SHAPES: [Shape; 7] = [
    ("smollm2 qkv q4_1", 960, 576, Bits::Four, 32, true),
    ("smollm2 down q4_1", 576, 1536, Bits::Four, 32, true),
    ("smollm2 head q8_0", 49152, 576, Bits::Eight, 32, false),
    ("gemma3 up q4_k", 2048, 640, Bits::Four, 32, true),
    ("gemma3 down q6_k", 640, 2048, Bits::Eight, 16, false),
    ("1b up q8_0", 8192, 2048, Bits::Eight, 32, false),
    ("1b up q4_0", 8192, 2048, Bits::Four, 32, false),
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn unit(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 30) as f32 - 1.0
    }
}

fn matrix((_, rows, cols, bits, group, mins): Shape) -> QuantMatrix {
    let mut random = Random(7);
    let count = rows * cols.div_ceil(group);
    let codes = (0..rows * code_bytes_per_row(bits, cols)).map(|_| random.next() as u8).collect();
    let scales = (0..count).map(|_| f16::from_f32(random.unit() * 0.02)).collect();
    let minimums = (0..count).map(|_| f16::from_f32(random.unit() * 0.1)).collect();
    let mins = mins.then_some(minimums);
    QuantMatrix::new(QuantParts { rows, cols, bits, group, codes, scales, mins }).expect("a valid shape")
}

/// One product, ready to run.
struct Case {
    cpu: Cpu,
    weights: Weights<Cpu>,
    arena: <Cpu as Backend>::Arena,
    kv: <Cpu as Backend>::KvPool,
    step: StepInput,
    ops: Vec<Op>,
    dst: Place,
    x: Vec<f32>,
}

impl Case {
    /// Copies of the matrix, so that decode reads from memory and not from a cache.
    fn new(source: &QuantMatrix, options: &CpuOptions, tokens: usize, copies: usize) -> Case {
        let cpu = Cpu::new(options).expect("an available instruction set");
        let (rows, cols) = (source.rows(), source.cols());
        let matrices = (0..copies).map(|_| cpu.prepare(WeightMatrix::Quant(source.clone())).expect("memory"));
        let weights = Weights { matrices: matrices.collect(), vectors: vec![] };
        let place = |offset, cols| Place { offset, rows: Rows::Tokens, cols, precision: Precision::F32 };
        let src = place(0, cols);
        let stride = (tokens * rows * 4).next_multiple_of(64);
        let dst = place((tokens * cols * 4).next_multiple_of(64), rows);
        let product = |copy: usize| Product {
            dst: place(dst.offset + copy * stride, rows),
            matrix: MatrixId(copy as u32),
            bias: None,
            epilogue: Epilogue::Write(Write::Store),
        };
        let op = |copy| Op::Matmul(Matmul { src, norm: None, products: vec![product(copy)] });
        let ops: Vec<Op> = (0..copies).map(op).collect();
        let limits = StepLimits { tokens_max: tokens, outputs_max: 1 };
        let mut arena = cpu.arena(dst.offset + copies * stride, &ops, limits).expect("memory");
        let mut random = Random(9);
        let x: Vec<f32> = (0..tokens * cols).map(|_| random.unit()).collect();
        cpu.write(&mut arena, &src, &x).expect("a place in the arena");
        // The operation needs no keys and values; a frame does.
        let layout = KvLayout { layers: 1, kv_heads: 1, head_dim: 32, dtype: KvDtype::F16 };
        let kv = cpu.kv_pool(layout, 1).expect("memory");
        let step = StepInput { tokens: vec![TokenId(0); tokens], ..StepInput::default() };
        Case { cpu, weights, arena, kv, step, ops, dst, x }
    }

    fn run(&mut self) {
        let Case { cpu, weights, arena, kv, step, ops, .. } = self;
        for op in ops {
            cpu.execute(op, &mut Frame { weights, arena, kv, step }).expect("a valid operation");
        }
    }

    /// Every 97th element against f64, within the rounding of the activations.
    fn assert_answer(&mut self, source: &QuantMatrix) {
        self.run();
        let (rows, cols) = (source.rows(), source.cols());
        let mut out = vec![0.0; self.step.tokens.len() * rows];
        self.cpu.read(&self.arena, &self.dst, 0, &mut out).expect("a place in the arena");
        let mut weights = vec![0.0; cols];
        for (i, found) in out.iter().enumerate().step_by(97) {
            source.dequantize_row(i % rows, &mut weights);
            let x = &self.x[i / rows * cols..][..cols];
            let terms = x.iter().zip(&weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
            let (exact, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
            assert!((f64::from(*found) - exact).abs() <= 0.004 * size + 1e-4, "{found} for {exact} at {i}");
        }
    }

    /// The fastest of many runs: other processes only ever add.
    fn best(&mut self, budget: Duration) -> f64 {
        let (start, mut best) = (Instant::now(), f64::INFINITY);
        loop {
            let begin = Instant::now();
            self.run();
            best = best.min(begin.elapsed().as_secs_f64());
            if start.elapsed() >= budget {
                return best;
            }
        }
    }
}

fn benches(criterion: &mut Criterion) {
    for shape in SHAPES {
        let source = matrix(shape);
        for isa in Isa::available() {
            for threads in [1, 2] {
                for tokens in [1, 8, 256] {
                    case(criterion, shape, &source, isa, threads, tokens);
                }
            }
        }
    }
}

fn case(
    criterion: &mut Criterion,
    shape: Shape,
    source: &QuantMatrix,
    isa: Isa,
    threads: usize,
    tokens: usize,
) {
    if isa == Isa::Portable && threads * tokens > 1 {
        return;
    }
    let threads = NonZeroUsize::new(threads);
    let options = CpuOptions { threads, isa: Some(isa), compute: Compute::Int8 };
    let bytes = source.bytes();
    let copies = if tokens > 8 { 1 } else { (96 << 20) / bytes + 1 };
    let mut case = Case::new(source, &options, tokens, copies);
    case.assert_answer(source);
    // `--test` asserts and times nothing.
    let budget = if std::env::args().any(|arg| arg == "--test") { 0 } else { 300 };
    let seconds = case.best(Duration::from_millis(budget)) / copies as f64;
    let (gigabytes, gigamacs) = (bytes as f64 / 1e9, (source.rows() * source.cols() * tokens) as f64 / 1e9);
    let name = format!("{}/{isa}/{}t/m{tokens}", shape.0, options.threads.map_or(0, NonZeroUsize::get));
    println!(
        "{name:44} {:8.1} us {:6.1} GB/s {:7.1} GMAC/s",
        seconds * 1e6,
        gigabytes / seconds,
        gigamacs / seconds
    );
    let mut group = criterion.benchmark_group("matmul");
    group.throughput(Throughput::Bytes((bytes * copies) as u64));
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(300));
    group.bench_function(&name, |bencher| bencher.iter(|| case.run()));
    group.finish();
}

criterion_group!(matmul, benches);
criterion_main!(matmul);
