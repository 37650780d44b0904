//! Weight matrices in the order of the A operand of `mma.m16n8k16`: one packing for every kernel.
//!
//! `kernels-cu/common/matrix.cuh` has the layout: strips of 16 rows, steps of 16 columns, 16 bytes a
//! lane and load. Dense matrices become f16, scaled by a power of two a row where that keeps them in
//! range; quantised ones keep their codes, stored unsigned with a zero point.

use half::f16;

use crate::quant::{Bits, DenseMatrix, QuantMatrix, WeightMatrix};

/// Rows of a strip.
pub(super) const STRIP_ROWS: usize = 16;
/// Columns of a step.
pub(super) const STEP_COLS: usize = 16;
/// Steps of a unit: no group is longer, but whole rows.
pub(super) const UNIT_STEPS: usize = 8;
/// Lanes of a warp.
const LANES: usize = 32;
/// Bytes of a lane's load.
const LOAD_BYTES: usize = 16;
/// 1024 in f16, whose last bits count units.
const EXPONENT: u16 = 0x6400;

/// A packed matrix in host memory, ready to be copied to the device.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Packed {
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Bits of a weight: 4, 8 or 16.
    pub(super) bits: u32,
    /// Steps that share a scale.
    pub(super) group_steps: u32,
    /// Scales of a row.
    pub(super) groups: usize,
    /// `1024 + zero point`, as f16, twice.
    pub(super) zero: u32,
    /// `[strips][loads of a row][32 lanes][16 bytes]`
    pub(super) codes: Vec<u8>,
    /// `[strips][groups][8][rows g and g + 8]`
    pub(super) scales: Vec<f16>,
    /// As `scales`.
    pub(super) mins: Option<Vec<f16>>,
}

/// Where a weight lies in a strip's row of loads: its lane, and its number among the lane's eight
/// weights of the step. Numbers 0 and 1 are the two columns of register 0, and so on.
fn place_in_step(row: usize, col: usize) -> (usize, usize) {
    let (lower, in_step) = (row % STRIP_ROWS / 8, col % STEP_COLS);
    let lane = row % 8 * 4 + in_step / 4;
    let register = 2 * (in_step % 4 / 2) + lower;
    (lane, 2 * register + in_step % 2)
}

impl Packed {
    /// Packs any matrix.
    pub(super) fn new(matrix: &WeightMatrix) -> Packed {
        match matrix {
            WeightMatrix::Quant(matrix) => Packed::quant(matrix),
            WeightMatrix::Dense(matrix) => Packed::dense(matrix),
        }
    }

    fn steps_of_load(bits: u32) -> usize {
        LOAD_BYTES * 8 / (bits as usize * 8)
    }

    /// Zero codes for a shape.
    fn blank(rows: usize, cols: usize, bits: u32) -> Vec<u8> {
        let loads = cols.div_ceil(Packed::steps_of_load(bits) * STEP_COLS);
        vec![0; rows.div_ceil(STRIP_ROWS) * loads * LANES * LOAD_BYTES]
    }

    /// The first byte of the 16 that hold a weight, the step among theirs, and its number there.
    fn find(cols: usize, bits: u32, row: usize, col: usize) -> (usize, usize, usize) {
        let steps = Packed::steps_of_load(bits);
        let (load, step) = (col / (steps * STEP_COLS), col / STEP_COLS % steps);
        let loads = cols.div_ceil(steps * STEP_COLS);
        let (lane, number) = place_in_step(row, col);
        (((row / STRIP_ROWS * loads + load) * LANES + lane) * LOAD_BYTES, step, number)
    }

