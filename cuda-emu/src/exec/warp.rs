//! A warp, and the loop over its instructions.
//!
//! Divergent lanes are fragments: a program counter and a mask each, sorted by counter. The lowest
//! that can run does, up to where the next one stands; there they become one again.

use super::block::Block;
use super::isa::Isa;
use super::lanes::{Lane, Registers, lanes_of};
use super::trap::{Step, trap};
use super::wgmma::Accumulators;
use super::{Env, LOCAL_WINDOW, SHARED_WINDOW};
use super::{
    access, asynchronous, atomic, barrier, collective, convert, float, half, int, matrix, mbarrier, print,
    select, wgmma,
};
use crate::decode::{Clock, Op, Program};
use crate::error::FaultKind;
use crate::memory::Space;

/// Instructions of a turn, after which another warp has its own.
const TURN_INSTRUCTIONS: u64 = 20_000;

/// What a fragment waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nothing: it can run.
    None,
    /// A barrier's completion, counted by generation.
    Barrier { number: u8, generation: u32 },
    /// The cluster's barrier, likewise.
    Cluster { generation: u32 },
    /// Other lanes, to come to the same instruction.
    Lanes,
}

/// Lanes at one program counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fragment {
    pub(super) pc: u32,
    pub(super) mask: u32,
    pub(super) wait: Wait,
}

/// Why a warp stopped running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Its turn is over.
    Slice,
    /// No fragment can run.
    Waiting,
    /// It looked whether something is complete, and it was not.
    Spinning,
    /// All lanes have exited.
    Done,
}

/// What an instruction does to the flow.
pub(super) enum Flow {
    /// On to the next instruction.
    Next,
    /// The fragment waits, at the next instruction.
    WaitAfter(Wait),
    /// The fragment waits and runs this instruction again.
    WaitHere(Wait),
    /// The fragment lets others run, then goes on after this instruction.
    Yield,
}

/// A warp.
#[derive(Debug)]
pub(super) struct Warp {
    /// Its number in the block.
    pub(super) id: u32,
    /// Its block in the gang.
    pub(super) block: usize,
    pub(super) agent: u16,
    pub(super) registers: Registers,
    pub(super) fragments: Vec<Fragment>,
    /// Local memory of all lanes, one after another.
    pub(super) local: Vec<u8>,
    pub(super) copies: asynchronous::Copies,
    pub(super) accumulators: Accumulators,
    /// Generation of the cluster's barrier when the warp arrived there.
    pub(super) cluster_generation: u32,
    /// Lanes that have come to a reducing barrier and have yet to take its result.
    pub(super) reduced: u32,
    /// Lanes that let others run first.
    yielded: u32,
    /// Fragments that waited for lanes have been tried again, and nothing else can run.
    pub(super) desperate: bool,
    pub(super) turn_instructions: u64,
    /// Registers whose value is known before the kernel starts have theirs.
    pub(super) filled: bool,
}

impl Warp {
    pub(super) fn new(program: &Program, id: u32, block: usize, agent: u16) -> Self {
        Self {
            id,
            block,
            agent,
            registers: Registers::new(program.files),
            fragments: Vec::new(),
            local: vec![0; program.local_bytes as usize * 32],
            copies: asynchronous::Copies::default(),
            accumulators: Accumulators::default(),
            cluster_generation: 0,
            reduced: 0,
            yielded: 0,
            desperate: false,
            turn_instructions: 0,
            filled: false,
        }
    }

    /// Makes it ready for another block.
    pub(super) fn start(&mut self, mask: u32) {
        self.fragments.clear();
        self.fragments.push(Fragment { pc: 0, mask, wait: Wait::None });
        self.local.fill(0xff);
        self.copies.clear();
        self.accumulators.clear();
        (self.cluster_generation, self.reduced, self.yielded, self.desperate) = (0, 0, 0, false);
    }

    pub(super) fn done(&self) -> bool {
        self.fragments.is_empty()
    }

    /// Lanes that have not exited.
    pub(super) fn alive(&self) -> u32 {
        self.fragments.iter().fold(0, |mask, f| mask | f.mask)
    }

    pub(super) fn pc(&self) -> u32 {
        self.fragments.first().map_or(0, |f| f.pc)
    }

