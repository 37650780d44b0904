//! Prefetches of weights by a block of tokens while it multiplies.

use super::{FEW, KBlock, PanelArgs, SEVERAL};
use crate::backend::cpu::memory::prefetch::{IntoL1, IntoL2, LINE, Prefetch};
use crate::backend::cpu::tuning::PrefetchHint;

/// Cache lines that a block prefetches, some with each group.
pub(super) struct Prefetcher {
    line: *const u8,
    left: usize,
    /// Lines per group.
    share: usize,
    /// Whether it prefetches the group that this block itself reads [`Format::AHEAD`](super::Format::AHEAD)
    /// bytes later.
    own: bool,
    /// Whether into L1. Lines that are needed much later go to L2: in L1 they would take slots that the codes
    /// at hand need. Those of a single token go by its [`PrefetchHint`].
    near: bool,
}

impl Prefetcher {
    /// The prefetches of a block of `len` tokens that starts at token `start`, while it multiplies a K block
    /// of the panel at `whole`, whose groups have `group_bytes`. The panel at `next` is read after it.
    /// `sharing` is the number of tokens in blocks of more than one token.
    ///
    /// With several blocks, only the first finds a K block in memory, and memory is idle while the others
    /// compute. So each block prefetches its share of the next K block. With fewer than [`FEW`] tokens the
    /// first block prefetches everything that it reads soon.
    #[inline(always)]
    pub(super) fn of(
        args: &PanelArgs,
        group_bytes: usize,
        [whole, next]: [*const u8; 2],
        [start, len, sharing]: [usize; 3],
        KBlock { from, to, length }: KBlock,
    ) -> Prefetcher {
        let near = match args.tokens {
            1 => args.hint != PrefetchHint::L2,
            tokens => tokens <= SEVERAL,
        };
        let mut prefetcher = Prefetcher { line: next, left: 0, share: 0, own: false, near };
        if args.tokens >= FEW {
            let mut groups = length;
            if to < args.groups {
                prefetcher.line = whole.wrapping_add(to * group_bytes);
                groups = groups.min(args.groups - to);
            }
            let lines = groups * group_bytes / LINE;
            let [first, end] = [start, start + len].map(|token| lines * token / sharing);
            prefetcher.line = prefetcher.line.wrapping_add(first * LINE);
            prefetcher.left = end - first;
            // The last K block may be shorter than the one that it prefetches.
            prefetcher.share = prefetcher.left.div_ceil(to - from);
        } else if start == 0 {
            prefetcher.own = true;
        }
        prefetcher
    }

    /// No prefetches.
    #[inline(always)]
    pub(super) fn none() -> Prefetcher {
        Prefetcher { line: std::ptr::null(), left: 0, share: 0, own: false, near: false }
    }

    /// Prefetches one group's lines. `later` is the group [`Format::AHEAD`](super::Format::AHEAD) bytes on,
    /// of `group_bytes`; a constant there unrolls the loop.
    #[inline(always)]
    pub(super) fn issue(&mut self, later: *const u8, group_bytes: usize) {
        if self.own && self.near {
            lines(later, group_bytes / LINE).for_each(IntoL1::line);
        } else if self.own {
            lines(later, group_bytes / LINE).for_each(IntoL2::line);
        } else if self.near {
            self.take().for_each(IntoL1::line);
        } else {
            self.take().for_each(IntoL2::line);
        }
    }

    /// Takes the lines of one group.
    #[inline(always)]
    fn take(&mut self) -> impl Iterator<Item = *const u8> + use<> {
        let (first, count) = (self.line, self.share.min(self.left));
        self.line = first.wrapping_add(count * LINE);
        self.left -= count;
        lines(first, count)
    }
}

/// `count` lines from `first` on.
#[inline(always)]
fn lines(first: *const u8, count: usize) -> impl Iterator<Item = *const u8> {
    (0..count).map(move |line| first.wrapping_add(line * LINE))
}

#[cfg(test)]
mod tests {
    use std::ptr::without_provenance;

    use super::*;

    const WHOLE: *const u8 = without_provenance(1 << 30);
    const NEXT: *const u8 = without_provenance(1 << 40);

    /// Prefetches of the blocks of a K block: blocks of `block` tokens, and one of the rest if it has
    /// several.
    fn prefetchers(
        args: &PanelArgs,
        group_bytes: usize,
        block: usize,
        k_block: KBlock,
    ) -> impl Iterator<Item = Prefetcher> {
        let sharing = args.tokens - usize::from(args.tokens % block == 1);
        (0..sharing).step_by(block).map(move |start| {
            let block = [start, block.min(sharing - start), sharing];
            Prefetcher::of(args, group_bytes, [WHOLE, NEXT], block, k_block)
        })
    }

    #[test]
    fn blocks_ask_for_each_line_of_the_next_stretch_once() {
        for group_bytes in [9, 11, 17, 33].map(|lines| lines * LINE) {
            for cols in [64, 576, 2048, 4096, 5440, 8192] {
                for tokens in [8, 9, 10, 11, 13, 16, 17, 512] {
                    let args = PanelArgs::of_shape(tokens, cols / 32, group_bytes);
                    for from in (0..args.groups).step_by(args.k_block_groups) {
                        let k_block = args.k_block_from(from);
                        let (start, groups) = match args.groups - k_block.to {
                            0 => (NEXT, args.k_block_groups),
                            left => {
                                (WHOLE.wrapping_add(k_block.to * group_bytes), left.min(args.k_block_groups))
                            }
                        };
                        let first = start.addr() / LINE;
                        let expected = first..first + groups * group_bytes / LINE;
                        for block in [6, 4] {
                            let blocks = prefetchers(&args, group_bytes, block, k_block);
                            let groups = blocks
                                .flat_map(|mut block| (from..k_block.to).flat_map(move |_| block.take()));
                            let found = groups.map(|line| line.addr() / LINE);
                            let what = format!("{tokens} tokens by {block}, {cols} columns, from {from}");
                            assert!(found.eq(expected.clone()), "{what}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_single_token_prefetches_by_the_processors_hint() {
        for (hint, near) in [(PrefetchHint::NonTemporal, true), (PrefetchHint::L2, false)] {
            let args = PanelArgs { hint, ..PanelArgs::of_shape(1, 64, 9 * LINE) };
            let prefetcher = Prefetcher::of(&args, 9 * LINE, [WHOLE, NEXT], [0, 1, 1], args.k_block_from(0));
            assert!(prefetcher.own && prefetcher.near == near, "{hint}");
        }
    }

    #[test]
    fn of_few_tokens_the_first_block_asks_for_itself() {
        for tokens in 2..FEW {
            let args = PanelArgs::of_shape(tokens, 64, 9 * LINE);
            let k_block = args.k_block_from(0);
            assert_eq!(k_block.to, 64);
            let own = |block| prefetchers(&args, 9 * LINE, block, k_block).map(|prefetcher| prefetcher.own);
            assert!(own(4).enumerate().all(|(block, own)| own == (block == 0)));
            assert!(
                prefetchers(&args, 9 * LINE, 4, k_block)
                    .all(|mut prefetcher| prefetcher.take().next().is_none())
            );
        }
    }
}
