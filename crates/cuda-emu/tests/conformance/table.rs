//! All rows, by family.

#[path = "atomic.rs"]
mod atomic;
#[path = "bits.rs"]
mod bits;
#[path = "collective.rs"]
mod collective;
#[path = "compare.rs"]
mod compare;
#[path = "convert.rs"]
mod convert;
#[path = "copy.rs"]
mod copy;
#[path = "float.rs"]
mod float;
#[path = "flow.rs"]
mod flow;
#[path = "half.rs"]
mod half;
#[path = "integer.rs"]
mod integer;
#[path = "matrix.rs"]
mod matrix;
#[path = "memory.rs"]
mod memory;
#[path = "special.rs"]
mod special;
#[path = "tensor.rs"]
mod tensor;
#[path = "wgmma.rs"]
mod wgmma;

use std::sync::LazyLock;

use super::row::Row;

/// The table, made once.
pub fn rows() -> &'static [Row] {
    static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
        let families = [
            atomic::rows,
            bits::rows,
            collective::rows,
            compare::rows,
            convert::rows,
            copy::rows,
            float::rows,
            flow::rows,
            half::rows,
            integer::rows,
            matrix::rows,
            memory::rows,
            special::rows,
            tensor::rows,
            wgmma::rows,
        ];
        families.into_iter().flat_map(|rows| rows()).collect()
    });
    &ROWS
}