    pub(super) fn waits_for(&self) -> String {
        match self.fragments.first().map(|f| f.wait) {
            Some(Wait::Barrier { number, .. }) => format!("waits at barrier {number}"),
            Some(Wait::Cluster { .. }) => "waits at the cluster's barrier".to_string(),
            Some(Wait::Lanes) => "waits for its other lanes".to_string(),
            _ => "waits for an mbarrier".to_string(),
        }
    }

    /// Sorts fragments, and makes one of those that can run at the same place.
    fn merge(&mut self) {
        if self.fragments.len() < 2 {
            return;
        }
        self.fragments.sort_unstable_by_key(|f| (f.pc, !matches!(f.wait, Wait::None | Wait::Lanes)));
        self.fragments.dedup_by(|next, kept| {
            let free = |w: Wait| matches!(w, Wait::None | Wait::Lanes);
            let same = next.pc == kept.pc && free(next.wait) && free(kept.wait);
            if same {
                kept.mask |= next.mask;
                kept.wait = Wait::None;
            }
            same
        });
    }

    /// The fragment to run, and the place where it meets another.
    fn choose(&mut self, block: &Block, cluster_generation: u32) -> Option<(usize, u32)> {
        for fragment in &mut self.fragments {
            let over = match fragment.wait {
                Wait::Barrier { number, generation } => {
                    block.barriers[number as usize].generation != generation
                }
                Wait::Cluster { generation } => cluster_generation != generation,
                Wait::None | Wait::Lanes => false,
            };
            if over {
                fragment.wait = Wait::None;
            }
        }
        self.merge();
        let ready = |f: &Fragment| f.wait == Wait::None;
        let yielded = std::mem::take(&mut self.yielded);
        let eager = self.fragments.iter().position(|f| ready(f) && f.mask & yielded == 0);
        let Some(index) = eager.or_else(|| self.fragments.iter().position(ready)) else {
            // Those that wait for lanes look once more whether they still must.
            let retry =
                self.fragments.iter().position(|f| f.wait == Wait::Lanes).filter(|_| !self.desperate)?;
            self.desperate = true;
            self.fragments[retry].wait = Wait::None;
            return Some((retry, u32::MAX));
        };
        let meets = self.fragments[index + 1..].iter().find(|f| matches!(f.wait, Wait::None | Wait::Lanes));
        Some((index, meets.map_or(u32::MAX, |f| f.pc)))
    }
}

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
        let r = &mut warp.registers;
        let flow = match i.op {
            Op::Nop => Flow::Next,
            Op::Mov32 => plain(select::mov::<u32>(r, i, mask)),
            Op::Mov64 => plain(select::mov::<u64>(r, i, mask)),
            Op::Int(op, ty) => plain(int::int::<I>(r, i, lists, op, ty, mask)),
            Op::Bits(op) => plain(I::run(
                #[inline(always)]
                || int::bits(r, i, op, mask),
            )),
            Op::Float(op, mode) => plain(float::float::<I>(r, i, op, mode, mask)),
            Op::Half(op, mode) => plain(I::run(
                #[inline(always)]
                || half::half::<I>(r, i, op, mode, mask),
            )),
            Op::Convert(c) => plain(I::run(
                #[inline(always)]
                || convert::convert::<I>(r, i, c, mask),
            )),
            Op::ConvertPair(c) => plain(I::run(
                #[inline(always)]
                || convert::convert_pair::<I>(r, i, c, mask),
            )),
            Op::Setp(cmp, ty, combine) => plain(select::setp::<I>(r, i, cmp, ty, combine, mask)),
            Op::Set(cmp, ty, combine, float) => plain(I::run(
                #[inline(always)]
                || select::set::<I>(r, i, cmp, ty, combine, float, mask),
            )),
            Op::Select32 => plain(select::select::<u32>(r, i, mask)),
            Op::Select64 => plain(select::select::<u64>(r, i, mask)),
            Op::Slct(wide, float) => plain(select::slct(r, i, wide, float, mask)),
            Op::Pred(op) => plain(select::predicate(r, i, op, mask)),
            Op::Testp(double) => plain(select::testp(r, i, double, mask)),
            Op::Pack { bits } => plain(I::run(
                #[inline(always)]
                || select::pack(r, i, lists, bits, mask),
            )),
            Op::Unpack { bits } => plain(I::run(
                #[inline(always)]
                || select::unpack(r, i, lists, bits, mask),
            )),
            Op::ToGeneric(space) => plain(select::offset(r, i, window(space), mask)),
            Op::FromGeneric(space) => plain(select::offset(r, i, window(space).wrapping_neg(), mask)),
            Op::Branch | Op::BranchIndex | Op::Exit => {
                let rest = active & !mask;
                if i.op == Op::Branch && rest == 0 {
                    pc = i.imm as u32;
                    // A loop that never comes back may be one that waits for another fragment.
                    continue;
                }
                let targets = branch_targets(warp, i.op, i.a, i.imm, lists, mask)?;
                leave(env, warp, index, pc, rest, &targets, mask)?;
                return Ok(None);
            }
            Op::Trap => return trap(FaultKind::Trap),
            Op::Mma(kind) => {
                I::run(
                    #[inline(always)]
                    || matrix::mma::<I>(env, warp, lists, kind, mask),
                )?;
                Flow::Next
            }
            Op::Wgmma(_) | Op::WgmmaFence | Op::WgmmaCommit | Op::WgmmaWait => {
                I::run(
                    #[inline(always)]
                    || wgmma::wgmma::<I>(env, warp, i, lists, mask),
                )?;
                Flow::Next
            }
            Op::Load(space, ty) => {
                access::load::<I>(env, warp, i, lists, space, ty, mask)?;
                Flow::Next
            }
            Op::Store(space, ty) => {
                access::store::<I>(env, warp, i, lists, space, ty, mask)?;
                Flow::Next
            }
            _ => rare(env, warp, pc, active, mask)?,
        };
        let (next, wait, pause) = match flow {
            Flow::Next => {
                pc += 1;
                continue;
            }
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
        return Ok(pause);
    }
}

