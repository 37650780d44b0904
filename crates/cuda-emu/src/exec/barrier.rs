//! Barriers: of a block, of a warp's lanes, of a cluster.

use super::Env;
use super::lanes::{LANES, Lane, lanes_of, mask_of};
use super::trap::{Step, invalid, trap};
use super::warp::{Flow, Wait, Warp};
use crate::decode::{BarrierReduction, Inst, Op, SINK};
use crate::error::FaultKind;
use crate::memory::clocks::Released;

/// Whether the lanes that an instruction needs are all here; if not, it waits for them, or it never
/// will have them.
pub(super) fn gather(
    warp: &mut Warp,
    active: u32,
    mask: u32,
    needed: u32,
    what: &'static str,
) -> Step<Option<Flow>> {
    let needed = needed & warp.alive();
    if needed & !mask == 0 {
        warp.desperate = false;
        return Ok(None);
    }
    // Lanes at the same place whose guard is off will not come.
    if needed & !mask & active != 0 || warp.desperate {
        return trap(FaultKind::Divergent { what, needed, present: mask });
    }
    Ok(Some(Flow::WaitHere(Wait::Lanes)))
}

/// `bar.sync`, `barrier.arrive`, `bar.red` and their kin.
#[inline(always)]
pub(super) fn barrier(
    env: &mut Env,
    warp: &mut Warp,
    i: &Inst,
    (aligned, arrive, reduction): (bool, bool, Option<BarrierReduction>),
    active: u32,
    mask: u32,
) -> Step<Flow> {
    if aligned {
        let alive = warp.alive();
        if let Some(flow) = gather(warp, active, mask, alive, "aligned barrier")? {
            return Ok(flow);
        }
    }
    let first = mask.trailing_zeros() as usize & 31;
    let numbers = u32::get(&warp.registers, i.a);
    let counts = if i.b == SINK { [0; LANES] } else { u32::get(&warp.registers, i.b) };
    let (number, expected) = (numbers[first], counts[first]);
    if mask & mask_of(|lane| (numbers[lane], counts[lane]) != (number, expected)) != 0 {
        return invalid("lanes of a warp come to different barriers");
    }
    if number >= 16 || expected % LANES as u32 != 0 {
        return invalid(format!("barrier {number} for {expected} threads: 0 to 15, and a multiple of 32"));
    }
    let block = &mut env.blocks[warp.block];
    let barrier = &mut block.barriers[number as usize];
    if let Some(reduction) = reduction
        && warp.reduced & mask == mask
    {
        // Run again after the barrier: here is the result.
        warp.reduced &= !mask;
        let (true_count, count) = barrier.result;
        match reduction {
            BarrierReduction::Popc => u32::put(&mut warp.registers, i.d, [true_count; LANES], mask),
            BarrierReduction::And => {
                warp.registers.put_pred(i.d, if true_count == count { u32::MAX } else { 0 }, mask)
            }
            BarrierReduction::Or => {
                warp.registers.put_pred(i.d, if true_count > 0 { u32::MAX } else { 0 }, mask)
            }
        }
        return Ok(Flow::Next);
    }
    if barrier.arrived > 0 && barrier.expected != expected {
        return invalid(format!(
            "barrier {number} for {expected} threads, others came for {}",
            barrier.expected
        ));
    }
    // With a count, a warp counts as a whole.
    barrier.arrived += if expected != 0 && aligned { LANES as u32 } else { mask.count_ones() };
    barrier.expected = expected;
    if expected != 0 && barrier.arrived > expected {
        return invalid(format!("{} threads at barrier {number}, which is for {expected}", barrier.arrived));
    }
    let generation = barrier.generation;
    if reduction.is_some() {
        let truth = warp.registers.pred(i.c, i.imm != 0) & mask;
        barrier.sum = (barrier.sum.0 + truth.count_ones(), barrier.sum.1 + mask.count_ones());
        warp.reduced |= mask;
    }
    env.clusters[block.cluster].clocks.release(warp.agent, &mut barrier.released);
    if !arrive {
        barrier.waiting.push(warp.agent);
        barrier.lanes += mask.count_ones();
    }
    complete_if_full(env, warp.block, number as usize);
    let wait = Wait::Barrier { number: number as u8, generation };
    Ok(match (arrive, reduction) {
        (true, _) => Flow::Next,
        (_, Some(_)) => Flow::WaitHere(wait),
        (_, None) => Flow::WaitAfter(wait),
    })
}

