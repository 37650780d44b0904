//! Asynchronous copies of lanes: `cp.async` with its groups.
//!
//! They come in as late as they may, when they are waited for. Until then their destination is nobody's,
//! and without a shadow to say so holds NaN, so that a missing wait shows.

use super::Env;
use super::address::{Addresses, Offsets, addresses, offsets};
use super::block::Block;
use super::isa::{Isa, mask_by, prefetch};
use super::lanes::{LANES, Lane, lanes_of};
use super::trap::{Step, invalid};
use super::warp::Warp;
use crate::decode::{Inst, Op};
use crate::memory::shadow::{Access, Kind, follow, rows_at};

/// A `cp.async` of a warp in flight: of each lane, where it copies to, where from, and how many bytes
/// of it; the others are zeros.
#[derive(Debug, Default)]
struct Started {
    pc: u32,
    words: u8,
    /// Lanes whose copies have yet to come.
    lanes: u32,
    groups: [u32; LANES],
    to: Offsets,
    from: Addresses,
    reads: [u32; LANES],
}

/// Copies that a warp's lanes have started. Boxed, so that they stay where they were written.
#[derive(Debug, Default)]
#[allow(clippy::vec_box)]
pub(super) struct Copies {
    under_way: Vec<Box<Started>>,
    /// Room of those that have come, for the next.
    free: Vec<Box<Started>>,
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
#[inline(always)]
pub(super) fn copy<I: Isa>(env: &mut Env, warp: &mut Warp, i: &Inst, mask: u32) -> Step<()> {
    match i.op {
        Op::CpAsync { bytes: 4 } => start::<I, 1>(env, warp, i, mask)?,
        Op::CpAsync { bytes: 8 } => start::<I, 2>(env, warp, i, mask)?,
        Op::CpAsync { .. } => start::<I, 4>(env, warp, i, mask)?,
        Op::CpCommit => {
            let committed = warp.copies.committed.iter_mut().enumerate();
            committed.for_each(|(lane, groups)| *groups += mask >> lane & 1);
        }
        Op::CpWait => finish::<I>(env, warp, mask, Some(i.imm as u32)),
        Op::CpWaitAll => finish::<I>(env, warp, mask, None),
        Op::CpArrive { noinc } => {
            // The arrival comes when the copies are there: now is one such time.
            finish::<I>(env, warp, mask, None);
            let at = addresses::<I>(&warp.registers, i.a, true, i.imm);
            for lane in lanes_of(mask).filter(|_| noinc) {
                let place = env.mbarrier_at(warp, at[lane], lane)?;
                env.arrive(warp, place, 1)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Starts the copies of lanes, of `N` words each.
#[inline(always)]
fn start<I: Isa, const N: usize>(env: &mut Env, warp: &mut Warp, i: &Inst, mask: u32) -> Step<()> {
    let bytes = 4 * N as u32;
    let mut copy = warp.copies.free.pop().unwrap_or_default();
    (copy.pc, copy.words, copy.lanes) = (env.trap_pc, N as u8, mask);
    copy.groups = warp.copies.committed;
    copy.from = addresses::<I>(&warp.registers, i.b, false, i.imm >> 32);
    // Looked at where it has been for longer.
    let reads = u32::stored(&warp.registers, i.c);
    copy.reads = *reads;
    copy.to = offsets(&warp.registers, i.a, i.imm);
    let Started { from, to, .. } = &mut *copy;
    let too_many = mask & mask_by::<I>(|lane| reads[lane] > bytes);
    if too_many != 0 {
        let reads = reads[too_many.trailing_zeros() as usize];
        return invalid(format!("cp.async of {bytes} bytes reads {reads}"));
    }
    let reading = mask & mask_by::<I>(|lane| reads[lane] > 0);
    if reading != 0 {
        if reading & mask_by::<I>(|lane| reads[lane] < bytes) == 0 {
            let region = env.check_global::<I>(from, reading, bytes, "read")?;
            env.check_written(from, region, reading, bytes)?;
            env.traffic.global_bytes_read += u64::from(bytes * reading.count_ones());
        } else {
            env.check_global_parts(from, reading, bytes, reads, "read")?;
            for lane in lanes_of(reading) {
                env.check_written(from, None, 1 << lane, reads[lane])?;
                env.traffic.global_bytes_read += u64::from(reads[lane]);
            }
        }
        env.count_global(from, reading);
    }
    env.count_shared(to, mask, bytes);
    env.traffic.shared_bytes_written += u64::from(bytes * mask.count_ones());
    let mut access = env.shared_access(warp, Kind::Write).of_copy();
    env.check_shared_each::<N>(warp.block, &mut access, to, mask)?;
    let block = &mut env.blocks[warp.block];
    // Where there is a shadow, nobody reads it before the copy comes.
    if block.shadow.is_none() {
        let rows = block.memory.as_chunks_mut().0.as_chunks_mut().0;
        for lane in lanes_of(mask) {
            rows[to[lane] as usize / (4 * N)] = [[0xff; 4]; N];
        }
    }
    for lane in lanes_of(mask) {
        // It is read when it is waited for.
        prefetch(from[lane]);
    }
    warp.copies.under_way.push(copy);
    Ok(())
}

/// Brings in the copies of lanes but for the last `keep` groups; all, committed or not, for none.
#[inline(always)]
fn finish<I: Isa>(env: &mut Env, warp: &mut Warp, mask: u32, keep: Option<u32>) {
    let Copies { under_way, free, committed } = &mut warp.copies;
    let block = &mut env.blocks[warp.block];
    let clocks = &env.clusters[block.cluster].clocks;
    for copy in under_way.iter_mut() {
        let due = mask_by::<I>(
            #[inline(always)]
            |lane| keep.is_none_or(|keep| copy.groups[lane] + keep < committed[lane]),
        );
        let due = copy.lanes & mask & due;
        if due == 0 {
            continue;
        }
        let by = Access::new(clocks, warp.agent, Kind::Write, copy.pc);
        match copy.words {
            1 => finish_lanes::<1>(block, copy, due, &by),
            2 => finish_lanes::<2>(block, copy, due, &by),
            _ => finish_lanes::<4>(block, copy, due, &by),
        }
        copy.lanes &= !due;
    }
    free.extend(under_way.extract_if(.., |copy| copy.lanes == 0));
}

/// Brings in lanes' copies of `N` words each: those that are not read are zeros.
#[inline(always)]
fn finish_lanes<const N: usize>(block: &mut Block, copy: &Started, lanes: u32, by: &Access) {
    let memory = block.memory.as_chunks_mut().0;
    let (to, from) = (copy.to.as_chunks::<4>().0, copy.from.as_chunks::<4>().0);
    for (group, ((to, from), reads)) in to.iter().zip(from).zip(copy.reads.as_chunks::<4>().0).enumerate() {
        let due = lanes >> (4 * group) & 15;
        if due == 15
            && *reads == [4 * N as u32; 4]
            && follow::<N>(to)
            && let Some(rows) = rows_at::<N, _>(memory, to[0])
        {
            for (row, from) in rows.iter_mut().zip(from) {
                // SAFETY: the bytes were found in a live allocation when the copy started, and the
                // launch's view keeps that.
                *row = unsafe { (*from as *const [[u8; 4]; N]).read_unaligned() };
            }
            continue;
        }
        for lane in lanes_of(due) {
            let target = &mut memory.as_chunks_mut::<N>().0[to[lane] as usize / (4 * N)];
            let (from, read) = (from[lane] as *const u8, reads[lane] as usize);
            if read == size_of_val(target) {
                // SAFETY: as above.
                *target = unsafe { from.cast::<[[u8; 4]; N]>().read_unaligned() };
                continue;
            }
            *target = [[0; 4]; N];
            // SAFETY: as above; no copy reads more than its size.
            unsafe { std::ptr::copy(from, target.as_flattened_mut().as_mut_ptr(), read) };
        }
    }
    if let Some(shadow) = &mut block.shadow {
        shadow.finish_copies::<N>(&copy.to, lanes, by);
    }
}
