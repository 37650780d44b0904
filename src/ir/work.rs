//! What operations have to do at least, and the time that they took: the two sides of a roofline.
//!
//! Counted are bytes that must come from memory or go there once a step: the weights of matrices, and the
//! keys and values that rows see or append. Not counted are values in the arena, which stay in the cache,
//! nor vectors, nor tables that a backend keeps of its own. Multiply-adds are those of matrix products and
//! attention, each once, in however many terms a backend computes it.

use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::time::Duration;

use super::{KvDtype, MatrixId, StepInput};

/// What operations do, as profiles group them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// Matrix products, with the norms and activations that are part of them.
    Matmul,
    /// Attention, and the recurrences that some layers have in its stead.
    Attention,
    /// Norms, rotation, and appending to the pages, which does both for heads.
    Norms,
    /// Sampling, where it is an operation.
    Sampling,
    /// Embedding and what is elementwise.
    Rest,
}

impl OpKind {
    /// All of them, by their value as a number.
    pub const ALL: [OpKind; 5] =
        [OpKind::Matmul, OpKind::Attention, OpKind::Norms, OpKind::Sampling, OpKind::Rest];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Matmul => "matmul",
            OpKind::Attention => "attention",
            OpKind::Norms => "norms",
            OpKind::Sampling => "sampling",
            OpKind::Rest => "rest",
        }
    }
}

/// The least that has to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes read or written.
    pub bytes: u64,
    /// Multiply-adds with int8 activations ([`crate::backend::PreparedMatrix::multiplies_int8`]).
    pub int8_macs: u64,
    /// All other multiply-adds.
    pub float_macs: u64,
}

impl Work {
    /// Work that is all reading or writing.
    pub(super) fn of_bytes(bytes: usize) -> Work {
        Work { bytes: bytes as u64, ..Work::default() }
    }
}

impl Add for Work {
    type Output = Work;

    fn add(self, other: Work) -> Work {
        Work {
            bytes: self.bytes + other.bytes,
            int8_macs: self.int8_macs + other.int8_macs,
            float_macs: self.float_macs + other.float_macs,
        }
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Work>>(works: I) -> Work {
        works.fold(Work::default(), Add::add)
    }
}

/// Runs of operations: how long they took, for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTime {
    /// Runs counted.
    pub runs: u64,
    /// Their time together.
    pub total: Duration,
    /// Their work together.
    pub work: Work,
}

impl AddAssign for OpTime {
    fn add_assign(&mut self, other: OpTime) {
        self.runs += other.runs;
        self.total += other.total;
        self.work = self.work + other.work;
    }
}

/// Times by [`OpKind`], in the order of [`OpKind::ALL`].
pub type OpTimes = [OpTime; OpKind::ALL.len()];

/// A weight matrix as work is counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct MatrixSize {
    /// Its rows: results of a product.
    pub rows: usize,
    /// Its columns.
    pub cols: usize,
    /// As the backend keeps it.
    pub bytes: usize,
    /// Whether it is multiplied with int8 activations.
    pub int8: bool,
}

