//! Formatting of places in plan listings.

use std::fmt;

use super::{Place, Precision, Rows, WriteMode};

/// Displays a place as `@offset [rows, cols] precision`.
pub(crate) struct Listed(pub Place);

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { offset, rows, cols, precision } = self.0;
        let precision = match precision {
            Precision::F32 => "f32",
            Precision::F16 => "f16",
            Precision::Bf16 => "bf16",
        };
        match rows {
            Rows::Tokens => write!(f, "@{offset} [tokens, {cols}] {precision}"),
            Rows::Outputs => write!(f, "@{offset} [outputs, {cols}] {precision}"),
            Rows::Axis(axis) => write!(f, "@{offset} [axis {}, {cols}] {precision}", axis.id),
            Rows::Fixed(rows) => write!(f, "@{offset} [{rows}, {cols}] {precision}"),
        }
    }
}

pub(super) fn sign(write: WriteMode) -> &'static str {
    match write {
        WriteMode::Store => "=",
        WriteMode::Add => "+=",
    }
}
