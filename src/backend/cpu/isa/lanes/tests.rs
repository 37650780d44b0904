//! Every operation of [`Lanes`] against plain scalar code, on each instruction set that the machine supports.

use half::{bf16, f16};

use crate::backend::cpu::isa::{Isa, Kernel, LANES, Lanes, entry};
use crate::backend::reference::activate;
use crate::ir::Activation;
use crate::quant::e4m3;

/// A check that runs as a kernel of one chunk.
trait Check: Sync {
    unsafe fn check<L: Lanes>(&self);
}

struct Checked<T>(T);

impl<T: Check> Kernel for Checked<T> {
    const ON_CODES: bool = true;

    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, _chunk: usize, _worker: usize) {
        // SAFETY: the contract of `Kernel::run` is passed on.
        unsafe { self.0.check::<L>() }
    }
}

fn on_every_isa<T: Check>(check: T) {
    let check = Checked(check);
    for isa in Isa::available() {
        println!("isa {isa}");
        // SAFETY: the instruction set is available, and the checks use arrays of their own.
        unsafe { entry::<Checked<T>>(isa)(&check, 0, 0) }
    }
}

#[inline(always)]
unsafe fn lanes<L: Lanes>(v: L::F) -> [f32; LANES] {
    let mut out = [f32::NAN; LANES];
    // SAFETY: sixteen elements.
    unsafe { L::store(out.as_mut_ptr(), v) };
    out
}

#[inline(always)]
unsafe fn ints<L: Lanes>(v: L::I) -> [i32; LANES] {
    // Exact below 2^24, which the tests stay under.
    // SAFETY: register arithmetic.
    unsafe { lanes::<L>(L::to_f32(v)) }.map(|lane| lane as i32)
}

fn values() -> [[f32; LANES]; 3] {
    let a = std::array::from_fn(|i| (i as f32 - 7.3) * 1.37);
    let b = std::array::from_fn(|i| 0.25 + (i * i % 11) as f32 * 0.811);
    let c = std::array::from_fn(|i| if i % 2 == 0 { -3.5e3 } else { 1e-3 } * (i + 1) as f32);
    [a, b, c]
}

fn same(found: [f32; LANES], expected: impl Fn(usize) -> f32) {
    for (i, found) in found.into_iter().enumerate() {
        assert_eq!(found.to_bits(), expected(i).to_bits(), "lane {i}: {found} and {}", expected(i));
    }
}

struct Arithmetic;

impl Check for Arithmetic {
    #[inline(always)]
    unsafe fn check<L: Lanes>(&self) {
        let [a, b, c] = values();
        // SAFETY: every pointer is to a whole array.
        unsafe {
            let (va, vb, vc) = (L::load(a.as_ptr()), L::load(b.as_ptr()), L::load(c.as_ptr()));
            same(lanes::<L>(L::splat(1.5)), |_| 1.5);
            same(lanes::<L>(L::add(va, vb)), |i| a[i] + b[i]);
            same(lanes::<L>(L::sub(va, vb)), |i| a[i] - b[i]);
            same(lanes::<L>(L::mul(va, vb)), |i| a[i] * b[i]);
            same(lanes::<L>(L::div(va, vb)), |i| a[i] / b[i]);
            same(lanes::<L>(L::min(va, vb)), |i| a[i].min(b[i]));
            same(lanes::<L>(L::max(va, vb)), |i| a[i].max(b[i]));
            same(lanes::<L>(L::abs(va)), |i| a[i].abs());
            same(lanes::<L>(L::round(va)), |i| a[i].round_ties_even());
            same(lanes::<L>(L::round(L::add(L::round(va), L::splat(0.5)))), |i| {
                (a[i].round_ties_even() + 0.5).round_ties_even()
            });
            same(lanes::<L>(L::zero_below(vb, va, L::splat(0.0))), |i| if a[i] < 0.0 { 0.0 } else { b[i] });
            let fused = lanes::<L>(L::fma(va, vb, vc));
            for i in 0..LANES {
                let exact = f64::from(a[i]) * f64::from(b[i]) + f64::from(c[i]);
                assert!((f64::from(fused[i]) - exact).abs() <= 1e-6 * exact.abs().max(20.0));
            }
            let n: [f32; LANES] = std::array::from_fn(|i| i as f32 * 16.0 - 126.0);
            same(lanes::<L>(L::exp2_int(L::load(n.as_ptr()))), |i| n[i].exp2());
        }
    }
}

