//! Values in memory: how they are read and written, and how they fit into registers.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::lanes::{LANES, Lane, Registers};
use crate::decode::{NARROW, Slot, WIDE};

/// A value in memory.
pub(super) trait Scalar: Copy + Default {
    /// Reads global memory.
    ///
    /// # Safety
    /// The bytes lie in a live allocation, and the address is aligned.
    unsafe fn load(address: u64) -> Self;
    /// Writes global memory.
    ///
    /// # Safety
    /// As for `load`.
    unsafe fn store(self, address: u64);
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    fn widen(self, signed: bool) -> u64;
    fn truncate(value: u64) -> Self;
}

macro_rules! scalar {
    ($($ty:ty, $signed:ty, $atomic:ty;)*) => {$(
        impl Scalar for $ty {
            #[inline(always)]
            unsafe fn load(address: u64) -> Self {
                // Atomic, so that kernels whose blocks race are not undefined behaviour here.
                // SAFETY: passed on to the caller.
                unsafe { <$atomic>::from_ptr(address as *mut $ty) }.load(Ordering::Relaxed)
            }
            #[inline(always)]
            unsafe fn store(self, address: u64) {
                // SAFETY: passed on to the caller.
                unsafe { <$atomic>::from_ptr(address as *mut $ty) }.store(self, Ordering::Relaxed);
            }
            #[inline(always)]
            fn read(bytes: &[u8]) -> Self { bytes.first_chunk().map_or(0, |b| <$ty>::from_le_bytes(*b)) }
            #[inline(always)]
            fn write(self, bytes: &mut [u8]) {
                if let Some(target) = bytes.first_chunk_mut() {
                    *target = self.to_le_bytes();
                }
            }
            #[inline(always)]
            fn widen(self, signed: bool) -> u64 { if signed { self as $signed as i64 as u64 } else { self as u64 } }
            #[inline(always)]
            fn truncate(value: u64) -> Self { value as $ty }
        }
    )*};
}

scalar! {
    u8, i8, AtomicU8;
    u16, i16, AtomicU16;
    u32, i32, AtomicU32;
    u64, i64, AtomicU64;
}

/// Stores loaded values to a register as its size and the type's sign demand.
#[inline(always)]
pub(super) fn deliver<T: Scalar>(
    r: &mut Registers,
    tagged: Slot,
    values: &[T; LANES],
    signed: bool,
    mask: u32,
) {
    let slot = tagged & !(WIDE | NARROW);
    if tagged & WIDE != 0 {
        let mut wide = [0; LANES];
        for lane in 0..LANES {
            wide[lane] = values[lane].widen(signed);
        }
        u64::put(r, slot, wide, mask);
    } else {
        let kept = if tagged & NARROW != 0 { 0xffff } else { u32::MAX };
        let mut narrow = [0; LANES];
        for lane in 0..LANES {
            narrow[lane] = values[lane].widen(signed) as u32 & kept;
        }
        u32::put(r, slot, narrow, mask);
    }
}

/// Values of a register to store.
#[inline(always)]
pub(super) fn fetch<T: Scalar>(r: &Registers, tagged: Slot) -> [T; LANES] {
    let slot = tagged & !(WIDE | NARROW);
    let mut values = [T::default(); LANES];
    if tagged & WIDE != 0 {
        let wide = u64::stored(r, slot);
        for lane in 0..LANES {
            values[lane] = T::truncate(wide[lane]);
        }
    } else {
        let narrow = u32::stored(r, slot);
        for lane in 0..LANES {
            values[lane] = T::truncate(u64::from(narrow[lane]));
        }
    }
    values
}
