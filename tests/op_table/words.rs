//! Operations that CPUs and the reference have, and GPUs not yet: norms with a kind and a bias, norms of
//! heads, attention over rows at hand, the exact GELU, differences, means, experts, states that are carried
//! from token to token.

use ottava::ir::{
    Activation, AttentionMask, Axis, AxisRows, Binary, BinaryFn, Combine, DeltaHeads, Epilogue, ExpertMatmul,
    GatedDelta, HeadNorm, Heads, Matmul, MatrixStack, MeanRows, Norm, NormKind, Normalize, Op, Place,
    Product, RmsNorm, Route, RowAttention, Rows, ShortConv, State, StateSlot, StateSlots, Unary, UnaryFn,
    WriteMode,
};
use ottava::quant::{Bits, DenseMatrix, DenseValues, WeightMatrix};

use crate::case::{Case, Numbers};

/// All rows.
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [1, 7, 16, 17, 100, 576].into_iter().flat_map(norms).collect();
    cases.extend([(1, 8), (3, 20), (2, 64), (1, 256)].map(|(heads, dim)| head_norm(heads, dim)));
    cases.extend(
        [AttentionMask::Full, AttentionMask::Causal, AttentionMask::Window(1), AttentionMask::Window(3)]
            .map(of_sequences),
    );
    cases.extend([8, 17, 64].map(across));
    cases.extend([1, 7, 16, 100].into_iter().flat_map(gelu_and_differences));
    cases.extend([gated(Bits::Four), gated(Bits::Eight)]);
    cases.extend([1, 5, 16, 33, 576].into_iter().flat_map(means));
    cases.extend([(1, false), (2, true), (5, false), (5, true)].map(|(top_k, sum)| routes(top_k, sum)));
    cases.extend([dense(false), dense(true), quantised()]);
    cases.extend([WriteMode::Store, WriteMode::Add].map(combined));
    cases.extend([(1, 4), (7, 2), (16, 3), (17, 4), (100, 5)].map(|(cols, width)| convolution(cols, width)));
    let heads = |key, value, key_dim, value_dim| DeltaHeads { key, value, key_dim, value_dim };
    cases.extend([heads(1, 1, 1, 1), heads(2, 2, 8, 16), heads(2, 6, 20, 17), heads(1, 3, 5, 40)].map(delta));
    cases
}

/// Rows far from zero, whose mean is most of them, beside others.
fn norms(cols: usize) -> Vec<Case> {
    let with = |kind: NormKind, bias: bool, write: WriteMode, in_place: bool| {
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
            (false, WriteMode::Store) => case.output(5, cols),
            (false, WriteMode::Add) => case.input(&numbers.take(5 * cols), cols),
        };
        case.results = vec![dst];
        case.ops =
            vec![Op::Norm(Normalize { dst, src, norm: Norm { kind, weight, bias, eps: 1e-3 }, write })];
        // The mean of 500 costs digits of what is left.
        case.within(1e-3)
    };
    vec![
        with(NormKind::Layer, true, WriteMode::Store, false),
        with(NormKind::Layer, false, WriteMode::Add, false),
        with(NormKind::Layer, true, WriteMode::Store, true),
        with(NormKind::Rms, true, WriteMode::Store, false),
    ]
}

fn head_norm(heads: usize, dim: usize) -> Case {
    let mut case = Case::new(format!("norm of {heads} heads of {dim}"));
    let mut numbers = Numbers((heads * dim) as u64);
    let weight = case.vector(numbers.take(dim));
    let x = case.input(&numbers.take(19 * heads * dim), heads * dim);
    case.results = vec![x];
    case.ops = vec![Op::HeadNorm(HeadNorm { x, head_dim: dim, norm: RmsNorm { weight, eps: 1e-6 } })];
    case
}

/// Two sequences of a step, each over its own rows.
fn of_sequences(mask: AttentionMask) -> Case {
    let mut case = Case::new(format!("rows that see {mask:?}")).at(0..5);
    case.sequence(0..9, None);
    let (heads, tokens) = (Heads { query: 6, kv: 2, dim: 20 }, 14);
    let mut numbers = Numbers(7);
    let mut input = |heads: usize| tokens_of(case.input(&numbers.take(tokens * heads * 20), heads * 20));
    let (q, k, v) = (input(heads.query), input(heads.kv), input(heads.kv));
    let dst = tokens_of(case.output(tokens, heads.query * 20));
    case.results = vec![dst];
    case.ops = vec![Op::RowAttention(RowAttention { dst, q, k, v, heads, scale: 0.25, mask })];
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
    case.ops =
        vec![Op::RowAttention(RowAttention { dst, q, k, v, heads, scale: 0.5, mask: AttentionMask::Full })];
    case.within(1e-5)
}

