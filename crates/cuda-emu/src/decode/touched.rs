//! Which instructions touch the registers that a `wgmma` has as accumulators or fragments of A.

use super::op::Slot;

/// Of each instruction but those of `wgmma`, its uses of such registers. Empty in kernels without.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    /// Where each instruction's uses start, and after the last one where they end.
    starts: Vec<u32>,
    /// Slot of the 32-bit file, and whether it is written.
    uses: Vec<(Slot, bool)>,
}

impl Touched {
    /// From uses (instruction, slot, whether written) in order.
    pub(super) fn new(instructions: usize, found: &[(u32, Slot, bool)]) -> Self {
        let start =
            |at: usize| found.partition_point(|(instruction, ..)| (*instruction as usize) < at) as u32;
        Self {
            starts: (0..=instructions).map(start).collect(),
            uses: found.iter().map(|(_, slot, write)| (*slot, *write)).collect(),
        }
    }

    /// Whether the kernel has no `wgmma`.
    pub(crate) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The uses of an instruction.
    pub(crate) fn by(&self, pc: u32) -> &[(Slot, bool)] {
        match self.starts.get(pc as usize..pc as usize + 2) {
            Some(ends) => &self.uses[ends[0] as usize..ends[1] as usize],
            None => &[],
        }
    }
}
