//! The vector abstraction that every CPU kernel is written over: sixteen virtual lanes.
//!
//! A kernel is one function generic over [`Lanes`]. A file per instruction set supplies the primitives, and
//! the parent module instantiates the kernel for each. This file is independent of what kernels compute.

use half::{bf16, f16};

/// Repeats code for each value of a constant.
macro_rules! for_each {
    ([$($value:literal)*] $name:ident => $code:block) => {$({
        const $name: usize = $value;
        $code
    })*};
}

#[cfg(test)]
mod tests;

pub(crate) use for_each;

/// Lanes of a virtual vector.
pub(crate) const LANES: usize = 16;

/// A 16 x 16 accumulator: 16 weight rows by 16 tokens.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Tile<T = i32>(pub(crate) [[T; LANES]; LANES]);

/// The order of packed codes in memory, as an instruction set's dot products read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Unsigned bytes, four consecutive columns of each row.
    Unsigned,
    /// Like [`Order::Unsigned`], but 8-bit codes are stored minus 128, as signed bytes.
    Signed,
    /// Unsigned bytes, eight consecutive columns of each row. In a block of four rows and eight columns,
    /// the positions of columns 0 to 3 hold all eight columns of rows 0 and 1; the positions of columns 4
    /// to 7 hold those of rows 2 and 3.
    #[cfg_attr(not(target_arch = "aarch64"), allow(dead_code))]
    Pairs,
}

impl Order {
    /// Value subtracted from 8-bit codes.
    pub(crate) const fn byte_bias(self) -> u8 {
        if matches!(self, Order::Signed) { 128 } else { 0 }
    }

    /// Whether eight columns of a row are consecutive.
    pub(crate) const fn pairs(self) -> bool {
        matches!(self, Order::Pairs)
    }
}