#[test]
fn arithmetic_is_ieee() {
    on_every_isa(Arithmetic);
}

struct Nan;

impl Check for Nan {
    #[inline(always)]
    unsafe fn check<L: Lanes>(&self) {
        // SAFETY: register arithmetic.
        unsafe {
            let (one, nan) = (L::splat(1.0), L::splat(f32::NAN));
            assert!(lanes::<L>(L::max(one, nan)).iter().all(|x| x.is_nan()));
            assert!(lanes::<L>(L::min(one, nan)).iter().all(|x| x.is_nan()));
            same(lanes::<L>(L::max(nan, one)), |_| 1.0);
            same(lanes::<L>(L::min(nan, one)), |_| 1.0);
            assert!(lanes::<L>(L::exp(nan)).iter().all(|x| x.is_nan()));
            assert!(lanes::<L>(L::silu(nan)).iter().all(|x| x.is_nan()));
            assert!(lanes::<L>(L::zero_below(nan, nan, one)).iter().all(|x| x.is_nan()));
        }
    }
}

#[test]
fn nan_is_not_lost() {
    on_every_isa(Nan);
}

struct Reductions;

impl Check for Reductions {
    #[inline(always)]
    unsafe fn check<L: Lanes>(&self) {
        let [a, _, c] = values();
        // SAFETY: every pointer is to a whole array, or to `n` elements.
        unsafe {
            let sum = L::reduce_add(L::load(a.as_ptr()));
            let exact: f64 = a.iter().map(|&x| f64::from(x)).sum();
            assert!((f64::from(sum) - exact).abs() < 1e-5);
            let max = c.iter().copied().fold(f32::MIN, f32::max);
            assert_eq!(L::reduce_max(L::load(c.as_ptr())), max);
            for n in 0..=LANES {
                same(lanes::<L>(L::load_n(a.as_ptr(), n)), |i| if i < n { a[i] } else { 0.0 });
                let mut out = [7.0; LANES];
                L::store_n(out.as_mut_ptr(), n, L::load(a.as_ptr()));
                same(out, |i| if i < n { a[i] } else { 7.0 });
            }
        }
    }
}

#[test]
fn reductions_and_partial_vectors() {
    on_every_isa(Reductions);
}

struct Conversions;

impl Check for Conversions {
    #[inline(always)]
    unsafe fn check<L: Lanes>(&self) {
        let halves: [f16; LANES] = std::array::from_fn(|i| f16::from_f32((i as f32 - 4.0) * 0.3));
        let brains: [bf16; LANES] = std::array::from_fn(|i| bf16::from_f32((i as f32 - 4.0) * 1e9));
        let bytes: [i8; LANES] = std::array::from_fn(|i| (i as i32 * 17 - 128) as i8);
        let mut wide: [f32; LANES] = std::array::from_fn(|i| (i as f32 - 8.0) * 0.123_456_7);
        (wide[0], wide[1], wide[2]) = (1e6, f32::NEG_INFINITY, 65519.9);
        let mut out = [f16::ZERO; LANES];
        // SAFETY: every pointer is to a whole array.
        unsafe {
            same(lanes::<L>(L::load_f16(halves.as_ptr())), |i| halves[i].to_f32());
            same(lanes::<L>(L::load_bf16(brains.as_ptr())), |i| brains[i].to_f32());
            same(lanes::<L>(L::load_i8(bytes.as_ptr())), |i| f32::from(bytes[i]));
            L::store_f16(out.as_mut_ptr(), L::load(wide.as_ptr()));
            for codes in (0..=255).collect::<Vec<u8>>().as_chunks::<LANES>().0 {
                same(lanes::<L>(L::load_e4m3(codes.as_ptr())), |i| e4m3(codes[i]).to_f32());
            }
        }
        for (found, wide) in out.iter().zip(wide) {
            assert_eq!(*found, f16::from_f32(wide.clamp(-65504.0, 65504.0)));
        }
    }
}

