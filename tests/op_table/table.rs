//! The table: every operation at ragged shapes, in place and apart, at its extremes.

#[allow(dead_code, reason = "for GPUs")]
pub mod large;
#[allow(dead_code, reason = "for GPUs")]
pub mod vocabularies;
#[allow(dead_code, reason = "for what GPUs have no kernel for")]
pub mod words;

use std::sync::Arc;

use ottava::TokenId;
use ottava::ir::{
    Activation, ApplyRope, Attention, Binary, BinaryFn, Embed, Epilogue, GatherOutputs, Heads, KvAppend,
    KvDtype, KvLayout, LogitAdjustment, Matmul, MatrixId, Normalize, Op, Place, Precision, Product, RmsNorm,
    Rope, RopeAngles, RopePairing, RowSampling, Rows, SampleRows, Softmax, Transpose, Unary, UnaryFn,
    VectorId, Window, WriteMode,
};
use ottava::quant::{Bits, Codes, DenseMatrix, DenseValues, WeightMatrix};

use crate::case::{Case, Numbers};

/// Widths that fill vectors, leave some over, and do not fill one.
const WIDTHS: [usize; 7] = [1, 7, 16, 17, 64, 100, 576];
/// `(rows, columns)` of matrices.
const MATRICES: [[usize; 2]; 4] = [[1, 32], [17, 100], [49, 64], [16, 576]];

/// All rows.
pub fn cases() -> Vec<Case> {
    let widths = WIDTHS.into_iter().flat_map(|cols| {
        [
            norms(cols),
            vec![norm_extremes(cols)],
            unary(cols),
            binary(cols),
            softmax(cols),
            vec![greedy(cols), sampling(cols)],
        ]
        .concat()
    });
    let mut cases: Vec<Case> = widths.collect();
    cases.extend(
        [vec![sampling_of_many(), transpose(), activation_limits()], angles(), rotations(), embeddings()]
            .concat(),
    );
    cases.extend([products(), prompts(), shared_sources(), gated(), appends(), attentions()].concat());
    cases
}

fn norms(cols: usize) -> Vec<Case> {
    let with = |name: &str, eps: f32, write: WriteMode, in_place: bool| {
        let mut case = Case::new(format!("{name} {cols}"));
        let mut numbers = Numbers(cols as u64);
        let norm = RmsNorm { weight: case.vector(numbers.take(cols)), eps };
        let src = case.input(&numbers.take(5 * cols), cols);
        let dst = match (in_place, write) {
            (true, _) => src,
            (false, WriteMode::Store) => case.output(5, cols),
            (false, WriteMode::Add) => case.input(&numbers.take(5 * cols), cols),
        };
        case.results = vec![dst];
        case.ops = vec![Op::Norm(Normalize { dst, src, norm: norm.into(), write })];
        case
    };
    vec![
        with("norm stored", 1e-5, WriteMode::Store, false),
        with("norm added", 1e-5, WriteMode::Add, false),
        with("norm in place", 1e-2, WriteMode::Store, true),
    ]
}

/// Rows so small or so large that their squares leave the range of f32's normal numbers.
fn norm_extremes(cols: usize) -> Case {
    let mut case = Case::new(format!("norm of extremes {cols}"));
    let norm = RmsNorm { weight: case.vector(vec![1.0; cols]), eps: 1e-30 };
    let rows: Vec<f32> = [1e-12f32, 1e15, 0.0].iter().flat_map(|&x| vec![x; cols]).collect();
    let src = case.input(&rows, cols);
    let dst = case.output(3, cols);
    case.ops = vec![Op::Norm(Normalize { dst, src, norm: norm.into(), write: WriteMode::Store })];
    case.within(1e-5)
}

fn unary(cols: usize) -> Vec<Case> {
    let functions = [
        (UnaryFn::Activation(Activation::Silu), 1e-6),
        (UnaryFn::Activation(Activation::GeluTanh), 1e-6),
        (UnaryFn::Scale(1.5), 0.0),
        // The error of the hyperbolic tangent is absolute, a fraction of the cap.
        (UnaryFn::SoftCap(30.0), 1e-5),
        (UnaryFn::Cast(Precision::F32), 0.0),
        (UnaryFn::Cast(Precision::F16), 0.0),
        (UnaryFn::Cast(Precision::Bf16), 0.0),
    ];
    let case = |(f, eps), in_place: bool| {
        let mut case = Case::new(format!("{f:?} {cols}{}", if in_place { " in place" } else { "" }));
        let src = case.input(&Numbers(cols as u64).take(9 * cols), cols);
        let dst = if in_place { src } else { case.output(9, cols) };
        case.results = vec![dst];
        case.ops = vec![Op::Unary(Unary { dst, src, f })];
        case.within(eps)
    };
    functions.into_iter().flat_map(|function| [case(function, false), case(function, true)]).collect()
}

