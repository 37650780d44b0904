//! The loop over a warp's instructions.

use super::isa::Isa;
use super::lanes::{Lane, Registers, lanes_of};
use super::trap::{Step, invalid, trap};
use super::warp::{Flow, Fragment, Pause, Wait, Warp};
use super::{Env, LOCAL_WINDOW, SHARED_WINDOW};
use super::{
    access, address, atomic, barrier, bulk, collective, convert, copies, float, half, int, matrix, mbarrier,
    print, select, wgmma,
};
use crate::decode::{Clock, Inst, Op, Slot};
use crate::error::FaultKind;
use crate::memory::Space;

/// Instructions of a turn, after which another warp has its own.
const TURN_INSTRUCTIONS: u64 = 20_000;

/// Runs a warp until it pauses.
#[inline(always)]
pub(super) fn run<I: Isa>(env: &mut Env, warp: &mut Warp) -> Step<Pause> {
    let mut left = TURN_INSTRUCTIONS;
    loop {
        let block = &env.blocks[warp.block];
        let Some((index, limit)) = warp.choose(block, env.clusters[block.cluster].generation) else {
            warp.desperate = false;
            return Ok(if warp.done() { Pause::Done } else { Pause::Waiting });
        };
        let before = left;
        let pause = run_fragment::<I>(env, warp, index, limit, &mut left);
        warp.turn_instructions += before - left;
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
    left: &mut u64,
) -> Step<Option<Pause>> {
    let program = env.program;
    let Fragment { mut pc, mask: active, .. } = warp.fragments[index];
    loop {
        if pc >= limit || *left == 0 {
            warp.fragments[index].pc = pc;
            return Ok((*left == 0).then_some(Pause::Slice));
        }
        let i = &program.code[pc as usize];
        let mask = active & warp.registers.pred(u32::from(i.guard), i.negated);
        let counts = &mut env.counts[pc as usize];
        counts[0] += 1;
        counts[1] += u64::from(mask.count_ones());
        *left -= 1;
        if mask == 0 {
            pc += 1;
            continue;
        }
        let lists = &program.lists[i.list as usize..i.list as usize + i.list_len as usize];
        env.trap_pc = pc;
        if warp.accumulators.busy() {
            wgmma::check_untouched(env, warp, pc)?;
        }
        if arithmetic::<I>(&mut warp.registers, i, lists, mask) {
            pc += 1;
            continue;
        }
        let flow = match i.op {
            // A loop that never comes back may be one that waits for another fragment: turns end.
            Op::Branch if mask == active => {
                pc = i.imm as u32;
                continue;
            }
            Op::Branch | Op::BranchIndex | Op::Exit => {
                let targets = match i.op {
                    Op::Branch => &[(i.imm as u32, mask)],
                    Op::Exit => &[][..],
                    _ => &branch_targets(warp, i.a, lists, mask)?,
                };
                leave(env, warp, index, pc, active & !mask, targets, mask)?;
                return Ok(None);
            }
            _ => other::<I>(env, warp, i, lists, (pc, active, mask))?,
        };
        if let Flow::Next = flow {
            pc += 1;
            continue;
        }
        return Ok(pause(warp, index, pc, (active, mask), flow));
    }
}

/// Runs an instruction that only computes; gives false for others.
#[inline(always)]
fn arithmetic<I: Isa>(r: &mut Registers, i: &Inst, lists: &[Slot], mask: u32) -> bool {
    macro_rules! run {
        ($work:expr) => {
            I::run(
                #[inline(always)]
                move || $work,
            )
        };
    }
    match i.op {
        Op::Nop => {}
        Op::Mov32 => select::mov::<u32>(r, i, mask),
        Op::Mov64 => select::mov::<u64>(r, i, mask),
        Op::Int(op, ty) => int::int::<I>(r, i, lists, op, ty, mask),
        Op::Bits(op) => run!(int::bits::<I>(r, i, op, mask)),
        Op::Float(op, mode) => float::float::<I>(r, i, op, mode, mask),
        Op::Half(op, mode) => run!(half::half::<I>(r, i, op, mode, mask)),
        Op::Convert(c) => run!(convert::convert::<I>(r, i, c, mask)),
        Op::ConvertPair(c) => run!(convert::convert_pair::<I>(r, i, c, mask)),
        Op::Setp(cmp, ty, combine) => select::setp::<I>(r, i, cmp, ty, combine, mask),
        Op::Set(cmp, ty, combine, float) => run!(select::set::<I>(r, i, cmp, ty, combine, float, mask)),
        Op::Select32 => select::select::<u32>(r, i, mask),
        Op::Select64 => select::select::<u64>(r, i, mask),
        Op::Slct(wide, float) => select::slct(r, i, wide, float, mask),
        Op::Pred(op) => select::predicate(r, i, op, mask),
        Op::Testp(double) => select::testp(r, i, double, mask),
        Op::Pack { bits } => run!(select::pack(r, i, lists, bits, mask)),
        Op::Unpack { bits } => run!(select::unpack(r, i, lists, bits, mask)),
        Op::ToGeneric(space) => select::offset(r, i, window(space), mask),
        Op::FromGeneric(space) => select::offset(r, i, window(space).wrapping_neg(), mask),
        _ => return false,
    }
    true
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
        Op::Load(space, ty) => access::load::<I>(env, warp, i, lists, space, ty, mask)?,
        Op::Store(space, ty) => access::store::<I>(env, warp, i, lists, space, ty, mask)?,
        Op::Mma(kind) => I::run(
            #[inline(always)]
            || matrix::mma::<I>(env, warp, lists, kind, mask),
        )?,
        Op::Ldmatrix { .. } | Op::Stmatrix { .. } => I::run(
            #[inline(always)]
            || matrix::access(env, warp, i, lists, mask),
        )?,
        Op::Wgmma(_) | Op::WgmmaFence | Op::WgmmaCommit | Op::WgmmaWait => I::run(
            #[inline(always)]
            || wgmma::wgmma::<I>(env, warp, i, lists, mask),
        )?,
        Op::Shuffle(_) | Op::Vote(_) | Op::Match(..) | Op::Redux(..) | Op::Elect => {
            return I::run(
                #[inline(always)]
                || collective::collective::<I>(warp, i, lists, active, mask),
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

fn window(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Global | Space::Generic => 0,
    }
}

/// Where lanes go that branch by an index: targets with the lanes that go there.
#[inline(never)]
fn branch_targets(warp: &Warp, a: u32, lists: &[u32], mask: u32) -> Step<Vec<(u32, u32)>> {
    let index = u32::get(&warp.registers, a);
    let mut targets: Vec<(u32, u32)> = Vec::new();
    for lane in lanes_of(mask) {
        let Some(target) = lists.get(index[lane] as usize) else {
            return invalid(format!("index {} of a table of {} branch targets", index[lane], lists.len()));
        };
        match targets.iter_mut().find(|(t, _)| t == target) {
            Some((_, lanes)) => *lanes |= 1 << lane,
            None => targets.push((*target, 1 << lane)),
        }
    }
    Ok(targets)
}

/// Splits a fragment: `rest` goes on, others go to their targets or exit.
#[cold]
fn leave(
    env: &mut Env,
    warp: &mut Warp,
    index: usize,
    pc: u32,
    rest: u32,
    targets: &[(u32, u32)],
    mask: u32,
) -> Step<()> {
    warp.fragments.swap_remove(index);
    if rest != 0 {
        warp.fragments.push(Fragment { pc: pc + 1, mask: rest, wait: Wait::None });
    }
    for (target, lanes) in targets {
        warp.fragments.push(Fragment { pc: *target, mask: *lanes, wait: Wait::None });
    }
    if targets.is_empty() {
        env.events += 1;
        env.blocks[warp.block].alive -= mask.count_ones();
        barrier::after_exit(env, warp);
        if warp.done() {
            bulk::at_exit(env, warp)?;
        }
    }
    // Lanes that others wait for may have gone.
    warp.desperate = false;
    for fragment in warp.fragments.iter_mut().filter(|f| f.wait == Wait::Lanes) {
        fragment.wait = Wait::None;
    }
    warp.merge();
    Ok(())
}

/// Instructions that are rare, or long enough that one more call does not matter.
#[inline(never)]
fn rare(env: &mut Env, warp: &mut Warp, pc: u32, active: u32, mask: u32) -> Step<Flow> {
    let program = env.program;
    let i = &program.code[pc as usize];
    let lists = &program.lists[i.list as usize..i.list as usize + i.list_len as usize];
    match i.op {
        Op::ReadClock(clock) => {
            let nanoseconds = env.shared.nanoseconds();
            let r = &mut warp.registers;
            match clock {
                Clock::Low => u32::put(r, i.d, [nanoseconds as u32; 32], mask),
                Clock::High => u32::put(r, i.d, [(nanoseconds >> 32) as u32; 32], mask),
                Clock::Whole => u64::put(r, i.d, [nanoseconds; 32], mask),
            }
        }
        Op::IsSpace(space) => {
            let a = u64::get(&warp.registers, i.a);
            let bits = super::lanes::mask_of(|lane| address::space_of(a[lane]) == space);
            warp.registers.put_pred(i.d, bits, mask);
        }
        Op::Mapa(wide) => address::mapa(env, warp, i, wide, mask)?,
        Op::GetCtaRank(wide) => address::cta_rank(env, warp, i, wide, mask),
        Op::Atomic(space, op, ty) => atomic::atomic(env, warp, i, lists, (space, op, ty), mask)?,
        Op::Barrier { aligned, arrive, reduction } => {
            return barrier::barrier(env, warp, i, (aligned, arrive, reduction), active, mask);
        }
        Op::BarrierWarp => return barrier::lanes(env, warp, i, active, mask),
        Op::ClusterArrive | Op::ClusterWait => return barrier::cluster(env, warp, i, active, mask),
        Op::FenceProxyAsync => {
            let cluster = env.blocks[warp.block].cluster;
            env.clusters[cluster].clocks.fence_proxy(warp.agent);
        }
        Op::GridWait => env.shared.wait_predecessor(),
        Op::Nanosleep => return Ok(Flow::Yield),
        Op::Fence => {}
        Op::ActiveMask => u32::put(&mut warp.registers, i.d, [mask; 32], mask),
        Op::CpAsync { .. } | Op::CpCommit | Op::CpWait | Op::CpWaitAll | Op::CpArrive { .. } => {
            copies::copy(env, warp, i, mask)?;
        }
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
