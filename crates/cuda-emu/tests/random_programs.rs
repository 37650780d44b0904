//! Random programs give the same on the vector instructions and on the plain loop, in every order of
//! warps. Each is made from its seed alone: branches, loops of bounded length, shared memory,
//! shuffles, atomics, copies, matrices, arithmetic and conversions of all register sizes.

#[path = "programs/generator.rs"]
mod generator;

use cuda_emu::{Arch, Device, DeviceConfig, Launch, Module, Vectors, launch};

const PROGRAMS: u64 = 1000;

/// What a program leaves in its output, or its fault.
fn run(text: &str, vectors: Vectors, seed: u64) -> Result<Vec<u8>, String> {
    let device = Device::new(DeviceConfig {
        arch: Arch::Sm90,
        vectors,
        seed,
        threads: 1,
        warp_instructions_max: 1 << 20,
        ..DeviceConfig::default()
    });
    let module = Module::load(&device, text).map_err(|e| e.to_string())?;
    let kernel = module.kernel("program").map_err(|e| e.to_string())?;
    let (grid, block) = ([generator::BLOCKS, 1, 1], [generator::THREADS, 1, 1]);
    let bytes = u64::from(grid[0] * block[0]) * generator::OUTPUT_BYTES;
    let output = device.memory().alloc(bytes).unwrap();
    launch(&device, &Launch::new(&kernel, grid, block, &output.to_le_bytes())).map_err(|e| e.to_string())?;
    let mut found = vec![0; bytes as usize];
    device.memory().copy_out(output, &mut found).unwrap();
    Ok(found)
}

#[test]
fn vector_and_plain_loops_agree() {
    for seed in 0..PROGRAMS {
        let text = generator::program(seed);
        let wanted = run(&text, Vectors::None, 0).unwrap_or_else(|e| panic!("program {seed}: {e}\n{text}"));
        for (vectors, order) in [(Vectors::Avx2, 0), (Vectors::Avx2, seed + 1)] {
            let found = run(&text, vectors, order).unwrap_or_else(|e| panic!("program {seed}: {e}\n{text}"));
            let different = found.iter().zip(&wanted).position(|(f, w)| f != w);
            assert_eq!(
                different, None,
                "program {seed}, {vectors:?}, order {order}: first different byte\n{text}"
            );
        }
    }
}

#[test]
fn programs_have_instructions_of_all_kinds() {
    let kinds = [
        "atom.global",
        "atom.shared",
        "bar.red",
        "cp.async.ca",
        "cp.async.cg",
        "cvt.rn.satfinite",
        "fma.rn.bf16x2",
        "fma.rn.f64",
        "ldmatrix",
        "lop3",
        "match.any",
        "mma.sync.aligned.m16n8k16",
        "mma.sync.aligned.m16n8k32",
        "prmt.b32.f4e",
        "red.global",
        "red.shared",
        "redux",
        "shfl.sync.idx",
        "shfl.sync.up",
        "stmatrix",
        "vote.sync.uni",
    ];
    let texts: String = (0..PROGRAMS / 10).map(generator::program).collect();
    let missing: Vec<&str> = kinds.into_iter().filter(|kind| !texts.contains(kind)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
