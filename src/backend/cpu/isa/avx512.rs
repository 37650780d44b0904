//! Lanes on AVX-512 with VNNI: one register per vector, and `vpdpbusd` for the dot product. With AMX, tiles
//! multiply blocks of sixteen tokens.

use core::arch::x86_64::*;

use half::{bf16, f16};

use super::{Lanes, Order, Tile, amx, avx2, kernel_entry};

/// AVX-512 F, BW, DQ, VL and VNNI, optionally AMX.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const AMX: bool>;

kernel_entry!(run_amx, Avx512<true>, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni");
kernel_entry!(run_avx512, Avx512<false>, "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni");

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

// SAFETY of every method below: the trait's contract gives the features and the pointers.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const AMX: bool> Lanes for Avx512<AMX> {
    type F = __m512;
    type I = __m512i;
    type C = __m512i;
    type A = *const i8;

    const TOKENS: usize = 6;
    const WIDE: bool = true;
    const ORDER: Order = Order::Unsigned;
    const UPPER: bool = true;
    const TILES: bool = AMX;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: __m512) -> __m512 {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<NEAREST>(a) }
    }
    #[inline(always)]
    unsafe fn exp2_int(n: __m512) -> __m512 {
        unsafe {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn zero_below(v: __m512, x: __m512, limit: __m512) -> __m512 {
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, limit), v) }
    }
    #[inline(always)]
    unsafe fn reduce_add(a: __m512) -> f32 {
        unsafe {
            let half = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            let pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }
    #[inline(always)]
    unsafe fn reduce_max(a: __m512) -> f32 {
        unsafe {
            let half = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
            let quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
            let pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
            _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> __m512 {
        // `_mm512_cvtph_ps` suppresses exceptions, which only the instruction's register form can do. It
        // would cost a separate load.
        unsafe { _mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: __m512) {
        unsafe {
            let high = _mm512_min_ps(_mm512_set1_ps(65504.0), v);
            let bounded = _mm512_max_ps(_mm512_set1_ps(-65504.0), high);
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<NEAREST>(bounded));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> __m512 {
        unsafe { _mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>(avx2::e4m3_halves(p)) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn add_i32(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub_i32(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn shl<const BITS: u32>(a: __m512i) -> __m512i {
        unsafe { _mm512_slli_epi32::<BITS>(a) }
    }
    #[inline(always)]
    unsafe fn shr<const BITS: u32>(a: __m512i) -> __m512i {
        unsafe { _mm512_srai_epi32::<BITS>(a) }
    }
    #[inline(always)]
    unsafe fn to_f32(a: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn to_i32(a: __m512) -> __m512i {
        unsafe { _mm512_cvtps_epi32(a) }
    }
    #[inline(always)]
    unsafe fn reduce_add_i32(a: __m512i) -> i32 {
        unsafe { _mm512_reduce_add_epi32(a) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, v: __m512i) {
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtsepi32_epi8(v)) }
    }

    #[inline(always)]
    unsafe fn bytes(p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn low<const BITS: i32>(a: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, _mm512_set1_epi8((1 << BITS) - 1)) }
    }
    #[inline(always)]
    unsafe fn high<const BITS: i32>(a: __m512i) -> __m512i {
        unsafe {
            let shifted = _mm512_srl_epi16(a, _mm_cvtsi32_si128(BITS));
            _mm512_and_si512(shifted, _mm512_set1_epi8((255 >> BITS) as i8))
        }
    }
    #[inline(always)]
    unsafe fn upper<const BITS: i32>(a: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, _mm512_set1_epi8((255 << BITS) as i8)) }
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], a: __m512i) -> __m512i {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, a)
        }
    }
    #[inline(always)]
    unsafe fn splice<const KEEP: i32, const SHIFT: i32>(a: __m512i, b: __m512i) -> __m512i {
        // Takes the second operand's bit where the first's is set, else the third's.
        const CHOOSE: i32 = 0xca;
        unsafe {
            let shifted = _mm512_srl_epi16(b, _mm_cvtsi32_si128(SHIFT));
            _mm512_ternarylogic_epi32::<CHOOSE>(_mm512_set1_epi8((255 >> KEEP) as i8), shifted, a)
        }
    }
    #[inline(always)]
    unsafe fn activations(p: *const i8) -> *const i8 {
        p
    }
    #[inline(always)]
    unsafe fn dot_bytes<const Q: usize>(acc: __m512i, codes: __m512i, a: *const i8) -> __m512i {
        unsafe {
            let quad = a.add(4 * Q).cast::<i32>().read_unaligned();
            _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(quad))
        }
    }
    #[inline(always)]
    unsafe fn dot_small<const Q: usize>(acc: __m512i, codes: __m512i, a: *const i8) -> __m512i {
        unsafe { Self::dot_bytes::<Q>(acc, codes, a) }
    }
    #[inline(always)]
    unsafe fn widen<const K: usize>(codes: __m512i) -> __m512i {
        unsafe {
            let count = _mm_cvtsi32_si128(8 * K as i32);
            _mm512_and_si512(_mm512_srl_epi32(codes, count), _mm512_set1_epi32(255))
        }
    }

    #[inline(always)]
    unsafe fn begin_tiles(quads: usize) {
        unsafe { amx::begin(quads) }
    }
    #[inline(always)]
    unsafe fn end_tiles() {
        unsafe { amx::end() }
    }
    #[inline(always)]
    unsafe fn tile_dots<const SIGNED: bool>(a: *const i8, codes: *const u8) {
        unsafe { amx::dots::<SIGNED>(a, codes) }
    }
    #[inline(always)]
    unsafe fn store_dots(dots: *mut Tile) {
        unsafe { amx::store(dots) }
    }
    #[inline(always)]
    unsafe fn store_codes(p: *mut u8, codes: __m512i, zero: u8) {
        unsafe { _mm512_storeu_si512(p.cast(), _mm512_sub_epi8(codes, _mm512_set1_epi8(zero as i8))) }
    }
    #[inline(always)]
    unsafe fn load_i32(p: *const i32) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_i32(p: *mut i32, v: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), v) }
    }
}