#[test]
fn narrow_formats_convert() {
    on_every_isa(Conversions);
}

struct Integers;

impl Check for Integers {
    #[inline(always)]
    unsafe fn check<L: Lanes>(&self) {
        let a: [f32; LANES] = std::array::from_fn(|i| (i as f32 - 8.0) * 25.5);
        let mut out = [0i8; LANES];
        // SAFETY: every pointer is to a whole array.
        unsafe {
            let rounded = L::to_i32(L::load(a.as_ptr()));
            let expected = a.map(|x| x.round_ties_even() as i32);
            assert_eq!(ints::<L>(rounded), expected);
            assert_eq!(L::reduce_add_i32(rounded), expected.iter().sum::<i32>());
            assert_eq!(ints::<L>(L::shl::<7>(rounded)), expected.map(|x| x << 7));
            if const { L::UPPER } {
                assert_eq!(ints::<L>(L::shr::<4>(rounded)), expected.map(|x| x >> 4));
            }
            assert_eq!(ints::<L>(L::sub_i32(L::splat_i32(0), rounded)), expected.map(|x| -x));
            assert_eq!(ints::<L>(L::add_i32(L::splat_i32(7), rounded)), expected.map(|x| x + 7));
            L::store_i8(out.as_mut_ptr(), rounded);
            assert_eq!(out, expected.map(|x| x.clamp(-128, 127) as i8));
        }
    }
}

struct Parts;

impl Check for Parts {
    #[inline(always)]
    unsafe fn check<L: Lanes>(&self) {
        let [a, b, _] = values();
        // SAFETY: every pointer is to a whole array.
        unsafe {
            let (old, new) = (L::load(a.as_ptr()), L::load(b.as_ptr()));
            let first = LANES / L::PARTS;
            same(lanes::<L>(L::merge::<0>(old, new)), |i| if i < first { b[i] } else { a[i] });
            if L::PARTS == 2 {
                same(lanes::<L>(L::merge::<1>(old, new)), |i| if i < first { a[i] } else { b[i] });
            }
        }
    }
}

#[test]
fn parts_make_up_the_lanes() {
    on_every_isa(Parts);
}

#[test]
fn integer_lanes() {
    on_every_isa(Integers);
}

/// `dot_bytes` and `dot_small` with quad `Q` of `a`.
#[inline(always)]
unsafe fn dots<L: Lanes, const Q: usize>(codes: L::C, a: &[i8; 16]) -> [[i32; LANES]; 2] {
    // SAFETY: a whole array, and register arithmetic.
    unsafe {
        let (start, a) = (L::splat_i32(1000), L::activations(a.as_ptr()));
        let bytes = L::dot_bytes::<Q>(start, codes, a);
        let small = L::dot_small::<Q>(start, codes, a);
        [ints::<L>(bytes), ints::<L>(small)]
    }
}

struct Dots {
    codes: [u8; 64],
    a: [i8; 16],
}

impl Dots {
    /// Checks the dot products of all codes with quad `Q` of the activations.
    #[inline(always)]
    unsafe fn quad<L: Lanes, const Q: usize>(&self) {
        let Dots { codes, a } = self;
        let dot = |code: &dyn Fn(u8) -> i32| -> [i32; LANES] {
            std::array::from_fn(|r| {
                1000 + (0..4).map(|k| code(codes[4 * r + k]) * i32::from(a[4 * Q + k])).sum::<i32>()
            })
        };
        // SAFETY: every pointer is to a whole array.
        unsafe {
            let bytes = L::bytes(codes.as_ptr());
            assert_eq!(dots::<L, Q>(bytes, a)[0], dot(&byte::<L>));
            if const { L::UPPER } {
                assert_eq!(dots::<L, Q>(L::upper::<4>(bytes), a)[0], dot(&|code| i32::from(code & 0xf0)));
            }
            assert_eq!(dots::<L, Q>(L::low::<6>(bytes), a)[1], dot(&|code| i32::from(code & 63)));
            assert_eq!(dots::<L, Q>(L::high::<2>(bytes), a)[1], dot(&|code| i32::from(code >> 2)));
        }
    }
}

