//! Kernels of a language model, compiled by nvcc for sm_80, against plain code in f64.

mod support;

use cuda_emu::{Checks, Device, DeviceConfig, FaultKind, LaunchError};
use support::edit::Edit;
use support::{Params, Random, assert_near, device, download, download_halves, floats, half, load, upload};

const PTX: &str = include_str!("ptx/llm.sm_80.ptx");

/// Seeds of warp order: 0 is in order.
const SEEDS: std::ops::Range<u64> = 0..20;

fn h(values: &[u16]) -> Vec<f64> {
    values.iter().map(|v| f64::from(half(*v))).collect()
}

#[test]
fn rmsnorm() {
    for seed in SEEDS {
        let device = device(seed);
        let module = load(&device, PTX);
        let kernel = module.kernel("rmsnorm").unwrap();
        let (rows, n) = (5, 579);
        let mut random = Random(seed);
        let (x, w) = (random.halves(rows * n), random.halves(n));
        let dx = upload(&device, &x, |v| v.to_le_bytes());
        let dw = upload(&device, &w, |v| v.to_le_bytes());
        let y = device.memory().alloc((rows * n * 2) as u64).unwrap();
        let stats = Params::new(&kernel).pointer(y).pointer(dx).pointer(dw).int(n as i32).float(1e-5);
        let stats = stats.launch(&device, [rows as u32, 1, 1], [256, 1, 1], 0).unwrap();
        assert_eq!(stats.global_bytes_written, (rows * n * 2) as u64);
        assert_eq!(stats.global_bytes_read, (rows * n * 6) as u64);
        let (x, w) = (h(&x), h(&w));
        let wanted: Vec<f64> = (0..rows * n)
            .map(|i| {
                let row = &x[i / n * n..][..n];
                let mean = row.iter().map(|v| v * v).sum::<f64>() / n as f64;
                x[i] / (mean + 1e-5).sqrt() * w[i % n]
            })
            .collect();
        assert_near(&download_halves(&device, y, rows * n), &wanted, 1e-3);
    }
}

fn run_gemm(
    device: &Device,
    ptx: &str,
    (m, n, k): (usize, usize, usize),
) -> Result<cuda_emu::LaunchStats, LaunchError> {
    let module = load(device, ptx);
    let kernel = module.kernel("gemm").unwrap();
    let mut random = Random(7);
    let (a, b) = (random.halves(m * k), random.halves(n * k));
    let da = upload(device, &a, |v| v.to_le_bytes());
    let db = upload(device, &b, |v| v.to_le_bytes());
    let c = floats(device, m * n);
    let params =
        Params::new(&kernel).pointer(c).pointer(da).pointer(db).int(m as i32).int(n as i32).int(k as i32);
    let grid = [n.div_ceil(64) as u32, m.div_ceil(64) as u32, 1];
    let stats = params.launch(device, grid, [128, 1, 1], 0)?;
    let (a, b) = (h(&a), h(&b));
    let dot = |i: usize| (0..k).map(|e| a[i / n * k + e] * b[i % n * k + e]).sum::<f64>();
    assert_near(&download(device, c, m * n), &(0..m * n).map(dot).collect::<Vec<_>>(), 1e-4);
    Ok(stats)
}

#[test]
fn gemm() {
    for seed in SEEDS {
        let stats = run_gemm(&device(seed), PTX, (37, 70, 96)).unwrap();
        assert_eq!(stats.tensor_multiply_adds, 64 * 128 * 96);
    }
}

#[test]
fn a_missing_barrier_of_gemm_is_a_race() {
    // The loop's two barriers, unrolled: the one at its end, which keeps a stage from being loaded
    // while others still read it.
    let ptx = Edit::nth((1, 2), "gemm", "bar.sync \t0;", "").apply(PTX);
    for seed in SEEDS {
        match run_gemm(&device(seed), &ptx, (64, 64, 256)) {
            Err(LaunchError::Fault(fault)) => {
                let named = matches!(fault.kind, FaultKind::Race { .. } | FaultKind::NotAwaited { .. });
                assert!(named && fault.place.source[0].file.ends_with("llm.cu"), "{fault}");
            }
            other => panic!("not found: {other:?}"),
        }
    }
}

