//! The operations of the bench, each with its cost and with what it must answer.

use std::sync::Arc;

use ottava::ir::{
    Activation, ApplyRope, Attention, Binary, BinaryFn, Embed, Epilogue, GatherOutputs, KvAppend, Matmul,
    MatrixId, Normalize, Op, Place, Product, RmsNorm, Rope, RopeAngles, RopePairing, Rows, SampleRows,
    Softmax, Transpose, Unary, UnaryFn, VectorId, WriteMode,
};

use super::support::timing::Work;
use super::{ANGLES, Inputs, TABLE_ROWS};

/// The norms' epsilon.
pub const EPS: f32 = 1e-5;
const TABLE: MatrixId = MatrixId(0);
const GATE: MatrixId = MatrixId(1);
const UP: MatrixId = MatrixId(2);
const GAIN: VectorId = VectorId(0);
const HEAD_GAIN: VectorId = VectorId(1);
const EMBED_SCALE: f32 = 2.0;

/// An operation, what it costs, and what it must answer.
pub struct Case<'m> {
    pub name: &'static str,
    pub op: Op,
    pub work: Work,
    pub answers: Vec<Answer<'m>>,
}

/// What a place must hold after an operation.
pub struct Answer<'m> {
    /// What makes it visible, where the operation writes no place of the arena.
    pub seen_by: Option<Op>,
    pub place: Place,
    /// Element `[row, col]`.
    pub expected: Box<dyn Fn(usize, usize) -> f64 + 'm>,
    /// Times one more than the magnitude.
    pub tolerance: f64,
}

impl<'m> Answer<'m> {
    fn new(place: Place, expected: impl Fn(usize, usize) -> f64 + 'm) -> Answer<'m> {
        Answer { seen_by: None, place, expected: Box::new(expected), tolerance: 4e-6 }
    }
}

/// An operation that reads and writes `floats` of four bytes, with one answer.
fn case<'m>(name: &'static str, op: Op, floats: usize, answer: Answer<'m>) -> Case<'m> {
    Case { name, op, work: Work { bytes: 4 * floats, macs: 0 }, answers: vec![answer] }
}

impl Inputs {
    pub fn cases(&self) -> Vec<Case<'_>> {
        let mut cases = vec![self.embed(), self.softmax(), self.sample(), self.rope_angles(), self.rope()];
        cases.extend([self.kv_append(), self.matmul_gated()]);
        cases.extend(self.rows());
        cases.extend(self.elements());
        cases
    }

