//! Moves of parts, comparisons, selections, logic on predicates.

use super::half::widened;
use super::isa::{Compute, Isa, compile, mask_by};
use super::lanes::{LANES, Lane, Registers, blend, map1, mask_of};
use crate::decode::{Cmp, Combine, Inst, Op, PredOp, Slot};
use crate::ptx::Type;

#[inline(always)]
pub(super) fn pack(r: &mut Registers, i: &Inst, lists: &[Slot], bits: u8, mask: u32) {
    if i.c != 0 {
        let mut d = [0u64; LANES];
        for (n, slot) in lists.iter().enumerate() {
            let part = u32::get(r, *slot);
            for lane in 0..LANES {
                let value = if bits == 32 { part[lane] } else { part[lane] & 0xffff };
                d[lane] |= u64::from(value) << (n as u32 * u32::from(bits));
            }
        }
        return u64::put(r, i.d, d, mask);
    }
    let width = (1u32 << bits) - 1;
    let mut d = [0u32; LANES];
    for (n, slot) in lists.iter().enumerate() {
        let part = u32::get(r, *slot);
        for lane in 0..LANES {
            d[lane] |= (part[lane] & width) << (n as u32 * u32::from(bits));
        }
    }
    u32::put(r, i.d, d, mask);
}

#[inline(always)]
pub(super) fn unpack(r: &mut Registers, i: &Inst, lists: &[Slot], bits: u8, mask: u32) {
    let width = (1u64 << bits) - 1;
    if i.c == 0 {
        // A part's register may be the whole's.
        let a = u32::get(r, i.a);
        for (n, slot) in lists.iter().enumerate() {
            let mut part = [0; LANES];
            for lane in 0..LANES {
                part[lane] = a[lane] >> (n as u32 * u32::from(bits)) & width as u32;
            }
            u32::put(r, *slot, part, mask);
        }
        return;
    }
    for (n, slot) in lists.iter().enumerate() {
        let by = n as u32 * u32::from(bits);
        map1(r, &Inst { d: *slot, ..*i }, mask, |a: u64| (a >> by & width) as u32);
    }
}

/// Lanes where the comparison holds.
#[inline(always)]
fn compared<I: Isa, T: Lane + PartialOrd>(r: &Registers, i: &Inst, cmp: Cmp) -> u32 {
    let (a, b) = (T::stored(r, i.a), T::stored(r, i.b));
    compare_lanes::<I, T>(
        #[inline(always)]
        |lane| (T::of(a[lane]), T::of(b[lane])),
        cmp,
    )
}

#[inline(always)]
fn compare_values<I: Isa, T: Copy + PartialOrd>(a: [T; LANES], b: [T; LANES], cmp: Cmp) -> u32 {
    compare_lanes::<I, T>(
        #[inline(always)]
        |lane| (a[lane], b[lane]),
        cmp,
    )
}

#[inline(always)]
fn compare_lanes<I: Isa, T: Copy + PartialOrd>(values: impl Fn(usize) -> (T, T), cmp: Cmp) -> u32 {
    macro_rules! holds {
        ($f:expr) => {{
            let f = $f;
            mask_by::<I>(
                #[inline(always)]
                |lane| {
                    let (a, b) = values(lane);
                    f(a, b)
                },
            )
        }};
    }
    // Unordered comparisons are the opposites of ordered ones; `>` is `<` the other way round.
    match cmp {
        Cmp::Eq => holds!(|a: T, b: T| a == b),
        // False for NaN, unlike `!=`: an ordered comparison.
        Cmp::Ne => holds!(|a: T, b: T| (a < b) | (a > b)),
        Cmp::Lt => holds!(|a: T, b: T| a < b),
        Cmp::Le => holds!(|a: T, b: T| a <= b),
        Cmp::Gt => holds!(|a: T, b: T| a > b),
        Cmp::Ge => holds!(|a: T, b: T| a >= b),
        _ => holds!(|a: T, b: T| a <= b || a > b),
    }
}

/// The smallest normal number of f16.
const HALF_NORMAL_MIN: f32 = 1.0 / 16384.0;