    fn quant(matrix: &QuantMatrix) -> Packed {
        let (rows, cols, groups) = (matrix.rows(), matrix.cols(), matrix.groups_per_row());
        let (bits, signed_zero) = match matrix.bits() {
            Bits::Four => (4, 8),
            Bits::Five | Bits::Six | Bits::Eight => (8, 128),
        };
        let zero_point = if matrix.mins().is_some() { 0 } else { signed_zero };
        let mut codes = Packed::blank(rows, cols, bits);
        for row in 0..rows {
            for col in 0..cols {
                let code = (matrix.code(row, col) + zero_point) as u8;
                let (start, step, number) = Packed::find(cols, bits, row, col);
                match bits {
                    8 => codes[start + 8 * step + number] = code,
                    // Nibbles 0 to 3 of the step's word are the first columns of its registers, 4 to
                    // 7 the second: one shift and mask gives both halves of a register.
                    _ => {
                        codes[start + 4 * step + number % 2 * 2 + number / 4] |=
                            code << (4 * (number / 2 % 2))
                    }
                }
            }
        }
        let group_steps = if groups == 1 { UNIT_STEPS } else { matrix.group() / STEP_COLS };
        let by_strip =
            |values: &[f16]| scales_by_strip(rows, groups, |row, group| values[row * groups + group]);
        let zero = u32::from(EXPONENT + zero_point as u16);
        Packed {
            rows,
            cols,
            bits,
            group_steps: group_steps as u32,
            groups,
            zero: zero << 16 | zero,
            codes,
            scales: by_strip(matrix.scales()),
            mins: matrix.mins().map(by_strip),
        }
    }

    fn dense(matrix: &DenseMatrix) -> Packed {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let (mut codes, mut row_scales) = (Packed::blank(rows, cols, 16), Vec::with_capacity(rows));
        let mut values = vec![0.0; cols];
        for row in 0..rows {
            matrix.widen_row(row, &mut values);
            let scale = row_scale(&values);
            row_scales.push(f16::from_f32(scale));
            for (col, value) in values.iter().enumerate() {
                let (start, _, number) = Packed::find(cols, 16, row, col);
                let bytes = f16::from_f32(value / scale).to_le_bytes();
                codes[start + 2 * number..start + 2 * number + 2].copy_from_slice(&bytes);
            }
        }
        Packed {
            rows,
            cols,
            bits: 16,
            group_steps: UNIT_STEPS as u32,
            groups: 1,
            zero: 0,
            codes,
            scales: scales_by_strip(rows, 1, |row, _| row_scales[row]),
            mins: None,
        }
    }
}

/// A power of two that brings a row's largest value to at most 2¹³, so that f16 holds its small values
/// as well as may be; 1 where it is in range already.
fn row_scale(values: &[f32]) -> f32 {
    let largest = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let exponent = if largest > 0.0 && largest.is_finite() { largest.log2().floor() as i32 } else { 0 };
    // The scale is f16 itself: 2⁻¹⁴ to 2¹⁵.
    2f32.powi((exponent - 13).clamp(-14, 15))
}

