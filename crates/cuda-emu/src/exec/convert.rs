//! Conversions: between integers, between floats, and from one to the other.

use super::half::{narrowed, widened};
use super::isa::{Compute, Isa, compile};
use super::lanes::{LANES, Lane, Registers, map1};
use super::number::{BF16, E4M3, E5M2, F16, Format, to_f32};
use crate::decode::{Conversion, Inst, NARROW, Op, Rounding, Slot, WIDE};
use crate::ptx::Type;

/// What a conversion of one value does.
pub(super) fn convert<I: Isa>(i: &Inst, c: Conversion) -> Compute {
    let plain = !c.sat && !c.satfinite && !c.ftz && !c.relu && !c.to_integer && c.rounding != Rounding::Away;
    let as_declared = i.d & WIDE == if c.to.is_wide() { WIDE } else { 0 }
        && i.a & WIDE == if c.from.is_wide() { WIDE } else { 0 };
    if plain && as_declared {
        // The conversions that kernels are full of, as loops of their own.
        macro_rules! each {
            ($from:ty => $to:ty, $f:expr) => {{
                return compile!(I, |r, i, _, mask| map1(r, &untagged(i), mask, |value: $from| -> $to {
                    $f(value)
                }));
            }};
        }
        match (c.to, c.from) {
            (Type::F32, Type::F16) => return compile!(I, |r, i, _, mask| widen::<I>(r, i, false, mask)),
            (Type::F32, Type::Bf16) => return compile!(I, |r, i, _, mask| widen::<I>(r, i, true, mask)),
            (Type::F16, Type::F32) if c.rounding == Rounding::Nearest => {
                return compile!(I, |r, i, _, mask| narrow::<I>(r, i, false, mask));
            }
            (Type::Bf16, Type::F32) if c.rounding == Rounding::Nearest => {
                return compile!(I, |r, i, _, mask| narrow::<I>(r, i, true, mask));
            }
            (Type::S64, Type::S32) => return compile!(I, |r, i, _, mask| extend::<I>(r, i, true, mask)),
            (Type::U64, Type::U32) => return compile!(I, |r, i, _, mask| extend::<I>(r, i, false, mask)),
            (Type::S64 | Type::U64, Type::S16) => each!(i16 => i64, i64::from),
            (Type::S64 | Type::U64, Type::U16) => each!(u16 => u64, u64::from),
            (Type::U32 | Type::S32, Type::U64 | Type::S64) => each!(u64 => u32, |v: u64| v as u32),
            (Type::U32 | Type::S32, Type::U16) if i.a & NARROW != 0 => each!(u16 => u32, u32::from),
            (Type::U32 | Type::S32, Type::S16) => each!(i16 => i32, i32::from),
            (Type::U16 | Type::S16, Type::U32 | Type::S32) if i.d & NARROW != 0 => {
                each!(u32 => u16, |v: u32| v as u16)
            }
            (Type::F32, Type::S32) if c.rounding == Rounding::Nearest => each!(i32 => f32, |v: i32| v as f32),
            (Type::F32, Type::U32) if c.rounding == Rounding::Nearest => each!(u32 => f32, |v: u32| v as f32),
            (Type::F64, Type::F32) => each!(f32 => f64, f64::from),
            (Type::S32, Type::F32) if c.rounding == Rounding::Zero => each!(f32 => i32, |v: f32| v as i32),
            (Type::S32, Type::F32) if c.rounding == Rounding::Nearest => {
                each!(f32 => i32, |v: f32| v.round_ties_even() as i32)
            }
            _ => {}
        }
    }
    compile!(I, |r, i, _, mask| if let Op::Convert(c) = i.op {
        general(r, i, c, mask);
    })
}

/// An instruction whose slots say no more which file they are of.
#[inline(always)]
fn untagged(i: &Inst) -> Inst {
    Inst { d: i.d & !(WIDE | NARROW), a: i.a & !(WIDE | NARROW), ..*i }
}

#[inline(always)]
fn extend<I: Isa>(r: &mut Registers, i: &Inst, signed: bool, mask: u32) {
    let i = untagged(i);
    let a = u32::stored(r, i.a);
    u64::put(r, i.d, if signed { I::extend(a) } else { I::add_narrow(a, 0) }, mask);
}

