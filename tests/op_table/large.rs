//! Cases too large for every backend: where a GPU shares tiles between blocks, takes activations in chunks,
//! and looks back over tiles of a prompt.

use ottava::ir::{Activation, KvDtype, Matmul, Op, Window};
use ottava::quant::{Bits, WeightMatrix};

use super::{F16_EPS, Shape, dense, gate, product, shared_source};
use crate::case::{Case, Numbers};

/// Products of many rows whose matrices are too narrow, or a little too wide, for a GPU of 100 to 140
/// multiprocessors; too large for every backend to run.
pub fn uneven() -> Vec<Case> {
    let mut numbers = Numbers(12);
    let mut one = |rows: usize, matrix: WeightMatrix, [n, k]: [usize; 2]| {
        let mut case = Case::new(format!("{rows} x [{n}, {k}]"));
        let src = case.input(&numbers.take(rows * k), k);
        let dst = case.output(rows, n);
        let products = vec![product(&mut case, dst, matrix)];
        case.ops = vec![Op::Matmul(Matmul { src, norm: None, products })];
        Case { eps_f16: F16_EPS, ..case }
    };
    let mut of = Numbers(13);
    // More tiles than multiprocessors: a block ends one and begins another. Then more blocks than tiles,
    // with tails in rows, columns and tokens.
    let four = one(33, of.matrix([17_000, 100], Bits::Four, 32, true), [17_000, 100]);
    let eight = one(130, of.matrix([300, 4100], Bits::Eight, 16, true), [300, 4100]);
    let sixteen = one(65, dense(129, 2100, 8).remove(1), [129, 2100]);
    let gates = [(Activation::Silu, Bits::Eight), (Activation::GeluTanh, Bits::Four)]
        .map(|(activation, up_bits)| gate(activation, up_bits, 40, [150, 2100]));
    [vec![four, eight, sixteen, shared_source(50, 49, 3000)], gates.to_vec()].concat()
}

/// Rows so long that a GPU's shared memory holds the activations of few tokens, and takes those of more in
/// chunks; of matrices with few rows, which do not matter to that.
pub fn long_rows() -> Vec<Case> {
    let by_cols: [(usize, &[usize]); 5] = [
        (2048, &[2, 3, 7, 15, 16, 17, 31, 32, 64, 118]),
        (8192, &[3, 16, 31]),
        (8960, &[7, 9, 15, 17, 32]),
        // The last chunk has a tail.
        (9000, &[9]),
        (14_336, &[2, 8, 16, 32]),
    ];
    let each = |(cols, tokens): (usize, &'static [usize])| tokens.iter().map(move |&n| every_format(n, cols));
    by_cols.into_iter().flat_map(each).chain([every_format(1024, 320)]).collect()
}

/// Products of one token whose activations leave less than a kilobyte of a block's shared memory, on a card of
/// 227 KiB and on one of 163; and one that had left so little.
pub fn full_blocks() -> Vec<Case> {
    [(1, 113_792), (1, 81_024), (23, 4096)].map(|(tokens, cols)| every_format(tokens, cols)).into()
}

/// A product of each number of bits, with and without minima.
fn every_format(rows: usize, cols: usize) -> Case {
    let mut case = Case::new(format!("{rows} x [16, {cols}] of all formats"));
    let mut numbers = Numbers((rows + cols) as u64);
    let src = case.input(&numbers.take(rows * cols), cols);
    let matrices = [
        numbers.matrix([17, cols], Bits::Four, 32, true),
        numbers.matrix([16, cols], Bits::Four, 128, false),
        numbers.matrix([16, cols], Bits::Eight, 16, true),
        numbers.matrix([16, cols], Bits::Eight, 64, false),
        dense(16, cols, 6).remove(1),
    ];
    let products = matrices.map(|matrix| {
        let dst = case.output(rows, matrix.rows());
        product(&mut case, dst, matrix)
    });
    case.ops = vec![Op::Matmul(Matmul { src, norm: None, products: products.into() })];
    Case { eps_f16: F16_EPS, ..case }
}

/// Prompts of several of a GPU's tiles of 64 rows: alone, behind a past, in a window of their own, and
/// beside a token, all of which look back over tiles.
pub fn long_prompts() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [KvDtype::F16, KvDtype::Int8] {
        for (query, kv, dim) in [(2, 1, 64), (1, 1, 128), (1, 1, 256)] {
            for (window, soft_cap) in [(None, None), (Some(70), Some(3.0))] {
                let mut case =
                    Case::new(format!("long prompts, {query}/{kv} of {dim} {dtype:?}, {window:?}"));
                case.sequence(0..150, None);
                case.continued(150..221, None);
                case.sequence(0..130, Some(Window { window: 66, sinks: 3 }));
                case.continued(130..131, None);
                let shape = Shape { window, soft_cap, ..Shape::new(query, kv, dim, dtype) };
                let mut case = shape.case(case, None);
                // Scores up to 40: what f16 misses of larger ones shows where many keys compete.
                case.values[0].1.iter_mut().for_each(|q| *q /= 8.0);
                cases.push(Case { eps_f16: 6e-3, ..case });
            }
        }
    }
    cases
}