/// Where an exponential overflows, vanishes or was no number.
fn activation_limits() -> Case {
    let mut case = Case::new("activations at their limits");
    for x in [100.0, -100.0, 88.8, -88.8, 1e30, -1e6, 0.0, f32::NAN] {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let src = case.input(&[x, x, x], 3);
            let dst = case.output(1, 3);
            case.ops.push(Op::Unary(Unary { dst, src, f: UnaryFn::Activation(activation) }));
        }
    }
    case
}

fn binary(cols: usize) -> Vec<Case> {
    let case = |f: BinaryFn, b_rows: usize, in_place: bool| {
        let mut case = Case::new(format!("{f:?} {cols}, b of {b_rows} rows, in place: {in_place}"));
        let mut numbers = Numbers(8 + cols as u64);
        let a = case.input(&numbers.take(9 * cols), cols);
        let b = case.input(&numbers.take(b_rows * cols), cols);
        let dst = if in_place { a } else { case.output(9, cols) };
        case.results = vec![dst];
        case.ops = vec![Op::Binary(Binary { dst, a, b, f })];
        case.within(1e-7)
    };
    let functions = [BinaryFn::Add, BinaryFn::Mul];
    functions.into_iter().flat_map(|f| [case(f, 9, false), case(f, 1, false), case(f, 9, true)]).collect()
}

fn softmax(cols: usize) -> Vec<Case> {
    let case = |in_place: bool| {
        let mut case = Case::new(format!("softmax {cols}, in place: {in_place}"));
        let mut x = Numbers(cols as u64 + 1).take(4 * cols);
        // Far beyond where e^x overflows, and far below.
        x[..cols].iter_mut().for_each(|x| *x += 500.0);
        x[cols..2 * cols].iter_mut().for_each(|x| *x -= 500.0);
        let src = case.input(&x, cols);
        let dst = if in_place { src } else { case.output(4, cols) };
        case.results = vec![dst];
        case.ops = vec![Op::Softmax(Softmax { dst, src })];
        case
    };
    vec![case(false), case(true)]
}

/// Equal ones, and rows without a largest element.
fn greedy(cols: usize) -> Case {
    let mut case = Case::new(format!("greedy {cols}"));
    let mut x = Numbers(cols as u64 + 2).take(5 * cols);
    let equal = x[..cols].iter().fold(0.0f32, |most, x| most.max(x.abs())) + 1.0;
    (x[cols / 2], x[cols - 1]) = (equal, equal);
    x[2 * cols + cols / 3] = f32::NAN;
    x[3 * cols..4 * cols].fill(f32::NEG_INFINITY);
    x[4 * cols] = f32::INFINITY;
    let src = case.input(&x, cols);
    let dst = case.output(5, 1);
    case.results = vec![dst];
    case.ops = vec![Op::Sample(SampleRows { dst, src })];
    case.within(0.0)
}

/// Every way to sample, on rows with outliers, with equal logits, and without any that may be taken.
fn sampling(cols: usize) -> Case {
    let warm = RowSampling { temperature: 0.8, ..RowSampling::default() };
    let kinds = [
        RowSampling { adjustments: 0..1, ..RowSampling::default() },
        warm.clone(),
        RowSampling { temperature: 3.5, ..warm.clone() },
        RowSampling { temperature: 1e-40, ..warm.clone() },
        RowSampling { top_k: 1, ..warm.clone() },
        RowSampling { top_k: 5, ..warm.clone() },
        RowSampling { top_k: 10_000, top_p: 0.999, ..warm.clone() },
        RowSampling { top_p: 0.3, ..warm.clone() },
        RowSampling { top_p: 0.9, ..warm.clone() },
        RowSampling { top_k: 40, top_p: 0.8, min_p: 0.05, ..warm.clone() },
        RowSampling { min_p: 0.2, temperature: 2.0, ..warm.clone() },
        // Each token once.
        RowSampling { adjustments: 0..cols.min(2) as u32, ..warm.clone() },
    ];
    let mut numbers = Numbers(cols as u64 + 3);
    let mut case = Case::new(format!("sampling {cols}")).at(0..3 * kinds.len() as u32);
    case.step.outputs = (0..case.step.tokens.len() as u32).collect();
    let entry = |token: usize, bias| LogitAdjustment {
        token: TokenId(token as u32),
        bias,
        repetition: 1.5,
        penalty: 0.25,
    };
    case.step.adjustments = vec![entry(cols / 2, 1.5), entry(cols - 1, -2.0)];
    let mut x = Vec::new();
    for kind in kinds.iter().flat_map(|kind| [kind; 3]) {
        let draw = numbers.draw();
        case.step.sampling.push(RowSampling { draw, ..kind.clone() });
        x.push(numbers.take(cols));
    }
    for (number, row) in x.iter_mut().enumerate() {
        // Of each kind, one row has many equal logits, and one has some that may not be taken.
        match number % 3 {
            1 => row.iter_mut().for_each(|x| *x = x.clamp(-0.5, 0.5)),
            2 => row.iter_mut().skip(1).step_by(2).for_each(|x| *x = f32::NEG_INFINITY),
            _ => {}
        }
    }
    (x[3][cols / 2], x[6][0]) = (f32::NAN, f32::INFINITY);
    x[9].fill(f32::NEG_INFINITY);
    let src = case.input(&x.concat(), cols);
    let dst = case.gathered(1);
    case.ops = vec![Op::Sample(SampleRows { dst, src })];
    case.within(0.0)
}

