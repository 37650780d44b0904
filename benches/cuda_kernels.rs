//! The CUDA kernels on this machine's card at the shapes of real models: matrix products from one
//! token to a long prompt and attention over long pasts, beside what the card's memory can do.
//!
//! Each kernel runs over copies of its operands, too many for the second-level cache, in one graph
//! where a step has a token a sequence; a run ends with one wait, and its time is divided by the
//! copies. Answers are asserted against f64 first. `--test` runs a few on the emulated card.

use std::cell::LazyCell;

use criterion::{Criterion, criterion_group, criterion_main};
use ottava::backend::cuda::{Cuda, CudaOptions};
use ottava::backend::{Attention, Heads, KvDtype, KvLayout, Op, StepInput, Weights};
use ottava::quant::QuantMatrix;

mod support;
use support::machine::{Layout, Machine, Room};
use support::product::Products;
use support::random::{Codes, Random};
use support::timing::{Bench, Work, time};
use support::{brief, decodes, step};

/// Operands of a run together: many times the cache of an H200.
const COPIES_BYTES: usize = 1 << 30;
/// What the ceilings are measured with.
const CEILING_BYTES: usize = 1 << 30;

/// A matrix of a model: its name, rows, columns, and how they are kept.
const MATRICES: [(&str, usize, usize, Codes); 6] = [
    ("1b o q8_0", 2048, 2048, Codes::Q8_0),
    ("1b up q8_0", 8192, 2048, Codes::Q8_0),
    ("1b down q4_0", 2048, 8192, Codes::Q4_0),
    ("8b up q8_0", 14336, 4096, Codes::Q8_0),
    ("8b up q4_1", 14336, 4096, Codes::Q4_1),
    ("8b down q4_0", 4096, 14336, Codes::Q4_0),
];
/// Of Llama-3.2-1B and Llama-3.1-8B.
const HEADS: [(&str, Heads); 2] =
    [("1b", Heads { query: 32, kv: 8, dim: 64 }), ("8b", Heads { query: 32, kv: 8, dim: 128 })];

fn cuda() -> Cuda {
    if brief() {
        cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU")).expect("an emulator");
    }
    Cuda::new(&CudaOptions::default()).expect("a card")
}

fn copies(bytes: usize) -> usize {
    if brief() { 1 } else { (COPIES_BYTES / bytes).clamp(1, 512) }
}

fn ceilings(_: &mut Criterion) {
    let cuda = cuda();
    let bytes = if brief() { 1 << 20 } else { CEILING_BYTES };
    let bandwidth = cuda.bandwidth(bytes).expect("memory");
    println!("{}", ottava::backend::Backend::describe(&cuda));
    println!("memory: read {:.1} GB/s, copy {:.1} GB/s", bandwidth.read / 1e9, bandwidth.copy / 1e9);
    assert!(bandwidth.read > 0.0 && bandwidth.copy > 0.0);
}

/// As many tokens: of as many sequences where a decode has so many, else of a prompt.
fn tokens_of(count: usize) -> StepInput {
    if count <= 64 { decodes(count, 0) } else { step(0..count, 1) }
}

fn products(criterion: &mut Criterion) {
    let tokens: &[usize] =
        if brief() { &[1, 8, 96] } else { &[1, 4, 8, 16, 32, 64, 96, 128, 256, 512, 2048] };
    for (name, rows, cols, codes) in &MATRICES[..if brief() { 1 } else { MATRICES.len() }] {
        let source = LazyCell::new(|| Random(7).matrix(*rows, *cols, *codes));
        for &tokens in tokens {
            product(criterion, &format!("{name}/m{tokens}"), &source, tokens);
        }
    }
}

fn product(criterion: &mut Criterion, name: &str, source: &QuantMatrix, tokens: usize) {
    let copies = if tokens > 64 { 4.min(copies(1)) } else { copies(source.bytes()) };
    let work = Work { bytes: source.bytes(), macs: source.rows() * source.cols() * tokens };
    time(criterion, &Bench { group: "cuda_matmul", name, work, operations: copies }, || {
        let mut products = Products::new(cuda(), source, copies, tokens_of(tokens));
        products.assert_answer(source);
        move || products.run()
    });
}

fn attentions(criterion: &mut Criterion) {
    let contexts: &[usize] = if brief() { &[100] } else { &[512, 4096, 32_768] };
    for (model, heads) in HEADS {
        for dtype in [KvDtype::F16, KvDtype::Int8] {
            for &context in contexts {
                for sequences in [1, 16] {
                    let name = format!("{model}/{dtype:?}/{context} keys/{sequences} sequences");
                    attention(criterion, &name, (heads, dtype), decodes(sequences, context - 1));
                }
                if context < 32_768 {
                    let name = format!("{model}/{dtype:?}/prompt of {context}");
                    attention(criterion, &name, (heads, dtype), step(0..context, 1));
                }
            }
        }
    }
}

/// Attention over pages of one value, which is the answer.
fn attention(criterion: &mut Criterion, name: &str, (heads, dtype): (Heads, KvDtype), step: StepInput) {
    let (tokens, sequences) = (step.tokens.len(), step.sequences.len());
    let kv = KvLayout { layers: 1, kv_heads: heads.kv, head_dim: heads.dim, dtype };
    let bytes = kv.page_bytes() * step.pages.len();
    let layers = copies(bytes).min(if tokens > sequences { 4 } else { 64 });
    let seen: usize = step.positions.iter().map(|&position| position as usize + 1).sum();
    let work = Work { bytes, macs: 2 * seen * heads.query * heads.dim };
    time(criterion, &Bench { group: "cuda_attention", name, work, operations: layers }, || {
        let mut layout = Layout::new(tokens);
        let (q, dst) = (layout.place(heads.query * heads.dim), layout.place(heads.query * heads.dim));
        let attention = |layer| {
            let scale = 1.0 / (heads.dim as f32).sqrt();
            Op::Attention(Attention { dst, q, layer, heads, scale, window: None, soft_cap: None })
        };
        let ops: Vec<Op> = (0..layers).map(attention).collect();
        let (kv, pages) = (KvLayout { layers, ..kv }, step.pages.len());
        let room = Room { layout, kv, pages, ops: &ops };
        let weights = Weights { matrices: vec![], vectors: vec![] };
        let mut machine = Machine::new(cuda(), weights, step, room);
        machine.write(&q, &Random(3).values(tokens * q.cols));
        // 1 as f16; or 60 as a code, with a scale of the same bytes.
        let (bytes, value) = match dtype {
            KvDtype::F16 => ([0x00, 0x3c], 1.0),
            KvDtype::Int8 => ([0x3c, 0x3c], 60.0 * half::f16::from_bits(0x3c3c).to_f32()),
        };
        machine.fill_pages(pages, &bytes.repeat(kv.page_bytes() / 2));
        for _ in 0..3 {
            machine.write(&dst, &vec![f32::NAN; tokens * dst.cols]);
            machine.run(&ops);
        }
        let found = machine.read(&dst);
        assert!(found.iter().all(|x| (x - value).abs() < 1e-3 * value), "{value}: {:?}", &found[..8]);
        move || machine.run(&ops)
    });
}

criterion_group!(cuda_kernels, ceilings, products, attentions);
criterion_main!(cuda_kernels);
