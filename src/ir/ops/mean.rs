//! Mean pooling over the rows of a sequence, for text embeddings.

use std::fmt;
use std::ops::Range;

use crate::ir::listing::Listed;
use crate::ir::{Access, InvalidOp, Names, OpKind, Operation, Place, Rows, StepInput};

/// `dst[i]` is the mean over the rows of `src` in the sequence of output `i`, in this step; 0 for an empty
/// sequence.
///
/// For tokens these are all rows of the sequence, also if several of them are outputs; for another axis the
/// rows that belong to the sequence. Fixed rows count as one sequence, and `dst` is one fixed row. Rows of
/// earlier steps are not included: a text must be embedded in a single step.
#[derive(Clone, Debug, PartialEq)]
pub struct MeanRows {
    /// `[outputs, cols]`, or `[1, cols]` for fixed rows.
    pub dst: Place,
    /// `[rows, cols]`
    pub src: Place,
}

impl MeanRows {
    /// Rows of the result for a source with `rows`; `None` for outputs, which form no sequences.
    pub fn pooled(rows: Rows) -> Option<Rows> {
        match rows {
            Rows::Tokens | Rows::Axis(_) => Some(Rows::Outputs),
            Rows::Fixed(_) => Some(Rows::Fixed(1)),
            Rows::Outputs => None,
        }
    }

    /// Source rows of each row of `dst`.
    pub fn groups<'s>(&self, step: &'s StepInput) -> impl Iterator<Item = Range<usize>> + use<'s> {
        let rows = self.src.rows;
        let sequence_of = |row: &u32| step.sequences.iter().position(|sequence| sequence.rows.contains(row));
        let outputs: &[u32] = if self.dst.rows == Rows::Outputs { &step.outputs } else { &[] };
        let whole = (self.dst.rows != Rows::Outputs).then_some(Some(0));
        let sequences = outputs.iter().map(sequence_of).chain(whole);
        sequences.map(move |index| index.and_then(|index| rows.groups(step).nth(index)).unwrap_or(0..0))
    }
}

impl Operation for MeanRows {
    const NAME: &'static str = "mean_rows";
    const KIND: OpKind = OpKind::Rest;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.src);
        visit(Access::Write, &mut self.dst);
    }

    fn check(&self) -> Result<(), InvalidOp> {
        let Some(rows) = Self::pooled(self.src.rows) else {
            return Self::invalid("rows of sequences", Listed(self.src).to_string());
        };
        if (self.dst.rows, self.dst.cols) == (rows, self.src.cols) {
            return Ok(());
        }
        Self::invalid(Listed(Place { rows, ..self.src }).to_string(), Listed(self.dst).to_string())
    }

    fn mixes(&self) -> Option<Rows> {
        Some(self.src.rows)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        writeln!(f, "{} = mean of sequences of {}", Listed(self.dst), Listed(self.src))
    }
}
