//! Lanes on AVX2 with FMA and F16C: two registers per vector. With AVX-VNNI the dot product is `vpdpbusd`,
//! of unsigned codes. Without it the dot product is `vpmaddubsw`, which saturates at 16 bits. So 8-bit
//! codes are multiplied as |code| times the activation with the code's sign: 2 · 128 · 127 fits. Codes of 4
//! to 6 bits fit as they are.

use core::arch::x86_64::*;

use half::{bf16, f16};

use super::{Lanes, Order, kernel_entry};

/// AVX2, FMA and F16C, optionally AVX-VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<const VNNI: bool>;

kernel_entry!(run_avx2, Avx2<false>, "avx2,fma,f16c");
kernel_entry!(run_avxvnni, Avx2<true>, "avx2,fma,f16c,avxvnni");

type F = [__m256; 2];
type I = [__m256i; 2];

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Applies an instruction to both registers of a vector.
macro_rules! both {
    ($f:expr; $a:expr) => {
        unsafe { [$f($a[0]), $f($a[1])] }
    };
    ($f:expr; $a:expr, $b:expr) => {
        unsafe { [$f($a[0], $b[0]), $f($a[1], $b[1])] }
    };
    ($f:expr; $a:expr, $b:expr, $c:expr) => {
        unsafe { [$f($a[0], $b[0], $c[0]), $f($a[1], $b[1], $c[1])] }
    };
}

