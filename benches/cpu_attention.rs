//! Attention of the CPU backend: one token with 512 and 4,096 tokens of context (bound by memory),
//! and a prompt of 512 (bound by arithmetic), on every instruction set, over keys and values in
//! f16 and int8.
//!
//! Each answer is asserted against f64 before it is timed. Bytes are those of keys and values.

use std::num::NonZeroUsize;

use criterion::{Criterion, criterion_group, criterion_main};
use ottava::backend::Weights;
use ottava::backend::cpu::{Compute, Cpu, CpuOptions, Isa};
use ottava::ir::{Attention, Heads, KvAppend, KvDtype, KvLayout, Op, PAGE_TOKENS, Place, StepInput};

mod support;
use support::machine::{Layout, Machine, Room};
use support::random::Random;
use support::shapes::{MODELS, Shape};
use support::timing::{Bench, Work, time};
use support::{brief, step};

/// Rows of the step, tokens of context with them.
const STEPS: [(usize, usize); 3] = [(1, 512), (1, 4096), (512, 512)];
/// The same, a page and a tile begun.
const STEPS_BRIEF: [(usize, usize); 2] = [(1, 77), (33, 77)];
/// Keys and values of all layers together, so that decodes read memory and not a cache.
const POOL_BYTES: usize = 96 << 20;
/// Most rows of a step.
const CHUNK: usize = 512;

#[derive(Clone, Copy)]
struct Setup {
    heads: Heads,
    dtype: KvDtype,
    rows: usize,
    context: usize,
    isa: Isa,
    threads: usize,
}

impl Setup {
    fn cpu(&self) -> Cpu {
        let threads = NonZeroUsize::new(self.threads);
        let options =
            CpuOptions { threads, isa: Some(self.isa), compute: Compute::Int8, ..CpuOptions::default() };
        Cpu::new(&options).expect("an available instruction set")
    }

    fn layout(&self, layers: usize) -> KvLayout {
        KvLayout { layers, kv_heads: self.heads.kv, head_dim: self.heads.dim, dtype: self.dtype }
    }

    fn pages(&self) -> usize {
        self.context.div_ceil(PAGE_TOKENS)
    }

    /// Of one layer.
    fn bytes(&self) -> usize {
        self.pages() * self.layout(1).page_bytes()
    }

    fn layers(&self) -> usize {
        match (self.rows, brief()) {
            (2.., _) => 1,
            (_, true) => 2,
            (_, false) => (POOL_BYTES / self.bytes()).clamp(1, 64),
        }
    }

    /// A row at position p multiplies p + 1 keys and as many values.
    fn macs(&self) -> usize {
        let seen: usize = (self.context - self.rows + 1..=self.context).sum();
        2 * seen * self.heads.query * self.heads.dim
    }
}

/// A step's values in the arena.
#[derive(Clone, Copy)]
struct Places {
    q: Place,
    k: Place,
    v: Place,
    dst: Place,
}

