//! Floating-point formats and exact arithmetic on their values: what a result is before rounding, as
//! an integer times a power of two, and what each format makes of it. Written from the IEEE 754 and
//! OCP definitions; shares nothing with the emulator.

use num_bigint::{BigInt, Sign};

/// A binary format, held in `shift` bits above bit 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Format {
    pub exponent: u32,
    pub mantissa: u32,
    /// Unused low bits (tf32 lies in the upper 19 bits of 32).
    pub shift: u32,
    /// Infinities exist (not in e4m3, whose only NaN has all bits set).
    pub infinite: bool,
}

const fn format(exponent: u32, mantissa: u32) -> Format {
    Format { exponent, mantissa, shift: 0, infinite: true }
}

pub const F16: Format = format(5, 10);
pub const BF16: Format = format(8, 7);
pub const F32: Format = format(8, 23);
pub const F64: Format = format(11, 52);
pub const TF32: Format = Format { shift: 13, ..format(8, 10) };
pub const E5M2: Format = format(5, 2);
pub const E4M3: Format = Format { infinite: false, ..format(4, 3) };

/// How a result that lies between two numbers is rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Nearest,
    Away,
    Zero,
    Down,
    Up,
}

/// The name of each mode in arithmetic opcodes.
pub const MODES: [(&str, Mode); 4] =
    [("rn", Mode::Nearest), ("rz", Mode::Zero), ("rm", Mode::Down), ("rp", Mode::Up)];

/// What a floating-point number is.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Nan,
    Infinity(bool),
    /// Zero with its sign.
    Zero(bool),
    /// Integer × 2^exponent, not zero.
    Number(BigInt, i32),
}
use Value::{Infinity, Nan, Number, Zero};

impl Format {
    pub fn bits(self) -> u32 {
        1 + self.exponent + self.mantissa + self.shift
    }

    /// The highest exponent field.
    fn top(self) -> u64 {
        (1 << self.exponent) - 1
    }

    fn sign(self) -> u64 {
        1 << (self.bits() - 1)
    }

    /// The exponent of the last place of the smallest numbers.
    fn least(self) -> i32 {
        2 - (1 << (self.exponent - 1)) - self.mantissa as i32
    }

    pub fn infinity(self) -> u64 {
        self.top() << (self.mantissa + self.shift)
    }

    /// The largest finite number.
    pub fn largest(self) -> u64 {
        let all = ((self.top() + 1) << self.mantissa) - 2;
        if self.infinite { ((self.top() << self.mantissa) - 1) << self.shift } else { all }
    }

    /// What PTX calls the canonical NaN: all bits but the sign.
    pub fn nan(self) -> u64 {
        (self.sign() - 1) >> self.shift << self.shift
    }

    pub fn is_nan(self, bits: u64) -> bool {
        decode(bits, self) == Nan
    }

    pub fn one(self) -> u64 {
        ((1 << (self.exponent - 1)) - 1) << (self.mantissa + self.shift)
    }

    pub fn subnormal(self, bits: u64) -> bool {
        let magnitude = bits & (self.sign() - 1);
        magnitude != 0 && magnitude >> (self.mantissa + self.shift) == 0
    }

    /// With subnormal numbers as zeros of their sign, if `ftz`.
    pub fn flush(self, bits: u64, ftz: bool) -> u64 {
        if ftz && self.subnormal(bits) { bits & self.sign() } else { bits }
    }
}

/// The value of bits.
pub fn decode(bits: u64, f: Format) -> Value {
    let bits = bits >> f.shift;
    let negative = bits >> (f.exponent + f.mantissa) & 1 == 1;
    let (field, fraction) = (bits >> f.mantissa & f.top(), bits & ((1 << f.mantissa) - 1));
    if field == f.top() && f.infinite {
        return if fraction == 0 { Infinity(negative) } else { Nan };
    }
    if !f.infinite && field == f.top() && fraction == (1 << f.mantissa) - 1 {
        return Nan;
    }
    let (whole, exponent) = match field {
        0 => (fraction, f.least()),
        _ => (fraction | 1 << f.mantissa, f.least() + field as i32 - 1),
    };
    let whole = BigInt::from(whole);
    match (whole.sign(), negative) {
        (Sign::NoSign, _) => Zero(negative),
        (_, true) => Number(-whole, exponent),
        (_, false) => Number(whole, exponent),
    }
}

/// The bits of a value rounded to a format; numbers too large become what the mode says.
pub fn encode(value: &Value, f: Format, mode: Mode) -> u64 {
    let signed = |negative: bool, bits: u64| (if negative { f.sign() } else { 0 }) | bits;
    match value {
        Nan => f.nan(),
        Infinity(negative) if !f.infinite => signed(*negative, f.largest()),
        Infinity(negative) => signed(*negative, f.infinity()),
        Zero(negative) => signed(*negative, 0),
        Number(whole, exponent) => {
            let negative = whole.sign() == Sign::Minus;
            let bits = magnitude(whole, *exponent, f, mode) << f.shift;
            let to_infinity = match mode {
                Mode::Nearest | Mode::Away => true,
                Mode::Zero => false,
                Mode::Down => negative,
                Mode::Up => !negative,
            };
            let bits = match (bits > f.largest(), to_infinity && f.infinite) {
                (false, _) => bits,
                (true, true) => f.infinity(),
                (true, false) => f.largest(),
            };
            signed(negative, bits)
        }
    }
}

