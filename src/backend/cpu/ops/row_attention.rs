//! [`RowAttention`]: attention over rows of the arena, one row and one head at a time.

use crate::backend::cpu::Cpu;
use crate::backend::cpu::isa::{Kernel, LANES, Lanes};
use crate::backend::cpu::memory::Rows;
use crate::backend::{BackendError, Frame, overlap_error};
use crate::ir::{Operation, RowAttention, StepInput};

/// See [`RowAttention`].
pub(crate) fn row_attention(
    cpu: &Cpu,
    op: &RowAttention,
    frame: &mut Frame<'_, Cpu>,
) -> Result<(), BackendError> {
    op.check()?;
    let mut rows = |place| frame.arena.rows(RowAttention::NAME, place, frame.step);
    let (dst, q, k, v) = (rows(&op.dst)?, rows(&op.q)?, rows(&op.k)?, rows(&op.v)?);
    if [q, k, v].iter().any(|source| source.overlaps(&dst)) {
        return Err(overlap_error(RowAttention::NAME, [op.dst, op.q, op.k, op.v]));
    }
    let kernel = Attend { op, step: frame.step, dst, q, k, v };
    // SAFETY: `check` has compared columns and rows, no key after the last one is read, and a chunk writes
    // its own row, which is in no source.
    unsafe { cpu.parallel(&kernel, dst.rows) };
    Ok(())
}

struct Attend<'a> {
    op: &'a RowAttention,
    step: &'a StepInput,
    dst: Rows,
    q: Rows,
    k: Rows,
    v: Rows,
}

impl Kernel for Attend<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, row: usize, _worker: usize) {
        let RowAttention { heads, mask, .. } = self.op;
        let mut groups = self.op.q.rows.groups(self.step).zip(self.op.k.rows.groups(self.step));
        let own = groups.find(|(queries, _)| queries.contains(&row));
        let (place, keys) = own.map_or((0, 0..0), |(queries, keys)| (row - queries.start, keys));
        // Keys after the value's last row are never read, even for an invalid step.
        let keys = keys.start..keys.end.min(self.k.rows);
        for head in 0..heads.query {
            let kv = head / (heads.query / heads.kv) * heads.dim;
            // SAFETY: the row, the keys' rows and the heads in them exist.
            unsafe {
                let (q, dst) =
                    (self.q.row(row).add(head * heads.dim), self.dst.row(row).add(head * heads.dim));
                let mut joined = Joined { dst, dim: heads.dim, max: f32::NEG_INFINITY, sum: 0.0 };
                joined.scale::<L>(0.0);
                for key in keys.clone().filter(|key| mask.allows(place, key - keys.start)) {
                    let (k, v) = (self.k.row(key).add(kv), self.v.row(key).add(kv));
                    joined.add::<L>(dot::<L>(q, k, heads.dim) * self.op.scale, v);
                }
                joined.finish::<L>();
            }
        }
    }
}

/// Softmax-weighted sum of the values so far (Milakov and Gimelshein 2018).
struct Joined {
    dst: *mut f32,
    dim: usize,
    max: f32,
    sum: f32,
}

impl Joined {
    #[inline(always)]
    unsafe fn add<L: Lanes>(&mut self, score: f32, value: *const f32) {
        // SAFETY: `dst` and `value` have `dim` elements; the caller vouches for the CPU's features.
        unsafe {
            if score > self.max {
                let factor = (self.max - score).exp();
                self.scale::<L>(factor);
                (self.max, self.sum) = (score, self.sum * factor);
            }
            let weight = (score - self.max).exp();
            self.sum += weight;
            for col in (0..self.dim).step_by(LANES) {
                let n = self.dim - col;
                let to = L::load_n(self.dst.add(col), n);
                L::store_n(self.dst.add(col), n, L::fma(L::load_n(value.add(col), n), L::splat(weight), to));
            }
        }
    }

    /// Multiplies the sum so far; a factor of 0 clears it, whatever it was.
    #[inline(always)]
    unsafe fn scale<L: Lanes>(&self, factor: f32) {
        for col in (0..self.dim).step_by(LANES) {
            let n = self.dim - col;
            // SAFETY: `dst` has `dim` elements; the caller vouches for the CPU's features.
            unsafe {
                let value = if factor == 0.0 {
                    L::splat(0.0)
                } else {
                    L::mul(L::load_n(self.dst.add(col), n), L::splat(factor))
                };
                L::store_n(self.dst.add(col), n, value);
            }
        }
    }

    #[inline(always)]
    unsafe fn finish<L: Lanes>(&self) {
        // SAFETY: as in `scale`. Without keys the values are 0.
        unsafe { self.scale::<L>(if self.sum == 0.0 { 0.0 } else { 1.0 / self.sum }) }
    }
}

/// # Safety
/// Both have `n` elements; the CPU has the features of `L`.
#[inline(always)]
unsafe fn dot<L: Lanes>(a: *const f32, b: *const f32, n: usize) -> f32 {
    // SAFETY: each access stays within `n`.
    unsafe {
        let mut sum = L::splat(0.0);
        for col in (0..n).step_by(LANES) {
            sum = L::fma(L::load_n(a.add(col), n - col), L::load_n(b.add(col), n - col), sum);
        }
        L::reduce_add(sum)
    }
}
