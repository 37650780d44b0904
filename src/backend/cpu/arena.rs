//! The arena: one buffer for all intermediate values, and scratch memory for operations. Every access is
//! checked against the buffer; kernels get [`Rows`].

use crate::backend::cpu::attention::partials;
use crate::backend::cpu::matmul::panel::PanelArgs;
use crate::backend::cpu::memory::{Buffer, Rows};
use crate::backend::cpu::pack::{Activations, FloatGroup, INT8_BYTES, groups};
use crate::backend::{ArenaMemory, BackendError, overlap_error};
use crate::ir::{Op, Place, StepInput, StepLimits};

/// Values are f32.
const ELEMENT_BYTES: usize = 4;
/// Minimum step size for huge pages; a smaller step touches little of each value.
const TOKENS_FOR_HUGE_PAGES: usize = 64;

/// Intermediate values and scratch of one plan.
#[derive(Debug)]
pub struct Arena {
    values: Buffer,
    /// Whether huge pages have been requested.
    huge_pages: bool,
    /// Packed activations of the running operation.
    pub(crate) activations: Activations,
    /// Products of the running operation; the capacity suffices for every operation of the plan.
    pub(crate) products: Vec<PanelArgs>,
    /// Partial results of the running attention, if its tiles are split.
    pub(crate) partials: Buffer,
}

impl Arena {
    pub(crate) fn new(bytes: usize, ops: &[Op], limits: StepLimits) -> Result<Arena, BackendError> {
        let (mut group_count, mut products) = (0usize, 0);
        for op in ops {
            if let Op::Matmul(matmul) = op {
                let rows = matmul.src.rows.max(limits);
                group_count = group_count.max(rows.saturating_mul(groups(matmul.src.cols)));
                products = products.max(3 * matmul.products.len());
            } else if let Op::ExpertMatmul(experts) = op {
                // Expert products pack one row at a time.
                group_count = group_count.max(groups(experts.src.cols));
                products = products.max(experts.top_k());
            }
        }
        let bytes_of = |size: usize| group_count.saturating_mul(size);
        Ok(Arena {
            values: Buffer::aligned(bytes, "intermediate values")?,
            huge_pages: false,
            activations: Activations {
                int8: Buffer::aligned(bytes_of(INT8_BYTES), "quantised activations")?,
                float: Buffer::aligned(bytes_of(size_of::<FloatGroup>()), "packed activations")?,
            },
            products: Vec::with_capacity(products),
            partials: partials(ops.iter().any(|op| matches!(op, Op::Attention(_))))?,
        })
    }

    /// Must be called once per step, before its first value is written.
    pub(crate) fn begin_step(&mut self, tokens: usize) {
        if tokens >= TOKENS_FOR_HUGE_PAGES && !self.huge_pages {
            self.huge_pages = true;
            let Activations { int8, float } = &self.activations;
            [&self.values, int8, float].into_iter().for_each(Buffer::advise_huge_pages);
        }
    }

    /// The rows of `place` in this step.
    pub(crate) fn rows(
        &mut self,
        op: &'static str,
        place: &Place,
        step: &StepInput,
    ) -> Result<Rows, BackendError> {
        self.first_rows(op, place, place.rows.count(step))
    }

    /// The first `count` rows of `place`.
    pub(crate) fn first_rows(
        &mut self,
        op: &'static str,
        place: &Place,
        count: usize,
    ) -> Result<Rows, BackendError> {
        let range = place.range(op, count, ELEMENT_BYTES, self.values.bytes())?;
        let ptr = self.values.as_mut_ptr().wrapping_add(range.start).cast();
        Ok(Rows { ptr, rows: count, cols: place.cols })
    }

    /// The values of several places at once, which must not overlap.
    pub(crate) fn slices<const N: usize>(
        &mut self,
        op: &'static str,
        places: [(&Place, usize); N],
    ) -> Result<[&mut [f32]; N], BackendError> {
        let mut ranges = [const { 0..0 }; N];
        for (range, (place, rows)) in ranges.iter_mut().zip(places) {
            let bytes = place.range(op, rows, ELEMENT_BYTES, self.values.bytes())?;
            *range = bytes.start / ELEMENT_BYTES..bytes.end / ELEMENT_BYTES;
        }
        let values = self.values.elements_mut::<f32>();
        values.get_disjoint_mut(ranges).map_err(|_| overlap_error(op, places.map(|(place, _)| *place)))
    }

    /// Rows of a place, read-only.
    pub(crate) fn slice(
        &self,
        op: &'static str,
        place: &Place,
        first_row: usize,
        rows: usize,
    ) -> Result<&[f32], BackendError> {
        let rows_end = first_row.saturating_add(rows);
        let end = place.range(op, rows_end, ELEMENT_BYTES, self.values.bytes())?.end / ELEMENT_BYTES;
        Ok(&self.values.elements()[end - rows * place.cols..end])
    }
}

impl ArenaMemory for Arena {
    fn write(&mut self, place: &Place, values: &[f32]) -> Result<(), BackendError> {
        let rows = place.whole_rows("write", values.len())?;
        let [out] = self.slices("write", [(place, rows)])?;
        out.copy_from_slice(values);
        Ok(())
    }

    fn read(&self, place: &Place, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        let rows = place.whole_rows("read", out.len())?;
        out.copy_from_slice(self.slice("read", place, first_row, rows)?);
        Ok(())
    }
}
