//! Arithmetic on f16 and bf16, one or two to a register.
//!
//! Sums, products and extremes are computed in f32 and rounded once more: for 11 and 8 bits of
//! mantissa that is the same as rounding once. `fma` is not so: there the f32 result is taken unless
//! it lies where a second rounding could go wrong, and such lanes are computed exactly.

use super::float::ex2;
use super::isa::{Compute, Isa, compile};
use super::lanes::{LANES, Lane, Registers, map1};
use super::number::{fma_odd, to_f32_odd};
use crate::decode::{HalfMode, HalfOp, Inst, Op, Slot};

/// Values of the low or high halves of a register, as f32.
type Singles = [f32; LANES];

/// What a half-precision instruction does.
pub(super) fn half<I: Isa>(op: HalfOp, mode: HalfMode) -> Compute {
    // The frequent ones have functions of their own.
    let plain = mode.packed && !(mode.bf16 || mode.ftz || mode.sat || mode.relu);
    match op {
        HalfOp::Fma if plain => compile!(I, |r, i, _, mask| {
            let [a, b, c] = [&r.narrow[i.a as usize].0, &r.narrow[i.b as usize].0, &r.narrow[i.c as usize].0];
            match I::fuse_pairs(a, b, c) {
                Some(d) => u32::put(r, i.d, d, mask),
                None => I::run(
                    #[inline(always)]
                    || any::<I>(r, i, mask),
                ),
            }
        }),
        HalfOp::Add if plain => compile!(I, |r, i, _, mask| pairs::<I>(r, i, HalfOp::Add, mask)),
        HalfOp::Sub if plain => compile!(I, |r, i, _, mask| pairs::<I>(r, i, HalfOp::Sub, mask)),
        HalfOp::Mul if plain => compile!(I, |r, i, _, mask| pairs::<I>(r, i, HalfOp::Mul, mask)),
        _ => compile!(I, |r, i, _, mask| any::<I>(r, i, mask)),
    }
}

/// Sums and products of pairs of f16, eight at a time: they stay in registers.
#[inline(always)]
fn pairs<I: Isa>(r: &mut Registers, i: &Inst, op: HalfOp, mask: u32) {
    let parts = |slot: Slot| r.narrow[slot as usize].0.as_chunks::<8>().0;
    let mut d = [0; LANES];
    for ((d, a), b) in d.as_chunks_mut().0.iter_mut().zip(parts(i.a)).zip(parts(i.b)) {
        *d = I::narrow_pairs(&unfused(&I::widen_pairs(a), &I::widen_pairs(b), op));
    }
    u32::put(r, i.d, d, mask);
}

/// Any half-precision instruction.
#[inline(always)]
fn any<I: Isa>(r: &mut Registers, i: &Inst, mask: u32) {
    let Op::Half(op, mode) = i.op else { return };
    // Signs are bits: no rounding, and NaN keeps its payload.
    match op {
        HalfOp::Neg => return sign(r, i, mode, mask, |bits, signs| bits ^ signs),
        HalfOp::Abs => return sign(r, i, mode, mask, |bits, signs| bits & !signs),
        _ => {}
    }
    let mut d = one_half::<I>(r, i, op, mode, 0);
    if mode.packed {
        let high = one_half::<I>(r, i, op, mode, 16);
        for lane in 0..LANES {
            d[lane] |= high[lane] << 16;
        }
    }
    u32::put(r, i.d, d, mask);
}

#[inline(always)]
fn sign(r: &mut Registers, i: &Inst, mode: HalfMode, mask: u32, f: impl Fn(u32, u32) -> u32) {
    let signs = if mode.packed { 0x8000_8000 } else { 0x8000 };
    // Only f16 has `.ftz` here: its subnormal numbers become zeros of their sign.
    let flushed = |half: u32| if mode.ftz && half & 0x7c00 == 0 { half & 0x8000 } else { half };
    map1(r, i, mask, |bits: u32| f(flushed(bits & 0xffff) | flushed(bits >> 16) << 16, signs));
}

/// The half at `shift` of a register as f32.
#[inline(always)]
pub(super) fn widened<I: Isa>(r: &Registers, slot: Slot, bf16: bool, shift: u32) -> Singles {
    let bits = u32::get(r, slot);
    if bf16 {
        let mut values = [0.0; LANES];
        for lane in 0..LANES {
            values[lane] = f32::from_bits(bits[lane] >> shift << 16);
        }
        values
    } else {
        let mut halves = [0; LANES];
        for lane in 0..LANES {
            halves[lane] = bits[lane] >> shift;
        }
        I::widen(&halves)
    }
}

/// f32 rounded to nearest even, in the low halves.
#[inline(always)]
pub(super) fn narrowed<I: Isa>(values: Singles, bf16: bool) -> [u32; LANES] {
    if !bf16 {
        return I::narrow(&values);
    }
    let mut d = [0; LANES];
    for lane in 0..LANES {
        d[lane] = bf16_bits(values[lane]);
    }
    d
}

