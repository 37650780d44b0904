//! The reference backend against numbers worked out by hand (or with an arbitrary-precision
//! calculator): it is the specification, so nothing that shares its code may vouch for it.

use ottava::backend::Reference;
use ottava::ir::{
    Activation, ApplyRope, Attention, Binary, BinaryFn, DeltaHeads, Embed, Epilogue, GatedDelta,
    GatherOutputs, HeadNorm, Heads, KvAppend, KvDtype, KvLayout, LogitAdjustment, Matmul, MeanRows,
    Normalize, Op, Place, Precision, Product, RmsNorm, Rope, RopeAngles, RopePairing, RowSampling, Rows,
    SampleRows, ShortConv, Softmax, State, Transpose, Unary, UnaryFn, Window, WriteMode,
};
use ottava::quant::{DenseMatrix, DenseValues, WeightMatrix};
use std::f64::consts::FRAC_PI_2;

use crate::case::{Case, run};

const LN_3: f32 = 1.098_612_3;

/// Runs the case on the reference and compares its only result.
fn assert_gives(case: &Case, want: &[f32]) {
    let found = run(&Reference, case).concat();
    assert_eq!(found.len(), want.len(), "{}", case.name);
    for (found, want) in found.iter().zip(want) {
        assert!((found - want).abs() <= 2e-7 * want.abs().max(1.0), "{}: {found} for {want}", case.name);
    }
}

fn dense<const R: usize, const C: usize>(rows: [[f32; C]; R]) -> WeightMatrix {
    let values = DenseValues::F32(rows.concat());
    WeightMatrix::Dense(DenseMatrix::new(R, C, values).expect("that many values"))
}

#[test]
fn norms() {
    // 3² + 4² = 25, its mean 12.5, with eps 12.5 a root of 5.
    for (write, want) in [(WriteMode::Store, [0.6, 1.6]), (WriteMode::Add, [10.6, 21.6])] {
        let mut case = Case::new("norm");
        let norm = RmsNorm { weight: case.vector(vec![1.0, 2.0]), eps: 12.5 };
        let (src, dst) = (case.input(&[3.0, 4.0], 2), case.input(&[10.0, 20.0], 2));
        case.results = vec![dst];
        case.ops = vec![Op::Norm(Normalize { dst, src, norm: norm.into(), write })];
        assert_gives(&case, &want);
    }
}

#[test]
fn products_bias_residual_and_norm() {
    let mut case = Case::new("matmul");
    let src = case.input(&[5.0, 6.0, 1.0, 0.0], 2);
    let matrix = case.matrix(dense([[1.0, 2.0], [3.0, 4.0], [0.5, 0.0]]));
    let plain = case.output(2, 3);
    let sum = case.input(&[100.0; 6], 3);
    case.results.push(sum);
    let bias = Some(case.vector(vec![1.0, -1.0, 0.0]));
    let store = Epilogue::Write(WriteMode::Store);
    let products = vec![
        Product { dst: plain, matrix, bias: None, epilogue: store },
        Product { dst: sum, matrix, bias, epilogue: Epilogue::Write(WriteMode::Add) },
    ];
    case.ops = vec![Op::Matmul(Matmul { src, norm: None, products })];
    let want = [17.0, 39.0, 2.5, 1.0, 3.0, 0.5, 118.0, 138.0, 102.5, 102.0, 102.0, 100.5];
    assert_gives(&case, &want);

    let mut case = Case::new("norm in front of a matmul");
    let src = case.input(&[3.0, 4.0], 2);
    let norm = Some(RmsNorm { weight: case.vector(vec![1.0, 2.0]), eps: 12.5 });
    let matrix = case.matrix(dense([[1.0, 0.0], [1.0, 1.0]]));
    let dst = case.output(1, 2);
    let products = vec![Product { dst, matrix, bias: None, epilogue: store }];
    case.ops = vec![Op::Matmul(Matmul { src, norm, products })];
    assert_gives(&case, &[0.6, 2.2]);
}