/// As many equal logits as a GPU draws from, all of them kept or cut somewhere in their midst.
fn sampling_of_many() -> Case {
    const COLS: usize = 1 << 18;
    let warm = RowSampling { temperature: 1.0, draw: u64::MAX / 7 * 3, ..RowSampling::default() };
    let mut case = Case::new("sampling of many equal logits").at(0..3);
    case.step.outputs = vec![0, 1, 2];
    case.step.sampling = vec![
        RowSampling { top_p: 0.9, ..warm.clone() },
        RowSampling { top_k: 100_000, ..warm.clone() },
        warm,
    ];
    let src = case.input(&vec![-1.5; 3 * COLS], COLS);
    let dst = case.gathered(1);
    case.ops = vec![Op::Sample(SampleRows { dst, src })];
    case.within(0.0)
}

fn transpose() -> Case {
    let mut case = Case::new("transpose there and back");
    let src = case.input(&Numbers(2).take(7 * 33), 33);
    let (dst, back) = (case.output(33, 7), case.output(7, 33));
    case.ops = vec![Op::Transpose(Transpose { dst, src }), Op::Transpose(Transpose { dst: back, src: dst })];
    case.within(0.0)
}

fn angles() -> Vec<Case> {
    let case = |positions: std::ops::Range<u32>| {
        let mut case = Case::new(format!("angles of {positions:?}"));
        case.step.positions = positions.clone().collect();
        case.step.tokens = vec![TokenId(0); positions.len()];
        let dst = case.output(positions.len(), 34);
        let inv_freq: Arc<[f64]> = (0..17).map(|i| 10_000f64.powf(f64::from(i) / -17.0)).collect();
        case.ops = vec![Op::RopeAngles(RopeAngles { dst, inv_freq, magnitude: 1.25 })];
        case.within(1.2e-7)
    };
    vec![case(0..5), case(131_069..131_072), case(u32::MAX - 2..u32::MAX)]
}

/// Adds the angles of the case's step.
fn with_angles(case: &mut Case, dims: usize) -> Place {
    let angles = case.output(case.step.tokens.len(), dims);
    case.results.pop();
    let inv_freq: Arc<[f64]> = (0..dims / 2).map(|i| 0.7f64.powi(i as i32)).collect();
    case.ops.push(Op::RopeAngles(RopeAngles { dst: angles, inv_freq, magnitude: 1.25 }));
    angles
}

fn rotations() -> Vec<Case> {
    let mut cases = Vec::new();
    for pairing in [RopePairing::Halves, RopePairing::Interleaved] {
        for (head_dim, dims) in [(64, 64), (80, 20), (128, 128), (96, 2), (8, 6), (36, 34)] {
            let mut case = Case::new(format!("rope {pairing:?} {dims} of {head_dim}")).at(30..35);
            let angles = with_angles(&mut case, dims);
            let x = case.input(&Numbers(3).take(5 * 2 * head_dim), 2 * head_dim);
            case.results = vec![x];
            case.ops.push(Op::Rope(ApplyRope { x, head_dim, rope: Rope { angles, pairing } }));
            cases.push(case);
        }
    }
    cases
}

