//! What an operation implements to run on every instruction set: [`Kernel`], and the macro that compiles it
//! for one.

use super::lanes::Lanes;

/// An operation cut into chunks that threads run in any order.
///
/// Implementors are the operation's operands; `run` does one chunk. It must be `#[inline(always)]`,
/// and so must all that it calls on hot paths, to become part of an instruction set's own function.
pub(crate) trait Kernel: Sync {
    /// Whether it multiplies codes, reads those of 8 bits ([`Lanes::ORDER`]), or puts activations in blocks
    /// ([`Lanes::TILES`]): instruction sets that differ in nothing else share the code of other kernels.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const ON_CODES: bool = false;

    /// Does chunk `chunk`. `worker` is below the pool's thread count, and no two chunks that run
    /// at the same time have the same one.
    ///
    /// # Safety
    /// The CPU has the features of `L`; `chunk` is below the number of chunks that the operands
    /// were made for; no chunk runs twice at the same time; the operands' pointers are valid and
    /// what different chunks write does not overlap.
    unsafe fn run<L: Lanes>(&self, chunk: usize, worker: usize);
}

/// [`Kernel::run`] compiled for one instruction set; its safety contract is the same.
pub(crate) type KernelFn<K> = unsafe fn(&K, usize, usize);

/// Defines the function that runs a kernel with an instruction set's lanes and features.
///
/// It stands in the instruction set's own module: a generic function's code is compiled with the module
/// that defines it, and so the kernels of one set beside those of another.
macro_rules! kernel_entry {
    ($name:ident, $lanes:ty $(, $features:literal)?) => {
        /// # Safety
        /// As [`Kernel::run`]($crate::backend::cpu::isa::Kernel::run).
        $(#[target_feature(enable = $features)])?
        pub(crate) unsafe fn $name<K: $crate::backend::cpu::isa::Kernel>(kernel: &K, chunk: usize, worker: usize) {
            // SAFETY: the contract of this function is that of `Kernel::run`.
            unsafe { kernel.run::<$lanes>(chunk, worker) }
        }
    };
}

pub(crate) use kernel_entry;
