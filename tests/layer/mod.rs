//! Layers of a decoder with all that a plan can fuse, of any size, on any backend.

use std::sync::Arc;

use ottava::TokenId;
use ottava::backend::{Backend, Weights};
use ottava::graph::{AttentionSpec, CompileOptions, Fusion, Graph, GraphError, Plan, RopeSpec};
use ottava::ir::{
    Activation, Heads, KvDtype, KvLayout, PageId, PageRef, Precision, RopePairing, StepInput, StepLimits,
    StepSequence,
};
use ottava::quant::{Bits, QuantMatrix, QuantParts, WeightMatrix};
use ottava::session::{KvMemory, Session};

/// What decides its cost.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub width: usize,
    pub hidden: usize,
    pub heads: Heads,
    pub vocab: usize,
    /// All with the same matrices: what a launch touches does not depend on the launches before.
    pub layers: usize,
    /// Weights of a row that share a scale.
    pub group: usize,
    /// Of the attention.
    pub window: Option<u32>,
}

impl Shape {
    fn graph(&self) -> Result<Graph, GraphError> {
        let Shape { width, hidden, heads, vocab, layers, window, .. } = *self;
        let mut g = Graph::new();
        let table = g.matrix("table", vocab, width)?;
        let [q, k, v] = [("q", heads.query), ("k", heads.kv), ("v", heads.kv)]
            .map(|(name, count)| g.matrix(name, count * heads.dim, width));
        let (q, k, v) = (q?, k?, v?);
        let [gate, up] = ["gate", "up"].map(|name| g.matrix(name, hidden, width));
        let (gate, up) = (gate?, up?);
        let (o, down) = (g.matrix("o", width, heads.query * heads.dim)?, g.matrix("down", width, hidden)?);
        let norm = g.vector("norm", width)?;
        let inv_freq: Arc<[f64]> = (0..heads.dim / 2).map(|i| 0.8f64.powi(i as i32)).collect();
        let spec = RopeSpec { dims: heads.dim, inv_freq, magnitude: 1.0, pairing: RopePairing::Halves };
        let scale = 1.0 / (heads.dim as f32).sqrt();
        let mut x = g.embed(table, 1.0)?;
        for layer in 0..layers {
            let h = g.rms_norm(x, norm, 1e-5)?;
            let (q, k, v) = (g.matmul(h, q)?, g.matmul(h, k)?, g.matmul(h, v)?);
            let (q, k) = (g.rope(q, heads.dim, &spec)?, g.rope(k, heads.dim, &spec)?);
            let attention = AttentionSpec { layer, heads, scale, window, soft_cap: Some(20.0) };
            let a = g.attention(q, k, v, attention)?;
            let a = g.matmul(a, o)?;
            x = g.add(x, a)?;
            let h = g.rms_norm(x, norm, 1e-5)?;
            let gated = g.matmul(h, gate)?;
            let gated = g.activation(gated, Activation::Silu)?;
            let up = g.matmul(h, up)?;
            let h = g.mul(gated, up)?;
            let h = g.matmul(h, down)?;
            x = g.add(x, h)?;
        }
        let x = g.outputs(x)?;
        let logits = g.matmul(x, table)?;
        let p = g.softmax(logits)?;
        g.output("probabilities", p)?;
        let sampled = g.sample(logits)?;
        g.output("sampled", sampled)?;
        Ok(g)
    }

    /// The layers with weights of 8 bits, and `pages` pages.
    pub fn session<B: Backend>(
        &self,
        backend: B,
        limits: StepLimits,
        dtype: KvDtype,
        pages: usize,
    ) -> Session<B> {
        let element_bytes = |precision| backend.element_bytes(precision);
        let options = CompileOptions {
            limits,
            element_bytes: &element_bytes,
            fuse: Fusion::On,
            activations: Precision::F32,
        };
        let plan = self.graph().expect("shapes that fit").compile(&options).expect("a graph that compiles");
        let weights = self.weights(&backend, &plan);
        let layout = self.kv_layout(dtype);
        Session::new(backend, plan, weights, Some(KvMemory { layout, pages })).expect("memory")
    }

    pub fn kv_layout(&self, dtype: KvDtype) -> KvLayout {
        let Shape { layers, heads, .. } = *self;
        KvLayout { layers, kv_heads: heads.kv, head_dim: heads.dim, dtype }
    }

    /// `tokens` tokens from position `first` on, of one sequence with its pages.
    pub fn step(&self, first: u32, tokens: u32) -> StepInput {
        let pages = (first + tokens).div_ceil(16);
        StepInput {
            tokens: (first..first + tokens).map(|i| TokenId(i % self.vocab as u32)).collect(),
            positions: (first..first + tokens).collect(),
            sequences: vec![StepSequence { rows: 0..tokens, pages: 0..pages, window: None }],
            pages: (0..pages).map(|i| PageRef { page: PageId(i), start: 16 * i }).collect(),
            outputs: vec![tokens - 1],
            ..StepInput::default()
        }
    }

    fn weights<B: Backend>(&self, backend: &B, plan: &Plan) -> Weights<B> {
        let group = self.group;
        let matrix = |rows: usize, cols: usize| {
            let code = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7) as u8;
            let codes = (0..rows * cols).map(code).collect();
            let scales = vec![half::f16::from_f32(0.004 / (cols as f32).sqrt()); rows * cols.div_ceil(group)];
            let parts = QuantParts { rows, cols, kind: Bits::Eight.into(), group, codes, scales, mins: None };
            WeightMatrix::Quant(QuantMatrix::new(parts).expect("parts that fit"))
        };
        let prepare = |rows, cols| backend.prepare(&matrix(rows, cols)).expect("memory");
        Weights {
            matrices: plan.matrices().iter().map(|spec| prepare(spec.rows, spec.cols)).collect(),
            vectors: plan
                .vectors()
                .iter()
                .map(|spec| backend.upload_vector(&vec![1.0; spec.len]).expect("memory"))
                .collect(),
        }
    }
}