/// Lanes where the comparison of a type holds; for packed halves, of the low and the high ones.
#[inline(always)]
fn compare<I: Isa>(r: &Registers, i: &Inst, cmp: Cmp, ty: Type) -> (u32, u32) {
    let (cmp, opposite) = match cmp {
        Cmp::Equ => (Cmp::Ne, u32::MAX),
        Cmp::Neu => (Cmp::Eq, u32::MAX),
        Cmp::Ltu => (Cmp::Ge, u32::MAX),
        Cmp::Leu => (Cmp::Gt, u32::MAX),
        Cmp::Gtu => (Cmp::Le, u32::MAX),
        Cmp::Geu => (Cmp::Lt, u32::MAX),
        Cmp::Nan => (Cmp::Num, u32::MAX),
        ordered => (ordered, 0),
    };
    let ftz = i.imm >> 33 & 1 != 0;
    let halves = |bf16: bool, shift: u32| {
        let [a, b] = [i.a, i.b].map(|slot| {
            let values = widened::<I>(r, slot, bf16, shift);
            if ftz { values.map(|v| if v.abs() < HALF_NORMAL_MIN { 0.0 } else { v }) } else { values }
        });
        compare_values::<I, f32>(a, b, cmp)
    };
    let one = match ty {
        Type::U32 | Type::B32 => compared::<I, u32>(r, i, cmp),
        Type::S32 => compared::<I, i32>(r, i, cmp),
        Type::F32 if ftz => {
            let flush = |v: f32| if v.is_subnormal() { 0.0 } else { v };
            compare_values::<I, f32>(f32::get(r, i.a).map(flush), f32::get(r, i.b).map(flush), cmp)
        }
        Type::F32 => compared::<I, f32>(r, i, cmp),
        Type::U64 | Type::B64 => compared::<I, u64>(r, i, cmp),
        Type::S64 => compared::<I, i64>(r, i, cmp),
        Type::F64 => compared::<I, f64>(r, i, cmp),
        Type::S16 => compared::<I, i16>(r, i, cmp),
        Type::F16 => halves(false, 0),
        Type::Bf16 => halves(true, 0),
        Type::F16x2 => return (halves(false, 0) ^ opposite, halves(false, 16) ^ opposite),
        Type::Bf16x2 => return (halves(true, 0) ^ opposite, halves(true, 16) ^ opposite),
        _ => compared::<I, u16>(r, i, cmp),
    };
    (one ^ opposite, !one ^ opposite)
}

#[inline(always)]
fn combined(bits: u32, with: u32, combine: Combine) -> u32 {
    match combine {
        Combine::None => bits,
        Combine::And => bits & with,
        Combine::Or => bits | with,
        Combine::Xor => bits ^ with,
    }
}

/// What a comparison into a predicate does.
pub(super) fn setp<I: Isa>(cmp: Cmp, ty: Type) -> Compute {
    // Those that kernels are full of have a function each.
    macro_rules! each {
        ($ty:ty: $($cmp:ident)*) => {
            match cmp {
                $(Cmp::$cmp => return compile!(I, |r, i, _, mask| {
                    let holds = compared::<I, $ty>(r, i, Cmp::$cmp);
                    put_both(r, i, (holds, !holds), mask);
                }),)*
                _ => {}
            }
        };
    }
    match ty {
        Type::S32 => each!(i32: Eq Ne Lt Le Gt Ge),
        Type::U32 | Type::B32 => each!(u32: Eq Ne Lt Le Gt Ge),
        _ => {}
    }
    compile!(I, |r, i, _, mask| if let Op::Setp(cmp, ty, _) = i.op {
        put_both(r, i, compare::<I>(r, i, cmp, ty), mask);
    })
}

/// Writes a comparison's predicates: what it gave, and the complement.
#[inline(always)]
fn put_both(r: &mut Registers, i: &Inst, (first, second): (u32, u32), mask: u32) {
    let Op::Setp(_, _, combine) = i.op else { return };
    let with = r.pred(i.c, i.imm >> 32 & 1 != 0);
    r.put_pred(i.d, combined(first, with, combine), mask);
    r.put_pred(i.imm as u32, combined(second, with, combine), mask);
}

