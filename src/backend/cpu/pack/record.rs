//! Records of quantised activations, one per group of 32 columns, and the blocks of tokens that records are
//! ordered by.

use bytemuck::{Pod, Zeroable};

use crate::backend::cpu::isa::{LANES, Lanes};
use crate::backend::cpu::memory::Buffer;

/// Columns per group.
pub(crate) const GROUP: usize = 32;

/// Number of groups that `cols` columns take.
pub(crate) fn groups(cols: usize) -> usize {
    cols.div_ceil(GROUP)
}

/// Shift between codes and residual codes.
pub(crate) const SECOND_BITS: u32 = 8;

/// The codes of 32 quantised activations, or their residual codes. Value = `scale · codes[k]`; with residual
/// codes `second.scale · (256 · first.codes[k] + second.codes[k])`. The second record always exists, with
/// zero codes if the group has no residual codes, because another token of the block may have some.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Int8Group {
    /// In -127..=127. With [`Lanes::PAIRS`], half of them are another token's.
    pub(crate) codes: [i8; GROUP],
    /// NaN if any value was not finite. In a second record, a 256th of the first's. On AMX the first record
    /// has that value, too, if there are residual codes.
    pub(crate) scale: f32,
    /// Sum of the values, residual codes included; unused in a second record.
    pub(crate) scaled_sum: f32,
    /// Initial values of integer sums: the negated sum of all codes times the zero points of 4-bit and 8-bit
    /// codes.
    pub(crate) neg_sum_8: i32,
    pub(crate) neg_sum_128: i32,
    /// The negated sums of the first and the last sixteen codes, times the zero point of 6-bit codes.
    pub(crate) neg_halves_32: [i32; 2],
    /// Sums of the first and the last sixteen values, residual codes included; unused in a second record.
    pub(crate) scaled_halves: [f32; 2],
}

/// Bytes per group of a row: two records, and a flag for a used second record.
pub(crate) const INT8_BYTES: usize = 2 * size_of::<Int8Group>() + 1;

/// 32 activations in f32.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct FloatGroup {
    pub(crate) values: [f32; GROUP],
    /// Sums of the first and the last sixteen values.
    pub(crate) sums: [f32; 2],
}

/// A group's record, of one kind of activations.
pub(crate) trait Record {
    /// Whether sixteen tokens form a block on instruction sets with [`Lanes::TILES`].
    const TILES: bool;
}

impl Record for Int8Group {
    const TILES: bool = true;
}

impl Record for FloatGroup {
    const TILES: bool = false;
}

/// Scratch memory for one operation's packed activations.
#[derive(Debug)]
pub(crate) struct Activations {
    pub(crate) int8: Buffer,
    pub(crate) float: Buffer,
}

/// Tokens of the next block when `left` are left: sixteen for tiles, otherwise six or the largest power of
/// two up to 4 that fits. Eight tokens are two blocks of 4; six and two would take a quarter longer.
#[inline(always)]
pub(crate) fn block_len<L: Lanes, R: Record>(left: usize) -> usize {
    match left {
        LANES.. if L::TILES && R::TILES => LANES,
        8 if L::TOKENS == 6 => 4,
        left if left >= L::TOKENS => L::TOKENS,
        4.. if L::TOKENS == 6 => 4,
        2 | 3 if L::TOKENS == 6 => 2,
        _ => 1,
    }
}

/// Number of `tokens` that are in blocks of more than one.
#[inline(always)]
pub(crate) fn in_blocks<L: Lanes>(tokens: usize) -> usize {
    tokens - tokens % if L::TOKENS == 6 { 2 } else { L::TOKENS }
}

/// The data after `records` first records: as many second records, then one byte per record that is 0 if the
/// second record is unused.
#[inline(always)]
pub(crate) fn residuals<R>(first: *mut R, records: usize) -> (*mut R, *mut u8) {
    (first.wrapping_add(records), first.wrapping_add(2 * records).cast())
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
        single_tokens_come_last::<crate::backend::cpu::isa::avx2::Avx2<true>>();
        single_tokens_come_last::<crate::backend::cpu::isa::avx512::Avx512<false>>();
    }

    #[test]
    #[cfg(target_arch = "aarch64")]
    fn all_tokens_but_the_last_few_are_in_blocks_of_several() {
        single_tokens_come_last::<crate::backend::cpu::isa::neon::I8mm>();
    }
}