#[inline(always)]
fn plain((): ()) -> Flow {
    Flow::Next
}

fn window(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Global | Space::Generic => 0,
    }
}

/// Where lanes go: targets with the lanes that go there.
fn branch_targets(warp: &Warp, op: Op, a: u32, imm: i64, lists: &[u32], mask: u32) -> Step<Vec<(u32, u32)>> {
    match op {
        Op::Branch => Ok(vec![(imm as u32, mask)]),
        Op::Exit => Ok(Vec::new()),
        _ => {
            let index = u32::get(&warp.registers, a);
            let mut targets: Vec<(u32, u32)> = Vec::new();
            for lane in lanes_of(mask) {
                let Some(target) = lists.get(index[lane] as usize) else {
                    return super::trap::invalid(format!(
                        "index {} of a table of {} branch targets",
                        index[lane],
                        lists.len()
                    ));
                };
                match targets.iter_mut().find(|(t, _)| t == target) {
                    Some((_, lanes)) => *lanes |= 1 << lane,
                    None => targets.push((*target, 1 << lane)),
                }
            }
            Ok(targets)
        }
    }
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
            asynchronous::at_exit(env, warp)?;
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
                Clock::Cycles32 | Clock::Nanoseconds32 => u32::put(r, i.d, [nanoseconds as u32; 32], mask),
                Clock::Cycles64 | Clock::Nanoseconds64 => u64::put(r, i.d, [nanoseconds; 32], mask),
            }
        }
        Op::IsSpace(space) => {
            let a = u64::get(&warp.registers, i.a);
            let bits = super::lanes::mask_of(|lane| access::space_of(a[lane]) == space);
            warp.registers.put_pred(i.d, bits, mask);
        }
        Op::Mapa(wide) => access::mapa(env, warp, i, wide, mask)?,
        Op::GetCtaRank(wide) => access::cta_rank(env, warp, i, wide, mask),
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
        Op::Shuffle(_) | Op::Vote(_) | Op::Match(..) | Op::Redux(..) | Op::Elect => {
            return collective::collective(warp, i, lists, active, mask);
        }
        Op::ActiveMask => u32::put(&mut warp.registers, i.d, [mask; 32], mask),
        Op::Ldmatrix { .. } | Op::Stmatrix { .. } => matrix::access(env, warp, i, lists, mask)?,
        Op::CpAsync { .. } | Op::CpCommit | Op::CpWait | Op::CpWaitAll | Op::CpArrive { .. } => {
            asynchronous::copy(env, warp, i, mask)?;
        }
        Op::BulkLoad
        | Op::BulkStore
        | Op::BulkShared
        | Op::TensorLoad { .. }
        | Op::TensorStore { .. }
        | Op::BulkCommit
        | Op::BulkWait => {
            asynchronous::bulk(env, warp, i, lists, mask)?;
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
