//! Weight matrices in the order of the A operand of `mma.m16n8k16`: one packing for all kernels.
//!
//! `kernels-cu/common/matrix.cuh` describes the layout: strips of 16 rows, steps of 16 columns, 16 bytes per
//! lane and load. Dense matrices become f16, with a power-of-two scale per row where needed to keep them in
//! range. Quantised matrices keep their codes, stored unsigned with a zero point. 4-bit floats become 8-bit
//! codes without loss; 8-bit floats become f16 like dense matrices.
//!
//! Strips are packed on several threads. For every code width, a load takes 32 bytes from each of a strip's
//! rows, and the data of four lanes comes from two rows. So packing is a few operations on words of several
//! weights.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::thread;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::quant::{Bits, Codes, E2M1, MatrixForm, QuantForm, QuantMatrix, WeightMatrix};

/// Rows of a strip.
pub(super) const STRIP_ROWS: usize = 16;
/// Columns of a step.
pub(super) const STEP_COLS: usize = 16;
/// Steps per unit. No group is longer, except a whole row.
pub(super) const UNIT_STEPS: usize = 8;
/// Bytes per load and row: 64 columns of 4 bits, 32 of 8, 16 of 16.
const ROW_BYTES: usize = 32;
/// Bytes per load: 16 for each of a warp's 32 lanes.
const LOAD_BYTES: usize = STRIP_ROWS * ROW_BYTES;
/// Bytes of a load that come from rows `g` and `g + 8`, for lanes `4g` to `4g + 3`.
const PAIR_BYTES: usize = 2 * ROW_BYTES;
/// 1024 in f16, where the last mantissa bit is 1.
const EXPONENT: u16 = 0x6400;
/// Maximum threads that pack a matrix; more would be limited by memory bandwidth.
const THREADS_MAX: usize = 16;
/// Bytes of codes per part: packing them takes several times as long as starting a thread.
const PART_BYTES: usize = 1 << 18;

/// Columns of packed activations, rounded up to whole units.
pub(super) fn half_cols(cols: usize) -> usize {
    cols.next_multiple_of(UNIT_STEPS * STEP_COLS)
}

/// The stored form of a matrix, without scales per row.
pub(super) fn stored(form: MatrixForm) -> MatrixForm {
    match form {
        MatrixForm::Quant(QuantForm { kind: Codes::E4m3, .. }) => MatrixForm::F16,
        MatrixForm::Quant(form @ QuantForm { kind: Codes::E2m1, .. }) => {
            MatrixForm::Quant(QuantForm { kind: Bits::Eight.into(), ..form })
        }
        MatrixForm::F32 | MatrixForm::F16 | MatrixForm::Bf16 => MatrixForm::F16,
        MatrixForm::Quant(_) => form,
    }
}

/// A packed matrix in host memory, ready to be copied to the device.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Packed {
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// Bits of a weight: 4, 8 or 16.
    pub(super) bits: u32,
    /// Steps per scale.
    pub(super) group_steps: u32,
    /// Scales per row.
    pub(super) groups: usize,
    /// `1024 + zero point` as f16, in both halves.
    pub(super) zero: u32,
    /// `[strips][loads of a row][32 lanes][16 bytes]`
    pub(super) codes: Vec<u8>,
    /// `[strips][groups][8][rows g and g + 8]`
    pub(super) scales: Vec<f16>,
    /// As `scales`.
    pub(super) mins: Option<Vec<f16>>,
}

/// Some strips of a matrix: slices of a [`Packed`]'s vectors.
struct Part<'a> {
    /// The first row.
    row: usize,
    codes: &'a mut [u8],
    scales: &'a mut [f16],
    /// Empty without minimums.
    mins: &'a mut [f16],
}