/// Completes a barrier if all threads that it is for have come.
#[inline(always)]
fn complete_if_full(env: &mut Env, block: usize, number: usize) {
    let asynchronous = env.program.async_proxy;
    let block = &mut env.blocks[block];
    let cluster = &mut env.clusters[block.cluster];
    let barrier = &mut block.barriers[number];
    let needed = if barrier.expected == 0 { block.alive } else { barrier.expected };
    if barrier.arrived == 0 || barrier.arrived < needed {
        return;
    }
    barrier.generation = barrier.generation.wrapping_add(1);
    barrier.arrived = 0;
    barrier.result = std::mem::take(&mut barrier.sum);
    env.events += 1;
    let mut released = std::mem::take(&mut barrier.released);
    let mut waiting = std::mem::take(&mut barrier.waiting);
    // If all of the block's threads have met, everything before is ordered: a new epoch. Not so
    // where other blocks look on, or where writes await a proxy fence.
    let lanes = std::mem::take(&mut barrier.lanes);
    let whole = lanes >= block.alive && cluster.blocks == 1 && !asynchronous;
    if whole {
        cluster.clocks.restart();
        if let Some(shadow) = &mut block.shadow {
            shadow.next_epoch();
        }
        block.barriers.iter_mut().for_each(|b| b.released.clear());
        block.mbarriers.values_mut().for_each(|m| *m = Released::default());
        block.flags.clear();
    } else {
        waiting.iter().for_each(|agent| cluster.clocks.acquire(*agent, &released));
    }
    // What they have allocated is for the next time.
    released.clear();
    waiting.clear();
    (block.barriers[number].released, block.barriers[number].waiting) = (released, waiting);
}

/// Lanes have exited: barriers for all threads may be complete now.
pub(super) fn after_exit(env: &mut Env, warp: &Warp) {
    for number in 0..16 {
        let barrier = &env.blocks[warp.block].barriers[number];
        if barrier.arrived > 0 && barrier.expected == 0 {
            complete_if_full(env, warp.block, number);
        }
    }
    complete_cluster(env, env.blocks[warp.block].cluster);
}

/// `bar.warp.sync`
pub(super) fn lanes(env: &mut Env, warp: &mut Warp, i: &Inst, active: u32, mask: u32) -> Step<Flow> {
    let members = u32::get(&warp.registers, i.a);
    if let Some(lane) = lanes_of(mask).find(|lane| members[*lane] >> lane & 1 == 0) {
        return invalid(format!("lane {lane} syncs with {:#010x}, which it is not in", members[lane]));
    }
    let needed = lanes_of(mask).fold(0, |all, lane| all | members[lane]);
    if let Some(flow) = gather(warp, active, mask, needed, "bar.warp.sync")? {
        return Ok(flow);
    }
    env.clusters[env.blocks[warp.block].cluster].clocks.sync_lanes(warp.agent);
    Ok(Flow::Next)
}

/// `barrier.cluster.arrive` and `.wait`
pub(super) fn cluster(env: &mut Env, warp: &mut Warp, i: &Inst, active: u32, mask: u32) -> Step<Flow> {
    if i.imm != 0 {
        let alive = warp.alive();
        if let Some(flow) = gather(warp, active, mask, alive, "aligned cluster barrier")? {
            return Ok(flow);
        }
    }
    let number = env.blocks[warp.block].cluster;
    let cluster = &mut env.clusters[number];
    if i.op == Op::ClusterArrive {
        cluster.arrived += mask.count_ones();
        warp.cluster_generation = cluster.generation;
        cluster.clocks.release(warp.agent, &mut cluster.released);
        complete_cluster(env, number);
        return Ok(Flow::Next);
    }
    if cluster.generation == warp.cluster_generation {
        return Ok(Flow::WaitHere(Wait::Cluster { generation: cluster.generation }));
    }
    let completed = std::mem::take(&mut cluster.completed);
    cluster.clocks.acquire(warp.agent, &completed);
    cluster.completed = completed;
    Ok(Flow::Next)
}

fn complete_cluster(env: &mut Env, number: usize) {
    let cluster = &mut env.clusters[number];
    let blocks = &env.blocks[cluster.first..cluster.first + cluster.blocks as usize];
    let alive: u32 = blocks.iter().map(|block| block.alive).sum();
    if cluster.arrived > 0 && cluster.arrived >= alive {
        cluster.arrived = 0;
        cluster.generation = cluster.generation.wrapping_add(1);
        cluster.completed = std::mem::take(&mut cluster.released);
        env.events += 1;
    }
}
