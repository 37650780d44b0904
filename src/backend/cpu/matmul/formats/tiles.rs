//! Codes times int8 activations of sixteen tokens at once, on instruction sets with tile products (AMX).
//!
//! A panel's codes are unpacked once for many tokens, some groups at a time. Tiles compute the exact integer
//! sums of a group. Vectors apply scales and mins in the order of `int8`, so the bits are the same.

use std::mem::MaybeUninit;

use super::{Format, Int8, Operand, factor, quad};
use crate::backend::cpu::isa::{LANES, Lanes, Tile, for_each};
use crate::backend::cpu::memory::prefetch::{IntoL1, IntoL2, LINE, Off, Prefetch};
use crate::backend::cpu::pack::{Int8Group, QUADS, SECOND_BITS};

/// Products with a scale of their own per strip; their inputs and outputs stay in L1.
const STEPS: usize = 4;

/// A group's codes minus the zero point, per tile: `[quad][row 16][k 4]`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Codes([[[u8; 4 * LANES]; QUADS]; 2]);

/// A block's integer sums, per step and tile.
type Dots = [[Tile; 2]; STEPS];

/// Some consecutive groups of a panel, with the activations to multiply them by.
struct Strip<'a> {
    weights: *const u8,
    codes: *const Codes,
    groups: usize,
    steps: usize,
    /// Activations, starting at the first block's record for the strip's first group.
    activations: &'a Operand<Int8Group>,
    blocks: usize,
    /// Number of groups in a whole row.
    row_groups: usize,
}

/// One product of a strip.
#[derive(Clone, Copy)]
struct Step {
    block: usize,
    number: usize,
}

impl Strip<'_> {
    fn records(&self, block: usize, group: usize) -> Operand<Int8Group> {
        let mut records = *self.activations;
        records.skip((block * self.row_groups + group) * LANES);
        records
    }

    /// The product computed after this one.
    fn after(&self, Step { block, number }: Step) -> Step {
        if number + 1 < self.steps {
            Step { block, number: number + 1 }
        } else {
            Step { block: block + 1, number: 0 }
        }
    }
}

/// Destination of both tiles of a product's sums; there is room for two blocks.
fn room(dots: &mut [MaybeUninit<Dots>; 2], step: Step) -> *mut Tile {
    dots[step.block % 2].as_mut_ptr().cast::<Tile>().wrapping_add(2 * step.number)
}

impl<const BITS: usize, const MINS: bool, const HALVES: bool> Int8<BITS, MINS, HALVES> {
    /// Scales per row in a group.
    const SETS: usize = 1 + HALVES as usize;
    const STRIP: usize = STEPS / Self::SETS;
    const GROUP_BYTES: usize = Self::LAYOUT.group_bytes();

    /// [`Format::blocks`]
    #[inline(always)]
    pub(super) unsafe fn tile_blocks<L: Lanes>(
        weights: *const u8,
        next: *const u8,
        groups: usize,
        activations: &Operand<Int8Group>,
        sums: &mut [[Tile<f32>; 2]],
    ) {
        let mut codes = [const { MaybeUninit::<Codes>::uninit() }; STEPS];
        // SAFETY: strips are within the panel, and what is read of `codes` was written.
        unsafe {
            L::begin_tiles(QUADS / Self::SETS);
            for first in (0..groups).step_by(Self::STRIP) {
                let count = Self::STRIP.min(groups - first);
                let weights = weights.add(first * Self::GROUP_BYTES);
                for (group, codes) in codes[..count].iter_mut().enumerate() {
                    Self::unpack::<L>(weights.add(group * Self::GROUP_BYTES), codes.as_mut_ptr());
                }
                // Memory would otherwise be idle until the next strip.
                let later =
                    if first + count < groups { weights.add(count * Self::GROUP_BYTES) } else { next };
                for line in 0..Self::STRIP * Self::GROUP_BYTES / LINE {
                    IntoL2::line(later.wrapping_add(LINE * line));
                }
                let mut activations = *activations;
                activations.skip(first * LANES);
                let strip = Strip {
                    weights,
                    codes: codes.as_ptr().cast(),
                    groups: count,
                    steps: count * Self::SETS,
                    activations: &activations,
                    blocks: sums.len(),
                    row_groups: groups,
                };
                Self::strip::<L>(&strip, sums);
            }
            L::end_tiles();
        }
    }

    #[inline(always)]
    unsafe fn unpack<L: Lanes>(weights: *const u8, codes: *mut Codes) {
        for tile in 0..2 {
            for_each!([0 1 2 3 4 5 6 7] KQ => {
                // SAFETY: within the group and the codes.
                unsafe {
                    let to = (&raw mut (*codes).0[tile][KQ]).cast();
                    L::store_codes(to, quad::<L, BITS, KQ>(weights, tile), Self::LAYOUT.zero_point() as u8);
                }
            });
        }
    }

    /// Multiplies each block by a strip. Tiles compute the next block while vectors scale this one's sums. A
    /// product's sums are stored only when the next product begins: a store that waits for its product would
    /// delay all later instructions.
    #[inline(always)]
    unsafe fn strip<L: Lanes>(strip: &Strip<'_>, sums: &mut [[Tile<f32>; 2]]) {
        let mut dots = [const { MaybeUninit::<Dots>::uninit() }; 2];
        // SAFETY: all steps are the strip's.
        unsafe {
            Self::multiply::<L>(strip, Step { block: 0, number: 0 });
            for number in 0..strip.steps {
                Self::store_and_multiply::<L>(strip, Step { block: 0, number }, &mut dots);
            }
            for (block, sums) in sums.iter_mut().enumerate() {
                for (tile, sums) in sums.iter_mut().enumerate() {
                    Self::add_tile::<L>(strip, block, tile, &mut dots, sums);
                }
            }
        }
    }