/// Among the values are those that an exponential turns into 0, infinity, or no number.
fn gelu_and_differences(cols: usize) -> Vec<Case> {
    let (mut numbers, limits) = (Numbers(cols as u64 + 19), [1e30, -1e6, 0.0, 1e-30, f32::NAN]);
    let f = UnaryFn::Activation(Activation::Gelu);
    let gelu = |in_place: bool, values: &[f32]| {
        let mut case = Case::new(format!("{f:?} {cols}, in place: {in_place}"));
        let src = case.input(values, cols);
        let dst = if in_place { src } else { case.output(values.len() / cols, cols) };
        case.results = vec![dst];
        case.ops = vec![Op::Unary(Unary { dst, src, f })];
        case
    };
    let mut difference = |b_rows: usize, in_place: bool| {
        let mut case = Case::new(format!("difference {cols}, b of {b_rows} rows, in place: {in_place}"));
        let a = case.input(&numbers.take(9 * cols), cols);
        let b = case.input(&numbers.take(b_rows * cols), cols);
        let dst = if in_place { a } else { case.output(9, cols) };
        case.results = vec![dst];
        case.ops = vec![Op::Binary(Binary { dst, a, b, f: BinaryFn::Sub })];
        case.within(1e-7)
    };
    let differences = [difference(9, false), difference(1, false), difference(9, true)];
    let values = numbers.take(9 * cols);
    let limits: Vec<f32> = limits.iter().flat_map(|&x| vec![x; cols]).collect();
    [gelu(false, &values), gelu(true, &values), gelu(false, &limits)].into_iter().chain(differences).collect()
}

fn gated(bits: Bits) -> Case {
    let mut case = Case::new(format!("a gate of exact GELU, {bits:?}"));
    let mut numbers = Numbers(23);
    let [matrix, up] = [(); 2].map(|()| case.matrix(numbers.matrix([49, 64], bits, 32, false)));
    let (src, dst) = (case.input(&numbers.take(5 * 64), 64), case.output(5, 49));
    let epilogue = Epilogue::Gated { up, activation: Activation::Gelu };
    let products = vec![Product { dst, matrix, bias: None, epilogue }];
    case.ops = vec![Op::Matmul(Matmul { src, norm: None, products })];
    Case { eps_int8: super::INT8_EPS, ..case.within(1e-5) }
}

