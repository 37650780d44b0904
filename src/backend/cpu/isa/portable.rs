//! Lanes as plain arrays and loops, for CPUs that no other file supports, and the most readable
//! implementation of [`Lanes`]. The specification of the operations is `backend::reference`.

use half::{bf16, f16};

use super::{LANES, Lanes, Order, kernel_entry};
#[cfg(test)]
use super::{Tile, tiles_emulated};
use crate::quant::e4m3;

/// The target's baseline; with emulated tiles for tests if `TILES`.
#[derive(Clone, Copy)]
pub(crate) struct Portable<const TILES: bool>;

kernel_entry!(run_portable, Portable<false>);
#[cfg(test)]
kernel_entry!(run_tiles, Portable<true>);

type F = [f32; LANES];
type I = [i32; LANES];

#[inline(always)]
fn map(a: F, f: impl Fn(f32) -> f32) -> F {
    let mut out = a;
    for lane in &mut out {
        *lane = f(*lane);
    }
    out
}

#[inline(always)]
fn zip(a: F, b: F, f: impl Fn(f32, f32) -> f32) -> F {
    let mut out = a;
    for (lane, b) in out.iter_mut().zip(b) {
        *lane = f(*lane, b);
    }
    out
}

#[inline(always)]
fn zip_i32(a: I, b: I, f: impl Fn(i32, i32) -> i32) -> I {
    let mut out = a;
    for (lane, b) in out.iter_mut().zip(b) {
        *lane = f(*lane, b);
    }
    out
}

impl<const TILES: bool> Lanes for Portable<TILES> {
    type F = F;
    type I = I;
    type C = [[u8; 4]; LANES];
    type A = *const i8;

