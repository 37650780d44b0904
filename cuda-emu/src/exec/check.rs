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
    /// Checks a global access of all lanes: in bounds and aligned. Lanes that do not take part get a
    /// partner's address, so that all are valid. Gives the region if it is one.
    #[inline(always)]
    pub(super) fn check_global(
        &mut self,
        addresses: &mut Addresses,
        mask: u32,
        bytes: u32,
        access: &'static str,
    ) -> Step<Option<usize>> {
        if mask != u32::MAX {
            let first = addresses[mask.trailing_zeros() as usize & 31];
            for (lane, address) in addresses.iter_mut().enumerate() {
                *address = if mask >> lane & 1 != 0 { *address } else { first };
            }
        }
        let hit = self.hits[self.trap_pc as usize] as usize;
        let (start, last) = match self.view.regions.get(hit) {
            Some(region) => (region.start, (region.end - region.start).wrapping_sub(u64::from(bytes))),
            None => (0, u64::MAX),
        };
        // Without branches: the sign bit of an offset, or of what is left behind it, is set outside.
        let (mut outside, mut bits) = (0, 0);
        for address in addresses.iter() {
            let offset = address.wrapping_sub(start);
            outside |= offset | last.wrapping_sub(offset);
            bits |= address;
        }
        if bits & u64::from(bytes - 1) != 0 {
            return misaligned(addresses, bytes, access);
        }
        if outside >> 63 == 0 {
            return Ok(Some(hit));
        }
        self.find_region(addresses, bytes, access)
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
        Ok(None)
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

    /// Checks a shared access of all lanes, and gives each one's block and offset.
    #[inline(always)]
    pub(super) fn check_shared_lanes(
        &mut self,
        own: usize,
        access: &mut Access,
        addresses: &Addresses,
        mask: u32,
        bytes: u32,
    ) -> Step<[(usize, u32); LANES]> {
        let mut places = [(own, 0); LANES];
        if self.check_shared_run(own, access, addresses, mask, bytes)? {
            for (place, address) in places.iter_mut().zip(addresses) {
                place.1 = *address as u32;
            }
            return Ok(places);
        }
        for lane in lanes_of(mask) {
            places[lane] = self.check_shared(own, access, addresses[lane], bytes, lane)?;
        }
        Ok(places)
    }

    /// Checks a whole warp's read of consecutive elements of its own block at once, where all have
    /// the same history; gives false, and has checked nothing but the first lane, for others.
    #[inline(always)]
    fn check_shared_run(
        &mut self,
        own: usize,
        access: &mut Access,
        addresses: &Addresses,
        mask: u32,
        bytes: u32,
    ) -> Step<bool> {
        let block = &self.blocks[own];
        let Some(length) = one_run(addresses, mask, bytes) else { return Ok(false) };
        let inside = addresses[0].checked_add(length).is_some_and(|end| end <= block.memory.len() as u64);
        if !inside || access.kind() != Kind::Read {
            return Ok(false);
        }
        self.check_shared(own, access, addresses[0], bytes, 0)?;
        let rest = (addresses[0] as u32 + bytes, length as u32 - bytes);
        let block = &mut self.blocks[own];
        Ok(block.shadow.as_mut().is_none_or(|shadow| shadow.repeat(access, rest.0, rest.1)))
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

/// Length of the run of bytes that lanes access if all take part and each begins where the one
/// before ends.
#[inline(always)]
fn one_run(addresses: &Addresses, mask: u32, bytes: u32) -> Option<u64> {
    let mut difference = 0;
    for (lane, address) in addresses.iter().enumerate() {
        difference |= addresses[0].wrapping_add(lane as u64 * u64::from(bytes)) ^ address;
    }
    (mask == u32::MAX && difference == 0).then_some(u64::from(bytes) * LANES as u64)
}
