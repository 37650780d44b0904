//! Packing compared weight by weight with the layout table in the documentation of `pack`.

use std::num::NonZeroUsize;
use std::ops::Range;

use half::bf16;

use super::*;
use crate::backend::BackendError;
use crate::quant::{DenseMatrix, MatrixForm, QuantError, QuantForm, QuantParts, code_bytes_per_row};

/// A matrix in memory that records which rows are read, and fails on the bad ones.
struct Source<'a> {
    matrix: &'a WeightMatrix,
    bad: &'a [usize],
    asked: Mutex<Vec<Range<usize>>>,
}

#[derive(Debug, PartialEq)]
enum Failure {
    Backend(BackendError),
    Rows(QuantError),
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Failure {
        Failure::Backend(error)
    }
}

fn bad_row(row: usize) -> Failure {
    Failure::Rows(QuantError::NonFinite { row, col: 3, value: f32::INFINITY })
}

impl MatrixSource for Source<'_> {
    type Error = Failure;

    fn rows(&self) -> usize {
        self.matrix.rows()
    }

    fn cols(&self) -> usize {
        self.matrix.cols()
    }

    fn form(&self) -> MatrixForm {
        self.matrix.form()
    }

    fn read(&self, rows: Range<usize>, into: &mut WeightMatrix) -> Result<(), Failure> {
        self.asked.lock().unwrap().push(rows.clone());
        match self.bad.iter().find(|row| rows.contains(row)) {
            Some(&row) => Err(bad_row(row)),
            None => Ok(MatrixSource::read(self.matrix, rows, into)?),
        }
    }
}

fn pool(threads: usize) -> Pool {
    Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

fn random(count: usize, seed: u64) -> impl Iterator<Item = u32> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    })
    .take(count)
}

fn quant([rows, cols]: [usize; 2], form: QuantForm) -> WeightMatrix {
    let QuantForm { kind, group, mins } = form;
    let factors =
        |seed| random(rows * cols.div_ceil(group), seed).map(|x| f16::from_bits(x as u16 & 0xbbff)).collect();
    let code = |x: u32| match kind {
        Codes::Int(Bits::Four) | Codes::E2m1 => x as u8,
        Codes::Int(bits) => (*bits.codes(mins).start() as u8).wrapping_add((x % (1 << bits.count())) as u8),
        // All codes except the two NaNs.
        Codes::E4m3 => x as u8 & 0x80 | ((x >> 8) % 127) as u8,
    };
    let codes = random(rows * code_bytes_per_row(kind, cols), 1).map(code).collect();
    let (scales, mins) = (factors(2), mins.then(|| factors(3)));
    WeightMatrix::Quant(
        QuantMatrix::new(QuantParts { rows, cols, kind, group, codes, scales, mins }).unwrap(),
    )
}

fn dense([rows, cols]: [usize; 2]) -> [WeightMatrix; 3] {
    let floats: Vec<f32> = random(rows * cols, 4).map(|x| x as f32 / 1e9 - 1.0).collect();
    let values = [
        DenseValues::F16(floats.iter().map(|&x| f16::from_f32(x)).collect()),
        DenseValues::Bf16(floats.iter().map(|&x| bf16::from_f32(x)).collect()),
        DenseValues::F32(floats),
    ];
    values.map(|values| WeightMatrix::Dense(DenseMatrix::new(rows, cols, values).unwrap()))
}

/// The whole packed matrix, built weight by weight.
fn specified(matrix: &WeightMatrix, order: Order) -> Vec<u8> {
    let (layout, groups) = (Layout::of(matrix.form()), groups(matrix.cols()));
    let mut out = vec![0; matrix.rows().div_ceil(PANEL) * groups * layout.group_bytes()];
    for row in 0..matrix.rows() {
        for (group, out) in out[row / PANEL * groups * layout.group_bytes()..]
            .chunks_exact_mut(layout.group_bytes())
            .take(groups)
            .enumerate()
        {
            match matrix {
                WeightMatrix::Quant(m) => specify_codes(m, layout, order, [row, group], out),
                WeightMatrix::Dense(m) => specify_floats(m, [row, group], out),
            }
        }
    }
    out
}

