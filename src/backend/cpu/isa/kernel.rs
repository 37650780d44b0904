//! [`Kernel`], the trait of operations that run on every instruction set, and the macro that compiles one
//! for a set.

use super::lanes::Lanes;

/// An operation cut into chunks that threads run in any order.
///
/// Implementors are the operation's operands; `run` processes one chunk. `run` and all functions that it
/// calls on hot paths must be `#[inline(always)]`, to become part of an instruction set's own function.
pub(crate) trait Kernel: Sync {
    /// Whether the kernel multiplies codes, reads 8-bit codes ([`Lanes::ORDER`]), or arranges activations
    /// in blocks ([`Lanes::TILES`]). Other kernels are compiled once for instruction sets that differ only
    /// there.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const ON_CODES: bool = false;

    /// Processes chunk `chunk`. `worker` is below the pool's thread count, and differs between chunks
    /// that run at the same time.
    ///
    /// # Safety
    /// The CPU has the features of `L`; `chunk` is below the number of chunks that the operands
    /// were made for; no chunk runs twice at the same time; the operands' pointers are valid, and
    /// different chunks write to disjoint memory.
    unsafe fn run<L: Lanes>(&self, chunk: usize, worker: usize);
}

/// [`Kernel::run`] compiled for one instruction set; its safety contract is the same.
pub(crate) type KernelFn<K> = unsafe fn(&K, usize, usize);

/// Defines the function that runs a kernel with an instruction set's lanes and features.
///
/// It is invoked in the instruction set's own module. A generic function is compiled with the module that
/// defines it, so the kernels of different sets compile in parallel.
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
