//! Activations as the matrix kernels read them: normalised, cut into groups of 32, quantised to
//! int8 (or kept in f32), in the order in which a block of tokens is worked off.
//!
//! A group in int8 is one term, or two: the codes of the values, and the codes of what they miss in steps of
//! a 256th. So a group's two products become one integer, by a shift and an addition. What codes miss is as
//! large as their steps are, so most of a row's error comes from few groups, those with outliers: they have
//! a second term, which leaves their error at that of 15 bits. What that costs and gives is in ARCHITECTURE.md.
//!
//! Rows are cut into blocks ([`block_len`]); a block of `m` tokens is `[groups][m]` records, so
//! that a kernel walks through one stream. Where [`Lanes::PAIRS`] says so, two neighbours in a block share
//! the room of their codes. What a row's records hold of it depends on that row alone.

use bytemuck::{Pod, Zeroable};

use super::arena::Rows;
use super::dispatch::Kernel;
use super::lanes::{LANES, Lanes};
use super::memory::Buffer;

/// Columns of a group.
pub(super) const GROUP: usize = 32;

/// Groups that `cols` columns take.
pub(super) fn groups(cols: usize) -> usize {
    cols.div_ceil(GROUP)
}

/// Columns whose codes of two tokens are together where [`Lanes::PAIRS`] says so: in two records one behind
/// the other there are four times eight columns of the one token and of the other.
const OCTET: usize = 8;

/// Bits by which the first of two terms is above the second.
pub(super) const SECOND_BITS: u32 = 8;
/// Steps of the second term in one of the first.
const SECOND_STEPS: f32 = (1 << SECOND_BITS) as f32;

/// A group whose largest value is above this many times the mean of the row's groups' has a second term.
const OUTLIER: f32 = 2.0;

/// One term of 32 quantised activations. Value = `scale · codes[k]`, of two terms
/// `second.scale · (256 · first.codes[k] + second.codes[k])`. Where there is no second term its record is there
/// nevertheless, with codes of 0, for tokens whose neighbour in a block has one.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Int8Group {
    /// In -127..=127; where [`Lanes::PAIRS`] says so, half of them another token's ([`OCTET`]).
    pub(super) codes: [i8; GROUP],
    /// NaN if any value was not finite; in a second term a 256th of the first's, and in the first of a tile's block
    /// the second's if there is one.
    pub(super) scale: f32,
    /// Sum of the values, of all terms; not there in a second term.
    pub(super) scaled_sum: f32,
    /// Minus the sum of all codes, times the zero points of 4 and of 8 bits: sums start at it.
    pub(super) neg_sum_8: i32,
    pub(super) neg_sum_128: i32,
    /// Minus the sums of the first and the last sixteen, times the zero point of 6 bits.
    pub(super) neg_halves_32: [i32; 2],
    /// Sums of the first and the last sixteen values, of all terms; not there in a second term.
    pub(super) scaled_halves: [f32; 2],
}

/// What a group of a row takes: a record for each term, and whether there is a second one.
pub(super) const INT8_BYTES: usize = 2 * size_of::<Int8Group>() + 1;

/// 32 activations in f32.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct FloatGroup {
    pub(super) values: [f32; GROUP],
    /// Sums of the first and the last sixteen.
    pub(super) sums: [f32; 2],
}

/// A group's activations.
pub(super) trait Record {
    /// Whether sixteen tokens are a block where [`Lanes::TILES`] says so.
    const TILES: bool;
}

impl Record for Int8Group {
    const TILES: bool = true;
}

impl Record for FloatGroup {
    const TILES: bool = false;
}

/// Scratch for one operation's activations.
#[derive(Debug)]
pub(super) struct Activations {
    pub(super) int8: Buffer,
    pub(super) float: Buffer,
}

/// Tokens of the next block when `left` are left: those of a tile, or the kernel's full block; where that is 6, else
/// the largest power of two up to 4 that fits. Eight are two blocks of 4: six and two take a quarter longer.
#[inline(always)]
pub(super) fn block_len<L: Lanes, R: Record>(left: usize) -> usize {
    match left {
        LANES.. if L::TILES && R::TILES => LANES,
        8 if L::TOKENS == 6 => 4,
        left if left >= L::TOKENS => L::TOKENS,
        4.. if L::TOKENS == 6 => 4,
        2 | 3 if L::TOKENS == 6 => 2,
        _ => 1,
    }
}

/// How many of `tokens` are in blocks of several, where there are such blocks: all but the last few.
#[inline(always)]
pub(super) fn in_blocks<L: Lanes>(tokens: usize) -> usize {
    tokens - tokens % if L::TOKENS == 6 { 2 } else { L::TOKENS }
}

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

/// Rows that one chunk prepares.
pub(super) const ROWS_PER_CHUNK: usize = 4;
// Blocks start at even rows: so two rows that share room are one chunk's.
const _: () = assert!(ROWS_PER_CHUNK.is_multiple_of(2));

/// Normalises and packs the rows of a matrix product's source.
pub(super) struct Pack {
    /// `[rows, K]`
    pub(super) src: Rows,
    /// `[K]`, and what is added to the mean square.
    pub(super) norm: Option<(*const f32, f32)>,
    /// `[rows · groups]` and what [`behind`] says, or null if no product needs them.
    pub(super) int8: *mut Int8Group,
    /// `[rows · groups]`, or null if no product needs them.
    pub(super) float: *mut FloatGroup,
}

