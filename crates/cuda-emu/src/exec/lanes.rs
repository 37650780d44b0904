//! A warp's registers, and the loops over lanes that all arithmetic is made of.
//!
//! Operations compute all 32 lanes and store those of a mask: loops of fixed length without
//! branches, which the compiler turns into vector instructions.

use crate::decode::{Files, Inst, Slot};

/// Lanes of a warp.
pub(super) const LANES: usize = 32;

/// A register of a warp: a value per lane.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Lanes<T>(pub(super) [T; LANES]);

/// The registers of a warp.
#[derive(Debug)]
pub(super) struct Registers {
    pub(super) narrow: Vec<Lanes<u32>>,
    pub(super) wide: Vec<Lanes<u64>>,
    /// A bit per lane.
    pub(super) preds: Vec<u32>,
    /// The carry flag, a bit per lane.
    pub(super) carry: u32,
}

impl Registers {
    pub(super) fn new(files: Files) -> Self {
        let mut preds = vec![0; files.preds.max(2) as usize];
        preds[0] = u32::MAX;
        Self {
            narrow: vec![Lanes([0; LANES]); files.narrow.max(1) as usize],
            wide: vec![Lanes([0; LANES]); files.wide.max(1) as usize],
            preds,
            carry: 0,
        }
    }

    /// Predicate of a slot, negated or not.
    #[inline(always)]
    pub(super) fn pred(&self, slot: Slot, negated: bool) -> u32 {
        self.preds[slot as usize] ^ if negated { u32::MAX } else { 0 }
    }

    /// Writes a predicate in the lanes of a mask.
    #[inline(always)]
    pub(super) fn put_pred(&mut self, slot: Slot, bits: u32, mask: u32) {
        let pred = &mut self.preds[slot as usize];
        *pred = *pred & !mask | bits & mask;
    }
}

/// A type that registers can hold.
pub(super) trait Lane: Copy + Default {
    /// What the register file holds.
    type Stored: Copy + Default;
    /// A register as it is stored: loops over lanes read it in place, so that it is not copied first.
    fn stored(registers: &Registers, slot: Slot) -> &[Self::Stored; LANES];
    fn stored_mut(registers: &mut Registers, slot: Slot) -> &mut [Self::Stored; LANES];
    fn of(stored: Self::Stored) -> Self;
    fn store(self) -> Self::Stored;
    /// `a` if the bit is 1, `b` if it is 0: without a branch, as a loop over lanes needs it.
    fn pick(bit: u32, a: Self::Stored, b: Self::Stored) -> Self::Stored;

    #[inline(always)]
    fn get(registers: &Registers, slot: Slot) -> [Self; LANES] {
        let stored = Self::stored(registers, slot);
        let mut values = [Self::default(); LANES];
        for lane in 0..LANES {
            values[lane] = Self::of(stored[lane]);
        }
        values
    }

    #[inline(always)]
    fn put(registers: &mut Registers, slot: Slot, values: [Self; LANES], mask: u32) {
        let mut stored = [Self::Stored::default(); LANES];
        for lane in 0..LANES {
            stored[lane] = values[lane].store();
        }
        blend::<Self>(Self::stored_mut(registers, slot), stored, mask);
    }
}

#[inline(always)]
pub(super) fn blend<D: Lane>(target: &mut [D::Stored; LANES], values: [D::Stored; LANES], mask: u32) {
    if mask == u32::MAX {
        *target = values;
    } else {
        // A copy, so that only here the values need a place in memory.
        let copy = std::array::from_fn(|lane| values[lane]);
        blend_some::<D>(target, &copy, mask);
    }
}

/// Apart from the loops, of which there are hundreds: they stay short.
#[inline(never)]
fn blend_some<D: Lane>(target: &mut [D::Stored; LANES], values: &[D::Stored; LANES], mask: u32) {
    // In groups of eight: where lanes diverge, few groups have both kinds.
    let groups = target.as_chunks_mut::<8>().0.iter_mut().zip(values.as_chunks::<8>().0);
    for (group, (target, values)) in groups.enumerate() {
        match mask >> (8 * group) & 0xff {
            0 => {}
            0xff => *target = *values,
            bits => {
                for lane in 0..8 {
                    target[lane] = D::pick(bits >> lane & 1, values[lane], target[lane]);
                }
            }
        }
    }
}

