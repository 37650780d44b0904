//! Asynchronous copies: `cp.async` with its groups, bulk copies and tensor (TMA) copies.
//!
//! They come in as late as they may: `cp.async` when it is waited for, bulk copies when nothing else
//! can run. Until then their destination holds NaN and is nobody's, so that a missing wait shows.

use super::Env;
use super::access::addresses;
use super::lanes::{LANES, Lane, lanes_of};
use super::mbarrier::Place;
use super::trap::{Step, invalid, place, trap};
use super::warp::Warp;
use crate::decode::{Inst, Op, Slot};
use crate::error::FaultKind;
use crate::memory::shadow::{Access, Kind};
use crate::tensor_map::TensorMap;

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
    stores: Vec<Store>,
    stores_committed: [u32; LANES],
}

/// A bulk store under way.
#[derive(Debug)]
struct Store {
    lane: u8,
    group: u32,
    /// When it started, at which instruction.
    time: u32,
    pc: u32,
    pieces: Vec<Piece>,
}

impl Copies {
    pub(super) fn clear(&mut self) {
        self.under_way.clear();
        self.stores.clear();
        self.committed = [0; LANES];
        self.stores_committed = [0; LANES];
    }
}

/// A piece of a bulk copy: shared block and offset, global address (or what to fill with), bytes.
#[derive(Clone, Copy, Debug)]
struct Piece {
    block: usize,
    offset: u32,
    outside: Outside,
    bytes: u32,
}

#[derive(Clone, Copy, Debug)]
enum Outside {
    Global(u64),
    Shared(usize, u32),
    Fill(u8),
}

/// A bulk copy under way into shared memory.
#[derive(Debug)]
pub(super) struct BulkCopy {
    pieces: Vec<Piece>,
    barrier: Place,
    access: Access,
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
    if reading != 0 {
        let (all, region) = env.check_global(&from, reading, u32::from(bytes), "read")?;
        for lane in lanes_of(reading) {
            env.check_written(&all, region, 1 << lane, reads[lane].min(u32::from(bytes)))?;
            env.traffic.global_bytes_read += u64::from(reads[lane]);
        }
        env.count_global(&all, reading, u32::from(bytes));
    }
    env.count_shared(&to, mask, u32::from(bytes));
    env.traffic.shared_bytes_written += u64::from(bytes) * u64::from(mask.count_ones());
    let mut access = env.shared_access(warp, Kind::Write);
    for lane in lanes_of(mask) {
        if reads[lane] > u32::from(bytes) {
            return invalid(format!("cp.async of {bytes} bytes reads {}", reads[lane]));
        }
        let (block, offset) = env.check_shared(warp.block, &mut access, to[lane], u32::from(bytes), lane)?;
        let block = &mut env.blocks[block];
        block.memory[offset as usize..][..bytes as usize].fill(0xff);
        if let Some(shadow) = &mut block.shadow {
            shadow.start_copy(offset, u32::from(bytes), env.trap_pc);
        }
        let group = warp.copies.committed[lane];
        let read = reads[lane] as u8;
        warp.copies.under_way.push(Copy {
            lane: lane as u8,
            group,
            to: offset,
            from: from[lane],
            bytes,
            read,
            pc: env.trap_pc,
        });
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
        let target = &mut block.memory[copy.to as usize..][..copy.bytes as usize];
        let (data, rest) = target.split_at_mut(copy.read as usize);
        // SAFETY: the bytes were found in a live allocation when the copy started, and the launch's
        // view keeps that.
        unsafe { std::ptr::copy(copy.from as *const u8, data.as_mut_ptr(), data.len()) };
        rest.fill(0);
        if let Some(shadow) = &mut block.shadow {
            let by = Access::new(clocks, warp.agent, Kind::Write, copy.pc);
            shadow.finish_copy(copy.to, u32::from(copy.bytes), &by, copy.lane);
        }
        false
    });
}

