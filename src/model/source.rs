//! [`Source`]: the checkpoint that a model's matrices come from, and what they become.

use std::path::Path;

use crate::backend::MatrixShape;
use crate::checkpoint::{Checkpoint, Part};
use crate::graph::MatrixSpec;
use crate::quant::{MatrixForm, QuantFormat};

use super::ModelError;

/// Where matrices come from.
#[derive(Clone, Copy)]
pub(super) struct Source<'f> {
    pub file: &'f dyn Checkpoint,
    /// The file's own.
    pub fingerprint: [u8; 32],
    /// What float matrices become.
    pub quantise: Option<QuantFormat>,
    /// Where prepared matrices are kept.
    pub sidecar: Option<&'f Path>,
}

impl Source<'_> {
    /// A vector as the graph reads it.
    pub fn vector(&self, name: &str) -> Result<Vec<f32>, ModelError> {
        let mut values = self.file.vector(name)?;
        let offset = self.file.dialect().offset(name);
        if offset != 0.0 {
            values.iter_mut().for_each(|value| *value += offset);
        }
        Ok(values)
    }

    /// What a float matrix becomes. A router stays as it is: a small error in it chooses another expert.
    pub fn quantised(&self, name: &str) -> Option<QuantFormat> {
        self.quantise.filter(|_| !self.file.dialect().is_part(name, Part::Router))
    }

    /// What a matrix is prepared from.
    pub fn shape(&self, spec: &MatrixSpec) -> Result<MatrixShape, ModelError> {
        let rows = self.file.rows(&spec.name)?;
        let form = match (rows.form(), self.quantised(&spec.name)) {
            (form @ MatrixForm::Quant(_), _) | (form, None) => form,
            (_, Some(format)) => MatrixForm::Quant(format.form(rows.cols())),
        };
        Ok(MatrixShape { rows: spec.rows, cols: spec.cols, form })
    }
}
