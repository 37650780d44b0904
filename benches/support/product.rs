//! Matrix products of one source with copies of a matrix, on any backend.

use ottava::backend::{Backend, Weights};
use ottava::ir::{Epilogue, KvDtype, KvLayout, Matmul, MatrixId, Op, Place, Product, StepInput, WriteMode};
use ottava::quant::{QuantMatrix, WeightMatrix};

use super::machine::{Layout, Machine, Room};
use super::random::Random;

/// How many matrices there are and how many products of a run go over them in turn.
#[derive(Clone, Copy)]
pub struct Repeats {
    pub copies: usize,
    pub launches: usize,
}

/// Ready to run.
pub struct Products<B: Backend> {
    pub machine: Machine<B>,
    pub ops: Vec<Op>,
    dst: Place,
    x: Vec<f32>,
}

impl<B: Backend> Products<B> {
    /// A row of the source for each token of the step, which later ones may have fewer of. The backend makes
    /// each copy itself.
    pub fn new(backend: B, matrix: &QuantMatrix, repeats: Repeats, step: StepInput) -> Products<B> {
        let weights = WeightMatrix::Quant(matrix.clone());
        let prepare = |_| backend.prepare(&weights).expect("memory");
        let copies = (0..repeats.copies).map(prepare).collect();
        Products::of_copies(backend, (matrix, copies), repeats.launches, step)
    }

    /// The same with copies that are there.
    pub fn of_copies(
        backend: B,
        (matrix, matrices): (&QuantMatrix, Vec<B::Matrix>),
        launches: usize,
        step: StepInput,
    ) -> Products<B> {
        let copies = matrices.len();
        let weights = Weights { matrices, vectors: vec![] };
        let tokens = step.tokens.len();
        let mut layout = Layout::new(tokens);
        let src = layout.place(matrix.cols());
        let dst: Vec<Place> = (0..copies).map(|_| layout.place(matrix.rows())).collect();
        let op = |launch: usize| {
            let (matrix, epilogue) = (MatrixId((launch % copies) as u32), Epilogue::Write(WriteMode::Store));
            let products = vec![Product { dst: dst[launch % copies], matrix, bias: None, epilogue }];
            Op::Matmul(Matmul { src, norm: None, products })
        };
        let ops: Vec<Op> = (0..launches).map(op).collect();
        // The operation needs no keys and values; a frame does.
        let kv = KvLayout { layers: 1, kv_heads: 1, head_dim: 32, dtype: KvDtype::F16 };
        let room = Room { layout, kv, pages: 1, ops: &ops };
        let mut machine = Machine::new(backend, weights, step, room);
        let x = Random(9).values(tokens * matrix.cols());
        machine.write(&src, &x);
        Products { machine, dst: dst[copies - 1], ops, x }
    }

    /// Other rows, at most as many as at first.
    pub fn set_step(&mut self, step: StepInput) {
        self.machine.step = step;
    }

    pub fn run(&mut self) {
        self.machine.run(&self.ops);
    }

    /// Makes the answer wrong until it is computed.
    pub fn poison(&mut self) {
        let tokens = self.machine.step.tokens.len();
        self.machine.write(&self.dst, &vec![f32::NAN; tokens * self.dst.cols]);
    }

    pub fn assert_answer(&self, matrix: &QuantMatrix) {
        assert_products(&self.machine.read(&self.dst), &self.x, matrix);
    }
}

/// A thousand elements against f64, within the rounding of the activations.
pub fn assert_products(out: &[f32], x: &[f32], matrix: &QuantMatrix) {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let mut weights = vec![0.0; cols];
    for (i, found) in out.iter().enumerate().step_by((out.len() / 1024) | 1) {
        matrix.dequantize_row(i % rows, &mut weights);
        let x = &x[i / rows * cols..][..cols];
        let terms = x.iter().zip(&weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
        let (exact, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
        assert!((f64::from(*found) - exact).abs() <= 0.004 * size + 1e-4, "{found} for {exact} at {i}");
    }
}
