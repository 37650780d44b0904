//! A session's run allocates nothing, on any thread: counted by the allocator, over the CPU
//! backend, for a prompt and for decodes. Without the test harness, whose threads allocate too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ottava::TokenId;
use ottava::backend::{
    Activation, Backend, BackendError, Heads, KvDtype, KvLayout, PageId, PageRef, Precision, RopePairing,
    StepInput, StepLimits, StepSequence, Weights,
    cpu::{Compute, Cpu, CpuOptions},
};
use ottava::graph::{AttentionSpec, CompileOptions, Fusion, Graph, GraphError, KvMemory, RopeSpec, Session};
use ottava::quant::{Bits, DenseMatrix, DenseValues, QuantMatrix, QuantParts, WeightMatrix};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc`, which is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WIDTH: usize = 64;
const VOCAB: usize = 50;
const HEADS: Heads = Heads { query: 4, kv: 2, dim: 16 };

/// One layer of a decoder, with all that a plan can fuse.
fn graph() -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let table = g.matrix("table", VOCAB, WIDTH)?;
    let [q, k, v] = [("q", HEADS.query), ("k", HEADS.kv), ("v", HEADS.kv)]
        .map(|(name, heads)| g.matrix(name, heads * HEADS.dim, WIDTH));
    let (q, k, v) = (q?, k?, v?);
    let [gate, up] = ["gate", "up"].map(|name| g.matrix(name, 3 * WIDTH, WIDTH));
    let (gate, up) = (gate?, up?);
    let (o, down) = (g.matrix("o", WIDTH, HEADS.query * HEADS.dim)?, g.matrix("down", WIDTH, 3 * WIDTH)?);
    let norm = g.vector("norm", WIDTH)?;
    let inv_freq: Arc<[f64]> = (0..8).map(|i| 0.1f64.powi(i)).collect();
    let spec = RopeSpec { dims: 16, inv_freq, magnitude: 1.0, pairing: RopePairing::Halves };
    let x = g.embed(table, 1.0)?;
    let h = g.rms_norm(x, norm, 1e-5)?;
    let (q, k, v) = (g.matmul(h, q)?, g.matmul(h, k)?, g.matmul(h, v)?);
    let (q, k) = (g.rope(q, HEADS.dim, &spec)?, g.rope(k, HEADS.dim, &spec)?);
    let attention =
        AttentionSpec { layer: 0, heads: HEADS, scale: 0.25, window: Some(30), soft_cap: Some(20.0) };
    let a = g.attention(q, k, v, attention)?;
    let a = g.matmul(a, o)?;
    let x = g.add(x, a)?;
    let h = g.rms_norm(x, norm, 1e-5)?;
    let gated = g.matmul(h, gate)?;
    let gated = g.activation(gated, Activation::Silu)?;
    let up = g.matmul(h, up)?;
    let h = g.mul(gated, up)?;
    let h = g.matmul(h, down)?;
    let x = g.add(x, h)?;
    let x = g.outputs(x)?;
    let logits = g.matmul(x, table)?;
    let p = g.softmax(logits)?;
    g.output("probabilities", p)?;
    Ok(g)
}

fn weights(cpu: &Cpu, plan: &ottava::graph::Plan) -> Result<Weights<Cpu>, BackendError> {
    let matrix = |(index, rows, cols): (usize, usize, usize)| {
        let byte = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7) as u8;
        if index == 1 {
            let values = (0..rows * cols).map(|i| f32::from(byte(i)) / 2048.0 - 0.06).collect();
            return WeightMatrix::Dense(DenseMatrix::new(rows, cols, DenseValues::F32(values)).unwrap());
        }
        let codes = (0..rows * cols).map(byte).collect();
        let scales = vec![half::f16::from_f32(0.0005); rows * cols.div_ceil(32)];
        let parts = QuantParts { rows, cols, bits: Bits::Eight, group: 32, codes, scales, mins: None };
        WeightMatrix::Quant(QuantMatrix::new(parts).unwrap())
    };
    let specs = plan.matrices().iter().enumerate().map(|(i, spec)| (i, spec.rows, spec.cols));
    Ok(Weights {
        matrices: specs.map(|spec| cpu.prepare(matrix(spec))).collect::<Result<_, _>>()?,
        vectors: plan
            .vectors()
            .iter()
            .map(|spec| cpu.upload_vector(&vec![1.0; spec.len]))
            .collect::<Result<_, _>>()?,
    })
}

/// `tokens` tokens from position `first` on.
fn step(first: u32, tokens: u32) -> StepInput {
    StepInput {
        tokens: (first..first + tokens).map(|i| TokenId(i % VOCAB as u32)).collect(),
        positions: (first..first + tokens).collect(),
        sequences: vec![StepSequence { rows: 0..tokens, pages: 0..4, window: None }],
        pages: (0..4).map(|i| PageRef { page: PageId(i), start: 16 * i }).collect(),
        outputs: vec![tokens - 1],
    }
}

fn main() {
    for (threads, compute, dtype) in
        [(1, Compute::Int8, KvDtype::F16), (2, Compute::Int8, KvDtype::Int8), (2, Compute::F32, KvDtype::F16)]
    {
        let cpu = Cpu::new(&CpuOptions { threads: NonZeroUsize::new(threads), isa: None, compute }).unwrap();
        let limits = StepLimits { tokens_max: 40, outputs_max: 1 };
        let element_bytes = |precision| cpu.element_bytes(precision);
        let options = CompileOptions {
            limits,
            element_bytes: &element_bytes,
            fuse: Fusion::On,
            activations: Precision::F32,
        };
        let plan = graph().unwrap().compile(&options).unwrap();
        let weights = weights(&cpu, &plan).unwrap();
        let layout = KvLayout { layers: 1, kv_heads: HEADS.kv, head_dim: HEADS.dim, dtype };
        let mut session = Session::new(cpu, plan, weights, Some(KvMemory { layout, pages: 4 })).unwrap();
        session.start_profile();
        let steps = [step(0, 40), step(40, 1), step(41, 1), step(42, 7)];
        let mut out = [0.0; VOCAB];
        let mut run = |steps: &[StepInput]| {
            for step in steps {
                session.run(step).unwrap();
                session.read("probabilities", 0, &mut out).unwrap();
                assert!((out.iter().sum::<f32>() - 1.0).abs() < 1e-4, "a softmax adds up");
            }
        };
        run(&steps);
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        run(&steps);
        assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), before, "{threads} threads, {compute:?}");
    }
    // The count counts.
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    drop(std::hint::black_box(vec![1_u8]));
    assert!(ALLOCATIONS.load(Ordering::SeqCst) > before);
}
