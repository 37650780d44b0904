//! Arithmetic on f32 and f64.
//!
//! `add`, `sub`, `mul`, `fma`, `div`, `sqrt`, `rcp` are rounded as IEEE says, in the `.approx` and
//! `.full` forms too, where a card may be off by a few units in the last place. `ex2`, `lg2`, `sin`,
//! `cos`, `tanh` and `rsqrt` have only `.approx` forms: here they are the host's functions, within
//! a unit or so of the exact value. Compare results with a tolerance.

use super::isa::{Compute, Isa, compile, each_lane};
use super::lanes::{Registers, map1, map2, map3};
use super::number::{add_odd, to_f32};
use crate::decode::{FloatMode, FloatOp, Inst, Op, Rounding};

/// The NaN of arithmetic on cards.
const NAN: f32 = f32::from_bits(0x7fff_ffff);

/// What floating instructions of a mode do.
pub(super) fn float<I: Isa>(op: FloatOp, mode: FloatMode) -> Compute {
    macro_rules! of {
        (|$r:ident, $i:ident, $op:ident, $mode:pat_param, $mask:ident| $work:expr) => {
            compile!(I, |$r, $i, _, $mask| if let Op::Float($op, $mode) = $i.op {
                $work
            })
        };
    }
    if mode.double {
        of!(|r, i, op, _, mask| double(r, i, op, mask))
    } else if mode.rounding == Rounding::Nearest && !mode.ftz && !mode.sat {
        single::<I>(op)
    } else {
        of!(|r, i, op, mode, mask| modified(r, i, op, mode, mask))
    }
}

macro_rules! minmax {
    ($ty:ty, $nan:expr) => {
        // IEEE: −0 is less than +0, and a number wins over NaN (but in the .NaN forms).
        (
            |a: $ty, b: $ty| {
                let low = if a < b || (a == b && a.is_sign_negative()) { a } else { b };
                if a.is_nan() {
                    if b.is_nan() { $nan } else { b }
                } else if b.is_nan() {
                    a
                } else {
                    low
                }
            },
            |a: $ty, b: $ty| {
                let high = if a > b || (a == b && b.is_sign_negative()) { a } else { b };
                if a.is_nan() {
                    if b.is_nan() { $nan } else { b }
                } else if b.is_nan() {
                    a
                } else {
                    high
                }
            },
        )
    };
}

fn single<I: Isa>(op: FloatOp) -> Compute {
    macro_rules! one {
        ($f:expr) => {
            each_lane!(I, map1, $f)
        };
    }
    macro_rules! two {
        ($f:expr) => {
            each_lane!(I, map2, $f)
        };
    }
    match op {
        FloatOp::Add => two!(|a: f32, b: f32| a + b),
        FloatOp::Sub => two!(|a: f32, b: f32| a - b),
        FloatOp::Mul => two!(|a: f32, b: f32| a * b),
        FloatOp::Div => two!(|a: f32, b: f32| a / b),
        FloatOp::Fma => each_lane!(I, map3, f32::mul_add),
        FloatOp::Min => two!(minmax!(f32, NAN).0),
        FloatOp::Max => two!(minmax!(f32, NAN).1),
        FloatOp::MinNan => {
            two!(|a: f32, b: f32| if a.is_nan() || b.is_nan() { NAN } else { minmax!(f32, NAN).0(a, b) })
        }
        FloatOp::MaxNan => {
            two!(|a: f32, b: f32| if a.is_nan() || b.is_nan() { NAN } else { minmax!(f32, NAN).1(a, b) })
        }
        FloatOp::Neg => one!(|a: f32| -a),
        FloatOp::Abs => one!(f32::abs),
        FloatOp::Sqrt => one!(f32::sqrt),
        FloatOp::Rcp => one!(|a: f32| 1.0 / a),
        FloatOp::CopySign => two!(|a: f32, b: f32| b.copysign(a)),
        FloatOp::Ex2 => one!(ex2),
        FloatOp::Rsqrt | FloatOp::Lg2 | FloatOp::Sin | FloatOp::Cos | FloatOp::Tanh => {
            compile!(I, |r, i, _, mask| if let Op::Float(op, _) = i.op {
                map1(r, i, mask, |a: f32| transcendental(op, a));
            })
        }
    }
}

