//! Operations that CPUs and the reference have, and GPUs not yet: norms with a kind and a bias, attention over rows
//! at hand, experts.

use ottava::ir::{
    Axis, AxisRows, Combine, ExpertMatmul, Heads, MatrixStack, Norm, NormKind, Normalize, Op, Place, Route,
    RowAttention, Rows, Sees, Write,
};
use ottava::quant::{Bits, DenseMatrix, DenseValues, WeightMatrix};

use crate::case::{Case, Numbers};

/// All rows.
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [1, 7, 16, 17, 100, 576].into_iter().flat_map(norms).collect();
    cases.extend([Sees::All, Sees::Causal, Sees::Span(1), Sees::Span(3)].map(of_sequences));
    cases.extend([8, 17, 64].map(across));
    cases.extend([(1, false), (2, true), (5, false), (5, true)].map(|(top_k, sum)| routes(top_k, sum)));
    cases.extend([dense(false), dense(true), quantised()]);
    cases.extend([Write::Store, Write::Add].map(combined));
    cases
}

/// Rows far from zero, whose mean is most of them, beside others.
fn norms(cols: usize) -> Vec<Case> {
    let with = |kind: NormKind, bias: bool, write: Write, in_place: bool| {
        let mut case =
            Case::new(format!("{kind:?} norm, bias {bias}, {write:?}, in place {in_place}, {cols}"));
        let mut numbers = Numbers(cols as u64 + 1);
        let weight = case.vector(numbers.take(cols));
        let bias = bias.then(|| case.vector(numbers.take(cols)));
        let mut rows = numbers.take(5 * cols);
        rows[2 * cols..3 * cols].iter_mut().for_each(|x| *x += 500.0);
        let src = case.input(&rows, cols);
        let dst = match (in_place, write) {
            (true, _) => src,
            (false, Write::Store) => case.output(5, cols),
            (false, Write::Add) => case.input(&numbers.take(5 * cols), cols),
        };
        case.results = vec![dst];
        case.ops =
            vec![Op::Norm(Normalize { dst, src, norm: Norm { kind, weight, bias, eps: 1e-3 }, write })];
        // The mean of 500 costs digits of what is left.
        case.within(1e-3)
    };
    vec![
        with(NormKind::Layer, true, Write::Store, false),
        with(NormKind::Layer, false, Write::Add, false),
        with(NormKind::Layer, true, Write::Store, true),
        with(NormKind::Rms, true, Write::Store, false),
    ]
}

/// Two sequences of a step, each over its own rows.
fn of_sequences(sees: Sees) -> Case {
    let mut case = Case::new(format!("rows that see {sees:?}")).at(0..5);
    case.sequence(0..9, None);
    let (heads, tokens) = (Heads { query: 6, kv: 2, dim: 20 }, 14);
    let mut numbers = Numbers(7);
    let mut input = |heads: usize| tokens_of(case.input(&numbers.take(tokens * heads * 20), heads * 20));
    let (q, k, v) = (input(heads.query), input(heads.kv), input(heads.kv));
    let dst = tokens_of(case.output(tokens, heads.query * 20));
    case.results = vec![dst];
    case.ops = vec![Op::RowAttention(RowAttention { dst, q, k, v, heads, scale: 0.25, sees })];
    case.within(1e-5)
}

fn tokens_of(place: Place) -> Place {
    Place { rows: Rows::Tokens, ..place }
}

/// Three sequences, of which each looks at its own frames; the second has none.
fn across(dim: usize) -> Case {
    let mut case = Case::new(format!("across to an axis, heads of {dim}")).at(3..5);
    case.sequence(0..1, None);
    case.sequence(7..10, None);
    case.step.axes = vec![AxisRows::default(), AxisRows { rows: vec![0..4, 4..4, 4..11] }];
    case.step.axes[0].rows = vec![0..0; 3];
    let heads = Heads { query: 3, kv: 3, dim };
    let mut numbers = Numbers(dim as u64);
    let frames = Rows::Axis(Axis { id: 1, max: 11 });
    let q = tokens_of(case.input(&numbers.take(6 * 3 * dim), 3 * dim));
    let [k, v] = [(); 2].map(|()| Place { rows: frames, ..case.input(&numbers.take(11 * 3 * dim), 3 * dim) });
    let dst = tokens_of(case.output(6, 3 * dim));
    case.results = vec![dst];
    case.ops = vec![Op::RowAttention(RowAttention { dst, q, k, v, heads, scale: 0.5, sees: Sees::All })];
    case.within(1e-5)
}

/// Among the logits are equal ones.
fn routes(top_k: usize, renormalise: bool) -> Case {
    let mut case = Case::new(format!("routes to {top_k} of 5, sum 1: {renormalise}"));
    let mut logits = Numbers(3).take(4 * 5);
    logits[5..10].copy_from_slice(&[1.0, 2.0, 2.0, -1.0, 2.0]);
    logits[10..15].fill(0.5);
    let src = case.input(&logits, 5);
    let dst = case.output(4, 2 * top_k);
    case.ops = vec![Op::Route(Route { dst, src, top_k, renormalise })];
    case
}

/// Three experts of f32, and each row's two; where `apart` is set a row has a part for each.
fn dense(apart: bool) -> Case {
    let mut numbers = Numbers(11);
    let [rows, cols] = [17, 100];
    let expert = |values| {
        let dense = DenseMatrix::new(rows, cols, DenseValues::F32(values)).expect("as many values");
        WeightMatrix::Dense(dense)
    };
    let experts: Vec<WeightMatrix> = (0..3).map(|_| expert(numbers.take(rows * cols))).collect();
    products(format!("dense experts, parts apart: {apart}"), experts, apart, numbers).within(1e-5)
}

fn quantised() -> Case {
    let mut numbers = Numbers(13);
    let experts = (0..3).map(|_| numbers.matrix([49, 64], Bits::Four, 32, false)).collect();
    Case { eps_int8: 2e-2, ..products("experts of 4 bits".into(), experts, false, numbers).within(1e-5) }
}

fn products(name: String, experts: Vec<WeightMatrix>, apart: bool, mut numbers: Numbers) -> Case {
    let mut case = Case::new(name);
    let [rows, cols] = [experts[0].rows(), experts[0].cols()];
    let ids: Vec<_> = experts.into_iter().map(|expert| case.matrix(expert)).collect();
    let routes = [[0.0, 2.0], [1.0, 0.0], [2.0, 1.0], [1.0, 2.0]].map(|[a, b]| [a, b, 0.5, 0.5]).concat();
    let routes = case.input(&routes, 4);
    let cols = if apart { 2 * cols } else { cols };
    let src = case.input(&numbers.take(4 * cols), cols);
    let dst = case.output(4, 2 * rows);
    let experts = MatrixStack { first: ids[0], count: ids.len() };
    case.ops = vec![Op::ExpertMatmul(ExpertMatmul { dst, src, routes, experts })];
    case
}

fn combined(write: Write) -> Case {
    let mut case = Case::new(format!("parts combined, {write:?}"));
    let mut numbers = Numbers(17);
    let routes: Vec<f32> = (0..4).flat_map(|row| [0.0, 1.0, 2.0, 0.5, 0.25 * row as f32, -0.125]).collect();
    let routes = case.input(&routes, 6);
    let src = case.input(&numbers.take(4 * 3 * 7), 3 * 7);
    let dst = match write {
        Write::Store => case.output(4, 7),
        Write::Add => case.input(&numbers.take(4 * 7), 7),
    };
    case.results = vec![dst];
    case.ops = vec![Op::Combine(Combine { dst, src, routes, write })];
    case
}
