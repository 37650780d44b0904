//! Software prefetch of a cache line. On x86-64 only; elsewhere these functions do nothing and the hardware
//! prefetcher has to do.

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Defines a function that prefetches the cache line at an address, which need not be valid.
macro_rules! prefetch {
    ($(#[$doc:meta])* $name:ident, $hint:ident) => {
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name(p: *const u8) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: every x86-64 has it, and any address may be asked for.
            unsafe {
                use core::arch::x86_64::{$hint, _mm_prefetch};
                _mm_prefetch::<$hint>(p.cast());
            }
            let _ = p;
        }
    };
}

prefetch!(
    /// Prefetches into L1 (`_MM_HINT_T0`).
    prefetch,
    _MM_HINT_T0
);
prefetch!(
    /// Prefetches into L2 (`_MM_HINT_T1`).
    prefetch_far,
    _MM_HINT_T1
);
prefetch!(
    /// Prefetches into L1 what is read once and need not be kept (`_MM_HINT_NTA`).
    prefetch_once,
    _MM_HINT_NTA
);