/// A row a token, scaled; then the rows whose logits are wanted.
fn embeddings() -> Vec<Case> {
    let case = |table: WeightMatrix, name: &str| {
        let mut case = Case::new(format!("embed {name}")).at(0..9);
        case.step.outputs = vec![0, 3, 8];
        let dst = case.output(9, 100);
        let out = case.gathered(100);
        let gather = Op::GatherOutputs(GatherOutputs { dst: out, src: dst });
        case.ops = vec![Op::Embed(Embed { dst, table: case.matrix(table), scale: 24.0 }), gather];
        // Dense weights may be kept in f16.
        Case { eps_f16: 5e-4, ..case.within(1.2e-7) }
    };
    let mut numbers = Numbers(10);
    let formats = [
        (Bits::Eight.into(), 32, false),
        (Bits::Four.into(), 100, true),
        (Bits::Four.into(), 16, false),
        (Bits::Five.into(), 32, true),
        (Bits::Six.into(), 16, false),
    ];
    let floats = [(Codes::E2m1, 16, false), (Codes::E2m1, 32, false), (Codes::E4m3, 100, false)];
    let quant = formats.into_iter().chain(floats).map(|(kind, group, mins)| {
        case(numbers.matrix([11, 100], kind, group, mins), &format!("{kind:?} {group}"))
    });
    let dense = dense(11, 100, 5).into_iter().zip(["f32", "f16", "bf16"]);
    quant.into_iter().chain(dense.map(|(table, name)| case(table, name))).collect()
}

fn dense(rows: usize, cols: usize, seed: u64) -> Vec<WeightMatrix> {
    let values = Numbers(seed).take(rows * cols);
    let half = values.iter().map(|&x| half::f16::from_f32(x)).collect();
    let brain = values.iter().map(|&x| half::bf16::from_f32(x)).collect();
    let kinds = [DenseValues::F32(values), DenseValues::F16(half), DenseValues::Bf16(brain)];
    kinds.map(|values| WeightMatrix::Dense(DenseMatrix::new(rows, cols, values).expect("that many"))).to_vec()
}

/// Half a step in 127 of a group's largest value, of terms beyond their sum. One draw in 30 of 32 columns has more.
const INT8_EPS: f64 = 0.06;
/// Half a step in 2048 for each operand, of terms that are larger than their sum.
const F16_EPS: f64 = 2e-3;

fn products() -> Vec<Case> {
    let mut cases = Vec::new();
    for [n, k] in MATRICES {
        let mut numbers = Numbers((n * k) as u64);
        let mut matrices = Vec::new();
        for bits in [Bits::Four, Bits::Eight] {
            for group in [16, 32, 64, 128, k] {
                for mins in [false, true] {
                    let name = format!("{bits:?} group {group} mins {mins}");
                    matrices.push((name, numbers.matrix([n, k], bits, group, mins), INT8_EPS));
                }
            }
        }
        let few = [(Bits::Five, 32, false), (Bits::Five, 32, true), (Bits::Six, 16, false)]
            .map(|(bits, group, mins)| (bits.into(), group, mins));
        let floats = [Codes::E2m1, Codes::E4m3].map(|kind| [(kind, 32, false), (kind, k, false)]);
        for (kind, group, mins) in few.into_iter().chain([(Codes::E2m1, 16, false)]).chain(floats.concat()) {
            let eps_int8 = if kind == Codes::E4m3 { 4e-6 } else { INT8_EPS };
            let matrix = Numbers((k + group) as u64).matrix([n, k], kind, group, mins);
            matrices.push((format!("{kind:?} group {group} mins {mins}"), matrix, eps_int8));
        }
        let dense = dense(n, k, 9).into_iter().zip(["f32", "f16", "bf16"]);
        matrices.extend(dense.map(|(matrix, name)| (name.to_string(), matrix, 4e-6)));
        for (name, matrix, eps_int8) in matrices {
            // More than 32 are prompts, for a GPU.
            let many: &[usize] = if n == 49 { &[33, 70] } else { &[] };
            for &rows in [1, 9].iter().chain(many) {
                let mut case = Case::new(format!("{rows} x [{n}, {k}] {name}"));
                let src = case.input(&numbers.take(rows * k), k);
                let dst = case.output(rows, n);
                let product = product(&mut case, dst, matrix.clone());
                case.ops = vec![Op::Matmul(Matmul { src, norm: None, products: vec![product] })];
                // A single result may be what is left of large terms, and nothing else gives its scale.
                let (eps, eps_int8, eps_f16) =
                    if n * rows == 1 { (1e-4, 0.25, 0.02) } else { (4e-6, eps_int8, F16_EPS) };
                cases.push(Case { eps, eps_int8, eps_f16, ..case });
            }
        }
    }
    cases
}

fn product(case: &mut Case, dst: Place, matrix: WeightMatrix) -> Product {
    Product { dst, matrix: case.matrix(matrix), bias: None, epilogue: Epilogue::Write(WriteMode::Store) }
}

