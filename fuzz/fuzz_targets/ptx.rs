//! Any bytes as PTX: loaded or refused with an error; each kernel that loads runs to its end or to a
//! fault, within a limit of instructions.

#![no_main]

use cuda_emu::{Arch, Device, DeviceConfig, Element, Kernel, Launch, Module, Swizzle, TensorMap, launch};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let device = Device::new(DeviceConfig {
        arch: Arch::Sm90,
        threads: 1,
        memory_bytes: 64 << 20,
        warp_instructions_max: 10_000,
        ..DeviceConfig::default()
    });
    let Ok(module) = Module::load(&device, text) else { return };
    let Ok(buffer) = device.memory().alloc(1 << 16) else { return };
    if device.memory().fill(buffer, &[1, 0, 0, 0], 1 << 14).is_err() {
        return;
    }
    for name in module.kernel_names() {
        let Ok(kernel) = module.kernel(name) else { continue };
        let block = kernel.block_required().unwrap_or([kernel.threads_max().min(32), 1, 1]);
        let params = params(&kernel, buffer);
        let described = Launch::new(&kernel, [1, 1, 1], block, &params);
        let _ = launch(&device, &Launch { dynamic_shared_bytes: 1024, ..described });
    }
});

/// Addresses for what could be one, tensor maps likewise, small numbers for the rest.
fn params(kernel: &Kernel, buffer: u64) -> Vec<u8> {
    let mut bytes = vec![0; kernel.param_bytes() as usize];
    for param in kernel.params() {
        if param.bytes as usize == TensorMap::BYTES {
            let (element, swizzle) = (Element::Half, Swizzle::Bytes128);
            let (dims, strides, box_dims) = (vec![64, 64], vec![128], vec![64, 64]);
            let map =
                TensorMap { element, address: buffer, dims, strides, box_dims, swizzle, fill_nan: false };
            if let Ok(map) = map.encode() {
                bytes[param.offset as usize..][..TensorMap::BYTES].copy_from_slice(&map);
            }
            continue;
        }
        let value = if param.bytes == 8 { buffer } else { 3 };
        let length = param.bytes.min(8) as usize;
        bytes[param.offset as usize..][..length].copy_from_slice(&value.to_le_bytes()[..length]);
    }
    bytes
}