/// `[rows][groups]` as `[strips][groups][8][2]`: rows g and g + 8 side by side; rows that are not there
/// have zeros.
fn scales_by_strip(rows: usize, groups: usize, value: impl Fn(usize, usize) -> f16) -> Vec<f16> {
    let mut out = Vec::with_capacity(rows.div_ceil(STRIP_ROWS) * groups * STRIP_ROWS);
    for strip in 0..rows.div_ceil(STRIP_ROWS) {
        for group in 0..groups {
            for pair in 0..STRIP_ROWS {
                let row = strip * STRIP_ROWS + pair / 2 + pair % 2 * 8;
                out.push(if row < rows { value(row, group) } else { f16::ZERO });
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{DenseValues, QuantParts, code_bytes_per_row};

    /// What a kernel makes of the bits: registers as `step_operand` in matrix.cuh takes them.
    fn weight(packed: &Packed, row: usize, col: usize) -> f32 {
        let (start, step, number) = Packed::find(packed.cols, packed.bits, row, col);
        let lane = &packed.codes[start..start + LOAD_BYTES];
        let zero = f16::from_bits(packed.zero as u16).to_f32();
        let code = match packed.bits {
            16 => f16::from_le_bytes([lane[2 * number], lane[2 * number + 1]]).to_f32(),
            8 => 1024.0 + f32::from(lane[8 * step + number]) - zero,
            _ => {
                let word = u32::from_le_bytes(lane[4 * step..4 * step + 4].try_into().unwrap());
                let (register, half) = (number / 2, number % 2);
                1024.0 + (word >> (4 * register) >> (16 * half) & 15) as f32 - zero
            }
        };
        let group = (col / (packed.group_steps as usize * STEP_COLS)).min(packed.groups - 1);
        let index = ((row / STRIP_ROWS * packed.groups + group) * 8 + row % 8) * 2 + row % STRIP_ROWS / 8;
        let min = packed.mins.as_ref().map_or(0.0, |mins| mins[index].to_f32());
        code * packed.scales[index].to_f32() + min
    }

    fn random(count: usize, seed: u64) -> impl Iterator<Item = u32> {
        let mut state = seed;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        })
        .take(count)
    }

    fn assert_same(matrix: &WeightMatrix) {
        let packed = Packed::new(matrix);
        let mut expected = vec![0.0; matrix.cols()];
        for row in 0..matrix.rows() {
            matrix.dequantize_row(row, &mut expected);
            for (col, &expected) in expected.iter().enumerate() {
                assert_eq!(weight(&packed, row, col), expected, "({row}, {col}) of {} bits", packed.bits);
            }
        }
    }

    #[test]
    fn every_quantised_weight_is_found_where_the_kernels_look() {
        for bits in [Bits::Four, Bits::Five, Bits::Six, Bits::Eight] {
            for (rows, cols) in [(1usize, 32usize), (17, 100), (49, 64), (16, 576)] {
                for group in [16, 32, 64, 128, cols] {
                    for with_mins in [false, true] {
                        let count = rows * cols.div_ceil(group);
                        let halves =
                            |seed| random(count, seed).map(|x| f16::from_f32(x as f32 / 1e11)).collect();
                        let code = |x: u32| match bits {
                            Bits::Four => x as u8,
                            _ => (bits.codes(with_mins).start() + (x % (1 << bits.count())) as i32) as u8,
                        };
                        let parts = QuantParts {
                            rows,
                            cols,
                            bits,
                            group,
                            codes: random(rows * code_bytes_per_row(bits, cols), 1).map(code).collect(),
                            scales: halves(2),
                            mins: with_mins.then(|| halves(3)),
                        };
                        let matrix = WeightMatrix::Quant(QuantMatrix::new(parts.clone()).unwrap());
                        assert_same(&matrix);
                        if bits != Bits::Four {
                            let eight = QuantMatrix::new(QuantParts { bits: Bits::Eight, ..parts }).unwrap();
                            assert_eq!(Packed::new(&matrix), Packed::new(&WeightMatrix::Quant(eight)));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn dense_weights_that_f16_holds_are_exact_at_any_scale() {
        for magnitude in [1.0, 1e-3, 3e4] {
            let values = random(17 * 100, 5).map(|x| f16::from_f32(x as f32 / 2e9 * magnitude).to_f32());
            let values = values.map(|x| x - 0.25 * magnitude).map(|x| f16::from_f32(x).to_f32()).collect();
            let matrix = DenseMatrix::new(17, 100, DenseValues::F32(values)).unwrap();
            assert_same(&WeightMatrix::Dense(matrix));
        }
    }

    #[test]
    fn lanes_hold_what_the_operand_asks_for() {
        // Lane 4g + t: registers 0 and 2 are row g, 1 and 3 row g + 8; columns 4t.. in pairs.
        assert_eq!(place_in_step(0, 0), (0, 0));
        assert_eq!(place_in_step(0, 1), (0, 1));
        assert_eq!(place_in_step(8, 0), (0, 2));
        assert_eq!(place_in_step(0, 2), (0, 4));
        assert_eq!(place_in_step(3, 7), (13, 5));
        assert_eq!(place_in_step(15, 15), (31, 7));
    }
}
