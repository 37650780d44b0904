//! What tests share: buffers, parameters, numbers; the emulated card is in `card`.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod card;
pub mod edit;

use cuda_emu::{Device, DeviceConfig, Kernel, Launch, LaunchError, LaunchStats, Module, launch};

/// Loads committed PTX.
pub fn load(device: &Device, text: &str) -> Module {
    let module = Module::load(device, text).unwrap();
    assert_eq!(module.problems().next(), None);
    module
}

/// A kernel `k` around a body, with its thread in %r1, shared memory from %r2 on, and its parameter in
/// %rd1.
pub fn kernel_of(target: &str, body: &str) -> String {
    format!(
        ".version 9.0\n.target {target}\n.address_size 64\n.extern .shared .align 16 .b8 smem[];\n
.visible .entry k(.param .u64 a) {{
  .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<40>; .reg .f32 %f<9>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [a]; mov.u32 %r1, %tid.x; mov.u32 %r2, smem;
  {body}
  ret;
}}"
    )
}

/// A parameter block, built in order.
pub struct Params<'k> {
    kernel: &'k Kernel,
    bytes: Vec<u8>,
    next: usize,
}

impl<'k> Params<'k> {
    pub fn new(kernel: &'k Kernel) -> Self {
        Self { kernel, bytes: vec![0; kernel.param_bytes() as usize], next: 0 }
    }

    pub fn push(mut self, value: &[u8]) -> Self {
        let param = &self.kernel.params()[self.next];
        assert_eq!(param.bytes as usize, value.len(), "{}", param.name);
        self.bytes[param.offset as usize..][..value.len()].copy_from_slice(value);
        self.next += 1;
        self
    }

    pub fn pointer(self, value: u64) -> Self {
        self.push(&value.to_le_bytes())
    }

    pub fn int(self, value: i32) -> Self {
        self.push(&value.to_le_bytes())
    }

    pub fn float(self, value: f32) -> Self {
        self.push(&value.to_le_bytes())
    }

    pub fn launch(
        self,
        device: &Device,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
    ) -> Result<LaunchStats, LaunchError> {
        assert_eq!(self.next, self.kernel.params().len());
        launch(
            device,
            &Launch { dynamic_shared_bytes: shared, ..Launch::new(self.kernel, grid, block, &self.bytes) },
        )
    }
}

/// A device whose warps run in an order of their own per seed.
pub fn device(seed: u64) -> Device {
    Device::new(DeviceConfig { seed, ..DeviceConfig::default() })
}

/// Uploads values.
pub fn upload<T, const N: usize>(device: &Device, values: &[T], bytes: impl Fn(&T) -> [u8; N]) -> u64 {
    let raw: Vec<u8> = values.iter().flat_map(bytes).collect();
    let address = device.memory().alloc(raw.len() as u64).unwrap();
    device.memory().copy_in(address, &raw).unwrap();
    address
}

/// Allocates room for floats and fills nothing.
pub fn floats(device: &Device, count: usize) -> u64 {
    device.memory().alloc(count as u64 * 4).unwrap()
}

/// Downloads floats.
pub fn download(device: &Device, address: u64, count: usize) -> Vec<f32> {
    let mut bytes = vec![0; count * 4];
    device.memory().copy_out(address, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// Downloads f16 as f32.
pub fn download_halves(device: &Device, address: u64, count: usize) -> Vec<f32> {
    let mut bytes = vec![0; count * 2];
    device.memory().copy_out(address, &mut bytes).unwrap();
    bytes.chunks_exact(2).map(|c| half(u16::from_le_bytes(c.try_into().unwrap()))).collect()
}

/// Value of f16 bits.
pub fn half(bits: u16) -> f32 {
    let (sign, exponent, mantissa) = (bits >> 15, i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    let value = match exponent {
        0 => mantissa * (2f32).powi(-24),
        31 => {
            if mantissa == 0.0 {
                f32::INFINITY
            } else {
                f32::NAN
            }
        }
        _ => (1.0 + mantissa / 1024.0) * (2f32).powi(exponent - 15),
    };
    if sign == 1 { -value } else { value }
}

/// A generator of test numbers.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ self.0 >> 33;
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ x >> 29
    }

    /// f16 bits of numbers below 2 in magnitude.
    pub fn halves(&mut self, count: usize) -> Vec<u16> {
        (0..count).map(|_| (self.next() as u16 & 0x8fff) | 0x3000).collect()
    }
}

/// Fails unless all values are near what they should be.
pub fn assert_near(found: &[f32], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len());
    for (n, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let difference = (f64::from(*found) - wanted).abs();
        assert!(difference <= tolerance * (1.0 + wanted.abs()), "element {n}: {found} instead of {wanted}");
    }
}
