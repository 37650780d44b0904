//! How often each instruction was run. Instructions mostly run one after another, so only the ends of
//! such runs are counted, and what guards left out.

use std::ops::Range;

/// Counts of a program's instructions.
#[derive(Debug)]
pub(super) struct Counts {
    /// Of each instruction, by how much more often warps and lanes run it than the one before.
    steps: Vec<[u64; 2]>,
    /// Of each instruction, how many lanes its guard left out.
    skipped: Vec<u64>,
}

impl Counts {
    pub(super) fn new(instructions: usize) -> Self {
        Self { steps: vec![[0; 2]; instructions + 1], skipped: vec![0; instructions] }
    }

    /// Lanes of a warp run these instructions.
    #[inline(always)]
    pub(super) fn add(&mut self, run: Range<u32>, lanes: u32) {
        let lanes = u64::from(lanes.count_ones());
        let [warps_in, lanes_in] = &mut self.steps[run.start as usize];
        (*warps_in, *lanes_in) = (warps_in.wrapping_add(1), lanes_in.wrapping_add(lanes));
        let [warps_out, lanes_out] = &mut self.steps[run.end as usize];
        (*warps_out, *lanes_out) = (warps_out.wrapping_sub(1), lanes_out.wrapping_sub(lanes));
    }

    /// A guard leaves lanes out of an instruction.
    #[inline(always)]
    pub(super) fn skip(&mut self, pc: u32, lanes: u32) {
        self.skipped[pc as usize] += u64::from(lanes.count_ones());
    }

    /// Of each instruction, how often warps and lanes ran it.
    pub(super) fn each(&self) -> impl Iterator<Item = [u64; 2]> {
        self.steps.iter().zip(&self.skipped).scan([0u64; 2], |sum, (step, skipped)| {
            *sum = [sum[0].wrapping_add(step[0]), sum[1].wrapping_add(step[1])];
            Some([sum[0], sum[1] - skipped])
        })
    }
}
