//! Tests of operand checks, work estimates and listings. Results are compared with the reference in
//! `tests/op_table.rs`.

use super::*;
use crate::TokenId;
use crate::ir::{
    Activation, AxisRows, Heads, KvDtype, MatrixId, MatrixSize, MatrixStack, Names, Precision, State,
    StepInput, StepSequence, VectorId, WriteMode,
};

struct Numbered;

impl Names for Numbered {
    fn matrix(&self, _: MatrixId) -> &str {
        "matrix"
    }
    fn vector(&self, _: VectorId) -> &str {
        "vector"
    }
}

struct Line<'o>(&'o Op);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, &Numbered)
    }
}

fn place(offset: usize, rows: Rows, cols: usize) -> Place {
    Place { offset, rows, cols, precision: Precision::F32 }
}

fn tokens(offset: usize, cols: usize) -> Place {
    place(offset, Rows::Tokens, cols)
}

/// Two sequences of three rows and one row, with two and five rows on an axis.
fn step() -> StepInput {
    StepInput {
        tokens: vec![TokenId(0); 4],
        positions: vec![0, 1, 2, 0],
        sequences: vec![
            StepSequence { rows: 0..3, pages: 0..0, window: None },
            StepSequence { rows: 3..4, pages: 0..0, window: None },
        ],
        axes: vec![AxisRows { rows: vec![0..2, 2..7] }],
        ..StepInput::default()
    }
}

fn work(op: &Op, step: &StepInput) -> Work {
    let matrix = |_| MatrixSize { rows: 10, cols: 32, bytes: 180, int8: true };
    op.work(&Counting { step, kv: KvDtype::F16, matrix: &matrix })
}

/// A change to an operation, and the resulting error message.
type Wrong<'m, O> = (fn(&mut O), &'m str);