/// Sixteen lanes of one instruction set.
///
/// Every method is `#[inline(always)]` so that it becomes part of the `#[target_feature]` function
/// that `kernel_entry!` defines. Results of `add`, `sub`, `mul`, `div` are IEEE-rounded. Each
/// implementation has a fixed order of additions in reductions.
///
/// # Safety
/// All methods: the CPU has the implementation's features (checked when the backend is created), and
/// a pointer is valid for the sixteen elements (or the count) that the method reads or writes.
/// Pointers need no more alignment than their element type.
pub(crate) trait Lanes: Copy + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32.
    type I: Copy;
    /// Sixteen rows of four code bytes.
    type C: Copy;
    /// Sixteen activation codes as an operand of the dot product: a register or an address.
    type A: Copy;

    /// Maximum tokens per register block: 6 (with smaller blocks of 4 and 2), 4 or 1. Each further size
    /// adds a tenth to the compiled code.
    const TOKENS: usize;
    /// Whether there are 32 registers of sixteen lanes: the matrix kernels then hold both tiles of
    /// a panel at once, and attention more than two rows.
    const WIDE: bool;
    /// Whether [`Lanes::dot_bytes`] accepts 4-bit codes in the upper half of a byte, that is, times 16. A
    /// single token's products then shift sums instead of codes.
    const UPPER: bool = false;
    /// Number of parts that int8 kernels split the sixteen rows into, computed one after another: 1 or 2.
    const PARTS: usize = 1;
    /// Whether int8 kernels multiply blocks of sixteen tokens by [`Lanes::tile_dots`].
    const TILES: bool = false;
    /// The order that packing produces for the dot products.
    const ORDER: Order;
    /// Value that packing subtracts from 8-bit codes.
    const BYTE_BIAS: u8 = Self::ORDER.byte_bias();
    /// Whether int8 kernels multiply two tokens at once by [`Lanes::dot_pair`].
    const PAIRS: bool = Self::ORDER.pairs();

    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self::F;
    /// Sixteen f32 from memory.
    unsafe fn load(p: *const f32) -> Self::F;
    /// Sixteen f32 to memory.
    unsafe fn store(p: *mut f32, v: Self::F);
    /// `a + b`
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once where the CPU can.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The smaller; `b` if either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// The larger; `b` if either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `|a|`
    unsafe fn abs(a: Self::F) -> Self::F;
    /// The nearest integer, ties to even; `|a|` below 2^31.
    unsafe fn round(a: Self::F) -> Self::F;
    /// `2^n` for integral `n` in -126..=127.
    unsafe fn exp2_int(n: Self::F) -> Self::F;
    /// `v` where `x >= limit` or `x` is NaN, else 0.
    unsafe fn zero_below(v: Self::F, x: Self::F, limit: Self::F) -> Self::F;
    /// The sum of all lanes.
    unsafe fn reduce_add(a: Self::F) -> f32;
    /// The largest lane; NaN lanes may be ignored.
    unsafe fn reduce_max(a: Self::F) -> f32;

    /// Sixteen half-precision values, widened.
    unsafe fn load_f16(p: *const f16) -> Self::F;
    /// Sixteen values rounded to half precision, ties to even, saturated to ±65504 (NaN stays).
    unsafe fn store_f16(p: *mut f16, v: Self::F);
    /// Sixteen bfloat16 values, widened.
    unsafe fn load_bf16(p: *const bf16) -> Self::F;
    /// Sixteen E4M3 floats ([`crate::quant::Codes::E4m3`]), each divided by 256. This is their value as
    /// half-precision floats once their bits are shifted into place.
    unsafe fn load_e4m3(p: *const u8) -> Self::F;
    /// Sixteen signed bytes, as f32.
    unsafe fn load_i8(p: *const i8) -> Self::F;

    /// All lanes `x`.
    unsafe fn splat_i32(x: i32) -> Self::I;
    /// `a + b`, wrapping.
    unsafe fn add_i32(a: Self::I, b: Self::I) -> Self::I;
    /// `a - b`, wrapping.
    unsafe fn sub_i32(a: Self::I, b: Self::I) -> Self::I;
    /// `a << BITS`
    unsafe fn shl<const BITS: u32>(a: Self::I) -> Self::I;
    /// `a >> BITS`, with the sign.
    #[inline(always)]
    unsafe fn shr<const BITS: u32>(_a: Self::I) -> Self::I {
        unreachable!("no codes in upper halves")
    }
    /// As f32, ties to even.
    unsafe fn to_f32(a: Self::I) -> Self::F;
    /// The nearest integers, ties to even.
    unsafe fn to_i32(a: Self::F) -> Self::I;
    /// The sum of all lanes, wrapping.
    unsafe fn reduce_add_i32(a: Self::I) -> i32;
    /// Sixteen bytes; values beyond i8 saturate.
    unsafe fn store_i8(p: *mut i8, v: Self::I);

    /// 64 bytes.
    unsafe fn bytes(p: *const u8) -> Self::C;
    /// The lowest `BITS` bits of each byte, below 8.
    unsafe fn low<const BITS: i32>(a: Self::C) -> Self::C;
    /// Each byte shifted right by `BITS`, above 0.
    unsafe fn high<const BITS: i32>(a: Self::C) -> Self::C;
    /// Each byte without its lowest `BITS` bits.
    #[inline(always)]
    unsafe fn upper<const BITS: i32>(_a: Self::C) -> Self::C {
        unreachable!("no codes in upper halves")
    }
    /// The table's entry at each byte; bytes are below 16.
    unsafe fn lookup(table: &[u8; 16], a: Self::C) -> Self::C;
    /// The upper `KEEP` bits of each byte of `a`, and below them those of `b` shifted right by `SHIFT`;
    /// `0 < SHIFT <= KEEP < 8`.
    unsafe fn splice<const KEEP: i32, const SHIFT: i32>(a: Self::C, b: Self::C) -> Self::C;
    /// Sixteen codes in -127..=127.
    unsafe fn activations(p: *const i8) -> Self::A;
    /// `acc[r] += sum over k of codes[r][k] * a[4 Q + k]`, exactly; the codes are signed bytes where
    /// [`Lanes::BYTE_BIAS`] is not 0.
    unsafe fn dot_bytes<const Q: usize>(acc: Self::I, codes: Self::C, a: Self::A) -> Self::I;
    /// [`Lanes::dot_bytes`] for codes in 0..=63.
    unsafe fn dot_small<const Q: usize>(acc: Self::I, codes: Self::C, a: Self::A) -> Self::I;
    /// Unpacks [`Order::Pairs`] into four columns of sixteen rows, and the next four. `a` has eight columns
    /// of rows `4i` and `4i + 1`, `b` those of rows `4i + 2` and `4i + 3`, for `i` in 0..4.
    #[inline(always)]
    unsafe fn unpair_rows(_a: Self::C, _b: Self::C) -> [Self::C; 2] {
        unreachable!("no pairs")
    }
    /// `acc[4i + 2r + t] += sum over k of codes[2i + r][k] * a[t][k]`, exactly, for `i` in 0..4: unsigned
    /// codes of eight columns of two rows, times the activation codes of two tokens.
    #[inline(always)]
    unsafe fn dot_pair(_acc: Self::I, _codes: Self::C, _a: Self::A) -> Self::I {
        unreachable!("no pairs")
    }
    /// Interleaves the sums of two tokens, sixteen rows each, into accumulators of [`Lanes::dot_pair`]: one
    /// for each half of [`Order::Pairs`].
    #[inline(always)]
    unsafe fn pair(_a: Self::I, _b: Self::I) -> [Self::I; 2] {
        unreachable!("no pairs")
    }
    /// Undoes [`Lanes::pair`].
    #[inline(always)]
    unsafe fn unpair(_a: Self::I, _b: Self::I) -> [Self::I; 2] {
        unreachable!("no pairs")
    }
    /// Configures this thread's tiles for `4 quads` columns; [`Lanes::end_tiles`] releases them.
    #[inline(always)]
    unsafe fn begin_tiles(_quads: usize) {
        unreachable!("no tiles")
    }
    /// Releases the tiles of [`Lanes::begin_tiles`].
    #[inline(always)]
    unsafe fn end_tiles() {
        unreachable!("no tiles")
    }
    /// Multiplies two tiles of sixteen rows by sixteen tokens, exactly; [`Lanes::store_dots`] stores the
    /// result.
    ///
    /// `dots[t][m][r] = sum over q and k of codes[t][q][r][k] * a[m][4 q + k]`. Codes are signed if `SIGNED`.
    /// The stride of `a[m]` and of `codes[t][q]` is 64 bytes, that of `codes[t]` eight times as much.
    #[inline(always)]
    unsafe fn tile_dots<const SIGNED: bool>(_a: *const i8, _codes: *const u8) {
        unreachable!("no tiles")
    }
    /// Stores both results of the last [`Lanes::tile_dots`].
    #[inline(always)]
    unsafe fn store_dots(_dots: *mut Tile) {
        unreachable!("no tiles")
    }
    /// Stores each byte minus `zero`, wrapping.
    #[inline(always)]
    unsafe fn store_codes(_p: *mut u8, _codes: Self::C, _zero: u8) {
        unreachable!("no tiles")
    }
    /// Sixteen i32 from memory.
    #[inline(always)]
    unsafe fn load_i32(_p: *const i32) -> Self::I {
        unreachable!("no tiles")
    }
    /// Sixteen i32 to memory.
    #[inline(always)]
    unsafe fn store_i32(_p: *mut i32, _v: Self::I) {
        unreachable!("no tiles")
    }
    /// Byte `K` of each row, widened with the sign that [`Lanes::dot_bytes`] gives it.
    unsafe fn widen<const K: usize>(codes: Self::C) -> Self::I;

    /// `new` in the lanes of part `PART` of the rows, `old` in the others.
    #[inline(always)]
    unsafe fn merge<const PART: usize>(_old: Self::F, new: Self::F) -> Self::F {
        new
    }

    /// The first `n` lanes from memory, at most all, the others 0.
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Self::F {
        // SAFETY: `n` elements are readable by contract, and at most LANES are read.
        unsafe {
            if n >= LANES {
                return Self::load(p);
            }
            let mut lanes = [0.0f32; LANES];
            core::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
            Self::load(lanes.as_ptr())
        }
    }

    /// The first `n` lanes to memory, at most all.
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, n: usize, v: Self::F) {
        // SAFETY: `n` elements are writable by contract, and at most LANES are written.
        unsafe {
            if n >= LANES {
                return Self::store(p, v);
            }
            let mut lanes = [0.0f32; LANES];
            Self::store(lanes.as_mut_ptr(), v);
            core::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }

    /// `e^x` within 2 ulp; 0 below -87.33 (no subnormals), saturating above 88.37; NaN stays.
    ///
    /// `x = n ln 2 + r` with the product's error carried (Cody and Waite 1980), and `e^r` by a
    /// polynomial of degree 6, interpolated at Chebyshev nodes of `|r| <= ln 2 / 2`.
    #[inline(always)]
    unsafe fn exp(x: Self::F) -> Self::F {
        // SAFETY: register arithmetic; the caller vouches for the CPU's features.
        unsafe {
            let c = Self::splat;
            let bounded = Self::min(c(88.37), Self::max(c(EXP_MIN), x));
            let n = Self::round(Self::mul(bounded, c(core::f32::consts::LOG2_E)));
            let r = Self::fma(n, c(-LN2_HIGH), bounded);
            let r = Self::fma(n, c(-LN2_LOW), r);
            let mut q = c(EXP_POLY[4]);
            q = Self::fma(q, r, c(EXP_POLY[3]));
            q = Self::fma(q, r, c(EXP_POLY[2]));
            q = Self::fma(q, r, c(EXP_POLY[1]));
            q = Self::fma(q, r, c(EXP_POLY[0]));
            let e = Self::add(Self::fma(q, Self::mul(r, r), r), c(1.0));
            Self::zero_below(Self::mul(e, Self::exp2_int(n)), x, c(EXP_MIN))
        }
    }

    /// `x / (1 + e^-x)`
    #[inline(always)]
    unsafe fn silu(x: Self::F) -> Self::F {
        // SAFETY: register arithmetic; the caller vouches for the CPU's features.
        unsafe {
            let e = Self::exp(Self::sub(Self::splat(0.0), x));
            Self::div(x, Self::add(Self::splat(1.0), e))
        }
    }

    /// `x/2 (1 + tanh u)` with `u = sqrt(2/pi) (x + 0.044715 x^3)`, as `x / (1 + e^-2u)`.
    #[inline(always)]
    unsafe fn gelu_tanh(x: Self::F) -> Self::F {
        // SAFETY: register arithmetic; the caller vouches for the CPU's features.
        unsafe {
            let cubic = Self::fma(Self::mul(x, x), Self::splat(GELU_CUBIC), Self::splat(GELU_LINEAR));
            let e = Self::exp(Self::mul(x, cubic));
            Self::div(x, Self::add(Self::splat(1.0), e))
        }
    }

    /// `x · (1 + erf(x / sqrt(2))) / 2`, as `max(x, 0) − |x|/2 · erfc(z)` with `z = |x| / sqrt(2)`.
    ///
    /// `(1 + 2z) · e^(z²) · erfc(z)` varies little and is a polynomial in `(z − 2) / (z + 2)` (Shepherd and
    /// Laframboise 1981). Its degree is 9, interpolated at Chebyshev nodes of `z <= 10`; beyond that,
    /// `erfc` is 0 in f32.
    #[inline(always)]
    unsafe fn gelu(x: Self::F) -> Self::F {
        // SAFETY: register arithmetic; the caller vouches for the CPU's features.
        unsafe {
            let c = Self::splat;
            let z = Self::min(c(10.0), Self::mul(Self::abs(x), c(core::f32::consts::FRAC_1_SQRT_2)));
            let q = Self::div(Self::sub(z, c(2.0)), Self::add(z, c(2.0)));
            let mut p = c(ERFC_POLY[9]);
            for factor in ERFC_POLY[..9].iter().rev() {
                p = Self::fma(p, q, c(*factor));
            }
            let bell = Self::exp(Self::mul(Self::sub(c(0.0), z), z));
            let erfc = Self::div(Self::mul(p, bell), Self::fma(z, c(2.0), c(1.0)));
            let half = Self::mul(z, c(core::f32::consts::FRAC_1_SQRT_2));
            Self::sub(Self::max(c(0.0), x), Self::mul(half, erfc))
        }
    }
}

/// Smallest argument of `exp` with a normal result; below it `exp` is 0.
const EXP_MIN: f32 = -87.33;
/// ln 2 as 355/512, so that `n · LN2_HIGH` is exact, and the remainder.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// `(e^r − 1 − r) / r²` on `|r| <= ln 2 / 2`, relative error of `e^r` 2e-9.
const EXP_POLY: [f32; 5] = [0.5, 0.16666576, 0.041666556, 0.008363179, 0.0013926184];
/// `−2 sqrt(2/pi)`, and the same times 0.044715.
const GELU_LINEAR: f32 = -1.595_769;
const GELU_CUBIC: f32 = -0.071_354_814;
/// See [`Lanes::gelu`]; relative error 4e-8.
const ERFC_POLY: [f32; 10] = [
    1.276_978_4,
    -0.092_763_95,
    -0.166_030_42,
    0.164_054_91,
    -0.054_214_265,
    -0.008_060_825,
    0.008_664_255,
    0.001_327_790_3,
    -0.001_264_119_5,
    -0.000_424_122_53,
];