/// What work is counted from, beside the operation.
#[derive(Clone, Copy)]
pub struct Counting<'a> {
    /// The rows, and the pasts that they see.
    pub step: &'a StepInput,
    /// How keys and values are stored.
    pub kv: KvDtype,
    /// The matrices that operations name.
    pub matrix: &'a dyn Fn(MatrixId) -> MatrixSize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenId;
    use crate::ir::{
        Activation, Attention, Embed, Epilogue, Heads, KvAppend, Matmul, Op, PageId, PageRef, Place,
        Precision, Product, Rows, Softmax, StepSequence, Window, Write,
    };

    const HEADS: Heads = Heads { query: 6, kv: 2, dim: 8 };

    fn place(rows: Rows, cols: usize) -> Place {
        Place { offset: 0, rows, cols, precision: Precision::F32 }
    }

    /// Rows at 4 to 6, alone at 40, and from 0 to 1; logits of two rows are wanted.
    fn step(window: Option<Window>) -> StepInput {
        let page = |page, start| PageRef { page: PageId(page), start };
        StepInput {
            tokens: vec![TokenId(0); 6],
            positions: vec![4, 5, 6, 40, 0, 1],
            sequences: vec![
                StepSequence { rows: 0..3, pages: 0..1, window },
                StepSequence { rows: 3..4, pages: 1..4, window },
                StepSequence { rows: 4..6, pages: 4..5, window },
            ],
            pages: vec![page(0, 0), page(1, 0), page(2, 16), page(3, 32), page(4, 0)],
            outputs: vec![3, 5],
            ..StepInput::default()
        }
    }

    /// Matrix 0 in 4 bits, matrix 1 in 8, matrix 2 in f32.
    fn matrix(id: MatrixId) -> MatrixSize {
        match id.0 {
            0 => MatrixSize { rows: 10, cols: 32, bytes: 180, int8: true },
            1 => MatrixSize { rows: 10, cols: 32, bytes: 340, int8: true },
            _ => MatrixSize { rows: 50, cols: 32, bytes: 6400, int8: false },
        }
    }

    fn work(op: &Op, step: &StepInput) -> Work {
        op.work(&Counting { step, kv: KvDtype::F16, matrix: &matrix })
    }

    fn attention(window: Option<u32>) -> Op {
        let place = place(Rows::Tokens, 48);
        Op::Attention(Attention {
            dst: place,
            q: place,
            layer: 0,
            heads: HEADS,
            scale: 1.0,
            window,
            soft_cap: None,
        })
    }

    fn product(matrix: u32, epilogue: Epilogue) -> Product {
        Product { dst: place(Rows::Tokens, 10), matrix: MatrixId(matrix), bias: None, epilogue }
    }

    fn matmul(rows: Rows, products: Vec<Product>) -> Op {
        Op::Matmul(Matmul { src: place(rows, 32), norm: None, products })
    }

    #[test]
    fn matrices_come_from_memory_once_and_are_multiplied_with_every_row() {
        let store = Epilogue::Write(Write::Store);
        let several = matmul(Rows::Tokens, vec![product(0, store), product(1, store), product(2, store)]);
        let expected = Work { bytes: 180 + 340 + 6400, int8_macs: 6 * 2 * 320, float_macs: 6 * 1600 };
        assert_eq!(work(&several, &step(None)), expected);
        let gate = Epilogue::Gated { up: MatrixId(1), activation: Activation::Silu };
        let pair = matmul(Rows::Tokens, vec![product(0, gate)]);
        let expected = Work { bytes: 180 + 340, int8_macs: 6 * 2 * 320, float_macs: 0 };
        assert_eq!(work(&pair, &step(None)), expected);
        let head = matmul(Rows::Outputs, vec![product(2, store)]);
        assert_eq!(work(&head, &step(None)).float_macs, 2 * 1600, "two of six rows are outputs");
        let none = StepInput { outputs: Vec::new(), ..step(None) };
        assert_eq!(work(&head, &none), Work::default(), "who multiplies nothing reads nothing");
    }

    #[test]
    fn rows_see_their_own_pasts_and_share_them_within_a_sequence() {
        // Rows see 5, 6, 7, then 41, then 1, 2 keys; the sequences have 7, 41 and 2. Keys and values in f16:
        // 2 · 2 heads · 8 · 2 bytes.
        let float_macs = 2 * (5 + 6 + 7 + 41 + 1 + 2) * 48;
        let expected = Work { bytes: (7 + 41 + 2) * 64, int8_macs: 0, float_macs };
        assert_eq!(work(&attention(None), &step(None)), expected);
    }

    #[test]
    fn windows_and_sinks_bound_what_is_seen() {
        // The layer's: 4, 4, 4, then 4, then 1, 2 keys; together 1 to 6, then 4, then 2.
        let found = work(&attention(Some(4)), &step(None));
        assert_eq!((found.bytes, found.float_macs), ((6 + 4 + 2) * 64, 2 * (12 + 4 + 3) * 48));
        // The sequence's, 3 with 2 sinks: 2 + 3 each, then 2 + 3, then 1, 2; together 0, 1 and 2 to 6.
        let own = step(Some(Window { window: 3, sinks: 2 }));
        let found = work(&attention(None), &own);
        assert_eq!((found.bytes, found.float_macs), ((7 + 5 + 2) * 64, 2 * (15 + 5 + 3) * 48));
        // Both: sinks only where the layer still sees them, which from position 6 on it does not.
        let found = work(&attention(Some(5)), &own);
        assert_eq!((found.bytes, found.float_macs), ((7 + 3 + 2) * 64, 2 * (5 + 4 + 3 + 3 + 3) * 48));
    }

    #[test]
    fn tables_are_read_and_pages_written_by_the_row() {
        let embed = Op::Embed(Embed { dst: place(Rows::Tokens, 32), table: MatrixId(2), scale: 1.0 });
        assert_eq!(work(&embed, &step(None)).bytes, 6 * 128);
        let (q, k) = (place(Rows::Tokens, 48), place(Rows::Tokens, 16));
        let (norm, rope) = (None, None);
        let append = KvAppend { q, k, v: k, layer: 0, heads: HEADS, q_norm: norm, k_norm: norm, rope };
        assert_eq!(work(&Op::KvAppend(append), &step(None)), Work { bytes: 6 * 64, ..Work::default() });
        let softmax = Op::Softmax(Softmax { dst: q, src: q });
        assert_eq!(work(&softmax, &step(None)), Work::default());
    }

    #[test]
    fn kinds_are_numbered_in_their_order() {
        assert!(OpKind::ALL.iter().enumerate().all(|(index, &kind)| kind as usize == index));
    }
}