#[inline(always)]
fn widen<I: Isa>(r: &mut Registers, i: &Inst, bf16: bool, mask: u32) {
    let i = untagged(i);
    f32::put(r, i.d, widened::<I>(r, i.a, bf16, 0), mask);
}

#[inline(always)]
fn narrow<I: Isa>(r: &mut Registers, i: &Inst, bf16: bool, mask: u32) {
    let i = untagged(i);
    u32::put(r, i.d, narrowed::<I>(f32::get(r, i.a), bf16), mask);
}

fn raw(r: &Registers, tagged: Slot) -> [u64; LANES] {
    let slot = tagged & !(WIDE | NARROW);
    if tagged & WIDE != 0 { u64::get(r, slot) } else { u32::get(r, slot).map(u64::from) }
}

/// Any conversion, lane by lane.
#[cold]
fn general(r: &mut Registers, i: &Inst, c: Conversion, mask: u32) {
    let sources = raw(r, i.a);
    let converted = sources.map(|bits| one(bits, c));
    let slot = i.d & !(WIDE | NARROW);
    if i.d & WIDE != 0 {
        u64::put(r, slot, converted, mask);
    } else {
        let width = if i.d & NARROW != 0 { 0xffff } else { u64::from(u32::MAX) };
        u32::put(r, slot, converted.map(|bits| (bits & width) as u32), mask);
    }
}

/// Format of a small float type.
pub(super) fn format_of(ty: Type) -> Option<Format> {
    match ty {
        Type::F16 | Type::F16x2 => Some(F16),
        Type::Bf16 | Type::Bf16x2 => Some(BF16),
        Type::E4m3 | Type::E4m3x2 => Some(E4M3),
        Type::E5m2 | Type::E5m2x2 => Some(E5M2),
        _ => None,
    }
}

/// A value's bits converted; integers come sign-extended to 64 bits.
pub(super) fn one(bits: u64, c: Conversion) -> u64 {
    match (c.from, c.to) {
        (Type::E4m3x2 | Type::E5m2x2, _) => {
            let (from, to) = (format_of(c.from).unwrap_or(E4M3), F16);
            let half = |byte: u64| {
                u64::from(relu(
                    to.encode(from.decode(byte as u32 & 0xff), Rounding::Nearest, false),
                    to,
                    c.relu,
                ))
            };
            half(bits) | half(bits >> 8) << 16
        }
        (Type::F16x2 | Type::Bf16x2, to) => {
            let (from, to) = (format_of(c.from).unwrap_or(F16), format_of(to).unwrap_or(E4M3));
            let byte = |half: u64| u64::from(small(from.decode(half as u32 & 0xffff), to, c));
            byte(bits) | byte(bits >> 16) << 8
        }
        (from, to) if from.is_float() && to.is_float() => float_to_float(float_value(bits, from, c.ftz), c),
        (from, _) if from.is_float() => float_to_int(float_value(bits, from, c.ftz), c),
        (from, to) if to.is_float() => {
            let value = int_value(bits, from);
            int_to_float(if c.sat { value.clamp(0, 1) } else { value }, c)
        }
        (from, _) => int_to_int(int_value(bits, from), c),
    }
}

fn relu(bits: u32, format: Format, relu: bool) -> u32 {
    let sign = 1 << (format.exponent_bits + format.mantissa_bits);
    if relu && bits & sign != 0 { 0 } else { bits }
}

/// A value as a small format's bits.
pub(super) fn small(value: f64, to: Format, c: Conversion) -> u32 {
    if value.is_nan() {
        return to.nan_bits();
    }
    relu(to.encode(value, c.rounding, c.satfinite), to, c.relu)
}

fn int_value(bits: u64, ty: Type) -> i128 {
    let unused = 64 - ty.bytes() * 8;
    if ty.is_signed() {
        i128::from((bits << unused) as i64 >> unused)
    } else {
        i128::from(bits << unused >> unused)
    }
}

fn float_value(bits: u64, ty: Type, ftz: bool) -> f64 {
    match ty {
        Type::F32 => {
            let value = f32::from_bits(bits as u32);
            f64::from(if ftz && value.is_subnormal() { 0.0f32.copysign(value) } else { value })
        }
        Type::F64 => f64::from_bits(bits),
        Type::Bf16 => BF16.decode(bits as u32 & 0xffff),
        _ => F16.decode(bits as u32 & 0xffff),
    }
}