#[test]
fn gates() {
    let of_one =
        [(Activation::Silu, 0.731_058_6), (Activation::GeluTanh, 0.841_192), (Activation::Gelu, 0.841_344_7)];
    for (activation, of_one) in of_one {
        let mut case = Case::new("gate");
        let src = case.input(&[1.0], 1);
        let (matrix, up) = (case.matrix(dense([[1.0], [0.0]])), case.matrix(dense([[2.0], [7.0]])));
        let dst = case.output(1, 2);
        let products =
            vec![Product { dst, matrix, bias: None, epilogue: Epilogue::Gated { up, activation } }];
        case.ops = vec![Op::Matmul(Matmul { src, norm: None, products })];
        assert_gives(&case, &[2.0 * of_one, 0.0]);
    }
}

#[test]
fn angles_near_and_far() {
    let mut case = Case::new("angles");
    case.step.positions = vec![1, 131_071];
    case.step.tokens = vec![ottava::TokenId(0); 2];
    let dst = case.output(2, 4);
    case.ops = vec![Op::RopeAngles(RopeAngles { dst, inv_freq: [1.0, 0.0].into(), magnitude: 2.0 })];
    let near = [2.0 * 0.540_302_3, 2.0, 2.0 * 0.841_471, 0.0];
    let far = [2.0 * -0.817_983_5, 2.0, 2.0 * -0.575_241_7, 0.0];
    assert_gives(&case, &[near, far].concat());
}

#[test]
fn quarter_turns() {
    let turned = [
        (RopePairing::Halves, [-3.0, -4.0, 1.0, 2.0, 9.0, 9.0]),
        (RopePairing::Interleaved, [-2.0, 1.0, -4.0, 3.0, 9.0, 9.0]),
    ];
    for (pairing, want) in turned {
        let mut case = Case::new("rope").at(1..2);
        let angles = case.output(1, 4);
        let inv_freq = [FRAC_PI_2, FRAC_PI_2].into();
        let x = case.input(&[1.0, 2.0, 3.0, 4.0, 9.0, 9.0], 6);
        case.results = vec![x];
        case.ops = vec![
            Op::RopeAngles(RopeAngles { dst: angles, inv_freq, magnitude: 1.0 }),
            Op::Rope(ApplyRope { x, head_dim: 6, rope: Rope { angles, pairing } }),
        ];
        assert_gives(&case, &want);
    }
}

#[test]
fn rows_of_a_table_and_of_a_value() {
    let mut case = Case::new("embed and gather").at(0..3);
    case.step.tokens = [2, 0, 1].map(ottava::TokenId).to_vec();
    case.step.outputs = vec![0, 2];
    let table = case.matrix(dense([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]));
    let hidden = case.output(3, 2);
    let out = case.gathered(2);
    case.ops = vec![
        Op::Embed(Embed { dst: hidden, table, scale: 0.5 }),
        Op::GatherOutputs(GatherOutputs { dst: out, src: hidden }),
    ];
    assert_gives(&case, &[2.5, 3.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 1.5, 2.0]);
}

