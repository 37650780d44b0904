//! What is checked before memory is touched: bounds, alignment, life, whether bytes were written,
//! and for shared memory races.

use super::Env;
use super::address::Addresses;
use super::block::word;
use super::lanes::{LANES, lanes_of};
use super::trap::{Step, trap_at};
use super::warp::Warp;
use crate::error::FaultKind;
use crate::memory::Space;
use crate::memory::shadow::{Access, Kind};

impl Env<'_> {
    /// Checks a global access of all lanes: in bounds and aligned. Gives addresses that are valid
    /// in all lanes (those that do not take part have a partner's), and the region if it is one.
    #[inline(always)]
    pub(super) fn check_global(
        &mut self,
        addresses: &Addresses,
        mask: u32,
        bytes: u32,
        access: &'static str,
    ) -> Step<(Addresses, Option<usize>)> {
        let first = addresses[mask.trailing_zeros() as usize & 31];
        let mut all = *addresses;
        let (mut low, mut high, mut bits) = (u64::MAX, 0, 0);
        for lane in 0..LANES {
            let address = if mask >> lane & 1 != 0 { addresses[lane] } else { first };
            all[lane] = address;
            low = low.min(address);
            high = high.max(address);
            bits |= address;
        }
        if bits & u64::from(bytes - 1) != 0 {
            return misaligned(&all, bytes, access);
        }
        let hit = self.hits[self.trap_pc as usize] as usize;
        if let Some(region) = self.view.regions.get(hit)
            && low >= region.start
            && high <= region.end.wrapping_sub(u64::from(bytes))
            && high < region.end
        {
            return Ok((all, Some(hit)));
        }
        self.find_region(all, low, high, bytes, access)
    }

    #[cold]
    fn find_region(
        &mut self,
        all: Addresses,
        low: u64,
        high: u64,
        bytes: u32,
        access: &'static str,
    ) -> Step<(Addresses, Option<usize>)> {
        let length = u64::from(bytes);
        if let Some(found) = self.view.find(low, length)
            && self.view.find(high, length) == Some(found)
        {
            self.hits[self.trap_pc as usize] = found as u32;
            return Ok((all, Some(found)));
        }
        for (lane, address) in all.iter().enumerate() {
            if self.view.find(*address, length).is_none() {
                let kind = match self.view.freed_at(*address) {
                    Some(allocation) => FaultKind::UseAfterFree { bytes, access, allocation },
                    None => FaultKind::OutOfBounds {
                        space: Space::Global,
                        bytes,
                        access,
                        nearest: self.view.nearest(*address),
                    },
                };
                return trap_at(kind, lane, *address);
            }
        }
        Ok((all, None))
    }

    /// Checks that what lanes read from global memory was written.
    #[inline(always)]
    pub(super) fn check_written(
        &self,
        addresses: &Addresses,
        region: Option<usize>,
        mask: u32,
        bytes: u32,
    ) -> Step<()> {
        if !self.check {
            return Ok(());
        }
        if let Some(region) = region
            && self.view.regions[region].allocation.all_valid()
        {
            return Ok(());
        }
        for lane in lanes_of(mask) {
            let Some(region) = region.or_else(|| self.view.find(addresses[lane], 1)) else { continue };
            let allocation = &self.view.regions[region].allocation;
            if !allocation.is_valid(addresses[lane] - allocation.base(), u64::from(bytes)) {
                return trap_at(
                    FaultKind::Uninitialised { space: Space::Global, bytes },
                    lane,
                    addresses[lane],
                );
            }
        }
        Ok(())
    }

    /// Notes that lanes wrote to global memory.
    #[inline(always)]
    pub(super) fn mark_written(&self, addresses: &Addresses, region: Option<usize>, mask: u32, bytes: u32) {
        if let Some(region) = region
            && self.view.regions[region].allocation.all_valid()
        {
            return;
        }
        for lane in lanes_of(mask) {
            if let Some(region) = region.or_else(|| self.view.find(addresses[lane], 1)) {
                let allocation = &self.view.regions[region].allocation;
                allocation.mark_valid(addresses[lane] - allocation.base(), u64::from(bytes));
            }
        }
    }

    /// Notes a lane's access to shared memory, after checking bounds and alignment.
    #[inline(always)]
    pub(super) fn check_shared(
        &mut self,
        own: usize,
        access: &mut Access,
        address: u64,
        bytes: u32,
        lane: usize,
    ) -> Step<(usize, u32)> {
        let word = word(access.kind());
        let (target, offset) = self.shared_target(own, address, bytes, word, lane)?;
        let block = &mut self.blocks[target];
        block.check_range(u64::from(offset), bytes, bytes, word, lane)?;
        let clocks = &self.clusters[block.cluster].clocks;
        block.note(access, clocks, self.program, offset, bytes, lane)?;
        Ok((target, offset))
    }

    /// An access of the instruction that runs.
    #[inline(always)]
    pub(super) fn shared_access(&self, warp: &Warp, kind: Kind) -> Access {
        let clocks = &self.clusters[self.blocks[warp.block].cluster].clocks;
        Access::new(clocks, warp.agent, kind, self.trap_pc)
    }
}

#[cold]
fn misaligned<T>(addresses: &Addresses, bytes: u32, access: &'static str) -> Step<T> {
    let lane = addresses.iter().position(|a| a & u64::from(bytes - 1) != 0).unwrap_or(0);
    trap_at(FaultKind::Misaligned { space: Space::Global, bytes, access }, lane, addresses[lane])
}

/// Checks an access to local memory.
#[inline(always)]
pub(super) fn check_local(
    address: u64,
    bytes: u32,
    length: usize,
    access: &'static str,
    lane: usize,
) -> Step<()> {
    if address.checked_add(u64::from(bytes)).is_none_or(|end| end > length as u64) {
        let nearest = format!("the thread has {length} bytes of it");
        return trap_at(
            FaultKind::OutOfBounds { space: Space::Local, bytes, access, nearest },
            lane,
            address,
        );
    }
    if address & u64::from(bytes - 1) != 0 {
        return trap_at(FaultKind::Misaligned { space: Space::Local, bytes, access }, lane, address);
    }
    Ok(())
}