#[inline(always)]
pub(super) fn set<I: Isa>(
    r: &mut Registers,
    i: &Inst,
    cmp: Cmp,
    ty: Type,
    combine: Combine,
    float: bool,
    mask: u32,
) {
    let (low, high) = compare::<I>(r, i, cmp, ty);
    let with = r.pred(i.c, i.imm >> 32 & 1 != 0);
    let (low, high) = (combined(low, with, combine), combined(high, with, combine));
    // The result of packed halves is packed halves; that of others has the destination's size.
    let packed = matches!(ty, Type::F16x2 | Type::Bf16x2);
    let one: u32 = match (float, ty) {
        (false, Type::F16x2 | Type::Bf16x2) => 0xffff,
        (false, _) => u32::MAX,
        (true, Type::F16 | Type::F16x2) => 0x3c00,
        (true, Type::Bf16 | Type::Bf16x2) => 0x3f80,
        (true, _) => 0x3f80_0000,
    };
    let mut d = [0u32; LANES];
    for (lane, d) in d.iter_mut().enumerate() {
        let bit = |bits: u32| if bits >> lane & 1 != 0 { one } else { 0 };
        *d = if packed { bit(low) | bit(high) << 16 } else { bit(low) };
    }
    u32::put(r, i.d, d, mask);
}

#[inline(always)]
pub(super) fn select<I: Isa, T: Lane>(r: &mut Registers, i: &Inst, mask: u32) {
    let chosen = r.pred(i.c, i.imm != 0);
    let (a, b) = (T::stored(r, i.a), T::stored(r, i.b));
    let mut d = [T::Stored::default(); LANES];
    for lane in 0..LANES {
        d[lane] = T::pick(chosen >> lane & 1, a[lane], b[lane]);
    }
    blend::<T>(T::stored_mut(r, i.d), d, mask);
}

pub(super) fn slct(r: &mut Registers, i: &Inst, wide: bool, float: bool, mask: u32) {
    let chosen = if float {
        let c = f32::get(r, i.c);
        mask_of(|lane| c[lane] >= 0.0 || i.imm != 0 && c[lane].is_subnormal())
    } else {
        let c = i32::get(r, i.c);
        mask_of(|lane| c[lane] >= 0)
    };
    let pick = |lane: usize| chosen >> lane & 1 != 0;
    if wide {
        let (a, b) = (u64::get(r, i.a), u64::get(r, i.b));
        u64::put(r, i.d, std::array::from_fn(|lane| if pick(lane) { a[lane] } else { b[lane] }), mask);
    } else {
        let (a, b) = (u32::get(r, i.a), u32::get(r, i.b));
        u32::put(r, i.d, std::array::from_fn(|lane| if pick(lane) { a[lane] } else { b[lane] }), mask);
    }
}

#[inline(always)]
pub(super) fn predicate(r: &mut Registers, i: &Inst, op: PredOp, mask: u32) {
    let (a, b) = (r.pred(i.a, i.imm & 1 != 0), r.pred(i.b, i.imm & 2 != 0));
    let bits = match op {
        PredOp::Mov => a,
        PredOp::Not => !a,
        PredOp::And => a & b,
        PredOp::Or => a | b,
        PredOp::Xor => a ^ b,
    };
    r.put_pred(i.d, bits, mask);
}

/// Class of a float: zero, subnormal, normal, infinite, NaN are bits 0 to 4 of `imm`.
pub(super) fn testp(r: &mut Registers, i: &Inst, double: bool, mask: u32) {
    use std::num::FpCategory::*;
    let number = |category| match category {
        Zero => 0,
        Subnormal => 1,
        Normal => 2,
        Infinite => 3,
        Nan => 4,
    };
    let bits = if double {
        let a = f64::get(r, i.a);
        mask_of(|lane| i.imm >> number(a[lane].classify()) & 1 != 0)
    } else {
        let a = f32::get(r, i.a);
        mask_of(|lane| i.imm >> number(a[lane].classify()) & 1 != 0)
    };
    r.put_pred(i.d, bits, mask);
}

/// d = a ± a window's start.
#[inline(always)]
pub(super) fn offset(r: &mut Registers, i: &Inst, by: u64, mask: u32) {
    map1(r, i, mask, |address: u64| address.wrapping_add(by));
}

/// d = a
#[inline(always)]
pub(super) fn mov<T: Lane>(r: &mut Registers, i: &Inst, mask: u32) {
    map1(r, i, mask, |a: T| a);
}
