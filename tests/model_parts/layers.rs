//! Layers whose keys and values differ in their heads.

use ottava::backend::{Backend, PageMemory as _, Reference, Weights};
use ottava::graph::{AttentionSpec, CompileOptions, Fusion, Graph, GraphError};
use ottava::ir::{Heads, KvDtype, KvLayout, PageId, PageRef, Precision, Rows, StepLimits};
use ottava::session::{KvMemory, Session};

use crate::{Builder, Outcome, Values, WIDTH, cpu, session, softmax, step};

/// The heads of three layers: two alike, one of fewer and longer heads between them.
const LAYERS: [Heads; 3] = [
    Heads { query: 4, kv: 2, dim: 8 },
    Heads { query: 2, kv: 1, dim: 32 },
    Heads { query: 2, kv: 2, dim: 8 },
];

fn layers_of_different_heads() -> Result<Graph, GraphError> {
    let mut b = Builder(Graph::new());
    let mut x = b.0.input("x", Rows::Tokens, WIDTH)?;
    for (layer, heads) in LAYERS.into_iter().enumerate() {
        let part = |part: &str| format!("{layer}.{part}");
        let h = b.layer_norm(x, &part("norm"))?;
        let q = b.linear(h, &part("q"), heads.query * heads.dim)?;
        let k = b.linear(h, &part("k"), heads.kv * heads.dim)?;
        let v = b.linear(h, &part("v"), heads.kv * heads.dim)?;
        let spec = AttentionSpec { layer, heads, scale: 0.25, window: None, soft_cap: None };
        let attended = b.0.attention(q, k, v, spec)?;
        let out = b.linear(attended, &part("o"), WIDTH)?;
        x = b.0.add(x, out)?;
    }
    b.0.output("y", x)?;
    Ok(b.0)
}

/// What [`layers_of_different_heads`] computes of one sequence; keys and values are kept in f16.
fn through_layers(x: &Values) -> Values {
    let mut x = x.clone();
    for (layer, heads) in LAYERS.into_iter().enumerate() {
        let h = x.layer_norm(&format!("{layer}.norm"));
        let part = |part: &str, heads: usize, dim: usize| h.linear(&format!("{layer}.{part}"), heads * dim);
        let kept = |values: Values| {
            values.map(values.cols, |row| row.iter().map(|&x| half::f16::from_f64(x).to_f64()).collect())
        };
        let q = part("q", heads.query, heads.dim);
        let (k, v) = (kept(part("k", heads.kv, heads.dim)), kept(part("v", heads.kv, heads.dim)));
        let of_row = |row: usize| -> Vec<f64> {
            let of_head = |head: usize| {
                let own = head * heads.dim..(head + 1) * heads.dim;
                let kv = head / (heads.query / heads.kv) * heads.dim;
                let score = |key: &Vec<f64>| {
                    let products = q.rows[row][own.clone()].iter().zip(&key[kv..]).map(|(q, k)| q * k);
                    0.25 * products.sum::<f64>()
                };
                let weights = softmax(&k.rows[..=row].iter().map(score).collect::<Vec<_>>());
                let sum = |col: usize| v.rows.iter().zip(&weights).map(|(v, w)| v[kv + col] * w).sum::<f64>();
                (0..heads.dim).map(sum).collect::<Vec<_>>()
            };
            (0..heads.query).flat_map(of_head).collect()
        };
        let rows = (0..x.rows.len()).map(of_row).collect();
        let out = Values { cols: q.cols, rows }.linear(&format!("{layer}.o"), WIDTH);
        x = x.plus(&out);
    }
    x
}

/// Runs rows of a sequence over its two pages.
fn attend_over<B: Backend>(
    session: &mut Session<B>,
    x: &Values,
    rows: std::ops::Range<usize>,
    pages: [u32; 2],
) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let mut step = step(&[rows.len() as u32], &[]);
    step.positions = rows.clone().map(|row| row as u32).collect();
    step.pages =
        (0..).step_by(16).zip(pages).map(|(start, page)| PageRef { page: PageId(page), start }).collect();
    step.sequences[0].pages = 0..2;
    let values = x.rows[rows].iter().flatten().map(|&x| x as f32);
    session.main().set_input("x", &values.collect::<Vec<_>>())?;
    session.main().run(&step)?;
    let mut out = vec![0.0; step.tokens.len() * WIDTH];
    session.read("y", 0, &mut out)?;
    Ok(out)
}

fn check_layers<B: Backend>(backend: B, tolerance: f64) -> Outcome {
    let x = Values::named("x", 21, WIDTH);
    let want = through_layers(&x).rows.concat();
    let mut session = session(backend, &layers_of_different_heads()?)?;
    let found = attend_over(&mut session, &x, 0..21, [1, 0])?;
    let error = found.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    let largest = want.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    assert!(error <= tolerance * largest, "{error:e} of {largest}");
    // In two steps over other pages, of which the first was copied and the second came from outside.
    let head = attend_over(&mut session, &x, 0..19, [4, 2])?;
    session.kv_mut().copy_page(PageId(4), PageId(5))?;
    let mut bytes = Vec::new();
    session.kv().export_page(PageId(2), &mut bytes)?;
    // Keys and values in f16: two layers of 2 heads of 8, one of a head of 32.
    assert_eq!((bytes.len(), session.page_bytes()), (16 * 2 * 2 * (2 * 16 + 32), bytes.len()));
    session.kv_mut().import_page(PageId(3), &bytes)?;
    assert!(session.kv_mut().import_page(PageId(3), &bytes[1..]).is_err());
    let tail = attend_over(&mut session, &x, 19..21, [5, 3])?;
    assert_eq!([head, tail].concat(), found);
    Ok(())
}

#[test]
fn layers_may_differ_in_the_heads_of_their_keys_and_values() -> Outcome {
    check_layers(Reference, 1e-6)?;
    check_layers(cpu()?, 1e-3)?;
    // As many layers of the first shape as the plan has, and no more: the others come behind them.
    let mut g = Graph::new();
    for (layer, heads) in LAYERS[..2].iter().copied().enumerate() {
        let [q, k] = [("q", heads.query), ("k", heads.kv)]
            .map(|(name, count)| g.input(&format!("{name}{layer}"), Rows::Tokens, count * heads.dim));
        let (k, spec) = (k?, AttentionSpec { layer, heads, scale: 1.0, window: None, soft_cap: None });
        let attended = g.attention(q?, k, k, spec)?;
        g.output(&format!("y{layer}"), attended)?;
    }
    for (layers, fits) in [(0, false), (1, true), (2, false)] {
        let plan = g.compile(&CompileOptions {
            limits: StepLimits { tokens_max: 4, outputs_max: 1 },
            element_bytes: &|_| 8,
            fuse: Fusion::On,
            activations: Precision::F32,
        })?;
        let layout = KvLayout { layers, kv_heads: 2, head_dim: 8, dtype: KvDtype::F16 };
        let weights = Weights { matrices: vec![], vectors: vec![] };
        let bound = Session::new(Reference, plan, weights, Some(KvMemory { layout, pages: 1 }));
        assert_eq!(bound.is_ok(), fits, "{layers} layers");
    }
    Ok(())
}