/// Whole and ragged blocks of tokens, of rows and of columns: what a GPU has other kernels for.
fn prompts() -> Vec<Case> {
    let formats = [
        (65, [17, 576], Bits::Four, 32, true),
        (66, [130, 96], Bits::Eight, 64, false),
        (97, [33, 200], Bits::Four, 128, true),
        (128, [49, 1536], Bits::Eight, 128, false),
        (129, [272, 100], Bits::Eight, 16, true),
        (192, [48, 200], Bits::Four, 200, true),
        (257, [129, 64], Bits::Four, 16, false),
        (70, [49, 576], Bits::Eight, 576, false),
    ];
    let quant = formats.map(|(rows, [n, k], bits, group, mins)| {
        let name = format!("{rows} x [{n}, {k}] {bits:?} group {group} mins {mins}");
        (name, rows, Numbers((rows * n) as u64).matrix([n, k], bits, group, mins))
    });
    let dense = [(65, [49, 100]), (130, [140, 576])]
        .map(|(rows, [n, k])| (format!("{rows} x [{n}, {k}] bf16"), rows, dense(n, k, 8).remove(2)));
    let case = |(name, rows, matrix): (String, usize, WeightMatrix)| {
        let mut case = Case::new(name);
        let src = case.input(&Numbers(rows as u64).take(rows * matrix.cols()), matrix.cols());
        let dst = case.output(rows, matrix.rows());
        let product = product(&mut case, dst, matrix);
        case.ops = vec![Op::Matmul(Matmul { src, norm: None, products: vec![product] })];
        Case { eps: 4e-6, eps_int8: INT8_EPS, eps_f16: F16_EPS, ..case }
    };
    quant.into_iter().chain(dense).map(case).collect()
}

fn shared_sources() -> Vec<Case> {
    // The fourth has more columns than eight of a GPU's units; the last are more blocks than it runs at a
    // time, and several for each of its multiprocessors.
    let shapes =
        [(9, 49, 100), (20, 49, 100), (70, 49, 100), (70, 49, 1100), (256, 1450, 32), (256, 2900, 32)];
    shapes.map(|(rows, n, k)| shared_source(rows, n, k)).to_vec()
}

/// A norm, three formats, a bias and a residual in one operation.
fn shared_source(rows: usize, n: usize, k: usize) -> Case {
    let mut case = Case::new(format!("norm, bias, residual, three products, {rows} x [{n}, {k}]"));
    let mut numbers = Numbers(6);
    let norm = Some(RmsNorm { weight: case.vector(numbers.take(k)), eps: 1e-3 });
    let src = case.input(&numbers.take(rows * k), k);
    let (first, second) = (case.output(rows, n), case.output(rows, n + 3));
    let residual = case.input(&numbers.take(rows * n), n);
    case.results.push(residual);
    let bias = Some(case.vector(numbers.take(n)));
    let matrices = [
        numbers.matrix([n, k], Bits::Four, 32, true),
        numbers.matrix([n + 3, k], Bits::Eight, 16, false),
        dense(n, k, 4).remove(1),
    ];
    let [a, b, c] = matrices;
    let products = vec![
        Product { bias, ..product(&mut case, first, a) },
        product(&mut case, second, b),
        Product { bias, epilogue: Epilogue::Write(WriteMode::Add), ..product(&mut case, residual, c) },
    ];
    case.ops = vec![Op::Matmul(Matmul { src, norm, products })];
    Case { eps: 4e-6, eps_int8: INT8_EPS, eps_f16: F16_EPS, ..case }
}

/// Gates whose matrices have the same format, and different ones.
fn gated() -> Vec<Case> {
    let mut cases = Vec::new();
    for (activation, up_bits) in [(Activation::Silu, Bits::Eight), (Activation::GeluTanh, Bits::Four)] {
        for (rows, n, k) in [(1, 49, 96), (8, 49, 96), (40, 49, 96), (130, 49, 96), (256, 2200, 32)] {
            let mut case = gate(activation, up_bits, rows, [n, k]);
            // Others beside it.
            let mut numbers = Numbers(8);
            let plain = [numbers.matrix([n, k], Bits::Eight, 16, false), dense(n, k, 3).remove(0)];
            let plain = plain.map(|matrix| {
                let dst = case.output(rows, n);
                product(&mut case, dst, matrix)
            });
            if let [Op::Matmul(gate)] = &mut case.ops[..] {
                gate.products.extend(plain);
            }
            // Of many rows the worst is worse.
            cases.push(Case { eps_int8: if rows > 100 { 0.12 } else { case.eps_int8 }, ..case });
        }
    }
    cases
}

fn gate(activation: Activation, up_bits: Bits, rows: usize, [n, k]: [usize; 2]) -> Case {
    let mut case = Case::new(format!("{activation:?} gate of {rows} x [{n}, {k}], up of {up_bits:?} bits"));
    let mut numbers = Numbers(7);
    let src = case.input(&numbers.take(rows * k), k);
    let dst = case.output(rows, n);
    let gate = numbers.matrix([n, k], Bits::Four, 32, true);
    let up = numbers.matrix([n, k], up_bits, 32, false);
    let gate = product(&mut case, dst, gate);
    let epilogue = Epilogue::Gated { up: case.matrix(up), activation };
    let products = vec![Product { epilogue, ..gate }];
    case.ops = vec![Op::Matmul(Matmul { src, norm: None, products })];
    Case { eps: 1e-5, eps_int8: INT8_EPS, eps_f16: 2.0 * F16_EPS, ..case }
}