/// Of three sequences, of which the second has no output, or one of them no frames; and of fixed rows.
fn means(cols: usize) -> [Case; 3] {
    let mean = |name: &str, rows: Rows, count: usize, outputs: &[u32]| {
        let mut case = Case::new(format!("mean of {name} of {cols}")).at(0..5);
        case.sequence(7..8, None);
        case.sequence(0..4, None);
        case.step.outputs = outputs.to_vec();
        case.step.axes = vec![AxisRows { rows: vec![0..4, 4..4, 4..11] }];
        let values = Numbers(cols as u64 + 29).take(count * cols);
        let src = Place { rows, ..case.input(&values, cols) };
        let dst = if outputs.is_empty() { case.output(1, cols) } else { case.gathered(cols) };
        case.ops = vec![Op::MeanRows(MeanRows { dst, src })];
        case
    };
    [
        mean("tokens", Rows::Tokens, 10, &[4, 8, 9]),
        mean("frames", Rows::Axis(Axis { id: 0, max: 11 }), 11, &[0, 5, 9]),
        mean("fixed rows", Rows::Fixed(9), 9, &[]),
    ]
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

fn combined(write: WriteMode) -> Case {
    let mut case = Case::new(format!("parts combined, {write:?}"));
    let mut numbers = Numbers(17);
    let routes: Vec<f32> = (0..4).flat_map(|row| [0.0, 1.0, 2.0, 0.5, 0.25 * row as f32, -0.125]).collect();
    let routes = case.input(&routes, 6);
    let src = case.input(&numbers.take(4 * 3 * 7), 3 * 7);
    let dst = match write {
        WriteMode::Store => case.output(4, 7),
        WriteMode::Add => case.input(&numbers.take(4 * 7), 7),
    };
    case.results = vec![dst];
    case.ops = vec![Op::Combine(Combine { dst, src, routes, write })];
    case
}

/// Elements of a slot before an operation's part, and behind it.
const BESIDE: usize = 3;

/// A sequence that begins, two that go on where others ended, of which one is shorter than a convolution, and
/// slots that hold something else.
fn recurrent(name: String, elements: usize) -> Case {
    let mut case = Case::new(name).at(0..5);
    case.sequence(7..8, None);
    case.sequence(3..9, None);
    case.slots = (0..6).map(|slot| Numbers(slot).take(elements + 2 * BESIDE)).collect();
    case.slots[5].fill(f32::NAN);
    case.on_slots(&[(None, 5), (Some(0), 2), (Some(3), 1)]).within(1e-5)
}

fn convolution(cols: usize, width: usize) -> Case {
    let state = State { offset: BESIDE, rows: width - 1, cols };
    let mut case = recurrent(format!("convolution of {width} rows of {cols}"), state.elements());
    // What is carried is copied.
    let mut numbers = Numbers((cols + width) as u64);
    let weight = case.vector(numbers.take(cols * width));
    let src = tokens_of(case.input(&numbers.take(12 * cols), cols));
    let dst = tokens_of(case.output(12, cols));
    case.results = vec![dst];
    case.ops = vec![Op::ShortConv(ShortConv { dst, src, weight, state })];
    case
}

fn delta(heads: DeltaHeads) -> Case {
    let (rows, cols) = heads.state();
    let state = State { offset: BESIDE, rows, cols };
    let mut case = recurrent(format!("delta rule, {heads:?}"), state.elements());
    let mut numbers = Numbers(rows as u64);
    let (keys, values) = (heads.key * heads.key_dim, heads.value * heads.value_dim);
    let mut input = |cols: usize, of: fn(f32) -> f32| {
        let values: Vec<f32> = numbers.take(12 * cols).into_iter().map(of).collect();
        tokens_of(case.input(&values, cols))
    };
    // A state that neither grows nor vanishes.
    let (q, k, v) = (input(keys, |x| x), input(keys, |x| x.clamp(-2.0, 2.0) / 4.0), input(values, |x| x));
    let (decay, beta) = (input(heads.value, |x| -x.abs() / 8.0), input(heads.value, |x| x.abs() / 40.0));
    let dst = tokens_of(case.output(12, values));
    case.results = vec![dst];
    case.ops = vec![Op::GatedDelta(GatedDelta { dst, q, k, v, decay, beta, heads, scale: 0.5, state })];
    case
}

/// Norms of heads, means and operations with states that must fail, on places of ones.
pub fn refused() -> (Case, Vec<Op>) {
    let mut case = Case::new("refused states").at(0..5);
    case.slots = vec![vec![0.0; 40]; 2];
    let mut case = case.on_slots(&[(Some(0), 1)]);
    let weight = case.vector(vec![1.0; 24]);
    let mut input = |cols: usize| tokens_of(case.input(&vec![1.0; 5 * cols], cols));
    let ([a, b], gate) = ([8; 2].map(&mut input), input(2));
    case.results = vec![a, b];
    let conv = ShortConv { dst: a, src: b, weight, state: State { offset: 0, rows: 2, cols: 8 } };
    let heads = DeltaHeads { key: 1, value: 2, key_dim: 8, value_dim: 4 };
    let [q, k, v, decay, beta] = [b, b, b, gate, gate];
    let state = State { offset: 0, rows: 16, cols: 4 };
    let delta = GatedDelta { dst: a, q, k, v, decay, beta, heads, scale: 1.0, state };
    let fixed = Place { rows: Rows::Fixed(5), ..a };
    let norm = RmsNorm { weight, eps: 1e-6 };
    let ops = vec![
        // Heads that do not fill a row, and a gain of another length.
        Op::HeadNorm(HeadNorm { x: a, head_dim: 3, norm }),
        Op::HeadNorm(HeadNorm { x: a, head_dim: 0, norm }),
        Op::HeadNorm(HeadNorm { x: a, head_dim: 4, norm }),
        // Means are rows of outputs, of as many columns, and have no mean.
        Op::MeanRows(MeanRows { dst: a, src: b }),
        Op::MeanRows(MeanRows { dst: Place { rows: Rows::Outputs, ..gate }, src: b }),
        Op::MeanRows(MeanRows { dst: a, src: Place { rows: Rows::Outputs, ..b } }),
        Op::ShortConv(ShortConv { dst: b, ..conv }),
        Op::ShortConv(ShortConv { dst: fixed, ..conv }),
        Op::ShortConv(ShortConv { state: State { offset: 32, ..conv.state }, ..conv }),
        Op::ShortConv(ShortConv { state: State { rows: 1, ..conv.state }, ..conv }),
        Op::ShortConv(ShortConv { state: State { rows: 0, ..conv.state }, ..conv }),
        // 64 elements of 40.
        Op::GatedDelta(delta.clone()),
        Op::GatedDelta(GatedDelta { state: State { rows: 8, ..state }, ..delta.clone() }),
        Op::GatedDelta(GatedDelta { decay: a, ..delta.clone() }),
        Op::GatedDelta(GatedDelta { heads: DeltaHeads { key: 0, ..heads }, ..delta }),
    ];
    (case, ops)
}

/// The step's slots, changed in every way that must be refused.
pub fn slots_that_do_not_fit() -> Vec<Vec<StateSlots>> {
    let slots =
        |read: Option<u32>, write: u32| StateSlots { read: read.map(StateSlot), write: StateSlot(write) };
    vec![
        vec![],
        vec![slots(None, 0), slots(None, 1)],
        vec![slots(None, 2)],
        vec![slots(Some(2), 0)],
        vec![slots(Some(1), 1)],
    ]
}
