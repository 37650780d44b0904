//! Weights by name: [`NamedWeights`] binds matrices and vectors to the names that a graph declares.

use std::collections::{BTreeMap, BTreeSet};

use super::SessionError;
use crate::backend::{Backend, MatrixSource as _, Weights};
use crate::graph::{MatrixSpec, Plan};
use crate::quant::{DenseMatrix, DenseValues, WeightMatrix};

/// Weights by name, for [`NamedWeights::bind`]. Adding a name again replaces the earlier value.
#[derive(Clone, Debug, Default)]
pub struct NamedWeights {
    matrices: BTreeMap<String, WeightMatrix>,
    vectors: BTreeMap<String, Vec<f32>>,
}

impl NamedWeights {
    /// An empty set of weights.
    pub fn new() -> NamedWeights {
        NamedWeights::default()
    }

    /// Adds a row-major f32 matrix `[rows, cols]`, output by input features.
    ///
    /// # Errors
    /// [`SessionError::Binding`] unless there are `rows · cols` finite values.
    pub fn dense(
        self,
        name: impl Into<String>,
        [rows, cols]: [usize; 2],
        values: Vec<f32>,
    ) -> Result<NamedWeights, SessionError> {
        let (name, count) = (name.into(), values.len());
        let dense = DenseMatrix::new(rows, cols, DenseValues::F32(values)).map_err(|error| {
            let what = format!("weight matrix {name}");
            let expected = format!("values of [{rows}, {cols}]");
            SessionError::Binding { what, expected, found: format!("{count}: {error}") }
        })?;
        Ok(self.matrix(name, WeightMatrix::Dense(dense)))
    }

    /// Adds a quantised or dense matrix. The matrices of experts are stacked by rows.
    pub fn matrix(mut self, name: impl Into<String>, matrix: WeightMatrix) -> NamedWeights {
        self.matrices.insert(name.into(), matrix);
        self
    }

    /// Adds an f32 vector.
    pub fn vector(mut self, name: impl Into<String>, values: impl Into<Vec<f32>>) -> NamedWeights {
        self.vectors.insert(name.into(), values.into());
        self
    }

    /// Uploads all weights declared by a plan, in the plan's order, for
    /// [`Session::new`](super::Session::new).
    ///
    /// # Errors
    /// [`SessionError::Binding`] for the first name that is missing, has another shape, or is not declared by
    /// the plan; [`SessionError::Backend`] if memory is exhausted.
    pub fn bind<B: Backend>(&self, plan: &Plan, backend: &B) -> Result<Weights<B>, SessionError> {
        let matrices: BTreeSet<&str> = plan.matrices().iter().map(|spec| &*spec.name).collect();
        let vectors: BTreeSet<&str> = plan.vectors().iter().map(|spec| &*spec.name).collect();
        no_others("matrix", self.matrices.keys(), &matrices)?;
        no_others("vector", self.vectors.keys(), &vectors)?;
        for name in matrices {
            self.check_matrix(name, plan.matrices().iter().filter(|spec| spec.name == name))?;
        }
        let mut weights = Weights { matrices: Vec::new(), vectors: Vec::new() };
        for spec in plan.vectors() {
            let found = self.vectors.get(&spec.name);
            let shape = found.map(|vector| format!("[{}]", vector.len()));
            let vector = found.filter(|vector| vector.len() == spec.len);
            let vector =
                vector.ok_or_else(|| mismatch("vector", &spec.name, format!("[{}]", spec.len), shape))?;
            weights.vectors.push(backend.upload_vector(vector)?);
        }
        for spec in plan.matrices() {
            let Some(matrix) = self.matrices.get(&spec.name) else { continue };
            weights.matrices.push(match (spec.first_row, spec.rows) {
                (0, rows) if rows == matrix.rows() => backend.prepare(matrix)?,
                (first, rows) => {
                    let mut part = WeightMatrix::default();
                    matrix.read(first..first + rows, &mut part)?;
                    backend.prepare(&part)?
                }
            });
        }
        Ok(weights)
    }

    /// Total bytes of all matrices.
    pub(crate) fn matrix_bytes(&self) -> usize {
        self.matrices.values().map(|matrix| matrix.form().bytes(matrix.rows(), matrix.cols())).sum()
    }

    /// Hash of all names and values.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let mut hash = blake3::Hasher::new();
        for (name, matrix) in &self.matrices {
            hash.update(
                format!("{name:?} [{}, {}] {:?}", matrix.rows(), matrix.cols(), matrix.form()).as_bytes(),
            );
            match matrix {
                WeightMatrix::Dense(dense) => match dense.values() {
                    DenseValues::F32(values) => hash.update(bytemuck::cast_slice(values)),
                    DenseValues::F16(values) => hash.update(bytemuck::cast_slice(values)),
                    DenseValues::Bf16(values) => hash.update(bytemuck::cast_slice(values)),
                },
                WeightMatrix::Quant(quant) => {
                    hash.update(quant.codes()).update(bytemuck::cast_slice(quant.scales()));
                    hash.update(bytemuck::cast_slice(quant.mins().unwrap_or_default()))
                }
            };
        }
        for (name, vector) in &self.vectors {
            hash.update(format!("{name:?} [{}]", vector.len()).as_bytes())
                .update(bytemuck::cast_slice(vector));
        }
        *hash.finalize().as_bytes()
    }

    /// Checks that the parts declared under one name cover exactly the rows of its matrix.
    fn check_matrix<'s>(
        &self,
        name: &str,
        parts: impl Iterator<Item = &'s MatrixSpec>,
    ) -> Result<(), SessionError> {
        let end = |(rows, _), spec: &MatrixSpec| (usize::max(rows, spec.first_row + spec.rows), spec.cols);
        let (rows, cols) = parts.fold((0, 0), end);
        let found = self.matrices.get(name).map(|matrix| (matrix.rows(), matrix.cols()));
        if found == Some((rows, cols)) {
            return Ok(());
        }
        let found = found.map(|(rows, cols)| format!("[{rows}, {cols}]"));
        Err(mismatch("matrix", name, format!("[{rows}, {cols}]"), found))
    }
}

fn mismatch(what: &str, name: &str, expected: String, found: Option<String>) -> SessionError {
    let found = found.unwrap_or_else(|| "none of this name".into());
    SessionError::Binding { what: format!("weight {what} {name}"), expected, found }
}

fn no_others<'n>(
    what: &str,
    mut names: impl Iterator<Item = &'n String>,
    declared: &BTreeSet<&str>,
) -> Result<(), SessionError> {
    let Some(name) = names.find(|name| !declared.contains(&***name)) else { return Ok(()) };
    let declared: Vec<&str> = declared.iter().copied().collect();
    let expected = format!("one of {}", declared.join(", "));
    Err(mismatch(what, name, expected, Some("a name that the graph does not declare".into())))
}