/// What an attention case varies.
#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: Heads,
    dtype: KvDtype,
    norms: bool,
    rope: Option<(RopePairing, usize)>,
    window: Option<u32>,
    soft_cap: Option<f32>,
}

impl Shape {
    fn new(query: usize, kv: usize, dim: usize, dtype: KvDtype) -> Shape {
        Shape {
            heads: Heads { query, kv, dim },
            dtype,
            norms: false,
            rope: None,
            window: None,
            soft_cap: None,
        }
    }

    /// Appends the tokens of the case's step; the values of v are given, or random.
    fn append(&self, case: &mut Case, v: Option<Vec<f32>>) -> Op {
        let Heads { query, kv, dim } = self.heads;
        let tokens = case.step.tokens.len();
        case.kv = KvLayout { layers: 1, kv_heads: kv, head_dim: dim, dtype: self.dtype };
        let mut numbers = Numbers((dim + query) as u64);
        let mut norm = || RmsNorm { weight: case.vector(numbers.take(dim)), eps: 1e-6 };
        let (q_norm, k_norm) = if self.norms { (Some(norm()), Some(norm())) } else { (None, None) };
        let rope = self.rope.map(|(pairing, dims)| Rope { angles: with_angles(case, dims), pairing });
        let q = case.input(&numbers.take(tokens * query * dim), query * dim);
        let k = case.input(&numbers.take(tokens * kv * dim), kv * dim);
        let v = v.unwrap_or_else(|| numbers.take(tokens * kv * dim));
        let v = case.input(&v, kv * dim);
        case.results.extend([q, v]);
        Op::KvAppend(KvAppend { q, k, v, layer: 0, heads: self.heads, q_norm, k_norm, rope })
    }

    fn attention(&self, case: &mut Case, q: Place, window: Option<u32>) -> Op {
        let Heads { query, dim, .. } = self.heads;
        let dst = case.output(case.step.tokens.len(), query * dim);
        let (scale, soft_cap) = (1.0 / (dim as f32).sqrt(), self.soft_cap);
        Op::Attention(Attention { dst, q, layer: 0, heads: self.heads, scale, window, soft_cap })
    }

    /// Appends and attends: with a window of one the result is the value as stored.
    fn case(&self, mut case: Case, v: Option<Vec<f32>>) -> Case {
        let append = self.append(&mut case, v);
        let Op::KvAppend(KvAppend { q, .. }) = append else { unreachable!("just made") };
        case.ops.push(append);
        for window in [self.window, Some(1)] {
            let op = self.attention(&mut case, q, window);
            case.ops.push(op);
        }
        // Where q and k were normed and turned in f32, an int8 code of k may differ by one.
        let prepared = self.norms || self.rope.is_some();
        let eps: f64 = if self.dtype == KvDtype::Int8 && prepared { 0.05 } else { 4e-5 };
        // A prompt's queries are rounded to f16, and so are the weights of the values and what int8
        // codes stand for: with outliers in both, of scores up to 200.
        let f16: f64 = if self.dtype == KvDtype::Int8 { 0.03 } else { 6e-3 };
        Case { eps_f16: eps.max(f16), ..case.within(eps) }
    }
}

/// Norms, rotations and both dtypes, read back through attention.
fn appends() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [KvDtype::F16, KvDtype::Int8] {
        for (dim, rope) in [
            (64, Some((RopePairing::Halves, 64))),
            (80, Some((RopePairing::Halves, 40))),
            (72, Some((RopePairing::Interleaved, 72))),
            (40, None),
        ] {
            for norms in [false, true] {
                let shape = Shape { norms, rope, ..Shape::new(4, 2, dim, dtype) };
                let name = format!("append {dtype:?} {dim} rope {rope:?} norms {norms}");
                cases.push(shape.case(Case::new(name).at(0..27), None));
            }
        }
        // Values that saturate, vanish or are no numbers, in two groups of a head.
        let mut v = vec![0.25f32; 3 * 64];
        // What codes stand for may be rounded to f16.
        let large = if dtype == KvDtype::Int8 { 6e4 } else { 1e7 };
        (v[0], v[1], v[64 + 33]) = (large, -large, 1e-9);
        v[128..].fill(f32::NAN);
        let shape = Shape::new(1, 1, 64, dtype);
        let mut case = shape.case(Case::new(format!("append {dtype:?} extremes")).at(0..3), Some(v));
        // What a NaN does to the tokens that see it is not specified beyond being no number.
        case.results.remove(2);
        cases.push(case);
    }
    cases.push(keys_beyond_any_scale());
    cases
}

