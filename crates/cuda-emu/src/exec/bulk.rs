//! Bulk copies, by the copy engine of a block: linear ones are here, boxes of tensors in `tensor`.
//!
//! They come in as late as they may, when nothing else can run. Until then their destination holds
//! NaN and is nobody's, so that a missing wait shows.

use super::Env;
use super::lanes::{LANES, Lane, lanes_of};
use super::mbarrier::Place;
use super::tensor::{tensor_load, tensor_store};
use super::trap::{Step, invalid, place, trap};
use super::warp::Warp;
use crate::decode::{Inst, Op, Slot};
use crate::error::FaultKind;
use crate::memory::shadow::{Access, Kind};

/// Bulk stores that a warp's lanes have started.
#[derive(Debug, Default)]
pub(super) struct Stores {
    under_way: Vec<Store>,
    /// Of each lane, the groups committed.
    committed: [u32; LANES],
}

/// A bulk store in flight.
#[derive(Debug)]
struct Store {
    lane: u8,
    group: u32,
    /// When it started, at which instruction.
    time: u32,
    pc: u32,
    pieces: Vec<Piece>,
}

impl Stores {
    pub(super) fn clear(&mut self) {
        self.under_way.clear();
        self.committed = [0; LANES];
    }
}

/// A piece of a bulk copy: shared block and offset, global address (or what to fill with), bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) block: usize,
    pub(super) offset: u32,
    pub(super) outside: Outside,
    pub(super) bytes: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Outside {
    Global(u64),
    Shared(usize, u32),
    Fill(u8),
}

/// A bulk copy in flight into shared memory.
#[derive(Debug)]
pub(super) struct BulkCopy {
    pieces: Vec<Piece>,
    barrier: Place,
    access: Access,
}

