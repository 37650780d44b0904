//! Integer arithmetic and bit operations.
//!
//! What PTX leaves open: division by zero gives all ones, and the remainder the dividend, as cards
//! do.

use super::isa::{Compute, Isa, compile, each_lane};
use super::lanes::{LANES, Lane, Registers, map1, map2, map3};
use crate::decode::{BitOp, Inst, IntOp, IntType, Op, PrmtMode, Slot};

/// What integer instructions need of a type.
trait Int: Lane + PartialOrd {
    type Wide: Lane;
    const BITS: u32;
    const SIGNED: bool;
    fn wrapping(op: IntOp, a: Self, b: Self) -> Self;
    fn mul_hi(a: Self, b: Self) -> Self;
    fn mul_wide(a: Self, b: Self) -> Self::Wide;
    fn wide_add(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn shl(self, by: u32) -> Self;
    fn shr(self, by: u32) -> Self;
    fn bits(self) -> u64;
    fn of_bits(bits: u64) -> Self;
    fn abs_diff_of(a: Self, b: Self) -> Self;
}

macro_rules! int {
    ($($ty:ty, $unsigned:ty, $wide:ty, $wider:ty, $signed:expr;)*) => {$(
        impl Int for $ty {
            type Wide = $wide;
            const BITS: u32 = <$ty>::BITS;
            const SIGNED: bool = $signed;

            #[inline(always)]
            #[allow(unused_comparisons)]
            fn wrapping(op: IntOp, a: Self, b: Self) -> Self {
                match op {
                    IntOp::Add => a.wrapping_add(b),
                    IntOp::Sub => a.wrapping_sub(b),
                    IntOp::AddSat => a.saturating_add(b),
                    IntOp::SubSat => a.saturating_sub(b),
                    IntOp::MulLo => a.wrapping_mul(b),
                    IntOp::Div => if b == 0 { !0 } else { a.wrapping_div(b) },
                    IntOp::Rem => if b == 0 { a } else { a.wrapping_rem(b) },
                    IntOp::Min => a.min(b),
                    IntOp::Max => a.max(b),
                    IntOp::And => a & b,
                    IntOp::Or => a | b,
                    IntOp::Xor => a ^ b,
                    IntOp::Not => !a,
                    IntOp::Neg => (0 as $ty).wrapping_sub(a),
                    IntOp::Abs => if a < 0 { (0 as $ty).wrapping_sub(a) } else { a },
                    IntOp::Brev => a.reverse_bits(),
                    _ => a,
                }
            }
            #[inline(always)]
            fn mul_hi(a: Self, b: Self) -> Self { ((a as $wider * b as $wider) >> <$ty>::BITS) as $ty }
            #[inline(always)]
            fn mul_wide(a: Self, b: Self) -> $wide { (a as $wide).wrapping_mul(b as $wide) }
            #[inline(always)]
            fn wide_add(a: $wide, b: $wide) -> $wide { a.wrapping_add(b) }
            #[inline(always)]
            fn shl(self, by: u32) -> Self { if by >= <$ty>::BITS { 0 } else { self << by } }
            #[inline(always)]
            fn shr(self, by: u32) -> Self {
                if by >= <$ty>::BITS { if $signed { self >> (<$ty>::BITS - 1) } else { 0 } } else { self >> by }
            }
            #[inline(always)]
            fn bits(self) -> u64 { self as $unsigned as u64 }
            #[inline(always)]
            fn of_bits(bits: u64) -> Self { bits as $ty }
            #[inline(always)]
            fn abs_diff_of(a: Self, b: Self) -> Self { a.abs_diff(b) as $ty }
        }
    )*};
}

int! {
    u16, u16, u32, u32, false;
    i16, u16, i32, i32, true;
    u32, u32, u64, u64, false;
    i32, u32, i64, i64, true;
    u64, u64, u64, u128, false;
    i64, u64, i64, i128, true;
}

/// What an integer instruction does.
pub(super) fn int<I: Isa>(op: IntOp, ty: IntType) -> Compute {
    match ty {
        IntType::U16 => typed::<I, u16>(op),
        IntType::S16 => typed::<I, i16>(op),
        IntType::U32 => typed::<I, u32>(op),
        IntType::S32 => typed::<I, i32>(op),
        IntType::U64 => typed::<I, u64>(op),
        IntType::S64 => typed::<I, i64>(op),
    }
}

fn typed<I: Isa, T: Int>(op: IntOp) -> Compute {
    use IntOp::*;
    // Each arm has a loop of its own: the operation is a constant inside of it.
    macro_rules! arms {
        (two: $($two:ident)*; one: $($one:ident)*; $($rest:tt)*) => {
            match op {
                $($two => each_lane!(I, map2, |a: T, b: T| T::wrapping($two, a, b)),)*
                $($one => each_lane!(I, map1, |a: T| T::wrapping($one, a, a)),)*
                $($rest)*
            }
        };
    }
    arms! {
        two: Add Sub AddSat SubSat MulLo Div Rem Min Max And Or Xor;
        one: Not Neg Abs Brev;
        MulHi => each_lane!(I, map2, T::mul_hi),
        MulWide => each_lane!(I, map2, T::mul_wide),
        MadLo => each_lane!(I, map3, |a: T, b, c| T::wrapping(Add, T::wrapping(MulLo, a, b), c)),
        MadHi => each_lane!(I, map3, |a: T, b, c| T::wrapping(Add, T::mul_hi(a, b), c)),
        MadWide => each_lane!(I, map3, |a: T, b: T, c: T::Wide| T::wide_add(T::mul_wide(a, b), c)),
        Sad => each_lane!(I, map3, |a: T, b, c| T::wrapping(Add, T::abs_diff_of(a, b), c)),
        Shl => each_lane!(I, map2, |a: T, by: u32| a.shl(by)),
        Shr => each_lane!(I, map2, |a: T, by: u32| a.shr(by)),
        Popc => each_lane!(I, map1, |a: T| a.bits().count_ones()),
        Clz => each_lane!(I, map1, |a: T| a.bits().leading_zeros() - (64 - T::BITS)),
        Bfind => each_lane!(I, map1, bfind::<T>),
        BfindShift => each_lane!(I, map1, |a: T| match bfind(a) {
            u32::MAX => u32::MAX,
            found => T::BITS - 1 - found,
        }),
        Bfe => each_lane!(I, map3, bfe::<T>),
        Bfi => compile!(I, |r, i, lists, mask| bfi::<T>(r, i, lists, mask)),
        AddCarry | SubCarry | MadLoCarry | MadHiCarry => {
            compile!(I, |r, i, _, mask| if let Op::Int(op, _) = i.op {
                carry::<T>(r, i, op, mask);
            })
        }
    }
}

/// Position of the highest bit that is not the sign's.
#[inline(always)]
fn bfind<T: Int>(a: T) -> u32 {
    let negative = T::SIGNED && a < T::default();
    let bits = if negative { T::wrapping(IntOp::Not, a, a).bits() } else { a.bits() };
    63u32.wrapping_sub(bits.leading_zeros())
}

#[inline(always)]
fn bfe<T: Int>(a: T, position: u32, length: u32) -> T {
    let (position, length) = (position & 0xff, length & 0xff);
    let top = (position + length).saturating_sub(1).min(T::BITS - 1);
    let sign = T::SIGNED && length > 0 && a.bits() >> top & 1 != 0;
    // Bits beyond the value's end are the sign's, like those beyond the field's.
    let count = length.min(T::BITS.saturating_sub(position));
    let field = if count == 0 { 0 } else { a.bits() >> position & (u64::MAX >> (64 - count)) };
    let fill = if !sign || count >= 64 { 0 } else { u64::MAX << count };
    T::of_bits(field | fill)
}

#[inline(always)]
fn bfi<T: Int>(r: &mut Registers, i: &Inst, lists: &[Slot], mask: u32) {
    let (a, b) = (T::get(r, i.a), T::get(r, i.b));
    let lists = i.slots(lists);
    let (positions, lengths) = (u32::get(r, lists[0]), u32::get(r, lists[1]));
    let mut d = [T::default(); LANES];
    for lane in 0..LANES {
        let (position, length) = (positions[lane] & 0xff, lengths[lane] & 0xff);
        let field =
            if length == 0 || position >= 64 { 0 } else { (u64::MAX >> (64 - length.min(64))) << position };
        let inserted = if position >= 64 { 0 } else { a[lane].bits() << position };
        d[lane] = T::of_bits(b[lane].bits() & !field | inserted & field);
    }
    T::put(r, i.d, d, mask);
}

/// Sums with the carry flag.
#[inline(always)]
fn carry<T: Int>(r: &mut Registers, i: &Inst, op: IntOp, mask: u32) {
    let (a, b, c) = (T::get(r, i.a), T::get(r, i.b), T::get(r, i.c));
    let (reads, writes, before) = (i.imm & 1 != 0, i.imm & 2 != 0, r.carry);
    let mut d = [T::default(); LANES];
    let mut after = 0;
    for lane in 0..LANES {
        let carry = u128::from(reads && before >> lane & 1 != 0);
        let all = u128::from(u64::MAX >> (64 - T::BITS));
        let (x, y) = match op {
            IntOp::MadLoCarry => (T::wrapping(IntOp::MulLo, a[lane], b[lane]), c[lane]),
            IntOp::MadHiCarry => (T::mul_hi(a[lane], b[lane]), c[lane]),
            _ => (a[lane], b[lane]),
        };
        let (x, y) = (u128::from(x.bits()), u128::from(y.bits()));
        let sum = if op == IntOp::SubCarry { x.wrapping_sub(y).wrapping_sub(carry) } else { x + y + carry };
        after |= u32::from(sum & !all != 0) << lane;
        d[lane] = T::of_bits(sum as u64);
    }
    if writes {
        r.carry = before & !mask | after & mask;
    }
    T::put(r, i.d, d, mask);
}

/// What an instruction on 32 bits does.
pub(super) fn bits<I: Isa>(op: BitOp) -> Compute {
    match op {
        BitOp::Prmt(PrmtMode::Index) => compile!(I, |r, i, _, mask| prmt::<I>(r, i, mask)),
        BitOp::Dp4a(true, true) => each_lane!(I, map3, |a, b, c| dot::<4>(a, b, c, true, true)),
        _ => compile!(I, |r, i, _, mask| if let Op::Bits(op) = i.op {
            rarer_bits(r, i, op, mask);
        }),
    }
}

#[inline(always)]
fn rarer_bits(r: &mut Registers, i: &Inst, op: BitOp, mask: u32) {
    match op {
        BitOp::Lop3(table) => lop3(r, i, table, mask),
        BitOp::Prmt(mode) => map3(r, i, mask, |a, b, c| prmt_index(a, b, selector(mode, c))),
        BitOp::ShfLeft { wrap } => map3(r, i, mask, |a: u32, b: u32, c: u32| {
            let by = if wrap { c & 31 } else { c.min(32) };
            ((u64::from(b) << 32 | u64::from(a)) << by >> 32) as u32
        }),
        BitOp::ShfRight { wrap } => map3(r, i, mask, |a: u32, b: u32, c: u32| {
            let by = if wrap { c & 31 } else { c.min(32) };
            ((u64::from(b) << 32 | u64::from(a)) >> by) as u32
        }),
        BitOp::Dp4a(a_signed, b_signed) => map3(r, i, mask, |a, b, c| dot::<4>(a, b, c, a_signed, b_signed)),
        BitOp::Dp2a { a_signed, b_signed, high } => map3(r, i, mask, |a: u32, b: u32, c: u32| {
            let b = if high { b >> 16 } else { b & 0xffff };
            let half =
                |n: u32| if a_signed { (a >> (16 * n)) as i16 as i32 } else { (a >> (16 * n)) as u16 as i32 };
            let byte =
                |n: u32| if b_signed { (b >> (8 * n)) as i8 as i32 } else { (b >> (8 * n)) as u8 as i32 };
            c.wrapping_add((half(0).wrapping_mul(byte(0))).wrapping_add(half(1).wrapping_mul(byte(1))) as u32)
        }),
        BitOp::Bmsk { wrap } => map2(r, i, mask, |a: u32, b: u32| {
            let (start, length) = if wrap { (a & 31, b & 31) } else { (a.min(32), b.min(32)) };
            ((((1u64 << length) - 1) << start) & 0xffff_ffff) as u32
        }),
    }
}

#[inline(always)]
fn dot<const N: u32>(a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool) -> u32 {
    let byte = |v: u32, n: u32, signed| {
        if signed { (v >> (8 * n)) as i8 as i32 } else { (v >> (8 * n)) as u8 as i32 }
    };
    (0..N).fold(c, |sum, n| sum.wrapping_add((byte(a, n, a_signed) * byte(b, n, b_signed)) as u32))
}

#[inline(always)]
fn lop3(r: &mut Registers, i: &Inst, table: u8, mask: u32) {
    // The table's eight rows as masks: all ones where the row is true.
    let row = |n: u32| if table >> n & 1 != 0 { u32::MAX } else { 0 };
    let rows = [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)];
    map3(r, i, mask, |a: u32, b: u32, c: u32| {
        let pick = |low: u32, high: u32, by: u32| low & !by | high & by;
        let (b0, b1) = (pick(rows[0], rows[1], c), pick(rows[2], rows[3], c));
        let (b2, b3) = (pick(rows[4], rows[5], c), pick(rows[6], rows[7], c));
        pick(pick(b0, b1, b), pick(b2, b3, b), a)
    });
}

