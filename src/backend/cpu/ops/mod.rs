//! The small operations: all but products and attention.

pub(crate) mod append;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod row_attention;
pub(crate) mod rows;
