//! Loads and stores, and the addresses of all memory instructions.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::block::word;
use super::isa::Isa;
use super::lanes::{LANES, Lane, Registers, lanes_of, mask_of};
use super::trap::{Step, trap_at};
use super::warp::Warp;
use super::{Env, LOCAL_WINDOW, SHARED_WINDOW};
use crate::decode::{Inst, NARROW, SINK, Slot, WIDE};
use crate::error::FaultKind;
use crate::memory::Space;
use crate::memory::shadow::{Access, Kind};
use crate::ptx::Type;

/// Addresses of a warp's lanes.
pub(super) type Addresses = [u64; LANES];

/// Bits of a shared address that are the offset; above is the block's rank in the cluster plus one,
/// or zero for the own block.
const OFFSET_BITS: u32 = 24;

/// The space of a generic address.
pub(super) fn space_of(address: u64) -> Space {
    match address >> 60 {
        1 => Space::Shared,
        2 => Space::Local,
        _ => Space::Global,
    }
}

/// a + offset, of 32 bits if `narrow`.
#[inline(always)]
pub(super) fn addresses(r: &Registers, slot: Slot, narrow: bool, offset: i64) -> Addresses {
    let mut found = [0; LANES];
    if narrow {
        let a = u32::get(r, slot);
        for lane in 0..LANES {
            found[lane] = u64::from(a[lane].wrapping_add(offset as u32));
        }
    } else {
        let a = u64::get(r, slot);
        for lane in 0..LANES {
            found[lane] = a[lane].wrapping_add(offset as u64);
        }
    }
    found
}