impl Packed {
    /// Packs any matrix on as many threads as the machine can run.
    pub(super) fn new(matrix: &WeightMatrix) -> Packed {
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS_MAX);
        Packed::on_threads(matrix, threads)
    }

    fn on_threads(matrix: &WeightMatrix, threads: usize) -> Packed {
        match matrix {
            WeightMatrix::Quant(matrix) if matrix.kind() != Codes::E4m3 => Packed::quant(matrix, threads),
            _ => Packed::dense(matrix, threads),
        }
    }

    /// Bytes of a strip's codes.
    fn strip_bytes(cols: usize, bits: u32) -> usize {
        cols.div_ceil(ROW_BYTES * 8 / bits as usize) * LOAD_BYTES
    }

    /// An all-zero matrix of the given shape.
    fn blank([rows, cols]: [usize; 2], bits: u32, groups: usize, with_mins: bool) -> Packed {
        let strips = rows.div_ceil(STRIP_ROWS);
        let halves = || vec![f16::ZERO; strips * groups * STRIP_ROWS];
        Packed {
            rows,
            cols,
            bits,
            group_steps: UNIT_STEPS as u32,
            groups,
            zero: 0,
            codes: vec![0; strips * Packed::strip_bytes(cols, bits)],
            scales: halves(),
            mins: with_mins.then(halves),
        }
    }

    /// Calls `work` for all strips, in parts, on several threads.
    fn fill(&mut self, threads: usize, work: impl Fn(Part<'_>) + Sync) {
        // At least 1, for matrices without columns.
        let strip_bytes = Packed::strip_bytes(self.cols, self.bits).max(1);
        let strip_halves = (self.groups * STRIP_ROWS).max(1);
        let strips = (PART_BYTES / strip_bytes).max(1);
        let mut mins = self.mins.as_deref_mut().unwrap_or_default().chunks_mut(strips * strip_halves);
        let codes = self.codes.chunks_mut(strips * strip_bytes);
        let places = codes.zip(self.scales.chunks_mut(strips * strip_halves)).enumerate();
        let parts = places.map(|(index, (codes, scales))| {
            let row = index * strips * STRIP_ROWS;
            Part { row, codes, scales, mins: mins.next().unwrap_or_default() }
        });
        for_each(parts.collect(), threads, work);
    }

    fn quant(matrix: &QuantMatrix, threads: usize) -> Packed {
        let (rows, cols, groups) = (matrix.rows(), matrix.cols(), matrix.groups_per_row());
        let with_mins = matrix.mins().is_some();
        let bits = match matrix.kind() {
            Codes::Int(Bits::Four) => 4,
            _ => 8,
        };
        let mut packed = Packed::blank([rows, cols], bits, groups, with_mins);
        if groups > 1 {
            packed.group_steps = (matrix.group() / STEP_COLS) as u32;
        }
        // 4-bit codes are always unsigned, wider ones if they have minimums.
        let (zero_point, flip) = match (with_mins, bits) {
            (true, _) => (0, 0),
            (false, 4) => (8, 0),
            (false, _) => (128, 0x80),
        };
        let zero = u32::from(EXPONENT + zero_point);
        packed.zero = zero << 16 | zero;
        packed.fill(threads, |part| {
            let mut rows_of_strip = StripRows::new(cols, bits);
            for (strip, out) in part.codes.chunks_mut(rows_of_strip.bytes.len()).enumerate() {
                rows_of_strip.each(|index, to| {
                    let row = part.row + strip * STRIP_ROWS + index;
                    let codes = if row < rows { matrix.row_codes(row) } else { &[] };
                    if matrix.kind() == Codes::E2m1 {
                        return widen_e2m1(codes, flip, &mut to[..cols]);
                    }
                    to[codes.len()..].fill(0);
                    to.iter_mut().zip(codes).for_each(|(to, code)| *to = code ^ flip);
                    if bits == 4 && cols % 2 == 1 {
                        // The unused half of the last byte.
                        to[cols / 2] &= 15;
                    }
                });
                match bits {
                    4 => rows_of_strip.pack(out, lanes_of_4_bits),
                    _ => rows_of_strip.pack(out, lanes_of_8_bits),
                }
            }
            by_strip(matrix.scales(), groups, part.row, part.scales);
            by_strip(matrix.mins().unwrap_or_default(), groups, part.row, part.mins);
        });
        packed
    }

    /// Packs floats; 8-bit floats are multiplied by their scales.
    fn dense(matrix: &WeightMatrix, threads: usize) -> Packed {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let mut packed = Packed::blank([rows, cols], 16, 1, false);
        packed.fill(threads, |part| {
            let mut rows_of_strip = StripRows::new(cols, 16);
            let (mut values, mut halves) = (vec![0.0; cols], vec![f16::ZERO; cols]);
            let mut row_scales = vec![f16::ZERO; part.scales.len()];
            for (strip, out) in part.codes.chunks_mut(rows_of_strip.bytes.len()).enumerate() {
                rows_of_strip.each(|index, to| {
                    let row = strip * STRIP_ROWS + index;
                    if part.row + row >= rows {
                        return to.fill(0);
                    }
                    matrix.dequantize_row(part.row + row, &mut values);
                    let scale = row_scale(&values);
                    row_scales[row] = f16::from_f32(scale);
                    // The scale is a power of two, so multiplying by its reciprocal is exact.
                    values.iter_mut().for_each(|value| *value *= scale.recip());
                    halves.convert_from_f32_slice(&values);
                    to.chunks_exact_mut(2)
                        .zip(&halves)
                        .for_each(|(to, half)| to.copy_from_slice(&half.to_le_bytes()));
                });
                rows_of_strip.pack(out, lanes_of_16_bits);
            }
            by_strip(&row_scales, 1, 0, part.scales);
        });
        packed
    }
}

