//! Runs CUDA kernels on the CPU from their PTX, and checks what they do.
//!
//! A [`Device`] holds memory and configuration. [`Module::load`] parses and decodes PTX text, as
//! `nvcc -ptx` writes it, for sm_80 or sm_90a. [`launch`] runs a [`Kernel`] to its end and gives
//! its [`LaunchStats`], or the [`Fault`] that stopped it: an access out of bounds, a race in
//! shared memory, a read of bytes that nothing wrote, a barrier that not all threads reached.
//!
//! ```
//! use cuda_emu::{Device, DeviceConfig, Launch, Module, launch};
//!
//! let device = Device::new(DeviceConfig::default());
//! let module = Module::load(&device, "
//!     .version 9.0
//!     .target sm_80
//!     .address_size 64
//!     .visible .entry thread_ids(.param .u64 out) {
//!         .reg .b32 %r<2>; .reg .b64 %rd<4>;
//!         ld.param.u64 %rd1, [out];
//!         mov.u32 %r1, %tid.x;
//!         mul.wide.u32 %rd2, %r1, 4;
//!         add.s64 %rd3, %rd1, %rd2;
//!         st.global.u32 [%rd3], %r1;
//!         ret;
//!     }").unwrap();
//! let out = device.memory().alloc(64 * 4).unwrap();
//! let kernel = module.kernel("thread_ids").unwrap();
//! let stats = launch(&device, &Launch::new(&kernel, [1, 1, 1], [64, 1, 1], &out.to_le_bytes())).unwrap();
//! assert_eq!(stats.global_bytes_written, 64 * 4);
//! let mut bytes = [0; 4];
//! device.memory().copy_out(out + 63 * 4, &mut bytes).unwrap();
//! assert_eq!(u32::from_le_bytes(bytes), 63);
//! ```
//!
//! The way of a kernel through the modules: `ptx` (text to syntax tree), `decode` (syntax tree to
//! compact instructions), `module` (what a loaded module is), `launch` (grid to threads), `exec`
//! (warps and instructions), `memory` (global memory, shared memory, their checks). `driver` puts
//! all that behind the CUDA driver's functions; [`install`] gives it to a program that looks for them.

mod arch;
mod decode;
mod device;
mod driver;
mod error;
mod exec;
mod launch;
mod memory;
mod module;
mod ptx;
mod random;
mod stats;
mod tensor_map;

pub use arch::Arch;
pub use device::{Checks, Device, DeviceConfig, Vectors};
pub use driver::{
    Emulator, FaultReport, Injection, InstallError, InstallOptions, KernelStats, NotEmulated, install,
    last_fault,
};
pub use error::{Fault, FaultKind, LaunchError, LoadError, Place, SourceLine};
pub use launch::{Launch, launch};
pub use memory::{Memory, MemoryError, Space};
pub use module::{Global, Kernel, Module, Param};
pub use stats::{InstructionClass, LaunchStats};
pub use tensor_map::{Element, Swizzle, TensorMap, TensorMapError};

/// The README's example, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
