//! Tensor copies (TMA): boxes of tensors that tensor maps describe, as pieces of bulk copies.

use super::Env;
use super::bulk::{Outside, Piece, global_range, narrow, start_load, start_store};
use super::isa::Portable;
use super::lanes::{LANES, Lane, lanes_of};
use super::trap::{Step, invalid};
use super::warp::Warp;
use crate::decode::{Inst, Slot};
use crate::tensor_map::TensorMap;

/// What addresses of boxes in shared memory are multiples of.
const BOX_ALIGN: u32 = 128;

fn tensor_map(env: &mut Env, warp: &Warp, i: &Inst, dims: u8, lane: usize) -> Step<TensorMap> {
    let address = u64::get(&warp.registers, i.b)[lane];
    let mut found = [0; LANES];
    found[lane] = address;
    env.check_global::<Portable>(&mut found, 1 << lane, 64, "read")?;
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
    if !base.is_multiple_of(BOX_ALIGN) {
        return invalid(format!("a tensor copy's shared address {base:#x} is no multiple of {BOX_ALIGN}"));
    }
    let size = map.element as u64;
    let row_bytes = u64::from(map.box_dims[0]) * size;
    let rows: u64 = map.box_dims[1..].iter().map(|d| u64::from(*d)).product();
    // A box may be larger than any memory.
    let bytes = u32::try_from(rows * row_bytes).unwrap_or(u32::MAX);
    let shared_access = if access == "read" { "write" } else { "read" };
    env.blocks[block].check_range(u64::from(base), bytes, 1, shared_access, lane)?;
    let fill = if map.fill_nan { 0xff } else { 0 };
    let mut pieces = Vec::with_capacity((rows * row_bytes / 16) as usize);
    for row in 0..rows {
        let (mut address, mut rest, mut inside) = (map.address, row, true);
        for (axis, start) in at.iter().enumerate().skip(1) {
            let extent = u64::from(map.box_dims[axis]);
            let position = start + (rest % extent) as i64;
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
            let from = address.wrapping_add(low as u64 * size);
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

pub(super) fn tensor_load(
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

pub(super) fn tensor_store(
    env: &mut Env,
    warp: &mut Warp,
    i: &Inst,
    lists: &[Slot],
    lane: usize,
    dims: u8,
) -> Step<()> {
    let map = tensor_map(env, warp, i, dims, lane)?;
    let at: Vec<i64> = lists.iter().map(|slot| i64::from(narrow(warp, *slot, lane) as i32)).collect();
    let (block, offset) =
        env.shared_target(warp.block, u64::from(narrow(warp, i.a, lane)), 16, "read", lane)?;
    let mut pieces = tensor_pieces(env, &map, &at, block, offset, "write", lane)?;
    pieces.retain(|piece| matches!(piece.outside, Outside::Global(_)));
    start_store(env, warp, lane, pieces)
}
