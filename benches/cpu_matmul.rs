//! Matrix products of the CPU backend: one token (bound by memory), 8, and a chunk of 256 (bound
//! by the dot product units), on every instruction set, with one thread and with two.
//!
//! Each answer is asserted against f64 before it is timed.

use std::num::NonZeroUsize;

use criterion::{Criterion, criterion_group, criterion_main};
use ottava::backend::cpu::{Compute, Cpu, CpuOptions, Isa};
use ottava::backend::{
    Backend, Epilogue, KvDtype, KvLayout, Matmul, MatrixId, Op, Place, Product, Weights, Write,
};
use ottava::quant::{QuantMatrix, WeightMatrix};

mod support;
use support::machine::{Layout, Machine, Room};
use support::random::{Codes, Random};
use support::timing::{Bench, Work, time};
use support::{brief, step};

/// A matrix of a model: its name, rows, columns, and how they are kept.
type Shape = (&'static str, usize, usize, Codes);

const SHAPES: [Shape; 8] = [
    ("smollm2 qkv q4_1", 960, 576, Codes::Q4_1),
    ("smollm2 down q4_1", 576, 1536, Codes::Q4_1),
    ("smollm2 head q8_0", 49152, 576, Codes::Q8_0),
    ("gemma3 up q4_k", 2048, 640, Codes::Q4_1),
    ("gemma3 down q6_k", 640, 2048, Codes::Q6_K),
    ("8b up q4_0", 14336, 4096, Codes::Q4_0),
    ("8b up q8_0", 14336, 4096, Codes::Q8_0),
    ("8b down q4_k", 4096, 14336, Codes::Q4_1),
];
/// Copies of a matrix take so much together: decode reads from memory and not from a cache.
const WEIGHT_BYTES: usize = 96 << 20;

#[derive(Clone, Copy)]
struct Setup {
    isa: Isa,
    threads: usize,
    tokens: usize,
}

impl Setup {
    fn cpu(&self) -> Cpu {
        let threads = NonZeroUsize::new(self.threads);
        let options = CpuOptions { threads, isa: Some(self.isa), compute: Compute::Int8 };
        Cpu::new(&options).expect("an available instruction set")
    }

    fn copies(&self, bytes: usize) -> usize {
        match (self.tokens, brief()) {
            (9.., _) => 1,
            (_, true) => 2,
            (_, false) => WEIGHT_BYTES / bytes + 1,
        }
    }
}

/// Products of one source with copies of a matrix, ready to run.
struct Case {
    machine: Machine,
    ops: Vec<Op>,
    dst: Place,
    x: Vec<f32>,
}

impl Case {
    fn new(source: &QuantMatrix, setup: Setup) -> Case {
        let cpu = setup.cpu();
        let copies = setup.copies(source.bytes());
        let prepare = |_| cpu.prepare(WeightMatrix::Quant(source.clone())).expect("memory");
        let weights = Weights { matrices: (0..copies).map(prepare).collect(), vectors: vec![] };
        let mut layout = Layout::new(setup.tokens);
        let src = layout.place(source.cols());
        let dst: Vec<Place> = (0..copies).map(|_| layout.place(source.rows())).collect();
        let op = |(copy, &dst): (usize, &Place)| {
            let (matrix, epilogue) = (MatrixId(copy as u32), Epilogue::Write(Write::Store));
            let products = vec![Product { dst, matrix, bias: None, epilogue }];
            Op::Matmul(Matmul { src, norm: None, products })
        };
        let ops: Vec<Op> = dst.iter().enumerate().map(op).collect();
        // The operation needs no keys and values; a frame does.
        let kv = KvLayout { layers: 1, kv_heads: 1, head_dim: 32, dtype: KvDtype::F16 };
        let room = Room { layout, kv, pages: 1, ops: &ops };
        let mut machine = Machine::new(cpu, weights, step(0..setup.tokens, 1), room);
        let x = Random(9).values(setup.tokens * source.cols());
        machine.write(&src, &x);
        Case { machine, dst: dst[copies - 1], ops, x }
    }

    /// A thousand elements against f64, within the rounding of the activations.
    fn assert_answer(&mut self, source: &QuantMatrix) {
        self.machine.run(&self.ops);
        let (rows, cols) = (source.rows(), source.cols());
        let out = self.machine.read(&self.dst);
        let mut weights = vec![0.0; cols];
        for (i, found) in out.iter().enumerate().step_by((out.len() / 1024) | 1) {
            source.dequantize_row(i % rows, &mut weights);
            let x = &self.x[i / rows * cols..][..cols];
            let terms = x.iter().zip(&weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
            let (exact, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
            assert!((f64::from(*found) - exact).abs() <= 0.004 * size + 1e-4, "{found} for {exact} at {i}");
        }
    }
}

fn benches(criterion: &mut Criterion) {
    let tokens: &[usize] = if brief() { &[1, 17] } else { &[1, 8, 256] };
    for shape in SHAPES {
        let source = Random(7).matrix(shape.1, shape.2, shape.3);
        for isa in Isa::available() {
            for threads in [1, 2] {
                for &tokens in tokens {
                    bench(criterion, shape.0, &source, Setup { isa, threads, tokens });
                }
            }
        }
    }
}

fn bench(criterion: &mut Criterion, shape: &str, source: &QuantMatrix, setup: Setup) {
    let Setup { isa, threads, tokens } = setup;
    let skipped = if brief() { threads == 1 } else { isa == Isa::Portable && threads * tokens > 1 };
    if skipped {
        return;
    }
    let work = Work { bytes: source.bytes(), macs: source.rows() * source.cols() * tokens };
    let name = format!("{shape}/{isa}/{threads}t/m{tokens}");
    let bench = Bench { group: "matmul", name: &name, work, operations: setup.copies(source.bytes()) };
    time(criterion, &bench, || {
        let mut case = Case::new(source, setup);
        case.assert_answer(source);
        move || case.machine.run(&case.ops)
    });
}

criterion_group!(matmul, benches);
criterion_main!(matmul);