/// A strip's rows, each padded with zeros to whole loads.
struct StripRows {
    /// `[16][loads][32]`
    bytes: Vec<u8>,
}

impl StripRows {
    fn new(cols: usize, bits: u32) -> StripRows {
        StripRows { bytes: vec![0; Packed::strip_bytes(cols, bits)] }
    }

    /// Calls `write` with each row's index and bytes.
    fn each(&mut self, mut write: impl FnMut(usize, &mut [u8])) {
        let row_bytes = self.bytes.len() / STRIP_ROWS;
        let rows = self.bytes.chunks_exact_mut(row_bytes).enumerate();
        rows.for_each(|(index, row)| write(index, row));
    }

    /// Writes the loads of the strip. `lanes` combines the bytes of two rows to the data of their four lanes.
    fn pack(&self, out: &mut [u8], lanes: impl Fn(&[u8; ROW_BYTES], &[u8; ROW_BYTES]) -> [u8; PAIR_BYTES]) {
        let (upper, lower) = self.bytes.split_at(self.bytes.len() / 2);
        let row_bytes = self.bytes.len() / STRIP_ROWS;
        let pairs = upper.chunks_exact(row_bytes).zip(lower.chunks_exact(row_bytes));
        for (pair, (upper, lower)) in pairs.enumerate() {
            let (upper, lower) = (upper.as_chunks().0, lower.as_chunks().0);
            for ((upper, lower), load) in upper.iter().zip(lower).zip(out.chunks_exact_mut(LOAD_BYTES)) {
                load[pair * PAIR_BYTES..][..PAIR_BYTES].copy_from_slice(&lanes(upper, lower));
            }
        }
    }
}

/// One step. A lane's registers hold two columns of the upper row, two of the lower, then the next two of
/// both.
fn lanes_of_16_bits(upper: &[u8; ROW_BYTES], lower: &[u8; ROW_BYTES]) -> [u8; PAIR_BYTES] {
    let mut out = [0; PAIR_BYTES];
    for from in (0..ROW_BYTES).step_by(4) {
        out[2 * from..][..4].copy_from_slice(&upper[from..from + 4]);
        out[2 * from + 4..][..4].copy_from_slice(&lower[from..from + 4]);
    }
    out
}

/// Two steps of 8 bytes per lane, in the same order.
fn lanes_of_8_bits(upper: &[u8; ROW_BYTES], lower: &[u8; ROW_BYTES]) -> [u8; PAIR_BYTES] {
    let mut out = [0; PAIR_BYTES];
    for from in (0..ROW_BYTES).step_by(2) {
        let (step, lane, second) = (from / 16, from % 16 / 4, from % 4 / 2);
        let to = 16 * lane + 8 * step + 4 * second;
        // Byte by byte, which the compiler turns into vector shuffles.
        (out[to], out[to + 1]) = (upper[from], upper[from + 1]);
        (out[to + 2], out[to + 3]) = (lower[from], lower[from + 1]);
    }
    out
}

