//! [`Operation`]: all that the crate needs to know of an operation beside its kernels.

use std::fmt;

use super::{Counting, MatrixId, OpKind, Place, Role, Rows, VectorId, Work};

/// Operands that cannot be, whatever the step and the weights are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}: expected {expected}, found {found}")]
pub struct Misfit {
    /// The operation.
    pub op: &'static str,
    /// What its contract asks for.
    pub expected: String,
    /// What it has.
    pub found: String,
}

/// The names of weights, for listings.
pub trait Names {
    /// The matrix of this number.
    fn matrix(&self, id: MatrixId) -> &str;
    /// The vector of this number.
    fn vector(&self, id: VectorId) -> &str;
}

/// All that is known of an operation beside its kernels.
pub trait Operation {
    /// As profiles, listings and errors print it.
    const NAME: &'static str;
    /// How profiles group it.
    const KIND: OpKind;

    /// Calls `visit` with every place: sources before destinations.
    fn visit(&mut self, visit: &mut dyn FnMut(Role, &mut Place));

    /// Checks what depends on neither the step nor the weights.
    ///
    /// # Errors
    /// [`Misfit`].
    fn check(&self) -> Result<(), Misfit> {
        Ok(())
    }

    /// Which rows it mixes, if any: a row of the result then depends on other rows of the step than its own. What a
    /// sequence keeps, its pages and its state, does not count.
    fn mixes(&self) -> Option<Rows> {
        None
    }

    /// The least that one run has to do.
    fn work(&self, counting: &Counting<'_>) -> Work {
        let _ = counting;
        Work::default()
    }

    /// Writes its line of a listing, behind the name.
    ///
    /// # Errors
    /// The formatter's.
    fn write(&self, f: &mut fmt::Formatter<'_>, names: &dyn Names) -> fmt::Result;

    /// A [`Misfit`] of this operation.
    ///
    /// # Errors
    /// Always.
    fn misfit<T>(expected: impl Into<String>, found: impl Into<String>) -> Result<T, Misfit> {
        Err(Misfit { op: Self::NAME, expected: expected.into(), found: found.into() })
    }
}
