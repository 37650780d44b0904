//! The storage form of a packed matrix, and its size. The table is in the documentation of `pack`.

use super::record::{GROUP, groups};
use crate::backend::cpu::isa::LANES;
use crate::quant::{Bits, Codes, E2M1, MatrixForm, QuantForm};

/// Rows per panel.
pub(crate) const PANEL: usize = 2 * LANES;
/// Quads of columns per group.
pub(crate) const QUADS: usize = GROUP / 4;

/// The zero point of codes made from 4-bit floats. Initial sums for it are shifted from a record's
/// `neg_sum_8`.
const E2M1_ZERO: i32 = 16;
/// Code of each 4-bit float: twice its value, plus the zero point.
pub(crate) const E2M1_CODES: [u8; 16] = {
    let mut codes = [0; 16];
    let mut at = 0;
    while at < 16 {
        codes[at] = (E2M1[at] as i32 + E2M1_ZERO) as u8;
        at += 1;
    }
    codes
};

/// The storage form of a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Codes, scales, and mins if any.
    Quant {
        /// In kernels, 4-bit floats become integers and 8-bit floats become f32.
        kind: Codes,
        mins: bool,
        /// Whether the canonical group is 16 columns.
        halves: bool,
    },
    F32,
    F16,
    Bf16,
}

impl Layout {
    pub(crate) fn of(form: MatrixForm) -> Layout {
        match form {
            MatrixForm::Quant(QuantForm { kind: kind @ Codes::E2m1, group, .. }) => {
                Layout::Quant { kind, mins: false, halves: group == 16 }
            }
            // Their groups have 16 columns only in rows of no more columns.
            MatrixForm::Quant(QuantForm { kind: kind @ Codes::E4m3, .. }) => {
                Layout::Quant { kind, mins: false, halves: false }
            }
            MatrixForm::Quant(QuantForm { kind: Codes::Int(bits), group, mins }) => {
                let halves = group == 16;
                // Kernels exist for these; all other forms are packed as 8 bits.
                let bits = match (bits, halves, mins) {
                    (Bits::Four, ..) | (Bits::Five, false, _) | (Bits::Six, true, false) => bits,
                    _ => Bits::Eight,
                };
                Layout::Quant { kind: bits.into(), mins, halves }
            }
            MatrixForm::F32 => Layout::F32,
            MatrixForm::F16 => Layout::F16,
            MatrixForm::Bf16 => Layout::Bf16,
        }
    }

    /// Bytes per group of one panel.
    #[inline]
    pub(crate) const fn group_bytes(self) -> usize {
        match self {
            Layout::Quant { mins, halves, .. } => {
                self.code_bytes() + (1 + mins as usize) * (1 + halves as usize) * PANEL * 2
            }
            _ => self.code_bytes(),
        }
    }

    /// Bytes per group for values or codes.
    #[inline]
    pub(crate) const fn code_bytes(self) -> usize {
        match self {
            Layout::Quant { kind, .. } => PANEL * GROUP / 8 * kind.bits(),
            Layout::F32 => PANEL * GROUP * 4,
            Layout::F16 | Layout::Bf16 => PANEL * GROUP * 2,
        }
    }

    /// The offset to subtract from a stored code, including a byte's bias; for 4-bit floats, from the table's
    /// code.
    #[inline]
    pub(crate) const fn zero_point(self) -> i32 {
        match self {
            Layout::Quant { kind: Codes::E2m1, .. } => E2M1_ZERO,
            Layout::Quant { kind: Codes::Int(bits), mins: false, .. } => 1 << (bits.count() - 1),
            _ => 0,
        }
    }

    /// Fill for missing columns: without mins, the code of value 0.
    #[inline]
    pub(super) const fn padding(self) -> u8 {
        match self {
            Layout::Quant { kind: Codes::E2m1 | Codes::E4m3, .. } => 0,
            _ => self.zero_point() as u8,
        }
    }
}

/// Bytes of a packed matrix, a multiple of 64; `None` if that overflows.
pub(crate) fn packed_bytes([rows, cols]: [usize; 2], layout: Layout) -> Option<usize> {
    groups(cols).checked_mul(layout.group_bytes())?.checked_mul(rows.div_ceil(PANEL))
}
