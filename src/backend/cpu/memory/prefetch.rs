//! Software prefetch: one cache line, or everything that a thread reads next ([`Upcoming`]). On x86-64 only;
//! elsewhere these functions do nothing and the hardware prefetcher has to do.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

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

/// Bits of an [`Upcoming`] that count lines. 64 KiB is what a thread has time to prefetch between two
/// operations.
const COUNT_BITS: u32 = 10;
const LINES_MAX: usize = (1 << COUNT_BITS) - 1;
/// Lines per call of [`Upcoming::ask`].
const LINES: usize = 8;

/// The weights that a thread reads first in its next job, as lines that are not prefetched yet. The thread
/// prefetches them while it waits, when memory would be idle. One atomic word holds the first line's number
/// and the count, because one thread sets it and another takes from it.
#[derive(Debug, Default)]
pub(crate) struct Upcoming(AtomicU64);

impl Upcoming {
    /// Sets it to `bytes` from `start` on, cut to what the count can hold.
    pub(crate) fn set(&self, start: *const u8, bytes: usize) {
        let lines = (bytes / LINE).min(LINES_MAX);
        self.0.store(((start.addr() / LINE) as u64) << COUNT_BITS | lines as u64, Ordering::Relaxed);
    }

    /// Prefetches the next [`LINES`] lines.
    pub(crate) fn ask(&self) {
        for line in self.take() {
            prefetch_far(std::ptr::without_provenance(line * LINE));
        }
    }

    /// Takes the next lines; returns their numbers.
    pub(crate) fn take(&self) -> Range<usize> {
        let all = self.0.load(Ordering::Relaxed);
        let (first, left) = (all >> COUNT_BITS, all & LINES_MAX as u64);
        let taken = left.min(LINES as u64);
        let rest = (first + taken) << COUNT_BITS | (left - taken);
        // If it was set anew meanwhile, the old lines are no longer wanted.
        let took =
            taken > 0 && self.0.compare_exchange(all, rest, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let end = if took { first + taken } else { first };
        first as usize..end as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_upcoming_is_asked_for_once_and_not_beyond() {
        let upcoming = Upcoming::default();
        let lengths = || [(); 4].map(|()| upcoming.take().len());
        assert_eq!(lengths(), [0; 4]);
        upcoming.set(std::ptr::without_provenance(1 << 20), 20 * LINE + 1);
        assert_eq!(lengths(), [8, 8, 4, 0]);
        upcoming.set(std::ptr::without_provenance(1 << 20), 9 * LINE);
        let first = (1 << 20) / LINE;
        assert_eq!([upcoming.take(), upcoming.take()], [first..first + 8, first + 8..first + 9]);
        upcoming.set(std::ptr::without_provenance(usize::MAX >> 7), usize::MAX);
        assert_eq!(upcoming.take().start, (usize::MAX >> 7) / LINE);
        let rest: usize = (0..LINES_MAX).map(|_| upcoming.take().len()).sum();
        assert_eq!(rest, LINES_MAX - LINES);
    }
}