/// One step's attention in every layer of a pool.
struct Case {
    setup: Setup,
    machine: Machine<Cpu>,
    ops: Vec<Op>,
    places: Places,
    /// `[rows, query, dim]`
    q: Vec<f32>,
    /// `[context, kv, dim]`
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Case {
    fn new(setup: Setup) -> Case {
        let Setup { heads, rows, context, .. } = setup;
        let [query, kv] = [heads.query, heads.kv].map(|heads| heads * setup.heads.dim);
        let mut layout = Layout::new(CHUNK);
        let (q, k, v) = (layout.place(query), layout.place(kv), layout.place(kv));
        let places = Places { q, k, v, dst: layout.place(query) };
        let scale = 1.0 / (heads.dim as f32).sqrt();
        let attention = |layer| {
            let Places { q, dst, .. } = places;
            Op::Attention(Attention { dst, q, layer, heads, scale, window: None, soft_cap: None })
        };
        let ops: Vec<Op> = (0..setup.layers()).map(attention).collect();
        let room = Room { layout, kv: setup.layout(ops.len()), pages: setup.pages(), ops: &ops };
        let weights = Weights { matrices: vec![], vectors: vec![] };
        let machine = Machine::new(setup.cpu(), weights, StepInput::default(), room);
        let mut random = Random(3);
        let (q, k, v) =
            (random.values(rows * query), random.values(context * kv), random.values(context * kv));
        let mut case = Case { setup, machine, ops, places, q, k, v };
        case.fill();
        case
    }

    /// Appends keys and values to all layers, then sets up the step.
    fn fill(&mut self) {
        let (Places { q, k, v, .. }, Setup { heads, rows, context, .. }) = (self.places, self.setup);
        let append = |layer| KvAppend { q, k, v, layer, heads, q_norm: None, k_norm: None, rope: None };
        let appends: Vec<Op> = (0..self.ops.len()).map(|layer| Op::KvAppend(append(layer))).collect();
        for start in (0..context).step_by(CHUNK) {
            let end = context.min(start + CHUNK);
            self.machine.write(&k, &self.k[start * k.cols..end * k.cols]);
            self.machine.write(&v, &self.v[start * v.cols..end * v.cols]);
            self.machine.step = step(start..end, 1);
            self.machine.run(&appends);
        }
        self.machine.step = step(context - rows..context, 1);
        self.machine.write(&q, &self.q);
    }

    /// The last row against f64 over keys and values that are not rounded.
    fn assert_answer(&mut self) {
        self.machine.run(&self.ops);
        let Setup { heads, rows, .. } = self.setup;
        let out = self.machine.read(&self.places.dst);
        let last = &out[(rows - 1) * heads.query * heads.dim..];
        for (head, found) in last.chunks(heads.dim).enumerate() {
            for (found, want) in found.iter().zip(self.expected(head)) {
                assert!((f64::from(*found) - want).abs() < 4e-3, "{found} for {want} in head {head}");
            }
        }
    }

    /// What a head of the last row answers.
    fn expected(&self, head: usize) -> Vec<f64> {
        let Setup { heads, rows, context, .. } = self.setup;
        let Heads { query, kv, dim } = heads;
        let q = &self.q[((rows - 1) * query + head) * dim..][..dim];
        let at = |position: usize| (position * kv + head / (query / kv)) * dim;
        let score = |position| {
            let terms = self.k[at(position)..].iter().zip(q).map(|(&k, &q)| f64::from(k) * f64::from(q));
            (terms.sum::<f64>() / (dim as f64).sqrt()).exp()
        };
        let weights: Vec<f64> = (0..context).map(score).collect();
        let total: f64 = weights.iter().sum();
        let mut out = vec![0.0; dim];
        for (position, weight) in weights.iter().enumerate() {
            for (out, &v) in out.iter_mut().zip(&self.v[at(position)..]) {
                *out += weight / total * f64::from(v);
            }
        }
        out
    }
}

fn benches(criterion: &mut Criterion) {
    let steps: &[(usize, usize)] = if brief() { &STEPS_BRIEF } else { &STEPS };
    for model in MODELS {
        for dtype in [KvDtype::F16, KvDtype::Int8] {
            for &(rows, context) in steps {
                for isa in Isa::available() {
                    for threads in [1, 2] {
                        let heads = model.heads;
                        bench(criterion, &model, Setup { heads, dtype, rows, context, isa, threads });
                    }
                }
            }
        }
    }
}

fn bench(criterion: &mut Criterion, model: &Shape, setup: Setup) {
    let Setup { dtype, rows, context, isa, threads, .. } = setup;
    if isa == Isa::Portable && threads > 1 {
        return;
    }
    let dtype = if dtype == KvDtype::F16 { "f16" } else { "int8" };
    let name = format!("{}/{dtype}/{rows}of{context}/{isa}/{threads}t", model.name);
    let work = Work { bytes: setup.bytes(), macs: setup.macs() };
    time(criterion, &Bench { group: "attention", name: &name, work, operations: setup.layers() }, || {
        let mut case = Case::new(setup);
        case.assert_answer();
        move || case.machine.run(&case.ops)
    });
}

criterion_group!(attention, benches);
criterion_main!(attention);