/// Keys above 127 of the largest scale, 8.3 million: they are stored as that many, and no infinity or NaN comes
/// of them. Queries are small enough for scores to tell what was stored, and come one a sequence, since a
/// prompt's keys may be rounded to f16.
fn keys_beyond_any_scale() -> Case {
    const DIM: usize = 64;
    let shape = Shape::new(1, 1, DIM, KvDtype::Int8);
    let mut case = Case::new("append Int8 keys beyond any scale");
    case.kv = KvLayout { layers: 1, kv_heads: 1, head_dim: DIM, dtype: KvDtype::Int8 };
    case.sequence(0..1, None);
    (1..4).for_each(|position| case.continued(position..position + 1, None));
    let (mut q, mut k) = (vec![0.0; 4 * DIM], vec![0.0; 4 * DIM]);
    // In both groups of a head, of both signs; the third key is just below, the fourth small.
    (k[0], k[33]) = (1e9, -1e7);
    k[DIM + 5] = -3e38;
    k[2 * DIM + 40] = 8.3e6;
    k[3 * DIM..].fill(0.5);
    for row in q.chunks_exact_mut(DIM) {
        (row[0], row[5], row[33], row[40]) = (2e-6, 1e-6, 1e-6, -1e-6);
    }
    let mut numbers = Numbers(5);
    let (q, k) = (case.input(&q, DIM), case.input(&k, DIM));
    let v = case.input(&numbers.take(4 * DIM), DIM);
    let (q_norm, k_norm, rope) = (None, None, None);
    case.ops.push(Op::KvAppend(KvAppend { q, k, v, layer: 0, heads: shape.heads, q_norm, k_norm, rope }));
    let attention = shape.attention(&mut case, q, None);
    case.ops.push(attention);
    case.within(1e-3)
}

fn attentions() -> Vec<Case> {
    let window = |window, sinks| Some(Window { window, sinks });
    let mut cases = Vec::new();
    for dtype in [KvDtype::F16, KvDtype::Int8] {
        for (query, kv, dim) in [(9, 3, 64), (4, 1, 256), (2, 2, 80), (6, 1, 128), (1, 1, 8)] {
            let shape = Shape::new(query, kv, dim, dtype);
            cases.push(
                shape.case(Case::new(format!("attention {query}/{kv} of {dim} {dtype:?}")).at(0..37), None),
            );
        }
        for past in [15, 16, 31, 40] {
            let shape = Shape::new(9, 3, 64, dtype);
            let mut one = Case::new(format!("one token after {past}, {dtype:?}"));
            one.sequence(0..past, None);
            one.continued(past..past + 1, None);
            cases.push(shape.case(one, None));
            let mut more = Case::new(format!("prompt after {past}, in a window with sinks, {dtype:?}"));
            more.sequence(0..past, None);
            more.continued(past..past + 5, window(11, 2));
            more.continued(past + 5..past + 6, window(20, 3));
            cases.push(Shape { window: Some(19), ..shape }.case(more, None));
        }
        // Query heads for a key head and the size of a head decide which of a GPU's kernels it is.
        let small = [(2, 2, 80), (6, 1, 128), (4, 1, 128), (4, 2, 8), (8, 2, 64)];
        let large = [(1, 1, 160), (2, 1, 160), (3, 1, 160), (4, 1, 256)];
        let whole = [(10, 2, 64), (7, 1, 64), (5, 1, 128), (14, 2, 80), (5, 1, 160), (7, 1, 256)];
        for (query, kv, dim) in small.into_iter().chain(large).chain(whole) {
            let mut one = Case::new(format!("one token after 40, {query}/{kv} of {dim}, {dtype:?}"));
            one.sequence(0..40, None);
            one.continued(40..41, None);
            let shape = Shape { soft_cap: Some(3.0), ..Shape::new(query, kv, dim, dtype) };
            cases.push(shape.case(one, None));
        }
        // Past one split of a GPU's.
        let mut long = Case::new(format!("one token after 260, {dtype:?}"));
        long.sequence(0..260, None);
        long.continued(260..261, None);
        cases.push(Shape { soft_cap: Some(5.0), ..Shape::new(2, 1, 32, dtype) }.case(long, None));
        let capped = Shape { soft_cap: Some(2.0), window: Some(7), ..Shape::new(2, 1, 64, dtype) };
        cases.push(capped.case(Case::new(format!("attention soft cap, window {dtype:?}")).at(0..37), None));
        let mut ragged = Case::new(format!("attention of three sequences {dtype:?}"));
        ragged.sequence(0..19, None);
        ragged.sequence(0..1, None);
        ragged.sequence(0..33, window(9, 3));
        cases.push(Shape::new(3, 1, 64, dtype).case(ragged, None));
    }
    cases
}

