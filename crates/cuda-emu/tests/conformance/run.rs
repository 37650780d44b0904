//! Runs a row in the emulator.

use cuda_emu::{Device, DeviceConfig, Launch, Module, TensorMap, Vectors, launch};

use super::row::{Extra, Row};

/// Results of each thread, and the memory afterwards.
pub type Outcome = (Vec<Vec<u64>>, Vec<u8>);

/// Inputs as the kernel reads them.
pub fn input_bytes(row: &Row) -> Vec<u8> {
    row.inputs.iter().flatten().flat_map(|v| v.to_le_bytes()).collect()
}

/// Results as rows compare them.
pub fn outputs(row: &Row, bytes: &[u8]) -> Vec<Vec<u64>> {
    let words: Vec<u64> = bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect();
    let per_thread = row.outs.len().max(1);
    words.chunks(per_thread).take(row.inputs.len()).map(<[u64]>::to_vec).collect()
}

/// Runs a row, with vector instructions of at most a width.
pub fn emulate(row: &Row, vectors: Vectors) -> Result<Outcome, String> {
    let device = Device::new(DeviceConfig {
        arch: row.arch,
        threads: 1,
        vectors,
        warp_instructions_max: 1 << 22,
        ..DeviceConfig::default()
    });
    let module = Module::load(&device, &row.ptx()).map_err(|e| e.to_string())?;
    let kernel = module.kernel("row").map_err(|e| e.to_string())?;
    let allocate = |bytes: &[u8]| {
        let address = device.memory().alloc(bytes.len().max(16) as u64).unwrap();
        device.memory().copy_in(address, bytes).unwrap();
        address
    };
    let input = allocate(&input_bytes(row));
    let output = allocate(&vec![0; row.inputs.len() * row.outs.len() * 8]);
    let memory = allocate(&row.memory);
    let mut params = [input, output, memory].map(u64::to_le_bytes).concat();
    match &row.extra {
        Extra::None => {}
        Extra::Bytes(bytes) => {
            params.resize(64, 0);
            params.extend(bytes);
        }
        Extra::Map(map) => {
            let map = TensorMap { address: map.address + memory, ..map.clone() };
            params.resize(64, 0);
            params.extend(map.encode().map_err(|e| e.to_string())?);
        }
    }
    launch(&device, &Launch::new(&kernel, row.grid, row.block, &params)).map_err(|e| e.to_string())?;
    let read = |address: u64, length: usize| {
        let mut bytes = vec![0; length];
        device.memory().copy_out(address, &mut bytes).unwrap();
        bytes
    };
    let results = outputs(row, &read(output, row.inputs.len() * row.outs.len() * 8));
    Ok((results, read(memory, row.memory.len())))
}
