//! Sources of weight matrices. A backend reads a block of rows at a time, so the canonical matrix need not be
//! in memory as a whole next to the prepared one.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::thread;

use super::BackendError;
use crate::headroom;
use crate::quant::{MatrixForm, WeightMatrix};

/// Maximum number of threads that read a whole matrix; more would be limited by memory bandwidth.
const THREADS_MAX: usize = 8;

/// A readable weight matrix, the input of [`Backend::prepare`](super::Backend::prepare).
pub trait MatrixSource: Sync {
    /// Error of reading rows or of preparing the matrix.
    type Error: From<BackendError> + Send;

    /// Output features.
    fn rows(&self) -> usize;

    /// Input features.
    fn cols(&self) -> usize;

    /// Storage form of the canonical values.
    fn form(&self) -> MatrixForm;

    /// Overwrites `into` with the canonical matrix of some rows, reusing its memory if that is large enough.
    /// A backend reads each row once, from several threads, each in ascending order.
    ///
    /// # Errors
    /// The source's error for these rows.
    fn read(&self, rows: Range<usize>, into: &mut WeightMatrix) -> Result<(), Self::Error>;

    /// The canonical matrix of all rows, read on several threads.
    ///
    /// # Errors
    /// The source's error for any of the rows.
    fn whole(&self) -> Result<Cow<'_, WeightMatrix>, Self::Error> {
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS_MAX);
        let rows_each = self.rows().div_ceil(threads).max(1);
        let starts = || (0..self.rows()).step_by(rows_each);
        let part = |start: usize| {
            let mut part = WeightMatrix::default();
            self.read(start..self.rows().min(start + rows_each), &mut part).map(|()| part)
        };
        let mut whole = WeightMatrix::default();
        whole.reshape(self.form(), [self.rows(), self.cols()]).map_err(|error| no_shape(&error))?;
        thread::scope(|scope| {
            let read = |start| headroom::spawn_scoped(scope, move || part(start));
            let readers: Vec<_> = starts().map(read).collect();
            for (start, reader) in starts().zip(readers) {
                // A part without a thread (it could not be started) is read here.
                let part = match reader {
                    Ok(reader) => reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?,
                    Err(_) => part(start)?,
                };
                whole.copy_rows(start, &part, 0..part.rows());
            }
            Ok(Cow::Owned(whole))
        })
    }
}

fn no_shape(error: &dyn std::error::Error) -> BackendError {
    super::shape_error("prepare", "a matrix".into(), error.to_string())
}

/// A matrix in memory.
impl MatrixSource for WeightMatrix {
    type Error = BackendError;

    fn rows(&self) -> usize {
        self.rows()
    }

    fn cols(&self) -> usize {
        self.cols()
    }

    fn form(&self) -> MatrixForm {
        self.form()
    }

    fn read(&self, rows: Range<usize>, into: &mut WeightMatrix) -> Result<(), BackendError> {
        into.reshape(self.form(), [rows.len(), self.cols()]).map_err(|error| no_shape(&error))?;
        into.copy_rows(0, self, rows);
        Ok(())
    }

    fn whole(&self) -> Result<Cow<'_, WeightMatrix>, BackendError> {
        Ok(Cow::Borrowed(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{DenseMatrix, DenseValues, QuantError};

    /// Rows of a matrix in memory, with at most one bad row.
    struct Rows {
        matrix: WeightMatrix,
        bad: Option<usize>,
    }

    #[derive(Debug, PartialEq)]
    enum Failure {
        Backend(BackendError),
        Rows(QuantError),
    }

    impl From<BackendError> for Failure {
        fn from(error: BackendError) -> Failure {
            Failure::Backend(error)
        }
    }

    fn bad(row: usize) -> Failure {
        Failure::Rows(QuantError::NonFinite { row, col: 0, value: f32::INFINITY })
    }

    impl MatrixSource for Rows {
        type Error = Failure;

        fn rows(&self) -> usize {
            self.matrix.rows()
        }

        fn cols(&self) -> usize {
            self.matrix.cols()
        }

        fn form(&self) -> MatrixForm {
            self.matrix.form()
        }

        fn read(&self, rows: Range<usize>, into: &mut WeightMatrix) -> Result<(), Failure> {
            match self.bad.filter(|row| rows.contains(row)) {
                Some(row) => Err(bad(row)),
                None => Ok(MatrixSource::read(&self.matrix, rows, into)?),
            }
        }
    }

    #[test]
    fn a_whole_matrix_is_put_together_from_its_parts() {
        for rows in [1, 2, 7, 8, 9, 100] {
            let values = DenseValues::F32((0..rows * 3).map(|i| i as f32).collect());
            let matrix = WeightMatrix::Dense(DenseMatrix::new(rows, 3, values).unwrap());
            let source = Rows { matrix: matrix.clone(), bad: None };
            assert_eq!(*source.whole().unwrap(), matrix, "{rows} rows");
            let source = Rows { matrix, bad: Some(rows - 1) };
            assert_eq!(source.whole().unwrap_err(), bad(rows - 1));
        }
    }
}