    fn embed(&self) -> Case<'_> {
        let width = self.shape.width;
        let dst = self.place(1, width);
        let op = Op::Embed(Embed { dst, table: TABLE, scale: EMBED_SCALE });
        let answer = Answer::new(dst, move |row, col| {
            let mut out = vec![0.0; width];
            self.matrices[0].dequantize_row(self.step.tokens[row].index(), &mut out);
            f64::from(EMBED_SCALE) * f64::from(out[col])
        });
        let mut case = case("embed", op, self.tokens * width, answer);
        case.work.bytes += self.matrices[0].bytes() / TABLE_ROWS * self.tokens;
        case
    }

    /// Over a vocabulary, or as many rows of a short one.
    fn softmax(&self) -> Case<'_> {
        let cols = if self.tokens == 1 { self.shape.vocab } else { 1024 };
        let (src, dst) = (self.place(0, cols), self.place(1, cols));
        let answer = Answer::new(dst, move |row, col| {
            let sum: f64 = (0..cols).map(|at| self.x(0, cols, row, at).exp()).sum();
            self.x(0, cols, row, col).exp() / sum
        });
        let answer = Answer { tolerance: 1e-4 / cols as f64, ..answer };
        case("softmax", Op::Softmax(Softmax { dst, src }), 2 * self.tokens * cols, answer)
    }

    /// Greedy, over a vocabulary or as many rows of a short one.
    fn sample(&self) -> Case<'_> {
        let cols = if self.tokens == 1 { self.shape.vocab } else { 1024 };
        let (src, dst) = (self.place(0, cols), self.place(1, 1));
        let answer = Answer::new(dst, move |row, _| {
            let better =
                |best, at| if self.x(0, cols, row, at) > self.x(0, cols, row, best) { at } else { best };
            (1..cols).fold(0, better) as f64
        });
        case("sample", Op::Sample(SampleRows { dst, src }), self.tokens * cols, answer)
    }

    /// Operations over rows as wide as the residual stream.
    fn rows(&self) -> [Case<'_>; 3] {
        let width = self.shape.width;
        let (src, dst) = (self.place(0, width), self.place(1, width));
        let size = self.tokens * width;
        let norm =
            |write| Op::Norm(Normalize { dst, src, norm: RmsNorm { weight: GAIN, eps: EPS }.into(), write });
        let normed = move |row, col: usize| self.normed(&self.gain, width, row, 0)[col];
        let added = move |row, col| self.x(1, width, row, col) + normed(row, col);
        let outputs = Place { rows: Rows::Outputs, ..dst };
        let gathered = Answer::new(outputs, move |row, col| self.x(0, width, row, col));
        [
            case("rms_norm", norm(WriteMode::Store), 2 * size, Answer::new(dst, normed)),
            case("rms_norm_add", norm(WriteMode::Add), 3 * size, Answer::new(dst, added)),
            case(
                "gather_outputs",
                Op::GatherOutputs(GatherOutputs { dst: outputs, src }),
                2 * size,
                gathered,
            ),
        ]
    }

    /// Operations over single elements, as wide as the MLP.
    fn elements(&self) -> [Case<'_>; 4] {
        let hidden = self.shape.hidden;
        let [a, b, dst] = [0, 1, 2].map(|area| self.place(area, hidden));
        let size = self.tokens * hidden;
        let activation = self.shape.activation;
        let unary = Op::Unary(Unary { dst, src: a, f: UnaryFn::Activation(activation) });
        let binary = |f| Op::Binary(Binary { dst, a, b, f });
        let x = move |area, row, col| self.x(area, hidden, row, col);
        let from = Place { rows: Rows::Fixed(self.tokens), ..a };
        let to = Place { rows: Rows::Fixed(hidden), cols: self.tokens, ..dst };
        let transpose = Op::Transpose(Transpose { dst: to, src: from });
        let activated = Answer::new(dst, move |row, col| activate(activation, x(0, row, col)));
        let sum = Answer::new(dst, move |row, col| x(0, row, col) + x(1, row, col));
        let product = Answer::new(dst, move |row, col| x(0, row, col) * x(1, row, col));
        [
            case("unary_activation", unary, 2 * size, activated),
            case("binary_add", binary(BinaryFn::Add), 3 * size, sum),
            case("binary_mul", binary(BinaryFn::Mul), 3 * size, product),
            case("transpose", transpose, 2 * size, Answer::new(to, move |row, col| x(0, col, row))),
        ]
    }

    fn rope_angles(&self) -> Case<'_> {
        let dim = self.shape.heads.dim;
        let dst = self.place(1, dim);
        let inv_freq: Arc<[f64]> = (0..dim / 2).map(|i| frequency(i, dim)).collect();
        let answer = Answer::new(dst, move |row, col| {
            let angle = f64::from(self.step.positions[row]) * frequency(col % (dim / 2), dim);
            if col < dim / 2 { angle.cos() } else { angle.sin() }
        });
        let op = Op::RopeAngles(RopeAngles { dst, inv_freq, magnitude: 1.0 });
        case("rope_angles", op, self.tokens * dim, answer)
    }

    fn rope(&self) -> Case<'_> {
        let heads = self.shape.heads;
        let (dim, half) = (heads.dim, heads.dim / 2);
        let q = self.place(0, heads.query * dim);
        let rope = Rope { angles: self.place(ANGLES, dim), pairing: RopePairing::Halves };
        let answer = Answer::new(q, move |row, col| {
            let (head, at) = (col / dim * dim, col % dim);
            let x = |i: usize| self.x(0, q.cols, row, head + i);
            let (c, s) = (self.x(ANGLES, dim, row, at % half), self.x(ANGLES, dim, row, half + at % half));
            if at < half { x(at) * c - x(at + half) * s } else { x(at) * c + x(at - half) * s }
        });
        let floats = self.tokens * (2 * q.cols + dim);
        case("rope", Op::Rope(ApplyRope { x: q, head_dim: dim, rope }), floats, answer)
    }

    /// q is normalised in place; the values are read back by an attention that sees no past.
    fn kv_append(&self) -> Case<'_> {
        let heads = self.shape.heads;
        let (dim, layer) = (heads.dim, 0);
        let [q, k, v] =
            [(0, heads.query), (1, heads.kv), (2, heads.kv)].map(|(area, n)| self.place(area, n * dim));
        let norm = self.shape.more_norms.then_some(RmsNorm { weight: HEAD_GAIN, eps: EPS });
        let append = KvAppend { q, k, v, layer, heads, q_norm: norm, k_norm: norm, rope: None };
        let query = Answer::new(q, move |row, col| match norm {
            Some(_) => self.normed(&self.head_gain, q.cols, row, col / dim * dim)[col % dim],
            None => self.x(0, q.cols, row, col),
        });
        let dst = Place { offset: self.place(ANGLES, 1).offset, ..q };
        let see = Attention { dst, q, layer, heads, scale: 1.0, window: Some(1), soft_cap: None };
        let value = Answer::new(dst, move |row, col| {
            let head = col / dim / (heads.query / heads.kv);
            self.x(2, v.cols, row, head * dim + col % dim)
        });
        let value = Answer { seen_by: Some(Op::Attention(see)), tolerance: 1e-3, ..value };
        let queries = if norm.is_some() { 2 * q.cols } else { 0 };
        // Half precision: what is written takes half of what is read.
        let floats = self.tokens * (queries + k.cols + v.cols + (k.cols + v.cols) / 2);
        let mut case = case("kv_append", Op::KvAppend(append), floats, query);
        case.answers.push(value);
        case
    }

    /// A norm, two products and their gate, as the MLP of a decoder begins.
    fn matmul_gated(&self) -> Case<'_> {
        let (width, hidden) = (self.shape.width, self.shape.hidden);
        let (src, dst) = (self.place(0, width), self.place(1, hidden));
        let activation = self.shape.activation;
        let epilogue = Epilogue::Gated { up: UP, activation };
        let products = vec![Product { dst, matrix: GATE, bias: None, epilogue }];
        let norm = Some(RmsNorm { weight: GAIN, eps: EPS });
        let answer = Answer::new(dst, move |row, col| {
            let x = self.normed(&self.gain, width, row, 0);
            activate(activation, self.dot(GATE, col, &x)) * self.dot(UP, col, &x)
        });
        let answer = Answer { tolerance: 0.02, ..answer };
        let op = Op::Matmul(Matmul { src, norm, products });
        let mut case = case("matmul_gated", op, self.tokens * (width + hidden), answer);
        case.work.bytes += 2 * self.matrices[1].bytes();
        case.work.macs = 2 * width * hidden * self.tokens;
        case
    }
}

/// Radians that pair `i` of a head turns in a position.
fn frequency(i: usize, dim: usize) -> f64 {
    10_000_f64.powf(-2.0 * i as f64 / dim as f64)
}

/// All cosines of a position, then all sines.
pub fn angles(position: u32, dim: usize) -> Vec<f32> {
    let angle = |i: usize| f64::from(position) * frequency(i % (dim / 2), dim);
    (0..dim).map(|i| if i < dim / 2 { angle(i).cos() as f32 } else { angle(i).sin() as f32 }).collect()
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / 2.0 * (1.0 + inner.tanh())
        }
        Activation::Gelu => panic!("no case has it"),
    }
}
