//! A device: its memory, what it poses as, and how strictly it looks at kernels.

use crate::arch::Arch;
use crate::memory::Memory;

/// How much is checked while kernels run. Bounds, alignment and life of global memory and the
/// bounds of shared memory are always checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// Bounds and alignment only.
    Bounds,
    /// Also uninitialised reads, races in shared memory, results that blocks hand over too early, and copies that
    /// were not waited for.
    All,
}

/// How wide the vector instructions of the host are that run kernels. Results do not depend on it, but for
/// the bits of a NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Vectors {
    /// None: the plain loop.
    None,
    /// AVX2, where the processor has it.
    Avx2,
}

/// What a [`Device`] poses as and how it runs kernels.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The architecture it poses as.
    pub arch: Arch,
    /// How much is checked.
    pub checks: Checks,
    /// Order of warps and of asynchronous copies: 0 is in order, else shuffled from this seed. Blocks run
    /// in order or, with an odd seed, in reverse.
    pub seed: u64,
    /// Threads of the host that run blocks; results do not depend on it for kernels without races.
    pub threads: usize,
    /// Bytes of global memory; allocation fails beyond.
    pub memory_bytes: u64,
    /// Whether the 1024 bytes of shared memory that the system takes from every block count as the kernel's
    /// own: in `CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES`, and so against the dynamic memory that may be asked
    /// for. Machine code for 9.0 and later names them; whether a driver counts them is not documented.
    pub reserved_is_static: bool,
    /// Warp instructions that one launch may take before it is stopped as one that never ends.
    pub warp_instructions_max: u64,
    /// Whether shared-memory bank conflicts and sectors per global request are counted (slower).
    pub memory_statistics: bool,
    /// The widest vector instructions to take where the processor has them (less for tests).
    pub vectors: Vectors,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            arch: Arch::Sm80,
            checks: Checks::All,
            seed: 0,
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory_bytes: 16 << 30,
            reserved_is_static: false,
            warp_instructions_max: u64::MAX,
            memory_statistics: false,
            vectors: Vectors::Avx2,
        }
    }
}

/// A device: global memory and configuration. Shared between threads by reference.
#[derive(Debug)]
pub struct Device {
    config: DeviceConfig,
    memory: Memory,
}

impl Device {
    /// A device without allocations.
    pub fn new(config: DeviceConfig) -> Self {
        let memory = Memory::new(config.memory_bytes);
        Self { config, memory }
    }

    /// A device over the same memory that runs kernels in another way.
    pub fn with_config(&self, config: DeviceConfig) -> Self {
        Self { config, memory: self.memory.clone() }
    }

    /// What it poses as.
    pub fn config(&self) -> &DeviceConfig {
        &self.config
    }

    /// Its global memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}
