//! The [`Operation`] trait: everything about an operation except its kernels.

use std::fmt;

use super::{Access, Counting, MatrixId, OpKind, Place, Rows, VectorId, Work};

/// Operands that are invalid for every step and every set of weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}: expected {expected}, found {found}")]
pub struct InvalidOp {
    /// The operation.
    pub op: &'static str,
    /// The expected operands.
    pub expected: String,
    /// The operands found.
    pub found: String,
}

/// Names of weights, for listings.
pub trait Names {
    /// Name of a matrix.
    fn matrix(&self, id: MatrixId) -> &str;
    /// Name of a vector.
    fn vector(&self, id: VectorId) -> &str;
}

/// Description of an operation: name, operands, checks, cost and listing.
pub trait Operation {
    /// Name in profiles, listings and errors.
    const NAME: &'static str;
    /// Category in profiles.
    const KIND: OpKind;

    /// Calls `visit` for every place, sources before destinations.
    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place));

    /// Checks the operands, independent of step and weights.
    ///
    /// # Errors
    /// [`InvalidOp`].
    fn check(&self) -> Result<(), InvalidOp> {
        Ok(())
    }

    /// Row axis over which the operation mixes rows: each result row then depends on other rows of the same
    /// step. Dependencies through KV pages and states are not included.
    fn mixes(&self) -> Option<Rows> {
        None
    }

    /// Minimum work of one run.
    fn work(&self, counting: &Counting<'_>) -> Work {
        let _ = counting;
        Work::default()
    }

    /// Writes the operation's line of a listing, after the name.
    ///
    /// # Errors
    /// Errors of the formatter.
    fn write(&self, f: &mut fmt::Formatter<'_>, names: &dyn Names) -> fmt::Result;

    /// An [`InvalidOp`] of this operation.
    ///
    /// # Errors
    /// Always.
    fn invalid<T>(expected: impl Into<String>, found: impl Into<String>) -> Result<T, InvalidOp> {
        Err(InvalidOp { op: Self::NAME, expected: expected.into(), found: found.into() })
    }
}