/// Operands that do not fit, for every backend to refuse, over one case that holds them.
pub fn refused() -> (Case, Vec<Op>) {
    let mut case = Case::new("refused").at(0..5);
    let gain = case.vector(vec![1.0; 16]);
    let norm = RmsNorm { weight: gain, eps: 1e-6 };
    let [a, b] = [(); 2].map(|()| case.input(&[1.0; 5 * 16], 16));
    let narrow = case.input(&[1.0; 5 * 8], 8);
    case.results = vec![a, narrow];
    let square = case.matrix(Numbers(1).matrix([16, 16], Bits::Eight, 16, false));
    let shifted = Place { offset: a.offset + 64, ..a };
    let far = Place { offset: case.bytes(), ..a };
    let more = Place { rows: Rows::Fixed(6), ..a };
    let heads = Heads { query: 2, kv: 1, dim: 8 };
    let append =
        KvAppend { q: a, k: narrow, v: narrow, layer: 0, heads, q_norm: None, k_norm: None, rope: None };
    let rope = Rope { angles: b, pairing: RopePairing::Halves };
    let attention = Attention { dst: b, q: a, layer: 0, heads, scale: 1.0, window: None, soft_cap: None };
    let write = Epilogue::Write(WriteMode::Store);
    let product = Product { dst: b, matrix: square, bias: None, epilogue: write };
    let matmul = |product| Op::Matmul(Matmul { src: a, norm: None, products: vec![product] });
    let gate = Epilogue::Gated { up: square, activation: Activation::Silu };
    let none = MatrixId(9);
    let ops = vec![
        Op::Norm(Normalize { dst: narrow, src: a, norm: norm.into(), write: WriteMode::Store }),
        Op::Norm(Normalize {
            dst: a,
            src: b,
            norm: RmsNorm { weight: VectorId(9), eps: 0.0 }.into(),
            write: WriteMode::Store,
        }),
        Op::Norm(Normalize { dst: shifted, src: a, norm: norm.into(), write: WriteMode::Store }),
        Op::Norm(Normalize { dst: a, src: a, norm: norm.into(), write: WriteMode::Add }),
        Op::Norm(Normalize { dst: far, src: a, norm: norm.into(), write: WriteMode::Store }),
        Op::Unary(Unary { dst: narrow, src: a, f: UnaryFn::Scale(2.0) }),
        Op::Unary(Unary { dst: far, src: a, f: UnaryFn::Scale(2.0) }),
        Op::Unary(Unary { dst: shifted, src: a, f: UnaryFn::Scale(2.0) }),
        Op::Unary(Unary { dst: more, src: b, f: UnaryFn::Scale(2.0) }),
        Op::Binary(Binary { dst: a, a: b, b: narrow, f: BinaryFn::Add }),
        Op::Binary(Binary { dst: shifted, a, b, f: BinaryFn::Add }),
        Op::Softmax(Softmax { dst: narrow, src: a }),
        Op::Transpose(Transpose { dst: a, src: b }),
        Op::Embed(Embed { dst: narrow, table: square, scale: 1.0 }),
        Op::Embed(Embed { dst: a, table: none, scale: 1.0 }),
        Op::GatherOutputs(GatherOutputs { dst: narrow, src: a }),
        Op::RopeAngles(RopeAngles { dst: a, inv_freq: [1.0].into(), magnitude: 1.0 }),
        Op::Rope(ApplyRope { x: narrow, head_dim: 8, rope }),
        Op::KvAppend(KvAppend { k: a, ..append.clone() }),
        Op::KvAppend(append.clone()),
        Op::KvAppend(KvAppend { layer: 1, v: b, ..append }),
        Op::Attention(Attention { dst: a, ..attention.clone() }),
        Op::Attention(Attention { layer: 1, ..attention.clone() }),
        Op::Attention(Attention { soft_cap: Some(0.0), ..attention.clone() }),
        Op::Attention(Attention { heads: Heads { query: 4, ..heads }, ..attention }),
        matmul(Product { dst: narrow, ..product }),
        matmul(Product { dst: a, ..product }),
        matmul(Product { matrix: none, ..product }),
        matmul(Product { bias: Some(gain), epilogue: gate, ..product }),
        Op::Matmul(Matmul { src: a, norm: None, products: vec![] }),
        Op::Matmul(Matmul { src: a, norm: None, products: vec![product, product] }),
    ];
    (case, ops)
}
