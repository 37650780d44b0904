//! Which registers can share a slot: liveness over the control-flow graph, then a linear scan.
//!
//! A register that only ever holds a copy of another, which does not change meanwhile, or of what is
//! known before the kernel starts takes no slot of its own: `nvcc` moves a lot, as inline assembly wants
//! its operands in registers.
//!
//! Liveness of one thread is enough although lanes diverge: a slot holds 32 lanes, writes touch
//! only the lanes that run, and each lane's values live and die by its own path.

use std::collections::HashMap;

use super::Broadcast;
use super::decoded::{Decoded, Use};
use super::names::Kind;
use super::op::{Op, TRUE, WIDE};

/// A slot for each register, by its number.
#[derive(Debug, Default)]
pub(super) struct Slots {
    pub(super) of: Vec<u32>,
    /// Registers that have the slot of a value that is known before the kernel starts.
    pub(super) known: HashMap<u32, Broadcast>,
    /// Slots of the 32-bit and 64-bit files and of predicates that registers take, reserved ones
    /// included.
    pub(super) narrow: u32,
    pub(super) wide: u32,
    pub(super) preds: u32,
    pub(super) registers_estimate: u32,
}

/// A set of registers.
#[derive(Clone, PartialEq)]
struct Set(Vec<u64>);

impl Set {
    fn new(count: usize) -> Self {
        Set(vec![0; count.div_ceil(64)])
    }

    fn insert(&mut self, id: u32) {
        self.0[id as usize / 64] |= 1 << (id % 64);
    }

    fn remove(&mut self, id: u32) {
        self.0[id as usize / 64] &= !(1 << (id % 64));
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(word, bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| word as u32 * 64 + bit)
        })
    }
}

/// A straight piece of code.
struct Block {
    start: usize,
    end: usize,
    next: Vec<usize>,
    live_in: Set,
}

/// Finds slots for all registers of a decoded body.
pub(super) fn assign(body: &Decoded) -> Slots {
    let count = body.registers.len();
    let mut copies = Copies {
        ranges: ranges(body),
        of: (0..count as u32).collect(),
        copied: vec![false; count],
        known: HashMap::new(),
    };
    copies.find(body);
    let Copies { ranges, of, known, .. } = copies;
    let mut order: Vec<u32> =
        (0..count as u32).filter(|id| of[*id as usize] == *id && !known.contains_key(id)).collect();
    order.sort_by_key(|id| ranges[*id as usize].0);
    let mut slots = Slots { of: vec![0; count], known, narrow: 1, wide: 1, preds: 2, registers_estimate: 0 };
    // Of each file, (end of life, slot) of what is in use, and free slots.
    let mut busy: [Vec<(usize, u32)>; 2] = Default::default();
    let mut free: [Vec<u32>; 2] = Default::default();
    for id in order {
        let (start, end) = ranges[id as usize];
        let file = match body.registers[id as usize] {
            Kind::Pred => {
                slots.of[id as usize] = slots.preds;
                slots.preds += 1;
                continue;
            }
            Kind::Wide => 1,
            Kind::Half | Kind::Word => 0,
        };
        busy[file].retain(|(end, slot)| {
            let over = *end < start;
            if over {
                free[file].push(*slot);
            }
            !over
        });
        let next = if file == 1 { &mut slots.wide } else { &mut slots.narrow };
        let slot = free[file].pop().unwrap_or_else(|| {
            *next += 1;
            *next - 1
        });
        busy[file].push((end, slot));
        slots.of[id as usize] = slot;
        slots.registers_estimate = slots.registers_estimate.max((busy[0].len() + 2 * busy[1].len()) as u32);
    }
    for (id, original) in of.iter().enumerate() {
        slots.of[id] = slots.of[*original as usize];
    }
    slots
}

/// Which registers are copies.
struct Copies {
    /// Of each register, where it lives; of one that has copies, where they live too.
    ranges: Vec<(usize, usize)>,
    /// Of each register, the one that it is a copy of, or itself.
    of: Vec<u32>,
    /// Of each register, whether it has copies. Then it keeps its slot: what it is a copy of itself may come
    /// later in the text.
    copied: Vec<bool>,
    known: HashMap<u32, Broadcast>,
}

impl Copies {
    /// Finds registers that one move alone writes, and whose source does not change while they live.
    fn find(&mut self, body: &Decoded) {
        let mut uses: Vec<Vec<Use>> = vec![Vec::new(); body.code.len()];
        let mut writes: Vec<Vec<usize>> = vec![Vec::new(); body.registers.len()];
        for found in &body.uses {
            uses[found.instruction as usize].push(*found);
            if found.write {
                writes[found.register as usize].push(found.instruction as usize);
            }
        }
        // Registers of `wgmma` are watched by slot.
        let watched = body.of_wgmma();
        let constants: HashMap<u32, Broadcast> = body.broadcasts.iter().copied().collect();
        for (at, inst) in body.code.iter().enumerate() {
            if !matches!(inst.op, Op::Mov32 | Op::Mov64) || u32::from(inst.guard) != TRUE {
                continue;
            }
            let Some(to) = uses[at].iter().find(|found| found.write).map(|found| found.register) else {
                continue;
            };
            let from = uses[at].iter().find(|found| !found.write).map(|found| found.register);
            let alone = writes[to as usize].len() == 1 && !self.copied[to as usize];
            if !alone || [Some(to), from].iter().flatten().any(|id| watched.binary_search(id).is_ok()) {
                continue;
            }
            match from {
                Some(from) => self.copy(to, from, &writes),
                None => {
                    let slot = if inst.op == Op::Mov64 { inst.a | WIDE } else { inst.a };
                    if let Some(value) = constants.get(&slot) {
                        self.known.insert(to, *value);
                    }
                }
            }
        }
    }

