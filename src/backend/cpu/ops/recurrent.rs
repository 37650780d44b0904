//! [`ShortConv`] and [`GatedDelta`]: a sequence's rows are processed one after another, from one state slot
//! to another.

use crate::backend::cpu::isa::{Kernel, LANES, Lanes};
use crate::backend::cpu::memory::Rows;
use crate::backend::cpu::{Cpu, check_vector};
use crate::backend::{BackendError, Frame, overlap_error};
use crate::ir::{GatedDelta, Operation, ShortConv, StateSlot, StepInput};

/// See [`ShortConv`].
pub(crate) fn short_conv(op: &ShortConv, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
    const OP: &str = ShortConv::NAME;
    op.check()?;
    let Frame { weights, arena, kv, step } = frame;
    let (cols, width, tokens) = (op.state.cols, op.width(), step.tokens.len());
    kv.states.check(OP, &op.state, step)?;
    let weight = check_vector(OP, weights, op.weight, cols.saturating_mul(width))?;
    let [dst, src] = arena.slices(OP, [(&op.dst, tokens), (&op.src, tokens)])?;
    for (sequence, &slots) in step.sequences.iter().zip(&step.states) {
        let rows = sequence.rows.start as usize * cols..sequence.rows.end as usize * cols;
        let (old, new) = kv.states.parts(&op.state, slots);
        let (dst, src) = (&mut dst[rows.clone()], &src[rows]);
        convolve(dst, old, src, weight, cols);
        // The last rows of the old state and the new input together.
        let kept = new.len().saturating_sub(src.len());
        let (before, own) = new.split_at_mut(kept);
        match old {
            Some(old) => before.copy_from_slice(&old[old.len() - kept..]),
            None => before.fill(0.0),
        }
        own.copy_from_slice(&src[src.len() - own.len()..]);
    }
    Ok(())
}

/// The rows of one sequence; `old` holds the rows before them, zeros if `None`.
fn convolve(dst: &mut [f32], old: Option<&[f32]>, src: &[f32], weight: &[f32], cols: usize) {
    let width = weight.len() / cols;
    for (row, dst) in dst.chunks_exact_mut(cols).enumerate() {
        dst.fill(0.0);
        for j in 0..width {
            // Row index counted from the state's first row; the state has `width − 1` rows.
            let at = row + j;
            let seen = match (at + 1).checked_sub(width) {
                Some(at) => &src[at * cols..(at + 1) * cols],
                None => match old {
                    Some(old) => &old[at * cols..(at + 1) * cols],
                    None => continue,
                },
            };
            let taps = weight.iter().skip(j).step_by(width);
            dst.iter_mut().zip(seen).zip(taps).for_each(|((dst, x), w)| *dst += w * x);
        }
    }
}

/// See [`GatedDelta`].
pub(crate) fn gated_delta(
    cpu: &Cpu,
    op: &GatedDelta,
    frame: &mut Frame<'_, Cpu>,
) -> Result<(), BackendError> {
    const OP: &str = GatedDelta::NAME;
    op.check()?;
    frame.kv.states.check(OP, &op.state, frame.step)?;
    let mut rows = |place| frame.arena.rows(OP, place, frame.step);
    let [dst, q, k, v, decay, beta] =
        [rows(&op.dst)?, rows(&op.q)?, rows(&op.k)?, rows(&op.v)?, rows(&op.decay)?, rows(&op.beta)?];
    if [q, k, v, decay, beta].iter().any(|source| source.overlaps(&dst)) {
        return Err(overlap_error(OP, [op.dst, op.q, op.k, op.v, op.decay, op.beta]));
    }
    let (slots, elements) = frame.kv.states.base();
    let state = Slots { base: slots, elements, offset: op.state.offset };
    let blocks = op.heads.value_dim.div_ceil(LANES);
    let kernel = Delta { op, step: frame.step, blocks, state, dst, q, k, v, decay, beta };
    // SAFETY: both checks have compared columns, rows and slots. A chunk reads and writes its own columns of
    // the states and of `dst`, which is no source.
    unsafe { cpu.parallel(&kernel, op.heads.value * blocks) };
    Ok(())
}

/// One operation's states in all slots.
#[derive(Clone, Copy)]
struct Slots {
    base: *mut f32,
    elements: usize,
    offset: usize,
}

// SAFETY: an address and sizes; the kernel's chunks keep apart what they touch.
unsafe impl Sync for Slots {}

impl Slots {
    /// # Safety
    /// The slot exists.
    #[inline(always)]
    unsafe fn at(&self, slot: StateSlot) -> *mut f32 {
        // SAFETY: within the memory by contract.
        unsafe { self.base.add(slot.index() * self.elements + self.offset) }
    }
}

/// A chunk is a block of columns of a value head; the columns of a state are independent of each other.
struct Delta<'a> {
    op: &'a GatedDelta,
    step: &'a StepInput,
    /// Blocks per head.
    blocks: usize,
    state: Slots,
    dst: Rows,
    q: Rows,
    k: Rows,
    v: Rows,
    decay: Rows,
    beta: Rows,
}

impl Kernel for Delta<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let heads = self.op.heads;
        let (head, first) = (chunk / self.blocks, chunk % self.blocks * LANES);
        let left = heads.value_dim - first;
        let start = head * heads.key_dim * heads.value_dim + first;
        for (sequence, slots) in self.step.sequences.iter().zip(&self.step.states) {
            // SAFETY: the slots, the head and its columns exist in both.
            unsafe {
                let state = self.state.at(slots.write).add(start);
                for i in 0..heads.key_dim {
                    let old = match slots.read {
                        Some(slot) => L::load_n(self.state.at(slot).add(start + i * heads.value_dim), left),
                        None => L::splat(0.0),
                    };
                    L::store_n(state.add(i * heads.value_dim), left, old);
                }
                for row in sequence.rows.start as usize..sequence.rows.end as usize {
                    self.advance::<L>(state, row, head, first);
                }
            }
        }
    }
}

impl Delta<'_> {
    /// Updates a head's state with one row, in the columns from `first` on.
    ///
    /// # Safety
    /// The row, the head, and the columns exist; `state` has the head's rows of them.
    #[inline(always)]
    unsafe fn advance<L: Lanes>(&self, state: *mut f32, row: usize, head: usize, first: usize) {
        let heads = self.op.heads;
        let (left, stride) = (heads.value_dim - first, heads.value_dim);
        let key = head / (heads.value / heads.key) * heads.key_dim;
        // SAFETY: each access stays within the row's heads and the state's columns.
        unsafe {
            let (q, k) = (self.q.row(row).add(key), self.k.row(row).add(key));
            let value = head * heads.value_dim + first;
            let decay = L::splat((*self.decay.row(row).add(head)).exp());
            let mut found = L::splat(0.0);
            for i in 0..heads.key_dim {
                let decayed = L::mul(L::load_n(state.add(i * stride), left), decay);
                L::store_n(state.add(i * stride), left, decayed);
                found = L::fma(decayed, L::splat(*k.add(i)), found);
            }
            let change = L::sub(L::load_n(self.v.row(row).add(value), left), found);
            let change = L::mul(L::splat(*self.beta.row(row).add(head)), change);
            let mut out = L::splat(0.0);
            for i in 0..heads.key_dim {
                let old = L::load_n(state.add(i * stride), left);
                let new = L::fma(L::splat(*k.add(i)), change, old);
                L::store_n(state.add(i * stride), left, new);
                out = L::fma(new, L::splat(*q.add(i)), out);
            }
            L::store_n(self.dst.row(row).add(value), left, L::mul(out, L::splat(self.op.scale)));
        }
    }
}