    /// Starts a product of both tiles of rows.
    #[inline(always)]
    unsafe fn multiply<L: Lanes>(strip: &Strip<'_>, step: Step) {
        let (group, half) = (step.number / Self::SETS, step.number % Self::SETS);
        let record = strip.records(step.block, group).first;
        if half == 0 {
            // A block's part of a strip is one page, and the hardware prefetcher stops at page ends.
            let next = match step.block + 1 {
                next if next < strip.blocks => strip.records(next, group),
                _ => strip.records(0, group + Self::STRIP),
            };
            for token in 0..LANES {
                IntoL1::line(next.first.wrapping_add(token).cast());
            }
        }
        // SAFETY: sixteen records and a group's codes.
        unsafe {
            let a = (&raw const (*record).codes).cast::<i8>().add(half * LANES);
            let codes = (&raw const (*strip.codes.add(group)).0[0][half * QUADS / 2]).cast();
            // With mins, codes have no zero point.
            if MINS {
                L::tile_dots::<false>(a, codes);
            } else {
                L::tile_dots::<true>(a, codes);
            }
        }
    }

    /// Stores the last product and starts the next one, if any.
    #[inline(always)]
    unsafe fn store_and_multiply<L: Lanes>(strip: &Strip<'_>, step: Step, dots: &mut [MaybeUninit<Dots>; 2]) {
        // SAFETY: the step is the strip's.
        unsafe {
            L::store_dots(room(dots, step));
            let next = strip.after(step);
            if next.block < strip.blocks {
                Self::multiply::<L>(strip, next);
            }
        }
    }

    /// Adds a block's products with one tile of rows while the tiles compute the next block.
    #[inline(always)]
    unsafe fn add_tile<L: Lanes>(
        strip: &Strip<'_>,
        block: usize,
        tile: usize,
        dots: &mut [MaybeUninit<Dots>; 2],
        sums: &mut Tile<f32>,
    ) {
        // SAFETY: register arithmetic.
        let mut new = [unsafe { L::splat(0.0) }; LANES];
        for_each!([0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] M => {
            // SAFETY: sixteen sums.
            new[M] = unsafe { L::load(sums.0[M].as_ptr()) };
        });
        for group in 0..strip.groups {
            let weights = strip.weights.wrapping_add(group * Self::GROUP_BYTES);
            let activations = strip.records(block, group);
            for_each!([0 1] HALF => {
                if HALF < Self::SETS {
                    let number = group * Self::SETS + HALF;
                    // SAFETY: all is the strip's, and this block's dots were stored a block ago.
                    unsafe {
                        // Every other time, because a product covers both tiles.
                        let done = tile * strip.steps + number;
                        if done.is_multiple_of(2) && block + 1 < strip.blocks {
                            let next = Step { block: block + 1, number: done / 2 };
                            Self::store_and_multiply::<L>(strip, next, dots);
                        }
                        let dots = room(dots, Step { block, number }).add(tile);
                        Self::second_terms::<L, HALF>(weights, tile, &activations, dots);
                        Self::scale::<L, HALF>(weights, tile, activations.first, dots, &mut new);
                    }
                }
            });
        }
        for_each!([0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] M => {
            // SAFETY: sixteen sums.
            unsafe { L::store(sums.0[M].as_mut_ptr(), new[M]) };
        });
    }

    /// Joins the dot products of residual codes for the tokens that have them, usually one or two of sixteen.
    #[inline(always)]
    unsafe fn second_terms<L: Lanes, const HALF: usize>(
        weights: *const u8,
        tile: usize,
        activations: &Operand<Int8Group>,
        dots: *mut Tile,
    ) {
        // SAFETY: sixteen records, each with its byte.
        unsafe {
            let mut left = activations.outliers.cast::<u128>().read_unaligned();
            while left != 0 {
                let token = left.trailing_zeros() as usize / 8;
                left &= left - 1;
                let record = activations.second.add(token);
                let mut low = [Self::starts::<L, 1>(record, HALF)];
                Self::dots::<L, Off, 1, 1, HALF>(weights, tile, [record; 2], weights, &mut low);
                let sum = (&raw mut (*dots).0[token]).cast();
                L::store_i32(sum, L::add_i32(L::shl::<SECOND_BITS>(L::load_i32(sum)), low[0][0]));
            }
        }
    }

    /// Adds the scaled sums and mins of sixteen tokens.
    #[inline(always)]
    unsafe fn scale<L: Lanes, const HALF: usize>(
        weights: *const u8,
        tile: usize,
        records: *const Int8Group,
        dots: *const Tile,
        new: &mut [L::F; LANES],
    ) {
        // SAFETY: sixteen records.
        unsafe {
            let scale = factor::<L>(Self::LAYOUT, weights, HALF, tile);
            for_each!([0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] M => {
                let value = L::mul(L::to_f32(L::load_i32((*dots).0[M].as_ptr())), scale);
                new[M] = L::fma(value, L::splat((*records.add(M)).scale), new[M]);
            });
            if MINS {
                let min = factor::<L>(Self::LAYOUT, weights, Self::SETS + HALF, tile);
                for_each!([0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15] M => {
                    new[M] = L::fma(min, L::splat(Self::scaled_sum(records.add(M), HALF)), new[M]);
                });
            }
        }
    }
}
