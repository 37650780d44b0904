//! Measures the time per thread instruction on one thread, with and without checks.
//!
//! `cargo run --release -p cuda-emu --example speed`

use std::time::Instant;

use cuda_emu::{Arch, Checks, Device, DeviceConfig, Launch, Module, launch};

struct Case {
    kernel: &'static str,
    grid: [u32; 3],
    block: u32,
    shared: u32,
    params: Vec<Vec<u8>>,
}

fn buffer(device: &Device, bytes: u64) -> Vec<u8> {
    let address = device.memory().alloc(bytes).unwrap();
    // 1.5 in f16, and small positive numbers in f32.
    device.memory().fill(address, &[0x00, 0x3e], bytes / 2).unwrap();
    address.to_le_bytes().to_vec()
}

fn cases(device: &Device) -> Vec<Case> {
    let int = |v: i32| v.to_le_bytes().to_vec();
    let float = |v: f32| v.to_le_bytes().to_vec();
    let b = |bytes| buffer(device, bytes);
    vec![
        Case {
            kernel: "rmsnorm",
            grid: [256, 1, 1],
            block: 256,
            shared: 0,
            params: vec![b(1 << 20), b(1 << 20), b(1 << 12), int(576), float(1e-5)],
        },
        Case {
            kernel: "gemm",
            grid: [9, 4, 1],
            block: 128,
            shared: 0,
            params: vec![b(1 << 20), b(1 << 20), b(1 << 20), int(256), int(576), int(576)],
        },
        Case {
            kernel: "gemv_int8",
            grid: [384, 1, 1],
            block: 128,
            shared: 0,
            params: vec![b(1 << 14), b(1 << 20), b(1 << 14), b(1 << 12), int(1536), int(576)],
        },
        Case {
            kernel: "attention",
            grid: [9, 1, 1],
            block: 128,
            shared: 4000,
            params: vec![b(1 << 16), b(1 << 16), b(1 << 20), b(1 << 20), int(1000), float(0.125)],
        },
        Case {
            kernel: "argmax",
            grid: [24, 1, 1],
            block: 256,
            shared: 0,
            params: vec![b(16), b(200_000), int(49_152)],
        },
    ]
}

fn main() {
    for checks in [Checks::Bounds, Checks::All] {
        let device =
            Device::new(DeviceConfig { arch: Arch::Sm80, checks, threads: 1, ..DeviceConfig::default() });
        let module = Module::load(&device, include_str!("../tests/ptx/llm.sm_80.ptx")).unwrap();
        println!("{checks:?}");
        for case in cases(&device) {
            let kernel = module.kernel(case.kernel).unwrap();
            let mut params = vec![0; kernel.param_bytes() as usize];
            for (param, bytes) in kernel.params().iter().zip(&case.params) {
                params[param.offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            let what = Launch {
                dynamic_shared_bytes: case.shared,
                ..Launch::new(&kernel, case.grid, [case.block, 1, 1], &params)
            };
            let stats = launch(&device, &what).unwrap();
            let mut best = f64::MAX;
            for _ in 0..10 {
                let start = Instant::now();
                launch(&device, &what).unwrap();
                best = best.min(start.elapsed().as_secs_f64());
            }
            println!(
                "  {:10} {:9} thread instructions, {:7.3} ms, {:.3} ns per thread instruction, {:.1} per warp instruction",
                case.kernel,
                stats.thread_instructions,
                best * 1e3,
                best * 1e9 / stats.thread_instructions as f64,
                best * 1e9 / stats.warp_instructions as f64
            );
        }
    }
}