/// Runs a bulk or tensor copy instruction, by each lane.
pub(super) fn bulk(env: &mut Env, warp: &mut Warp, i: &Inst, lists: &[Slot], mask: u32) -> Step<()> {
    for lane in lanes_of(mask) {
        match i.op {
            Op::BulkCommit => {
                warp.copies.stores_committed[lane] += 1;
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
            Op::TensorStore { dims, .. } => {
                let map = tensor_map(env, warp, i, dims, lane)?;
                let at: Vec<i64> =
                    lists.iter().map(|slot| i64::from(narrow(warp, *slot, lane) as i32)).collect();
                let (block, offset) =
                    env.shared_target(warp.block, u64::from(narrow(warp, i.a, lane)), 16, "read", lane)?;
                let mut pieces = tensor_pieces(env, &map, &at, block, offset, "write", lane)?;
                pieces.retain(|piece| matches!(piece.outside, Outside::Global(_)));
                start_store(env, warp, lane, pieces)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn narrow(warp: &Warp, slot: Slot, lane: usize) -> u32 {
    u32::get(&warp.registers, slot)[lane]
}

/// Addresses and size of a linear bulk copy are multiples of 16.
fn check_bulk(global: u64, shared: u32, bytes: u32) -> Step<()> {
    if bytes % 16 != 0 || global % 16 != 0 || shared % 16 != 0 {
        return invalid(format!(
            "bulk copy of {bytes} bytes, global {global:#x}, shared {shared:#x}: all must be multiples of 16"
        ));
    }
    Ok(())
}

fn global_range(env: &mut Env, address: u64, bytes: u32, access: &'static str, lane: usize) -> Step<()> {
    let mut found = [0; LANES];
    found[lane] = address;
    // Byte by byte alignment: what alignment there must be was checked before.
    for at in [address, address + u64::from(bytes.max(1)) - 1] {
        found[lane] = at;
        env.check_global(&found, 1 << lane, 1, access)?;
    }
    if access == "read" {
        found[lane] = address;
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
        env.blocks[source].check_range(u64::from(at), bytes, 16, "read", lane)?;
        Outside::Shared(source, at)
    };
    let barrier = env.mbarrier_at(warp, u64::from(narrow(warp, lists[0], lane)), lane)?;
    start_load(env, warp, lane, vec![Piece { block, offset, outside, bytes }], barrier)
}

/// Starts a load: the destination must be free to be written by what the thread knows.
fn start_load(env: &mut Env, warp: &Warp, lane: usize, pieces: Vec<Piece>, barrier: Place) -> Step<()> {
    let pc = env.trap_pc;
    let engine = env.blocks[barrier.0].engine();
    let mut access = env.shared_access(warp, Kind::Write).asynchronous(engine);
    for piece in &pieces {
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

fn start_store(env: &mut Env, warp: &mut Warp, lane: usize, pieces: Vec<Piece>) -> Step<()> {
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
    let group = warp.copies.stores_committed[lane];
    warp.copies.stores.push(Store { lane: lane as u8, group, time, pc: env.trap_pc, pieces });
    Ok(())
}

/// Sends out a lane's stores but for the last `keep` groups.
fn finish_stores(env: &mut Env, warp: &mut Warp, lane: usize, keep: u32) -> Step<()> {
    let committed = warp.copies.stores_committed[lane];
    let stores = std::mem::take(&mut warp.copies.stores);
    for store in stores {
        if store.lane as usize != lane || store.group + keep >= committed {
            warp.copies.stores.push(store);
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

/// A warp has ended. With a block's last one its shared memory is gone: no copy may be under way
/// from or to it, and the cluster's other blocks must have done with it.
pub(super) fn at_exit(env: &mut Env, warp: &mut Warp) -> Step<()> {
    let started = |pc| Box::new(place(env.program, pc));
    let (access, own) = ("exit", warp.block);
    if let Some(store) = warp.copies.stores.first().filter(|_| env.check) {
        let what = "the source of a bulk store";
        return trap(FaultKind::NotAwaited { access, what, started: started(store.pc) });
    }
    for store in std::mem::take(&mut warp.copies.stores) {
        send(env, &store);
    }
    let block = &env.blocks[own];
    if block.alive > 0 || !env.check {
        return Ok(());
    }
    let mut under_way = env.blocks.iter().flat_map(|block| &block.bulk);
    if let Some(copy) = under_way.find(|copy| copy.pieces.iter().any(|piece| piece.block == own)) {
        let what = "the destination of an asynchronous copy";
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

fn tensor_map(env: &mut Env, warp: &Warp, i: &Inst, dims: u8, lane: usize) -> Step<TensorMap> {
    let address = u64::get(&warp.registers, i.b)[lane];
    let mut found = [0; LANES];
    found[lane] = address;
    let (_, _) = env.check_global(&found, 1 << lane, 64, "read")?;
    let Some(_) = env.view.find(address, TensorMap::BYTES as u64) else {
        return invalid("a tensor map outside of memory");
    };
    let mut bytes = [0; TensorMap::BYTES];
    // SAFETY: the view has a region that holds all the bytes, and keeps it alive.
    unsafe { std::ptr::copy(address as *const u8, bytes.as_mut_ptr(), bytes.len()) };
    match TensorMap::decode(&bytes) {
        Ok(map) if map.dims.len() == dims as usize => Ok(map),
        Ok(map) => invalid(format!("a tensor map of {} dimensions for a copy of {dims}", map.dims.len())),
        Err(error) => invalid(error.to_string()),
    }
}

/// A box's pieces: runs of elements that are together on both sides, 16 bytes at most, because the
/// swizzle moves chunks of that size.
fn tensor_pieces(
    env: &mut Env,
    map: &TensorMap,
    at: &[i64],
    block: usize,
    base: u32,
    access: &'static str,
    lane: usize,
) -> Step<Vec<Piece>> {
    let align = map
        .swizzle
        .inner_bytes_max()
        .map_or(128, |bytes| if bytes == 128 { 1024 } else { bytes * 8 })
        .min(128);
    if base % align != 0 {
        return invalid(format!("a tensor copy's shared address {base:#x} is no multiple of {align}"));
    }
    let size = map.element as u64;
    let row_bytes = u64::from(map.box_dims[0]) * size;
    let rows: u64 = map.box_dims[1..].iter().map(|d| u64::from(*d)).product();
    let fill = if map.fill_nan { 0xff } else { 0 };
    let mut pieces = Vec::with_capacity((rows * row_bytes / 16) as usize);
    for row in 0..rows {
        let (mut address, mut rest, mut inside) = (map.address, row, true);
        for axis in 1..map.dims.len() {
            let extent = u64::from(map.box_dims[axis]);
            let position = at[axis] + (rest % extent) as i64;
            rest /= extent;
            inside &= (0..map.dims[axis] as i64).contains(&position);
            address = address.wrapping_add((position as u64).wrapping_mul(map.strides[axis - 1]));
        }
        for chunk in (0..row_bytes).step_by(16) {
            let offset = map.swizzle.apply(base + (row * row_bytes + chunk) as u32);
            let first = at[0] + (chunk / size) as i64;
            // How much of the chunk lies inside of the tensor: from which byte, how many.
            let (low, high) = (
                first.clamp(0, map.dims[0] as i64),
                (first + (16 / size) as i64).clamp(0, map.dims[0] as i64),
            );
            let (before, count) =
                (((low - first) as u64 * size) as u32, ((high - low).max(0) as u64 * size) as u32);
            if !inside || count == 0 {
                pieces.push(Piece { block, offset, outside: Outside::Fill(fill), bytes: 16 });
                continue;
            }
            let from = address + low as u64 * size;
            global_range(env, from, count, access, lane)?;
            for (start, bytes, outside) in [
                (0, before, Outside::Fill(fill)),
                (before, count, Outside::Global(from)),
                (before + count, 16 - before - count, Outside::Fill(fill)),
            ] {
                if bytes > 0 {
                    pieces.push(Piece { block, offset: offset + start, outside, bytes });
                }
            }
        }
    }
    Ok(pieces)
}

fn tensor_load(
    env: &mut Env,
    warp: &mut Warp,
    i: &Inst,
    lists: &[Slot],
    lane: usize,
    (dims, multicast): (u8, bool),
) -> Step<()> {
    let map = tensor_map(env, warp, i, dims, lane)?;
    let at: Vec<i64> = lists[1..].iter().map(|slot| i64::from(narrow(warp, *slot, lane) as i32)).collect();
    let (block, offset) =
        env.shared_target(warp.block, u64::from(narrow(warp, i.a, lane)), 16, "write", lane)?;
    let barrier = env.mbarrier_at(warp, u64::from(narrow(warp, lists[0], lane)), lane)?;
    if !multicast {
        let pieces = tensor_pieces(env, &map, &at, block, offset, "read", lane)?;
        return start_load(env, warp, lane, pieces, barrier);
    }
    // The same offsets in every block of the mask, mbarrier included.
    let cluster = &env.clusters[env.blocks[warp.block].cluster];
    let (first, blocks) = (cluster.first, cluster.blocks);
    let targets = narrow(warp, i.c, lane);
    if targets >> blocks != 0 {
        return invalid(format!("multicast to blocks {targets:#x} of a cluster of {blocks}"));
    }
    for rank in lanes_of(targets) {
        let pieces = tensor_pieces(env, &map, &at, first + rank, offset, "read", lane)?;
        if !env.blocks[first + rank].mbarriers.contains_key(&barrier.1) {
            return invalid(format!(
                "no mbarrier was initialised at {:#x} of the cluster's block {rank}",
                barrier.1
            ));
        }
        start_load(env, warp, lane, pieces, (first + rank, barrier.1))?;
    }
    Ok(())
}
