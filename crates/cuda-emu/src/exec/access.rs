//! Loads and stores.

use super::Env;
use super::address::{Addresses, addresses, by_space, check_local};
use super::check::Reach;
use super::isa::Isa;
use super::lanes::{LANES, lanes_of};
use super::scalar::{Scalar, deliver, fetch};
use super::trap::Step;
use super::warp::Warp;
use crate::decode::{Inst, SINK, Slot};
use crate::memory::Space;
use crate::memory::shadow::{Access, Kind};
use crate::ptx::Type;

/// What is accessed, and how: as a plain access, or as a strong one.
pub(super) type What = (Space, Type, Kind);

/// Runs a load.
#[inline(always)]
pub(super) fn load<I: Isa>(
    env: &mut Env,
    warp: &mut Warp,
    i: &Inst,
    lists: &[Slot],
    what: What,
    mask: u32,
) -> Step<()> {
    let space = what.0;
    let mut from = addresses::<I>(&warp.registers, i.a, i.c != 0, i.imm);
    if space == Space::Generic {
        return by_space(space, &mut from, mask, |space, from, mask| {
            load_in::<I>(env, warp, lists, (space, what.1, what.2), from, mask)
        });
    }
    load_in::<I>(env, warp, lists, what, &mut from, mask)
}

#[inline(always)]
fn load_in<I: Isa>(
    env: &mut Env,
    warp: &mut Warp,
    lists: &[Slot],
    what: What,
    from: &mut Addresses,
    mask: u32,
) -> Step<()> {
    match what.1.bytes() {
        1 => I::run(
            #[inline(always)]
            || load_as::<I, u8>(env, warp, lists, what, from, mask),
        ),
        2 => I::run(
            #[inline(always)]
            || load_as::<I, u16>(env, warp, lists, what, from, mask),
        ),
        4 => I::run(
            #[inline(always)]
            || load_as::<I, u32>(env, warp, lists, what, from, mask),
        ),
        _ => I::run(
            #[inline(always)]
            || load_as::<I, u64>(env, warp, lists, what, from, mask),
        ),
    }
}

#[inline(always)]
fn load_as<I: Isa, T: Scalar>(
    env: &mut Env,
    warp: &mut Warp,
    lists: &[Slot],
    (space, ty, kind): What,
    from: &mut Addresses,
    mask: u32,
) -> Step<()> {
    let size = size_of::<T>() as u32;
    let bytes = size * lists.len() as u32;
    let total = u64::from(bytes * mask.count_ones());
    match space {
        Space::Global | Space::Generic => {
            let region = env.check_global::<I>(from, mask, bytes, "read")?;
            env.check_written(from, region, mask, bytes)?;
            env.note_handed(warp, kind, from, region, mask, bytes)?;
            env.count_global(from, mask);
            env.traffic.global_bytes_read += total;
            if size == 4 && lists.len() == 4 {
                // SAFETY: as below.
                let words = unsafe { I::load_fours(from) };
                for (slot, words) in lists.iter().zip(&words) {
                    deliver(&mut warp.registers, *slot, words, ty.is_signed(), mask);
                }
                return Ok(());
            }
            for (n, slot) in lists.iter().enumerate().filter(|(_, slot)| **slot != SINK) {
                let part = u64::from(size) * n as u64;
                // SAFETY: `check_global` found every lane's bytes inside of a live allocation,
                // which the view keeps, and aligned. With one value a lane a run has no gaps.
                let values = unsafe {
                    if lists.len() == 1 && I::in_steps(from, u64::from(size)) {
                        I::load_run::<T>(from[0])
                    } else {
                        I::gather::<T>(from, part)
                    }
                };
                deliver(&mut warp.registers, *slot, &values, ty.is_signed(), mask);
            }
        }
        Space::Shared => {
            let mut access = env.shared_access(warp, kind);
            env.count_shared(from, mask, bytes);
            env.traffic.shared_bytes_read += total;
            let reach = env.check_shared_lanes::<I>(warp.block, &mut access, from, mask, bytes)?;
            for (n, slot) in lists.iter().enumerate() {
                let values = shared_values::<I, T>(env, warp.block, &reach, n, bytes as usize);
                deliver(&mut warp.registers, *slot, &values, ty.is_signed(), mask);
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
                deliver(&mut warp.registers, *slot, &values, ty.is_signed(), mask);
            }
        }
    }
    Ok(())
}