#[test]
fn elementwise() {
    let functions = [
        (UnaryFn::Activation(Activation::Silu), [0.731_058_6, -0.268_941_4, 1.761_594_2]),
        (UnaryFn::Activation(Activation::GeluTanh), [0.841_192, -0.158_808, 1.954_597_7]),
        // Of the normal distribution's table: 0.8413447, 0.1586553, 0.9772499.
        (UnaryFn::Activation(Activation::Gelu), [0.841_344_7, -0.158_655_3, 1.954_499_7]),
        (UnaryFn::Scale(-1.5), [-1.5, 1.5, -3.0]),
        (UnaryFn::SoftCap(2.0), [0.924_234_3, -0.924_234_3, 1.523_188_3]),
    ];
    for (f, want) in functions {
        let mut case = Case::new(format!("{f:?}"));
        let src = case.input(&[1.0, -1.0, 2.0], 3);
        let dst = case.output(1, 3);
        case.ops = vec![Op::Unary(Unary { dst, src, f })];
        assert_gives(&case, &want);
    }
    // 1 + 2⁻¹¹ lies between two f16s (ties to even: 1), 1 + 2⁻⁸ between two bf16s, 70,000 beyond f16.
    let casts = [
        (Precision::F16, [1.0, 1.0 + 2f32.powi(-8), f32::INFINITY]),
        (Precision::Bf16, [1.0, 1.0, 70_144.0]),
        (Precision::F32, [1.0 + 2f32.powi(-11), 1.0 + 2f32.powi(-8), 70_000.0]),
    ];
    for (precision, want) in casts {
        let mut case = Case::new(format!("cast {precision:?}"));
        let src = case.input(&[1.0 + 2f32.powi(-11), 1.0 + 2f32.powi(-8), 70_000.0], 3);
        let dst = case.output(1, 3);
        case.ops = vec![Op::Unary(Unary { dst, src, f: UnaryFn::Cast(precision) })];
        assert_eq!(run(&Reference, &case)[0], want);
    }
    let functions = [
        (BinaryFn::Add, [11.0, 22.0, 13.0, 24.0]),
        (BinaryFn::Sub, [-9.0, -18.0, -7.0, -16.0]),
        (BinaryFn::Mul, [10.0, 40.0, 30.0, 80.0]),
    ];
    for (f, want) in functions {
        let mut case = Case::new(format!("{f:?}"));
        let (a, b) = (case.input(&[1.0, 2.0, 3.0, 4.0], 2), case.input(&[10.0, 20.0], 2));
        let dst = case.output(2, 2);
        case.ops = vec![Op::Binary(Binary { dst, a, b, f })];
        assert_gives(&case, &want);
    }
}

#[test]
fn a_norm_of_heads() {
    let mut case = Case::new("head norm");
    let weight = case.vector(vec![1.0, 2.0]);
    // Mean squares of 25 / 2 and 0.5.
    let x = case.input(&[3.0, 4.0, 0.0, -1.0], 4);
    case.results = vec![x];
    case.ops = vec![Op::HeadNorm(HeadNorm { x, head_dim: 2, norm: RmsNorm { weight, eps: 0.0 } })];
    assert_gives(&case, &[0.848_528_1, 2.262_741_7, 0.0, -2.828_427]);
}

#[test]
fn the_mean_of_a_sequence() {
    let mut case = Case::new("mean").at(0..2);
    case.sequence(4..5, None);
    case.step.outputs = vec![1, 2];
    let src = Place { rows: Rows::Tokens, ..case.input(&[1.0, 2.0, 3.0, 6.0, 9.0, 9.5], 2) };
    let dst = case.gathered(2);
    case.ops = vec![Op::MeanRows(MeanRows { dst, src })];
    assert_gives(&case, &[2.0, 4.0, 9.0, 9.5]);
}

