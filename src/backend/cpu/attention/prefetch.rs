//! Prefetching of keys and values.
//!
//! A head's part of a page is a stream of a few kB, which ends before the hardware prefetcher has detected
//! it. So scores prefetch their split's values, and values prefetch the keys of the next split.

use super::SPLIT_PAGES;
use super::tile::{Next, Tile};
use crate::backend::cpu::memory::prefetch::{IntoL1, LINE, Prefetch};

/// The block of one head in each page of a split.
pub(super) type Blocks = [*const u8; SPLIT_PAGES];

impl Next<'_> {
    /// The blocks read after `blocks`: `blocks` again while further rows of the tile read them, then those of
    /// the next pages. Blocks without a successor stay the same; they are in the cache.
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

/// Whether blocks of `R` rows prefetch. Blocks of more rows compute longer per page and find it in the cache.
const fn prefetches<const R: usize>() -> bool {
    R < 8
}

/// Prefetches the cache line that begins at `address`, if one does.
#[inline(always)]
pub(super) fn prefetch_line<const R: usize>(address: *const u8) {
    if prefetches::<R>() && address.addr().is_multiple_of(LINE) {
        IntoL1::line(address);
    }
}

/// Prefetches the line at `offset` in each block, with one test for all. It assumes that blocks begin at
/// multiples of a line; otherwise the prefetch only hits the neighbouring line.
#[inline(always)]
pub(super) fn prefetch_each<const R: usize, const P: usize>(blocks: [*const u8; P], offset: usize) {
    if prefetches::<R>() && offset.is_multiple_of(LINE) {
        for block in blocks {
            IntoL1::line(block.wrapping_add(offset));
        }
    }
}
