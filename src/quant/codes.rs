//! Code types of canonical matrices: integers of 4 to 8 bits, or floats of 4 or 8 bits, and their numeric
//! values.

use std::ops::RangeInclusive;

use half::f16;

/// Width of an integer code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bits {
    /// 4 bits: two codes per byte, low nibble first.
    Four,
    /// 5 bits: one code per byte.
    Five,
    /// 6 bits: one code per byte.
    Six,
    /// 8 bits: one code per byte.
    Eight,
}

impl Bits {
    /// The number of bits.
    #[inline]
    pub const fn count(self) -> usize {
        match self {
            Bits::Four => 4,
            Bits::Five => 5,
            Bits::Six => 6,
            Bits::Eight => 8,
        }
    }

    /// Range of the integers that multiply a scale: unsigned with mins, two's complement without.
    pub const fn codes(self, mins: bool) -> RangeInclusive<i32> {
        let count = 1 << self.count();
        let low = if mins { 0 } else { -count / 2 };
        low..=low + count - 1
    }
}

/// Type of a code. Values are defined in the table of [`QuantMatrix`](super::QuantMatrix).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codes {
    /// Integer of the given width.
    Int(Bits),
    /// Float with 1 sign, 2 exponent and 1 mantissa bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. Two
    /// codes per byte, low nibble first.
    E2m1,
    /// Float with 1 sign, 4 exponent and 3 mantissa bits: magnitudes up to 448, no infinities. The two NaN
    /// codes are refused. One code per byte.
    E4m3,
}

impl Codes {
    /// Bits per code.
    #[inline]
    pub const fn bits(self) -> usize {
        match self {
            Codes::Int(bits) => bits.count(),
            Codes::E2m1 => 4,
            Codes::E4m3 => 8,
        }
    }

    /// Whether codes are floats, which have no minima.
    pub const fn is_float(self) -> bool {
        !matches!(self, Codes::Int(_))
    }
}

impl From<Bits> for Codes {
    fn from(bits: Bits) -> Codes {
        Codes::Int(bits)
    }
}

/// Bytes of codes per row.
pub fn code_bytes_per_row(kind: Codes, cols: usize) -> usize {
    match kind {
        Codes::Int(Bits::Four) | Codes::E2m1 => cols.div_ceil(2),
        Codes::Int(Bits::Five | Bits::Six | Bits::Eight) | Codes::E4m3 => cols,
    }
}

/// Multiples of the scale by E2M1 code: twice the code's value, which makes all of them integers.
pub(crate) const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Multiple of the scale for an E4M3 code: 1/256 of the code's value, exact in f16.
pub(crate) fn e4m3(code: u8) -> f16 {
    // f16 has one more exponent bit, and a bias larger by 8: the shifted bits are 2⁻⁸ of the value. The shift
    // leaves a copy of the sign in the top exponent bit, which the mask clears.
    f16::from_bits((i16::from(code as i8) << 7) as u16 & 0xbfff)
}

/// Whether an E4M3 code is not NaN.
pub(crate) fn is_e4m3_number(code: u8) -> bool {
    code & 0x7f != 0x7f
}