    const TOKENS: usize = 1;
    const WIDE: bool = TILES;
    const TILES: bool = TILES;
    const ORDER: Order = Order::Unsigned;

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        // SAFETY: sixteen elements are readable by contract.
        unsafe { p.cast::<F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        // SAFETY: sixteen elements are writable by contract.
        unsafe { p.cast::<F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        zip(a, b, |a, b| a / b)
    }
    // Two roundings: without the instruction, one rounding would cost a library call per lane.
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        let mut out = c;
        for (lane, (a, b)) in out.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
        out
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        map(a, f32::abs)
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        map(a, f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn exp2_int(n: F) -> F {
        map(n, |n| f32::from_bits(((n as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    unsafe fn zero_below(v: F, x: F, limit: F) -> F {
        let mut out = v;
        for (lane, (x, limit)) in out.iter_mut().zip(x.iter().zip(limit)) {
            *lane = if *x < limit { 0.0 } else { *lane };
        }
        out
    }
    #[inline(always)]
    unsafe fn reduce_add(a: F) -> f32 {
        let mut sums = a;
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                sums[lane] += sums[lane + half];
            }
        }
        sums[0]
    }
    #[inline(always)]
    unsafe fn reduce_max(a: F) -> f32 {
        a.iter().fold(f32::NEG_INFINITY, |max, &lane| if lane > max { lane } else { max })
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> F {
        // SAFETY: sixteen elements are readable by contract.
        let values = unsafe { p.cast::<[f16; LANES]>().read_unaligned() };
        let mut out = [0.0; LANES];
        for (lane, value) in out.iter_mut().zip(values) {
            *lane = value.to_f32();
        }
        out
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: F) {
        let mut out = [f16::ZERO; LANES];
        for (half, lane) in out.iter_mut().zip(v) {
            *half = f16::from_f32(lane.clamp(-65504.0, 65504.0));
        }
        // SAFETY: sixteen elements are writable by contract.
        unsafe { p.cast::<[f16; LANES]>().write_unaligned(out) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> F {
        // SAFETY: sixteen elements are readable by contract.
        let values = unsafe { p.cast::<[bf16; LANES]>().read_unaligned() };
        let mut out = [0.0; LANES];
        for (lane, value) in out.iter_mut().zip(values) {
            *lane = f32::from_bits(u32::from(value.to_bits()) << 16);
        }
        out
    }
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> F {
        // SAFETY: sixteen elements are readable by contract.
        unsafe { p.cast::<[u8; LANES]>().read_unaligned() }.map(|code| e4m3(code).to_f32())
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> F {
        // SAFETY: sixteen elements are readable by contract.
        let values = unsafe { p.cast::<[i8; LANES]>().read_unaligned() };
        let mut out = [0.0; LANES];
        for (lane, value) in out.iter_mut().zip(values) {
            *lane = f32::from(value);
        }
        out
    }

    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn add_i32(a: I, b: I) -> I {
        zip_i32(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    unsafe fn sub_i32(a: I, b: I) -> I {
        zip_i32(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    unsafe fn shl<const BITS: u32>(a: I) -> I {
        zip_i32(a, a, |a, _| a << BITS)
    }
    #[inline(always)]
    unsafe fn to_f32(a: I) -> F {
        let mut out = [0.0; LANES];
        for (lane, a) in out.iter_mut().zip(a) {
            *lane = a as f32;
        }
        out
    }
    #[inline(always)]
    unsafe fn to_i32(a: F) -> I {
        let mut out = [0; LANES];
        for (lane, a) in out.iter_mut().zip(a) {
            *lane = a.round_ties_even() as i32;
        }
        out
    }
    #[inline(always)]
    unsafe fn reduce_add_i32(a: I) -> i32 {
        a.iter().fold(0, |sum, &lane| sum.wrapping_add(lane))
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: I) {
        let mut out = [0i8; LANES];
        for (byte, lane) in out.iter_mut().zip(v) {
            *byte = lane.clamp(-128, 127) as i8;
        }
        // SAFETY: sixteen elements are writable by contract.
        unsafe { p.cast::<[i8; LANES]>().write_unaligned(out) }
    }

    #[inline(always)]
    unsafe fn bytes(p: *const u8) -> Self::C {
        // SAFETY: 64 bytes are readable by contract.
        unsafe { p.cast::<Self::C>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn low<const BITS: i32>(mut a: Self::C) -> Self::C {
        for byte in a.as_flattened_mut() {
            *byte &= (1 << BITS) - 1;
        }
        a
    }
    #[inline(always)]
    unsafe fn high<const BITS: i32>(mut a: Self::C) -> Self::C {
        for byte in a.as_flattened_mut() {
            *byte >>= BITS;
        }
        a
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], mut a: Self::C) -> Self::C {
        for byte in a.as_flattened_mut() {
            *byte = table[usize::from(*byte & 15)];
        }
        a
    }
    #[inline(always)]
    unsafe fn splice<const KEEP: i32, const SHIFT: i32>(mut a: Self::C, b: Self::C) -> Self::C {
        for (a, b) in a.as_flattened_mut().iter_mut().zip(b.as_flattened()) {
            let below = 255 >> KEEP;
            *a = *a & !below | b >> SHIFT & below;
        }
        a
    }
    #[inline(always)]
    unsafe fn activations(p: *const i8) -> *const i8 {
        p
    }
    #[inline(always)]
    unsafe fn dot_bytes<const Q: usize>(acc: I, codes: Self::C, a: *const i8) -> I {
        // SAFETY: sixteen bytes are readable by contract.
        dot(acc, &codes, unsafe { a.add(4 * Q).cast::<[i8; 4]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn dot_small<const Q: usize>(acc: I, codes: Self::C, a: *const i8) -> I {
        // SAFETY: the contract of `dot_bytes` is the same.
        unsafe { Self::dot_bytes::<Q>(acc, codes, a) }
    }
    #[inline(always)]
    unsafe fn widen<const K: usize>(codes: Self::C) -> I {
        let mut out = [0; LANES];
        for (lane, row) in out.iter_mut().zip(codes) {
            *lane = i32::from(row[K]);
        }
        out
    }

    #[cfg(test)]
    unsafe fn begin_tiles(quads: usize) {
        tiles_emulated::begin(quads);
    }
    #[cfg(test)]
    unsafe fn end_tiles() {
        tiles_emulated::end();
    }
    #[cfg(test)]
    unsafe fn tile_dots<const SIGNED: bool>(a: *const i8, codes: *const u8) {
        // SAFETY: the caller's pointers are valid for their rows, as `tiles_emulated` requires.
        unsafe { tiles_emulated::dots::<SIGNED>(a, codes) }
    }
    #[cfg(test)]
    unsafe fn store_dots(dots: *mut Tile) {
        // SAFETY: the caller's two tiles are writable.
        unsafe { tiles_emulated::store(dots) }
    }
    #[cfg(test)]
    unsafe fn store_codes(p: *mut u8, mut codes: Self::C, zero: u8) {
        for byte in codes.as_flattened_mut() {
            *byte = byte.wrapping_sub(zero);
        }
        // SAFETY: 64 bytes are writable by contract.
        unsafe { p.cast::<Self::C>().write_unaligned(codes) }
    }
    #[cfg(test)]
    unsafe fn load_i32(p: *const i32) -> I {
        // SAFETY: sixteen elements are readable by contract.
        unsafe { p.cast::<I>().read_unaligned() }
    }
    #[cfg(test)]
    unsafe fn store_i32(p: *mut i32, v: I) {
        // SAFETY: sixteen elements are writable by contract.
        unsafe { p.cast::<I>().write_unaligned(v) }
    }
}

/// `acc[r] += sum over k of codes[r][k] * a[k]`. Not inlined, because each of the many kernels calls it 8
/// times.
#[inline(never)]
fn dot(mut acc: I, codes: &[[u8; 4]; LANES], a: [i8; 4]) -> I {
    for (lane, row) in acc.iter_mut().zip(codes) {
        for k in 0..4 {
            *lane += i32::from(row[k]) * i32::from(a[k]);
        }
    }
    acc
}
