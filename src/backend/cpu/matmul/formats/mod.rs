//! Products of one group of 32 columns, by weight format: codes with int8 activations (`int8`, and `tiles` on
//! AMX), codes with f32 activations (`float`), dense and 8-bit floats (`dense`). The loop over groups and the
//! epilogue are in `panel`, the packed order is in `pack`.

mod dense;
mod float;
mod int8;
mod tiles;

use half::f16;

pub(crate) use dense::{Dense, E4m3};
pub(crate) use float::Float;
pub(crate) use int8::Int8;

use crate::backend::cpu::isa::{LANES, Lanes, Tile};
use crate::backend::cpu::memory::prefetch::Prefetch;
use crate::backend::cpu::pack::{E2M1_CODES, Layout, PANEL, Record};
use crate::quant::{Bits, Codes};

/// Activations of a block of tokens in one group: a record per token.
#[derive(Clone, Copy)]
pub(crate) struct Operand<R> {
    pub(crate) first: *const R,
    /// A copy of `first` that the compiler does not recognise as equal. A single token's dot products then
    /// take activations as memory operands; a shared load would be one more instruction.
    pub(crate) again: *const R,
    /// Records of residual codes; only if `R` is int8.
    pub(crate) second: *const R,
    /// Per record, whether it has residual codes; only if `R` is int8.
    pub(crate) outliers: *const u8,
}

impl<R> Operand<R> {
    /// Advances by `records`.
    #[inline(always)]
    pub(crate) fn skip(&mut self, records: usize) {
        self.first = self.first.wrapping_add(records);
        self.again = self.again.wrapping_add(records);
        self.second = self.second.wrapping_add(records);
        self.outliers = self.outliers.wrapping_add(records);
    }
}

/// A weight format's product of one group of a panel.
pub(crate) trait Format: Sync {
    /// The packed order.
    const LAYOUT: Layout;
    /// Records of activations that the product reads.
    type Record: Record;
    /// [`Kernel::ON_CODES`](crate::backend::cpu::isa::Kernel::ON_CODES)
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const ON_CODES: bool = false;
    /// Whether [`Format::group`] prefetches.
    const PREFETCHES: bool = false;
    /// Prefetch distance in bytes, rounded to whole groups.
    const AHEAD: usize = 6 << 10;
    /// Prefetch distance of a single token in long panels.
    const AHEAD_LONG: usize = Self::AHEAD;

    /// `sums[t][m] += tile (tile + t) of the group · activations[m]`. If [`Format::PREFETCHES`], prefetches
    /// the group at `later` by `P`; that address need not be valid.
    ///
    /// # Safety
    /// `weights` is a group of `LAYOUT`, `activations` are `M` records, the CPU has `L`'s features.
    unsafe fn group<L: Lanes, P: Prefetch, const T: usize, const M: usize>(
        weights: *const u8,
        later: *const u8,
        tile: usize,
        activations: &Operand<Self::Record>,
        sums: &mut [[L::F; M]; T],
    );

    /// `sums[i][t] += tile t of the panel · block i of sixteen tokens`, on instruction sets with
    /// [`Lanes::TILES`]. Prefetches from `next`, which need not be valid.
    ///
    /// # Safety
    /// `weights` are `groups` groups of `LAYOUT`, `activations` as many records for each token, the CPU has
    /// `L`'s features.
    #[inline(always)]
    unsafe fn blocks<L: Lanes>(
        _weights: *const u8,
        _next: *const u8,
        _groups: usize,
        _activations: &Operand<Self::Record>,
        _sums: &mut [[Tile<f32>; 2]],
    ) {
        unreachable!("no tiles")
    }
}

/// Values of `BITS` for floats: the digits are the bits of exponent and mantissa. A table converts 4-bit
/// floats to 5-bit codes.
pub(crate) const E2M1: usize = 21;
const E4M3: usize = 43;

