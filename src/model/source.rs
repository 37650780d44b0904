//! [`Source`]: the checkpoint that provides a model's matrices, with their target format.

use std::path::Path;

use crate::backend::MatrixShape;
use crate::checkpoint::{Checkpoint, Part};
use crate::graph::MatrixSpec;
use crate::quant::{MatrixForm, QuantFormat};

use super::ModelError;

/// Origin and target format of a model's matrices.
#[derive(Clone, Copy)]
pub(super) struct Source<'f> {
    pub file: &'f dyn Checkpoint,
    /// Fingerprint of the file.
    pub fingerprint: [u8; 32],
    /// Target format for float matrices; `None` keeps them.
    pub quantise: Option<QuantFormat>,
    /// Path of the sidecar with prepared matrices.
    pub sidecar: Option<&'f Path>,
}

impl Source<'_> {
    /// Vector in the graph's convention: the checkpoint's offset is applied.
    pub fn vector(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        let mut values = self.file.vector(name)?;
        let offset = self.file.dialect().offset(name);
        if offset != 0.0 {
            values.iter_mut().for_each(|value| *value += offset);
        }
        Ok(values)
    }

    /// Target format of a float matrix. Routers are never quantised: a small error selects other experts.
    pub fn quantised(&self, name: &str) -> Option<QuantFormat> {
        self.quantise.filter(|_| !self.file.dialect().is_part(name, Part::Router))
    }

    /// Shape and format of a matrix before the backend prepares it.
    pub fn shape(&self, spec: &MatrixSpec) -> Result<MatrixShape, ModelError> {
        let rows = self.file.rows(&spec.name)?;
        let form = match (rows.form(), self.quantised(&spec.name)) {
            (form @ MatrixForm::Quant(_), _) | (form, None) => form,
            (_, Some(format)) => MatrixForm::Quant(format.form(rows.cols())),
        };
        Ok(MatrixShape { rows: spec.rows, cols: spec.cols, form })
    }
}
