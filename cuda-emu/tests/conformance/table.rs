//! All rows, by family.

#[path = "bits.rs"]
mod bits;
#[path = "compare.rs"]
mod compare;
#[path = "convert.rs"]
mod convert;
#[path = "float.rs"]
mod float;
#[path = "half.rs"]
mod half;
#[path = "integer.rs"]
mod integer;

#[path = "memory.rs"]
mod memory;

use super::row::Row;

pub fn rows() -> Vec<Row> {
    [
        integer::rows(),
        bits::rows(),
        compare::rows(),
        float::rows(),
        half::rows(),
        convert::rows(),
        memory::rows(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
