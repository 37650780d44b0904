//! What the emulated cards say about themselves: a T4 for sm_75, an A100 for sm_80, an H200 for
//! sm_90.
//!
//! Figures are those of the architectures' tuning guides and of `cuDeviceGetAttribute` on such
//! cards. Memory is the device's configured size, so that a program which takes all it is offered
//! does not take more than the host has.

use std::ffi::c_int;

use crate::arch::Arch;
use crate::device::DeviceConfig;
use crate::module::Kernel;

/// Shared memory that a block may have without opting in, bytes.
pub(crate) const SHARED_BYTES_DEFAULT_MAX: u32 = 48 * 1024;
/// Shared memory that the system takes from every block, bytes.
pub(crate) const SHARED_BYTES_RESERVED: u32 = 1024;
/// Threads that one multiprocessor holds.
pub(crate) const THREADS_PER_MULTIPROCESSOR: u32 = 2048;
/// Blocks that one multiprocessor holds.
pub(crate) const BLOCKS_PER_MULTIPROCESSOR: u32 = 32;
/// Registers of a multiprocessor, and the most that a block may have.
pub(crate) const REGISTERS: u32 = 65536;
/// Blocks of a cluster that every card of the architecture can run.
pub(crate) const CLUSTER_BLOCKS_PORTABLE: u32 = 8;

/// A card's fixed properties.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Card {
    name: &'static str,
    /// Its index.
    ordinal: usize,
    pub(crate) arch: Arch,
    reserved_is_static: bool,
    pub(crate) multiprocessors: u32,
    /// Shared memory of a multiprocessor, bytes.
    pub(crate) shared_bytes: u32,
    l2_bytes: u32,
    l2_persisting_bytes: u32,
    clock_khz: u32,
    memory_clock_khz: u32,
    memory_bus_bits: u32,
}

impl Card {
    /// The card that a configuration asks for, at an index.
    pub(crate) fn new(config: &DeviceConfig, ordinal: usize) -> Self {
        let (arch, reserved_is_static) = (config.arch, config.reserved_is_static);
        match arch {
            Arch::Sm75 => Card {
                name: "Tesla T4",
                ordinal,
                arch,
                reserved_is_static,
                multiprocessors: 40,
                shared_bytes: 64 * 1024,
                l2_bytes: 4 << 20,
                l2_persisting_bytes: 0,
                clock_khz: 1_590_000,
                memory_clock_khz: 5_001_000,
                memory_bus_bits: 256,
            },
            Arch::Sm80 => Card {
                name: "NVIDIA A100-SXM4-80GB",
                ordinal,
                arch,
                reserved_is_static,
                multiprocessors: 108,
                shared_bytes: 164 * 1024,
                l2_bytes: 40 << 20,
                l2_persisting_bytes: 30 << 20,
                clock_khz: 1_410_000,
                memory_clock_khz: 1_593_000,
                memory_bus_bits: 5120,
            },
            Arch::Sm90 => Card {
                name: "NVIDIA H200",
                ordinal,
                arch,
                reserved_is_static,
                multiprocessors: 132,
                shared_bytes: 228 * 1024,
                l2_bytes: 50 << 20,
                l2_persisting_bytes: 32 << 20,
                clock_khz: 1_980_000,
                memory_clock_khz: 3_201_000,
                memory_bus_bits: 6144,
            },
        }
    }

    /// Static shared memory of a kernel's block, as the driver counts it.
    pub(crate) fn static_shared_bytes(&self, kernel: &Kernel) -> u32 {
        kernel.static_shared_bytes() + if self.reserved_is_static { SHARED_BYTES_RESERVED } else { 0 }
    }

    /// `cuDeviceGetName`; cards from the second on have their index in it.
    pub(crate) fn full_name(&self) -> String {
        match self.ordinal {
            0 => format!("{} (cuda-emu)", self.name),
            ordinal => format!("{} (cuda-emu {ordinal})", self.name),
        }
    }

    /// Whether it runs clusters and has the tensor memory accelerator.
    pub(crate) fn has_clusters(&self) -> bool {
        self.arch >= Arch::Sm90
    }