/// 2^x without a call, so that lanes can be computed side by side: x = n + f with |f| ≤ 1/2, a
/// polynomial for 2^f (relative error below 2^-24), then n into the exponent in two halves, so that
/// subnormal results and overflow come out by themselves.
#[inline(always)]
pub(super) fn ex2(x: f32) -> f32 {
    // NaN passes through: the comparisons of clamp leave it, and so does the arithmetic.
    let clamped = x.clamp(-160.0, 160.0);
    let n = (clamped + 12_582_912.0) - 12_582_912.0;
    let f = clamped - n;
    let coefficients = [
        1.535_336_2e-4f32,
        1.339_887_5e-3,
        9.618_437e-3,
        5.550_332_5e-2,
        2.402_264_7e-1,
        std::f32::consts::LN_2,
        1.0,
    ];
    let mut value = coefficients[0];
    for coefficient in &coefficients[1..] {
        value = value.mul_add(f, *coefficient);
    }
    let n = n as i32;
    let half = n >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) as u32) << 23);
    value * power(half) * power(n - half)
}

fn transcendental(op: FloatOp, a: f32) -> f32 {
    let x = f64::from(a);
    (match op {
        FloatOp::Rsqrt => 1.0 / x.sqrt(),
        FloatOp::Lg2 => x.log2(),
        FloatOp::Sin => x.sin(),
        FloatOp::Cos => x.cos(),
        _ => x.tanh(),
    }) as f32
}

#[inline(always)]
fn double(r: &mut Registers, i: &Inst, op: FloatOp, mask: u32) {
    let nan = f64::from_bits(0xfff8_0000_0000_0000);
    let (min, max) = minmax!(f64, nan);
    match op {
        FloatOp::Add => map2(r, i, mask, |a: f64, b: f64| a + b),
        FloatOp::Sub => map2(r, i, mask, |a: f64, b: f64| a - b),
        FloatOp::Mul => map2(r, i, mask, |a: f64, b: f64| a * b),
        FloatOp::Div => map2(r, i, mask, |a: f64, b: f64| a / b),
        FloatOp::Fma => map3(r, i, mask, f64::mul_add),
        FloatOp::Min | FloatOp::MinNan => map2(r, i, mask, min),
        FloatOp::Max | FloatOp::MaxNan => map2(r, i, mask, max),
        FloatOp::Neg => map1(r, i, mask, |a: f64| -a),
        FloatOp::Abs => map1(r, i, mask, f64::abs),
        FloatOp::Sqrt => map1(r, i, mask, f64::sqrt),
        FloatOp::Rcp => map1(r, i, mask, |a: f64| 1.0 / a),
        FloatOp::CopySign => map2(r, i, mask, |a: f64, b: f64| b.copysign(a)),
        FloatOp::Rsqrt => map1(r, i, mask, |a: f64| 1.0 / a.sqrt()),
        FloatOp::Ex2 => map1(r, i, mask, f64::exp2),
        FloatOp::Lg2 => map1(r, i, mask, f64::log2),
        FloatOp::Sin => map1(r, i, mask, f64::sin),
        FloatOp::Cos => map1(r, i, mask, f64::cos),
        FloatOp::Tanh => map1(r, i, mask, f64::tanh),
    }
}

