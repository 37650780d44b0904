//! Packed activations for the matrix kernels: normalised, cut into groups of 32, quantised to int8 (or kept
//! in f32), in the order in which a block of tokens is read.
//!
//! An int8 group holds the codes of its values. A group with outliers also holds residual codes: the rounding
//! error of the first codes, in 256ths of their step. A shift and an addition join both integer sums. The
//! error of a code is proportional to its step, so most of a row's error comes from few groups; residual
//! codes reduce their error to that of 15 bits. Cost and gain are in
//! `docs/decisions/0007-outlier-groups-carry-residual-codes.md`. Identifiers call residual codes "second".
//!
//! Rows are cut into blocks ([`block_len`]). A block of `m` tokens is `[groups][m]` records, so a kernel
//! reads one stream. With [`Lanes::PAIRS`], two adjacent tokens of a block interleave their codes. A row's
//! records depend on that row alone.

use super::record::{FloatGroup, GROUP, Int8Group, Record, SECOND_BITS, block_len, groups, residuals};
use crate::backend::cpu::isa::{Kernel, LANES, Lanes};
use crate::backend::cpu::memory::Rows;

/// With [`Lanes::PAIRS`], columns of one token before the other token's codes follow. Two records together
/// hold four times eight columns of each.
const OCTET: usize = 8;

/// Steps of the residual codes in one step of the codes.
const SECOND_STEPS: f32 = (1 << SECOND_BITS) as f32;

/// A group gets residual codes if its largest magnitude exceeds this multiple of the mean over the row's
/// groups.
const OUTLIER: f32 = 2.0;

/// The block of row `row` among `rows`: its first row and its length.
#[inline(always)]
fn block_of<L: Lanes, R: Record>(row: usize, rows: usize) -> (usize, usize) {
    let mut start = 0;
    loop {
        let len = block_len::<L, R>(rows - start);
        if row < start + len {
            return (start, len);
        }
        start += len;
    }
}

/// Rows per chunk.
pub(crate) const ROWS_PER_CHUNK: usize = 4;
// Blocks start at even rows, so two rows with interleaved codes are in one chunk.
const _: () = assert!(ROWS_PER_CHUNK.is_multiple_of(2));

/// Normalises and packs the rows of a matrix product's source.
pub(crate) struct Pack {
    /// `[rows, K]`
    pub(crate) src: Rows,
    /// `[K]`, and the epsilon added to the mean square.
    pub(crate) norm: Option<(*const f32, f32)>,
    /// `[rows · groups]`, followed by the data of [`residuals`]; null if no product needs them.
    pub(crate) int8: *mut Int8Group,
    /// `[rows · groups]`, or null if no product needs them.
    pub(crate) float: *mut FloatGroup,
}

// SAFETY: `run` states the rows that a chunk writes; the submitter may share the pointers.
unsafe impl Sync for Pack {}

impl Kernel for Pack {
    const ON_CODES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let first = chunk * ROWS_PER_CHUNK;
        for row in first..(first + ROWS_PER_CHUNK).min(self.src.rows) {
            // SAFETY: the row exists; each row is in one chunk, with the neighbour that it shares room with.
            unsafe { self.pack_row::<L>(row) }
        }
    }
}