    /// `cuDeviceGetAttribute`; `None` for a number that is no attribute.
    pub(crate) fn attribute(&self, attribute: u32) -> Option<c_int> {
        let (major, minor) = self.arch.capability();
        let hopper = u32::from(self.has_clusters());
        let value = match attribute {
            1 => 1024,                          // MAX_THREADS_PER_BLOCK
            2 | 3 => 1024,                      // MAX_BLOCK_DIM_X, Y
            4 => 64,                            // MAX_BLOCK_DIM_Z
            5 => i32::MAX as u32,               // MAX_GRID_DIM_X
            6 | 7 => 65535,                     // MAX_GRID_DIM_Y, Z
            8 => SHARED_BYTES_DEFAULT_MAX,      // MAX_SHARED_MEMORY_PER_BLOCK
            9 => 65536,                         // TOTAL_CONSTANT_MEMORY
            10 => 32,                           // WARP_SIZE
            11 => i32::MAX as u32,              // MAX_PITCH
            12 | 82 => REGISTERS,               // MAX_REGISTERS_PER_BLOCK, PER_MULTIPROCESSOR
            13 => self.clock_khz,               // CLOCK_RATE
            14 | 30 => 512,                     // TEXTURE_ALIGNMENT, SURFACE_ALIGNMENT
            15 => 1,                            // GPU_OVERLAP
            16 => self.multiprocessors,         // MULTIPROCESSOR_COUNT
            19 => 1,                            // CAN_MAP_HOST_MEMORY
            31 => 1,                            // CONCURRENT_KERNELS
            32 => 1,                            // ECC_ENABLED
            33 => 1 + self.ordinal as u32,      // PCI_BUS_ID
            36 => self.memory_clock_khz,        // MEMORY_CLOCK_RATE
            37 => self.memory_bus_bits,         // GLOBAL_MEMORY_BUS_WIDTH
            38 => self.l2_bytes,                // L2_CACHE_SIZE
            39 => THREADS_PER_MULTIPROCESSOR,   // MAX_THREADS_PER_MULTIPROCESSOR
            40 => 3,                            // ASYNC_ENGINE_COUNT
            41 => 1,                            // UNIFIED_ADDRESSING
            51 => 32,                           // TEXTURE_PITCH_ALIGNMENT
            75 => major,                        // COMPUTE_CAPABILITY_MAJOR
            76 => minor,                        // COMPUTE_CAPABILITY_MINOR
            78..=80 => 1,                       // STREAM_PRIORITIES, GLOBAL_L1, LOCAL_L1
            81 => self.shared_bytes,            // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
            83 => 1,                            // MANAGED_MEMORY
            86 => 0,                            // HOST_NATIVE_ATOMIC_SUPPORTED
            87 => 2,                            // SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
            90 | 91 => 1,                       // COMPUTE_PREEMPTION, HOST_POINTER_FOR_REGISTERED_MEM
            95 => 1,                            // COOPERATIVE_LAUNCH
            97 => self.arch.shared_bytes_max(), // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
            99 => 1,                            // HOST_REGISTER_SUPPORTED
            106 => BLOCKS_PER_MULTIPROCESSOR,   // MAX_BLOCKS_PER_MULTIPROCESSOR
            108 => self.l2_persisting_bytes,    // MAX_PERSISTING_L2_CACHE_SIZE
            109 => 128 << 20,                   // MAX_ACCESS_POLICY_WINDOW_SIZE
            111 => SHARED_BYTES_RESERVED,       // RESERVED_SHARED_MEMORY_PER_BLOCK
            115 => 1,                           // MEMORY_POOLS_SUPPORTED
            120 | 127 => hopper,                // CLUSTER_LAUNCH, TENSOR_MAP_ACCESS_SUPPORTED
            126 => {
                if hopper == 1 {
                    4
                } else {
                    1
                }
            } // MEM_SYNC_DOMAIN_COUNT
            129 => 1,                           // UNIFIED_FUNCTION_POINTERS
            0 | 162.. => return None,
            _ => 0, // What the emulator does not have, and textures.
        };
        c_int::try_from(value).ok()
    }
}
