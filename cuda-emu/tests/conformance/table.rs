//! All rows, by family.

#[path = "bits.rs"]
mod bits;
#[path = "compare.rs"]
mod compare;
#[path = "float.rs"]
mod float;
#[path = "integer.rs"]
mod integer;

use super::row::Row;

pub fn rows() -> Vec<Row> {
    [integer::rows(), bits::rows(), compare::rows(), float::rows()].into_iter().flatten().collect()
}
