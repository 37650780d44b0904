//! Asking for keys and values before they are needed.
//!
//! What a head has of a page is a stream of few kB, which ends before the CPU's own prefetching has found
//! it. So the scores of a split ask for its values, and the values ask for the keys that are read next.

use super::SPLIT_PAGES;
use super::tile::{Next, Tile};
use crate::backend::cpu::memory::prefetch::{LINE, prefetch};

/// A head's block of each page of a split.
pub(super) type Blocks = [*const u8; SPLIT_PAGES];

impl Next<'_> {
    /// The blocks that are read after `blocks`. Where there is nothing more, or a tile has more rows that read
    /// `blocks` themselves, those again: they are in the cache.
    #[inline(always)]
    pub(super) fn blocks<const R: usize>(self, tile: &Tile<'_>, row: usize, mut blocks: Blocks) -> Blocks {
        if asks::<R>() && row + R == tile.rows {
            let visible = self.pages.iter().filter(|page| tile.visible(row, page.start) != 0);
            for (block, page) in blocks.iter_mut().zip(visible) {
                *block = tile.layer.block(page.page, self.kv_head);
            }
        }
        blocks
    }
}

/// Whether blocks of `R` rows ask. Many rows compute for long, and find pages in the cache.
const fn asks<const R: usize>() -> bool {
    R < 8
}

/// Asks for a line, if one begins there.
#[inline(always)]
pub(super) fn ask_for<const R: usize>(address: *const u8) {
    if asks::<R>() && address.addr().is_multiple_of(LINE) {
        prefetch(address);
    }
}

/// The same so far into each block, by one test for all: parts of a block begin at multiples of a line, and blocks that do
/// not have theirs asked for nevertheless.
#[inline(always)]
pub(super) fn ask_for_each<const R: usize, const P: usize>(blocks: [*const u8; P], offset: usize) {
    if asks::<R>() && offset.is_multiple_of(LINE) {
        for block in blocks {
            prefetch(block.wrapping_add(offset));
        }
    }
}