/// Runs a bulk or tensor copy instruction, by each lane.
pub(super) fn bulk(env: &mut Env, warp: &mut Warp, i: &Inst, lists: &[Slot], mask: u32) -> Step<()> {
    for lane in lanes_of(mask) {
        match i.op {
            Op::BulkCommit => {
                warp.stores.committed[lane] += 1;
                env.clusters[env.blocks[warp.block].cluster].clocks.tick();
            }
            Op::BulkWait => finish_stores(env, warp, lane, i.imm as u32)?,
            Op::BulkLoad | Op::BulkShared => bulk_load(env, warp, i, lists, lane)?,
            Op::BulkStore => {
                let (to, from, bytes) = (
                    u64::get(&warp.registers, i.a)[lane].wrapping_add(i.imm as u64),
                    narrow(warp, i.b, lane),
                    narrow(warp, i.c, lane),
                );
                check_bulk(to, from, bytes)?;
                global_range(env, to, bytes, "write", lane)?;
                let (block, offset) = env.shared_target(warp.block, u64::from(from), bytes, "read", lane)?;
                start_store(
                    env,
                    warp,
                    lane,
                    vec![Piece { block, offset, outside: Outside::Global(to), bytes }],
                )?;
            }
            Op::TensorLoad { dims, multicast } => tensor_load(env, warp, i, lists, lane, (dims, multicast))?,
            Op::TensorStore { dims, .. } => tensor_store(env, warp, i, lists, lane, dims)?,
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn narrow(warp: &Warp, slot: Slot, lane: usize) -> u32 {
    u32::get(&warp.registers, slot)[lane]
}

/// Addresses and size of a linear bulk copy are multiples of 16.
fn check_bulk(global: u64, shared: u32, bytes: u32) -> Step<()> {
    if !(bytes.is_multiple_of(16) && global.is_multiple_of(16) && shared.is_multiple_of(16)) {
        return invalid(format!(
            "bulk copy of {bytes} bytes, global {global:#x}, shared {shared:#x}: all must be multiples of 16"
        ));
    }
    Ok(())
}

pub(super) fn global_range(
    env: &mut Env,
    address: u64,
    bytes: u32,
    access: &'static str,
    lane: usize,
) -> Step<()> {
    let found = [address; LANES];
    // Byte by byte alignment: what alignment there must be was checked before.
    env.check_global_parts(&found, 1 << lane, 1, &[bytes; LANES], access)?;
    env.count_bulk(address, bytes);
    if access == "read" {
        env.check_written(&found, None, 1 << lane, bytes)?;
        env.traffic.global_bytes_read += u64::from(bytes);
    } else {
        env.traffic.global_bytes_written += u64::from(bytes);
    }
    Ok(())
}

fn bulk_load(env: &mut Env, warp: &mut Warp, i: &Inst, lists: &[Slot], lane: usize) -> Step<()> {
    let (to, bytes) = (narrow(warp, i.a, lane), narrow(warp, i.c, lane));
    let (block, offset) = env.shared_target(warp.block, u64::from(to), bytes, "write", lane)?;
    let outside = if i.op == Op::BulkLoad {
        let from = u64::get(&warp.registers, i.b)[lane].wrapping_add(i.imm as u64);
        check_bulk(from, to, bytes)?;
        global_range(env, from, bytes, "read", lane)?;
        Outside::Global(from)
    } else {
        let from = narrow(warp, i.b, lane);
        check_bulk(0, from | to, bytes)?;
        let (source, at) = env.shared_target(warp.block, u64::from(from), bytes, "read", lane)?;
        Outside::Shared(source, at)
    };
    let barrier = env.mbarrier_at(warp, u64::from(narrow(warp, lists[0], lane)), lane)?;
    start_load(env, warp, lane, vec![Piece { block, offset, outside, bytes }], barrier)
}

/// Starts a load: the destination must be free to be written by what the thread knows.
pub(super) fn start_load(
    env: &mut Env,
    warp: &Warp,
    lane: usize,
    pieces: Vec<Piece>,
    barrier: Place,
) -> Step<()> {
    let pc = env.trap_pc;
    let engine = env.blocks[barrier.0].engine();
    let mut access = env.shared_access(warp, Kind::Write).asynchronous(engine);
    for piece in &pieces {
        if let Outside::Shared(source, offset) = piece.outside {
            let mut read = env.shared_access(warp, Kind::Read).asynchronous(engine);
            let block = &mut env.blocks[source];
            block.check_range(u64::from(offset), piece.bytes, 1, "read", lane)?;
            let clocks = &env.clusters[block.cluster].clocks;
            block.note(&mut read, clocks, env.program, offset, piece.bytes, lane)?;
            env.traffic.shared_bytes_read += u64::from(piece.bytes);
        }
        let block = &mut env.blocks[piece.block];
        block.check_range(u64::from(piece.offset), piece.bytes, 1, "write", lane)?;
        let clocks = &env.clusters[block.cluster].clocks;
        block.note(&mut access, clocks, env.program, piece.offset, piece.bytes, lane)?;
        block.memory[piece.offset as usize..][..piece.bytes as usize].fill(0xff);
        if let Some(shadow) = &mut block.shadow {
            shadow.start_copy(piece.offset, piece.bytes, pc);
        }
        env.traffic.shared_bytes_written += u64::from(piece.bytes);
    }
    env.blocks[barrier.0].bulk.push(BulkCopy { pieces, barrier, access });
    env.events += 1;
    Ok(())
}

impl Env<'_> {
    /// Brings one bulk copy in; whether there was one.
    pub(super) fn complete_bulk(&mut self) -> Step<bool> {
        let random = if self.random == 0 { 0 } else { self.random() };
        let Some(block) = (0..self.blocks.len()).find(|n| !self.blocks[*n].bulk.is_empty()) else {
            return Ok(false);
        };
        let waiting = &mut self.blocks[block].bulk;
        let copy = waiting.remove((random % waiting.len() as u64) as usize);
        let mut bytes = 0;
        for piece in &copy.pieces {
            let data = self.outside_bytes(piece);
            let target = &mut self.blocks[piece.block];
            target.memory[piece.offset as usize..][..piece.bytes as usize].copy_from_slice(&data);
            if let Some(shadow) = &mut target.shadow {
                shadow.finish_copy(piece.offset, piece.bytes, &copy.access, 0);
            }
            bytes += piece.bytes;
        }
        self.complete_tx(copy.barrier, bytes)?;
        Ok(true)
    }

    fn outside_bytes(&self, piece: &Piece) -> Vec<u8> {
        let mut data = vec![0; piece.bytes as usize];
        match piece.outside {
            Outside::Fill(value) => data.fill(value),
            Outside::Shared(block, offset) => {
                data.copy_from_slice(&self.blocks[block].memory[offset as usize..][..piece.bytes as usize])
            }
            // SAFETY: the bytes were found in a live allocation when the copy started, and the
            // launch's view keeps that.
            Outside::Global(from) => unsafe {
                std::ptr::copy(from as *const u8, data.as_mut_ptr(), data.len())
            },
        }
        data
    }
}

pub(super) fn start_store(env: &mut Env, warp: &mut Warp, lane: usize, pieces: Vec<Piece>) -> Step<()> {
    let reader = env.blocks[warp.block].reader(warp.id);
    let time = env.clusters[env.blocks[warp.block].cluster].clocks.time();
    let mut access = env.shared_access(warp, Kind::Read).asynchronous(reader);
    for piece in &pieces {
        let block = &mut env.blocks[piece.block];
        block.check_range(u64::from(piece.offset), piece.bytes, 1, "read", lane)?;
        let clocks = &env.clusters[block.cluster].clocks;
        block.note(&mut access, clocks, env.program, piece.offset, piece.bytes, lane)?;
        env.traffic.shared_bytes_read += u64::from(piece.bytes);
        // The data goes out now or later; a reader that does not wait is another kernel's.
        if let Outside::Global(to) = piece.outside {
            let mut found = [0; LANES];
            found[lane] = to;
            env.mark_written(&found, None, 1 << lane, piece.bytes);
        }
    }
    let group = warp.stores.committed[lane];
    warp.stores.under_way.push(Store { lane: lane as u8, group, time, pc: env.trap_pc, pieces });
    Ok(())
}

/// Sends out a lane's stores but for the last `keep` groups.
fn finish_stores(env: &mut Env, warp: &mut Warp, lane: usize, keep: u32) -> Step<()> {
    let committed = warp.stores.committed[lane];
    let stores = std::mem::take(&mut warp.stores.under_way);
    for store in stores {
        if store.lane as usize != lane || store.group + keep >= committed {
            warp.stores.under_way.push(store);
            continue;
        }
        send(env, &store);
        let block = &env.blocks[warp.block];
        env.clusters[block.cluster].clocks.wait_for(warp.agent, block.reader(warp.id), store.time);
    }
    Ok(())
}

fn send(env: &Env, store: &Store) {
    for piece in &store.pieces {
        let data = &env.blocks[piece.block].memory[piece.offset as usize..][..piece.bytes as usize];
        if let Outside::Global(to) = piece.outside {
            // SAFETY: the bytes were found in a live allocation when the store started, and the
            // launch's view keeps that.
            unsafe { std::ptr::copy(data.as_ptr(), to as *mut u8, data.len()) };
        }
    }
}

/// A warp has ended. With a block's last one its shared memory is gone: no copy may be in flight
/// from or to it, and the cluster's other blocks must have done with it.
pub(super) fn at_exit(env: &mut Env, warp: &mut Warp) -> Step<()> {
    let started = |pc| Box::new(place(env.program, pc));
    let (access, own) = ("exit", warp.block);
    if let Some(store) = warp.stores.under_way.first().filter(|_| env.check) {
        let what = "the source of a bulk store".to_string();
        return trap(FaultKind::NotAwaited { access, what, started: started(store.pc) });
    }
    for store in std::mem::take(&mut warp.stores.under_way) {
        send(env, &store);
    }
    let block = &env.blocks[own];
    if block.alive > 0 || !env.check {
        return Ok(());
    }
    let mut under_way = env.blocks.iter().flat_map(|block| &block.bulk);
    if let Some(copy) = under_way.find(|copy| copy.pieces.iter().any(|piece| piece.block == own)) {
        let what = "the destination of an asynchronous copy".to_string();
        return trap(FaultKind::NotAwaited { access, what, started: started(copy.access.pc()) });
    }
    let cluster = &env.clusters[block.cluster];
    let foreign = block.shadow.as_ref().filter(|_| cluster.blocks > 1);
    let agents = block.agent(0)..block.agent(block.agents);
    if let Some(earlier) = foreign.and_then(|shadow| shadow.unordered_from_outside(&cluster.clocks, agents)) {
        return trap(block.race("exit", earlier, env.program));
    }
    Ok(())
}
