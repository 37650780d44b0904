//! Prefetching of keys and values.
//!
//! A head's part of a page is a stream of a few kB, which ends before the hardware prefetcher has detected
//! it. So scores prefetch their split's values, and values prefetch the keys that are read next.

use super::SPLIT_PAGES;
use super::tile::{Next, Tile};
use crate::backend::cpu::memory::prefetch::{IntoL1, LINE, Prefetch};

/// The block of one head in each page of a split.
pub(super) type Blocks = [*const u8; SPLIT_PAGES];

impl Next<'_> {
    /// The blocks that are read after `blocks`. If nothing follows, or more rows of the tile read `blocks`
    /// themselves, those again: they are in the cache.
    #[inline(always)]
    pub(super) fn blocks<const R: usize>(self, tile: &Tile<'_>, row: usize, mut blocks: Blocks) -> Blocks {
        if prefetches::<R>() && row + R == tile.rows {
            let visible = self.pages.iter().filter(|page| tile.visible(row, page.start) != 0);
            for (block, page) in blocks.iter_mut().zip(visible) {
                *block = tile.layer.block(page.page, self.kv_head);
            }
        }
        blocks
    }
}

/// Whether blocks of `R` rows prefetch. Many rows compute for long, and find pages in the cache.
const fn prefetches<const R: usize>() -> bool {
    R < 8
}

/// Prefetches a line, if one begins at `address`.
#[inline(always)]
pub(super) fn prefetch_line<const R: usize>(address: *const u8) {
    if prefetches::<R>() && address.addr().is_multiple_of(LINE) {
        IntoL1::line(address);
    }
}

/// Prefetches the same offset in each block, with one test for all. Parts of a block begin at multiples of a
/// line; where they do not, the prefetch only hits the neighbouring line.
#[inline(always)]
pub(super) fn prefetch_each<const R: usize, const P: usize>(blocks: [*const u8; P], offset: usize) {
    if prefetches::<R>() && offset.is_multiple_of(LINE) {
        for block in blocks {
            IntoL1::line(block.wrapping_add(offset));
        }
    }
}