/// Four steps of one word per lane. Its nibbles 0 to 3 are the first columns of the lane's registers, 4 to 7
/// the second ones. So one shift and mask give a kernel both halves of a register.
fn lanes_of_4_bits(upper: &[u8; ROW_BYTES], lower: &[u8; ROW_BYTES]) -> [u8; PAIR_BYTES] {
    const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    let mut out = [0; PAIR_BYTES];
    let steps = upper.as_chunks::<8>().0.iter().zip(lower.as_chunks::<8>().0);
    for (step, (upper, lower)) in steps.enumerate() {
        let [upper, lower] = [upper, lower].map(|codes| u64::from_le_bytes(*codes));
        let first = upper & LOW | (lower & LOW) << 4;
        let second = upper >> 4 & LOW | lower & !LOW;
        for lane in 0..4 {
            let [first, second] = [first, second].map(|codes| (codes >> (16 * lane)) as u32 & 0xffff);
            out[16 * lane + 4 * step..][..4].copy_from_slice(&(first | second << 16).to_le_bytes());
        }
    }
    out
}

/// The integers represented by 4-bit floats, one byte each; zeros for a missing row.
fn widen_e2m1(codes: &[u8], flip: u8, to: &mut [u8]) {
    to.fill(0);
    for (to, pair) in to.chunks_mut(2).zip(codes) {
        to.iter_mut()
            .zip([pair & 15, pair >> 4])
            .for_each(|(to, code)| *to = E2M1[usize::from(code)] as u8 ^ flip);
    }
}

/// Calls `work` for all items on up to `threads` threads, including this one. If a thread cannot be started,
/// the others do its share.
fn for_each<T: Send>(items: Vec<T>, threads: usize, work: impl Fn(T) + Sync) {
    let threads = threads.min(items.len());
    let items = Mutex::new(items.into_iter());
    let worker = || {
        loop {
            let next = items.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(item) = next else { return };
            work(item);
        }
    };
    thread::scope(|scope| {
        let mut others = 1..threads;
        while others.next().is_some() && thread::Builder::new().spawn_scoped(scope, worker).is_ok() {}
        worker();
    });
}

/// A power of two that scales a row's largest value to at most 2¹³, so that f16 represents its small values
/// as well as possible; 1 if the row is in range already.
fn row_scale(values: &[f32]) -> f32 {
    let mut largest = [0.0f32; 16];
    for values in values.chunks(largest.len()) {
        largest.iter_mut().zip(values).for_each(|(max, x)| *max = max.max(x.abs()));
    }
    let largest = largest.into_iter().fold(0.0f32, f32::max);
    let exponent = if largest > 0.0 && largest.is_finite() { largest.log2().floor() as i32 } else { 0 };
    // The scale is f16 itself: 2⁻¹⁴ to 2¹⁵.
    2f32.powi((exponent - 13).clamp(-14, 15))
}

