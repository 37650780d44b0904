//! The reference backend: every operation in naive f64, written to be read as its specification.
//!
//! It is the oracle of the other backends' tests and can run whole models, slowly. Keys and values are
//! rounded to the pool's dtype, so that it covers cached attention, too; nothing else is rounded. `memory`
//! holds values and pages, `products` embedding and matrix products, `attention` rotary embedding, append and
//! paged attention. `row_attention` is attention over rows, `recurrent` the recurrent operations, `experts`
//! routing, `sample` sampling, `elementwise` the rest.

#![forbid(unsafe_code)]

mod attention;
mod elementwise;
mod experts;
mod memory;
mod products;
mod recurrent;
mod row_attention;
mod sample;

use super::{Backend, BackendError, Frame, MatrixSource, Weights, shape_error};
use crate::ir::{
    ApplyRope, Binary, Embed, GatherOutputs, KvLayout, Norm, NormKind, Normalize, Op, Precision, RmsNorm,
    RowSampling, SampleRows, Softmax, StepLimits, Transpose, Unary, VectorId,
};
pub use memory::{Arena, KvPool, Matrix};
#[cfg(test)]
pub(crate) use products::activate;

/// The f64 reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reference;

/// The vector `id`, widened; it must have `len` elements.
fn vector(
    op: &'static str,
    weights: &Weights<Reference>,
    id: VectorId,
    len: usize,
) -> Result<Vec<f64>, BackendError> {
    let found = weights.vectors.get(id.0 as usize);
    match found.filter(|vector| vector.len() == len) {
        Some(vector) => Ok(vector.iter().map(|&x| f64::from(x)).collect()),
        None => {
            let found =
                found.map_or_else(|| "no such vector".into(), |vector| format!("one of {}", vector.len()));
            Err(shape_error(op, format!("vector {} of {len}", id.0), found))
        }
    }
}

/// See [`Norm`].
fn norm_rows(
    op: &'static str,
    weights: &Weights<Reference>,
    norm: &Norm,
    len: usize,
    values: &mut [f64],
) -> Result<(), BackendError> {
    if norm.kind == NormKind::Layer {
        for x in values.chunks_mut(len.max(1)) {
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            x.iter_mut().for_each(|x| *x -= mean);
        }
    }
    // The variance is the mean square of the centred values.
    rms_norm(values, &vector(op, weights, norm.weight, len)?, norm.eps);
    if let Some(bias) = norm.bias {
        let bias = vector(op, weights, bias, len)?;
        values.iter_mut().zip(bias.iter().cycle()).for_each(|(x, bias)| *x += bias);
    }
    Ok(())
}

/// `x / sqrt(mean(x²) + eps) · weight` over each run of `weight.len()` elements.
fn rms_norm(values: &mut [f64], weight: &[f64], eps: f32) {
    for x in values.chunks_mut(weight.len().max(1)) {
        let mean_square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let gain = 1.0 / (mean_square + f64::from(eps)).sqrt();
        x.iter_mut().zip(weight).for_each(|(x, weight)| *x *= gain * weight);
    }
}

/// [`rms_norm`] with the weight given by id.
fn apply_norm(
    op: &'static str,
    weights: &Weights<Reference>,
    norm: &RmsNorm,
    len: usize,
    values: &mut [f64],
) -> Result<(), BackendError> {
    rms_norm(values, &vector(op, weights, norm.weight, len)?, norm.eps);
    Ok(())
}

impl Backend for Reference {
    type Arena = Arena;
    type Vector = Vec<f32>;
    type Matrix = Matrix;
    type KvPool = KvPool;

    fn describe(&self) -> String {
        "reference, f64".into()
    }

    fn element_bytes(&self, _precision: Precision) -> usize {
        size_of::<f64>()
    }

    fn upload_vector(&self, values: &[f32]) -> Result<Vec<f32>, BackendError> {
        Ok(values.to_vec())
    }

    fn prepare<S: MatrixSource>(&self, matrix: &S) -> Result<Matrix, S::Error> {
        Matrix::new(matrix)
    }

    fn arena(&self, bytes: usize, _ops: &[Op], _limits: StepLimits) -> Result<Arena, BackendError> {
        Arena::new(bytes)
    }

    fn kv_pool(&self, layout: KvLayout, pages: usize) -> Result<KvPool, BackendError> {
        KvPool::new(layout, pages)
    }

    fn samples(&self, _sampling: &RowSampling, _vocab: usize) -> bool {
        true
    }

    fn execute(&self, op: &Op, frame: &mut Frame<'_, Self>) -> Result<(), BackendError> {
        match op {
            Op::Embed(Embed { dst, table, scale }) => products::embed(dst, *table, *scale, frame),
            Op::Norm(Normalize { dst, src, norm, write }) => {
                elementwise::norm([dst, src], norm, *write, frame)
            }
            Op::Matmul(op) => products::matmul(op, frame),
            Op::RopeAngles(op) => attention::angles(op, frame),
            Op::Rope(ApplyRope { x, head_dim, rope }) => attention::rope(x, *head_dim, rope, frame),
            Op::KvAppend(op) => attention::append(op, frame),
            Op::Attention(op) => attention::attention(op, frame),
            Op::GatherOutputs(GatherOutputs { dst, src }) => products::gather_outputs(dst, src, frame),
            Op::Unary(Unary { dst, src, f }) => elementwise::unary([dst, src], *f, frame),
            Op::Binary(Binary { dst, a, b, f }) => elementwise::binary([dst, a, b], *f, frame),
            Op::Softmax(Softmax { dst, src }) => elementwise::softmax([dst, src], frame),
            Op::Sample(SampleRows { dst, src }) => sample::sample([dst, src], frame),
            Op::Transpose(Transpose { dst, src }) => elementwise::transpose([dst, src], frame),
            Op::MeanRows(op) => elementwise::mean_rows(op, frame),
            Op::RowAttention(op) => row_attention::row_attention(op, frame),
            Op::Route(op) => experts::route(op, frame),
            Op::ExpertMatmul(op) => experts::expert_matmul(op, frame),
            Op::Combine(op) => experts::combine(op, frame),
            Op::ShortConv(op) => recurrent::short_conv(op, frame),
            Op::GatedDelta(op) => recurrent::gated_delta(op, frame),
            Op::HeadNorm(op) => elementwise::head_norm(op, frame),
        }
    }
}
