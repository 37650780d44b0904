//! The loop over a warp's instructions.

use super::Env;
use super::isa::Isa;
use super::lanes::Lane;
use super::trap::{Step, trap};
use super::warp::{Flow, Fragment, Pause, Wait, Warp};
use super::{
    access, address, atomic, barrier, branch, bulk, collective, copies, matrix, mbarrier, print, strong,
    wgmma,
};
use crate::decode::{Clock, Inst, Op, Slot, TRUE};
use crate::error::FaultKind;
use crate::memory::shadow::Kind;

/// Instructions of a turn, after which another warp has its own.
const TURN_INSTRUCTIONS: u64 = 20_000;

/// Runs a warp until it pauses.
#[inline(always)]
pub(super) fn run<I: Isa>(env: &mut Env, warp: &mut Warp) -> Step<Pause> {
    let mut ran = 0;
    loop {
        let block = &env.blocks[warp.block];
        let Some((index, limit)) = warp.choose(block, env.clusters[block.cluster].generation) else {
            warp.desperate = false;
            return Ok(if warp.done() { Pause::Done } else { Pause::Waiting });
        };
        let before = ran;
        let pause = run_fragment::<I>(env, warp, index, limit, &mut ran);
        warp.turn_instructions += ran - before;
        if let Some(pause) = pause? {
            warp.yielded = warp.fragments.get(index).map_or(0, |f| f.mask);
            return Ok(pause);
        }
    }
}

/// Runs a fragment until it meets another, waits or ends.
#[inline(always)]
fn run_fragment<I: Isa>(
    env: &mut Env,
    warp: &mut Warp,
    index: usize,
    limit: u32,
    ran: &mut u64,
) -> Step<Option<Pause>> {
    let Fragment { mut pc, mask: active, .. } = warp.fragments[index];
    loop {
        // A loop that never comes back may be one that waits for another fragment: turns end.
        if *ran >= TURN_INSTRUCTIONS {
            warp.fragments[index].pc = pc;
            return Ok(Some(Pause::Slice));
        }
        let start = pc;
        let stop = run_straight::<I>(env, warp, &mut pc, limit, active)?;
        let end = pc + u32::from(!matches!(stop, Stop::Meets));
        env.counts.add(start..end, active);
        *ran += u64::from(end - start);
        let mask = match stop {
            Stop::Meets => {
                warp.fragments[index].pc = pc;
                return Ok(None);
            }
            Stop::Waits(flow, mask) => return Ok(pause(warp, index, pc, (active, mask), flow)),
            Stop::Leaves(mask) => mask,
        };
        let i = &env.program.code[pc as usize];
        let targets = match i.op {
            Op::Branch if mask == active => {
                pc = i.imm as u32;
                continue;
            }
            Op::Branch => &[(i.imm as u32, mask)],
            Op::Exit => &[][..],
            _ => &branch::targets(warp, i.a, i.slots(&env.program.lists), mask)?,
        };
        branch::leave(env, warp, index, pc, active & !mask, targets, mask)?;
        return Ok(None);
    }
}

/// Why a run of instructions that follow each other ends.
enum Stop {
    /// The next instruction is where another fragment stands.
    Meets,
    /// These lanes branch or exit.
    Leaves(u32),
    /// The instruction does this to these lanes' flow.
    Waits(Flow, u32),
}

/// Runs instructions one after another from `pc` on, up to the one that ends the run.
#[inline(always)]
fn run_straight<I: Isa>(env: &mut Env, warp: &mut Warp, pc: &mut u32, limit: u32, active: u32) -> Step<Stop> {
    let program = env.program;
    let code = &program.code[..program.code.len().min(limit as usize)];
    let computes = &env.shared.computes[..code.len()];
    let watched = warp.accumulators.busy();
    loop {
        // Mostly what follows only computes, in all lanes.
        let mut at = *pc as usize;
        while let (Some(i), Some(Some(compute))) = (code.get(at), computes.get(at))
            && u32::from(i.guard) == TRUE
            && !watched
        {
            // SAFETY: it is of the version that runs.
            unsafe { compute(&mut warp.registers, i, &program.lists, active) };
            at += usize::from(i.step);
        }
        *pc = at as u32;
        let Some(i) = code.get(at) else { return Ok(Stop::Meets) };
        let mut mask = active;
        if u32::from(i.guard) != TRUE {
            mask &= warp.registers.pred(u32::from(i.guard), i.negated);
            env.counts.skip(*pc, active & !mask);
            if mask == 0 {
                *pc += u32::from(i.step);
                continue;
            }
        }
        if watched {
            env.trap_pc = *pc;
            wgmma::check_untouched(env, warp, *pc)?;
        }
        if let Some(compute) = computes.get(*pc as usize).copied().flatten() {
            // SAFETY: it is of the version that runs.
            unsafe { compute(&mut warp.registers, i, &program.lists, mask) };
            *pc += u32::from(i.step);
            continue;
        }
        env.trap_pc = *pc;
        match i.op {
            Op::Branch | Op::BranchIndex | Op::Exit => return Ok(Stop::Leaves(mask)),
            _ => match other::<I>(env, warp, i, &program.lists, (*pc, active, mask))? {
                Flow::Next => {}
                flow => return Ok(Stop::Waits(flow, mask)),
            },
        }
        *pc += u32::from(i.step);
    }
}