/// Value `n` of the `bytes` that each lane reads from shared memory.
#[inline(always)]
fn shared_values<I: Isa, T: Scalar>(
    env: &Env,
    own: usize,
    reach: &Reach,
    n: usize,
    bytes: usize,
) -> [T; LANES] {
    let part = n * size_of::<T>();
    let value = |(block, offset): (usize, u32)| {
        let memory: &[u8] = &env.blocks[block].memory;
        T::read(&memory[offset as usize + part..])
    };
    match reach {
        Reach::One(place) => [value(*place); LANES],
        Reach::Run(first) => {
            let mut values = [T::default(); LANES];
            let memory = &env.blocks[own].memory[*first..][..bytes * LANES];
            if bytes == size_of::<T>() {
                let each = memory.chunks_exact(size_of::<T>());
                values.iter_mut().zip(each).for_each(|(value, bytes)| *value = T::read(bytes));
                values
            } else {
                I::assemble(
                    #[inline(always)]
                    |lane| T::read(&memory[lane * bytes + part..]),
                )
            }
        }
        Reach::Each(places) => I::assemble(
            #[inline(always)]
            |lane| value(places[lane]),
        ),
    }
}

/// Runs a store.
#[inline(always)]
pub(super) fn store<I: Isa>(
    env: &mut Env,
    warp: &mut Warp,
    i: &Inst,
    lists: &[Slot],
    what: What,
    mask: u32,
) -> Step<()> {
    let space = what.0;
    let mut to = addresses::<I>(&warp.registers, i.a, i.c != 0, i.imm);
    if space == Space::Generic {
        return by_space(space, &mut to, mask, |space, to, mask| {
            store_in::<I>(env, warp, lists, (space, what.1, what.2), to, mask)
        });
    }
    store_in::<I>(env, warp, lists, what, &mut to, mask)
}

#[inline(always)]
fn store_in<I: Isa>(
    env: &mut Env,
    warp: &mut Warp,
    lists: &[Slot],
    what: What,
    to: &mut Addresses,
    mask: u32,
) -> Step<()> {
    match what.1.bytes() {
        1 => I::run(
            #[inline(always)]
            || store_as::<I, u8>(env, warp, lists, what, to, mask),
        ),
        2 => I::run(
            #[inline(always)]
            || store_as::<I, u16>(env, warp, lists, what, to, mask),
        ),
        4 => I::run(
            #[inline(always)]
            || store_as::<I, u32>(env, warp, lists, what, to, mask),
        ),
        _ => I::run(
            #[inline(always)]
            || store_as::<I, u64>(env, warp, lists, what, to, mask),
        ),
    }
}

#[inline(always)]
fn store_as<I: Isa, T: Scalar + PartialEq>(
    env: &mut Env,
    warp: &mut Warp,
    lists: &[Slot],
    (space, _, kind): What,
    to: &mut Addresses,
    mask: u32,
) -> Step<()> {
    let size = size_of::<T>() as u32;
    let bytes = size * lists.len() as u32;
    let total = u64::from(bytes * mask.count_ones());
    match space {
        Space::Global | Space::Generic => {
            let region = env.check_global::<I>(to, mask, bytes, "write")?;
            env.note_handed(warp, kind, to, region, mask, bytes)?;
            env.mark_written(to, region, mask, bytes);
            env.count_global(to, mask);
            env.traffic.global_bytes_written += total;
            for (n, slot) in lists.iter().enumerate() {
                let values = fetch::<T>(&warp.registers, *slot);
                for lane in lanes_of(mask) {
                    // SAFETY: as in `load_as`.
                    unsafe { values[lane].store(to[lane] + n as u64 * u64::from(size)) };
                }
            }
        }
        Space::Shared => {
            let mut access = env.shared_access(warp, kind);
            env.count_shared(to, mask, bytes);
            env.traffic.shared_bytes_written += total;
            let mut values = [[T::default(); LANES]; 4];
            for (part, slot) in values.iter_mut().zip(lists) {
                *part = fetch::<T>(&warp.registers, *slot);
            }
            let run = env.check_shared_run::<I>(warp.block, &mut access, to, mask, bytes)?;
            for lane in lanes_of(mask) {
                if !run && same_already(env, warp.block, &access, &values, lists.len(), to[lane], lane) {
                    continue;
                }
                let (block, offset) = if run {
                    (warp.block, to[lane] as u32)
                } else {
                    env.check_shared(warp.block, &mut access, to[lane], bytes, lane)?
                };
                let memory = &mut env.blocks[block].memory[offset as usize..];
                for (n, part) in values.iter().take(lists.len()).enumerate() {
                    part[lane].write(&mut memory[n * size as usize..]);
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
fn same_already<T: Scalar + PartialEq>(
    env: &Env,
    block: usize,
    access: &Access,
    values: &[[T; LANES]; 4],
    count: usize,
    address: u64,
    lane: usize,
) -> bool {
    let block = &env.blocks[block];
    let (Some(shadow), clocks) = (&block.shadow, &env.clusters[block.cluster].clocks) else { return false };
    let (offset, size) = (address as usize, size_of::<T>());
    if address.checked_add((size * count) as u64).is_none_or(|end| end > block.memory.len() as u64)
        || !shadow.just_written(access, clocks, offset, lane as u8)
    {
        return false;
    }
    (0..count).all(|n| T::read(&block.memory[offset + n * size..]) == values[n][lane])
}
