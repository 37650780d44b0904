//! The rows of a value for kernels: a pointer and two sizes.

/// A value's rows, for kernels: `rows` times `cols` f32, row-major.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) ptr: *mut f32,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

// SAFETY: a pointer into the arena; code that dereferences it must state why no other thread writes there.
unsafe impl Send for Rows {}
// SAFETY: as above.
unsafe impl Sync for Rows {}

impl Rows {
    /// Pointer to row `row`.
    ///
    /// # Safety
    /// `row` is below `rows`.
    #[inline(always)]
    pub(crate) unsafe fn row(&self, row: usize) -> *mut f32 {
        // SAFETY: within the value by contract.
        unsafe { self.ptr.add(row * self.cols) }
    }

    /// Whether two values share memory.
    pub(crate) fn overlaps(&self, other: &Rows) -> bool {
        let end = |rows: &Rows| rows.ptr.wrapping_add(rows.rows * rows.cols);
        self.ptr < end(other) && other.ptr < end(self)
    }
}