fn specify_codes(m: &QuantMatrix, layout: Layout, order: Order, [row, group]: [usize; 2], out: &mut [u8]) {
    let lane = row % PANEL;
    for k in 0..GROUP {
        let col = group * GROUP + k;
        let Layout::Quant { kind, .. } = layout else { panic!("not quantised") };
        let signed = |zero: i32| if col < m.cols() { m.code(row, col) as i32 + zero } else { zero };
        // Without mins the padding is the code of 0; with mins it is 0 itself, which has the same effect
        // here.
        let (bits, stored) = match kind {
            Codes::Int(Bits::Eight) => {
                (Bits::Eight, (signed(layout.zero_point()) as u8).wrapping_sub(order.byte_bias()))
            }
            Codes::Int(bits) => (bits, signed(layout.zero_point()) as u8),
            // Stored like 4-bit integers, unchanged; their padding is 0.
            Codes::E2m1 if col < m.cols() => (Bits::Four, m.row_codes(row)[col / 2] >> (4 * (col % 2)) & 15),
            Codes::E2m1 => (Bits::Four, 0),
            Codes::E4m3 => {
                out[k * PANEL + lane] = m.row_codes(row).get(col).copied().unwrap_or(0);
                continue;
            }
        };
        // Bits are placed from the lowest up.
        let (lane, quad) = match (order, row % 4) {
            (Order::Unsigned | Order::Signed, _) => (lane, k / 4),
            // Eight columns of two rows, one row after the other, then the other two rows.
            (Order::Pairs, of_four) => {
                (lane - of_four + of_four % 2 * 2 + k / 4 % 2, k / 8 * 2 + of_four / 2)
            }
        };
        for (at, &(line, bit)) in places(bits, quad).iter().enumerate() {
            out[4 * (line * PANEL + lane) + k % 4] |= (stored >> at & 1) << bit;
        }
    }
    let halves = if m.group() == 16 && m.kind() != Codes::E4m3 { 2 } else { 1 };
    for (set, values) in [Some(m.scales()), m.mins()].into_iter().flatten().enumerate() {
        for half in 0..halves {
            let col = group * GROUP + half * 16;
            if col < m.cols() {
                let at = layout.code_bytes() + 2 * ((set * halves + half) * PANEL + lane);
                let value = values[row * m.groups_per_row() + col / m.group()];
                out[at..at + 2].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
}

/// The line and bit position of each bit of a quad's codes, lowest bit first.
fn places(bits: Bits, quad: usize) -> Vec<(usize, usize)> {
    let low = |line| (0..bits.count()).map(|bit| (line, bit)).collect();
    match (bits, quad) {
        (Bits::Four, _) => (0..4).map(|bit| (quad / 2, quad % 2 * 4 + bit)).collect(),
        (Bits::Five, 2) => vec![(1, 6), (1, 7), (0, 5), (0, 6), (0, 7)],
        (Bits::Five, 4) => vec![(3, 5), (1, 5), (2, 5), (2, 6), (2, 7)],
        (Bits::Five, 6) => vec![(3, 6), (3, 7), (4, 5), (4, 6), (4, 7)],
        (Bits::Five, _) => low([0, 1, 0, 2, 0, 3, 0, 4][quad]),
        (Bits::Six, 2) => vec![(2, 6), (2, 7), (1, 6), (1, 7), (0, 6), (0, 7)],
        (Bits::Six, 6) => vec![(5, 6), (5, 7), (4, 6), (4, 7), (3, 6), (3, 7)],
        (Bits::Six, _) => low([0, 1, 0, 2, 3, 4, 0, 5][quad]),
        (Bits::Eight, _) => low(quad),
    }
}

fn specify_floats(m: &DenseMatrix, [row, group]: [usize; 2], out: &mut [u8]) {
    for col in group * GROUP..m.cols().min((group + 1) * GROUP) {
        let (at, from) = (col % GROUP * PANEL + row % PANEL, row * m.cols() + col);
        match m.values() {
            DenseValues::F32(v) => out[4 * at..4 * at + 4].copy_from_slice(&v[from].to_le_bytes()),
            DenseValues::F16(v) => out[2 * at..2 * at + 2].copy_from_slice(&v[from].to_le_bytes()),
            DenseValues::Bf16(v) => out[2 * at..2 * at + 2].copy_from_slice(&v[from].to_le_bytes()),
        }
    }
}

fn check(matrix: &WeightMatrix, pool: &Pool, arena: &WeightArena) {
    for order in [Order::Unsigned, Order::Signed, Order::Pairs] {
        let source = Source { matrix, bad: &[], asked: Mutex::default() };
        let packed = Matrix::pack(&source, order, pool, arena).unwrap();
        let what = format!("{} x {} of {:?}, {order:?}", matrix.rows(), matrix.cols(), matrix.form());
        assert!(packed.data.as_slice() == specified(matrix, order), "{what}: other bytes");
        for row in 0..matrix.rows() {
            let mut values = [0.0, 1.0].map(|x| vec![x; matrix.cols()]);
            let [read, expected] = &mut values;
            packed.row(row, 1.0, read);
            match matrix {
                WeightMatrix::Quant(m) => m.dequantize_row(row, expected),
                WeightMatrix::Dense(m) => m.widen_row(row, expected),
            }
            assert_eq!(read, expected, "{what}: row {row}");
        }
        let mut asked = source.asked.into_inner().unwrap();
        asked.sort_unstable_by_key(|rows| rows.start);
        let each: Vec<usize> = asked.into_iter().flatten().collect();
        assert!(each.iter().copied().eq(0..matrix.rows()), "{what}: rows asked for {each:?}");
    }
}

#[test]
fn every_form_is_packed_as_the_layout_says() {
    for pool in [pool(1), pool(3)] {
        // One arena for all: packing must not write outside a matrix.
        let arena = WeightArena::default();
        for shape in [[1, 32], [3, 16], [31, 33], [32, 256], [33, 47], [70, 100], [200, 64], [97, 160]] {
            for bits in [Bits::Four, Bits::Five, Bits::Six, Bits::Eight] {
                for group in [16, 32, 64, 128, shape[1]] {
                    for mins in [false, true] {
                        check(&quant(shape, QuantForm { kind: bits.into(), group, mins }), &pool, &arena);
                    }
                }
            }
            let groups = [32, 64, 128, shape[1]];
            let of = |kind| groups.map(|group| QuantForm { kind, group, mins: false });
            let sixteen = QuantForm { kind: Codes::E2m1, group: 16, mins: false };
            for form in [of(Codes::E2m1), of(Codes::E4m3)].concat().into_iter().chain([sixteen]) {
                check(&quant(shape, form), &pool, &arena);
            }
            dense(shape).iter().for_each(|matrix| check(matrix, &pool, &arena));
        }
    }
}

#[test]
fn codes_of_five_and_six_bits_take_no_more_where_kernels_read_them() {
    let bytes = |bits: Bits, group, mins| {
        let matrix = quant([64, 96], QuantForm { kind: bits.into(), group, mins });
        let packed = Matrix::pack(&matrix, Order::Unsigned, &pool(1), &WeightArena::default()).unwrap();
        // Bits per code, without scales and mins.
        let factors = 64 * 96 / group.min(32) * if mins { 4 } else { 2 };
        8 * (packed.bytes() - factors) / (64 * 96)
    };
    for mins in [false, true] {
        assert_eq!([16, 32, 64, 128].map(|group| bytes(Bits::Five, group, mins)), [8, 5, 5, 5]);
        assert_eq!([16, 32].map(|group| bytes(Bits::Six, group, mins)), [if mins { 8 } else { 6 }, 8]);
    }
}

#[test]
fn of_several_bad_rows_the_first_panels_is_told() {
    let [matrix, ..] = dense([900, 40]);
    let (pool, arena) = (pool(3), WeightArena::default());
    for bad in [vec![0], vec![899], vec![40, 500], vec![800, 130, 460, 129]] {
        let source = Source { matrix: &matrix, bad: &bad, asked: Mutex::default() };
        let first = bad.iter().min().unwrap() / PANEL;
        match Matrix::pack(&source, Order::Unsigned, &pool, &arena).unwrap_err() {
            Failure::Rows(QuantError::NonFinite { row, .. }) => assert_eq!(row / PANEL, first, "{bad:?}"),
            other => panic!("{other:?}"),
        }
    }
    check(&matrix, &pool, &arena);
}