/// Runs an instruction that does more than compute, and does not branch. Its place is the program
/// counter, the fragment's lanes, and those of them that take part.
#[inline(always)]
fn other<I: Isa>(
    env: &mut Env,
    warp: &mut Warp,
    i: &Inst,
    lists: &[Slot],
    at: (u32, u32, u32),
) -> Step<Flow> {
    let (pc, active, mask) = at;
    match i.op {
        Op::Load(space, ty) => {
            access::load::<I>(env, warp, i, i.slots(lists), (space, ty, Kind::Read), mask)?;
        }
        Op::Store(space, ty) => {
            access::store::<I>(env, warp, i, i.slots(lists), (space, ty, Kind::Write), mask)?;
        }
        Op::Mma(kind) => I::run(
            #[inline(always)]
            move || matrix::mma::<I>(env, warp, i.slots(lists), kind, mask),
        )?,
        Op::Ldmatrix { .. } | Op::Stmatrix { .. } => I::run(
            #[inline(always)]
            move || matrix::access::<I>(env, warp, i, i.slots(lists), mask),
        )?,
        Op::CpAsync { .. } | Op::CpCommit | Op::CpWait | Op::CpWaitAll | Op::CpArrive { .. } => I::run(
            #[inline(always)]
            move || copies::copy::<I>(env, warp, i, mask),
        )?,
        Op::Wgmma(_) | Op::WgmmaFence | Op::WgmmaCommit | Op::WgmmaWait => I::run(
            #[inline(always)]
            move || wgmma::wgmma::<I>(env, warp, i, i.slots(lists), mask),
        )?,
        Op::Shuffle(_) | Op::Vote(_) | Op::Match(..) | Op::Redux(..) | Op::Elect => {
            return I::run(
                #[inline(always)]
                move || collective::collective::<I>(warp, i, i.slots(lists), active, mask),
            );
        }
        Op::Barrier { aligned, arrive, reduction } => {
            return I::run(
                #[inline(always)]
                move || barrier::barrier(env, warp, i, (aligned, arrive, reduction), active, mask),
            );
        }
        Op::Trap => return trap(FaultKind::Trap),
        _ => return rare(env, warp, pc, active, mask),
    }
    Ok(Flow::Next)
}

/// Notes what a fragment waits for, and where it goes on.
fn pause(warp: &mut Warp, index: usize, pc: u32, (active, mask): (u32, u32), flow: Flow) -> Option<Pause> {
    let (next, wait, pause) = match flow {
        Flow::Next => (pc + 1, Wait::None, None),
        Flow::WaitAfter(wait) => (pc + 1, wait, None),
        Flow::WaitHere(wait) => (pc, wait, None),
        Flow::Yield => (pc + 1, Wait::None, Some(Pause::Spinning)),
    };
    // A wait is for the lanes that ran the instruction; the others go on after it.
    let fragment = &mut warp.fragments[index];
    *fragment = Fragment { pc: next, mask: if wait == Wait::None { active } else { mask }, wait };
    if wait != Wait::None && mask != active {
        warp.fragments.push(Fragment { pc: pc + 1, mask: active & !mask, wait: Wait::None });
    }
    pause
}

/// Instructions that are rare, or long enough that one more call does not matter.
#[inline(never)]
fn rare(env: &mut Env, warp: &mut Warp, pc: u32, active: u32, mask: u32) -> Step<Flow> {
    let program = env.program;
    let i = &program.code[pc as usize];
    let lists = i.slots(&program.lists);
    match i.op {
        Op::ReadClock(clock) => {
            let nanoseconds = env.shared.nanoseconds();
            env.looked_outside = true;
            let r = &mut warp.registers;
            match clock {
                Clock::Low => u32::put(r, i.d, [nanoseconds as u32; 32], mask),
                Clock::High => u32::put(r, i.d, [(nanoseconds >> 32) as u32; 32], mask),
                Clock::Whole => u64::put(r, i.d, [nanoseconds; 32], mask),
            }
        }
        Op::IsSpace(space) => address::is_space(program, warp, i, space, mask),
        Op::Mapa(wide) => address::mapa(env, warp, i, wide, mask)?,
        Op::GetCtaRank(wide) => address::cta_rank(env, warp, i, wide, mask),
        Op::LoadStrong(space, ty, order) => strong::load(env, warp, i, lists, (space, ty, order), mask)?,
        Op::StoreStrong(space, ty, order) => strong::store(env, warp, i, lists, (space, ty, order), mask)?,
        Op::Atomic(space, op, ty, order) => {
            atomic::atomic(env, warp, i, lists, (space, op, ty, order), mask)?
        }
        Op::BarrierWarp => return barrier::lanes(env, warp, i, active, mask),
        Op::ClusterArrive | Op::ClusterWait => return barrier::cluster(env, warp, i, active, mask),
        Op::FenceProxyAsync => {
            let cluster = env.blocks[warp.block].cluster;
            env.clusters[cluster].clocks.fence_proxy(warp.agent);
        }
        Op::GridWait => env.shared.wait_predecessor(),
        Op::Nanosleep => return Ok(Flow::Yield),
        Op::Fence(order) => strong::fence(env, warp, order),
        Op::ActiveMask => u32::put(&mut warp.registers, i.d, [mask; 32], mask),
        Op::BulkLoad
        | Op::BulkStore
        | Op::BulkShared
        | Op::TensorLoad { .. }
        | Op::TensorStore { .. }
        | Op::BulkCommit
        | Op::BulkWait => {
            bulk::bulk(env, warp, i, lists, mask)?;
        }
        Op::MbarrierInit
        | Op::MbarrierInval
        | Op::MbarrierArrive { .. }
        | Op::MbarrierExpectTx
        | Op::MbarrierCompleteTx
        | Op::MbarrierWait { .. }
        | Op::MbarrierPending => return mbarrier::mbarrier(env, warp, i, mask),
        Op::Printf => print::printf(env, warp, lists, mask)?,
        Op::AssertFail => print::assert_fail(env, warp, lists, mask)?,
        _ => {}
    }
    Ok(Flow::Next)
}