/// Forms with `.ftz`, `.sat` or a rounding other than to nearest. For the usual one, flushing
/// with rounding to nearest, operations stay loops over lanes.
#[inline(always)]
fn modified(r: &mut Registers, i: &Inst, op: FloatOp, mode: FloatMode, mask: u32) {
    let (min, max) = minmax!(f32, NAN);
    let flush = |v: f32| if mode.ftz && v.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(v) } else { v };
    let finish = |v: f32| {
        let v = flush(v);
        // NaN saturates to +0.
        if !mode.sat {
            v
        } else if v > 0.0 {
            v.min(1.0)
        } else {
            0.0
        }
    };
    macro_rules! one {
        ($f:expr) => {
            map1(r, i, mask, |a: f32| finish($f(flush(a))))
        };
    }
    macro_rules! two {
        ($f:expr) => {
            map2(r, i, mask, |a: f32, b: f32| finish($f(flush(a), flush(b))))
        };
    }
    let directed = mode.rounding != Rounding::Nearest;
    match op {
        FloatOp::Add if directed => {
            two!(|a: f32, b: f32| directed_add(f64::from(a), f64::from(b), mode.rounding))
        }
        FloatOp::Sub if directed => {
            two!(|a: f32, b: f32| directed_add(f64::from(a), -f64::from(b), mode.rounding))
        }
        FloatOp::Mul if directed => two!(|a: f32, b: f32| to_f32(f64::from(a) * f64::from(b), mode.rounding)),
        FloatOp::Fma if directed => map3(r, i, mask, |a: f32, b: f32, c: f32| {
            // Products of f32 are exact in f64.
            let product = f64::from(flush(a)) * f64::from(flush(b));
            finish(directed_add(product, f64::from(flush(c)), mode.rounding))
        }),
        FloatOp::Add => two!(|a: f32, b: f32| a + b),
        FloatOp::Sub => two!(|a: f32, b: f32| a - b),
        FloatOp::Mul => two!(|a: f32, b: f32| a * b),
        FloatOp::Div => two!(|a: f32, b: f32| a / b),
        FloatOp::Fma => {
            map3(r, i, mask, |a: f32, b: f32, c: f32| finish(flush(a).mul_add(flush(b), flush(c))))
        }
        FloatOp::Min => two!(min),
        FloatOp::Max => two!(max),
        FloatOp::MinNan => two!(|a: f32, b: f32| if a.is_nan() || b.is_nan() { NAN } else { min(a, b) }),
        FloatOp::MaxNan => two!(|a: f32, b: f32| if a.is_nan() || b.is_nan() { NAN } else { max(a, b) }),
        FloatOp::CopySign => two!(|a: f32, b: f32| b.copysign(a)),
        FloatOp::Neg => one!(|a: f32| -a),
        FloatOp::Abs => one!(f32::abs),
        FloatOp::Sqrt => one!(f32::sqrt),
        FloatOp::Rcp => one!(|a: f32| 1.0 / a),
        FloatOp::Ex2 => one!(ex2),
        FloatOp::Rsqrt | FloatOp::Lg2 | FloatOp::Sin | FloatOp::Cos | FloatOp::Tanh => {
            one!(|a| transcendental(op, a));
        }
    }
}

fn directed_add(a: f64, b: f64, rounding: Rounding) -> f32 {
    let sum = add_odd(a, b);
    // An exact zero sum of unlike signs is −0 when rounding down.
    if sum == 0.0 && rounding == Rounding::Down && a.is_sign_negative() != b.is_sign_negative() {
        return -0.0;
    }
    to_f32(sum, rounding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two() {
        for n in -149..=127 {
            assert_eq!(f64::from(ex2(n as f32)), (2f64).powi(n), "{n}");
        }
        assert_eq!((ex2(128.0), ex2(-200.0), ex2(f32::NEG_INFINITY)), (f32::INFINITY, 0.0, 0.0));
        assert!(ex2(f32::NAN).is_nan());
        let worst = (0..100_000).map(|n| {
            let x = n as f32 * 2e-3 - 100.0;
            (f64::from(ex2(x)) / f64::from(x).exp2() - 1.0).abs()
        });
        let worst = worst.fold(0.0, f64::max);
        assert!(worst < 2.5e-7, "{worst}");
    }
}
