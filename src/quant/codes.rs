//! What a code is: an integer of some bits, or a float of four or eight; and by what it multiplies a scale.

use std::ops::RangeInclusive;

use half::f16;

/// Bits of an integer code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bits {
    /// Two codes a byte, low nibble first.
    Four,
    /// One code a byte, which stays within five bits.
    Five,
    /// One code a byte, which stays within six bits.
    Six,
    /// One code a byte.
    Eight,
}

impl Bits {
    /// How many.
    pub const fn count(self) -> usize {
        match self {
            Bits::Four => 4,
            Bits::Five => 5,
            Bits::Six => 6,
            Bits::Eight => 8,
        }
    }

    /// The integers that multiply a scale: from 0 up with mins, else as many below zero as not.
    pub const fn codes(self, mins: bool) -> RangeInclusive<i32> {
        let count = 1 << self.count();
        let low = if mins { 0 } else { -count / 2 };
        low..=low + count - 1
    }
}

/// What a code is. The table at [`QuantMatrix`](super::QuantMatrix) says what it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codes {
    /// An integer.
    Int(Bits),
    /// A float with a sign, two bits of exponent and one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their
    /// negatives. Two codes a byte, low nibble first.
    E2m1,
    /// A float with a sign, four bits of exponent and three of mantissa, up to 448, without infinities; the two
    /// codes of NaN are refused. One code a byte.
    E4m3,
}

impl Codes {
    /// Bits of a code.
    pub const fn bits(self) -> usize {
        match self {
            Codes::Int(bits) => bits.count(),
            Codes::E2m1 => 4,
            Codes::E4m3 => 8,
        }
    }

    /// Whether codes are floats. They have no minima.
    pub const fn is_float(self) -> bool {
        !matches!(self, Codes::Int(_))
    }
}

impl From<Bits> for Codes {
    fn from(bits: Bits) -> Codes {
        Codes::Int(bits)
    }
}

/// Bytes that the codes of one row take.
pub fn code_bytes_per_row(kind: Codes, cols: usize) -> usize {
    match kind {
        Codes::Int(Bits::Four) | Codes::E2m1 => cols.div_ceil(2),
        Codes::Int(Bits::Five | Bits::Six | Bits::Eight) | Codes::E4m3 => cols,
    }
}

/// By code of [`Codes::E2m1`], what multiplies the scale: twice the code's value, so that all are integers.
pub(crate) const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// What multiplies the scale for a code of [`Codes::E4m3`]: a 256th of the code's value, which is an f16.
pub(crate) fn e4m3(code: u8) -> f16 {
    // f16 has one more bit of exponent, with a bias that is 8 larger: the code's bits, put in their places, are 2⁸
    // times too small. The shift leaves a copy of the sign in the new exponent's first bit.
    f16::from_bits((i16::from(code as i8) << 7) as u16 & 0xbfff)
}

/// Whether a code of [`Codes::E4m3`] is a number.
pub(crate) fn is_e4m3_number(code: u8) -> bool {
    code & 0x7f != 0x7f
}