#[test]
fn gemv_of_bytes() {
    for seed in SEEDS {
        let device = device(seed);
        let module = load(&device, PTX);
        let kernel = module.kernel("gemv_int8").unwrap();
        let (n, k) = (77, 576);
        let mut random = Random(seed);
        let x = random.halves(k);
        let w: Vec<i8> = (0..n * k).map(|_| random.next() as i8).collect();
        let scale: Vec<f32> = (0..n).map(|i| 0.01 + i as f32 * 1e-4).collect();
        let dw = upload(&device, &w, |v| v.to_le_bytes());
        let ds = upload(&device, &scale, |v| v.to_le_bytes());
        let dx = upload(&device, &x, |v| v.to_le_bytes());
        let y = floats(&device, n);
        let params =
            Params::new(&kernel).pointer(y).pointer(dw).pointer(ds).pointer(dx).int(n as i32).int(k as i32);
        let stats = params.launch(&device, [n.div_ceil(4) as u32, 1, 1], [128, 1, 1], 0).unwrap();
        assert_eq!(stats.global_bytes_read, (n * (k * 3 + 4)) as u64);
        let x = h(&x);
        let dot = |row: usize| {
            (0..k).map(|e| f64::from(w[row * k + e]) * x[e]).sum::<f64>() * f64::from(scale[row])
        };
        // Sums of 16 products are in f16.
        assert_near(&download(&device, y, n), &(0..n).map(dot).collect::<Vec<_>>(), 0.05);
    }
}

#[test]
fn attention() {
    for seed in SEEDS {
        let device = device(seed);
        let module = load(&device, PTX);
        let kernel = module.kernel("attention").unwrap();
        let (heads, seq) = (3, 101);
        let mut random = Random(seed);
        let (q, k, v) = (random.halves(heads * 64), random.halves(seq * 64), random.halves(seq * 64));
        let [dq, dk, dv] = [&q, &k, &v].map(|values| upload(&device, values, |v| v.to_le_bytes()));
        let out = floats(&device, heads * 64);
        let params = Params::new(&kernel)
            .pointer(out)
            .pointer(dq)
            .pointer(dk)
            .pointer(dv)
            .int(seq as i32)
            .float(0.125);
        params.launch(&device, [heads as u32, 1, 1], [128, 1, 1], seq as u32 * 4).unwrap();
        let (q, k, v) = (h(&q), h(&k), h(&v));
        let mut wanted = Vec::new();
        for head in 0..heads {
            let score = |t: usize| (0..64).map(|d| q[head * 64 + d] * k[t * 64 + d]).sum::<f64>() * 0.125;
            let weights: Vec<f64> = (0..seq).map(|t| score(t).exp()).collect();
            let sum: f64 = weights.iter().sum();
            wanted.extend((0..64).map(|d| (0..seq).map(|t| weights[t] * v[t * 64 + d]).sum::<f64>() / sum));
        }
        assert_near(&download(&device, out, heads * 64), &wanted, 1e-5);
        // Too little dynamic shared memory.
        let params = Params::new(&kernel)
            .pointer(out)
            .pointer(dq)
            .pointer(dk)
            .pointer(dv)
            .int(seq as i32)
            .float(0.125);
        let Err(LaunchError::Fault(fault)) = params.launch(&device, [1, 1, 1], [128, 1, 1], 400) else {
            panic!("not found")
        };
        assert!(matches!(fault.kind, FaultKind::OutOfBounds { .. }), "{fault}");
    }
}

#[test]
fn argmax_and_rope() {
    for (seed, threads) in SEEDS.flat_map(|seed| [(seed, 1), (seed, 2)]) {
        let config = DeviceConfig { threads, seed, checks: Checks::All, ..DeviceConfig::default() };
        let device = Device::new(config);
        let module = load(&device, PTX);
        let mut random = Random(5);
        let x: Vec<f32> = (0..49_152).map(|_| (random.next() % 100_000) as f32 - 50_000.0).collect();
        let dx = upload(&device, &x, |v| v.to_le_bytes());
        let best = upload(&device, &[0u64], |v| v.to_le_bytes());
        let kernel = module.kernel("argmax").unwrap();
        let params = Params::new(&kernel).pointer(best).pointer(dx).int(x.len() as i32);
        params.launch(&device, [24, 1, 1], [256, 1, 1], 0).unwrap();
        let mut word = [0; 8];
        device.memory().copy_out(best, &mut word).unwrap();
        let most = x.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!(!(u64::from_le_bytes(word) as u32) as usize, x.iter().position(|v| *v == most).unwrap());

        let q = random.halves(128);
        let dq = upload(&device, &q, |v| v.to_le_bytes());
        let kernel = module.kernel("rope").unwrap();
        Params::new(&kernel)
            .pointer(dq)
            .int(12_345)
            .float(10_000.0)
            .launch(&device, [2, 1, 1], [32, 1, 1], 0)
            .unwrap();
        let q = h(&q);
        let wanted: Vec<f64> = (0..128)
            .map(|i| {
                let (head, d) = (i / 64 * 64, i % 64);
                // As the kernel: the frequency in f32.
                let angle = f64::from(12_345.0 * (10_000f32).powf(-2.0 * (d % 32) as f32 / 64.0));
                let (a, b) = (q[head + d % 32], q[head + d % 32 + 32]);
                if d < 32 { a * angle.cos() - b * angle.sin() } else { b * angle.cos() + a * angle.sin() }
            })
            .collect();
        assert_near(&download_halves(&device, dq, 128), &wanted, 2e-3);
    }
}
