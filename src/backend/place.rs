//! Byte ranges of values in an arena, and the shape errors that all backends share.

use std::ops::Range;

use super::BackendError;
use crate::ir::{InvalidOp, Place, Rows};

/// The error for inconsistent operands.
pub(super) fn shape_error(op: &'static str, expected: String, found: String) -> BackendError {
    BackendError::Shape { op, expected, found }
}

/// The error for operands that share memory.
pub(super) fn overlap_error(op: &'static str, places: impl std::fmt::Debug) -> BackendError {
    shape_error(op, "operands that do not overlap".into(), format!("{places:?}"))
}

impl Place {
    /// Byte range of the first `rows` rows, in an arena of `arena_bytes` with elements of `element_bytes`.
    pub(super) fn range(
        &self,
        op: &'static str,
        rows: usize,
        element_bytes: usize,
        arena_bytes: usize,
    ) -> Result<Range<usize>, BackendError> {
        let fixed = match self.rows {
            Rows::Fixed(n) => rows <= n,
            Rows::Axis(axis) => rows <= axis.max,
            Rows::Tokens | Rows::Outputs => true,
        };
        let bytes = rows.checked_mul(self.cols).and_then(|elements| elements.checked_mul(element_bytes));
        match bytes.and_then(|bytes| bytes.checked_add(self.offset)) {
            Some(end) if end <= arena_bytes && fixed && self.offset.is_multiple_of(64) => {
                Ok(self.offset..end)
            }
            _ => {
                let expected = format!("a value within the arena of {arena_bytes} bytes");
                Err(shape_error(op, expected, format!("{rows} rows at {self:?}")))
            }
        }
    }

    /// Number of rows that make up `elements` elements.
    pub(super) fn whole_rows(&self, op: &'static str, elements: usize) -> Result<usize, BackendError> {
        if self.cols != 0 && elements.is_multiple_of(self.cols) {
            return Ok(elements / self.cols);
        }
        Err(shape_error(op, format!("whole rows of {}", self.cols), format!("{elements} elements")))
    }
}

impl From<InvalidOp> for BackendError {
    fn from(InvalidOp { op, expected, found }: InvalidOp) -> BackendError {
        shape_error(op, expected, found)
    }
}
