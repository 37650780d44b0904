//! Numbers of few bits: f16, bf16 and fp8 to f32 and back, with the rounding that PTX defines.
//! These functions are exact and work on one value; `isa` has fast ones for whole registers.

use crate::decode::Rounding;

/// A format of at most 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    pub(super) exponent_bits: u32,
    pub(super) mantissa_bits: u32,
    /// Infinity is a value (e4m3 has none and reaches further).
    pub(super) infinity: bool,
}

pub(super) const F16: Format = Format { exponent_bits: 5, mantissa_bits: 10, infinity: true };
pub(super) const BF16: Format = Format { exponent_bits: 8, mantissa_bits: 7, infinity: true };
pub(super) const E4M3: Format = Format { exponent_bits: 4, mantissa_bits: 3, infinity: false };
pub(super) const E5M2: Format = Format { exponent_bits: 5, mantissa_bits: 2, infinity: true };

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// Largest finite value's bits, without sign.
    pub(super) fn max_bits(self) -> u32 {
        if self.infinity {
            self.infinity_bits() - 1
        } else {
            (1 << (self.exponent_bits + self.mantissa_bits)) - 2
        }
    }

    pub(super) fn infinity_bits(self) -> u32 {
        ((1 << self.exponent_bits) - 1) << self.mantissa_bits
    }

    /// The NaN that conversions give.
    pub(super) fn nan_bits(self) -> u32 {
        (1 << (self.exponent_bits + self.mantissa_bits)) - 1
    }

    fn sign_shift(self) -> u32 {
        self.exponent_bits + self.mantissa_bits
    }

    /// The value of bits; exact.
    pub(super) fn decode(self, bits: u32) -> f64 {
        let magnitude = bits & ((1 << self.sign_shift()) - 1);
        let exponent = (magnitude >> self.mantissa_bits) as i32;
        let mantissa = f64::from(magnitude & ((1 << self.mantissa_bits) - 1));
        let unit = (2f64).powi(1 - self.bias() - self.mantissa_bits as i32);
        let value = if self.infinity && magnitude >= self.infinity_bits() {
            if magnitude == self.infinity_bits() { f64::INFINITY } else { f64::NAN }
        } else if !self.infinity && magnitude == self.nan_bits() {
            f64::NAN
        } else if exponent == 0 {
            mantissa * unit
        } else {
            (mantissa + f64::from(1u32 << self.mantissa_bits)) * unit * (2f64).powi(exponent - 1)
        };
        if bits >> self.sign_shift() & 1 != 0 { -value } else { value }
    }

    /// The bits of a value. It is rounded once; with `saturate`, what is too large is the largest
    /// finite value.
    pub(super) fn encode(self, value: f64, rounding: Rounding, saturate: bool) -> u32 {
        if value.is_nan() {
            return self.nan_bits();
        }
        let sign = u32::from(value.is_sign_negative()) << self.sign_shift();
        let magnitude = value.abs();
        if magnitude.is_infinite() {
            return sign | self.overflow(true, saturate);
        }
        // Scale so that one unit in the last place is 1: below 2^53 that is exact.
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - self.bias());
        let scaled = scale(magnitude, self.mantissa_bits as i32 - exponent);
        let whole = scaled.floor();
        let rest = scaled - whole;
        let up = match rounding {
            Rounding::Nearest => rest > 0.5 || rest == 0.5 && whole as u64 & 1 != 0,
            Rounding::Away => rest >= 0.5,
            Rounding::Zero => false,
            Rounding::Up => rest > 0.0 && sign == 0,
            Rounding::Down => rest > 0.0 && sign != 0,
        };
        let units = whole as i64 + i64::from(up);
        // Units from the exponent's own binade carry into the next one by themselves.
        let biased = i64::from(exponent + self.bias() - 1);
        let bits = (biased << self.mantissa_bits) + units;
        if bits > i64::from(self.max_bits()) {
            let away = match rounding {
                Rounding::Nearest | Rounding::Away => true,
                Rounding::Zero => false,
                Rounding::Up => sign == 0,
                Rounding::Down => sign != 0,
            };
            return sign | self.overflow(away, saturate);
        }
        sign | bits as u32
    }

    fn overflow(self, away: bool, saturate: bool) -> u32 {
        match (saturate || !away, self.infinity) {
            (true, _) => self.max_bits(),
            (false, true) => self.infinity_bits(),
            (false, false) => self.nan_bits(),
        }
    }
}

/// value × 2^by, for results that are normal numbers.
fn scale(value: f64, by: i32) -> f64 {
    // Two steps: 2^by may be out of f64's range where the product is not.
    let half = by / 2;
    value * (2f64).powi(half) * (2f64).powi(by - half)
}

/// a + b rounded to odd: rounding that once more to fewer bits (by two or more) is as good as
/// rounding the exact sum.
pub(super) fn add_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    let b_part = sum - a;
    let error = (a - (sum - b_part)) + (b - b_part);
    toward(sum, error)
}