/// `prmt` with a selector that is mostly the same in all lanes.
#[inline(always)]
fn prmt<I: Isa>(r: &mut Registers, i: &Inst, mask: u32) {
    let selectors = u32::stored(r, i.c);
    let first = selectors[0];
    if first & 0x8888 != 0 || !I::all_equal(selectors) {
        return map3(r, i, mask, prmt_index);
    }
    let picks = [first, first >> 4, first >> 8, first >> 12].map(|pick| pick as u8 & 7);
    let d = I::pick_bytes(u32::stored(r, i.a), u32::stored(r, i.b), picks);
    u32::put(r, i.d, d, mask);
}

#[inline(always)]
fn prmt_index(a: u32, b: u32, c: u32) -> u32 {
    let both = u64::from(b) << 32 | u64::from(a);
    let mut d = 0;
    for n in 0..4 {
        let choice = c >> (4 * n) & 15;
        let byte = (both >> ((choice & 7) * 8)) as u8;
        // Bit 3 of a choice spreads the byte's sign.
        let byte = if choice & 8 != 0 { (byte as i8 >> 7) as u8 } else { byte };
        d |= u32::from(byte) << (8 * n);
    }
    d
}

/// The index form's selector of another mode.
#[inline(always)]
fn selector(mode: PrmtMode, c: u32) -> u32 {
    let n = c & 3;
    let each = |f: &dyn Fn(u32) -> u32| (0..4).fold(0, |s, byte| s | f(byte) << (4 * byte));
    match mode {
        PrmtMode::Index => c,
        PrmtMode::Forward4 => each(&|byte| n + byte),
        PrmtMode::Backward4 => each(&|byte| n.wrapping_sub(byte) & 7),
        PrmtMode::Replicate8 => each(&|_| n),
        PrmtMode::EdgeLeft => each(&|byte| byte.max(n)),
        PrmtMode::EdgeRight => each(&|byte| byte.min(n)),
        PrmtMode::Replicate16 => each(&|byte| (n & 1) * 2 + (byte & 1)),
    }
}