/// The value of a stored byte in a dot product.
fn byte<L: Lanes>(code: u8) -> i32 {
    if L::BYTE_BIAS == 0 { i32::from(code) } else { i32::from(code as i8) }
}

impl Check for Dots {
    #[inline(always)]
    unsafe fn check<L: Lanes>(&self) {
        let row = |code: &dyn Fn(u8) -> i32, k: usize| -> [i32; LANES] {
            std::array::from_fn(|r| code(self.codes[4 * r + k]))
        };
        // SAFETY: every pointer is to a whole array.
        unsafe {
            self.quad::<L, 0>();
            self.quad::<L, 1>();
            self.quad::<L, 2>();
            self.quad::<L, 3>();
            let bytes = L::bytes(self.codes.as_ptr());
            assert_eq!(ints::<L>(L::widen::<0>(bytes)), row(&byte::<L>, 0));
            assert_eq!(ints::<L>(L::widen::<1>(bytes)), row(&byte::<L>, 1));
            assert_eq!(ints::<L>(L::widen::<2>(bytes)), row(&byte::<L>, 2));
            assert_eq!(ints::<L>(L::widen::<3>(bytes)), row(&byte::<L>, 3));
        }
    }
}

/// Eight columns of rows `4i` and `4i + 1` (`a`), of rows `4i + 2` and `4i + 3` (`b`), and of two tokens.
struct Pairs {
    a: [u8; 64],
    b: [u8; 64],
    tokens: [[i8; 8]; 2],
}

impl Pairs {
    fn code(&self, row: usize, k: usize) -> u8 {
        let half = if row % 4 < 2 { &self.a } else { &self.b };
        half[row / 4 * 16 + row % 2 * 8 + k]
    }
}

/// The four bytes of each row, as columns.
#[inline(always)]
unsafe fn columns_of<L: Lanes>(codes: L::C) -> [[i32; LANES]; 4] {
    // SAFETY: register arithmetic.
    unsafe {
        let columns =
            [L::widen::<0>(codes), L::widen::<1>(codes), L::widen::<2>(codes), L::widen::<3>(codes)];
        columns.map(|column| ints::<L>(column))
    }
}

impl Check for Pairs {
    #[inline(always)]
    unsafe fn check<L: Lanes>(&self) {
        // The check must not be skipped on NEON with i8mm.
        assert_eq!(L::PAIRS, cfg!(target_arch = "aarch64") && L::BYTE_BIAS == 0 && L::PARTS == 2);
        if !L::PAIRS {
            return;
        }
        let Pairs { a, b, tokens } = self;
        // SAFETY: every pointer is to a whole array.
        let sums = unsafe {
            let [low, high] = [L::bytes(a.as_ptr()), L::bytes(b.as_ptr())];
            for (half, columns) in L::unpair_rows(low, high).into_iter().enumerate() {
                for (k, column) in columns_of::<L>(columns).into_iter().enumerate() {
                    let expected = std::array::from_fn(|row| i32::from(self.code(row, 4 * half + k)));
                    assert_eq!(column, expected, "column {}", 4 * half + k);
                }
            }
            let tokens = L::activations(tokens.as_flattened().as_ptr());
            let [first, second] = L::pair(L::splat_i32(1000), L::splat_i32(-2000));
            let sums = L::unpair(L::dot_pair(first, low, tokens), L::dot_pair(second, high, tokens));
            sums.map(|sums| ints::<L>(sums))
        };
        for (token, start) in [1000, -2000].into_iter().enumerate() {
            let product = |row: usize, k: usize| i32::from(self.code(row, k)) * i32::from(tokens[token][k]);
            let expected = std::array::from_fn(|row| start + (0..8).map(|k| product(row, k)).sum::<i32>());
            assert_eq!(sums[token], expected, "token {token}");
        }
    }
}

