//! Counts requests to memory and, where a device is asked for it, what they cost: sectors of global
//! memory, and cycles that bank conflicts of shared memory add. What copies in bulk and `wgmma` move
//! counts as bytes and sectors touched, not as requests.

use std::collections::HashMap;
use std::ops::Range;

use super::Env;
use super::address::Addresses;
use super::lanes::{LANES, lanes_of};

/// Bytes of a sector of global memory.
const SECTOR_BYTES: u64 = 32;
/// Banks of shared memory, each four bytes wide.
const BANKS: u64 = 32;

/// Sectors that requests have touched: by page, a bit a sector.
#[derive(Debug, Default)]
pub(super) struct Footprint {
    pages: HashMap<u64, u128>,
}

impl Footprint {
    fn touch(&mut self, addresses: &Addresses, mask: u32) {
        let (mut page, mut bits) = (0, 0);
        for lane in lanes_of(mask) {
            let sector = addresses[lane] / SECTOR_BYTES;
            let bit = 1 << (sector % u64::from(u128::BITS));
            if bits != 0 && page == sector / u64::from(u128::BITS) {
                bits |= bit;
                continue;
            }
            self.add(page, bits);
            (page, bits) = (sector / u64::from(u128::BITS), bit);
        }
        self.add(page, bits);
    }

    fn touch_range(&mut self, address: u64, bytes: u64) {
        for sector in sectors_of_range(address, bytes) {
            self.add(sector / u64::from(u128::BITS), 1 << (sector % u64::from(u128::BITS)));
        }
    }

    fn add(&mut self, page: u64, bits: u128) {
        if bits != 0 {
            *self.pages.entry(page).or_default() |= bits;
        }
    }

    /// Takes up what another thread of the launch has touched.
    pub(super) fn merge(&mut self, other: Footprint) {
        other.pages.into_iter().for_each(|(page, bits)| self.add(page, bits));
    }

    pub(super) fn bytes(&self) -> u64 {
        self.pages.values().map(|bits| u64::from(bits.count_ones()) * SECTOR_BYTES).sum()
    }
}

impl Env<'_> {
    /// Counts a global request.
    #[inline(always)]
    pub(super) fn count_global(&mut self, addresses: &Addresses, mask: u32) {
        self.traffic.global_requests += 1;
        if self.measure {
            self.traffic.global_sectors += sectors(addresses, mask);
            self.footprint.touch(addresses, mask);
        }
    }

    /// Counts what a bulk copy touches of global memory, which it was found to be inside of.
    pub(super) fn count_bulk(&mut self, address: u64, bytes: u32) {
        if self.measure {
            self.traffic.global_sectors += sectors_of_range(address, u64::from(bytes)).count() as u64;
            self.footprint.touch_range(address, u64::from(bytes));
        }
    }

    /// Counts a shared request of loads, stores or copies.
    #[inline(always)]
    pub(super) fn count_shared<T: Copy + Into<u64>>(&mut self, offsets: &[T; LANES], mask: u32, bytes: u32) {
        self.traffic.shared_requests += 1;
        if self.measure {
            let offsets = offsets.map(T::into);
            self.traffic.shared_bank_conflicts += bank_conflicts(&offsets, mask, bytes, true);
        }
    }

    /// Counts a shared request of an atomic.
    pub(super) fn count_shared_atomic(&mut self, offsets: &Addresses, mask: u32, bytes: u32) {
        self.traffic.shared_requests += 1;
        if self.measure {
            self.traffic.shared_bank_conflicts += bank_conflicts(offsets, mask, bytes, false);
        }
    }
}

/// Sectors of a range of addresses.
fn sectors_of_range(address: u64, bytes: u64) -> Range<u64> {
    address / SECTOR_BYTES..(address + bytes).div_ceil(SECTOR_BYTES)
}

/// Sectors that the lanes of a mask touch. Accesses are aligned and have at most 16 bytes, so that
/// each lies in one sector.
#[inline(never)]
fn sectors(addresses: &Addresses, mask: u32) -> u64 {
    let mut touched = [u64::MAX; LANES];
    for lane in lanes_of(mask) {
        touched[lane] = addresses[lane] / SECTOR_BYTES;
    }
    touched.sort_unstable();
    let new = |pair: &&[u64]| pair[1] != pair[0];
    // Lanes that take no part sort last and are one value more.
    let values = 1 + touched.windows(2).filter(new).count() as u64;
    values - u64::from(mask != u32::MAX)
}

