//! Lists the kernels of PTX files, and for each that the emulator cannot run the reason.
//!
//! `cargo run -p cuda-emu --example load -- kernels.ptx`

use cuda_emu::{Arch, Device, DeviceConfig, Module};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::new(DeviceConfig { arch: Arch::Sm90, ..DeviceConfig::default() });
    for path in std::env::args().skip(1) {
        let module = Module::load(&device, &std::fs::read_to_string(&path)?)?;
        println!("{path}: target {}", module.target());
        for name in module.kernel_names() {
            match module.kernel(name) {
                Ok(kernel) => println!(
                    "  {name}: {} parameter bytes, {} shared, {} local, about {} registers",
                    kernel.param_bytes(),
                    kernel.static_shared_bytes(),
                    kernel.local_bytes(),
                    kernel.registers_estimate()
                ),
                Err(problem) => println!("  {name}: NOT SUPPORTED: {problem}"),
            }
        }
    }
    Ok(())
}
