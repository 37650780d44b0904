//! Arena layout: places for all values of a program, assigned by liveness.
//!
//! Values that may occupy the same memory in turn (an in-place operation, an elementwise result over its
//! dying source) share a slot. Slots with overlapping lifetimes do not overlap in memory. Larger slots are
//! placed first, each at the lowest offset that is free for its whole lifetime ("greedy by size": Pisarchyk
//! and Lee 2020, "Efficient memory management for deep neural net inference").

use crate::ir::{Binary, Normalize, Op, Softmax, Unary, WriteMode};

use super::ssa::{Instr, Ssa, ValueId, ValueInfo};
use super::{CompileOptions, GraphError};

/// Alignment of places, in bytes.
pub(super) const ALIGN: usize = 64;

/// Memory of one or several values that follow each other in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub bytes: usize,
    /// First and last instruction that uses the slot, both inclusive.
    pub life: (usize, usize),
    pub offset: usize,
}

/// A laid-out program.
pub(super) struct Layout {
    /// Operations with final places.
    pub ops: Vec<Op>,
    /// Offset by value.
    pub offsets: Vec<usize>,
    pub arena_bytes: usize,
    #[cfg_attr(not(test), expect(dead_code, reason = "what the tests check liveness with"))]
    pub slots: Vec<Slot>,
}

/// Lays out a program. No instruction may destroy a value that is needed later (see
/// [`Ssa::copy_what_is_needed_later`]).
pub(super) fn lay_out(ssa: &Ssa, options: &CompileOptions<'_>) -> Result<Layout, GraphError> {
    let slot_of = share(ssa);
    let mut slots = lives(ssa, &slot_of);
    for (value, info) in ssa.values.iter().enumerate() {
        slots[slot_of[value]].bytes = bytes(info, options)?;
    }
    let arena_bytes = first_fit(&mut slots)?;
    let offsets: Vec<usize> = slot_of.iter().map(|&slot| slots[slot].offset).collect();
    let mut ops: Vec<Op> = ssa.instrs.iter().map(|instr| instr.op.clone()).collect();
    ops.iter_mut().for_each(|op| op.visit(&mut |_, place| place.offset = offsets[place.offset]));
    Ok(Layout { ops, offsets, arena_bytes, slots })
}

/// Bytes of a value at the plan's limits, rounded up to [`ALIGN`].
pub(super) fn bytes(info: &ValueInfo, options: &CompileOptions<'_>) -> Result<usize, GraphError> {
    let CompileOptions { limits, element_bytes, .. } = *options;
    let rows = info.rows.max(limits);
    let size = rows.checked_mul(info.cols).and_then(|n| n.checked_mul(element_bytes(info.precision)));
    // Offsets are sums of sizes, so sizes must be far below the address space.
    let size = size
        .and_then(|size| size.checked_next_multiple_of(ALIGN))
        .filter(|&size| size <= isize::MAX as usize);
    size.ok_or_else(|| GraphError::TooLarge { node: info.label.clone(), rows, cols: info.cols })
}

/// Slot of each value, identified by the slot's first value.
fn share(ssa: &Ssa) -> Vec<ValueId> {
    let uses = ssa.uses();
    let mut slot_of: Vec<ValueId> = (0..ssa.values.len()).collect();
    for (index, instr) in ssa.instrs.iter().enumerate() {
        instr.renames.iter().for_each(|&(old, new)| slot_of[new] = slot_of[old]);
        let Some((old, new)) = over_dying_source(instr) else { continue };
        let info = &ssa.values[old];
        let dies = !info.pinned && uses.reads[old].iter().all(|&read| read <= index);
        if dies && info.same_shape(&ssa.values[new]) {
            slot_of[new] = slot_of[old];
        }
    }
    slot_of
}

/// `(source, result)` of an operation that may write its result over the source.
fn over_dying_source(instr: &Instr) -> Option<(ValueId, ValueId)> {
    match instr.op {
        Op::Binary(Binary { dst, a, b, .. }) => (a != b).then_some((a.offset, dst.offset)),
        Op::Unary(Unary { dst, src, .. }) | Op::Softmax(Softmax { dst, src }) => {
            Some((src.offset, dst.offset))
        }
        Op::Norm(Normalize { dst, src, write: WriteMode::Store, .. }) => Some((src.offset, dst.offset)),
        _ => None,
    }
}

