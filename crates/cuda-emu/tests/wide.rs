//! What else kernels use: other number formats, votes, cooperative groups, structs, constants,
//! `printf` and `assert`, through cudarc against plain code.

mod support;

use cudarc::driver::{DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use support::card::{Card, block_of, card, code, function};
use support::{Random, assert_near, half};

const PTX: &str = include_str!("ptx/wide.sm_90a.ptx");

/// Launches one block of a kernel of the file with its parameters, and waits for it: the module is
/// unloaded afterwards.
macro_rules! launch {
    ($card:expr, $stream:expr, $name:literal, $threads:expr, $($arg:expr),*) => {{
        let kernel = function(&$card.context, PTX, $name);
        let mut call = $stream.launch_builder(&kernel);
        $(call.arg($arg);)*
        // SAFETY: every test gives its kernel's own parameters.
        unsafe { call.launch(block_of($threads)) }.unwrap();
        $stream.synchronize()
    }};
}

/// Seeds of the order of warps, each set when it comes.
fn seeds(card: &Card) -> impl Iterator<Item = u64> {
    (0..20).inspect(|seed| {
        if card.emulator.is_emulated() {
            card.emulator.set_seed(*seed).unwrap();
        }
    })
}

fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Numbers between -2 and 2.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count).map(|_| (random.next() % 4001) as f32 / 1000.0 - 2.0).collect()
}

fn bytes(seed: u64, count: usize) -> Vec<i8> {
    let mut random = Random(seed);
    (0..count).map(|_| random.next() as i8).collect()
}

/// The same as bf16, cut off: which numbers they are does not matter.
fn cut(values: Vec<f32>) -> Vec<u16> {
    values.into_iter().map(|value| (value.to_bits() >> 16) as u16).collect()
}

/// By its series.
fn erf(x: f64) -> f64 {
    let factorial = |n: i32| (1..=n).map(f64::from).product::<f64>();
    let term = |n: i32| (-1f64).powi(n) * x.powi(2 * n + 1) / factorial(n) / f64::from(2 * n + 1);
    (0..40).map(term).sum::<f64>() * 2.0 / std::f64::consts::PI.sqrt()
}

#[test]
fn arithmetic_of_bf16_and_functions() {
    let (card, n) = (card(), 64usize);
    let stream = card.context.new_stream().unwrap();
    let (x, y) = (cut(numbers(1, n)), cut(numbers(2, n)));
    let (dx, dy) = (stream.clone_htod(&x).unwrap(), stream.clone_htod(&y).unwrap());
    let (z, f) = (stream.alloc_zeros::<u16>(n).unwrap(), stream.alloc_zeros::<f32>(n).unwrap());
    let pair = |n: usize| (f64::from(bf16(x[n])), f64::from(bf16(y[n])));
    let sums: Vec<f64> = (0..n).map(pair).map(|(a, b)| a * b + a.max(b)).collect();
    let function_of = |e: usize| {
        let ((low_x, low_y), (high_x, high_y)) = (pair(e / 2 * 2), pair(e / 2 * 2 + 1));
        if e.is_multiple_of(2) {
            low_x.tanh() + erf(high_y)
        } else {
            (low_y * low_y).ln_1p() + (-high_x.abs()).exp() + low_x.abs().sqrt()
        }
    };
    let functions: Vec<f64> = (0..n).map(function_of).collect();
    for _ in seeds(&card) {
        launch!(card, stream, "bf16_math", 32, &z, &f, &dx, &dy).unwrap();
        let found: Vec<f32> = stream.clone_dtoh(&z).unwrap().into_iter().map(bf16).collect();
        assert_near(&found, &sums, 1.0 / 256.0);
        assert_near(&stream.clone_dtoh(&f).unwrap(), &functions, 1e-5);
    }
}

#[test]
fn multiplications_of_bf16_and_of_bytes() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let (a, b) = (cut(numbers(3, 16 * 16)), cut(numbers(4, 8 * 16)));
    let (p, q) = (bytes(5, 16 * 32), bytes(6, 8 * 32));
    let (da, db) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
    let (dp, dq) = (stream.clone_htod(&p).unwrap(), stream.clone_htod(&q).unwrap());
    let (c, r) = (stream.alloc_zeros::<f32>(128).unwrap(), stream.alloc_zeros::<i32>(128).unwrap());
    let product = |n: usize, m: usize| f64::from(bf16(a[n])) * f64::from(bf16(b[m]));
    let float = |e: usize| (0..16).map(|s| product(e / 8 * 16 + s, e % 8 * 16 + s)).sum::<f64>();
    let product = |n: usize, m: usize| i32::from(p[n]) * i32::from(q[m]);
    let int = |e: usize| (0..32).map(|s| product(e / 8 * 32 + s, e % 8 * 32 + s)).sum::<i32>();
    launch!(card, stream, "multiply", 32, &c, &r, &da, &db, &dp, &dq).unwrap();
    assert_near(&stream.clone_dtoh(&c).unwrap(), &(0..128).map(float).collect::<Vec<_>>(), 1e-5);
    assert_eq!(stream.clone_dtoh(&r).unwrap(), (0..128).map(int).collect::<Vec<_>>());
}

