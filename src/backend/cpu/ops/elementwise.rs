//! Operations on single elements or single rows: activations, sums, products, softmax, transpose.

use half::{bf16, f16};

use crate::backend::cpu::Cpu;
use crate::backend::cpu::isa::{Kernel, LANES, Lanes};
use crate::backend::cpu::memory::Rows;
use crate::backend::{BackendError, Frame, overlap_error, shape_error};
use crate::ir::{Activation, BinaryFn, Place, Precision, UnaryFn};

/// Minimum elements per chunk: enough work for another thread.
const ELEMENTS_PER_CHUNK: usize = 4096;

fn rows_per_chunk(cols: usize) -> usize {
    ELEMENTS_PER_CHUNK.div_ceil(cols.max(1))
}

/// The rows of `dst` and of its sources. A source has the shape of `dst`, and either is `dst` or does not
/// overlap it.
fn operands<const N: usize>(
    op: &'static str,
    dst: &Place,
    sources: [&Place; N],
    frame: &mut Frame<'_, Cpu>,
) -> Result<(Rows, [Rows; N]), BackendError> {
    let dst = frame.arena.rows(op, dst, frame.step)?;
    let mut found = [dst; N];
    for (rows, place) in found.iter_mut().zip(sources) {
        *rows = frame.arena.rows(op, place, frame.step)?;
        let one_row = rows.rows == 1 && rows.ptr != dst.ptr;
        if rows.cols != dst.cols || (rows.rows != dst.rows && !one_row) {
            let expected = format!("[{}, {}]", dst.rows, dst.cols);
            return Err(shape_error(op, expected, format!("[{}, {}]", rows.rows, rows.cols)));
        }
        if rows.ptr != dst.ptr && rows.overlaps(&dst) {
            return Err(overlap_error(op, [dst, *rows]));
        }
    }
    Ok((dst, found))
}

/// See [`crate::ir::Op::Unary`].
pub(crate) fn unary(
    cpu: &Cpu,
    [dst, src]: [&Place; 2],
    f: UnaryFn,
    frame: &mut Frame<'_, Cpu>,
) -> Result<(), BackendError> {
    let (dst, [src]) = operands("unary", dst, [src], frame)?;
    if src.rows != dst.rows {
        return Err(shape_error("unary", format!("{} rows", dst.rows), format!("{}", src.rows)));
    }
    let per_chunk = rows_per_chunk(dst.cols);
    // SAFETY: shapes are checked; a chunk writes its own rows.
    unsafe { cpu.parallel(&Unary { dst, src, f, per_chunk }, dst.rows.div_ceil(per_chunk)) };
    Ok(())
}

struct Unary {
    dst: Rows,
    src: Rows,
    f: UnaryFn,
    per_chunk: usize,
}

