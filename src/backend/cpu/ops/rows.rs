//! Operations on whole rows: embedding, gathering the output rows, sampling.

use crate::backend::cpu::Cpu;
use crate::backend::cpu::isa::{Kernel, LANES, Lanes};
use crate::backend::cpu::memory::Rows;
use crate::backend::{BackendError, Frame, overlap_error, shape_error};
use crate::ir::{MatrixId, MeanRows, Operation as _, Place, RowSampling};

/// See [`crate::ir::Op::Embed`].
pub(crate) fn embed(
    dst: &Place,
    table: MatrixId,
    scale: f32,
    frame: &mut Frame<'_, Cpu>,
) -> Result<(), BackendError> {
    const OP: &str = "embed";
    let tokens = &frame.step.tokens;
    let count = frame.weights.matrices.len();
    let table = frame.weights.matrices.get(table.0 as usize);
    let table = table.ok_or_else(|| shape_error(OP, format!("a matrix id below {count}"), "none".into()))?;
    if table.cols() != dst.cols {
        return Err(shape_error(OP, format!("rows of {}", table.cols()), format!("{}", dst.cols)));
    }
    if let Some(token) = tokens.iter().find(|token| token.index() >= table.rows()) {
        return Err(shape_error(OP, format!("tokens below {}", table.rows()), format!("{token}")));
    }
    // Embedding is the first operation of a step.
    frame.arena.begin_step(tokens.len());
    let [out] = frame.arena.slices(OP, [(dst, tokens.len())])?;
    for (token, row) in tokens.iter().zip(out.chunks_exact_mut(dst.cols.max(1))) {
        table.row(token.index(), scale, row);
    }
    Ok(())
}

/// See [`crate::ir::Op::GatherOutputs`].
pub(crate) fn gather_outputs(
    dst: &Place,
    src: &Place,
    frame: &mut Frame<'_, Cpu>,
) -> Result<(), BackendError> {
    const OP: &str = "gather_outputs";
    let (tokens, outputs) = (frame.step.tokens.len(), &frame.step.outputs);
    if dst.cols != src.cols || outputs.iter().any(|&row| row as usize >= tokens) {
        let expected = format!("rows below {tokens} of {} columns", src.cols);
        return Err(shape_error(OP, expected, format!("{dst:?}")));
    }
    let [out, from] = frame.arena.slices(OP, [(dst, outputs.len()), (src, tokens)])?;
    for (&row, out) in outputs.iter().zip(out.chunks_exact_mut(dst.cols.max(1))) {
        out.copy_from_slice(&from[row as usize * src.cols..][..src.cols]);
    }
    Ok(())
}

/// See [`MeanRows`]. Sums are f64, because texts are long; they cover one block of columns at a time.
pub(crate) fn mean_rows(op: &MeanRows, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
    op.check()?;
    let (step, cols) = (frame.step, op.src.cols.max(1));
    let (results, rows) = (op.dst.rows.count(step), op.src.rows.count(step));
    let [out, from] = frame.arena.slices(MeanRows::NAME, [(&op.dst, results), (&op.src, rows)])?;
    for (out, group) in out.chunks_exact_mut(cols).zip(op.groups(step)) {
        let own = from.get(group.start * cols..group.end * cols).unwrap_or_default();
        for (first, out) in (0..).step_by(LANES).zip(out.chunks_mut(LANES)) {
            let mut sums = [0.0; LANES];
            for row in own.chunks_exact(cols) {
                sums.iter_mut().zip(&row[first..]).for_each(|(sum, &x)| *sum += f64::from(x));
            }
            let count = group.len().max(1) as f64;
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = (sum / count) as f32);
        }
    }
    Ok(())
}

/// Whether this backend samples rows with this sampling. Other rows need more of their logits than a kernel
/// keeps.
pub(crate) fn is_greedy(sampling: &RowSampling) -> bool {
    sampling.temperature == 0.0 && sampling.adjustments.is_empty()
}

/// See [`crate::ir::Op::Sample`].
pub(crate) fn sample(
    cpu: &Cpu,
    [dst, src]: [&Place; 2],
    frame: &mut Frame<'_, Cpu>,
) -> Result<(), BackendError> {
    const OP: &str = "sample";
    let (to, from) = (frame.arena.rows(OP, dst, frame.step)?, frame.arena.rows(OP, src, frame.step)?);
    if (to.rows, to.cols) != (from.rows, 1) {
        let expected = format!("dst [{}, 1]", from.rows);
        return Err(shape_error(OP, expected, format!("[{}, {}]", to.rows, to.cols)));
    }
    if to.overlaps(&from) {
        return Err(overlap_error(OP, [dst, src]));
    }
    let kernel = Sample { dst: to, src: from, sampling: &frame.step.sampling };
    // SAFETY: shapes are checked; a chunk writes its own row.
    unsafe { cpu.parallel(&kernel, from.rows) };
    Ok(())
}

struct Sample<'s> {
    dst: Rows,
    src: Rows,
    sampling: &'s [RowSampling],
}

impl Kernel for Sample<'_> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(&self, row: usize, _worker: usize) {
        // SAFETY: the row exists in both values, which do not overlap.
        unsafe {
            let values = std::slice::from_raw_parts(self.src.row(row), self.src.cols);
            let greedy = self.sampling.get(row).is_none_or(is_greedy);
            self.dst.row(row).write(if greedy { largest_column(values) } else { -1.0 });
        }
    }
}

/// The first column of the largest element, or −1. Several running maxima let the compiler vectorise the
/// loop.
#[inline(always)]
fn largest_column(values: &[f32]) -> f32 {
    let mut strands = [f32::NEG_INFINITY; LANES];
    let mut finite = true;
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        for (strand, &x) in strands.iter_mut().zip(block) {
            finite &= x < f32::INFINITY;
            *strand = if x > *strand { x } else { *strand };
        }
    }
    for (strand, &x) in strands.iter_mut().zip(rest) {
        finite &= x < f32::INFINITY;
        *strand = strand.max(x);
    }
    let max = strands.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if !finite || max == f32::NEG_INFINITY {
        return -1.0;
    }
    // Block by block, so that the comparison is vectorised.
    let has_max = |block: &[f32]| block.iter().fold(false, |found, &x| found | (x == max));
    let start = LANES * blocks.iter().position(|block| has_max(block)).unwrap_or(blocks.len());
    values[start..].iter().position(|&x| x == max).map_or(-1.0, |column| (start + column) as f32)
}