/// Gives each space's lanes of generic addresses to `go`, as addresses of that space.
#[inline(always)]
pub(super) fn by_space(
    space: Space,
    addresses: Addresses,
    mask: u32,
    mut go: impl FnMut(Space, Addresses, u32) -> Step<()>,
) -> Step<()> {
    if space != Space::Generic {
        // 64-bit shared and local addresses come without their window.
        return go(space, addresses, mask);
    }
    let shared = mask & mask_of(|lane| space_of(addresses[lane]) == Space::Shared);
    let local = mask & mask_of(|lane| space_of(addresses[lane]) == Space::Local);
    if mask & !(shared | local) != 0 {
        go(Space::Global, addresses, mask & !(shared | local))?;
    }
    if shared != 0 {
        go(Space::Shared, addresses.map(|a| a.wrapping_sub(SHARED_WINDOW)), shared)?;
    }
    if local != 0 {
        go(Space::Local, addresses.map(|a| a.wrapping_sub(LOCAL_WINDOW)), local)?;
    }
    Ok(())
}

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

    /// Block of a shared address, and the offset there.
    #[inline(always)]
    pub(super) fn shared_target(
        &self,
        own: usize,
        address: u64,
        bytes: u32,
        access: &'static str,
        lane: usize,
    ) -> Step<(usize, u32)> {
        let rank = address >> OFFSET_BITS;
        if rank == 0 {
            return Ok((own, address as u32));
        }
        let cluster = &self.clusters[self.blocks[own].cluster];
        if rank > u64::from(cluster.blocks) {
            let nearest = format!("no block of the cluster has rank {}", rank - 1);
            return trap_at(
                FaultKind::OutOfBounds { space: Space::Shared, bytes, access, nearest },
                lane,
                address,
            );
        }
        let target = cluster.first + rank as usize - 1;
        if self.blocks[target].alive == 0 {
            let allocation = format!("shared memory of the cluster's block {}, which has exited", rank - 1);
            return trap_at(FaultKind::UseAfterFree { bytes, access, allocation }, lane, address);
        }
        Ok((target, address as u32 & ((1 << OFFSET_BITS) - 1)))
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

/// A value in memory.
pub(super) trait Memory: Copy + Default {
    /// Reads global memory.
    ///
    /// # Safety
    /// The bytes lie in a live allocation, and the address is aligned.
    unsafe fn load(address: u64) -> Self;
    /// Writes global memory.
    ///
    /// # Safety
    /// As for `load`.
    unsafe fn store(self, address: u64);
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    fn widen(self, signed: bool) -> u64;
    fn truncate(value: u64) -> Self;
}

macro_rules! memory {
    ($($ty:ty, $signed:ty, $atomic:ty;)*) => {$(
        impl Memory for $ty {
            #[inline(always)]
            unsafe fn load(address: u64) -> Self {
                // Atomic, so that kernels whose blocks race are not undefined behaviour here.
                // SAFETY: passed on to the caller.
                unsafe { <$atomic>::from_ptr(address as *mut $ty) }.load(Ordering::Relaxed)
            }
            #[inline(always)]
            unsafe fn store(self, address: u64) {
                // SAFETY: passed on to the caller.
                unsafe { <$atomic>::from_ptr(address as *mut $ty) }.store(self, Ordering::Relaxed);
            }
            #[inline(always)]
            fn read(bytes: &[u8]) -> Self { bytes.first_chunk().map_or(0, |b| <$ty>::from_le_bytes(*b)) }
            #[inline(always)]
            fn write(self, bytes: &mut [u8]) {
                if let Some(target) = bytes.first_chunk_mut() {
                    *target = self.to_le_bytes();
                }
            }
            #[inline(always)]
            fn widen(self, signed: bool) -> u64 { if signed { self as $signed as i64 as u64 } else { self as u64 } }
            #[inline(always)]
            fn truncate(value: u64) -> Self { value as $ty }
        }
    )*};
}

memory! {
    u8, i8, AtomicU8;
    u16, i16, AtomicU16;
    u32, i32, AtomicU32;
    u64, i64, AtomicU64;
}

/// Stores loaded values to a register as its size and the type's sign demand.
#[inline(always)]
fn deliver<T: Memory>(r: &mut Registers, tagged: Slot, values: [T; LANES], signed: bool, mask: u32) {
    let slot = tagged & !(WIDE | NARROW);
    if tagged & WIDE != 0 {
        let mut wide = [0; LANES];
        for lane in 0..LANES {
            wide[lane] = values[lane].widen(signed);
        }
        u64::put(r, slot, wide, mask);
    } else {
        let limit = if tagged & NARROW != 0 { 0xffff } else { u32::MAX };
        let mut narrow = [0; LANES];
        for lane in 0..LANES {
            narrow[lane] = values[lane].widen(signed) as u32 & limit;
        }
        u32::put(r, slot, narrow, mask);
    }
}

/// Values of a register to store.
#[inline(always)]
fn fetch<T: Memory>(r: &Registers, tagged: Slot) -> [T; LANES] {
    let slot = tagged & !(WIDE | NARROW);
    let mut values = [T::default(); LANES];
    if tagged & WIDE != 0 {
        let wide = u64::get(r, slot);
        for lane in 0..LANES {
            values[lane] = T::truncate(wide[lane]);
        }
    } else {
        let narrow = u32::get(r, slot);
        for lane in 0..LANES {
            values[lane] = T::truncate(u64::from(narrow[lane]));
        }
    }
    values
}

/// Runs a load.
#[inline(always)]
pub(super) fn load<I: Isa>(
    env: &mut Env,
    warp: &mut Warp,
    i: &Inst,
    lists: &[Slot],
    space: Space,
    ty: Type,
    mask: u32,
) -> Step<()> {
    let from = addresses(&warp.registers, i.a, i.c != 0, i.imm);
    by_space(space, from, mask, |space, from, mask| match ty.bytes() {
        1 => I::run(
            #[inline(always)]
            || load_as::<u8>(env, warp, lists, space, ty, from, mask),
        ),
        2 => I::run(
            #[inline(always)]
            || load_as::<u16>(env, warp, lists, space, ty, from, mask),
        ),
        4 => I::run(
            #[inline(always)]
            || load_as::<u32>(env, warp, lists, space, ty, from, mask),
        ),
        _ => I::run(
            #[inline(always)]
            || load_as::<u64>(env, warp, lists, space, ty, from, mask),
        ),
    })
}

#[inline(always)]
fn load_as<T: Memory>(
    env: &mut Env,
    warp: &mut Warp,
    lists: &[Slot],
    space: Space,
    ty: Type,
    from: Addresses,
    mask: u32,
) -> Step<()> {
    let size = size_of::<T>() as u32;
    let bytes = size * lists.len() as u32;
    let total = u64::from(bytes * mask.count_ones());
    let r = &mut warp.registers;
    match space {
        Space::Global | Space::Generic => {
            let (all, region) = env.check_global(&from, mask, bytes, "read")?;
            env.check_written(&all, region, mask, bytes)?;
            env.count_global(&all, mask, bytes);
            env.traffic.global_bytes_read += total;
            for (n, slot) in lists.iter().enumerate().filter(|(_, slot)| **slot != SINK) {
                let mut values = [T::default(); LANES];
                for lane in 0..LANES {
                    // SAFETY: `check_global` found every lane's bytes inside of a live allocation,
                    // which the view keeps, and aligned.
                    values[lane] = unsafe { T::load(all[lane] + n as u64 * u64::from(size)) };
                }
                deliver(r, *slot, values, ty.is_signed(), mask);
            }
        }
        Space::Shared => {
            let mut access = env.shared_access(warp, Kind::Read);
            env.count_shared(&from, mask, bytes);
            env.traffic.shared_bytes_read += total;
            let mut values = [[T::default(); LANES]; 4];
            for lane in lanes_of(mask) {
                let (block, offset) = env.check_shared(warp.block, &mut access, from[lane], bytes, lane)?;
                for (n, part) in values.iter_mut().take(lists.len()).enumerate() {
                    part[lane] = T::read(&env.blocks[block].memory[offset as usize + n * size as usize..]);
                }
            }
            for (slot, part) in lists.iter().zip(values) {
                deliver(&mut warp.registers, *slot, part, ty.is_signed(), mask);
            }
        }
        Space::Local => {
            let length = warp.local.len() / LANES;
            for (n, slot) in lists.iter().enumerate() {
                let mut values = [T::default(); LANES];
                for lane in lanes_of(mask) {
                    check_local(from[lane], bytes, length, "read", lane)?;
                    let at = lane * length + from[lane] as usize + n * size as usize;
                    values[lane] = T::read(&warp.local[at..]);
                }
                deliver(r, *slot, values, ty.is_signed(), mask);
            }
        }
    }
    Ok(())
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

/// Runs a store.
#[inline(always)]
pub(super) fn store<I: Isa>(
    env: &mut Env,
    warp: &mut Warp,
    i: &Inst,
    lists: &[Slot],
    space: Space,
    ty: Type,
    mask: u32,
) -> Step<()> {
    let to = addresses(&warp.registers, i.a, i.c != 0, i.imm);
    by_space(space, to, mask, |space, to, mask| match ty.bytes() {
        1 => I::run(
            #[inline(always)]
            || store_as::<u8>(env, warp, lists, space, to, mask),
        ),
        2 => I::run(
            #[inline(always)]
            || store_as::<u16>(env, warp, lists, space, to, mask),
        ),
        4 => I::run(
            #[inline(always)]
            || store_as::<u32>(env, warp, lists, space, to, mask),
        ),
        _ => I::run(
            #[inline(always)]
            || store_as::<u64>(env, warp, lists, space, to, mask),
        ),
    })
}

#[inline(always)]
fn store_as<T: Memory + PartialEq>(
    env: &mut Env,
    warp: &mut Warp,
    lists: &[Slot],
    space: Space,
    to: Addresses,
    mask: u32,
) -> Step<()> {
    let size = size_of::<T>() as u32;
    let bytes = size * lists.len() as u32;
    let total = u64::from(bytes * mask.count_ones());
    match space {
        Space::Global | Space::Generic => {
            let (all, region) = env.check_global(&to, mask, bytes, "write")?;
            env.mark_written(&all, region, mask, bytes);
            env.count_global(&all, mask, bytes);
            env.traffic.global_bytes_written += total;
            for (n, slot) in lists.iter().enumerate() {
                let values = fetch::<T>(&warp.registers, *slot);
                for lane in lanes_of(mask) {
                    // SAFETY: as in `load_as`.
                    unsafe { values[lane].store(all[lane] + n as u64 * u64::from(size)) };
                }
            }
        }
        Space::Shared => {
            let mut access = env.shared_access(warp, Kind::Write);
            env.count_shared(&to, mask, bytes);
            env.traffic.shared_bytes_written += total;
            let mut values = [[T::default(); LANES]; 4];
            for (part, slot) in values.iter_mut().zip(lists) {
                *part = fetch::<T>(&warp.registers, *slot);
            }
            for lane in lanes_of(mask) {
                if same_already(env, warp.block, &values, lists.len(), to[lane], lane, size) {
                    continue;
                }
                let (block, offset) = env.check_shared(warp.block, &mut access, to[lane], bytes, lane)?;
                for (n, part) in values.iter().take(lists.len()).enumerate() {
                    part[lane].write(&mut env.blocks[block].memory[offset as usize + n * size as usize..]);
                }
            }
        }
        Space::Local => {
            let length = warp.local.len() / LANES;
            for (n, slot) in lists.iter().enumerate() {
                let values = fetch::<T>(&warp.registers, *slot);
                for lane in lanes_of(mask) {
                    check_local(to[lane], bytes, length, "write", lane)?;
                    let at = lane * length + to[lane] as usize + n * size as usize;
                    values[lane].write(&mut warp.local[at..]);
                }
            }
        }
    }
    Ok(())
}

/// Whether this very instruction has just written the same values to the same place by another lane:
/// many lanes may store one result.
#[inline(always)]
fn same_already<T: Memory + PartialEq>(
    env: &Env,
    block: usize,
    values: &[[T; LANES]; 4],
    count: usize,
    address: u64,
    lane: usize,
    size: u32,
) -> bool {
    let block = &env.blocks[block];
    let Some(shadow) = &block.shadow else { return false };
    let offset = address as usize;
    if address + u64::from(size) * count as u64 > block.memory.len() as u64
        || !shadow.just_written(offset, lane as u8, env.trap_pc)
    {
        return false;
    }
    (0..count).all(|n| T::read(&block.memory[offset + n * size as usize..]) == values[n][lane])
}

/// `mapa`: an address of this block, in another block of the cluster.
pub(super) fn mapa(env: &Env, warp: &mut Warp, i: &Inst, wide: bool, mask: u32) -> Step<()> {
    let blocks = env.clusters[env.blocks[warp.block].cluster].blocks;
    let ranks = u32::get(&warp.registers, i.b);
    if let Some(lane) = lanes_of(mask).find(|lane| ranks[*lane] >= blocks) {
        return super::trap::invalid(format!("block {} of a cluster of {blocks} (lane {lane})", ranks[lane]));
    }
    let place =
        |offset: u64, rank: u32| offset & ((1 << OFFSET_BITS) - 1) | u64::from(rank + 1) << OFFSET_BITS;
    let r = &mut warp.registers;
    if wide {
        let window = if i.imm != 0 { SHARED_WINDOW } else { 0 };
        let a = u64::get(r, i.a);
        u64::put(r, i.d, std::array::from_fn(|lane| window + place(a[lane], ranks[lane])), mask);
    } else {
        let a = u32::get(r, i.a);
        u32::put(r, i.d, std::array::from_fn(|lane| place(u64::from(a[lane]), ranks[lane]) as u32), mask);
    }
    Ok(())
}

/// `getctarank`
pub(super) fn cta_rank(env: &Env, warp: &mut Warp, i: &Inst, wide: bool, mask: u32) {
    let own = env.blocks[warp.block].rank;
    let rank = |address: u64| {
        ((address & 0xffff_ffff) >> OFFSET_BITS).checked_sub(1).map_or(own, |rank| rank as u32)
    };
    let r = &mut warp.registers;
    let a = if wide { u64::get(r, i.a) } else { u32::get(r, i.a).map(u64::from) };
    u32::put(r, i.d, a.map(rank), mask);
}