    /// Notes that a register is a copy, if its source does not change while it lives.
    fn copy(&mut self, to: u32, from: u32, writes: &[Vec<usize>]) {
        if let Some(value) = self.known.get(&from) {
            self.known.insert(to, *value);
            return;
        }
        let original = self.of[from as usize];
        let (start, end) = self.ranges[to as usize];
        let writes = &writes[original as usize];
        let changes = writes.get(writes.partition_point(|at| *at < start)).is_some_and(|at| *at <= end);
        if original == to || changes {
            return;
        }
        self.of[to as usize] = original;
        self.copied[original as usize] = true;
        let range = &mut self.ranges[original as usize];
        *range = (range.0.min(start), range.1.max(end));
    }
}

/// First and last instruction between which each register holds something that is read.
fn ranges(body: &Decoded) -> Vec<(usize, usize)> {
    let mut by_instruction: Vec<Vec<Use>> = vec![Vec::new(); body.code.len()];
    for found in &body.uses {
        by_instruction[found.instruction as usize].push(*found);
    }
    let blocks = blocks(body, &by_instruction);
    let mut ranges = vec![(usize::MAX, 0); body.registers.len()];
    let mut extend = |id: u32, at: usize| {
        let range: &mut (usize, usize) = &mut ranges[id as usize];
        *range = (range.0.min(at), range.1.max(at));
    };
    for block in &blocks {
        block.live_in.iter().for_each(|id| extend(id, block.start));
        for next in &block.next {
            blocks[*next].live_in.iter().for_each(|id| extend(id, block.end - 1));
        }
        for (at, uses) in by_instruction.iter().enumerate().take(block.end).skip(block.start) {
            uses.iter().for_each(|found| extend(found.register, at));
        }
    }
    ranges
}

fn blocks(body: &Decoded, uses: &[Vec<Use>]) -> Vec<Block> {
    let length = body.code.len();
    let targets = |at: usize| -> Vec<usize> {
        let inst = &body.code[at];
        match inst.op {
            Op::Branch => vec![inst.imm as usize],
            Op::BranchIndex => body.lists[inst.list as usize..][..inst.list_len as usize]
                .iter()
                .map(|t| *t as usize)
                .collect(),
            _ => Vec::new(),
        }
    };
    let ends = |at: usize| matches!(body.code[at].op, Op::Branch | Op::BranchIndex | Op::Exit | Op::Trap);
    let mut starts = vec![false; length + 1];
    starts[0] = true;
    for at in (0..length).filter(|at| ends(*at)) {
        starts[at + 1] = true;
        targets(at).into_iter().for_each(|t| starts[t] = true);
    }
    let firsts: Vec<usize> = (0..length).filter(|at| starts[*at]).collect();
    let block_of = |at: usize| firsts.partition_point(|first| *first <= at) - 1;
    let mut blocks: Vec<Block> = Vec::with_capacity(firsts.len());
    for (index, start) in firsts.iter().enumerate() {
        let end = firsts.get(index + 1).copied().unwrap_or(length);
        let last = &body.code[end - 1];
        let mut next: Vec<usize> = targets(end - 1).into_iter().map(block_of).collect();
        let falls = match last.op {
            Op::Branch | Op::Exit => last.guard != 0,
            Op::BranchIndex | Op::Trap => last.guard != 0,
            _ => true,
        };
        if falls && end < length {
            next.push(block_of(end));
        }
        blocks.push(Block { start: *start, end, next, live_in: Set::new(body.registers.len()) });
    }
    settle(&mut blocks, body, uses);
    blocks
}

/// Runs liveness backwards until nothing changes.
fn settle(blocks: &mut [Block], body: &Decoded, uses: &[Vec<Use>]) {
    let mut changed = true;
    while changed {
        changed = false;
        for index in (0..blocks.len()).rev() {
            let mut live = Set::new(body.registers.len());
            for next in &blocks[index].next {
                live.0.iter_mut().zip(&blocks[*next].live_in.0).for_each(|(a, b)| *a |= b);
            }
            for at in (blocks[index].start..blocks[index].end).rev() {
                // A guarded write may leave lanes as they were: it does not end a life.
                let full = body.code[at].guard == 0;
                uses[at].iter().filter(|u| u.write && full).for_each(|u| live.remove(u.register));
                uses[at].iter().filter(|u| !u.write || !full).for_each(|u| live.insert(u.register));
            }
            if live != blocks[index].live_in {
                blocks[index].live_in = live;
                changed = true;
            }
        }
    }
}
