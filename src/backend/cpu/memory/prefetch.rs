//! Software prefetch of a cache line: one instruction on x86-64 and aarch64. Elsewhere these functions are
//! empty, and only the hardware prefetcher is at work. [`tuning`](crate::backend::cpu::tuning) chooses the
//! hint for each processor.

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// A prefetch as a type, for kernels that are compiled per hint: the instruction takes its hint as an
/// immediate.
pub(crate) trait Prefetch {
    /// Prefetches the cache line at an address, which need not be valid.
    fn line(address: *const u8);
}

/// Defines a prefetch by its hint on x86-64 and its operation on aarch64.
macro_rules! prefetch {
    ($(#[$doc:meta])* $name:ident, $x86:ident, $arm:literal) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Prefetch for $name {
            #[inline(always)]
            fn line(address: *const u8) {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: every x86-64 has the instruction, and it never faults.
                unsafe {
                    use core::arch::x86_64::{$x86, _mm_prefetch};
                    _mm_prefetch::<$x86>(address.cast());
                }
                #[cfg(all(target_arch = "aarch64", not(miri)))]
                // SAFETY: every aarch64 has the instruction; it never faults and changes no register.
                unsafe {
                    core::arch::asm!(
                        concat!("prfm ", $arm, ", [{}]"),
                        in(reg) address,
                        options(readonly, nostack, preserves_flags)
                    );
                }
                let _ = address;
            }
        }
    };
}

prefetch!(
    /// Into L1: `prefetcht0`, `pldl1keep`.
    IntoL1,
    _MM_HINT_T0,
    "pldl1keep"
);
prefetch!(
    /// Into L2: `prefetcht1`, `pldl2keep`.
    IntoL2,
    _MM_HINT_T1,
    "pldl2keep"
);
prefetch!(
    /// Into L1 as data that is read once: `prefetchnta`, `pldl1strm`.
    NonTemporal,
    _MM_HINT_NTA,
    "pldl1strm"
);

/// No prefetch.
pub(crate) struct Off;

impl Prefetch for Off {
    #[inline(always)]
    fn line(_address: *const u8) {}
}
