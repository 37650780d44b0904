//! Counts what requests to memory cost: sectors of global memory, banks of shared memory.

use super::Env;
use super::address::Addresses;
use super::lanes::{LANES, lanes_of};

impl Env<'_> {
    /// Counts a global request.
    #[inline(always)]
    pub(super) fn count_global(&mut self, addresses: &Addresses, mask: u32, bytes: u32) {
        self.traffic.global_requests += 1;
        if self.measure {
            let mut sectors: Vec<u64> = lanes_of(mask)
                .flat_map(|lane| addresses[lane] / 32..=(addresses[lane] + u64::from(bytes) - 1) / 32)
                .collect();
            sectors.sort_unstable();
            sectors.dedup();
            self.traffic.global_sectors += sectors.len() as u64;
        }
    }

    /// Counts a shared request, and the cycles that bank conflicts cost: a bank serves one word of
    /// four bytes per cycle, to as many lanes as want it. Wide accesses take several cycles anyway.
    #[inline(always)]
    pub(super) fn count_shared(&mut self, offsets: &Addresses, mask: u32, bytes: u32) {
        self.traffic.shared_requests += 1;
        if self.measure {
            let phases = (bytes / 4).max(1) as usize;
            for phase in 0..phases {
                let lanes = lanes_of(mask).filter(|lane| lane * phases / LANES == phase);
                let mut words: Vec<u64> = lanes
                    .flat_map(|lane| offsets[lane] / 4..=(offsets[lane] + u64::from(bytes) - 1) / 4)
                    .collect();
                words.sort_unstable();
                words.dedup();
                let mut banks = [0u64; 32];
                words.iter().for_each(|word| banks[(word % 32) as usize] += 1);
                self.traffic.shared_bank_conflicts +=
                    banks.iter().max().map_or(0, |most| most.saturating_sub(1));
            }
        }
    }
}
