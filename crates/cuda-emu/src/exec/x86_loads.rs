//! Vectors from global memory.

use std::arch::asm;
use std::arch::x86_64::*;

/// Says that an address will be read soon; any address will do.
#[inline(always)]
pub(super) fn prefetch(address: u64) {
    // SAFETY: a hint, which neither reads nor faults, that every processor of this kind has.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address as *const i8) };
}

/// 32 bytes of global memory. In assembly, because other blocks may write there at the same time:
/// what is then read is unknown, but it is not undefined behaviour.
///
/// # Safety
/// The bytes lie in a live allocation.
#[inline]
#[target_feature(enable = "avx")]
pub(super) unsafe fn load(address: u64) -> __m256i {
    let bits;
    // SAFETY: only reads, and the caller's bytes.
    unsafe {
        asm!("vmovdqu {bits}, [{address}]", bits = out(ymm_reg) bits, address = in(reg) address,
            options(nostack, readonly, preserves_flags));
    }
    bits
}

/// As [`load`], 16 bytes.
///
/// # Safety
/// The bytes lie in a live allocation.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn load_half(address: u64) -> __m128i {
    let bits;
    // SAFETY: only reads, and the caller's bytes.
    unsafe {
        asm!("vmovdqu {bits}, [{address}]", bits = out(xmm_reg) bits, address = in(reg) address,
            options(nostack, readonly, preserves_flags));
    }
    bits
}

/// A word at each of eight addresses and so many bytes behind.
///
/// # Safety
/// As for [`load_half`], of these bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn load_words(addresses: &[u64; 8], behind: u64) -> __m256i {
    let mut halves = [_mm_setzero_si128(); 2];
    for (half, addresses) in halves.iter_mut().zip(addresses.as_chunks::<4>().0) {
        let [a, b, c, d] = addresses.map(|address| address + behind);
        // SAFETY: only reads, and the caller's bytes.
        unsafe {
            asm!("vmovd {bits}, dword ptr [{a}]", "vpinsrd {bits}, {bits}, dword ptr [{b}], 1",
                "vpinsrd {bits}, {bits}, dword ptr [{c}], 2", "vpinsrd {bits}, {bits}, dword ptr [{d}], 3",
                bits = out(xmm_reg) *half, a = in(reg) a, b = in(reg) b, c = in(reg) c, d = in(reg) d,
                options(nostack, readonly, preserves_flags));
        }
    }
    _mm256_set_m128i(halves[1], halves[0])
}

/// Four words at each of eight addresses, as four vectors of eight.
///
/// # Safety
/// As for [`load_half`], at each address.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn load_fours(addresses: &[u64; 8]) -> [__m256i; 4] {
    let mut rows = [_mm256_setzero_si256(); 4];
    for (n, row) in rows.iter_mut().enumerate() {
        // SAFETY: the caller's addresses.
        let (low, high) = unsafe { (load_half(addresses[n]), load_half(addresses[n + 4])) };
        *row = _mm256_set_m128i(high, low);
    }
    let [a, b, c, d] = rows;
    let (first, second) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (third, fourth) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(first, third),
        _mm256_unpackhi_epi64(first, third),
        _mm256_unpacklo_epi64(second, fourth),
        _mm256_unpackhi_epi64(second, fourth),
    ]
}