const fn quant(bits: usize, mins: bool, halves: bool) -> Layout {
    let kind = match bits {
        4 => Codes::Int(Bits::Four),
        5 => Codes::Int(Bits::Five),
        6 => Codes::Int(Bits::Six),
        E2M1 => Codes::E2m1,
        E4M3 => Codes::E4m3,
        _ => Codes::Int(Bits::Eight),
    };
    Layout::Quant { kind, mins, halves }
}

/// Line `number` of a tile's codes.
#[inline(always)]
unsafe fn code_line(weights: *const u8, tile: usize, number: usize) -> *const u8 {
    // SAFETY: the line is within the group's codes.
    unsafe { weights.add((2 * number + tile) * 4 * LANES) }
}

/// The bytes at the positions of quad `KQ` of a tile, from the lines that hold it; `pack` has the table.
/// 4-bit floats are converted to 5-bit codes.
#[inline(always)]
unsafe fn quad<L: Lanes, const BITS: usize, const KQ: usize>(weights: *const u8, tile: usize) -> L::C {
    // With 16-column groups, 6-bit codes have lines per half.
    let first = KQ / 4 * 3;
    // SAFETY: the lines are within the group's codes.
    unsafe {
        let line = |number: usize| code_line(weights, tile, number);
        match (BITS, KQ) {
            (4, 0 | 2 | 4 | 6) => L::low::<4>(L::bytes(line(KQ / 2))),
            (4, _) => L::high::<4>(L::bytes(line(KQ / 2))),
            (E2M1, 0 | 2 | 4 | 6) => L::lookup(&E2M1_CODES, L::low::<4>(L::bytes(line(KQ / 2)))),
            (E2M1, _) => L::lookup(&E2M1_CODES, L::high::<4>(L::bytes(line(KQ / 2)))),
            (5, 2) => L::high::<3>(L::splice::<3, 3>(L::bytes(line(0)), L::bytes(line(1)))),
            (5, 4) => {
                let four = L::splice::<3, 1>(L::bytes(line(2)), L::bytes(line(1)));
                L::high::<3>(L::splice::<4, 2>(four, L::bytes(line(3))))
            }
            (5, 6) => L::high::<3>(L::splice::<3, 3>(L::bytes(line(4)), L::bytes(line(3)))),
            (5, _) => L::low::<5>(L::bytes(line(KQ.div_ceil(2)))),
            (6, 2 | 6) => {
                let four = L::splice::<2, 2>(L::bytes(line(first)), L::bytes(line(first + 1)));
                L::high::<2>(L::splice::<4, 4>(four, L::bytes(line(first + 2))))
            }
            (6, 3 | 7) => L::low::<6>(L::bytes(line(first + 2))),
            (6, _) => L::low::<6>(L::bytes(line(first + KQ % 4))),
            _ => L::bytes(line(KQ)),
        }
    }
}

/// The stored codes of columns `4 KQ ..` of a tile, four per row. In [`Order::Pairs`] they are spread over
/// the positions of two quads, `EVEN` and `ODD`; the compiler unpacks those once for both.
///
/// [`Order::Pairs`]: crate::backend::cpu::isa::Order::Pairs
#[inline(always)]
unsafe fn columns<L: Lanes, const BITS: usize, const KQ: usize, const EVEN: usize, const ODD: usize>(
    weights: *const u8,
    tile: usize,
) -> L::C {
    // SAFETY: the caller promises a whole group, which has the lines of these quads.
    unsafe {
        if const { L::PAIRS } {
            let (even, odd) = (quad::<L, BITS, EVEN>(weights, tile), quad::<L, BITS, ODD>(weights, tile));
            L::unpair_rows(even, odd)[KQ % 2]
        } else {
            quad::<L, BITS, KQ>(weights, tile)
        }
    }
}

/// The scales or mins of a tile; the sets of mins follow those of scales.
#[inline(always)]
unsafe fn factor<L: Lanes>(layout: Layout, weights: *const u8, set: usize, tile: usize) -> L::F {
    // SAFETY: within the group, after its codes.
    unsafe { L::load_f16(weights.add(layout.code_bytes() + 2 * (set * PANEL + tile * LANES)).cast::<f16>()) }
}
