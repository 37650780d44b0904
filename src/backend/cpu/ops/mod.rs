//! All operations but products and attention, and the dispatch of operations to kernels.

pub(crate) mod append;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod norm;
pub(crate) mod recurrent;
pub(crate) mod rope;
pub(crate) mod row_attention;
pub(crate) mod rows;

use super::{Cpu, attention};
use crate::backend::{BackendError, Frame};
use crate::ir::{
    ApplyRope, Binary, Embed, GatherOutputs, Normalize, Op, SampleRows, Softmax, Transpose, Unary,
};

/// See [`Backend::execute`](crate::backend::Backend::execute).
pub(super) fn execute(cpu: &Cpu, op: &Op, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
    match op {
        Op::Embed(Embed { dst, table, scale }) => rows::embed(dst, *table, *scale, frame),
        Op::Norm(Normalize { dst, src, norm, write }) => norm::norm(cpu, [dst, src], norm, *write, frame),
        Op::Matmul(matmul) => cpu.matmul(matmul, frame),
        Op::RopeAngles(op) => rope::angles(op, frame),
        Op::Rope(ApplyRope { x, head_dim, rope }) => rope::rope(cpu, x, *head_dim, rope, frame),
        Op::KvAppend(op) => append::append(cpu, op, frame),
        Op::Attention(op) => attention::attention(cpu, op, frame),
        Op::GatherOutputs(GatherOutputs { dst, src }) => rows::gather_outputs(dst, src, frame),
        Op::Unary(Unary { dst, src, f }) => elementwise::unary(cpu, [dst, src], *f, frame),
        Op::Binary(Binary { dst, a, b, f }) => elementwise::binary(cpu, [dst, a, b], *f, frame),
        Op::Softmax(Softmax { dst, src }) => elementwise::softmax(cpu, [dst, src], frame),
        Op::Sample(SampleRows { dst, src }) => rows::sample(cpu, [dst, src], frame),
        Op::Transpose(Transpose { dst, src }) => elementwise::transpose([dst, src], frame),
        Op::MeanRows(op) => rows::mean_rows(op, frame),
        Op::RowAttention(op) => row_attention::row_attention(cpu, op, frame),
        Op::Route(op) => experts::route(op, frame),
        Op::ExpertMatmul(op) => cpu.expert_matmul(op, frame),
        Op::Combine(op) => experts::combine(op, frame),
        Op::ShortConv(op) => recurrent::short_conv(op, frame),
        Op::GatedDelta(op) => recurrent::gated_delta(cpu, op, frame),
        Op::HeadNorm(op) => norm::head_norm(cpu, op, frame),
    }
}
