//! Registers of `wgmma`: results that have not been waited for, fragments of A that may still be
//! read, and who touched which of them since the last fence.
//!
//! The manual lets no instruction use accumulators or fragments of A before the wait; and it asks for
//! a `wgmma.fence` between any access of a register and the `wgmma` that has it, but for accumulators
//! of several `wgmma` of one shape. (That several have a fragment of A in common is let pass: it can
//! do no harm.)

use std::collections::{HashMap, VecDeque};

use super::Env;
use super::lanes::{LANES, Lane};
use super::trap::{Step, invalid, place, trap};
use super::warp::Warp;
use crate::decode::{Program, Slot, WgmmaKind};
use crate::error::FaultKind;

/// A warp's registers of `wgmma`.
#[derive(Debug)]
pub(super) struct Accumulators {
    /// Results that have not been waited for.
    pending: HashMap<Slot, Pending>,
    /// Fragments of A of what has not been waited for: group and instruction.
    reading: HashMap<Slot, (u32, u32)>,
    committed: u32,
    /// Times of the commits that have not been waited for.
    commits: VecDeque<u32>,
    /// How many `wgmma.fence` the warp has run.
    fences: u32,
    /// Of each slot, the last touch; empty in kernels without `wgmma`.
    touches: Vec<Touch>,
}

#[derive(Debug)]
struct Pending {
    group: u32,
    pc: u32,
    values: [u32; LANES],
}

/// Who touched a register, after how many fences.
#[derive(Clone, Copy, Debug, Default)]
struct Touch {
    fences: u32,
    pc: u32,
    by: By,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum By {
    #[default]
    Read,
    Write,
    /// A `wgmma` of this N and K, to which the register is an accumulator.
    Wgmma(u16, u32),
}

impl By {
    fn word(self) -> &'static str {
        if self == By::Read { "read" } else { "write" }
    }
}

fn shape(kind: WgmmaKind) -> By {
    By::Wgmma(kind.n, 32 / kind.a.bytes())
}

impl Accumulators {
    pub(super) fn new(program: &Program) -> Self {
        let slots = if program.touched.is_empty() { 0 } else { program.files.narrow as usize };
        Self {
            pending: HashMap::new(),
            reading: HashMap::new(),
            committed: 0,
            commits: VecDeque::new(),
            fences: 0,
            touches: vec![Touch::default(); slots],
        }
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.reading.clear();
        self.commits.clear();
        (self.committed, self.fences) = (0, 0);
        self.touches.fill(Touch::default());
    }

    /// Whether the kernel has `wgmma`, so that each instruction is looked at.
    #[inline(always)]
    pub(super) fn busy(&self) -> bool {
        !self.touches.is_empty()
    }

    pub(super) fn fence(&mut self) {
        self.fences += 1;
    }

    /// Ends a group, at a time of the clocks.
    pub(super) fn commit(&mut self, time: u32) {
        self.commits.push_back(time);
        self.committed += 1;
    }

    fn touch(&mut self, slot: Slot, pc: u32, by: By) {
        let last = &mut self.touches[slot as usize];
        // A write counts for more than a read after it.
        if !(by == By::Read && last.by == By::Write && last.fences == self.fences) {
            *last = Touch { fences: self.fences, pc, by };
        }
    }

    /// What a result will be that has not been waited for.
    pub(super) fn pending(&self, slot: Slot) -> Option<&[u32; LANES]> {
        self.pending.get(&slot).map(|pending| &pending.values)
    }

    /// Notes a multiplication: its results, and the fragments of A that it reads.
    pub(super) fn start(
        &mut self,
        (pc, kind): (u32, WgmmaKind),
        results: impl Iterator<Item = (Slot, [u32; LANES])>,
        fragments: &[Slot],
    ) {
        let group = self.committed;
        for slot in fragments {
            self.reading.insert(*slot, (group, pc));
            self.touch(*slot, pc, By::Read);
        }
        for (slot, values) in results {
            self.pending.insert(slot, Pending { group, pc, values });
            self.touch(slot, pc, shape(kind));
        }
    }

