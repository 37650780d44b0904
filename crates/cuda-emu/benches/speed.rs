//! How fast kernels are emulated: kernels of a language model on one thread, with and without
//! checks, and one token of a model of 135M parameters on two.
//!
//! An element is a thread instruction: 2 Gelem/s are 0.5 ns each. The kernels' times are of the
//! processor, so that other work on the machine counts less; the token's is the clock's. Answers
//! are asserted before they are timed; `tests/llm.rs` looks at the same kernels closely.

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use cuda_emu::{Arch, Checks, Device, DeviceConfig, Launch, LaunchStats, Module, launch};

/// The value of every f16 of every buffer.
const VALUE: f32 = 1.5;
/// Its bits, for pairs also those of the f32 that a pair is.
const HALF: [u8; 2] = [0x00, 0x3e];

fn device(checks: Checks, threads: usize) -> Device {
    Device::new(DeviceConfig { arch: Arch::Sm80, checks, threads, ..DeviceConfig::default() })
}

fn module(device: &Device) -> Module {
    Module::load(device, include_str!("../tests/ptx/llm.sm_80.ptx")).unwrap()
}

/// An argument of a kernel.
enum Argument {
    Pointer(u64),
    Int(i32),
    Float(f32),
}
use Argument::{Float, Int, Pointer};

impl Argument {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Pointer(address) => address.to_le_bytes().to_vec(),
            Int(value) => value.to_le_bytes().to_vec(),
            Float(value) => value.to_le_bytes().to_vec(),
        }
    }
}

/// A launch with its arguments.
struct Work {
    kernel: &'static str,
    grid: u32,
    block: u32,
    shared: u32,
    arguments: Vec<Argument>,
}

