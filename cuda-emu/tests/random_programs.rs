//! Random programs give the same on the vector instructions and on the plain loop, in every order of
//! warps. Each is made from its seed alone: branches, loops of bounded length, shared memory,
//! shuffles, arithmetic of all register sizes.

#[path = "programs/generator.rs"]
mod generator;

use cuda_emu::{Device, DeviceConfig, Launch, Module, launch};

const PROGRAMS: u64 = 400;
/// Threads of a block, and blocks.
const SHAPE: (u32, u32) = (64, 2);

/// What a program leaves in its output, or its fault.
fn run(text: &str, portable: bool, seed: u64) -> Result<Vec<u8>, String> {
    let device = Device::new(DeviceConfig {
        portable,
        seed,
        threads: 1,
        warp_instructions_max: 1 << 20,
        ..DeviceConfig::default()
    });
    let module = Module::load(&device, text).map_err(|e| e.to_string())?;
    let kernel = module.kernel("program").map_err(|e| e.to_string())?;
    let bytes = u64::from(SHAPE.0 * SHAPE.1) * generator::OUTPUT_BYTES;
    let output = device.memory().alloc(bytes).unwrap();
    launch(&device, &Launch::new(&kernel, [SHAPE.1, 1, 1], [SHAPE.0, 1, 1], &output.to_le_bytes()))
        .map_err(|e| e.to_string())?;
    let mut found = vec![0; bytes as usize];
    device.memory().copy_out(output, &mut found).unwrap();
    Ok(found)
}

#[test]
fn vector_and_plain_loops_agree() {
    for seed in 0..PROGRAMS {
        let text = generator::program(seed);
        let wanted = run(&text, true, 0).unwrap_or_else(|e| panic!("program {seed}: {e}\n{text}"));
        for order in [0, seed + 1] {
            let found = run(&text, false, order).unwrap_or_else(|e| panic!("program {seed}: {e}\n{text}"));
            let different = found.iter().zip(&wanted).position(|(f, w)| f != w);
            assert_eq!(different, None, "program {seed}, order {order}: first different byte\n{text}");
        }
    }
}
