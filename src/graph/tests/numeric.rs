//! Plan results on the reference backend: compared with a naive evaluation of the nodes, and fused compared
//! with unfused.

use proptest::prelude::*;

use crate::TokenId;
use crate::backend::{Backend, PreparedMatrix, Reference, Weights};
use crate::graph::node::NodeKind;
use crate::graph::{Fusion, Graph, Plan};
use crate::ir::{
    Activation, BinaryFn, KvDtype, KvLayout, Op, PageId, PageRef, StepInput, StepSequence, UnaryFn,
};
use crate::ir::{OpTime, OpTimes, Work};
use crate::quant::{DenseMatrix, DenseValues, WeightMatrix};
use crate::session::{KvMemory, Session};

use super::{GEMMA, LIMITS, LLAMA, QWEN2, QWEN3, choices, decoder, options, random_graph};

/// A deterministic value in (−1, 1) for a name and an index.
fn noise(name: &str, index: usize) -> f32 {
    let seed = name
        .bytes()
        .fold(index as u64 + 1, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let mixed = (seed ^ (seed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn matrix(name: &str, len: usize) -> Vec<f32> {
    (0..len).map(|index| 0.4 * noise(name, index)).collect()
}

fn vector(name: &str, len: usize) -> Vec<f32> {
    (0..len).map(|index| 1.0 + 0.5 * noise(name, index)).collect()
}

fn session(plan: Plan) -> Session<Reference> {
    let prepare = |(name, rows, cols): (&str, usize, usize)| {
        let dense = DenseMatrix::new(rows, cols, DenseValues::F32(matrix(name, rows * cols))).expect("sized");
        Reference.prepare(&WeightMatrix::Dense(dense)).expect("prepares")
    };
    let matrices = plan.matrices().iter().map(|spec| prepare((&spec.name, spec.rows, spec.cols))).collect();
    let upload = |name: &str, len| Reference.upload_vector(&vector(name, len)).expect("uploads");
    let vectors = plan.vectors().iter().map(|spec| upload(&spec.name, spec.len)).collect();
    let kv = plan.kv().first().map(|kv| KvMemory {
        layout: KvLayout {
            layers: kv.layers,
            kv_heads: kv.kv_heads,
            head_dim: kv.head_dim,
            dtype: KvDtype::F16,
        },
        pages: 4,
    });
    Session::new(Reference, plan, Weights { matrices, vectors }, kv).expect("binds")
}

/// Two sequences: a new one with four tokens, and one with `past` cached tokens.
fn step(past: u32) -> StepInput {
    let page = |page| PageRef { page: PageId(page), start: 0 };
    StepInput {
        tokens: [3, 1, 4, 1, 5, 9].map(TokenId).to_vec(),
        positions: [0, 1, 2, 3, past, past + 1].to_vec(),
        sequences: vec![
            StepSequence { rows: 0..4, pages: 0..1, window: None },
            StepSequence { rows: 4..6, pages: 1..2, window: None },
        ],
        pages: vec![page(2), page(1)],
        outputs: vec![0, 3, 5],
        ..StepInput::default()
    }
}

fn logits(session: &mut Session<Reference>) -> Vec<f32> {
    let mut all = Vec::new();
    for past in [0, 2, 4] {
        session.main().run(&step(past)).expect("runs");
        let mut out = vec![f32::NAN; 3 * 20];
        session.read("logits", 0, &mut out).expect("reads");
        all.extend(out);
    }
    all
}

#[test]
fn fused_and_unfused_decoders_agree() {
    for parts in [LLAMA, QWEN2, QWEN3, GEMMA] {
        let g = decoder(2, parts).expect("builds");
        let [fused, plain] = [Fusion::On, Fusion::Off]
            .map(|fusion| logits(&mut session(g.compile(&options(fusion)).expect("compiles"))));
        let worst = fused.iter().zip(&plain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-4, "{parts:?}: {worst}");
        assert!(plain.iter().any(|value| value.abs() > 0.1), "{parts:?}: nothing was computed");
    }
}

#[test]
fn a_malformed_step_runs_nothing() {
    let g = decoder(1, LLAMA).expect("builds");
    let mut session = session(g.compile(&options(Fusion::On)).expect("compiles"));
    let error =
        session.main().run(&StepInput { positions: vec![0], ..step(0) }).expect_err("positions").to_string();
    assert!(error.contains("1 positions for 6 tokens"), "{error}");
    let error =
        session.main().run(&StepInput { tokens: vec![TokenId(20); 6], ..step(0) }).expect_err("vocabulary");
    assert!(error.to_string().contains("vocabulary of 20"), "{error}");
}

#[test]
fn unknown_names_are_told_with_those_that_exist() {
    let g = decoder(1, LLAMA).expect("builds");
    let mut session = session(g.compile(&options(Fusion::On)).expect("compiles"));
    let error = session.read("hidden", 0, &mut [0.0; 20]).expect_err("no such output").to_string();
    assert_eq!(error, "no output is named hidden; there are: logits");
    assert!(session.main().set_input("x", &[]).is_err());
    assert!(session.read("logits", 3, &mut [0.0; 20]).is_err());
}

#[test]
fn a_timed_run_computes_the_same_and_tells_of_every_operation() {
    let g = decoder(1, LLAMA).expect("builds");
    let mut session = session(g.compile(&options(Fusion::On)).expect("compiles"));
    let (mut plain, mut timed) = (vec![0.0; 60], vec![f32::NAN; 60]);
    session.main().run(&step(0)).expect("runs");
    session.read("logits", 0, &mut plain).expect("reads");
    let (mut names, mut times) = (Vec::new(), OpTimes::default());
    let tell = |op: &Op, time: OpTime| {
        names.push(op.name());
        times[op.kind() as usize] += time;
    };
    session.main().run_timed(&step(0), tell).expect("runs");
    session.read("logits", 0, &mut timed).expect("reads");
    assert_eq!((plain, session.steps()), (timed, 2));
    assert_eq!(names, session.plan().ops().iter().map(Op::name).collect::<Vec<_>>());
    assert_eq!(times.iter().map(|time| time.runs).sum::<u64>(), names.len() as u64);
    // Each matrix is read once; six rows pass through the layer, three through the output projection.
    let [matmul, attention, ..] = times.map(|time| time.work);
    let elements = (32 + 16 + 16) * 24 + 24 * 32 + 3 * 40 * 24;
    let bytes: usize = session.weights().matrices.iter().map(PreparedMatrix::bytes).sum();
    assert_eq!(matmul, Work { bytes: bytes as u64, int8_macs: 0, float_macs: 6 * elements + 3 * 20 * 24 });
    // Four rows see 1 to 4 keys and two rows see 1 to 2 keys, in two KV heads of eight f16 elements.
    assert_eq!(attention, Work { bytes: 6 * 64, int8_macs: 0, float_macs: 2 * (10 + 3) * 32 });
}

/// Values of every node, evaluated in order in f64: `[rows][cols]`.
fn evaluate(g: &Graph, inputs: [&[f32]; 2], positions: &[u32]) -> Vec<Vec<Vec<f64>>> {
    let mut values: Vec<Vec<Vec<f64>>> = Vec::new();
    let mut next_input = inputs.iter();
    for node in &g.nodes {
        let value = match &node.kind {
            NodeKind::Input => {
                let rows = next_input.next().expect("two inputs").chunks_exact(8);
                rows.map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect()
            }
            NodeKind::Binary { a, b, f } => {
                let (a, b) = (&values[a.index()], &values[b.index()]);
                let apply = |(x, y): (&f64, &f64)| match f {
                    BinaryFn::Add => x + y,
                    BinaryFn::Sub => x - y,
                    BinaryFn::Mul => x * y,
                };
                a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(apply).collect()).collect()
            }
            kind => {
                let rows = values[kind.operands()[0].index()].iter().enumerate();
                rows.map(|(row, x)| evaluate_row(g, kind, x, positions[row])).collect()
            }
        };
        values.push(value);
    }
    values
}

fn evaluate_row(g: &Graph, kind: &NodeKind, x: &[f64], position: u32) -> Vec<f64> {
    let gain = |index: u32| {
        let spec = &g.vectors[index as usize];
        vector(&spec.name, spec.len).into_iter().map(f64::from).collect::<Vec<f64>>()
    };
    match kind {
        NodeKind::Norm { norm, .. } => {
            let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            let scale = 1.0 / (mean + f64::from(norm.eps)).sqrt();
            x.iter().zip(gain(norm.weight.0)).map(|(x, w)| x * scale * w).collect()
        }
        NodeKind::Matmul { matrix: id, bias, .. } => {
            let weights = matrix(&g.matrices[id.0 as usize].name, 64);
            let bias = bias.map_or(vec![0.0; 8], |bias| gain(bias.0));
            let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
            weights.chunks_exact(8).zip(bias).map(|(row, bias)| dot(row) + bias).collect()
        }
        NodeKind::Unary { f: UnaryFn::Activation(Activation::Silu), .. } => {
            x.iter().map(|x| x / (1.0 + (-x).exp())).collect()
        }
        NodeKind::Softmax { .. } => {
            let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
            x.iter().map(|x| (x - max).exp() / sum).collect()
        }
        NodeKind::Rope { spec, .. } => {
            let mut y = x.to_vec();
            for head in [0, 4] {
                for pair in 0..2 {
                    let (sin, cos) = (f64::from(position) * spec.inv_freq[pair]).sin_cos();
                    let (a, b) = (x[head + pair], x[head + pair + 2]);
                    (y[head + pair], y[head + pair + 2]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
            y
        }
        other => unreachable!("{other:?} is not in random graphs"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn plans_compute_what_graphs_mean((choices, outputs) in choices()) {
        let g = random_graph(&choices, &outputs).expect("builds");
        let rows = LIMITS.tokens_max;
        let inputs = ["x", "y"].map(|name| matrix(name, rows * 8));
        let step = StepInput {
            tokens: vec![TokenId(0); rows],
            positions: (0..rows as u32).map(|row| 7 * row).collect(),
            ..StepInput::default()
        };
        let expected = evaluate(&g, [&inputs[0], &inputs[1]], &step.positions);
        for fusion in [Fusion::On, Fusion::Off] {
            let mut session = session(g.compile(&options(fusion)).expect("compiles"));
            session.main().set_input("x", &inputs[0]).expect("fills");
            session.main().set_input("y", &inputs[1]).expect("fills");
            // The second run reads the inputs as they were set.
            session.main().run(&step).expect("runs");
            session.main().run(&step).expect("runs");
            for (name, node) in &g.outputs {
                let mut found = vec![f32::NAN; rows * 8];
                session.read(name, 0, &mut found).expect("reads");
                let expected = expected[node.index()].iter().flatten().map(|&value| value as f32);
                for (found, expected) in found.into_iter().zip(expected) {
                    let close = (found - expected).abs() <= 1e-5 * (1.0 + expected.abs());
                    prop_assert!(close || !expected.is_finite(), "{name}: {found}, not {expected}\n{}", session.plan());
                }
            }
        }
    }
}