#[test]
fn softmax_and_transpose() {
    let mut case = Case::new("softmax");
    let src = case.input(&[0.0, LN_3, 1000.0, 1000.0], 2);
    let dst = case.output(2, 2);
    case.ops = vec![Op::Softmax(Softmax { dst, src })];
    assert_gives(&case, &[0.25, 0.75, 0.5, 0.5]);

    let mut case = Case::new("greedy");
    let nothing = f32::NEG_INFINITY;
    let rows = [
        [0.5, 2.0, 2.0],
        [-0.0, 0.0, -3.0],
        [nothing, nothing, -9.0],
        [nothing; 3],
        [f32::NAN, 1.0, 2.0],
        [1.0, f32::INFINITY, 2.0],
    ];
    let src = case.input(&rows.concat(), 3);
    let dst = case.output(6, 1);
    case.ops = vec![Op::Sample(SampleRows { dst, src })];
    assert_gives(&case, &[1.0, 0.0, 2.0, -1.0, -1.0, -1.0]);

    let mut case = Case::new("transpose");
    let src = case.input(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3);
    let dst = case.output(3, 2);
    case.ops = vec![Op::Transpose(Transpose { dst, src })];
    assert_gives(&case, &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

/// Weights of 1, 3, 2 and 2 for the tokens 0 to 3, and how each row takes one of them.
#[test]
fn sampling() {
    let greedy = RowSampling { temperature: 1.0, ..RowSampling::default() };
    // In parts of eight of the whole: 0 | 1 1 1 | 2 2 | 3 3.
    let at = |eighths: f64| RowSampling { draw: (eighths / 8.0 * 2f64.powi(64)) as u64, ..greedy.clone() };
    let rows = [
        (at(0.9), 0.0),
        (at(1.1), 1.0),
        (at(3.9), 1.0),
        (at(4.1), 2.0),
        (at(7.9), 3.0),
        // Of two: 1 1 1 | 2 2, since the lower of equal ones comes first.
        (RowSampling { top_k: 2, ..at(4.9) }, 2.0),
        (RowSampling { top_k: 2, ..at(4.7) }, 1.0),
        // Five of eight are 62.5 %; a little more takes the fourth token in.
        (RowSampling { top_p: 0.6, ..at(7.9) }, 2.0),
        (RowSampling { top_p: 0.65, ..at(7.9) }, 3.0),
        // Of the two of top-k, the first alone has 60 %.
        (RowSampling { top_k: 2, top_p: 0.59, ..at(7.9) }, 1.0),
        (RowSampling { min_p: 0.5, ..at(0.1) }, 1.0),
        (RowSampling { min_p: 0.7, ..at(7.9) }, 1.0),
        // The square of the weights: 1 9 4 4.
        (RowSampling { temperature: 0.5, ..at(0.5) }, 1.0),
        (RowSampling { temperature: 0.0, ..at(7.9) }, 1.0),
        // Token 0 is biased to a weight of 8, token 1 is forbidden: 0 0 0 0 0 0 0 0 | 2 2 | 3 3.
        (RowSampling { adjustments: 0..2, ..at(5.2) }, 0.0),
        (RowSampling { adjustments: 0..2, ..at(5.5) }, 2.0),
        // Half the logit of token 1, less ln 3 / 2, leaves it a weight of 1: 0 | 1 | 2 2 | 3 3.
        (RowSampling { adjustments: 2..3, ..at(2.6) }, 1.0),
        (RowSampling { adjustments: 2..3, ..at(2.7) }, 2.0),
    ];
    let entry = |token, bias, repetition, penalty| LogitAdjustment {
        token: ottava::TokenId(token),
        bias,
        repetition,
        penalty,
    };
    let mut case = Case::new("sampling").at(0..rows.len() as u32);
    case.step.outputs = (0..rows.len() as u32).collect();
    case.step.sampling = rows.iter().map(|(row, _)| row.clone()).collect();
    case.step.adjustments = vec![
        entry(0, 8f32.ln(), 1.0, 0.0),
        entry(1, f32::NEG_INFINITY, 1.0, 0.0),
        entry(1, 0.0, 2.0, LN_3 / 2.0),
    ];
    let src = case.input(&[0.0, LN_3, 2f32.ln(), 2f32.ln()].repeat(rows.len()), 4);
    let dst = case.gathered(1);
    case.ops = vec![Op::Sample(SampleRows { dst, src })];
    assert_gives(&case, &rows.map(|(_, token)| token));
}

/// Three tokens, two query heads on one key head; scores of the last token: 0, 0 and ln 3 for the
/// first head, all 0 for the second.
fn attention(window: Option<u32>, sequence: Option<Window>, soft_cap: Option<f32>) -> Case {
    let mut case = Case::new("attention");
    case.sequence(0..3, sequence);
    case.kv = KvLayout { layers: 1, kv_heads: 1, head_dim: 2, dtype: KvDtype::F16 };
    let heads = Heads { query: 2, kv: 1, dim: 2 };
    let zeros = [0.0f32; 8];
    let q = case.input(&[&zeros[..], &[2.0 * LN_3, 0.0, 0.0, 1.0]].concat(), 4);
    let k = case.input(&[0.0, 0.0, 0.0, 0.0, 1.0, 0.0], 2);
    let v = case.input(&[5.0, 0.0, 10.0, 5.0, 20.0, -5.0], 2);
    let dst = case.output(3, 4);
    let append = KvAppend { q, k, v, layer: 0, heads, q_norm: None, k_norm: None, rope: None };
    let attention = Attention { dst, q, layer: 0, heads, scale: 0.5, window, soft_cap };
    case.ops = vec![Op::KvAppend(append), Op::Attention(attention)];
    case
}

#[test]
fn attention_sees_the_past_its_window_and_its_sinks() {
    // The first token sees itself, the second the mean of two; the third weighs 1 : 1 : 3.
    let early = [5.0, 0.0, 5.0, 0.0, 7.5, 2.5, 7.5, 2.5];
    let third = 35.0 / 3.0;
    assert_gives(&attention(None, None, None), &[&early[..], &[15.0, -2.0, third, 0.0]].concat());
    // A window of two leaves the third token 1 : 3.
    let narrow = [17.5, -2.5, 15.0, 0.0];
    assert_gives(&attention(Some(2), None, None), &[&early[..], &narrow].concat());
    // A window of one with one sink leaves the first token and itself.
    let sinks = Some(Window { window: 1, sinks: 1 });
    let second_with_sink = [16.25, -3.75, 12.5, -2.5];
    assert_gives(&attention(None, sinks, None), &[&early[..], &second_with_sink].concat());
    // A cap so large that it does nothing, and one so small that all scores are equal.
    assert_gives(&attention(None, None, Some(1e6)), &[&early[..], &[15.0, -2.0, third, 0.0]].concat());
    assert_gives(&attention(None, None, Some(1e-9)), &[&early[..], &[third, 0.0, third, 0.0]].concat());
}

/// Results, and then the slots of state.
#[test]
fn states_go_from_row_to_row_and_from_slot_to_slot() {
    let tokens_of = |place: Place| Place { rows: Rows::Tokens, ..place };
    // Ten times the row before: none before the first sequence, a 7 before the second.
    let mut case = Case::new("convolution").at(0..3);
    case.sequence(4..5, None);
    case.slots = vec![vec![7.0], vec![0.0], vec![0.0]];
    let mut case = case.on_slots(&[(None, 1), (Some(0), 2)]);
    let weight = case.vector(vec![10.0, 1.0]);
    let (src, dst) = (tokens_of(case.input(&[3.0, 4.0, 5.0, 2.0], 1)), tokens_of(case.output(4, 1)));
    case.results = vec![dst];
    let state = State { offset: 0, rows: 1, cols: 1 };
    case.ops = vec![Op::ShortConv(ShortConv { dst, src, weight, state })];
    assert_gives(&case, &[3.0, 34.0, 45.0, 72.0, 7.0, 5.0, 2.0]);

    // (4, 0) is halved; k finds 2 where v has 10, so half of 8 is added along k: (6, 4), of which q sees 14.
    // Then the second of them is cleared, and q sees 6.
    let mut case = Case::new("delta rule").at(5..7);
    case.slots = vec![vec![4.0, 0.0], vec![0.0; 2]];
    let mut case = case.on_slots(&[(Some(0), 1)]);
    let mut input = |values: &[f32]| tokens_of(case.input(values, values.len() / 2));
    let (q, k, v) = (input(&[1.0, 2.0, 1.0, 1.0]), input(&[1.0, 1.0, 0.0, 1.0]), input(&[10.0, 0.0]));
    let (decay, beta) = (input(&[0.5f32.ln(), 0.0]), input(&[0.5, 1.0]));
    let dst = tokens_of(case.output(2, 1));
    case.results = vec![dst];
    let heads = DeltaHeads { key: 1, value: 1, key_dim: 2, value_dim: 1 };
    let state = State { offset: 0, rows: 2, cols: 1 };
    case.ops = vec![Op::GatedDelta(GatedDelta { dst, q, k, v, decay, beta, heads, scale: 0.5, state })];
    assert_gives(&case, &[7.0, 3.0, 4.0, 0.0, 6.0, 0.0]);
}