/// Rearranges `[rows][groups]` from `row` on to `[strips][groups][8][2]`, with rows g and g + 8 adjacent;
/// missing rows stay zero.
fn by_strip(values: &[f16], groups: usize, row: usize, out: &mut [f16]) {
    for (strip, out) in out.chunks_mut((groups * STRIP_ROWS).max(1)).enumerate() {
        for index in 0..STRIP_ROWS {
            let start = (row + strip * STRIP_ROWS + index) * groups;
            let Some(of_row) = values.get(start..start + groups) else { break };
            let place = index % 8 * 2 + index / 8;
            out.iter_mut().skip(place).step_by(STRIP_ROWS).zip(of_row).for_each(|(to, &value)| *to = value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{DenseMatrix, DenseValues, QuantParts, code_bytes_per_row};

    /// Lanes per warp, and bytes per lane and load.
    const LANES: usize = 32;
    const LANE_BYTES: usize = 16;

    /// Position of a weight in a step: its lane, and its index among the lane's eight weights. Indices 0 and
    /// 1 are the two columns of register 0, and so on.
    fn place_in_step(row: usize, col: usize) -> (usize, usize) {
        let (lower, in_step) = (row % STRIP_ROWS / 8, col % STEP_COLS);
        let lane = row % 8 * 4 + in_step / 4;
        let register = 2 * (in_step % 4 / 2) + lower;
        (lane, 2 * register + in_step % 2)
    }

    /// The first byte of the 16 that hold a weight, the step within them, and the weight's index in the step.
    fn find(cols: usize, bits: u32, row: usize, col: usize) -> (usize, usize, usize) {
        let steps = 16 / bits as usize;
        let (load, step) = (col / (steps * STEP_COLS), col / STEP_COLS % steps);
        let loads = cols.div_ceil(steps * STEP_COLS);
        let (lane, number) = place_in_step(row, col);
        (((row / STRIP_ROWS * loads + load) * LANES + lane) * LANE_BYTES, step, number)
    }

    /// The codes of a matrix, placed one by one.
    fn one_by_one(matrix: &WeightMatrix, packed: &Packed) -> Vec<u8> {
        let (rows, cols, bits) = (matrix.rows(), matrix.cols(), packed.bits);
        let mut codes =
            vec![
                0;
                rows.next_multiple_of(16) * cols.next_multiple_of(256 / bits as usize) * bits as usize / 8
            ];
        let mut values = vec![0.0; cols];
        for row in 0..rows {
            matrix.dequantize_row(row, &mut values);
            let scale = row_scale(&values);
            for (col, value) in values.iter().enumerate() {
                let (start, step, number) = find(cols, bits, row, col);
                let code =
                    |matrix: &QuantMatrix| (matrix.code(row, col) as i32 + (packed.zero & 0xff) as i32) as u8;
                match (matrix, bits) {
                    (WeightMatrix::Dense(_), _) | (_, 16) => {
                        let bytes = f16::from_f32(value / scale).to_le_bytes();
                        codes[start + 2 * number..][..2].copy_from_slice(&bytes);
                    }
                    (WeightMatrix::Quant(matrix), 8) => codes[start + 8 * step + number] = code(matrix),
                    (WeightMatrix::Quant(matrix), _) => {
                        codes[start + 4 * step + number % 2 * 2 + number / 4] |=
                            code(matrix) << (4 * (number / 2 % 2))
                    }
                }
            }
        }
        codes
    }

    /// A weight as decoded by a kernel, with the registers that `step_operand` in matrix.cuh expects.
    fn weight(packed: &Packed, row: usize, col: usize) -> f32 {
        let (start, step, number) = find(packed.cols, packed.bits, row, col);
        let lane = &packed.codes[start..start + LANE_BYTES];
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

    /// A random matrix.
    fn random_quant(
        [rows, cols]: [usize; 2],
        kind: impl Into<Codes>,
        group: usize,
        with_mins: bool,
    ) -> QuantParts {
        let kind = kind.into();
        let count = rows * cols.div_ceil(group);
        let halves = |seed| random(count, seed).map(|x| f16::from_f32(x as f32 / 1e11)).collect();
        let code = |x: u32| match kind {
            Codes::Int(bits @ (Bits::Five | Bits::Six | Bits::Eight)) => {
                (bits.codes(with_mins).start() + (x % (1 << bits.count())) as i32) as u8
            }
            // All codes except the two NaNs.
            Codes::E4m3 => x as u8 & 0x80 | ((x >> 8) % 127) as u8,
            _ => x as u8,
        };
        QuantParts {
            rows,
            cols,
            kind,
            group,
            codes: random(rows * code_bytes_per_row(kind, cols), 1).map(code).collect(),
            scales: halves(2),
            mins: with_mins.then(|| halves(3)),
        }
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
                        let parts = random_quant([rows, cols], bits, group, with_mins);
                        let matrix = WeightMatrix::Quant(QuantMatrix::new(parts.clone()).unwrap());
                        assert_same(&matrix);
                        if bits != Bits::Four {
                            let eight =
                                QuantMatrix::new(QuantParts { kind: Bits::Eight.into(), ..parts }).unwrap();
                            assert_eq!(Packed::new(&matrix), Packed::new(&WeightMatrix::Quant(eight)));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn floats_of_four_bits_become_codes_of_eight_and_those_of_eight_f16() {
        for (rows, cols) in [(1usize, 32usize), (17, 100), (49, 33), (16, 576)] {
            for group in [16, 32, 128, cols] {
                let parts = random_quant([rows, cols], Codes::E2m1, group, false);
                let matrix = WeightMatrix::Quant(QuantMatrix::new(parts).unwrap());
                assert_eq!(Packed::new(&matrix).bits, 8);
                assert_eq!(stored(matrix.form()).bytes(rows, cols), rows * (cols + 2 * cols.div_ceil(group)));
                assert_same(&matrix);
            }
            for group in [32, 128, cols] {
                let parts = random_quant([rows, cols], Codes::E4m3, group, false);
                let matrix = WeightMatrix::Quant(QuantMatrix::new(parts).unwrap());
                let packed = Packed::new(&matrix);
                assert_eq!(packed.bits, 16);
                assert_eq!(stored(matrix.form()), MatrixForm::F16);
                let mut values = vec![0.0; cols];
                for row in 0..rows {
                    matrix.dequantize_row(row, &mut values);
                    let largest = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
                    for (col, &value) in values.iter().enumerate() {
                        // Half an ulp of f16. Its subnormal numbers begin 27 powers of two below the row's
                        // largest value, and at 2⁻²⁸ at the least.
                        let error = (weight(&packed, row, col) - value).abs();
                        let bound = value.abs() / 2048.0 + (largest * 2f32.powi(-37)).max(2f32.powi(-39));
                        assert!(error <= bound, "({row}, {col}): {value} is {error} off");
                    }
                }
            }
        }
    }

    #[test]
    fn parts_and_threads_pack_the_bytes_of_weights_one_by_one() {
        // A matrix in several parts, one with rows that end within a byte, and one with padding everywhere.
        for [rows, cols] in [[300, 4096], [19, 33], [49, 100], [0, 64], [3, 0]] {
            let quant = |kind: Codes, mins| random_quant([rows, cols], kind, 32, mins);
            let kinds = [(Bits::Four, false), (Bits::Four, true), (Bits::Six, false), (Bits::Eight, true)]
                .map(|(bits, mins)| (bits.into(), mins));
            let floats = [(Codes::E2m1, false), (Codes::E4m3, false)];
            let mut matrices: Vec<WeightMatrix> = (kinds.into_iter().chain(floats))
                .map(|(kind, mins)| WeightMatrix::Quant(QuantMatrix::new(quant(kind, mins)).unwrap()))
                .collect();
            let values = random(rows * cols, 5).map(|x| x as f32 / 1e7).collect();
            matrices
                .push(WeightMatrix::Dense(DenseMatrix::new(rows, cols, DenseValues::F32(values)).unwrap()));
            for matrix in matrices {
                let packed = Packed::on_threads(&matrix, 1);
                assert!(
                    packed.codes == one_by_one(&matrix, &packed),
                    "{rows} x {cols} of {} bits",
                    packed.bits
                );
                for threads in [2, 3, 100] {
                    assert!(
                        Packed::on_threads(&matrix, threads) == packed,
                        "{rows} x {cols}, {threads} threads"
                    );
                }
            }
        }
    }

    #[test]
    fn every_item_is_worked_on_once() {
        for (count, threads) in [(0, 4), (1, 0), (7, 1), (100, 3)] {
            let done = Mutex::new(Vec::new());
            for_each((0..count).collect(), threads, |item: usize| done.lock().unwrap().push(item));
            let mut done = done.into_inner().unwrap();
            done.sort_unstable();
            assert_eq!(done, (0..count).collect::<Vec<_>>());
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
