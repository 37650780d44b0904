//! [`Op::Norm`]: RMS norms of whole rows, stored or added. Norms of heads are in `append`, norms
//! in front of a matrix product in `activations`.
//!
//! [`Op::Norm`]: crate::ir::Op::Norm

use crate::backend::cpu::isa::{Kernel, LANES, Lanes};
use crate::backend::cpu::memory::Rows;
use crate::backend::cpu::pack::sum_of_squares;
use crate::backend::cpu::{Cpu, check_vector};
use crate::backend::{BackendError, Frame, overlap_error, shape_error};
use crate::ir::{Place, RmsNorm, Write};

const OP: &str = "rms_norm";
/// Rows of a chunk.
const ROWS_PER_CHUNK: usize = 8;

/// See [`crate::ir::Op::Norm`].
pub(crate) fn norm(
    cpu: &Cpu,
    [dst, src]: [&Place; 2],
    norm: &RmsNorm,
    write: Write,
    frame: &mut Frame<'_, Cpu>,
) -> Result<(), BackendError> {
    let weight = check_vector(OP, frame.weights, norm.weight, src.cols)?.as_ptr();
    let src = frame.arena.rows(OP, src, frame.step)?;
    let dst = frame.arena.rows(OP, dst, frame.step)?;
    if (dst.rows, dst.cols) != (src.rows, src.cols) {
        let found = format!("dst [{}, {}]", dst.rows, dst.cols);
        return Err(shape_error(OP, format!("dst [{}, {}]", src.rows, src.cols), found));
    }
    if dst.overlaps(&src) && (dst.ptr != src.ptr || write == Write::Add) {
        return Err(overlap_error(OP, [dst, src]));
    }
    let kernel = Norm { dst, src, weight, eps: norm.eps, add: write == Write::Add };
    // SAFETY: the rows lie in the arena, the weight has a row's length; a chunk writes its own
    // rows, and reads those of `src` at the same place or elsewhere.
    unsafe { cpu.parallel(&kernel, src.rows.div_ceil(ROWS_PER_CHUNK)) };
    Ok(())
}

struct Norm {
    dst: Rows,
    src: Rows,
    weight: *const f32,
    eps: f32,
    add: bool,
}

// SAFETY: `run` says which rows a chunk writes; the pointers are the submitter's to share.
unsafe impl Sync for Norm {}

impl Kernel for Norm {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let first = chunk * ROWS_PER_CHUNK;
        for row in first..(first + ROWS_PER_CHUNK).min(self.src.rows) {
            // SAFETY: the row exists in both values.
            unsafe {
                let (dst, src) = (self.dst.row(row), self.src.row(row).cast_const());
                normalise::<L>(dst, src, self.weight, self.src.cols, self.eps, self.add);
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