// SAFETY of every method below: the trait's contract gives the features and the pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const VNNI: bool> Lanes for Avx2<VNNI> {
    type F = F;
    type I = I;
    type C = I;
    type A = *const i8;

    const TOKENS: usize = 4;
    const WIDE: bool = false;
    // Eight rows times four tokens fit the sixteen registers.
    const PARTS: usize = 2;
    const ORDER: Order = if VNNI { Order::Unsigned } else { Order::Signed };

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        both!(_mm256_add_ps; a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        both!(_mm256_sub_ps; a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        both!(_mm256_mul_ps; a, b)
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        both!(_mm256_div_ps; a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        both!(_mm256_fmadd_ps; a, b, c)
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        both!(_mm256_min_ps; a, b)
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        both!(_mm256_max_ps; a, b)
    }
    #[inline(always)]
    unsafe fn abs(a: F) -> F {
        let sign = unsafe { [_mm256_set1_ps(-0.0); 2] };
        both!(_mm256_andnot_ps; sign, a)
    }
    #[inline(always)]
    unsafe fn round(a: F) -> F {
        both!(_mm256_round_ps::<NEAREST>; a)
    }
    #[inline(always)]
    unsafe fn exp2_int(n: F) -> F {
        let bias = unsafe { [_mm256_set1_epi32(127); 2] };
        let n = both!(_mm256_cvtps_epi32; n);
        let biased = both!(_mm256_add_epi32; n, bias);
        let bits = both!(_mm256_slli_epi32::<23>; biased);
        both!(_mm256_castsi256_ps; bits)
    }
    #[inline(always)]
    unsafe fn zero_below(v: F, x: F, limit: F) -> F {
        let keep = both!(_mm256_cmp_ps::<_CMP_NLT_UQ>; x, limit);
        both!(_mm256_and_ps; keep, v)
    }
    #[inline(always)]
    unsafe fn reduce_add(a: F) -> f32 {
        unsafe {
            let half = _mm256_add_ps(a[0], a[1]);
            let quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            let pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }
    #[inline(always)]
    unsafe fn reduce_max(a: F) -> f32 {
        unsafe {
            let half = _mm256_max_ps(a[0], a[1]);
            let quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            let pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> F {
        unsafe {
            let halves = [_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(8).cast())];
            [_mm256_cvtph_ps(halves[0]), _mm256_cvtph_ps(halves[1])]
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: F) {
        unsafe {
            let high = Self::min(Self::splat(65504.0), v);
            let bounded = Self::max(Self::splat(-65504.0), high);
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bounded[0]));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(bounded[1]));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> F {
        let halves = unsafe { [_mm_loadu_si128(p.cast()), _mm_loadu_si128(p.add(8).cast())] };
        let wide = both!(_mm256_cvtepu16_epi32; halves);
        let bits = both!(_mm256_slli_epi32::<16>; wide);
        both!(_mm256_castsi256_ps; bits)
    }
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> F {
        unsafe {
            let halves = e4m3_halves(p);
            let (low, high) = (_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> F {
        let bytes = unsafe { _mm_loadu_si128(p.cast()) };
        let wide = unsafe { [_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))] };
        both!(_mm256_cvtepi32_ps; wide)
    }

    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> I {
        unsafe { [_mm256_set1_epi32(x); 2] }
    }
    #[inline(always)]
    unsafe fn add_i32(a: I, b: I) -> I {
        both!(_mm256_add_epi32; a, b)
    }
    #[inline(always)]
    unsafe fn sub_i32(a: I, b: I) -> I {
        both!(_mm256_sub_epi32; a, b)
    }
    #[inline(always)]
    unsafe fn shl<const BITS: u32>(a: I) -> I {
        let count = unsafe { _mm_cvtsi32_si128(BITS as i32) };
        both!(_mm256_sll_epi32; a, [count; 2])
    }
    #[inline(always)]
    unsafe fn to_f32(a: I) -> F {
        both!(_mm256_cvtepi32_ps; a)
    }
    #[inline(always)]
    unsafe fn to_i32(a: F) -> I {
        both!(_mm256_cvtps_epi32; a)
    }
    #[inline(always)]
    unsafe fn reduce_add_i32(a: I) -> i32 {
        unsafe {
            let half = _mm256_add_epi32(a[0], a[1]);
            let quarter = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half));
            let pair = _mm_add_epi32(quarter, _mm_unpackhi_epi64(quarter, quarter));
            _mm_cvtsi128_si32(_mm_add_epi32(pair, _mm_shuffle_epi32::<1>(pair)))
        }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: I) {
        unsafe {
            // Packing works within 128-bit halves: [0..4, 8..12 | 4..8, 12..16].
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(v[0], v[1]));
            let (low, high) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(p.cast(), _mm_packs_epi16(low, high));
        }
    }

    #[inline(always)]
    unsafe fn merge<const PART: usize>(old: F, new: F) -> F {
        if PART == 0 { [new[0], old[1]] } else { [old[0], new[1]] }
    }
    #[inline(always)]
    unsafe fn bytes(p: *const u8) -> I {
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn low<const BITS: i32>(a: I) -> I {
        let mask = unsafe { [_mm256_set1_epi8((1 << BITS) - 1); 2] };
        both!(_mm256_and_si256; a, mask)
    }
    #[inline(always)]
    unsafe fn high<const BITS: i32>(a: I) -> I {
        let mask = unsafe { [_mm256_set1_epi8((255 >> BITS) as i8); 2] };
        let shifted = both!(_mm256_srli_epi16::<BITS>; a);
        both!(_mm256_and_si256; shifted, mask)
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], a: I) -> I {
        let table = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())) };
        both!(_mm256_shuffle_epi8; [table; 2], a)
    }
    #[inline(always)]
    unsafe fn splice<const KEEP: i32, const SHIFT: i32>(a: I, b: I) -> I {
        let mask = unsafe { [_mm256_set1_epi8((255 >> KEEP) as i8); 2] };
        let shifted = both!(_mm256_srli_epi16::<SHIFT>; b);
        let below = both!(_mm256_and_si256; mask, shifted);
        let kept = both!(_mm256_andnot_si256; mask, a);
        both!(_mm256_or_si256; kept, below)
    }
    #[inline(always)]
    unsafe fn activations(p: *const i8) -> *const i8 {
        p
    }
    #[inline(always)]
    unsafe fn dot_bytes<const Q: usize>(acc: I, codes: I, a: *const i8) -> I {
        if VNNI {
            // SAFETY: with VNNI, codes are unsigned bytes, and `dot_small` takes all of them.
            return unsafe { Self::dot_small::<Q>(acc, codes, a) };
        }
        let (a, ones) = unsafe { (quad(a, Q), _mm256_set1_epi16(1)) };
        let magnitude = both!(_mm256_abs_epi8; codes);
        let signed = both!(_mm256_sign_epi8; [a; 2], codes);
        let pairs = both!(_mm256_maddubs_epi16; magnitude, signed);
        let quads = both!(_mm256_madd_epi16; pairs, [ones; 2]);
        both!(_mm256_add_epi32; acc, quads)
    }
    #[inline(always)]
    unsafe fn dot_small<const Q: usize>(acc: I, codes: I, a: *const i8) -> I {
        let (a, ones) = unsafe { (quad(a, Q), _mm256_set1_epi16(1)) };
        if VNNI {
            return both!(vpdpbusd; acc, codes, [a; 2]);
        }
        let pairs = both!(_mm256_maddubs_epi16; codes, [a; 2]);
        let quads = both!(_mm256_madd_epi16; pairs, [ones; 2]);
        both!(_mm256_add_epi32; acc, quads)
    }
    #[inline(always)]
    unsafe fn widen<const K: usize>(codes: I) -> I {
        let up = unsafe { [_mm_cvtsi32_si128(24 - 8 * K as i32); 2] };
        let top = both!(_mm256_sll_epi32; codes, up);
        if VNNI { both!(_mm256_srli_epi32::<24>; top) } else { both!(_mm256_srai_epi32::<24>; top) }
    }
}

/// Sixteen E4M3 floats as half-precision values, each divided by 256.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn e4m3_halves(p: *const u8) -> __m256i {
    // SAFETY: sixteen bytes are readable by the contract of `load_e4m3`.
    let bytes = unsafe { _mm_loadu_si128(p.cast()) };
    // The shift leaves a copy of the sign in the new exponent's first bit.
    let shifted = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(bytes));
    _mm256_and_si256(shifted, _mm256_set1_epi16(0xbfff_u16 as i16))
}

/// Four activation codes, broadcast to all lanes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn quad(a: *const i8, q: usize) -> __m256i {
    // SAFETY: the codes are readable by the contract of `dot_bytes`.
    _mm256_set1_epi32(unsafe { a.add(4 * q).cast::<i32>().read_unaligned() })
}

/// `acc[i] += sum of codes[4i..4i+4] · a[4i..4i+4]`, unsigned codes, signed `a`.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn vpdpbusd(acc: __m256i, codes: __m256i, a: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(acc, codes, a)
}
