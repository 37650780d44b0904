//! The rows of a value for kernels: an address and two sizes.

use super::params::Address;

/// A value's rows: `rows` times `cols` f32, row-major.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) address: Address,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Rows {
    pub(super) fn elements(&self) -> usize {
        self.rows * self.cols
    }

    /// Whether two values share memory.
    pub(super) fn overlaps(&self, other: &Rows) -> bool {
        let end = |rows: &Rows| rows.address + 4 * rows.elements() as u64;
        self.address < end(other) && other.address < end(self)
    }
}