macro_rules! lane {
    ($($ty:ty, $file:ident, $stored:ty, $from:expr, $to:expr;)*) => {$(
        impl Lane for $ty {
            type Stored = $stored;

            #[inline(always)]
            fn stored(registers: &Registers, slot: Slot) -> &[$stored; LANES] {
                &registers.$file[slot as usize].0
            }

            #[inline(always)]
            fn stored_mut(registers: &mut Registers, slot: Slot) -> &mut [$stored; LANES] {
                &mut registers.$file[slot as usize].0
            }

            #[inline(always)]
            fn of(stored: $stored) -> Self {
                $from(stored)
            }

            #[inline(always)]
            fn store(self) -> $stored {
                $to(self)
            }

            #[inline(always)]
            fn pick(bit: u32, a: $stored, b: $stored) -> $stored {
                let all = <$stored>::from(bit).wrapping_neg();
                a & all | b & !all
            }
        }
    )*};
}

lane! {
    u16, narrow, u32, |v: u32| v as u16, u32::from;
    i16, narrow, u32, |v: u32| v as i16, |v: i16| u32::from(v as u16);
    u32, narrow, u32, |v: u32| v, |v: u32| v;
    i32, narrow, u32, |v: u32| v as i32, |v: i32| v as u32;
    f32, narrow, u32, f32::from_bits, f32::to_bits;
    u64, wide, u64, |v: u64| v, |v: u64| v;
    i64, wide, u64, |v: u64| v as i64, |v: i64| v as u64;
    f64, wide, u64, f64::from_bits, f64::to_bits;
}

/// d = f(a)
#[inline(always)]
pub(super) fn map1<A: Lane, D: Lane>(r: &mut Registers, i: &Inst, mask: u32, f: impl Fn(A) -> D) {
    let a = A::stored(r, i.a);
    let mut d = [D::Stored::default(); LANES];
    for lane in 0..LANES {
        d[lane] = f(A::of(a[lane])).store();
    }
    blend::<D>(D::stored_mut(r, i.d), d, mask);
}

/// d = f(a, b)
#[inline(always)]
pub(super) fn map2<A: Lane, B: Lane, D: Lane>(r: &mut Registers, i: &Inst, mask: u32, f: impl Fn(A, B) -> D) {
    let (a, b) = (A::stored(r, i.a), B::stored(r, i.b));
    let mut d = [D::Stored::default(); LANES];
    for lane in 0..LANES {
        d[lane] = f(A::of(a[lane]), B::of(b[lane])).store();
    }
    blend::<D>(D::stored_mut(r, i.d), d, mask);
}

/// d = f(a, b, c)
#[inline(always)]
pub(super) fn map3<A: Lane, B: Lane, C: Lane, D: Lane>(
    r: &mut Registers,
    i: &Inst,
    mask: u32,
    f: impl Fn(A, B, C) -> D,
) {
    let (a, b, c) = (A::stored(r, i.a), B::stored(r, i.b), C::stored(r, i.c));
    let mut d = [D::Stored::default(); LANES];
    for lane in 0..LANES {
        d[lane] = f(A::of(a[lane]), B::of(b[lane]), C::of(c[lane])).store();
    }
    blend::<D>(D::stored_mut(r, i.d), d, mask);
}

/// The lanes of a mask, lowest first.
pub(super) fn lanes_of(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        (mask != 0).then(|| {
            mask &= mask - 1;
            lane as usize
        })
    })
}

/// A bit per lane from truth per lane.
#[inline(always)]
pub(super) fn mask_of(truth: impl Fn(usize) -> bool) -> u32 {
    let mut bits = [0u32; LANES];
    for (lane, bit) in bits.iter_mut().enumerate() {
        *bit = u32::from(truth(lane)) << lane;
    }
    bits.iter().fold(0, |mask, bit| mask | bit)
}