#[test]
fn weights_of_four_bits() {
    let (card, n) = (card(), 64usize);
    let stream = card.context.new_stream().unwrap();
    let mut random = Random(7);
    let (w, scale): (Vec<u32>, _) = ((0..n).map(|_| random.next() as u32).collect(), random.halves(n / 16));
    let (dw, ds) = (stream.clone_htod(&w).unwrap(), stream.clone_htod(&scale).unwrap());
    let x = stream.alloc_zeros::<u16>(n * 8).unwrap();
    launch!(card, stream, "dequantize_w4", 64, &x, &dw, &ds).unwrap();
    // Halves 2 j and 2 j + 1 of a word are its nibbles j and j + 4.
    let wanted = |e: usize| {
        let nibble = w[e / 8] >> (4 * (e % 8 / 2 + e % 2 * 4)) & 15;
        (f64::from(nibble) - 8.0) * f64::from(half(scale[e / 8 / 16]))
    };
    let found: Vec<f32> = stream.clone_dtoh(&x).unwrap().into_iter().map(half).collect();
    assert_near(&found, &(0..n * 8).map(wanted).collect::<Vec<_>>(), 1e-3);
}

#[test]
fn dots_of_bytes_and_compaction() {
    let (card, n) = (card(), 100i32);
    let stream = card.context.new_stream().unwrap();
    let (a, b) = (bytes(8, n as usize * 4), bytes(9, n as usize * 4));
    let (da, db) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
    let dot: i32 = a.iter().zip(&b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
    let x = numbers(10, n as usize);
    let dx = stream.clone_htod(&x).unwrap();
    let kept: Vec<f32> = x.iter().copied().filter(|v| *v > 0.5).collect();
    for _ in seeds(&card) {
        let sum = stream.clone_htod(&[1000]).unwrap();
        launch!(card, stream, "dot_bytes", 32, &sum, &da, &db, &n).unwrap();
        assert_eq!(stream.clone_dtoh(&sum).unwrap(), [1000 + dot]);
        let (y, count) =
            (stream.alloc_zeros::<f32>(n as usize).unwrap(), stream.alloc_zeros::<i32>(2).unwrap());
        launch!(card, stream, "compact", 32, &y, &count, &dx, &n, &0.5f32).unwrap();
        assert_eq!(stream.clone_dtoh(&count).unwrap(), [kept.len() as i32, 1]);
        assert_eq!(stream.clone_dtoh(&y).unwrap()[..kept.len()], kept);
    }
}

#[test]
fn cooperative_groups_and_bits() {
    let (card, n) = (card(), 1000i32);
    let stream = card.context.new_stream().unwrap();
    let x = numbers(11, n as usize);
    let dx = stream.clone_htod(&x).unwrap();
    let total: f64 = x.iter().map(|v| f64::from(*v)).sum();
    let value = |lane: u32| lane * 7 + 5;
    let all = (0..32).fold(0, |bits, lane| bits | value(lane));
    let first_same = |lane: u32| (0..32).find(|other| value(*other) % 3 == value(lane) % 3).unwrap() + 1;
    let of_lane =
        |lane: u32| (5 + all.leading_zeros() + first_same(lane)).wrapping_add(value(lane).reverse_bits());
    for _ in seeds(&card) {
        let (sum, bits) = (stream.alloc_zeros::<f32>(1).unwrap(), stream.alloc_zeros::<u32>(32).unwrap());
        launch!(card, stream, "groups", 256, &sum, &bits, &dx, &n).unwrap();
        assert_near(&stream.clone_dtoh(&sum).unwrap(), &[total], 1e-5);
        assert_eq!(stream.clone_dtoh(&bits).unwrap(), (0..32).map(of_lane).collect::<Vec<_>>());
    }
}

/// Nearest number with so many bits of mantissa, not below the least exponent; ties to even.
fn rounded(value: f32, mantissa: i32, least: i32, most: f64) -> f64 {
    let value = f64::from(value);
    let exponent = (value.abs().log2().floor() as i32).max(least);
    let unit = 2f64.powi(exponent - mantissa);
    ((value / unit).round_ties_even() * unit).clamp(-most, most)
}

#[test]
fn floats_of_eight_bits() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let mut x = numbers(12, 56);
    x.extend([0.0, 448.0, 464.0, 1e6, -1e6, 1e-3, 0.0019, -57344.0]);
    let dx = stream.clone_htod(&x).unwrap();
    let (a, b) = (stream.alloc_zeros::<f32>(64).unwrap(), stream.alloc_zeros::<f32>(64).unwrap());
    launch!(card, stream, "through_fp8", 64, &a, &b, &dx).unwrap();
    let wanted =
        |mantissa, least, most| x.iter().map(|v| rounded(*v, mantissa, least, most)).collect::<Vec<_>>();
    assert_near(&stream.clone_dtoh(&a).unwrap(), &wanted(3, -6, 448.0), 0.0);
    assert_near(&stream.clone_dtoh(&b).unwrap(), &wanted(2, -14, 57344.0), 0.0);
}