impl Pack {
    #[inline(always)]
    unsafe fn pack_row<L: Lanes>(&self, row: usize) {
        let cols = self.src.cols;
        let rows = self.src.rows;
        // Start of the row's records and the distance between them: a block's records are contiguous.
        let records = |(start, len): (usize, usize)| (start * groups(cols) + (row - start), len);
        let block = block_of::<L, Int8Group>(row, rows);
        let (first, stride) = records(block);
        let (first_float, stride_float) = records(block_of::<L, FloatGroup>(row, rows));
        // Index of the token in its interleaved pair.
        let of_two = (L::PAIRS && stride > 1).then_some((row - block.0) % 2);
        // SAFETY: `row` is below `rows`; a row's records are its own, except for codes that it interleaves
        // into its neighbour's record.
        unsafe {
            let src = self.src.row(row).cast_const();
            let gain = match self.norm {
                Some((_, eps)) => 1.0 / (sum_of_squares::<L>(src, cols) / cols as f32 + eps).sqrt(),
                None => 1.0,
            };
            let mut total = 0.0;
            if !self.int8.is_null() {
                for group in 0..groups(cols) {
                    let values = self.group::<L>(src, group * GROUP, L::splat(gain));
                    let largest = L::reduce_max(L::max(L::abs(values[0]), L::abs(values[1])));
                    // Holds the largest magnitude until `quantise` replaces it with the scale.
                    (*self.int8.add(first + group * stride)).scale = largest;
                    total += largest;
                }
            }
            let usual = OUTLIER * total / groups(cols) as f32;
            for group in 0..groups(cols) {
                let values = self.group::<L>(src, group * GROUP, L::splat(gain));
                if !self.int8.is_null() {
                    let record = first + group * stride;
                    let (second, outliers) = residuals(self.int8, self.src.rows * groups(cols));
                    let (first, second) = (self.int8.add(record), second.add(record));
                    let outlier = (*first).scale > usual;
                    outliers.add(record).write(u8::from(outlier));
                    quantise::<L>(values, outlier, of_two, [first, second]);
                    if L::TILES && stride == LANES && outlier {
                        // On AMX one record scales the sums, with or without residual codes.
                        (*first).scale = (*second).scale;
                    }
                }
                if !self.float.is_null() {
                    keep::<L>(values, self.float.add(first_float + group * stride_float));
                }
            }
        }
    }

    /// The 32 (normalised) values from column `col`, 0 after the row's end.
    #[inline(always)]
    unsafe fn group<L: Lanes>(&self, src: *const f32, col: usize, gain: L::F) -> [L::F; 2] {
        let left = self.src.cols - col;
        // SAFETY: `left` columns are readable from `col` on, in the row and in the norm's weight.
        unsafe {
            let mut values = load_group::<L>(src.add(col), left);
            if let Some((weight, _)) = self.norm {
                let weights = load_group::<L>(weight.add(col), left);
                for half in 0..2 {
                    values[half] = L::mul(L::mul(values[half], gain), weights[half]);
                }
            }
            values
        }
    }
}

/// Up to 32 elements, of which `left` exist.
#[inline(always)]
unsafe fn load_group<L: Lanes>(p: *const f32, left: usize) -> [L::F; 2] {
    // SAFETY: reads at most `left` elements.
    unsafe {
        let high = if left > LANES { L::load_n(p.add(LANES), left - LANES) } else { L::splat(0.0) };
        [L::load_n(p, left), high]
    }
}

/// The sum of `x²` over `n` elements.
///
/// # Safety
/// `n` elements are readable; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn sum_of_squares<L: Lanes>(p: *const f32, n: usize) -> f32 {
    // SAFETY: each load stays within `n`.
    unsafe {
        let (mut low, mut high) = (L::splat(0.0), L::splat(0.0));
        for col in (0..n).step_by(GROUP) {
            let values = load_group::<L>(p.add(col), n - col);
            low = L::fma(values[0], values[0], low);
            high = L::fma(values[1], values[1], high);
        }
        L::reduce_add(L::add(low, high))
    }
}

