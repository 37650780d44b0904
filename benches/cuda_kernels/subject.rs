//! An operation over copies of its operands: what it reads, and that it agrees with the reference.

use std::ops::RangeInclusive;

use ottava::backend::{Backend, Reference, Weights};
use ottava::ir::{KvDtype, KvLayout, MatrixId, Op, Place, Precision, StepInput};
use ottava::quant::{QuantMatrix, WeightMatrix};

use super::cost::Launches;
use super::report::Report;
use super::selection::Case;
use super::support::machine::{Layout, Machine, Room};
use super::support::random::Random;
use super::{copies, profiles, repeats};

/// A copy's operands.
pub struct Operands {
    /// `[tokens, sources]`
    pub sources: Vec<Place>,
    /// `[tokens, dst]`
    pub dst: Place,
    /// In the order of [`Subject::matrices`].
    pub matrices: Vec<MatrixId>,
}

/// An operation at a shape, a sequence for each of its tokens.
pub struct Subject<'s> {
    pub step: StepInput,
    /// Columns of the values that it reads.
    pub sources: Vec<usize>,
    /// Columns of its result.
    pub dst: usize,
    pub matrices: &'s [QuantMatrix],
    /// Vectors of all copies.
    pub vectors: &'s [Vec<f32>],
    pub op: &'s dyn Fn(&Operands) -> Op,
    /// First rows that are held against the reference, and what elements may be off: so much, and so great
    /// a part of themselves.
    pub rows: usize,
    pub tolerance: f32,
    /// As of [`super::cost::Measured::assert_counts`].
    pub beside: usize,
    pub tensor_macs: RangeInclusive<usize>,
}

/// Makes so many copies of a matrix.
pub type Prepare<'p, B> = &'p dyn Fn(&B, &QuantMatrix, usize) -> Vec<<B as Backend>::Matrix>;

impl Subject<'_> {
    /// Asserts the answer, then measures and tells.
    pub fn measure(&self, report: &mut Report, case: &Case) {
        let read: usize = self.sources.iter().sum();
        let values = size_of::<f32>() * self.step.tokens.len() * (read + self.dst);
        let repeats = repeats(values + self.matrices.iter().map(QuantMatrix::bytes).sum::<usize>());
        let turns: Vec<usize> = (0..repeats.launches).map(|launch| launch % repeats.copies).collect();
        let (mut machine, ops, dst) = self.machine(report.cuda(), self.step.clone(), &turns, &copies);
        machine.execute(&ops[..1]);
        self.assert_agrees(&machine.read(&dst));
        if profiles() {
            return report.profiled(case);
        }
        let size = |_| self.matrices.first().map_or([0, 0], |matrix| [matrix.rows(), matrix.cols()]);
        let measured = report.time(&mut machine, &Launches { ops: &ops, each: 1, matrix: &size });
        measured.assert_counts(self.beside, self.tensor_macs.clone());
        report.row(case, &measured);
    }

    /// Holds the first rows of a result against the reference.
    fn assert_agrees(&self, found: &[f32]) {
        let mut step = self.step.clone();
        step.tokens.truncate(self.rows);
        step.positions.truncate(self.rows);
        step.sequences.truncate(self.rows);
        step.outputs.truncate(self.rows);
        step.sampling.truncate(self.rows);
        let prepare = |reference: &Reference, matrix: &QuantMatrix, _| {
            vec![reference.prepare(&WeightMatrix::Quant(matrix.clone())).expect("memory for a matrix")]
        };
        let (mut machine, ops, dst) = self.machine(Reference, step, &[0], &prepare);
        machine.execute(&ops);
        for (at, (&found, expected)) in found.iter().zip(machine.read(&dst)).enumerate() {
            let (row, col, error) = (at / self.dst, at % self.dst, (found - expected).abs());
            let near = error <= self.tolerance * (1.0 + expected.abs());
            assert!(near, "{found} for {expected} at [{row}, {col}]");
        }
    }

    /// An operation for each of `turns`, which says whose copy's turn it is, and the first one's result.
    fn machine<B: Backend>(
        &self,
        backend: B,
        step: StepInput,
        turns: &[usize],
        prepare: Prepare<'_, B>,
    ) -> (Machine<B>, Vec<Op>, Place) {
        let copies = turns.iter().max().map_or(0, |last| last + 1);
        let upload = |values: &Vec<f32>| backend.upload_vector(values).expect("memory for a vector");
        let weights = Weights {
            matrices: self.matrices.iter().flat_map(|matrix| prepare(&backend, matrix, copies)).collect(),
            vectors: self.vectors.iter().map(upload).collect(),
        };
        let element_bytes = backend.element_bytes(Precision::F32);
        let mut layout = Layout { element_bytes, ..Layout::new(step.tokens.len()) };
        let operands = |copy: usize| Operands {
            sources: self.sources.iter().map(|&cols| layout.place(cols)).collect(),
            dst: layout.place(self.dst),
            matrices: (0..self.matrices.len()).map(|i| MatrixId((i * copies + copy) as u32)).collect(),
        };
        let operands: Vec<Operands> = (0..copies).map(operands).collect();
        let ops: Vec<Op> = turns.iter().map(|&copy| (self.op)(&operands[copy])).collect();
        // The operation needs no keys and values; a frame does.
        let kv = KvLayout { layers: 1, kv_heads: 1, head_dim: 32, dtype: KvDtype::F16 };
        let room = Room { layout, kv, pages: 1, ops: &ops[..1] };
        let tokens = step.tokens.len();
        let mut machine = Machine::new(backend, weights, step, room);
        for (index, &cols) in self.sources.iter().enumerate() {
            // A row's values are the same in however many rows.
            let values = Random(3 + index as u64).values(tokens * cols);
            operands.iter().for_each(|copy| machine.write(&copy.sources[index], &values));
        }
        let dst = operands[turns[0]].dst;
        machine.write(&dst, &vec![f32::NAN; tokens * self.dst]);
        (machine, ops, dst)
    }
}
