//! Asynchronous copies of lanes: `cp.async` with its groups.
//!
//! They come in as late as they may, when they are waited for. Until then their destination holds
//! NaN and is nobody's, so that a missing wait shows.

use super::Env;
use super::address::{Addresses, addresses};
use super::block::Block;
use super::isa::prefetch;
use super::lanes::{LANES, Lane, lanes_of};
use super::trap::{Step, invalid};
use super::warp::Warp;
use crate::decode::{Inst, Op};
use crate::memory::shadow::{Access, Kind};

/// A `cp.async` under way.
#[derive(Clone, Copy, Debug)]
struct Copy {
    lane: u8,
    group: u32,
    to: u32,
    from: u64,
    bytes: u8,
    read: u8,
    pc: u32,
}

/// Copies that a warp's lanes have started.
#[derive(Debug, Default)]
pub(super) struct Copies {
    under_way: Vec<Copy>,
    /// Of each lane, the groups committed.
    committed: [u32; LANES],
}

impl Copies {
    pub(super) fn clear(&mut self) {
        self.under_way.clear();
        self.committed = [0; LANES];
    }
}

/// Runs a `cp.async` instruction.
pub(super) fn copy(env: &mut Env, warp: &mut Warp, i: &Inst, mask: u32) -> Step<()> {
    match i.op {
        Op::CpAsync { bytes } => start(env, warp, i, bytes, mask)?,
        Op::CpCommit => lanes_of(mask).for_each(|lane| warp.copies.committed[lane] += 1),
        Op::CpWait => finish(env, warp, mask, Some(i.imm as u32)),
        Op::CpWaitAll => finish(env, warp, mask, None),
        Op::CpArrive { noinc } => {
            // The arrival comes when the copies are there: now is one such time.
            finish(env, warp, mask, None);
            let at = addresses(&warp.registers, i.a, true, i.imm);
            for lane in lanes_of(mask).filter(|_| noinc) {
                let place = env.mbarrier_at(warp, at[lane], lane)?;
                env.arrive(warp, place, 1)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn start(env: &mut Env, warp: &mut Warp, i: &Inst, bytes: u8, mask: u32) -> Step<()> {
    let to = addresses(&warp.registers, i.a, true, i64::from(i.imm as i32));
    let from = addresses(&warp.registers, i.b, false, i.imm >> 32);
    let reads = u32::get(&warp.registers, i.c);
    let reading = lanes_of(mask).filter(|lane| reads[*lane] > 0).fold(0, |m, lane| m | 1 << lane);
    if let Some(lane) = lanes_of(mask).find(|lane| reads[*lane] > u32::from(bytes)) {
        return invalid(format!("cp.async of {bytes} bytes reads {}", reads[lane]));
    }
    if reading != 0 {
        let region = if lanes_of(reading).all(|lane| reads[lane] == u32::from(bytes)) {
            env.check_global(&mut { from }, reading, u32::from(bytes), "read")?.region
        } else {
            env.check_global_parts(&from, reading, u32::from(bytes), &reads, "read")?;
            None
        };
        for lane in lanes_of(reading) {
            env.check_written(&from, region, 1 << lane, reads[lane])?;
            env.traffic.global_bytes_read += u64::from(reads[lane]);
        }
        env.count_global(&from, reading);
    }
    env.count_shared(&to, mask, u32::from(bytes));
    env.traffic.shared_bytes_written += u64::from(bytes) * u64::from(mask.count_ones());
    let what = What { to: &to, from: &from, reads: &reads };
    match bytes {
        4 => start_lanes::<4>(env, warp, what, mask),
        8 => start_lanes::<8>(env, warp, what, mask),
        _ => start_lanes::<16>(env, warp, what, mask),
    }
}

/// Of each lane, where `cp.async` copies to, where from, and how many bytes of it.
#[derive(Clone, Copy)]
struct What<'w> {
    to: &'w Addresses,
    from: &'w Addresses,
    reads: &'w [u32; LANES],
}

/// Starts the copies of lanes, of `N` bytes each.
fn start_lanes<const N: usize>(env: &mut Env, warp: &mut Warp, what: What, mask: u32) -> Step<()> {
    let mut access = env.shared_access(warp, Kind::Write);
    let pc = env.trap_pc;
    for lane in lanes_of(mask) {
        let (block, to) = env.check_shared(warp.block, &mut access, what.to[lane], N as u32, lane)?;
        let block = &mut env.blocks[block];
        if let Some(target) = block.memory[to as usize..].first_chunk_mut::<N>() {
            *target = [0xff; N];
        }
        if let Some(shadow) = &mut block.shadow {
            shadow.start_copy(to, N as u32, pc);
        }
        // It is read when it is waited for.
        prefetch(what.from[lane]);
        let (group, read) = (warp.copies.committed[lane], what.reads[lane] as u8);
        let (lane, bytes, from) = (lane as u8, N as u8, what.from[lane]);
        warp.copies.under_way.push(Copy { lane, group, to, from, bytes, read, pc });
    }
    Ok(())
}

/// Brings in the copies of lanes but for the last `keep` groups; all, committed or not, for none.
fn finish(env: &mut Env, warp: &mut Warp, mask: u32, keep: Option<u32>) {
    let Copies { under_way, committed, .. } = &mut warp.copies;
    let block = &mut env.blocks[warp.block];
    let clocks = &env.clusters[block.cluster].clocks;
    under_way.retain(|copy| {
        let lane = copy.lane as usize;
        let due = keep.is_none_or(|keep| copy.group + keep < committed[lane]);
        if mask >> lane & 1 == 0 || !due {
            return true;
        }
        let by = Access::new(clocks, warp.agent, Kind::Write, copy.pc);
        match copy.bytes {
            4 => finish_one::<4>(block, copy, &by),
            8 => finish_one::<8>(block, copy, &by),
            _ => finish_one::<16>(block, copy, &by),
        }
        false
    });
}

/// Brings in a copy of `N` bytes: those that are not read are zeros.
#[inline(always)]
fn finish_one<const N: usize>(block: &mut Block, copy: &Copy, by: &Access) {
    let mut data = [0; N];
    if copy.read as usize == N {
        // SAFETY: the bytes were found in a live allocation when the copy started, and the launch's
        // view keeps that.
        unsafe { std::ptr::copy(copy.from as *const u8, data.as_mut_ptr(), N) };
    } else {
        // SAFETY: as above; no copy reads more than its size.
        unsafe { std::ptr::copy(copy.from as *const u8, data.as_mut_ptr(), copy.read as usize) };
    }
    if let Some(target) = block.memory[copy.to as usize..].first_chunk_mut::<N>() {
        *target = data;
    }
    if let Some(shadow) = &mut block.shadow {
        shadow.finish_copy(copy.to, N as u32, by, copy.lane);
    }
}