/// The bits without the sign, as if exponents had no limit.
fn magnitude(whole: &BigInt, exponent: i32, f: Format, mode: Mode) -> u64 {
    let negative = whole.sign() == Sign::Minus;
    let length = whole.bits() as i32;
    let place = (exponent + length - 1 - f.mantissa as i32).max(f.least());
    let units = round(whole, exponent - place, mode, negative);
    // The hidden bit, and a carry out of the fraction, add to the exponent field by themselves.
    (((place - f.least()) as u64) << f.mantissa) + u64::try_from(units).unwrap()
}

/// The magnitude of `whole` × 2^`scale`, rounded to an integer.
fn round(whole: &BigInt, scale: i32, mode: Mode, negative: bool) -> BigInt {
    let size = BigInt::from(whole.magnitude().clone());
    if scale >= 0 {
        return size << scale;
    }
    let (floor, half) = (size.clone() >> -scale, BigInt::from(1) << (-scale - 1));
    let rest = size - (floor.clone() << -scale);
    let up = match mode {
        Mode::Nearest => rest > half || rest == half && floor.bit(0),
        Mode::Away => rest >= half,
        Mode::Zero => false,
        Mode::Down => negative && rest.sign() != Sign::NoSign,
        Mode::Up => !negative && rest.sign() != Sign::NoSign,
    };
    if up { floor + 1 } else { floor }
}

impl Value {
    pub fn negative(&self) -> bool {
        match self {
            Nan => false,
            Infinity(negative) | Zero(negative) => *negative,
            Number(whole, _) => whole.sign() == Sign::Minus,
        }
    }

    pub fn negated(&self) -> Value {
        match self {
            Nan => Nan,
            Infinity(negative) => Infinity(!negative),
            Zero(negative) => Zero(!negative),
            Number(whole, exponent) => Number(-whole.clone(), *exponent),
        }
    }

    /// Rounded to an integer, for numbers.
    pub fn to_integer(&self, mode: Mode) -> Option<BigInt> {
        match self {
            Zero(_) => Some(BigInt::ZERO),
            Number(whole, exponent) => {
                let size = round(whole, *exponent, mode, self.negative());
                Some(if self.negative() { -size } else { size })
            }
            _ => None,
        }
    }

    pub fn from_integer(whole: i128) -> Value {
        if whole == 0 { Zero(false) } else { Number(BigInt::from(whole), 0) }
    }

    pub fn to_f64(&self) -> f64 {
        f64::from_bits(encode(self, F64, Mode::Nearest))
    }
}

/// The sum; the mode only says which zero a sum of opposites is.
pub fn add(a: &Value, b: &Value, mode: Mode) -> Value {
    match (a, b) {
        (Nan, _) | (_, Nan) => Nan,
        (Infinity(a), Infinity(b)) => {
            if a == b {
                Infinity(*a)
            } else {
                Nan
            }
        }
        (Infinity(_), _) => a.clone(),
        (_, Infinity(_)) => b.clone(),
        (Zero(a), Zero(b)) => Zero(if a == b { *a } else { mode == Mode::Down }),
        (Zero(_), _) => b.clone(),
        (_, Zero(_)) => a.clone(),
        (Number(a, i), Number(b, j)) => {
            let least = *i.min(j);
            let sum = (a.clone() << (i - least)) + (b.clone() << (j - least));
            if sum == BigInt::ZERO { Zero(mode == Mode::Down) } else { Number(sum, least) }
        }
    }
}

pub fn mul(a: &Value, b: &Value) -> Value {
    let negative = a.negative() != b.negative();
    match (a, b) {
        (Nan, _) | (_, Nan) | (Infinity(_), Zero(_)) | (Zero(_), Infinity(_)) => Nan,
        (Infinity(_), _) | (_, Infinity(_)) => Infinity(negative),
        (Zero(_), _) | (_, Zero(_)) => Zero(negative),
        (Number(a, i), Number(b, j)) => Number(a * b, i + j),
    }
}

/// Bits beyond any format's, so that what is cut off can be noted in one more.
const GUARD: u64 = 2300;

/// The quotient, with a last bit that says whether it goes on.
pub fn div(a: &Value, b: &Value) -> Value {
    let negative = a.negative() != b.negative();
    match (a, b) {
        (Nan, _) | (_, Nan) | (Infinity(_), Infinity(_)) | (Zero(_), Zero(_)) => Nan,
        (Infinity(_), _) | (_, Zero(_)) => Infinity(negative),
        (Zero(_), _) | (_, Infinity(_)) => Zero(negative),
        (Number(a, i), Number(b, j)) => {
            let wide = BigInt::from(a.magnitude().clone()) << GUARD;
            let by = BigInt::from(b.magnitude().clone());
            let quotient: BigInt = &wide / &by;
            let more = &quotient * &by != wide;
            let whole: BigInt = (quotient << 1) + i32::from(more);
            Number(if negative { -whole } else { whole }, i - j - GUARD as i32 - 1)
        }
    }
}

pub fn sqrt(a: &Value) -> Value {
    match a {
        Nan => Nan,
        Zero(negative) => Zero(*negative),
        _ if a.negative() => Nan,
        Infinity(_) => Infinity(false),
        Number(whole, exponent) => {
            let odd = exponent.rem_euclid(2);
            let wide = whole.clone() << (GUARD * 2 + odd as u64);
            let root = wide.sqrt();
            let more = &root * &root != wide;
            Number((root << 1) + i32::from(more), (exponent - odd) / 2 - GUARD as i32 - 1)
        }
    }
}
