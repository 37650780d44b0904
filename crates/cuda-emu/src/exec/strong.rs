//! Strong accesses: volatile, relaxed, acquiring and releasing loads and stores. In shared memory
//! they make flags, which order warps as the memory model of PTX says, by warps and without scopes.

use super::Env;
use super::access;
use super::address::{Addresses, addresses, by_space};
use super::isa::Portable;
use super::lanes::lanes_of;
use super::trap::Step;
use super::warp::Warp;
use crate::decode::{Inst, Order, Slot};
use crate::memory::Space;
use crate::memory::shadow::Kind;
use crate::ptx::Type;

/// Runs a strong load.
#[inline(never)]
pub(super) fn load(
    env: &mut Env,
    warp: &mut Warp,
    i: &Inst,
    lists: &[Slot],
    (space, ty, order): (Space, Type, Order),
    mask: u32,
) -> Step<()> {
    // The load may write the register of its address.
    let mut at = addresses::<Portable>(&warp.registers, i.a, i.c != 0, i.imm);
    access::load::<Portable>(env, warp, i, lists, (space, ty, Kind::StrongRead), mask)?;
    elements(env, warp, &mut at, mask, (space, ty, lists.len()), (Kind::StrongRead, order))
}

/// Runs a strong store.
#[inline(never)]
pub(super) fn store(
    env: &mut Env,
    warp: &mut Warp,
    i: &Inst,
    lists: &[Slot],
    (space, ty, order): (Space, Type, Order),
    mask: u32,
) -> Step<()> {
    let mut at = addresses::<Portable>(&warp.registers, i.a, i.c != 0, i.imm);
    access::store::<Portable>(env, warp, i, lists, (space, ty, Kind::StrongWrite), mask)?;
    // Some other warp may wait for it.
    env.events += 1;
    elements(env, warp, &mut at, mask, (space, ty, lists.len()), (Kind::StrongWrite, order))
}

/// Each element of a vector is a flag of its own.
fn elements(
    env: &mut Env,
    warp: &Warp,
    at: &mut Addresses,
    mask: u32,
    (space, ty, count): (Space, Type, usize),
    how: (Kind, Order),
) -> Step<()> {
    by_space(space, at, mask, |space, at, mask| {
        env.looked_outside |= how.0 == Kind::StrongRead && space == Space::Global;
        if space == Space::Global {
            env.note_arrival(warp, how.0, how.1, at, mask);
        }
        for _ in 0..if space == Space::Shared { count } else { 0 } {
            flags(env, warp, at, mask, how)?;
            // Lanes that do not take part may hold anything.
            at.iter_mut().for_each(|address| *address = address.wrapping_add(u64::from(ty.bytes())));
        }
        Ok(())
    })
}

/// What lanes do to flags, whose access was checked.
pub(super) fn flags(
    env: &mut Env,
    warp: &Warp,
    at: &Addresses,
    mask: u32,
    (kind, order): (Kind, Order),
) -> Step<()> {
    if !(env.check && env.program.flags) {
        return Ok(());
    }
    let mut last = None;
    for lane in lanes_of(mask).filter(|lane| last.replace(at[*lane]) != Some(at[*lane])) {
        let (block, offset) = env.shared_target(warp.block, at[lane], 0, "strong access", lane)?;
        let block = &mut env.blocks[block];
        let clocks = &mut env.clusters[block.cluster].clocks;
        if kind == Kind::StrongRead {
            if let Some(flag) = block.flags.get(&offset) {
                clocks.read_flag(warp.agent, order.acquires(), flag);
            }
            continue;
        }
        let flag = block.flags.entry(offset).or_default();
        clocks.write_flag(warp.agent, order.releases(), kind == Kind::Atomic, flag);
    }
    Ok(())
}

/// `fence` and `membar`
pub(super) fn fence(env: &mut Env, warp: &Warp, order: Order) {
    if env.check && (env.program.flags || env.program.arrivals) {
        let cluster = env.blocks[warp.block].cluster;
        env.clusters[cluster].clocks.fence(warp.agent, order.acquires(), order.releases());
    }
}
