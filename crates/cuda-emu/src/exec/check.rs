//! What is checked before memory is touched: bounds, alignment, life, whether bytes were written,
//! and for shared memory races.

use super::Env;
use super::address::{Addresses, Offsets};
use super::block::word;
use super::isa::{Isa, Portable};
use super::lanes::{LANES, Lane, lanes_of};
use super::trap::{Step, trap_at};
use super::warp::Warp;
use crate::error::FaultKind;
use crate::memory::Space;
use crate::memory::shadow::{Access, Kind, Shadow};

/// Where lanes' accesses to shared memory go. Lives on the stack for one instruction.
#[allow(clippy::large_enum_variant)]
pub(super) enum Reach {
    /// All to the same place: a block and an offset there.
    One((usize, u32)),
    /// To places of the own block that follow each other, from an offset on.
    Run(usize),
    Each([(usize, u32); LANES]),
}

impl Env<'_> {
    /// Checks a global access of all lanes: in bounds and aligned. Gives the region, if it is one.
    /// Lanes that do not take part get a partner's address, so that all are valid.
    #[inline(always)]
    pub(super) fn check_global<I: Isa>(
        &mut self,
        addresses: &mut Addresses,
        mask: u32,
        bytes: u32,
        access: &'static str,
    ) -> Step<Option<usize>> {
        give_partners(addresses, mask);
        let hit = self.hits[self.trap_pc as usize] as usize;
        let region = self.view.regions.get(hit);
        // Without a region, or with one that is too short, every offset is outside.
        let last = region.and_then(|region| (region.end - region.start).checked_sub(u64::from(bytes)));
        let (start, last) = region.zip(last).map_or((0, u64::MAX), |(region, last)| (region.start, last));
        let (outside, bits) = I::bounds(addresses.as_chunks().0, start, last);
        if bits & u64::from(bytes - 1) != 0 {
            return misaligned(addresses, bytes, access);
        }
        if outside { self.find_region(addresses, bytes, access) } else { Ok(Some(hit)) }
    }

    #[cold]
    fn find_region(
        &mut self,
        addresses: &Addresses,
        bytes: u32,
        access: &'static str,
    ) -> Step<Option<usize>> {
        let length = u64::from(bytes);
        let found = self.view.find(addresses[0], length);
        if found.is_some() && addresses.iter().all(|address| self.view.find(*address, length) == found) {
            self.hits[self.trap_pc as usize] = found.map_or(u32::MAX, |found| found as u32);
            return Ok(found);
        }
        for (lane, address) in addresses.iter().enumerate() {
            self.check_inside(*address, bytes, access, lane)?;
        }
        Ok(None)
    }

    /// Checks that a lane's bytes lie in a live allocation.
    fn check_inside(&self, address: u64, bytes: u32, access: &'static str, lane: usize) -> Step<()> {
        if self.view.find(address, u64::from(bytes)).is_some() {
            return Ok(());
        }
        let kind = match self.view.freed_at(address) {
            Some(allocation) => FaultKind::UseAfterFree { bytes, access, allocation },
            None => FaultKind::OutOfBounds {
                space: Space::Global,
                bytes,
                access,
                nearest: self.view.nearest(address),
            },
        };
        trap_at(kind, lane, address)
    }

    /// Checks a global access of `lengths` bytes of each lane, at addresses that are for `align`.
    #[cold]
    pub(super) fn check_global_parts(
        &self,
        addresses: &Addresses,
        mask: u32,
        align: u32,
        lengths: &[u32; LANES],
        access: &'static str,
    ) -> Step<()> {
        for lane in lanes_of(mask) {
            let address = addresses[lane];
            if address & u64::from(align - 1) != 0 {
                return trap_at(
                    FaultKind::Misaligned { space: Space::Global, bytes: align, access },
                    lane,
                    address,
                );
            }
            self.check_inside(address, lengths[lane], access, lane)?;
        }
        Ok(())
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
        self.check_written_lanes(addresses, region, mask, bytes)
    }

    #[inline(never)]
    fn check_written_lanes(
        &self,
        addresses: &Addresses,
        region: Option<usize>,
        mask: u32,
        bytes: u32,
    ) -> Step<()> {
        if let (Some(region), Some(length)) = (region, one_run(addresses, mask, bytes)) {
            let allocation = &self.view.regions[region].allocation;
            if allocation.is_valid(addresses[0] - allocation.base(), length) {
                return Ok(());
            }
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
        self.mark_written_lanes(addresses, region, mask, bytes);
    }

    #[inline(never)]
    fn mark_written_lanes(&self, addresses: &Addresses, region: Option<usize>, mask: u32, bytes: u32) {
        if let (Some(region), Some(length)) = (region, one_run(addresses, mask, bytes)) {
            let allocation = &self.view.regions[region].allocation;
            return allocation.mark_valid(addresses[0] - allocation.base(), length);
        }
        for lane in lanes_of(mask) {
            if let Some(region) = region.or_else(|| self.view.find(addresses[lane], 1)) {
                let allocation = &self.view.regions[region].allocation;
                allocation.mark_valid(addresses[lane] - allocation.base(), u64::from(bytes));
            }
        }
    }

    /// Checks a shared access of all lanes. Lanes that do not take part get a partner's place.
    #[inline(always)]
    pub(super) fn check_shared_lanes<I: Isa>(
        &mut self,
        own: usize,
        access: &mut Access,
        addresses: &mut Addresses,
        mask: u32,
        bytes: u32,
    ) -> Step<Reach> {
        give_partners(addresses, mask);
        let first = addresses[0];
        if I::in_steps(addresses, 0) {
            let lane = mask.trailing_zeros() as usize & 31;
            let place = self.check_shared(own, access, first, bytes, lane)?;
            // One look is enough, unless it is what the warp's own lanes wrote.
            if Shadow::is_for_all_lanes(access) {
                return Ok(Reach::One(place));
            }
        } else if self.check_shared_run::<I>(own, access, addresses, mask, bytes)? {
            return Ok(Reach::Run(first as usize));
        }
        let mut places = [(own, 0); LANES];
        let mut last = None;
        for lane in lanes_of(mask) {
            let address = addresses[lane];
            places[lane] = match last {
                Some((same, place)) if same == address && Shadow::is_for_all_lanes(access) => place,
                _ => self.check_shared(own, access, address, bytes, lane)?,
            };
            last = Some((address, places[lane]));
        }
        let partner = places[mask.trailing_zeros() as usize & 31];
        for lane in lanes_of(!mask) {
            places[lane] = partner;
        }
        Ok(Reach::Each(places))
    }

    /// Checks a whole warp's access to consecutive elements of its own block at once, where all have
    /// the same history; gives false, and has noted nothing but the first lane, for others.
    #[inline(always)]
    pub(super) fn check_shared_run<I: Isa>(
        &mut self,
        own: usize,
        access: &mut Access,
        addresses: &Addresses,
        mask: u32,
        bytes: u32,
    ) -> Step<bool> {
        let first = addresses[0];
        if mask != u32::MAX || !I::in_steps(addresses, u64::from(bytes)) {
            return Ok(false);
        }
        let length = u64::from(bytes) * LANES as u64;
        let block = &self.blocks[own];
        let clocks = &self.clusters[block.cluster].clocks;
        let just_written = |shadow: &Shadow| shadow.just_written(access, clocks, first as usize, 0);
        if first.checked_add(length).is_none_or(|end| end > block.memory.len() as u64)
            || block.shadow.as_ref().is_some_and(just_written)
        {
            return Ok(false);
        }
        self.check_shared(own, access, first, bytes, 0)?;
        let (next, left) = (first as u32 + bytes, length as u32 - bytes);
        let shadow = self.blocks[own].shadow.as_mut();
        Ok(shadow.is_none_or(|shadow| shadow.repeat(access, next, left, bytes)))
    }

    /// Checks each lane's access to `N` words of the block's own shared memory; addresses become offsets there.
    #[inline(always)]
    pub(super) fn check_shared_each<const N: usize>(
        &mut self,
        own: usize,
        access: &mut Access,
        addresses: &mut Offsets,
        mask: u32,
    ) -> Step<()> {
        let bytes = 4 * N as u32;
        let last = self.blocks[own].memory.len().checked_sub(bytes as usize);
        let last = last.map_or(0, |last| last as u32);
        // Mostly all lanes take part, or the first: in eights, as vectors, without a mask.
        let first = mask.trailing_ones();
        let mut wrong = last == 0;
        if first == mask.count_ones() && first.is_multiple_of(8) {
            for addresses in addresses[..first as usize].as_chunks::<8>().0 {
                for address in addresses {
                    wrong |= *address > last || *address & (bytes - 1) != 0;
                }
            }
        } else {
            for lane in lanes_of(mask) {
                wrong |= addresses[lane] > last || addresses[lane] & (bytes - 1) != 0;
            }
        }
        if wrong {
            // Something is wrong, or the block is named by its rank.
            for lane in lanes_of(mask) {
                addresses[lane] =
                    self.check_own_shared(own, access, u64::from(addresses[lane]), bytes, lane)?;
            }
            return Ok(());
        }
        let block = &mut self.blocks[own];
        let clocks = &self.clusters[block.cluster].clocks;
        block.note_lanes::<N>(access, clocks, self.program, addresses, mask)
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

/// Lanes that do not take part get the first other's address.
#[inline(always)]
fn give_partners(addresses: &mut Addresses, mask: u32) {
    if mask != u32::MAX {
        let first = addresses[mask.trailing_zeros() as usize & 31];
        for (lane, address) in addresses.iter_mut().enumerate() {
            *address = u64::pick(mask >> lane & 1, *address, first);
        }
    }
}

#[cold]
fn misaligned<T>(addresses: &Addresses, bytes: u32, access: &'static str) -> Step<T> {
    let lane = addresses.iter().position(|a| a & u64::from(bytes - 1) != 0).unwrap_or(0);
    trap_at(FaultKind::Misaligned { space: Space::Global, bytes, access }, lane, addresses[lane])
}

/// Length of the run of bytes that lanes access if all take part and each begins where the one
/// before ends.
fn one_run(addresses: &Addresses, mask: u32, bytes: u32) -> Option<u64> {
    let run = mask == u32::MAX && Portable::in_steps(addresses, u64::from(bytes));
    run.then_some(u64::from(bytes) * LANES as u64)
}