/// Writes 32 values, with or without residual codes. The first record's scale holds their largest magnitude.
#[inline(always)]
unsafe fn quantise<L: Lanes>(
    values: [L::F; 2],
    outlier: bool,
    of_two: Option<usize>,
    [first, second]: [*mut Int8Group; 2],
) {
    // SAFETY: the records are the caller's.
    unsafe {
        let largest = (*first).scale;
        // x · 0 is 0 unless x is infinite or NaN; then the scale, and so the row, becomes NaN.
        let zero = L::splat(0.0);
        let poison = L::reduce_add(L::fma(values[0], zero, L::mul(values[1], zero)));
        // Below this the reciprocal overflows, or a 256th of the scale is subnormal. Such values are treated
        // as zero.
        let (inverse, scale) = if largest > 1e-32 { (127.0 / largest, largest / 127.0) } else { (0.0, 0.0) };
        let mut steps = values;
        for steps in &mut steps {
            *steps = L::mul(*steps, L::splat(inverse));
        }
        let mut neg_halves = codes::<L>(steps, of_two, first).map(|sum| sum << SECOND_BITS);
        if outlier {
            for steps in &mut steps {
                let left = L::mul(L::sub(*steps, L::round(*steps)), L::splat(SECOND_STEPS));
                // Half a step would round to 128, which a code cannot hold.
                *steps = L::max(L::splat(-127.0), L::min(L::splat(127.0), left));
            }
            let neg_left = codes::<L>(steps, of_two, second);
            for (sum, left) in neg_halves.iter_mut().zip(neg_left) {
                *sum = sum.wrapping_add(left);
            }
        } else {
            no_codes(of_two, second);
        }
        (*first).scale = scale + poison;
        let scale = scale / SECOND_STEPS + poison;
        (*second).scale = scale;
        (*first).scaled_sum = -scale * neg_halves[0].wrapping_add(neg_halves[1]) as f32;
        (*first).scaled_halves = neg_halves.map(|sum| -scale * sum as f32);
    }
}

/// Writes the nearest codes of 32 values given in steps; returns the negated sums of both halves.
#[inline(always)]
unsafe fn codes<L: Lanes>(steps: [L::F; 2], of_two: Option<usize>, out: *mut Int8Group) -> [i32; 2] {
    // SAFETY: `out` is the caller's record, and of two tokens the second's follows the first's.
    unsafe {
        let (low, high) = (L::to_i32(steps[0]), L::to_i32(steps[1]));
        let mut own = [0i8; GROUP];
        let codes = match of_two {
            None => (&raw mut (*out).codes).cast::<i8>(),
            Some(_) => own.as_mut_ptr(),
        };
        L::store_i8(codes, low);
        L::store_i8(codes.add(LANES), high);
        if let Some(token) = of_two {
            put_octets(&own, token, out);
        }
        let neg_halves = [L::reduce_add_i32(low).wrapping_neg(), L::reduce_add_i32(high).wrapping_neg()];
        let neg_sum = neg_halves[0].wrapping_add(neg_halves[1]);
        (*out).neg_sum_8 = neg_sum.wrapping_mul(8);
        (*out).neg_sum_128 = neg_sum.wrapping_mul(128);
        (*out).neg_halves_32 = neg_halves.map(|sum| sum.wrapping_mul(32));
        neg_halves
    }
}

/// Writes zero codes.
#[inline(always)]
unsafe fn no_codes(of_two: Option<usize>, out: *mut Int8Group) {
    // SAFETY: as in `codes`.
    unsafe {
        match of_two {
            None => (*out).codes = [0; GROUP],
            Some(token) => put_octets(&[0; GROUP], token, out),
        }
        ((*out).neg_sum_8, (*out).neg_sum_128, (*out).neg_halves_32) = (0, 0, [0; 2]);
    }
}

/// Interleaves a token's codes with those of its neighbour in a block.
#[inline(always)]
unsafe fn put_octets(own: &[i8; GROUP], token: usize, out: *mut Int8Group) {
    for (i, own) in own.chunks_exact(OCTET).enumerate() {
        // SAFETY: `out` is the record of token 0 or 1 of two adjacent records.
        unsafe {
            let record = out.sub(token).add(i / 2);
            let to = (&raw mut (*record).codes).cast::<i8>().add((i % 2 * 2 + token) * OCTET);
            to.copy_from_nonoverlapping(own.as_ptr(), OCTET);
        }
    }
}

#[inline(always)]
unsafe fn keep<L: Lanes>(values: [L::F; 2], out: *mut FloatGroup) {
    // SAFETY: `out` is the caller's record.
    unsafe {
        let to = (&raw mut (*out).values).cast::<f32>();
        L::store(to, values[0]);
        L::store(to.add(LANES), values[1]);
        (*out).sums = [L::reduce_add(values[0]), L::reduce_add(values[1])];
    }
}