impl Kernel for Unary {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let first = chunk * self.per_chunk;
        for row in first..(first + self.per_chunk).min(self.dst.rows) {
            // SAFETY: the row exists in both values.
            unsafe {
                let (dst, src) = (self.dst.row(row), self.src.row(row).cast_const());
                for col in (0..self.dst.cols).step_by(LANES) {
                    let n = (self.dst.cols - col).min(LANES);
                    let value = apply::<L>(L::load_n(src.add(col), n), self.f);
                    L::store_n(dst.add(col), n, value);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn apply<L: Lanes>(x: L::F, f: UnaryFn) -> L::F {
    // SAFETY: register arithmetic; the caller vouches for the CPU's features.
    unsafe {
        match f {
            UnaryFn::Activation(Activation::Silu) => L::silu(x),
            UnaryFn::Activation(Activation::GeluTanh) => L::gelu_tanh(x),
            UnaryFn::Activation(Activation::Gelu) => L::gelu(x),
            UnaryFn::Scale(factor) => L::mul(x, L::splat(factor)),
            UnaryFn::SoftCap(cap) => soft_cap::<L>(x, cap),
            UnaryFn::Cast(precision) => round_to::<L>(x, precision),
        }
    }
}

/// `cap · tanh(x / cap)`, as `cap · (1 − 2 / (e^(2x/cap) + 1))`.
///
/// # Safety
/// The CPU has the features of `L`.
#[inline(always)]
pub(crate) unsafe fn soft_cap<L: Lanes>(x: L::F, cap: f32) -> L::F {
    // SAFETY: register arithmetic; the caller vouches for the CPU's features.
    unsafe {
        let (one, two) = (L::splat(1.0), L::splat(2.0));
        let e = L::exp(L::mul(x, L::splat(2.0 / cap)));
        L::mul(L::splat(cap), L::sub(one, L::div(two, L::add(e, one))))
    }
}

#[inline(always)]
unsafe fn round_to<L: Lanes>(x: L::F, precision: Precision) -> L::F {
    let mut lanes = [0.0f32; LANES];
    // SAFETY: sixteen elements on the stack.
    unsafe {
        L::store(lanes.as_mut_ptr(), x);
        for lane in &mut lanes {
            *lane = match precision {
                Precision::F32 => *lane,
                Precision::F16 => f16::from_f32(*lane).to_f32(),
                Precision::Bf16 => bf16::from_f32(*lane).to_f32(),
            };
        }
        L::load(lanes.as_ptr())
    }
}

/// See [`crate::ir::Op::Binary`].
pub(crate) fn binary(
    cpu: &Cpu,
    [dst, a, b]: [&Place; 3],
    f: BinaryFn,
    frame: &mut Frame<'_, Cpu>,
) -> Result<(), BackendError> {
    let (dst, [a, b]) = operands("binary", dst, [a, b], frame)?;
    if a.rows != dst.rows {
        return Err(shape_error("binary", format!("{} rows", dst.rows), format!("{}", a.rows)));
    }
    let per_chunk = rows_per_chunk(dst.cols);
    // SAFETY: shapes are checked; a chunk writes its own rows.
    unsafe { cpu.parallel(&Binary { dst, a, b, f, per_chunk }, dst.rows.div_ceil(per_chunk)) };
    Ok(())
}

struct Binary {
    dst: Rows,
    a: Rows,
    b: Rows,
    f: BinaryFn,
    per_chunk: usize,
}

impl Kernel for Binary {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let first = chunk * self.per_chunk;
        for row in first..(first + self.per_chunk).min(self.dst.rows) {
            let b_row = if self.b.rows == 1 { 0 } else { row };
            // SAFETY: the rows exist; a single row of `b` is used for all.
            unsafe {
                let (dst, a, b) = (self.dst.row(row), self.a.row(row), self.b.row(b_row));
                for col in (0..self.dst.cols).step_by(LANES) {
                    let n = (self.dst.cols - col).min(LANES);
                    let (a, b) = (L::load_n(a.add(col), n), L::load_n(b.add(col), n));
                    let value = match self.f {
                        BinaryFn::Add => L::add(a, b),
                        BinaryFn::Sub => L::sub(a, b),
                        BinaryFn::Mul => L::mul(a, b),
                    };
                    L::store_n(dst.add(col), n, value);
                }
            }
        }
    }
}

/// See [`crate::ir::Op::Softmax`].
pub(crate) fn softmax(
    cpu: &Cpu,
    [dst, src]: [&Place; 2],
    frame: &mut Frame<'_, Cpu>,
) -> Result<(), BackendError> {
    let (dst, [src]) = operands("softmax", dst, [src], frame)?;
    if src.rows != dst.rows {
        return Err(shape_error("softmax", format!("{} rows", dst.rows), format!("{}", src.rows)));
    }
    let per_chunk = rows_per_chunk(dst.cols);
    // SAFETY: shapes are checked; a chunk writes its own rows.
    unsafe { cpu.parallel(&Softmax { dst, src, per_chunk }, dst.rows.div_ceil(per_chunk)) };
    Ok(())
}

struct Softmax {
    dst: Rows,
    src: Rows,
    per_chunk: usize,
}

impl Kernel for Softmax {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, chunk: usize, _worker: usize) {
        let first = chunk * self.per_chunk;
        for row in first..(first + self.per_chunk).min(self.dst.rows) {
            // SAFETY: the row exists in both values.
            unsafe { softmax_row::<L>(self.dst.row(row), self.src.row(row), self.dst.cols) }
        }
    }
}

#[inline(always)]
unsafe fn softmax_row<L: Lanes>(dst: *mut f32, src: *const f32, cols: usize) {
    // SAFETY: `cols` elements in both.
    unsafe {
        let max = std::slice::from_raw_parts(src, cols).iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0;
        for col in (0..cols).step_by(LANES) {
            let n = (cols - col).min(LANES);
            let e = L::exp(L::sub(L::load_n(src.add(col), n), L::splat(max)));
            L::store_n(dst.add(col), n, e);
            // Read back, so that the padding of a last vector is excluded.
            sum += L::reduce_add(L::load_n(dst.add(col), n));
        }
        for col in (0..cols).step_by(LANES) {
            let n = (cols - col).min(LANES);
            L::store_n(dst.add(col), n, L::div(L::load_n(dst.add(col), n), L::splat(sum)));
        }
    }
}

/// See [`crate::ir::Op::Transpose`].
pub(crate) fn transpose([dst, src]: [&Place; 2], frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
    const OP: &str = "transpose";
    let (rows, cols) = (src.rows.count(frame.step), src.cols);
    if dst.cols != rows || dst.rows.count(frame.step) != cols {
        let found = format!("[{}, {}]", dst.rows.count(frame.step), dst.cols);
        return Err(shape_error(OP, format!("dst [{cols}, {rows}]"), found));
    }
    let [out, from] = frame.arena.slices(OP, [(dst, cols), (src, rows)])?;
    for (r, row) in from.chunks_exact(cols.max(1)).enumerate() {
        for (c, &value) in row.iter().enumerate() {
            out[c * rows + r] = value;
        }
    }
    Ok(())
}
