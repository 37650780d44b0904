//! [`Op::Norm`]: norms of whole rows, stored or added; [`HeadNorm`]: norms of heads in place. Norms of heads
//! before a KV cache are in `append`, norms before a matrix product in `pack::activations`.
//!
//! [`Op::Norm`]: crate::ir::Op::Norm

use crate::backend::cpu::isa::{Kernel, LANES, Lanes};
use crate::backend::cpu::memory::Rows;
use crate::backend::cpu::pack::sum_of_squares;
use crate::backend::cpu::{Cpu, check_vector};
use crate::backend::{BackendError, Frame, overlap_error, shape_error};
use crate::ir::{self, HeadNorm, NormKind, Operation as _, Place, WriteMode};

const OP: &str = "norm";
const ONES: [f32; LANES] = [1.0; LANES];
/// Rows per chunk.
const ROWS_PER_CHUNK: usize = 8;

/// See [`crate::ir::Op::Norm`].
pub(crate) fn norm(
    cpu: &Cpu,
    [dst, src]: [&Place; 2],
    norm: &ir::Norm,
    write: WriteMode,
    frame: &mut Frame<'_, Cpu>,
) -> Result<(), BackendError> {
    let weight = check_vector(OP, frame.weights, norm.weight, src.cols)?.as_ptr();
    let src = frame.arena.rows(OP, src, frame.step)?;
    let dst = frame.arena.rows(OP, dst, frame.step)?;
    if (dst.rows, dst.cols) != (src.rows, src.cols) {
        let found = format!("dst [{}, {}]", dst.rows, dst.cols);
        return Err(shape_error(OP, format!("dst [{}, {}]", src.rows, src.cols), found));
    }
    if dst.overlaps(&src) && (dst.ptr != src.ptr || write == WriteMode::Add) {
        return Err(overlap_error(OP, [dst, src]));
    }
    let bias = match norm.bias {
        Some(bias) => check_vector(OP, frame.weights, bias, src.cols)?.as_ptr(),
        None => std::ptr::null(),
    };
    let add = write == WriteMode::Add;
    let kernel = Norm { dst, src, weight, bias, centred: norm.kind == NormKind::Layer, eps: norm.eps, add };
    // SAFETY: the rows lie in the arena, the weight has a row's length; a chunk writes its own
    // rows, and reads those of `src` at the same place or elsewhere.
    unsafe { cpu.parallel(&kernel, src.rows.div_ceil(ROWS_PER_CHUNK)) };
    Ok(())
}

struct Norm {
    dst: Rows,
    src: Rows,
    weight: *const f32,
    /// The bias, or null.
    bias: *const f32,
    /// Whether the mean is subtracted first.
    centred: bool,
    eps: f32,
    add: bool,
}

// SAFETY: `run` states the rows that a chunk writes; the submitter may share the pointers.
unsafe impl Sync for Norm {}

impl Kernel for Norm {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let first = chunk * ROWS_PER_CHUNK;
        for row in first..(first + ROWS_PER_CHUNK).min(self.src.rows) {
            // SAFETY: the row exists in both values.
            unsafe {
                let (dst, src) = (self.dst.row(row), self.src.row(row).cast_const());
                if self.centred || !self.bias.is_null() {
                    self.whole::<L>(dst, src);
                } else {
                    normalise::<L>(dst, src, self.weight, self.src.cols, self.eps, self.add);
                }
            }
        }
    }
}

impl Norm {
    /// One row of a norm that centres or has a bias.
    #[inline(always)]
    unsafe fn whole<L: Lanes>(&self, dst: *mut f32, src: *const f32) {
        let n = self.src.cols;
        // SAFETY: each access stays within the row, the gain and the bias, which have `n` elements.
        unsafe {
            let mut mean = 0.0;
            if self.centred {
                let mut sum = L::splat(0.0);
                for col in (0..n).step_by(LANES) {
                    sum = L::add(sum, L::load_n(src.add(col), n - col));
                }
                mean = L::reduce_add(sum) / n as f32;
            }
            let mut squares = L::splat(0.0);
            for col in (0..n).step_by(LANES) {
                // Lanes after the last column must stay 0, so the mean is 0 there.
                let mean = L::mul(L::splat(mean), L::load_n(ONES.as_ptr(), n - col));
                let centred = L::sub(L::load_n(src.add(col), n - col), mean);
                squares = L::fma(centred, centred, squares);
            }
            let gain = L::splat(1.0 / (L::reduce_add(squares) / n as f32 + self.eps).sqrt());
            for col in (0..n).step_by(LANES) {
                let left = n - col;
                let load = |p: *const f32| L::load_n(p, left);
                let centred = L::sub(load(src.add(col)), L::splat(mean));
                let mut value = L::mul(L::mul(centred, gain), load(self.weight.add(col)));
                if !self.bias.is_null() {
                    value = L::add(value, load(self.bias.add(col)));
                }
                if self.add {
                    value = L::add(load(dst.add(col).cast_const()), value);
                }
                L::store_n(dst.add(col), left, value);
            }
        }
    }
}

/// See [`HeadNorm`].
pub(crate) fn head_norm(cpu: &Cpu, op: &HeadNorm, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
    op.check()?;
    let HeadNorm { x, head_dim, norm } = op;
    let weight = check_vector(HeadNorm::NAME, frame.weights, norm.weight, *head_dim)?.as_ptr();
    let x = frame.arena.rows(HeadNorm::NAME, x, frame.step)?;
    let kernel = NormHeads { x, head_dim: *head_dim, weight, eps: norm.eps };
    // SAFETY: the rows lie in the arena and hold whole heads, the weight has a head's length; a chunk writes
    // its own rows.
    unsafe { cpu.parallel(&kernel, x.rows.div_ceil(ROWS_PER_CHUNK)) };
    Ok(())
}

struct NormHeads {
    x: Rows,
    head_dim: usize,
    weight: *const f32,
    eps: f32,
}

// SAFETY: `run` states the rows that a chunk writes; the submitter may share the pointers.
unsafe impl Sync for NormHeads {}

impl Kernel for NormHeads {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let first = chunk * ROWS_PER_CHUNK;
        for row in first..(first + ROWS_PER_CHUNK).min(self.x.rows) {
            for head in (0..self.x.cols).step_by(self.head_dim) {
                // SAFETY: the head lies in the row, and the row is this chunk's.
                unsafe {
                    let head = self.x.row(row).add(head);
                    normalise::<L>(head, head.cast_const(), self.weight, self.head_dim, self.eps, false);
                }
            }
        }
    }
}

/// `dst (+)= src / rms(src) · weight` over `n` elements; `dst` may be `src`.
///
/// # Safety
/// All have `n` elements; the CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn normalise<L: Lanes>(
    dst: *mut f32,
    src: *const f32,
    weight: *const f32,
    n: usize,
    eps: f32,
    add: bool,
) {
    // SAFETY: each access stays within `n`.
    unsafe {
        let gain = L::splat(1.0 / (sum_of_squares::<L>(src, n) / n as f32 + eps).sqrt());
        for col in (0..n).step_by(LANES) {
            let left = n - col;
            let load = |p: *const f32| L::load_n(p, left);
            let mut value = L::mul(L::mul(load(src.add(col)), gain), load(weight.add(col)));
            if add {
                value = L::add(load(dst.add(col).cast_const()), value);
            }
            L::store_n(dst.add(col), left, value);
        }
    }
}
