//! Addresses of memory instructions: of all lanes, of which space, in which block of a cluster.

use super::block::word;
use super::isa::Isa;
use super::lanes::{LANES, Lane, Registers, lanes_of, mask_of};
use super::trap::{Step, invalid, trap_at};
use super::warp::Warp;
use super::{Env, LOCAL_WINDOW, SHARED_WINDOW};
use crate::decode::{Inst, Program, Slot};
use crate::error::FaultKind;
use crate::memory::Space;
use crate::memory::shadow::Access;

/// Addresses of a warp's lanes.
pub(super) type Addresses = [u64; LANES];

/// Offsets in a block's shared memory, likewise.
pub(super) type Offsets = [u32; LANES];

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

/// `isspacep`
pub(super) fn is_space(program: &Program, warp: &mut Warp, i: &Inst, space: Space, mask: u32) {
    let a = u64::get(&warp.registers, i.a);
    let constant = |address: u64| program.constants.iter().any(|range| range.contains(&address));
    let of_kind = |address: u64| space != Space::Global || constant(address) == (i.imm != 0);
    let bits = mask_of(|lane| space_of(a[lane]) == space && of_kind(a[lane]));
    warp.registers.put_pred(i.d, bits, mask);
}

/// a + offset, of 32 bits if `narrow`.
#[inline(always)]
pub(super) fn addresses<I: Isa>(r: &Registers, slot: Slot, narrow: bool, offset: i64) -> Addresses {
    if narrow {
        I::add_narrow(u32::stored(r, slot), offset as u32)
    } else {
        I::add_wide(u64::stored(r, slot), offset as u64)
    }
}

/// a + offset, of 32 bits.
#[inline(always)]
pub(super) fn offsets(r: &Registers, slot: Slot, offset: i64) -> Offsets {
    let mut sums = *u32::stored(r, slot);
    sums.iter_mut().for_each(|sum| *sum = sum.wrapping_add(offset as u32));
    sums
}

/// Gives each space's lanes of generic addresses to `go`, as addresses of that space.
pub(super) fn by_space(
    space: Space,
    addresses: &mut Addresses,
    mask: u32,
    mut go: impl FnMut(Space, &mut Addresses, u32) -> Step<()>,
) -> Step<()> {
    if space != Space::Generic {
        // 64-bit shared and local addresses come without their window.
        return go(space, addresses, mask);
    }
    let shared = mask & mask_of(|lane| space_of(addresses[lane]) == Space::Shared);
    let local = mask & mask_of(|lane| space_of(addresses[lane]) == Space::Local);
    let global = mask & !(shared | local);
    if global == mask {
        return go(Space::Global, addresses, mask);
    }
    if global != 0 {
        go(Space::Global, &mut addresses.clone(), global)?;
    }
    if shared != 0 {
        go(Space::Shared, &mut addresses.map(|a| a.wrapping_sub(SHARED_WINDOW)), shared)?;
    }
    if local != 0 {
        go(Space::Local, &mut addresses.map(|a| a.wrapping_sub(LOCAL_WINDOW)), local)?;
    }
    Ok(())
}

impl Env<'_> {
    /// [`Self::check_shared`] of an instruction that reaches the own block's memory only; gives the offset.
    pub(super) fn check_own_shared(
        &mut self,
        own: usize,
        access: &mut Access,
        address: u64,
        bytes: u32,
        lane: usize,
    ) -> Step<u32> {
        let rank = address >> OFFSET_BITS;
        if rank != 0 && self.clusters[self.blocks[own].cluster].first as u64 + rank != own as u64 + 1 {
            let (access, nearest) = (word(access.kind()), "it is not the own block's".to_owned());
            let kind = FaultKind::OutOfBounds { space: Space::Shared, bytes, access, nearest };
            return trap_at(kind, lane, address);
        }
        Ok(self.check_shared(own, access, address, bytes, lane)?.1)
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

/// `mapa`: an address of this block, in another block of the cluster.
pub(super) fn mapa(env: &Env, warp: &mut Warp, i: &Inst, wide: bool, mask: u32) -> Step<()> {
    let blocks = env.clusters[env.blocks[warp.block].cluster].blocks;
    let ranks = u32::get(&warp.registers, i.b);
    if let Some(lane) = lanes_of(mask).find(|lane| ranks[*lane] >= blocks) {
        return invalid(format!("block {} of a cluster of {blocks} (lane {lane})", ranks[lane]));
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