/// As the kernel's `Tables`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Tables {
    offset: [i64; 4],
    table: [u64; 3],
    scale: f32,
}

// SAFETY: plain numbers, laid out as the kernel's struct.
unsafe impl DeviceRepr for Tables {}

#[test]
fn structs_by_value() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let tables: Vec<_> = (20..23).map(|seed| numbers(seed, 40)).collect();
    let on_device: Vec<_> = tables.iter().map(|table| stream.clone_htod(table).unwrap()).collect();
    let table = [0, 1, 2].map(|n: usize| on_device[n].device_ptr(&stream).0);
    let given = Tables { offset: [3, 0, 39, 17], table, scale: 2.5 };
    let y = stream.alloc_zeros::<f32>(32).unwrap();
    launch!(card, stream, "by_struct", 32, &y, &given).unwrap();
    let wanted = |i: usize| f64::from(tables[i % 3][given.offset[i % 4] as usize]) * 2.5;
    assert_near(&stream.clone_dtoh(&y).unwrap(), &(0..32).map(wanted).collect::<Vec<_>>(), 1e-6);
}

#[test]
fn constant_memory_is_set_by_the_host() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let module = card.context.load_module(Ptx::from_src(PTX)).unwrap();
    let kernel = module.load_function("by_code").unwrap();
    let codes: Vec<f32> = numbers(13, 16);
    let mut variable = module.get_global("codes", &stream).unwrap();
    // SAFETY: the variable is an array of 16 floats.
    let mut variable = unsafe { variable.transmute_mut::<f32>(16) }.unwrap();
    stream.memcpy_htod(&codes, &mut variable).unwrap();
    let code: Vec<u8> = (0..64u8).map(|n| n.wrapping_mul(5)).collect();
    let (dc, y) = (stream.clone_htod(&code).unwrap(), stream.alloc_zeros::<f32>(64).unwrap());
    // SAFETY: the kernel takes two addresses of 64 elements.
    unsafe { stream.launch_builder(&kernel).arg(&y).arg(&dc).launch(block_of(64)) }.unwrap();
    let wanted: Vec<f32> = code.iter().map(|code| codes[usize::from(code & 15)]).collect();
    assert_eq!(stream.clone_dtoh(&y).unwrap(), wanted);
}

#[test]
fn a_whole_grid_meets() {
    let card = card();
    let stream = card.context.new_stream().unwrap();
    let kernel = function(&card.context, include_str!("ptx/bugs.sm_90a.ptx"), "around");
    let config = LaunchConfig { grid_dim: (6, 1, 1), block_dim: (64, 1, 1), shared_mem_bytes: 0 };
    for _ in seeds(&card) {
        let (y, x) = (stream.alloc_zeros::<i32>(384).unwrap(), stream.alloc_zeros::<i32>(384).unwrap());
        // SAFETY: the kernel takes two addresses of an element for each thread.
        unsafe { stream.launch_builder(&kernel).arg(&y).arg(&x).launch_cooperative(config) }.unwrap();
        assert_eq!(stream.clone_dtoh(&y).unwrap(), (0..384).map(|n| (n + 64) % 384).collect::<Vec<_>>());
    }
}

/// What `complain` does about these numbers; gives the result code.
fn complain(card: &Card, x: &[i32; 32]) -> u32 {
    let stream = card.context.new_stream().unwrap();
    let (dx, y) = (stream.clone_htod(x).unwrap(), stream.alloc_zeros::<i32>(32).unwrap());
    let result = launch!(card, stream, "complain", 32, &y, &dx);
    if result.is_ok() {
        assert_eq!(stream.clone_dtoh(&y).unwrap(), x);
    }
    code(result)
}

#[test]
fn a_kernel_prints() {
    if std::env::var_os("CUDA_EMU_TEST_PRINTS").is_some() {
        let mut x = [1; 32];
        (x[3], x[20]) = (-7, -8);
        assert_eq!(complain(&card(), &x), 0);
        return;
    }
    let program = std::env::current_exe().unwrap();
    let child = std::process::Command::new(program)
        .args(["--exact", "a_kernel_prints", "--nocapture", "--test-threads=1"])
        .env("CUDA_EMU_TEST_PRINTS", "1")
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    let printed = [child.stdout, child.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    for line in ["thread 3 has -7 of those, -3.50\n", "thread 20 has -8 of those, -4.00\n"] {
        assert!(printed.contains(line), "{printed}");
    }
}

#[test]
fn an_assertion_fails() {
    let card = card();
    if !card.emulator.is_emulated() {
        return eprintln!("skipped: an assertion that fails would end this process's use of a card");
    }
    let mut x = [1; 32];
    x[9] = 100;
    assert_eq!(complain(&card, &x), 710);
    let report = card.emulator.last_fault().unwrap();
    assert_eq!((report.kind.as_str(), report.kernel.as_str()), ("Assert", "complain"));
    assert!(report.text.contains("v != 100") && report.text.contains("wide.cu"), "{}", report.text);
}
