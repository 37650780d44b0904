//! [`Source`]: the file that a model's matrices come from, and what they become.

use std::path::Path;

use crate::backend::MatrixShape;
use crate::checkpoint::ModelFile;
use crate::quant::{MatrixForm, QuantFormat};

use super::ModelError;

/// Where matrices come from.
#[derive(Clone, Copy)]
pub(super) struct Source<'f> {
    pub file: &'f ModelFile,
    /// The file's own.
    pub fingerprint: [u8; 32],
    /// What float matrices become.
    pub quantise: Option<QuantFormat>,
    /// Where prepared matrices are kept.
    pub sidecar: Option<&'f Path>,
}

impl Source<'_> {
    /// What a matrix is prepared from.
    pub fn shape(&self, name: &str) -> Result<MatrixShape, ModelError> {
        let rows = self.file.rows(name)?;
        let form = match (rows.form(), self.quantise) {
            (form @ MatrixForm::Quant(_), _) | (form, None) => form,
            (_, Some(format)) => MatrixForm::Quant(format.form(rows.cols())),
        };
        Ok(MatrixShape { rows: rows.rows(), cols: rows.cols(), form })
    }
}
