//! The mean of a sequence's rows: what makes an embedding of a text of those of its tokens.

use std::fmt;
use std::ops::Range;

use crate::ir::listing::Listed;
use crate::ir::{Misfit, Names, OpKind, Operation, Place, Role, Rows, StepInput};

/// `dst[i]` is the mean of the rows of `src` that the sequence of output `i` has in this step; 0 where it has none.
///
/// Of tokens those are the sequence's own, however many of its rows are outputs; of another axis those that belong to
/// it. Fixed rows are one sequence, and `dst` is one fixed row. Rows of earlier steps do not count: a text whose
/// embedding is wanted goes into one step.
#[derive(Clone, Debug, PartialEq)]
pub struct MeanRows {
    /// `[outputs, cols]`, or `[1, cols]` of fixed rows
    pub dst: Place,
    /// `[rows, cols]`
    pub src: Place,
}

impl MeanRows {
    /// The rows of the result where it is of these; none for outputs, which have no sequence of rows.
    pub fn pooled(rows: Rows) -> Option<Rows> {
        match rows {
            Rows::Tokens | Rows::Axis(_) => Some(Rows::Outputs),
            Rows::Fixed(_) => Some(Rows::Fixed(1)),
            Rows::Outputs => None,
        }
    }

    /// The rows of `src` behind each row of `dst`.
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

    fn visit(&mut self, visit: &mut dyn FnMut(Role, &mut Place)) {
        visit(Role::Read, &mut self.src);
        visit(Role::Write, &mut self.dst);
    }

    fn check(&self) -> Result<(), Misfit> {
        let Some(rows) = Self::pooled(self.src.rows) else {
            return Self::misfit("rows of sequences", Listed(self.src).to_string());
        };
        if (self.dst.rows, self.dst.cols) == (rows, self.src.cols) {
            return Ok(());
        }
        Self::misfit(Listed(Place { rows, ..self.src }).to_string(), Listed(self.dst).to_string())
    }

    fn mixes(&self) -> Option<Rows> {
        Some(self.src.rows)
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        writeln!(f, "{} = mean of sequences of {}", Listed(self.dst), Listed(self.src))
    }
}