    /// Fails unless a `wgmma` may have these accumulators and fragments of A.
    pub(super) fn check(
        &self,
        program: &Program,
        (pc, kind): (u32, WgmmaKind),
        results: &[Slot],
        fragments: &[Slot],
    ) -> Step<()> {
        if self.fences == 0 {
            return invalid("wgmma before the warp's first wgmma.fence");
        }
        for slot in results {
            if let Some((_, started)) = self.reading.get(slot) {
                return not_awaited(program, *slot, *started, "write", "the fragment of A");
            }
        }
        for slot in fragments {
            if let Some(Pending { pc: started, .. }) = self.pending.get(slot) {
                return not_awaited(program, *slot, *started, "read", "the accumulator");
            }
        }
        let unfenced = |slot: &Slot, harmless: By| {
            let touch = self.touches[*slot as usize];
            (touch.fences == self.fences && touch.by != harmless).then_some((*slot, touch))
        };
        let found = results.iter().find_map(|slot| unfenced(slot, shape(kind)));
        let found = found.or_else(|| fragments.iter().find_map(|slot| unfenced(slot, By::Read)));
        let Some((slot, touch)) = found else { return Ok(()) };
        let earlier = Box::new(place(program, touch.pc));
        let (register, access) = (name(program, slot, pc), touch.by.word());
        trap(FaultKind::MissingWgmmaFence { register, access, earlier })
    }

    /// The time of the last group that a wait for all but `keep` groups waits for.
    pub(super) fn waited(&mut self, keep: u32) -> Option<u32> {
        let excess = self.commits.len().saturating_sub(keep as usize);
        self.commits.drain(..excess).next_back()
    }
}

/// Gives registers the results of all but the last `keep` groups.
pub(super) fn deliver(warp: &mut Warp, keep: u32) {
    let Accumulators { pending, reading, committed, .. } = &mut warp.accumulators;
    let registers = &mut warp.registers;
    let stays = |group: u32| u64::from(group) + u64::from(keep) >= u64::from(*committed);
    pending.retain(|slot, result| {
        if !stays(result.group) {
            u32::put(registers, *slot, result.values, u32::MAX);
        }
        stays(result.group)
    });
    reading.retain(|_, (group, _)| stays(*group));
}

/// Fails if an instruction touches a register of a `wgmma` that has not been waited for; notes what it
/// touches.
#[inline(never)]
pub(super) fn check_untouched(env: &Env, warp: &mut Warp, pc: u32) -> Step<()> {
    let (program, registers) = (env.program, &mut warp.accumulators);
    for (slot, write) in program.touched.by(pc) {
        let by = if *write { By::Write } else { By::Read };
        if let Some(Pending { pc: started, .. }) = registers.pending.get(slot) {
            return not_awaited(program, *slot, *started, by.word(), "the accumulator");
        }
        if let Some((_, started)) = registers.reading.get(slot) {
            return not_awaited(program, *slot, *started, by.word(), "the fragment of A");
        }
        registers.touch(*slot, pc, by);
    }
    Ok(())
}

#[cold]
fn not_awaited(program: &Program, slot: Slot, pc: u32, access: &'static str, what: &str) -> Step<()> {
    let what = format!("{what} `{}` of wgmma", name(program, slot, pc));
    trap(FaultKind::NotAwaited { access, what, started: Box::new(place(program, pc)) })
}

/// How a `wgmma` names the register of a slot: its text has accumulators, then fragments, in braces.
fn name(program: &Program, slot: Slot, pc: u32) -> String {
    let inst = &program.code[pc as usize];
    let list = &program.lists[inst.list as usize..][..inst.list_len as usize];
    let text = &program.origins[pc as usize].text;
    let vectors = text.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let names = vectors.flat_map(|vector| vector.split(','));
    let found = names.zip(list).find(|(_, of)| **of == slot);
    found.map_or_else(|| "?".to_string(), |(name, _)| name.trim().to_string())
}
