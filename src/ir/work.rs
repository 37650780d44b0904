//! Minimum work and measured time of operations, for rooflines.
//!
//! Bytes are those that must be transferred from or to memory in each step: weight matrices, and the keys and
//! values that rows see or append. Values in the arena (which stay in the cache), vectors and a backend's
//! internal tables are not counted. Multiply-adds are those of matrix products and attention, each counted
//! once, even if a backend computes it in several terms.

use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::time::Duration;

use super::{KvDtype, MatrixId, StepInput};

/// Category of operations in profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// Matrix products, with their fused norms and activations.
    Matmul,
    /// Attention and recurrent layers.
    Attention,
    /// Norms, rotary embedding, and the KV append, which includes both for heads.
    Norms,
    /// Sampling on the backend.
    Sampling,
    /// Embedding and elementwise operations.
    Rest,
}

impl OpKind {
    /// All categories, ordered by discriminant.
    pub const ALL: [OpKind; 5] =
        [OpKind::Matmul, OpKind::Attention, OpKind::Norms, OpKind::Sampling, OpKind::Rest];

    /// Name in tables.
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

/// Minimum work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes read or written.
    pub bytes: u64,
    /// Multiply-adds with int8 activations ([`crate::backend::PreparedMatrix::multiplies_int8`]).
    pub int8_macs: u64,
    /// Other multiply-adds.
    pub float_macs: u64,
}

impl Work {
    /// Work that only transfers bytes.
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

/// Accumulated time and work of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTime {
    /// Number of runs.
    pub runs: u64,
    /// Total time.
    pub total: Duration,
    /// Total work.
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

/// Size of a weight matrix.
#[derive(Clone, Copy, Debug, Default)]
pub struct MatrixSize {
    /// Number of rows (output features).
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Bytes in the backend's format.
    pub bytes: usize,
    /// Whether it is multiplied with int8 activations.
    pub int8: bool,
}

/// Inputs of a work estimate.
#[derive(Clone, Copy)]
pub struct Counting<'a> {
    /// The step, with its rows and their pasts.
    pub step: &'a StepInput,
    /// Storage type of keys and values.
    pub kv: KvDtype,
    /// Sizes of the weight matrices.
    pub matrix: &'a dyn Fn(MatrixId) -> MatrixSize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenId;
    use crate::ir::{
        Activation, Attention, Embed, Epilogue, Heads, KvAppend, Matmul, Op, PageId, PageRef, Place,
        Precision, Product, Rows, Softmax, StepSequence, Window, WriteMode,
    };

    const HEADS: Heads = Heads { query: 6, kv: 2, dim: 8 };

    fn place(rows: Rows, cols: usize) -> Place {
        Place { offset: 0, rows, cols, precision: Precision::F32 }
    }

    /// Rows at positions 4 to 6, at 40, and at 0 to 1; two of them are outputs.
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

    /// Matrix 0 has 4 bits, matrix 1 has 8 bits, matrix 2 is f32.
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
        let store = Epilogue::Write(WriteMode::Store);
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
        // The rows see 5, 6, 7, then 41, then 1, 2 keys; the sequences have 7, 41 and 2 keys. Keys and values
        // in f16: 2 · 2 heads · 8 · 2 bytes.
        let float_macs = 2 * (5 + 6 + 7 + 41 + 1 + 2) * 48;
        let expected = Work { bytes: (7 + 41 + 2) * 64, int8_macs: 0, float_macs };
        assert_eq!(work(&attention(None), &step(None)), expected);
    }

    #[test]
    fn windows_and_sinks_bound_what_is_seen() {
        // Window of the layer: 4, 4, 4, then 4, then 1, 2 keys; together 1 to 6, then 4, then 2.
        let found = work(&attention(Some(4)), &step(None));
        assert_eq!((found.bytes, found.float_macs), ((6 + 4 + 2) * 64, 2 * (12 + 4 + 3) * 48));
        // Window of the sequence, 3 with 2 sinks: 2 + 3 each, then 2 + 3, then 1, 2; together 0, 1 and 2 to
        // 6.
        let own = step(Some(Window { window: 3, sinks: 2 }));
        let found = work(&attention(None), &own);
        assert_eq!((found.bytes, found.float_macs), ((7 + 5 + 2) * 64, 2 * (15 + 5 + 3) * 48));
        // Both windows: sinks count only inside the layer's window, which excludes them from position 6 on.
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
