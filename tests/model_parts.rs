//! Blocks of models to come, each a small graph on every backend that has its operations, against a naive f64
//! evaluation of their own: a bidirectional block of an encoder, a block of experts, a decoder that looks at
//! an encoder's rows, a recurrent block, layers whose keys and values differ in their heads, and two programs
//! of one graph.

#[path = "model_parts/layers.rs"]
mod layers;
#[path = "model_parts/own.rs"]
mod own;
#[path = "model_parts/programs.rs"]
mod programs;
#[path = "model_parts/recurrent.rs"]
mod recurrent;

use std::num::NonZeroUsize;

use ottava::TokenId;
use ottava::backend::cpu::{Compute, Cpu, CpuOptions};
use ottava::backend::{Backend, Reference};
use ottava::graph::{CompileOptions, Fusion, Graph, GraphError, NodeId, RowAttentionSpec};
use ottava::ir::{
    Activation, AttentionMask, AxisRows, Heads, KvDtype, KvLayout, Precision, Rows, StepInput, StepLimits,
    StepSequence,
};
use ottava::session::{KvMemory, NamedWeights, Session, SessionError};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const WIDTH: usize = 24;
const HIDDEN: usize = 40;
const HEADS: Heads = Heads { query: 3, kv: 3, dim: 8 };
const EPS: f32 = 1e-5;
const EXPERTS: usize = 4;
const TOP_K: usize = 2;