/// Checks that an operation is valid, and refused after each change.
fn refuses<O: Clone>(right: &O, op: fn(O) -> Op, wrong: &[Wrong<'_, O>]) {
    assert_eq!(op(right.clone()).check(), Ok(()));
    for (change, expected) in wrong {
        let mut changed = right.clone();
        change(&mut changed);
        assert_eq!(op(changed).check().unwrap_err().to_string(), *expected);
    }
}

fn row_attention() -> RowAttention {
    let (q, k) = (tokens(0, 16), tokens(64, 8));
    let heads = Heads { query: 4, kv: 2, dim: 4 };
    RowAttention {
        dst: tokens(128, 16),
        q,
        k,
        v: tokens(96, 8),
        heads,
        scale: 0.5,
        mask: AttentionMask::Causal,
    }
}

fn short_conv() -> ShortConv {
    let state = State { offset: 0, rows: 3, cols: 8 };
    ShortConv { dst: tokens(0, 8), src: tokens(32, 8), weight: VectorId(0), state }
}

fn gated_delta() -> GatedDelta {
    let (values, keys, heads) = (tokens(0, 24), tokens(96, 10), tokens(160, 4));
    GatedDelta {
        dst: values,
        q: keys,
        k: keys,
        v: values,
        decay: heads,
        beta: heads,
        heads: DeltaHeads { key: 2, value: 4, key_dim: 5, value_dim: 6 },
        scale: 0.5,
        state: State { offset: 8, rows: 20, cols: 6 },
    }
}

fn expert_matmul() -> ExpertMatmul {
    let experts = MatrixStack { first: MatrixId(3), count: 8 };
    ExpertMatmul { dst: tokens(0, 20), src: tokens(80, 32), routes: tokens(208, 4), experts }
}

#[test]
fn products_need_columns_and_a_matrix_and_gated_ones_no_bias() {
    let product = Product {
        dst: tokens(0, 10),
        matrix: MatrixId(0),
        bias: None,
        epilogue: Epilogue::Gated { up: MatrixId(1), activation: Activation::Silu },
    };
    let right = Matmul { src: tokens(64, 32), norm: None, products: vec![product] };
    refuses(
        &right,
        Op::Matmul,
        &[
            (|op| op.products.clear(), "matmul: expected at least one product, found none"),
            (|op| op.src.cols = 0, "matmul: expected a source of at least one column, found none"),
            (
                |op| op.products[0].bias = Some(VectorId(0)),
                "matmul: expected a gated product without bias, found one",
            ),
        ],
    );
    let mut biased = right;
    biased.products[0].bias = Some(VectorId(0));
    biased.products[0].epilogue = Epilogue::Write(WriteMode::Add);
    assert_eq!(Op::Matmul(biased).check(), Ok(()));
}

#[test]
fn results_of_elements_have_the_shape_of_their_source() {
    let unary = Unary { dst: tokens(0, 8), src: tokens(32, 8), f: UnaryFn::Scale(2.0) };
    let expected = "unary: expected a result of @32 [tokens, 8] f32, found @0 [tokens, 9] f32";
    let rows = "unary: expected a result of @32 [tokens, 8] f32, found @0 [outputs, 8] f32";
    refuses(&unary, Op::Unary, &[(|op| op.dst.cols = 9, expected), (|op| op.dst.rows = Rows::Outputs, rows)]);
}

#[test]
fn means_are_of_rows_that_sequences_have() {
    let mean = MeanRows { dst: place(0, Rows::Outputs, 8), src: tokens(32, 8) };
    refuses(
        &mean,
        Op::MeanRows,
        &[
            (
                |op| op.src.rows = Rows::Outputs,
                "mean_rows: expected rows of sequences, found @32 [outputs, 8] f32",
            ),
            (|op| op.dst.cols = 9, "mean_rows: expected @32 [outputs, 8] f32, found @0 [outputs, 9] f32"),
            (
                |op| op.src.rows = Rows::Fixed(3),
                "mean_rows: expected @32 [1, 8] f32, found @0 [outputs, 8] f32",
            ),
        ],
    );
    assert_eq!(
        Line(&Op::MeanRows(mean)).to_string(),
        "@0 [outputs, 8] f32 = mean of sequences of @32 [tokens, 8] f32\n"
    );
}

#[test]
fn attention_over_rows_has_heads_that_fit_and_an_order_where_it_needs_one() {
    const HEADS: &str = "row_attention: expected query heads in equal groups over kv heads, found Heads ";
    let (third, none) =
        (HEADS.to_owned() + "{ query: 4, kv: 3, dim: 4 }", HEADS.to_owned() + "{ query: 0, kv: 2, dim: 4 }");
    let (no_kv, no_dim) =
        (HEADS.to_owned() + "{ query: 4, kv: 0, dim: 4 }", HEADS.to_owned() + "{ query: 4, kv: 2, dim: 0 }");
    refuses(
        &row_attention(),
        Op::RowAttention,
        &[
            (|op| op.heads.kv = 3, &third),
            (|op| op.heads.query = 0, &none),
            (|op| op.heads.kv = 0, &no_kv),
            (|op| op.heads.dim = 0, &no_dim),
            (
                |op| op.dst.cols = 8,
                "row_attention: expected Tokens of 4 heads of 4, found @128 [tokens, 8] f32",
            ),
            (
                |op| op.v.rows = Rows::Outputs,
                "row_attention: expected Tokens of 2 heads of 4, found @96 [outputs, 8] f32",
            ),
            (
                |op| (op.k.rows, op.v.rows) = (Rows::Fixed(9), Rows::Fixed(9)),
                "row_attention: expected queries and keys of the same rows, which have an order, found Fixed(9)",
            ),
        ],
    );
    let across = RowAttention {
        k: place(64, Rows::Fixed(9), 8),
        v: place(96, Rows::Fixed(9), 8),
        mask: AttentionMask::Full,
        ..row_attention()
    };
    assert_eq!(Op::RowAttention(across).check(), Ok(()));
}

#[test]
fn attention_over_rows_counts_what_each_query_sees() {
    let float_macs =
        |mask| work(&Op::RowAttention(RowAttention { mask, ..row_attention() }), &step()).float_macs;
    // Sequences of three rows and one row; keys and values, four query heads of four.
    assert_eq!(float_macs(AttentionMask::Full), 2 * (9 + 1) * 16);
    assert_eq!(float_macs(AttentionMask::Causal), 2 * (6 + 1) * 16);
    assert_eq!(float_macs(AttentionMask::Window(2)), 2 * (7 + 1) * 16);
    let axis = Rows::Axis(crate::ir::Axis { id: 0, max: 8 });
    let across = RowAttention {
        k: place(64, axis, 8),
        v: place(96, axis, 8),
        mask: AttentionMask::Full,
        ..row_attention()
    };
    assert_eq!(work(&Op::RowAttention(across), &step()).float_macs, 2 * (3 * 2 + 5) * 16);
}

#[test]
fn convolutions_and_delta_rules_have_states_that_fit() {
    refuses(
        &short_conv(),
        Op::ShortConv,
        &[
            (
                |op| op.state.rows = 0,
                "short_conv: expected a state of at least one element, found state @0 [0, 8]",
            ),
            (
                |op| op.state.cols = 0,
                "short_conv: expected a state of at least one element, found state @0 [3, 0]",
            ),
            (|op| op.src.cols = 9, "short_conv: expected [tokens, 8], found @32 [tokens, 9] f32"),
            (|op| op.dst.rows = Rows::Outputs, "short_conv: expected [tokens, 8], found @0 [outputs, 8] f32"),
        ],
    );
    refuses(
        &gated_delta(),
        Op::GatedDelta,
        &[
            (
                |op| op.heads.value = 3,
                "gated_delta: expected value heads in equal groups over key heads, found DeltaHeads { key: 2, value: \
                 3, key_dim: 5, value_dim: 6 }",
            ),
            (|op| op.state.cols = 5, "gated_delta: expected a state of (20, 6), found state @8 [20, 5]"),
            (|op| op.q.cols = 24, "gated_delta: expected [tokens, 10], found @96 [tokens, 24] f32"),
            (|op| op.v.cols = 10, "gated_delta: expected [tokens, 24], found @0 [tokens, 10] f32"),
            (|op| op.decay.cols = 2, "gated_delta: expected [tokens, 4], found @160 [tokens, 2] f32"),
            (|op| op.beta.cols = 2, "gated_delta: expected [tokens, 4], found @160 [tokens, 2] f32"),
        ],
    );
}

#[test]
fn states_are_read_and_written_once_a_sequence() {
    let found = work(&Op::ShortConv(short_conv()), &step());
    assert_eq!(found, Work { bytes: 2 * 2 * 24 * 4, int8_macs: 0, float_macs: 4 * 4 * 8 });
    let found = work(&Op::GatedDelta(gated_delta()), &step());
    assert_eq!(found, Work { bytes: 2 * 2 * 120 * 4, int8_macs: 0, float_macs: 4 * 4 * 120 });
}

#[test]
fn rows_go_to_experts_that_there_are() {
    let route = Route { dst: tokens(0, 4), src: tokens(16, 8), top_k: 2, renormalise: true };
    refuses(
        &route,
        Op::Route,
        &[
            (|op| op.top_k = 0, "route: expected 1 to 8 experts a row, found 0"),
            (|op| op.top_k = 9, "route: expected 1 to 8 experts a row, found 9"),
            (|op| op.dst.cols = 2, "route: expected a result of 4 columns, found @0 [tokens, 2] f32"),
            (
                |op| op.dst.rows = Rows::Outputs,
                "route: expected a result of 4 columns, found @0 [outputs, 4] f32",
            ),
        ],
    );
    let every = Route { dst: tokens(0, 16), top_k: 8, ..route.clone() };
    assert_eq!(Op::Route(every).check(), Ok(()));
    assert_eq!(
        Line(&Op::Route(route)).to_string(),
        "@0 [tokens, 4] f32 = route(@16 [tokens, 8] f32) to 2, sum 1\n"
    );
}

#[test]
fn products_with_experts_have_a_part_for_each() {
    const ROWS: &str =
        "expert_matmul: expected source, routes and result of the same rows, found @0 [tokens, 20] f32";
    refuses(
        &expert_matmul(),
        Op::ExpertMatmul,
        &[
            (
                |op| op.routes.cols = 1,
                "expert_matmul: expected a part for each of 0 experts, found @0 [tokens, 20] f32",
            ),
            (
                |op| op.dst.cols = 21,
                "expert_matmul: expected a part for each of 2 experts, found @0 [tokens, 21] f32",
            ),
            (|op| op.src.rows = Rows::Outputs, ROWS),
            (|op| op.routes.rows = Rows::Outputs, ROWS),
        ],
    );
    let op = Op::ExpertMatmul(expert_matmul());
    // Two experts per row; all rows may be routed to the same two.
    assert_eq!(work(&op, &step()), Work { bytes: 2 * 180, int8_macs: 4 * 2 * 320, float_macs: 0 });
    assert_eq!(work(&op, &StepInput::default()), Work::default());
    assert_eq!(
        Line(&op).to_string(),
        "@0 [tokens, 20] f32 = @80 [tokens, 32] f32 · matrix of 8 by @208 [tokens, 4] f32\n"
    );
}

#[test]
fn parts_of_experts_are_combined_to_a_row() {
    let combine =
        Combine { dst: tokens(0, 10), src: tokens(64, 20), routes: tokens(160, 4), write: WriteMode::Add };
    const PARTS: &str = "combine: expected 2 parts of @0 [tokens, 10] f32, found @64 [tokens, 20] f32";
    refuses(
        &combine,
        Op::Combine,
        &[
            (
                |op| op.src.cols = 21,
                "combine: expected 2 parts of @0 [tokens, 10] f32, found @64 [tokens, 21] f32",
            ),
            (
                |op| op.src.rows = Rows::Outputs,
                "combine: expected 2 parts of @0 [tokens, 10] f32, found @64 [outputs, 20] f32",
            ),
            (|op| op.routes.rows = Rows::Outputs, PARTS),
            (
                |op| (op.routes.cols, op.src.cols) = (0, 0),
                "combine: expected 0 parts of @0 [tokens, 10] f32, found @64 [tokens, 0] f32",
            ),
        ],
    );
    assert_eq!(
        Line(&Op::Combine(combine)).to_string(),
        "@0 [tokens, 10] f32 += parts of @64 [tokens, 20] f32 by @160 [tokens, 4] f32\n"
    );
}

#[test]
fn soft_caps_are_positive() {
    let heads = Heads { query: 4, kv: 2, dim: 4 };
    let attention = Attention {
        dst: tokens(64, 16),
        q: tokens(0, 16),
        layer: 0,
        heads,
        scale: 0.5,
        window: None,
        soft_cap: Some(30.0),
    };
    refuses(
        &attention,
        Op::Attention,
        &[
            (|op| op.soft_cap = Some(0.0), "attention: expected a positive soft cap, found 0"),
            (|op| op.soft_cap = Some(f32::INFINITY), "attention: expected a positive soft cap, found inf"),
            (|op| op.soft_cap = Some(f32::NAN), "attention: expected a positive soft cap, found NaN"),
        ],
    );
}
