//! What a block of tokens asks the memory for while it multiplies.

use super::{AHEAD, Panels, SEVERAL};
use crate::backend::cpu::formats::Format;
use crate::backend::cpu::lanes::Lanes;
use crate::backend::cpu::prefetch::{LINE, prefetch, prefetch_far};

/// Of fewer tokens the first block, which has more than half of them, asks for all weights.
pub(super) const FEW: usize = 8;

/// Lines that a block asks for, some with each group.
pub(super) struct Requests {
    line: *const u8,
    left: usize,
    /// Of a group.
    share: usize,
    /// The group at which `line` becomes `next`.
    turn: usize,
    next: *const u8,
    /// Into the first-level cache. Others, which wait for longer, would take the room of those for the codes at hand.
    near: bool,
}

impl Requests {
    #[inline(always)]
    pub(super) fn ask(&mut self, group: usize) {
        if group == self.turn {
            self.line = self.next;
        }
        let now = self.share.min(self.left);
        self.left -= now;
        for _ in 0..now {
            if self.near {
                prefetch(self.line)
            } else {
                prefetch_far(self.line)
            }
            self.line = self.line.wrapping_add(LINE);
        }
    }
}

impl<W: Format> Panels<'_, W> {
    /// What a block of `M` tokens asks for while it multiplies a stretch, up to group `end`, of the panel at `whole`.
    ///
    /// Where there are several blocks, only the first finds a stretch in memory, and the memory is idle while
    /// the others compute: each block asks for its share of the next stretch. But of fewer than [`FEW`] tokens the first
    /// block asks for all that it reads soon. One token's products do so within a group.
    #[inline(always)]
    pub(super) fn requests<L: Lanes, const M: usize>(
        &self,
        whole: *const u8,
        tile: usize,
        start: usize,
        [end, length]: [usize; 2],
    ) -> Requests {
        let args = self.args;
        let group_bytes = W::LAYOUT.group_bytes();
        let near = args.tokens <= SEVERAL;
        let mut requests =
            Requests { line: self.next, left: 0, share: 0, turn: usize::MAX, next: self.next, near };
        if M > 1 && args.tokens >= FEW {
            let mut groups = length;
            if end < args.groups {
                requests.line = whole.wrapping_add(end * group_bytes);
                groups = groups.min(args.groups - end);
            }
            let lines = groups * group_bytes / LINE;
            let [from, to] = [start, start + M].map(|token| lines * token / args.tokens);
            requests.line = requests.line.wrapping_add(from * LINE);
            requests.left = to - from;
            requests.share = requests.left.div_ceil(length);
        } else if M > 1 && start == 0 && tile == 0 {
            let ahead = (AHEAD / group_bytes).min(args.groups);
            requests.line = whole.wrapping_add(ahead * group_bytes);
            requests.left = usize::MAX;
            requests.share = group_bytes / LINE;
            requests.turn = args.groups - ahead;
        }
        requests
    }
}
