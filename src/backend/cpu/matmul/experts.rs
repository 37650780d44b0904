//! [`ExpertMatmul`]: the products of one row after another, each with the matrices of its own experts.

use super::panel::Finish;
use super::{Call, matrix};
use crate::backend::cpu::Cpu;
use crate::backend::cpu::memory::Rows;
use crate::backend::cpu::pack::Matrix;
use crate::backend::{BackendError, Frame, Weights, overlap_error, shape_error};
use crate::ir::{ExpertMatmul, Operation};

const OP: &str = ExpertMatmul::NAME;

impl Cpu {
    /// See [`ExpertMatmul`].
    pub(crate) fn expert_matmul(
        &self,
        op: &ExpertMatmul,
        frame: &mut Frame<'_, Cpu>,
    ) -> Result<(), BackendError> {
        op.check()?;
        let Frame { weights, arena, step, .. } = frame;
        let [src, routes, dst] = [&op.src, &op.routes, &op.dst].map(|place| arena.rows(OP, place, step));
        let (src, routes, dst) = (src?, routes?, dst?);
        if dst.overlaps(&src) || dst.overlaps(&routes) {
            return Err(overlap_error(OP, [op.dst, op.src, op.routes]));
        }
        let top_k = op.top_k();
        let shape = check_experts(op, weights)?;
        let shared = src.cols == shape.cols();
        if dst.cols != top_k * shape.rows() || !(shared || src.cols == top_k * shape.cols()) {
            let expected = format!("{top_k} parts of experts [{}, {}]", shape.rows(), shape.cols());
            return Err(shape_error(OP, expected, format!("src of {}, dst of {}", src.cols, dst.cols)));
        }
        let part = |of: &Rows, row: usize, slot: usize, cols: usize| Rows {
            ptr: of.ptr.wrapping_add(row * of.cols + slot * cols),
            rows: 1,
            cols,
        };
        // One source for all of a row's experts, or one for each.
        let sources = if shared { 1 } else { top_k };
        for (row, source) in (0..dst.rows).flat_map(|row| (0..sources).map(move |source| (row, source))) {
            let src = part(&src, row, source, shape.cols());
            let mut call =
                Call { cpu: self, weights, arena, step, src, panels: 0, int8: false, float: false };
            call.arena.products.clear();
            for slot in if shared { 0..top_k } else { source..source + 1 } {
                let expert = call.arena.slice(OP, &op.routes, row, 1)?[slot];
                let id = op.experts.get(expert as usize).ok_or_else(|| {
                    shape_error(OP, format!("experts below {}", op.experts.count), expert.to_string())
                })?;
                let matrix = matrix(weights, id)?;
                call.push(matrix, part(&dst, row, slot, shape.rows()), std::ptr::null(), Finish::Store);
                call.panels += matrix.panels();
            }
            call.check_scratch()?;
            call.run(None);
        }
        Ok(())
    }
}

/// The first expert's matrix, if all have its shape.
fn check_experts<'a>(op: &ExpertMatmul, weights: &'a Weights<Cpu>) -> Result<&'a Matrix, BackendError> {
    let first = matrix(weights, op.experts.first)?;
    for id in (1..op.experts.count).filter_map(|expert| op.experts.get(expert)) {
        let other = matrix(weights, id)?;
        if (other.rows(), other.cols()) != (first.rows(), first.cols()) {
            let expected = format!("experts of [{}, {}]", first.rows(), first.cols());
            return Err(shape_error(OP, expected, format!("[{}, {}]", other.rows(), other.cols())));
        }
    }
    Ok(first)
}