#[test]
fn dot_products_of_two_tokens_are_exact() {
    let mixed = std::array::from_fn(|i| (i * 37 + i / 7) as u8);
    let other = std::array::from_fn(|i| (i * 101 + 55) as u8);
    let turned: [i8; 8] = std::array::from_fn(|i| (i as i32 * 83 % 255 - 127) as i8);
    for (a, b) in [([255; 64], [255; 64]), (mixed, other), (other, mixed)] {
        for tokens in [[[127; 8], [-127; 8]], [turned, [1, 2, 4, 8, 16, 32, 64, 127]]] {
            on_every_isa(Pairs { a, b, tokens });
        }
    }
}

/// Extraction of codes from bytes; results below 64 are checked with `widen`.
struct Cuts {
    a: [u8; 64],
    b: [u8; 64],
}

impl Cuts {
    #[inline(always)]
    unsafe fn same<L: Lanes>(found: L::C, expected: impl Fn(usize) -> u8) {
        let row = |k: usize| -> [i32; LANES] { std::array::from_fn(|r| i32::from(expected(4 * r + k))) };
        // SAFETY: register arithmetic.
        unsafe {
            assert_eq!(ints::<L>(L::widen::<0>(found)), row(0));
            assert_eq!(ints::<L>(L::widen::<1>(found)), row(1));
            assert_eq!(ints::<L>(L::widen::<2>(found)), row(2));
            assert_eq!(ints::<L>(L::widen::<3>(found)), row(3));
        }
    }
}

impl Check for Cuts {
    #[inline(always)]
    unsafe fn check<L: Lanes>(&self) {
        let Cuts { a, b } = self;
        let spliced = |i: usize, keep: u32, shift: u32| a[i] & !(255 >> keep) | b[i] >> shift & (255 >> keep);
        // SAFETY: every pointer is to a whole array.
        unsafe {
            let (va, vb) = (L::bytes(a.as_ptr()), L::bytes(b.as_ptr()));
            Self::same::<L>(L::low::<4>(va), |i| a[i] & 15);
            Self::same::<L>(L::low::<5>(va), |i| a[i] & 31);
            Self::same::<L>(L::low::<6>(va), |i| a[i] & 63);
            Self::same::<L>(L::high::<4>(va), |i| a[i] >> 4);
            Self::same::<L>(L::high::<3>(va), |i| a[i] >> 3);
            Self::same::<L>(L::high::<2>(va), |i| a[i] >> 2);
            let table = std::array::from_fn(|at| (at * 5 % 64) as u8);
            Self::same::<L>(L::lookup(&table, L::low::<4>(va)), |i| table[usize::from(a[i] & 15)]);
            Self::same::<L>(L::lookup(&table, L::high::<4>(va)), |i| table[usize::from(a[i] >> 4)]);
            Self::same::<L>(L::high::<2>(L::splice::<3, 3>(va, vb)), |i| spliced(i, 3, 3) >> 2);
            Self::same::<L>(L::high::<2>(L::splice::<3, 1>(va, vb)), |i| spliced(i, 3, 1) >> 2);
            Self::same::<L>(L::low::<6>(L::splice::<4, 2>(va, vb)), |i| spliced(i, 4, 2) & 63);
            Self::same::<L>(L::low::<6>(L::splice::<4, 4>(va, vb)), |i| spliced(i, 4, 4) & 63);
            Self::same::<L>(L::low::<6>(L::splice::<2, 2>(va, vb)), |i| spliced(i, 2, 2) & 63);
        }
    }
}

#[test]
fn codes_are_cut_out_of_their_own_bytes() {
    let mixed = std::array::from_fn(|i| (i * 37 + i / 7) as u8);
    let other = std::array::from_fn(|i| (i * 101 + 55) as u8);
    for (a, b) in [([255; 64], [0; 64]), ([0; 64], [255; 64]), (mixed, other), (other, mixed)] {
        on_every_isa(Cuts { a, b });
    }
}