/// Lifetimes of the slots. Unused slots keep an empty lifetime.
fn lives(ssa: &Ssa, slot_of: &[ValueId]) -> Vec<Slot> {
    let last = ssa.instrs.len();
    let mut slots = vec![Slot { bytes: 0, life: (last, 0), offset: 0 }; slot_of.len()];
    let mut live = |value: ValueId, at: usize| {
        let life = &mut slots[slot_of[value]].life;
        *life = (life.0.min(at), life.1.max(at));
    };
    for (index, instr) in ssa.instrs.iter().enumerate() {
        instr.reads().into_iter().chain(instr.writes()).for_each(|value| live(value, index));
        // A backend may fuse the append with the attention, so the attention's result must not overlap the
        // append's sources.
        let next = ssa.instrs.get(index + 1);
        if matches!((&instr.op, next.map(|instr| &instr.op)), (Op::KvAppend(_), Some(Op::Attention(_)))) {
            instr.reads().into_iter().for_each(|value| live(value, index + 1));
        }
    }
    // Inputs keep their values between runs; outputs stay readable until the next run.
    for &(_, input) in &ssa.inputs {
        live(input, 0);
        live(input, last);
    }
    ssa.outputs.iter().for_each(|&(_, output)| live(output, last));
    slots
}

/// Assigns an offset to every slot and returns the size of the arena.
pub(super) fn first_fit(slots: &mut [Slot]) -> Result<usize, GraphError> {
    let mut order: Vec<usize> =
        (0..slots.len()).filter(|&slot| slots[slot].life.0 <= slots[slot].life.1).collect();
    order.sort_by_key(|&slot| (std::cmp::Reverse(slots[slot].bytes), slots[slot].life, slot));
    let mut placed = Placed::default();
    let mut end = 0;
    for number in order {
        let slot = slots[number];
        let slot = Slot { offset: placed.lowest_free(&slot), ..slot };
        slots[number] = slot;
        end = end.max(slot.offset + slot.bytes);
        if end > isize::MAX as usize {
            return Err(GraphError::TooLarge { node: "arena".into(), rows: 1, cols: end });
        }
        placed.add(slot);
    }
    Ok(end)
}

/// Slots with an offset, indexed by instruction: a slot overlaps in time with few others, even in a deep
/// model.
#[derive(Default)]
struct Placed {
    /// By instruction: the slots alive at that instruction.
    living: Vec<Vec<Slot>>,
    /// By instruction: the slots with a lifetime that starts there.
    starting: Vec<Vec<Slot>>,
}

impl Placed {
    fn add(&mut self, slot: Slot) {
        let instrs = slot.life.1 + 1;
        if self.living.len() < instrs {
            self.living.resize(instrs, Vec::new());
            self.starting.resize(instrs, Vec::new());
        }
        self.starting[slot.life.0].push(slot);
        self.living[slot.life.0..instrs].iter_mut().for_each(|living| living.push(slot));
    }

    /// The lowest offset at which `slot` overlaps no other slot.
    fn lowest_free(&self, slot: &Slot) -> usize {
        let (first, last) = slot.life;
        let mut others: Vec<Slot> = self.living.get(first).cloned().unwrap_or_default();
        let later = self.starting.iter().take(last.saturating_add(1)).skip(first + 1);
        others.extend(later.flatten());
        others.sort_unstable_by_key(|other| other.offset);
        let mut offset = 0;
        for other in others {
            if offset + slot.bytes <= other.offset {
                break;
            }
            offset = offset.max(other.offset + other.bytes);
        }
        offset
    }
}

/// Total bytes of all values without any sharing of memory.
pub(super) fn sum_bytes(ssa: &Ssa, options: &CompileOptions<'_>) -> Result<usize, GraphError> {
    ssa.values.iter().try_fold(0_usize, |sum, info| Ok(sum.saturating_add(bytes(info, options)?)))
}