/// f32 to bf16, to nearest even.
#[inline(always)]
fn bf16_bits(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { 0x7fff } else { rounded }
}

/// Makes subnormal numbers of the format zeros of their sign, if the mode says so.
#[inline(always)]
fn flush<const N: usize>(values: &mut [f32; N], mode: HalfMode) {
    let normal = if mode.bf16 { f32::MIN_POSITIVE } else { 1.0 / 16384.0 };
    if mode.ftz {
        for value in values {
            *value = if value.abs() < normal { 0.0f32.copysign(*value) } else { *value };
        }
    }
}

/// An operand's half as f32.
#[inline(always)]
fn source<I: Isa>(r: &Registers, slot: Slot, mode: HalfMode, shift: u32) -> Singles {
    let mut values = widened::<I>(r, slot, mode.bf16, shift);
    flush(&mut values, mode);
    values
}

#[inline(always)]
fn one_half<I: Isa>(r: &Registers, i: &Inst, op: HalfOp, mode: HalfMode, shift: u32) -> [u32; LANES] {
    let a = source::<I>(r, i.a, mode, shift);
    let b = source::<I>(r, i.b, mode, shift);
    let values = if op == HalfOp::Fma {
        fused(&a, &b, &source::<I>(r, i.c, mode, shift), mode.bf16)
    } else {
        unfused(&a, &b, op)
    };
    finish(narrowed::<I>(values, mode.bf16), mode)
}

/// Results in f32, ready to be rounded, of all but `fma`.
#[inline(always)]
fn unfused<const N: usize>(a: &[f32; N], b: &[f32; N], op: HalfOp) -> [f32; N] {
    let mut values = [0.0; N];
    macro_rules! each {
        ($f:expr) => {
            for n in 0..N {
                values[n] = $f(a[n], b[n]);
            }
        };
    }
    let least = |a: f32, b: f32| {
        let low = if a < b || (a == b && a.is_sign_negative()) { a } else { b };
        if a.is_nan() {
            b
        } else if b.is_nan() {
            a
        } else {
            low
        }
    };
    match op {
        HalfOp::Add => each!(|a: f32, b: f32| a + b),
        HalfOp::Sub => each!(|a: f32, b: f32| a - b),
        HalfOp::Mul => each!(|a: f32, b: f32| a * b),
        HalfOp::Min => each!(least),
        HalfOp::Max => each!(|a: f32, b: f32| -least(-a, -b)),
        HalfOp::MinNan => {
            each!(|a: f32, b: f32| if a.is_nan() || b.is_nan() { f32::NAN } else { least(a, b) })
        }
        HalfOp::MaxNan => {
            each!(|a: f32, b: f32| if a.is_nan() || b.is_nan() { f32::NAN } else { -least(-a, -b) })
        }
        HalfOp::Ex2 => each!(|a: f32, _| ex2(a)),
        HalfOp::Tanh => each!(|a: f32, _| f64::from(a).tanh() as f32),
        HalfOp::Fma | HalfOp::Neg | HalfOp::Abs => values = *a,
    }
    values
}

#[inline(always)]
fn fused<const N: usize>(a: &[f32; N], b: &[f32; N], c: &[f32; N], bf16: bool) -> [f32; N] {
    // A result of f32 whose dropped bits are exactly one half may itself have been rounded to that;
    // and below the smallest normal number other bits are dropped.
    let (dropped, tie, normal) = if bf16 {
        (0xffff, 0x8000, f32::MIN_POSITIVE)
    } else {
        (0x1fff, 0x1000, f32::from_bits(0x3880_0000))
    };
    let doubtful =
        |value: f32| (value.to_bits() & dropped == tie) | ((value.abs() < normal) & (value != 0.0));
    let mut values = [0.0; N];
    let mut any = 0;
    for n in 0..N {
        values[n] = a[n].mul_add(b[n], c[n]);
        any |= u32::from(doubtful(values[n]));
    }
    if any != 0 {
        for n in 0..N {
            if doubtful(values[n]) {
                values[n] = to_f32_odd(fma_odd(a[n], b[n], c[n]));
            }
        }
    }
    values
}

/// `.ftz`, `.sat` and `.relu`, on bits.
#[inline(always)]
fn finish(mut d: [u32; LANES], mode: HalfMode) -> [u32; LANES] {
    if !(mode.ftz || mode.sat || mode.relu) {
        return d;
    }
    let (infinity, one, normal) = if mode.bf16 { (0x7f80, 0x3f80, 0x80) } else { (0x7c00, 0x3c00, 0x400) };
    for bits in &mut d {
        let (magnitude, negative) = (*bits & 0x7fff, *bits & 0x8000 != 0);
        let nan = magnitude > infinity;
        if mode.ftz && magnitude < normal {
            *bits &= 0x8000;
        }
        if mode.sat {
            *bits = if nan || negative { 0 } else { (*bits).min(one) };
        }
        if mode.relu {
            *bits = if nan {
                0x7fff
            } else if negative {
                0
            } else {
                *bits
            };
        }
    }
    d
}