#[test]
fn dot_products_are_exact_at_their_extremes() {
    let mixed = std::array::from_fn(|i| (i * 37 + i / 7) as u8);
    let turned: [i8; 16] = std::array::from_fn(|i| (i as i32 * 83 % 255 - 127) as i8);
    for codes in [[255; 64], [0; 64], [128; 64], [127; 64], mixed] {
        for a in [[127; 16], [-127; 16], [0; 16], turned] {
            on_every_isa(Dots { codes, a });
        }
    }
}

struct Exp;

impl Check for Exp {
    #[inline(always)]
    unsafe fn check<L: Lanes>(&self) {
        let mut worst = (0.0f64, 0.0f32);
        for step in 0..40_000 {
            let x: [f32; LANES] = std::array::from_fn(|i| -87.32 + (step * LANES + i) as f32 * 2.745e-4);
            // SAFETY: a whole array.
            let found = unsafe { lanes::<L>(L::exp(L::load(x.as_ptr()))) };
            for (x, found) in x.into_iter().zip(found) {
                let exact = f64::from(x).exp();
                let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
                let error = (f64::from(found) - exact).abs() / ulp;
                worst = if error > worst.0 { (error, x) } else { worst };
            }
        }
        println!("exp: worst {:.2} ulp at {}", worst.0, worst.1);
        assert!(worst.0 < 2.0);
        // SAFETY: register arithmetic.
        unsafe {
            same(lanes::<L>(L::exp(L::splat(f32::NEG_INFINITY))), |_| 0.0);
            same(lanes::<L>(L::exp(L::splat(-88.0))), |_| 0.0);
            same(lanes::<L>(L::exp(L::splat(0.0))), |_| 1.0);
            assert!(lanes::<L>(L::exp(L::splat(f32::INFINITY))).iter().all(|&x| x > 2e38));
        }
    }
}

#[test]
fn exp_is_within_two_ulp() {
    on_every_isa(Exp);
}

struct Activations;

impl Check for Activations {
    #[inline(always)]
    unsafe fn check<L: Lanes>(&self) {
        for step in -400..400 {
            let x: [f32; LANES] = std::array::from_fn(|i| (step * 16 + i as i32) as f32 * 0.011);
            // SAFETY: a whole array.
            let found = unsafe {
                let v = L::load(x.as_ptr());
                [
                    (Activation::Silu, lanes::<L>(L::silu(v)), 1e-6, 1e-9),
                    (Activation::GeluTanh, lanes::<L>(L::gelu_tanh(v)), 4e-6, 1e-7),
                    // In the tail, the rounding error of the squared exponent grows with it.
                    (Activation::Gelu, lanes::<L>(L::gelu(v)), 4e-6, 1e-9),
                ]
            };
            for (activation, found, relative, absolute) in found {
                for (found, x) in found.iter().zip(x) {
                    let exact = activate(activation, f64::from(x));
                    let error = (f64::from(*found) - exact).abs();
                    assert!(error <= relative * exact.abs() + absolute, "{activation:?} of {x}: {found}");
                }
            }
        }
        // SAFETY: register arithmetic.
        unsafe {
            same(lanes::<L>(L::silu(L::splat(1e30))), |_| 1e30);
            assert!(lanes::<L>(L::silu(L::splat(-1e4))).iter().all(|x| x.abs() < 1e-30));
            assert!(lanes::<L>(L::gelu_tanh(L::splat(-1e4))).iter().all(|x| x.abs() < 1e-30));
            same(lanes::<L>(L::gelu(L::splat(f32::INFINITY))), |_| f32::INFINITY);
            same(lanes::<L>(L::gelu(L::splat(-1e30))), |_| 0.0);
            assert!(lanes::<L>(L::gelu(L::splat(f32::NAN))).iter().all(|x| x.is_nan()));
        }
    }
}

#[test]
fn activations_match_their_formulas() {
    on_every_isa(Activations);
}
