//! What a launch has to move and to multiply, and what the emulated card counts of it.
//!
//! Weights, keys and values, and multiply-adds are those of `ottava::graph`. It leaves out the values
//! between operations, which a step finds in the cache; here they are operands like others, and count.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use cuda_emu::{Emulator, InstructionClass};
use ottava::backend::PreparedMatrix;
use ottava::backend::cuda::Cuda;
use ottava::ir::{Binary, Counting, Embed, GatherOutputs, MatrixSize, Normalize, SampleRows, Softmax, Unary};
use ottava::ir::{Epilogue, MatrixId, Op, Place, Rows, WriteMode};

use super::support::machine::Machine;

/// What a graph launches.
pub struct Launches<'o> {
    pub ops: &'o [Op],
    /// Operations that are one launch of what is measured: two where an attention appends its own keys, all
    /// of a layer.
    pub each: usize,
    /// Rows and columns of a matrix.
    pub matrix: &'o dyn Fn(MatrixId) -> [usize; 2],
}

/// Of one launch.
#[derive(Clone, Copy)]
pub struct Cost {
    /// Bytes read and bytes written.
    pub moved: usize,
    /// Bytes read or written: what is changed in place counts once.
    pub touched: usize,
    pub macs: usize,
}

impl Launches<'_> {
    pub fn count(&self) -> usize {
        self.ops.len() / self.each
    }

    pub fn cost(&self, machine: &Machine<Cuda>) -> Cost {
        let Machine { weights, step, kv_layout, .. } = machine;
        let matrix = |id: MatrixId| {
            let ([rows, cols], bytes) = ((self.matrix)(id), weights.matrices[id.0 as usize].bytes());
            MatrixSize { rows, cols, bytes, int8: false }
        };
        let counting = Counting { step, kv: kv_layout.dtype, matrix: &matrix };
        let bytes = |(place, times): &(Place, usize)| {
            let once = size_of::<f32>() * place.rows.count(step) * place.cols;
            (once * times, once)
        };
        let sum = |(a, b), (c, d)| (a + c, b + d);
        let mut cost = Cost { moved: 0, touched: 0, macs: 0 };
        for kernel in kernels(&self.ops[..self.each]) {
            // The key that an attention appends itself is among those that it sees.
            let work = kernel.last().expect("an operation").work(&counting);
            let (moved, touched) = values(kernel).iter().map(bytes).fold((0, 0), sum);
            cost.moved += work.bytes as usize + moved;
            cost.touched += work.bytes as usize + touched;
            cost.macs += work.float_macs as usize;
        }
        cost
    }
}

/// Operations by kernel: an append and its attention are one.
fn kernels(launch: &[Op]) -> impl Iterator<Item = &[Op]> {
    launch.chunk_by(|a, b| matches!((a, b), (Op::KvAppend(_), Op::Attention(_))))
}

/// The values that a kernel reads or writes, and whether it does one or both.
fn values(kernel: &[Op]) -> Vec<(Place, usize)> {
    let (one, both) = (1, 2);
    match kernel {
        [Op::KvAppend(append), Op::Attention(attention)] => {
            let angles = append.rope.map(|rope| rope.angles);
            let read = [append.q, append.k, append.v].into_iter().chain(angles);
            read.chain([attention.dst]).map(|place| (place, one)).collect()
        }
        [Op::KvAppend(op)] => {
            let angles = op.rope.map(|rope| (rope.angles, one));
            [(op.q, both), (op.k, one), (op.v, one)].into_iter().chain(angles).collect()
        }
        [Op::Matmul(op)] => {
            let result = |product: &ottava::ir::Product| match product.epilogue {
                Epilogue::Write(WriteMode::Add) => (product.dst, both),
                _ => (product.dst, one),
            };
            op.products.iter().map(result).chain([(op.src, one)]).collect()
        }
        [Op::Attention(op)] => vec![(op.q, one), (op.dst, one)],
        [Op::Embed(Embed { dst, .. })] => vec![(*dst, one)],
        [Op::RopeAngles(op)] => vec![(op.dst, one)],
        [Op::GatherOutputs(GatherOutputs { dst, src })] => {
            vec![(*dst, one), (Place { rows: Rows::Outputs, ..*src }, one)]
        }
        [Op::Norm(Normalize { dst, src, .. }) | Op::Unary(Unary { dst, src, .. })] => {
            vec![(*dst, one), (*src, one)]
        }
        [Op::Softmax(Softmax { dst, src }) | Op::Sample(SampleRows { dst, src })] => {
            vec![(*dst, one), (*src, one)]
        }
        [Op::Binary(Binary { dst, a, b, .. })] => vec![(*dst, one), (*a, one), (*b, one)],
        others => panic!("{others:?} are not measured"),
    }
}

/// What the emulated card has counted of a kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    pub launches: u64,
    /// Of memory that was touched, each once a launch.
    pub bytes: u64,
    /// On tensor cores.
    pub tensor_macs: u64,
    /// What lanes have done in f32, a multiply-add or less at a time.
    pub float_operations: u64,
}

/// By kernel.
pub type Counts = BTreeMap<String, Count>;

pub fn counts(emulator: Emulator) -> Counts {
    let count = |stats: cuda_emu::KernelStats| Count {
        launches: stats.launches,
        bytes: stats.sum.global_footprint_bytes,
        tensor_macs: stats.sum.tensor_multiply_adds,
        float_operations: 32 * stats.sum.by_class.get(&InstructionClass::Float).copied().unwrap_or_default(),
    };
    emulator.statistics().into_iter().map(|(name, stats)| (name, count(stats))).collect()
}

/// What was counted since.
pub fn since(before: &Counts, mut after: Counts) -> Counts {
    for (name, count) in &mut after {
        let before = before.get(name).copied().unwrap_or_default();
        count.launches -= before.launches;
        count.bytes -= before.bytes;
        count.tensor_macs -= before.tensor_macs;
        count.float_operations -= before.float_operations;
    }
    after.retain(|_, count| count.launches > 0);
    after
}

/// A case as it was measured.
pub struct Measured {
    pub cost: Cost,
    /// Of a launch.
    pub seconds: f64,
    /// On the emulated card, of so many launches.
    pub counted: Option<(Counts, usize)>,
}

impl Measured {
    /// Holds the cost of a launch against what was counted: bytes with up to so many `beside` it (scratch,
    /// gains, a step's tables), and multiply-adds: so many on tensor cores, the others in f32.
    pub fn assert_counts(&self, beside: usize, tensor_macs: RangeInclusive<usize>) {
        let Some((counts, launches)) = &self.counted else { return };
        let sum = |of: fn(&Count) -> u64| counts.values().map(of).sum::<u64>() as usize / launches;
        let (bytes, tensor) = (sum(|count| count.bytes), sum(|count| count.tensor_macs));
        let Cost { touched, macs, .. } = self.cost;
        let expected = touched..=touched + beside;
        assert!(expected.contains(&bytes), "{bytes} bytes, expected {expected:?}: {counts:?}");
        assert!(tensor_macs.contains(&tensor), "{tensor} on tensor cores, expected {tensor_macs:?}");
        let floats = sum(|count| count.float_operations);
        assert!(macs <= tensor + floats, "{macs} multiply-adds, of which {tensor} and {floats} were done");
        // A softmax, and what eight bits cost, come on top.
        let enough = tensor > 0 || macs == 0 || floats <= 4 * macs;
        assert!(enough, "{floats} operations in f32 for {macs} multiply-adds");
    }
}