// SAFETY: `run` says which rows a chunk writes; the pointers are the submitter's to share.
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
        // Where the row's records start, and how far apart they are: those of a block are together.
        let records = |(start, len): (usize, usize)| (start * groups(cols) + (row - start), len);
        let block = block_of::<L, Int8Group>(row, rows);
        let (first, stride) = records(block);
        let (first_float, stride_float) = records(block_of::<L, FloatGroup>(row, rows));
        // Which of two tokens it is, where the codes of two are together.
        let of_two = (L::PAIRS && stride > 1).then_some((row - block.0) % 2);
        // SAFETY: `row` is below `rows`; a row's records are its own, but for codes that it puts among its
        // neighbour's, between them.
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
                    // It becomes the scale.
                    (*self.int8.add(first + group * stride)).scale = largest;
                    total += largest;
                }
            }
            let usual = OUTLIER * total / groups(cols) as f32;
            for group in 0..groups(cols) {
                let values = self.group::<L>(src, group * GROUP, L::splat(gain));
                if !self.int8.is_null() {
                    let record = first + group * stride;
                    let (second, outliers) = behind(self.int8, self.src.rows * groups(cols));
                    let (first, second) = (self.int8.add(record), second.add(record));
                    let outlier = (*first).scale > usual;
                    outliers.add(record).write(u8::from(outlier));
                    quantise::<L>(values, outlier, of_two, [first, second]);
                    if L::TILES && stride == LANES && outlier {
                        // Tiles' sums are scaled by one record, whether terms were joined or not.
                        (*first).scale = (*second).scale;
                    }
                }
                if !self.float.is_null() {
                    keep::<L>(values, self.float.add(first_float + group * stride_float));
                }
            }
        }
    }

    /// The 32 (normalised) values from column `col`, 0 beyond the row's end.
    #[inline(always)]
    unsafe fn group<L: Lanes>(&self, src: *const f32, col: usize, gain: L::F) -> [L::F; 2] {
        let left = self.src.cols - col;
        // SAFETY: `left` columns are readable behind `col`, in the row and in the norm's weight.
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

/// What is behind `records` first terms: as many second ones, and for each a byte that is 0 if it is empty.
#[inline(always)]
pub(super) fn behind<R>(first: *mut R, records: usize) -> (*mut R, *mut u8) {
    (first.wrapping_add(records), first.wrapping_add(2 * records).cast())
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
pub(super) unsafe fn sum_of_squares<L: Lanes>(p: *const f32, n: usize) -> f32 {
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

/// Writes 32 values, the largest of which is the first record's scale, in one term or in two.
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
        // x · 0 is 0 unless x is infinite or NaN: then the scale, and so the row, becomes NaN.
        let zero = L::splat(0.0);
        let poison = L::reduce_add(L::fma(values[0], zero, L::mul(values[1], zero)));
        // Below this the reciprocal overflows, or a part of the scale is not normal; the values are as good as
        // zero.
        let (inverse, scale) = if largest > 1e-32 { (127.0 / largest, largest / 127.0) } else { (0.0, 0.0) };
        let mut steps = values;
        for steps in &mut steps {
            *steps = L::mul(*steps, L::splat(inverse));
        }
        let mut neg_halves = codes::<L>(steps, of_two, first).map(|sum| sum << SECOND_BITS);
        if outlier {
            for steps in &mut steps {
                let left = L::mul(L::sub(*steps, L::round(*steps)), L::splat(SECOND_STEPS));
                // Half a step of the first would be one more than codes go to.
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

/// Writes the nearest codes of 32 steps, and gives minus the sums of their halves.
#[inline(always)]
unsafe fn codes<L: Lanes>(steps: [L::F; 2], of_two: Option<usize>, out: *mut Int8Group) -> [i32; 2] {
    // SAFETY: `out` is the caller's record, and of two tokens the second's is behind the first's.
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

/// Writes codes of 0.
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

/// Puts a token's codes between those of its neighbour in a block.
#[inline(always)]
unsafe fn put_octets(own: &[i8; GROUP], token: usize, out: *mut Int8Group) {
    for (i, own) in own.chunks_exact(OCTET).enumerate() {
        // SAFETY: `out` is the record of token 0 or 1 of two, one behind the other.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn single_tokens_come_last<L: Lanes>() {
        for tokens in 0..100 {
            let mut start = 0;
            while let len @ 2.. = block_len::<L, FloatGroup>(tokens - start) {
                start += len;
            }
            assert_eq!(in_blocks::<L>(tokens), start, "of {tokens} tokens");
            assert!((0..tokens - start).all(|left| block_len::<L, FloatGroup>(left) == 1));
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn all_tokens_but_the_last_few_are_in_blocks_of_several() {
        single_tokens_come_last::<crate::backend::cpu::avx2::Avx2<true>>();
        single_tokens_come_last::<crate::backend::cpu::avx512::Avx512<false>>();
    }

    #[test]
    #[cfg(target_arch = "aarch64")]
    fn all_tokens_but_the_last_few_are_in_blocks_of_several() {
        single_tokens_come_last::<crate::backend::cpu::neon::I8mm>();
    }
}
