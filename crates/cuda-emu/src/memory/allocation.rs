//! One allocation of global memory with its byte-valid bitmap, and the sorted view of all
//! allocations that a launch looks addresses up in.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Alignment of allocations, as the driver gives.
const ALIGN: usize = 256;
/// Allocations up to this size are filled with 0xff (NaN in every float type) when made.
const POISON_BYTES_MAX: usize = 64 << 20;
/// Room behind an allocation that no other gets: as much as itself, but for these bounds. An access
/// past the end then lies in no allocation, instead of in the next.
const GAP_BYTES: std::ops::RangeInclusive<usize> = 4 << 10..=1 << 20;

/// A live range of global memory, or one that was freed and is still held by someone.
#[derive(Debug)]
pub(crate) struct Allocation {
    base: u64,
    bytes: u64,
    /// A bit per byte: written by someone. Empty for host memory, which counts as written.
    valid: Box<[AtomicU64]>,
    /// All bits are set: the bitmap need not be looked at.
    all_valid: AtomicBool,
    owned: Option<Layout>,
}

impl Allocation {
    /// Fresh memory; `None` where the host has none.
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let size = usize::try_from(bytes).ok()?.max(1);
        let gap = size.clamp(*GAP_BYTES.start(), *GAP_BYTES.end());
        let layout = Layout::from_size_align(size.checked_add(gap)?, ALIGN).ok()?;
        // SAFETY: the layout's size is not zero.
        let pointer = unsafe { alloc_zeroed(layout) };
        if pointer.is_null() {
            return None;
        }
        if size <= POISON_BYTES_MAX {
            // SAFETY: `pointer` is the start of more than `size` bytes that nobody else has.
            unsafe { pointer.write_bytes(0xff, size) };
        }
        let words = size.div_ceil(64);
        let valid = (0..words).map(|_| AtomicU64::new(0)).collect();
        Some(Self {
            base: pointer as u64,
            bytes,
            valid,
            all_valid: AtomicBool::new(false),
            owned: Some(layout),
        })
    }

    /// Host memory that others own.
    ///
    /// # Safety
    /// The bytes must stay readable and writable while the allocation lives.
    pub(crate) unsafe fn host(base: u64, bytes: u64) -> Self {
        Self { base, bytes, valid: Box::default(), all_valid: AtomicBool::new(true), owned: None }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_host(&self) -> bool {
        self.owned.is_none()
    }

    /// Whether everything is known to be written.
    #[inline(always)]
    pub(crate) fn all_valid(&self) -> bool {
        self.all_valid.load(Ordering::Relaxed)
    }

    /// Notes that bytes were written.
    pub(crate) fn mark_valid(&self, offset: u64, bytes: u64) {
        if bytes == 0 || self.all_valid.load(Ordering::Relaxed) {
            return;
        }
        for_words(offset, bytes, |word, mask| {
            let word = &self.valid[word];
            if word.load(Ordering::Relaxed) & mask != mask {
                word.fetch_or(mask, Ordering::Relaxed);
            }
            true
        });
    }

    /// Whether all bytes were written.
    pub(crate) fn is_valid(&self, offset: u64, bytes: u64) -> bool {
        self.all_valid.load(Ordering::Relaxed)
            || for_words(offset, bytes, |word, mask| self.valid[word].load(Ordering::Relaxed) & mask == mask)
    }

    /// Copies which bytes were written from another range.
    pub(crate) fn copy_valid(&self, offset: u64, from: &Allocation, from_offset: u64, bytes: u64) {
        if from.is_valid(from_offset, bytes) {
            return self.mark_valid(offset, bytes);
        }
        for byte in 0..bytes {
            if from.is_valid(from_offset + byte, 1) {
                self.mark_valid(offset + byte, 1);
            } else {
                self.mark_unwritten(offset + byte);
            }
        }
    }

    fn mark_unwritten(&self, offset: u64) {
        if let Some(word) = self.valid.get((offset / 64) as usize) {
            self.all_valid.store(false, Ordering::Relaxed);
            word.fetch_and(!(1 << (offset % 64)), Ordering::Relaxed);
        }
    }

    /// Looks once whether everything is written by now, so that later checks are one load.
    pub(crate) fn settle(&self) {
        if !self.all_valid.load(Ordering::Relaxed) && self.is_valid(0, self.bytes) {
            self.all_valid.store(true, Ordering::Relaxed);
        }
    }
}

/// Calls `visit` with (word, mask) for all bits of a range while it gives true; whether it always did.
fn for_words(offset: u64, bytes: u64, mut visit: impl FnMut(usize, u64) -> bool) -> bool {
    let (mut at, end) = (offset, offset + bytes);
    while at < end {
        let count = (64 - at % 64).min(end - at);
        let mask = (u64::MAX >> (64 - count)) << (at % 64);
        if !visit((at / 64) as usize, mask) {
            return false;
        }
        at += count;
    }
    true
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some(layout) = self.owned {
            // SAFETY: `new` allocated `base` with this layout, and only `drop` frees it.
            unsafe { dealloc(self.base as *mut u8, layout) };
        }
    }
}

/// Addresses that kernels may use: an allocation, or a registered part of one.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) allocation: Arc<Allocation>,
}

/// The regions at one time, sorted by address, and what was freed before.
#[derive(Debug, Default)]
pub(crate) struct View {
    pub(crate) regions: Vec<Region>,
    pub(crate) freed: Vec<(u64, u64)>,
}

impl View {
    /// The region that holds all of `bytes` at `address`.
    pub(crate) fn find(&self, address: u64, bytes: u64) -> Option<usize> {
        let index = self.regions.partition_point(|r| r.start <= address).checked_sub(1)?;
        (address.checked_add(bytes)? <= self.regions[index].end).then_some(index)
    }

    /// The freed range that holds the address, in words.
    pub(crate) fn freed_at(&self, address: u64) -> Option<String> {
        let (start, bytes) =
            self.freed.iter().find(|(start, bytes)| (*start..start + bytes).contains(&address))?;
        Some(format!("byte {} of {bytes} bytes that were at {start:#x}", address - start))
    }

    /// The nearest region, in words.
    pub(crate) fn nearest(&self, address: u64) -> String {
        let after = self.regions.partition_point(|r| r.start <= address);
        let below = after.checked_sub(1).map(|i| &self.regions[i]);
        let above = self.regions.get(after);
        let distance_above = above.map_or(u64::MAX, |r| r.start - address);
        match below {
            Some(r) if address < r.end => {
                format!("runs past the end of {} bytes at {:#x}", r.end - r.start, r.start)
            }
            Some(r) if address - r.end <= distance_above => {
                format!(
                    "{} bytes past the end of {} bytes at {:#x}",
                    address - r.end,
                    r.end - r.start,
                    r.start
                )
            }
            _ => match above {
                Some(r) => {
                    format!("{distance_above} bytes before {} bytes at {:#x}", r.end - r.start, r.start)
                }
                None => "nothing is allocated".to_string(),
            },
        }
    }
}