fn to_integer(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::Away => value.round(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

fn float_to_float(value: f64, c: Conversion) -> u64 {
    let value = if c.to_integer { to_integer(value, c.rounding) } else { value };
    let rounding = if c.to_integer { Rounding::Nearest } else { c.rounding };
    match c.to {
        Type::F64 => saturated(value, c.sat).to_bits(),
        Type::F32 => {
            let single = to_f32(saturated(value, c.sat), rounding);
            let single = if c.ftz && single.is_subnormal() { 0.0f32.copysign(single) } else { single };
            let single = if c.relu && single.is_sign_negative() && !single.is_nan() { 0.0 } else { single };
            u64::from(if single.is_nan() { 0x7fff_ffff } else { single.to_bits() })
        }
        Type::Tf32 => {
            // Ten bits of mantissa in a register of f32.
            let tf32 = Format { exponent_bits: 8, mantissa_bits: 10, infinity: true };
            u64::from(small(value, tf32, c)) << 13
        }
        to => {
            let format = format_of(to).unwrap_or(F16);
            u64::from(small(saturated(value, c.sat), format, Conversion { rounding, ..c }))
        }
    }
}

/// `.sat`: 0 to 1, and NaN becomes 0.
fn saturated(value: f64, sat: bool) -> f64 {
    match sat {
        false => value,
        true if value > 0.0 => value.min(1.0),
        true => 0.0,
    }
}

fn float_to_int(value: f64, c: Conversion) -> u64 {
    let rounded = to_integer(value, c.rounding);
    let (bits, signed) = (c.to.bytes() * 8, c.to.is_signed());
    if rounded.is_nan() {
        // "Zero if source is not .f64 and destination is not .s64, .u64", else the middle.
        return if bits == 64 || c.from == Type::F64 { extended(1 << (bits - 1), c.to) } else { 0 };
    }
    let (low, high) =
        if signed { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
    (rounded as i128).clamp(low, high) as u64
}

fn int_to_float(value: i128, c: Conversion) -> u64 {
    // 64-bit integers do not fit in f64: make them odd where bits are lost, then round once.
    let nearest = value as f64;
    let lost = value - nearest as i128;
    let odd = match (lost == 0, nearest.to_bits() & 1 == 0, (lost > 0) == (value > 0)) {
        (true, ..) | (_, false, _) => nearest,
        (_, _, true) => f64::from_bits(nearest.to_bits() + 1),
        (_, _, false) => f64::from_bits(nearest.to_bits() - 1),
    };
    match c.to {
        Type::F64 => nearest.to_bits(),
        Type::F32 => u64::from(to_f32(odd, c.rounding).to_bits()),
        to => u64::from(format_of(to).unwrap_or(F16).encode(odd, c.rounding, false)),
    }
}

fn int_to_int(value: i128, c: Conversion) -> u64 {
    let (bits, signed) = (c.to.bytes() * 8, c.to.is_signed());
    let (low, high) =
        if signed { (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1) } else { (0, (1i128 << bits) - 1) };
    let value = if c.sat { value.clamp(low, high) } else { value };
    extended(value as u64, c.to)
}

/// A register wider than the type takes the value extended as the type is signed.
fn extended(value: u64, ty: Type) -> u64 {
    let unused = 64 - ty.bytes() * 8;
    if ty.is_signed() { ((value << unused) as i64 >> unused) as u64 } else { value << unused >> unused }
}

/// Runs a conversion of two f32 into one register: a into the high half.
#[inline(always)]
pub(super) fn convert_pair<I: Isa>(r: &mut Registers, i: &Inst, c: Conversion, mask: u32) {
    let (a, b) = (f32::get(r, i.a), f32::get(r, i.b));
    let halves = c.to.bytes() == 4;
    let d = if halves && c.rounding == Rounding::Nearest && !c.satfinite && !c.relu {
        let bf16 = c.to == Type::Bf16x2;
        let (high, low) = (narrowed::<I>(a, bf16), narrowed::<I>(b, bf16));
        std::array::from_fn(|lane| high[lane] << 16 | low[lane])
    } else {
        let format = format_of(c.to).unwrap_or(F16);
        let bits = if halves { 16 } else { 8 };
        std::array::from_fn(|lane| {
            small(f64::from(a[lane]), format, c) << bits | small(f64::from(b[lane]), format, c)
        })
    };
    u32::put(r, i.d, d, mask);
}