/// Cycles beyond the first of each part of a request. A request of 64 bits a lane is served in
/// halves of the warp, one of 128 bits in quarters. In a cycle each bank serves one word, to all
/// lanes that want it if `broadcast`; atomics on one word go one after another.
#[inline(never)]
fn bank_conflicts(offsets: &Addresses, mask: u32, bytes: u32, broadcast: bool) -> u64 {
    let words = u64::from(bytes.div_ceil(4));
    let lanes = LANES / words as usize;
    let mut conflicts = 0;
    for part in 0..words as usize {
        // Lanes that take no part get words that count in no bank.
        let mut wanted = [u64::MAX; LANES];
        for lane in lanes_of(mask).filter(|lane| lane / lanes == part) {
            for word in 0..words {
                wanted[(lane % lanes) * words as usize + word as usize] = offsets[lane] / 4 + word;
            }
        }
        wanted.sort_unstable();
        let mut banks = [0u64; BANKS as usize];
        for (n, word) in wanted.iter().enumerate().take_while(|(_, word)| **word != u64::MAX) {
            let again = n > 0 && wanted[n - 1] == *word;
            banks[(word % BANKS) as usize] += u64::from(!(broadcast && again));
        }
        conflicts += banks.iter().max().map_or(0, |most| most.saturating_sub(1));
    }
    conflicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(address: impl Fn(u64) -> u64) -> Addresses {
        std::array::from_fn(|lane| address(lane as u64))
    }

    #[test]
    fn sectors_of_a_request() {
        let all = u32::MAX;
        assert_eq!(sectors(&lanes(|n| 256 + 4 * n), all), 4, "coalesced");
        assert_eq!(sectors(&lanes(|n| 256 + 16 * n), all), 16, "vectors");
        assert_eq!(sectors(&lanes(|n| 256 + 64 * n), all), 32, "strided");
        assert_eq!(sectors(&lanes(|n| 260 + 4 * n), all), 5, "off by a word");
        assert_eq!(sectors(&lanes(|_| 260), all), 1, "the same");
        assert_eq!(sectors(&lanes(|n| 256 + 4 * (31 - n)), all), 4, "backwards");
        assert_eq!(sectors(&lanes(|n| 64 * n), 0b101), 2, "some lanes");
        assert_eq!(sectors(&lanes(|n| 64 * n), 1 << 31), 1, "one lane");
    }

    #[test]
    fn conflicts_of_a_request() {
        let all = u32::MAX;
        let conflicts = |f: &dyn Fn(u64) -> u64, bytes| bank_conflicts(&lanes(f), all, bytes, true);
        assert_eq!(conflicts(&|n| 4 * n, 4), 0, "a word each");
        assert_eq!(conflicts(&|n| 8 * n, 4), 1, "every other word");
        assert_eq!(conflicts(&|n| 128 * n, 4), 31, "a column of rows of 32 words");
        assert_eq!(conflicts(&|n| 132 * n, 4), 0, "rows of 33 words");
        assert_eq!(conflicts(&|_| 40, 4), 0, "the same word");
        assert_eq!(conflicts(&|n| 128 * (n % 2), 4), 1, "two words of a bank");
        assert_eq!(conflicts(&|n| n, 1), 0, "bytes");
        assert_eq!(conflicts(&|n| 2 * n, 2), 0, "halves");
        assert_eq!(conflicts(&|n| 128 * n, 1), 31, "a column of bytes");
        assert_eq!(conflicts(&|n| 8 * n, 8), 0, "64 bits, in halves of the warp");
        assert_eq!(conflicts(&|n| 16 * n, 8), 2, "every other 64 bits: two halves, one more each");
        assert_eq!(conflicts(&|n| 16 * n, 16), 0, "128 bits, in quarters");
        assert_eq!(conflicts(&|n| 128 * n, 16), 28, "a column of 128 bits: four quarters, seven more each");
        assert_eq!(bank_conflicts(&lanes(|n| 128 * n), 0x3, 4, true), 1, "two lanes");
    }

    #[test]
    fn atomics_of_a_word_go_one_after_another() {
        assert_eq!(bank_conflicts(&lanes(|_| 40), u32::MAX, 4, false), 31);
        assert_eq!(bank_conflicts(&lanes(|n| 4 * n), u32::MAX, 4, false), 0);
        assert_eq!(bank_conflicts(&lanes(|n| 8 * (n / 2)), u32::MAX, 8, false), 2, "pairs, in halves");
    }
}