/// The value of a weight or an input at an index: the same whoever asks.
fn value(name: &str, index: usize) -> f64 {
    let seed = name.bytes().fold(index as u64 + 1, |seed, byte| {
        (seed ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    });
    // As f32 has it, so that backends and the evaluation read the same.
    f64::from((seed >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.4
}

/// Row-major, `[rows, cols]`.
#[derive(Clone)]
struct Values {
    cols: usize,
    rows: Vec<Vec<f64>>,
}

impl Values {
    fn named(name: &str, rows: usize, cols: usize) -> Values {
        let row = |row: usize| (0..cols).map(|col| f64::from(value(name, row * cols + col) as f32)).collect();
        Values { cols, rows: (0..rows).map(row).collect() }
    }

    fn map(&self, cols: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Values {
        Values { cols, rows: self.rows.iter().map(|row| f(row)).collect() }
    }

    fn plus(&self, other: &Values) -> Values {
        let sum = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(a, b)| a + b).collect();
        Values { cols: self.cols, rows: self.rows.iter().zip(&other.rows).map(sum).collect() }
    }

    /// `x · mᵀ + bias`
    fn linear(&self, name: &str, outputs: usize) -> Values {
        let (matrix, bias) = (Values::named(name, outputs, self.cols), bias_of(name, outputs));
        let dot = |x: &[f64], w: &[f64]| x.iter().zip(w).map(|(x, w)| x * w).sum::<f64>();
        self.map(outputs, |x| matrix.rows.iter().zip(&bias).map(|(w, bias)| dot(x, w) + bias).collect())
    }

    fn layer_norm(&self, name: &str) -> Values {
        let (gain, bias) = (vector_of(name, self.cols), bias_of(name, self.cols));
        self.map(self.cols, |x| {
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
            let scale = 1.0 / (variance + f64::from(EPS)).sqrt();
            x.iter().zip(gain.iter().zip(&bias)).map(|(x, (g, b))| (x - mean) * scale * g + b).collect()
        })
    }
}

fn vector_of(name: &str, len: usize) -> Vec<f64> {
    Values::named(name, 1, len).rows.remove(0)
}

fn bias_of(name: &str, len: usize) -> Vec<f64> {
    vector_of(&format!("{name}.bias"), len)
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|x| (x - max).exp()).sum();
    scores.iter().map(|x| (x - max).exp() / sum).collect()
}

/// Every query over all keys.
fn attend(q: &Values, k: &Values, v: &Values) -> Values {
    let Heads { query, dim, .. } = HEADS;
    q.map(q.cols, |q| {
        let of_head = |head: usize| {
            let part = head * dim..(head + 1) * dim;
            let score = |k: &Vec<f64>| {
                let products = q[part.clone()].iter().zip(&k[part.clone()]).map(|(q, k)| q * k);
                products.sum::<f64>() / (dim as f64).sqrt()
            };
            let weights = softmax(&k.rows.iter().map(score).collect::<Vec<_>>());
            let part = part.clone();
            part.map(move |col| v.rows.iter().zip(&weights).map(|(v, w)| v[col] * w).sum::<f64>())
                .collect::<Vec<_>>()
        };
        (0..query).flat_map(of_head).collect()
    })
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// A graph that names its weights as the evaluation does.
struct Builder(Graph);

impl Builder {
    fn linear(&mut self, x: NodeId, name: &str, outputs: usize) -> Result<NodeId, GraphError> {
        let cols = self.0.shape(x)?.1;
        let (matrix, bias) =
            (self.0.matrix(name, outputs, cols)?, self.0.vector(&format!("{name}.bias"), outputs)?);
        self.0.matmul_bias(x, matrix, bias)
    }

    fn layer_norm(&mut self, x: NodeId, name: &str) -> Result<NodeId, GraphError> {
        let cols = self.0.shape(x)?.1;
        let (gain, bias) = (self.0.vector(name, cols)?, self.0.vector(&format!("{name}.bias"), cols)?);
        self.0.layer_norm(x, gain, Some(bias), EPS)
    }

    fn attend(&mut self, x: NodeId, keys: NodeId, name: &str) -> Result<NodeId, GraphError> {
        let q = self.linear(x, &format!("{name}.q"), WIDTH)?;
        let k = self.linear(keys, &format!("{name}.k"), WIDTH)?;
        let v = self.linear(keys, &format!("{name}.v"), WIDTH)?;
        let spec = RowAttentionSpec {
            heads: HEADS,
            scale: 1.0 / (HEADS.dim as f32).sqrt(),
            mask: AttentionMask::Full,
        };
        let attended = self.0.row_attention(q, k, v, spec)?;
        self.linear(attended, &format!("{name}.o"), WIDTH)
    }
}

/// What [`Builder::attend`] computes.
fn attended(x: &Values, keys: &Values, name: &str) -> Values {
    let part = |of: &Values, part: &str| of.linear(&format!("{name}.{part}"), WIDTH);
    attend(&part(x, "q"), &part(keys, "k"), &part(keys, "v")).linear(&format!("{name}.o"), WIDTH)
}

/// Weights that have the values of their names.
fn weights_of(graph: &Graph) -> Result<NamedWeights, SessionError> {
    let mut weights = NamedWeights::new();
    // Experts follow each other under one name: the last one says how many rows it has.
    for spec in graph.matrices() {
        let rows = spec.first_row + spec.rows;
        let values = (0..rows * spec.cols).map(|index| value(&spec.name, index) as f32).collect();
        weights = weights.dense(&spec.name, [rows, spec.cols], values)?;
    }
    let f32s = |values: Vec<f64>| values.into_iter().map(|x| x as f32).collect::<Vec<_>>();
    let of_vectors = graph.vectors().iter();
    Ok(of_vectors
        .fold(weights, |weights, spec| weights.vector(&spec.name, f32s(vector_of(&spec.name, spec.len)))))
}

/// A session whose weights are those of their names.
fn session<B: Backend>(backend: B, graph: &Graph) -> Result<Session<B>, Box<dyn std::error::Error>> {
    let plan = graph.compile(&CompileOptions {
        limits: StepLimits { tokens_max: 32, outputs_max: 2 },
        element_bytes: &|precision| backend.element_bytes(precision),
        fuse: Fusion::On,
        activations: Precision::F32,
    })?;
    let weights = weights_of(graph)?.bind(&plan, &backend)?;
    let kv = plan.kv().first().map(|shape| KvMemory {
        layout: KvLayout {
            layers: shape.layers,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            dtype: KvDtype::F16,
        },
        pages: 6,
    });
    Ok(Session::new(backend, plan, weights, kv)?)
}

/// A step of sequences of so many tokens, each with its rows of the one axis.
fn step(tokens: &[u32], frames: &[u32]) -> StepInput {
    let mut step = StepInput::default();
    for &count in tokens {
        let first = step.tokens.len() as u32;
        step.positions.extend(0..count);
        step.tokens.extend((0..count).map(TokenId));
        step.sequences.push(StepSequence { rows: first..first + count, pages: 0..0, window: None });
    }
    let mut end = 0;
    let rows = frames
        .iter()
        .map(|count| {
            (end, {
                end += count;
                end
            })
        })
        .map(|(start, end)| start..end)
        .collect();
    step.axes = if frames.is_empty() { Vec::new() } else { vec![AxisRows { rows }] };
    step
}

/// What a graph gives for inputs of these names, `[rows, WIDTH]` each, on a backend.
fn run<B: Backend>(
    backend: B,
    graph: &Graph,
    step: &StepInput,
    inputs: &[(&str, &Values)],
) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let mut session = session(backend, graph)?;
    for (name, values) in inputs {
        let values: Vec<f32> = values.rows.iter().flatten().map(|&x| x as f32).collect();
        session.main().set_input(name, &values)?;
    }
    session.main().run(step)?;
    let rows = session.plan().place("y").map_or(0, |place| place.rows.count(step));
    let mut out = vec![0.0; rows * WIDTH];
    session.read("y", 0, &mut out)?;
    Ok(out)
}

fn cpu() -> Result<Cpu, ottava::backend::BackendError> {
    Cpu::new(&CpuOptions { threads: NonZeroUsize::new(2), compute: Compute::F32, ..CpuOptions::default() })
}

/// Holds reference and CPU against the evaluation, and each sequence against itself alone on the CPU, to the
/// bit.
fn check(
    graph: &Graph,
    sequences: &[u32],
    frames: &[u32],
    inputs: &[(&'static str, &Values)],
    want: &Values,
) -> Outcome {
    let whole = step(sequences, frames);
    let want: Vec<f64> = want.rows.concat();
    let largest = want.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    let on_cpu = run(cpu()?, graph, &whole, inputs)?;
    for (found, tolerance) in [(&run(Reference, graph, &whole, inputs)?, 1e-6), (&on_cpu, 1e-5)] {
        assert_eq!(found.len(), want.len());
        let error = found.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        assert!(error <= tolerance * largest, "{error:e} of {largest}");
    }
    let (mut first, mut first_frame) = (0, 0);
    for (index, &count) in sequences.iter().enumerate() {
        let count = count as usize;
        let own = frames.get(index).map_or(0, |&count| count as usize);
        let part = |(name, values): &(&'static str, &Values), range: std::ops::Range<usize>| {
            (*name, Values { cols: values.cols, rows: values.rows[range].to_vec() })
        };
        let alone: Vec<_> = inputs
            .iter()
            .map(|input| match input.0 {
                "frames" => part(input, first_frame..first_frame + own),
                _ => part(input, first..first + count),
            })
            .collect();
        let alone: Vec<(&str, &Values)> = alone.iter().map(|(name, values)| (*name, values)).collect();
        let frames = frames.get(index..index + 1).unwrap_or_default();
        let found = run(cpu()?, graph, &step(&[count as u32], frames), &alone)?;
        assert_eq!(found, on_cpu[first * WIDTH..(first + count) * WIDTH], "sequence {index} alone");
        (first, first_frame) = (first + count, first_frame + own);
    }
    Ok(())
}

/// Evaluates each sequence's rows apart.
fn by_sequence(x: &Values, sequences: &[u32], f: impl Fn(&Values, usize) -> Values) -> Values {
    let (mut first, mut rows) = (0, Vec::new());
    for (index, &count) in sequences.iter().enumerate() {
        let own = Values { cols: x.cols, rows: x.rows[first..first + count as usize].to_vec() };
        rows.extend(f(&own, index).rows);
        first += count as usize;
    }
    Values { cols: x.cols, rows }
}

#[test]
fn a_bidirectional_block_with_layer_norm_and_bias() -> Outcome {
    let mut b = Builder(Graph::new());
    let x = b.0.input("x", Rows::Tokens, WIDTH)?;
    let attended_x = b.attend(x, x, "attention")?;
    let sum = b.0.add(x, attended_x)?;
    let h = b.layer_norm(sum, "norm1")?;
    let up = b.linear(h, "up", HIDDEN)?;
    let up = b.0.activation(up, Activation::GeluTanh)?;
    let down = b.linear(up, "down", WIDTH)?;
    let sum = b.0.add(h, down)?;
    let y = b.layer_norm(sum, "norm2")?;
    b.0.output("y", y)?;

    let sequences = [5, 1, 9];
    let x = Values::named("x", 15, WIDTH);
    let want = by_sequence(&x, &sequences, |x, _| {
        let h = x.plus(&attended(x, x, "attention")).layer_norm("norm1");
        let up = h.linear("up", HIDDEN);
        let up = up.map(HIDDEN, |x| x.iter().map(|&x| gelu(x)).collect());
        h.plus(&up.linear("down", WIDTH)).layer_norm("norm2")
    });
    check(&b.0, &sequences, &[], &[("x", &x)], &want)
}

/// An encoder's embeddings: exact GELU, a difference, and the mean of each sequence that has an output.
#[test]
fn the_mean_of_an_encoders_rows() -> Outcome {
    let mut b = Builder(Graph::new());
    let x = b.0.input("x", Rows::Tokens, WIDTH)?;
    let up = b.linear(x, "up", HIDDEN)?;
    let up = b.0.activation(up, Activation::Gelu)?;
    let down = b.linear(up, "down", WIDTH)?;
    let difference = b.0.sub(down, x)?;
    let pooled = b.0.mean_rows(difference)?;
    assert_eq!(b.0.shape(pooled)?, (Rows::Outputs, WIDTH));
    assert!(matches!(b.0.mean_rows(pooled), Err(GraphError::Shape { .. })));
    b.0.output("y", pooled)?;

    let (sequences, x) = ([5, 1, 9], Values::named("x", 15, WIDTH));
    let difference = {
        let up = x.linear("up", HIDDEN).map(HIDDEN, |x| x.iter().map(|&x| x * normal(x)).collect());
        up.linear("down", WIDTH).plus(&x.map(WIDTH, |x| x.iter().map(|x| -x).collect()))
    };
    let mean = |rows: std::ops::Range<usize>| -> Vec<f64> {
        let (count, rows) = (rows.len() as f64, &difference.rows[rows]);
        (0..WIDTH).map(|col| rows.iter().map(|row| row[col]).sum::<f64>() / count).collect()
    };
    let want = [mean(0..5), mean(6..15)].concat();
    let largest = want.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    let mut step = step(&sequences, &[]);
    step.outputs = vec![4, 10];
    for (found, tolerance) in
        [(run(Reference, &b.0, &step, &[("x", &x)])?, 1e-6), (run(cpu()?, &b.0, &step, &[("x", &x)])?, 1e-5)]
    {
        let error = found.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        assert!(error <= tolerance * largest, "{error:e} of {largest}");
    }
    Ok(())
}

/// The normal distribution, by the midpoint rule.
fn normal(x: f64) -> f64 {
    const PARTS: i32 = 4000;
    let width = x / f64::from(PARTS);
    let bell = |part: i32| (-((f64::from(part) + 0.5) * width).powi(2) / 2.0).exp();
    0.5 + (0..PARTS).map(bell).sum::<f64>() * width / (2.0 * std::f64::consts::PI).sqrt()
}

#[test]
fn weights_are_bound_by_name_or_refused_by_name() -> Outcome {
    let mut b = Builder(Graph::new());
    let x = b.0.input("x", Rows::Fixed(1), 2)?;
    let y = b.linear(x, "head", 3)?;
    b.0.output("y", y)?;
    let plan = b.0.compile(&CompileOptions {
        limits: StepLimits { tokens_max: 1, outputs_max: 1 },
        element_bytes: &|precision| Reference.element_bytes(precision),
        fuse: Fusion::On,
        activations: Precision::F32,
    })?;
    let refused = |weights: &NamedWeights| match weights.bind(&plan, &Reference) {
        Err(SessionError::Binding { what, expected, found }) => format!("{what}: {expected}, {found}"),
        other => panic!("{:?}", other.map(|_| ())),
    };
    let none = NamedWeights::new();
    assert_eq!(refused(&none), "weight matrix head: [3, 2], none of this name");
    let turned = none.clone().dense("head", [2, 3], vec![0.0; 6])?;
    assert_eq!(refused(&turned), "weight matrix head: [3, 2], [2, 3]");
    let head = none.clone().dense("head", [3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    assert_eq!(refused(&head), "weight vector head.bias: [3], none of this name");
    assert_eq!(refused(&head.clone().vector("head.bias", [0.0])), "weight vector head.bias: [3], [1]");
    let whole = head.vector("head.bias", [0.5, 0.0, 0.0]);
    let more = whole.clone().vector("tail", [0.0]);
    let surplus = "weight vector tail: one of head.bias, a name that the graph does not declare";
    assert_eq!(refused(&more), surplus);
    let few = none.dense("head", [3, 2], vec![0.0; 5]).err().map(|error| error.to_string());
    assert!(few.as_ref().is_some_and(|few| few.contains("weight matrix head")), "{few:?}");
    let mut session = Session::new(Reference, plan.clone(), whole.bind(&plan, &Reference)?, None)?;
    session.main().set_input("x", &[1.0, 10.0])?;
    session.main().run(&StepInput::default())?;
    let mut found = [0.0; 3];
    session.read("y", 0, &mut found)?;
    assert_eq!(found, [21.5, 43.0, 65.0]);
    Ok(())
}

#[test]
fn a_block_of_four_experts() -> Outcome {
    for renormalise in [false, true] {
        let mut b = Builder(Graph::new());
        let x = b.0.input("x", Rows::Tokens, WIDTH)?;
        let logits = b.linear(x, "router", EXPERTS)?;
        let routes = b.0.route(logits, TOP_K, renormalise)?;
        let [gate, up] = ["gate", "up"].map(|name| b.0.matrix_stack(name, EXPERTS, HIDDEN, WIDTH));
        let down = b.0.matrix_stack("down", EXPERTS, WIDTH, HIDDEN)?;
        let (gate, up) = (b.0.expert_matmul(x, gate?, routes)?, b.0.expert_matmul(x, up?, routes)?);
        let gate = b.0.activation(gate, Activation::Silu)?;
        let h = b.0.mul(gate, up)?;
        let parts = b.0.expert_matmul(h, down, routes)?;
        let mixed = b.0.combine(parts, routes)?;
        let y = b.0.add(x, mixed)?;
        b.0.output("y", y)?;

        let x = Values::named("x", 11, WIDTH);
        let want = x.map(WIDTH, |x| mixture(x, renormalise));
        let logits = x.linear("router", EXPERTS);
        let used: std::collections::BTreeSet<usize> =
            logits.rows.iter().flat_map(|row| chosen(row)).collect();
        assert_eq!(used.len(), EXPERTS, "each expert has a row");
        check(&b.0, &[4, 7], &[], &[("x", &x)], &want)?;
    }
    Ok(())
}

/// The experts of the largest logits, largest first.
fn chosen(logits: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.truncate(TOP_K);
    order
}

/// A row of [`a_block_of_four_experts`], expert by expert.
fn mixture(x: &[f64], renormalise: bool) -> Vec<f64> {
    let one = Values { cols: WIDTH, rows: vec![x.to_vec()] };
    let logits = one.linear("router", EXPERTS).rows.remove(0);
    let (weights, chosen) = (softmax(&logits), chosen(&logits));
    let sum = if renormalise { chosen.iter().map(|&expert| weights[expert]).sum() } else { 1.0 };
    let mut out = x.to_vec();
    for expert in chosen {
        let times = |name: &str, x: &[f64], outputs: usize| -> Vec<f64> {
            let matrix = Values::named(name, EXPERTS * outputs, x.len());
            let rows = &matrix.rows[expert * outputs..(expert + 1) * outputs];
            rows.iter().map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
        };
        let (gate, up) = (times("gate", x, HIDDEN), times("up", x, HIDDEN));
        let h: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        let part = times("down", &h, WIDTH);
        out.iter_mut().zip(part).for_each(|(out, x)| *out += weights[expert] / sum * x);
    }
    out
}

#[test]
fn a_decoder_looks_at_the_rows_of_an_encoder() -> Outcome {
    let mut b = Builder(Graph::new());
    let frames = b.0.axis(0, 24);
    let (x, encoded) = (b.0.input("x", Rows::Tokens, WIDTH)?, b.0.input("frames", frames, WIDTH)?);
    // The encoder's rows see each other first.
    let own = b.attend(encoded, encoded, "encoder")?;
    let encoded = b.0.add(encoded, own)?;
    let h = b.layer_norm(x, "norm")?;
    let crossed = b.attend(h, encoded, "cross")?;
    let y = b.0.add(x, crossed)?;
    b.0.output("y", y)?;

    let (sequences, frames) = ([3, 1, 4], [6, 11, 2]);
    let (x, encoded) = (Values::named("x", 8, WIDTH), Values::named("frames", 19, WIDTH));
    let encoder = by_sequence(&encoded, &frames, |x, _| x.plus(&attended(x, x, "encoder")));
    let own = |index: usize| {
        let first: u32 = frames[..index].iter().sum();
        let rows = encoder.rows[first as usize..(first + frames[index]) as usize].to_vec();
        Values { cols: WIDTH, rows }
    };
    let want = by_sequence(&x, &sequences, |x, index| {
        x.plus(&attended(&x.layer_norm("norm"), &own(index), "cross"))
    });
    check(&b.0, &sequences, &frames, &[("x", &x), ("frames", &encoded)], &want)
}

#[test]
fn rows_of_an_axis_that_do_not_fit_are_refused() -> Outcome {
    let mut b = Builder(Graph::new());
    let frames = b.0.axis(0, 4);
    let (x, encoded) = (b.0.input("x", Rows::Tokens, WIDTH)?, b.0.input("frames", frames, WIDTH)?);
    let y = b.attend(x, encoded, "cross")?;
    b.0.output("y", y)?;
    let mut session = session(cpu()?, &b.0)?;
    assert!(session.main().set_input("frames", &vec![0.0; 5 * WIDTH]).is_err(), "5 rows of 4");
    for (frames, what) in [(vec![5], "more rows than the axis has"), (vec![1, 1], "rows of another sequence")]
    {
        assert!(session.main().run(&step(&[2], &frames)).is_err(), "{what}");
    }
    session.main().run(&step(&[2], &[4]))?;
    // A causal attention needs keys that have the queries' order.
    let (q, k) = (b.0.input("q", Rows::Tokens, WIDTH)?, b.0.input("k", frames, WIDTH)?);
    let spec = RowAttentionSpec { heads: HEADS, scale: 1.0, mask: AttentionMask::Causal };
    assert!(matches!(b.0.row_attention(q, k, k, spec), Err(GraphError::Shape { .. })));
    Ok(())
}