/// `sum` made odd, if there is an error: the neighbour on the error's side, or itself.
fn toward(sum: f64, error: f64) -> f64 {
    let bits = sum.to_bits();
    if error == 0.0 || error.is_nan() || bits & 1 != 0 {
        return sum;
    }
    let grows = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if grows { bits + 1 } else { bits - 1 })
}

/// a × b + c of f32, rounded to odd in f64: products of f32 are exact in f64.
pub(super) fn fma_odd(a: f32, b: f32, c: f32) -> f64 {
    add_odd(f64::from(a) * f64::from(b), f64::from(c))
}

/// A value, exact or rounded to odd, as f32 rounded to odd.
pub(super) fn to_f32_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || value.is_nan() || nearest.to_bits() & 1 != 0 {
        return nearest;
    }
    // Zero's neighbour is on the value's own side, and so is that of too large a number.
    let bits = nearest.to_bits();
    f32::from_bits(if back.abs() > value.abs() { bits - 1 } else { bits + 1 })
}

/// A value, exact or rounded to odd, as f32.
pub(super) fn to_f32(value: f64, rounding: Rounding) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if value.is_nan() || back == value {
        return nearest;
    }
    let towards_zero = |v: f32| f32::from_bits(v.to_bits() - 1);
    let away = |v: f32| f32::from_bits(v.to_bits() + 1);
    // Infinity's lower neighbour is the largest finite value, by bits too.
    let too_far = back.abs() > value.abs();
    let down_in_magnitude = |too_far: bool| if too_far { towards_zero(nearest) } else { nearest };
    let up_in_magnitude = |too_far: bool| if too_far { nearest } else { away(nearest) };
    match rounding {
        Rounding::Nearest | Rounding::Away => nearest,
        Rounding::Zero => down_in_magnitude(too_far),
        Rounding::Up if value > 0.0 => up_in_magnitude(too_far),
        Rounding::Up => down_in_magnitude(too_far),
        Rounding::Down if value < 0.0 => up_in_magnitude(too_far),
        Rounding::Down => down_in_magnitude(too_far),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_decodes_encodes() {
        for (format, bits) in [(F16, 16), (BF16, 16), (E4M3, 8), (E5M2, 8)] {
            for code in 0..1u32 << bits {
                let value = format.decode(code);
                if !value.is_nan() {
                    assert_eq!(format.encode(value, Rounding::Nearest, false), code, "{format:?}");
                    assert_eq!(format.encode(value, Rounding::Up, false), code, "{format:?}");
                }
            }
        }
    }

    #[test]
    fn ties_and_limits() {
        assert_eq!(F16.decode(0x3c01), 1.0 + 1.0 / 1024.0);
        assert_eq!(F16.encode(1.0 + 1.0 / 2048.0, Rounding::Nearest, false), 0x3c00);
        assert_eq!(F16.encode(1.0 + 3.0 / 2048.0, Rounding::Nearest, false), 0x3c02);
        assert_eq!(F16.encode(65519.99, Rounding::Nearest, false), 0x7bff);
        assert_eq!(F16.encode(65520.0, Rounding::Nearest, false), 0x7c00);
        assert_eq!(F16.encode(65520.0, Rounding::Nearest, true), 0x7bff);
        assert_eq!(F16.encode(1e9, Rounding::Zero, false), 0x7bff);
        assert_eq!(F16.encode((2f64).powi(-25), Rounding::Nearest, false), 0);
        assert_eq!(F16.encode((2f64).powi(-25) * 1.01, Rounding::Nearest, false), 1);
        assert_eq!(E4M3.decode(0x7e), 448.0);
        assert_eq!(E4M3.encode(1000.0, Rounding::Nearest, true), 0x7e);
        assert_eq!(E5M2.decode(0x7b), 57344.0);
        assert_eq!(BF16.encode(-f64::from(f32::MAX), Rounding::Nearest, false), 0xff80);
    }

    #[test]
    fn odd_sums_round_once() {
        // 1 + 2^-11 + 2^-60: to f32 first it is a tie of f16, which would round down.
        let value = add_odd(1.0 + 1.0 / 2048.0, (2f64).powi(-60));
        assert_eq!(F16.encode(value, Rounding::Nearest, false), 0x3c01);
        let value = add_odd(1.0 + 1.0 / 2048.0, -(2f64).powi(-60));
        assert_eq!(F16.encode(value, Rounding::Nearest, false), 0x3c00);
        assert_eq!(to_f32(fma_odd(1.0, 1.0, 1e-30), Rounding::Up), 1.0 + f32::EPSILON);
        assert_eq!(to_f32(fma_odd(1.0, 1.0, 1e-30), Rounding::Zero), 1.0);
        assert_eq!(to_f32(fma_odd(1.0, 1.0, -1e-30), Rounding::Down), 1.0 - f32::EPSILON / 2.0);
        assert_eq!(to_f32(1e300, Rounding::Zero), f32::MAX);
    }
}
