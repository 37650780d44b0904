//! Matrix products of the CPU backend: one token (bound by memory), 8, and a chunk of 256 (bound
//! by the dot product units), on every instruction set, with one thread and with two.
//!
//! Each answer is asserted against f64 before it is timed.

use std::num::NonZeroUsize;

use criterion::{Criterion, criterion_group, criterion_main};
use ottava::backend::cpu::{Compute, Cpu, CpuOptions, Isa};
use ottava::quant::QuantMatrix;

mod support;
use support::product::{Products, Repeats};
use support::random::{Codes, Random};
use support::timing::{Bench, Work, time};
use support::{brief, step};

/// A matrix of a model: its name, rows, columns, and how they are kept.
type Shape = (&'static str, usize, usize, Codes);

const SHAPES: [Shape; 8] = [
    ("smollm2 qkv q4_1", 960, 576, Codes::Q4_1),
    ("smollm2 down q4_1", 576, 1536, Codes::Q4_1),
    ("smollm2 head q8_0", 49152, 576, Codes::Q8_0),
    ("gemma3 up q5_0", 2048, 640, Codes::Q5_0),
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
        let options =
            CpuOptions { threads, isa: Some(self.isa), compute: Compute::Int8, ..CpuOptions::default() };
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
        let copies = setup.copies(source.bytes());
        let repeats = Repeats { copies, launches: copies };
        let mut products = Products::new(setup.cpu(), source, repeats, step(0..tokens, 1));
        products.poison();
        products.run();
        products.assert_answer(source);
        move || products.run()
    });
}

criterion_group!(matmul, benches);
criterion_main!(matmul);
