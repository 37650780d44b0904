//! Weights in device memory.

use std::sync::Arc;

use super::driver::Context;
use super::memory::DeviceBuffer;
use super::pack::Packed;
use super::params;
use super::shape_error;
use crate::backend::{BackendError, PreparedMatrix, Weights};
use crate::ir::{MatrixId, RmsNorm, VectorId};
use crate::quant::WeightMatrix;

use super::Cuda;

/// A packed weight matrix on the device.
#[derive(Debug)]
pub struct Matrix {
    codes: DeviceBuffer,
    scales: DeviceBuffer,
    mins: DeviceBuffer,
    params: params::Matrix,
}

impl PreparedMatrix for Matrix {
    fn bytes(&self) -> usize {
        self.codes.bytes() + self.scales.bytes() + self.mins.bytes()
    }
}

impl Matrix {
    pub(super) fn upload(context: &Arc<Context>, matrix: &WeightMatrix) -> Result<Matrix, BackendError> {
        const WHAT: &str = "a weight matrix";
        let packed = Packed::new(matrix);
        let codes = DeviceBuffer::of(context, &packed.codes, WHAT)?;
        let scales = DeviceBuffer::of(context, &packed.scales, WHAT)?;
        let mins = DeviceBuffer::of(context, packed.mins.as_deref().unwrap_or_default(), WHAT)?;
        let params = params::Matrix {
            codes: codes.address(),
            scales: scales.address(),
            mins: mins.address(),
            rows: packed.rows as u32,
            cols: packed.cols as u32,
            bits: packed.bits,
            group_steps: packed.group_steps,
            groups: packed.groups as u32,
            zero: packed.zero,
        };
        Ok(Matrix { codes, scales, mins, params })
    }

    /// A separate copy, made on the device. A bench reads many matrices, and packing each on the host takes
    /// longer than the measurement.
    #[cfg(feature = "_bench")]
    #[doc(hidden)]
    pub fn duplicate(&self) -> Result<Matrix, BackendError> {
        let [codes, scales, mins] =
            [&self.codes, &self.scales, &self.mins].map(|buffer| buffer.duplicate("a copy of a matrix"));
        let (codes, scales, mins) = (codes?, scales?, mins?);
        let params = params::Matrix {
            codes: codes.address(),
            scales: scales.address(),
            mins: mins.address(),
            ..self.params
        };
        Ok(Matrix { codes, scales, mins, params })
    }

    /// Whether this memory belongs to `context`, and so to its stream.
    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        self.codes.is_of(context)
    }

    pub(super) fn rows(&self) -> usize {
        self.params.rows as usize
    }

    pub(super) fn cols(&self) -> usize {
        self.params.cols as usize
    }

    pub(super) fn params(&self) -> params::Matrix {
        self.params
    }
}

/// An f32 vector on the device.
#[derive(Debug)]
pub struct Vector {
    values: DeviceBuffer,
    len: usize,
}

impl Vector {
    pub(super) fn upload(context: &Arc<Context>, values: &[f32]) -> Result<Vector, BackendError> {
        Ok(Vector { values: DeviceBuffer::of(context, values, "a vector")?, len: values.len() })
    }
}

/// The matrix `id`.
pub(super) fn matrix<'a>(
    op: &'static str,
    weights: &'a Weights<Cuda>,
    id: MatrixId,
) -> Result<&'a Matrix, BackendError> {
    let expected = || format!("a matrix id below {}", weights.matrices.len());
    weights.matrices.get(id.0 as usize).ok_or_else(|| shape_error(op, expected(), format!("{}", id.0)))
}

/// The address of the vector `id`, which must have `len` elements.
pub(super) fn vector(
    op: &'static str,
    weights: &Weights<Cuda>,
    id: VectorId,
    len: usize,
) -> Result<params::Address, BackendError> {
    match weights.vectors.get(id.0 as usize) {
        Some(vector) if vector.len == len => Ok(vector.values.address()),
        Some(vector) => Err(shape_error(op, format!("a vector of {len}"), format!("one of {}", vector.len))),
        None => {
            let expected = format!("a vector id below {}", weights.vectors.len());
            Err(shape_error(op, expected, format!("{}", id.0)))
        }
    }
}

/// The address of a norm's gain of `len` elements, and its epsilon; zeros without a norm.
pub(super) fn norm(
    op: &'static str,
    weights: &Weights<Cuda>,
    norm: Option<&RmsNorm>,
    len: usize,
) -> Result<(params::Address, f32), BackendError> {
    norm.map_or(Ok((0, 0.0)), |norm| Ok((vector(op, weights, norm.weight, len)?, norm.eps)))
}