impl Work {
    fn run(&self, device: &Device, module: &Module) -> LaunchStats {
        let kernel = module.kernel(self.kernel).unwrap();
        let mut params = vec![0; kernel.param_bytes() as usize];
        for (param, argument) in kernel.params().iter().zip(&self.arguments) {
            let bytes = argument.bytes();
            params[param.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        // The matrix product's tiles are 64 by 64: its grid has nine columns.
        let grid = if self.kernel == "gemm" { [9, self.grid, 1] } else { [self.grid, 1, 1] };
        let what = Launch {
            dynamic_shared_bytes: self.shared,
            ..Launch::new(&kernel, grid, [self.block, 1, 1], &params)
        };
        launch(device, &what).unwrap()
    }
}

fn buffer(device: &Device, bytes: u64) -> Argument {
    let address = device.memory().alloc(bytes).unwrap();
    device.memory().fill(address, &HALF, bytes / 2).unwrap();
    Pointer(address)
}

/// The kernels alone, each with the f32 or f16 that its first result is.
fn kernels(device: &Device) -> Vec<(Work, Vec<u8>)> {
    let b = |bytes| buffer(device, bytes);
    // Bytes 0 and 62 in turn, times 1.5, times the f32 that two halves make.
    let scale = f32::from_le_bytes([HALF[0], HALF[1], HALF[0], HALF[1]]);
    let row = 576.0 / 2.0 * f32::from(HALF[1]) * VALUE * scale;
    let normal = VALUE / (VALUE * VALUE + 1e-5).sqrt() * VALUE;
    assert!((normal - VALUE).abs() < 1e-4, "rounds to the f16");
    vec![
        (
            Work {
                kernel: "rmsnorm",
                grid: 256,
                block: 256,
                shared: 0,
                arguments: vec![b(1 << 20), b(1 << 20), b(1 << 12), Int(576), Float(1e-5)],
            },
            HALF.to_vec(),
        ),
        (
            Work {
                kernel: "gemm",
                grid: 4,
                block: 128,
                shared: 0,
                arguments: vec![b(1 << 20), b(1 << 20), b(1 << 20), Int(256), Int(576), Int(576)],
            },
            (576.0 * VALUE * VALUE).to_le_bytes().to_vec(),
        ),
        (
            Work {
                kernel: "gemv_int8",
                grid: 384,
                block: 128,
                shared: 0,
                arguments: vec![b(1 << 14), b(1 << 20), b(1 << 14), b(1 << 12), Int(1536), Int(576)],
            },
            row.to_le_bytes().to_vec(),
        ),
        (
            Work {
                kernel: "attention",
                grid: 9,
                block: 128,
                shared: 4000,
                arguments: vec![b(1 << 16), b(1 << 16), b(1 << 20), b(1 << 20), Int(1000), Float(0.125)],
            },
            VALUE.to_le_bytes().to_vec(),
        ),
    ]
}

/// Time of this process's threads.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a value that lives during the call.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn each_kernel(criterion: &mut Criterion) {
    for checks in [Checks::Bounds, Checks::All] {
        let device = device(checks, 1);
        let module = module(&device);
        let mut group = criterion.benchmark_group(format!("checks_{checks:?}").to_lowercase());
        for (work, wanted) in kernels(&device) {
            let stats = work.run(&device, &module);
            let Pointer(out) = work.arguments[0] else { panic!("results come first") };
            let mut found = vec![0; wanted.len()];
            device.memory().copy_out(out, &mut found).unwrap();
            assert_eq!(found, wanted, "{}", work.kernel);
            group.throughput(Throughput::Elements(stats.thread_instructions));
            group.bench_function(work.kernel, |bencher| {
                bencher.iter_custom(|count| {
                    let start = processor_time();
                    (0..count).for_each(|_| drop(work.run(&device, &module)));
                    processor_time() - start
                });
            });
        }
    }
}

/// A model's shape.
struct Model {
    layers: u32,
    hidden: i32,
    heads: u32,
    kv_heads: u32,
    ffn: i32,
    vocab: i32,
}

/// The launches of one token at position `seq` of the model; each kernel works on buffers of its own.
fn token(device: &Device, model: &Model, seq: i32) -> Vec<Work> {
    let (hidden, heads) = (model.hidden, model.heads);
    let memory = |bytes: i32| buffer(device, bytes as u64);
    let norm = || Work {
        kernel: "rmsnorm",
        grid: 1,
        block: 256,
        shared: 0,
        arguments: vec![memory(hidden * 2), memory(hidden * 2), memory(hidden * 2), Int(hidden), Float(1e-5)],
    };
    let gemv = |n: i32, k: i32| Work {
        kernel: "gemv_int8",
        grid: n as u32 / 4,
        block: 128,
        shared: 0,
        arguments: vec![memory(n * 4), memory(n * k), memory(n * 4), memory(k * 2), Int(n), Int(k)],
    };
    let rope = |heads: u32| Work {
        kernel: "rope",
        grid: heads,
        block: 32,
        shared: 0,
        arguments: vec![memory(heads as i32 * 128), Int(seq), Float(10_000.0)],
    };
    let attention = || Work {
        kernel: "attention",
        grid: heads,
        block: 128,
        shared: seq as u32 * 4,
        arguments: vec![
            memory(heads as i32 * 256),
            memory(heads as i32 * 128),
            memory(seq * 128),
            memory(seq * 128),
            Int(seq),
            Float(0.125),
        ],
    };
    let kv = model.kv_heads as i32 * 64;
    let mut works = Vec::new();
    for _ in 0..model.layers {
        works.extend([norm(), gemv(hidden, hidden), gemv(kv, hidden), gemv(kv, hidden)]);
        works.extend([rope(heads), rope(model.kv_heads), attention(), gemv(hidden, hidden)]);
        works.extend([norm(), gemv(model.ffn, hidden), gemv(model.ffn, hidden), gemv(hidden, model.ffn)]);
    }
    let argmax = Work {
        kernel: "argmax",
        grid: 24,
        block: 256,
        shared: 0,
        arguments: vec![memory(8), memory(model.vocab * 4), Int(model.vocab)],
    };
    works.extend([norm(), gemv(model.vocab, hidden), argmax]);
    works
}

fn decode(criterion: &mut Criterion) {
    let model = Model { layers: 30, hidden: 576, heads: 9, kv_heads: 3, ffn: 1536, vocab: 49_152 };
    let device = device(Checks::All, 2);
    let module = module(&device);
    let works = token(&device, &model, 128);
    let mut total = LaunchStats::default();
    works.iter().for_each(|work| total.add(&work.run(&device, &module)));
    // The weights are 134.5 MB; each is multiplied with two bytes.
    assert!((134_479_872 * 3..145_000_000 * 3).contains(&total.global_bytes_read), "{total:?}");
    let mut group = criterion.benchmark_group("decode_token");
    group.sample_size(10).throughput(Throughput::Elements(total.thread_instructions));
    group.bench_function("135m_two_threads", |bencher| {
        bencher.iter_custom(|count| {
            let start = Instant::now();
            for _ in 0..count {
                works.iter().for_each(|work| drop(work.run(&device, &module)));
            }
            start.elapsed()
        });
    });
}

criterion_group!(benches, each_kernel, decode);
criterion_main!(benches);
