//! Every operation of the CPU backend but plain products and attention, which have benches of their
//! own, at the shapes of real models: one token, and a chunk of 256.
//!
//! Each answer is asserted, element by element against f64, before it is timed. `cpu_ops/cases.rs`
//! lists the operations.

use criterion::{Criterion, criterion_group, criterion_main};
use ottava::backend::cpu::{Cpu, CpuOptions};
use ottava::backend::{Backend, Weights};
use ottava::ir::{KvDtype, KvLayout, MatrixId, Op, Place, Precision, Rows, StepInput};
use ottava::quant::{QuantMatrix, WeightMatrix};

#[path = "cpu_ops/cases.rs"]
mod cases;
mod support;
use cases::{Answer, Case, EPS, angles};
use support::machine::{Layout, Machine, Room};
use support::random::{Codes, Random};
use support::shapes::{MODELS, Shape};
use support::step;
use support::timing::{Bench, time};

const TOKENS: [usize; 2] = [1, 256];
/// The last position: pages are there for all of them.
const LAST: usize = 511;
/// Rows of the embedding table here: more would only take longer to make.
const TABLE_ROWS: usize = 8192;
/// Places in the arena for an operation's values; the last one holds a rotation's angles.
const AREAS: usize = 4;
const ANGLES: usize = AREAS - 1;

/// What the operations of a step read, and where.
struct Inputs {
    shape: Shape,
    tokens: usize,
    step: StepInput,
    /// Elements of an area.
    area: usize,
    /// What each area holds before an operation.
    values: Vec<Vec<f32>>,
    /// The embedding table and the gated pair.
    matrices: [QuantMatrix; 3],
    gain: Vec<f32>,
    /// Signs only: a head that is normalised in place again and again keeps its size.
    head_gain: Vec<f32>,
}

impl Inputs {
    fn new(shape: Shape, tokens: usize) -> Inputs {
        let mut random = Random(5);
        let area = (shape.hidden * tokens).max(shape.vocab).next_multiple_of(16);
        let mut step = step(LAST + 1 - tokens..LAST + 1, TABLE_ROWS);
        step.outputs = (0..tokens as u32).collect();
        let mut values: Vec<Vec<f32>> = (0..AREAS).map(|_| random.values(area)).collect();
        // Heads are turned in place again and again: true angles keep their size.
        values[ANGLES] = step.positions.iter().flat_map(|&at| angles(at, shape.heads.dim)).collect();
        let mut matrix = |rows, codes| random.matrix(rows, shape.width, codes);
        let matrices = [
            matrix(TABLE_ROWS, Codes::Q8_0),
            matrix(shape.hidden, Codes::Q4_1),
            matrix(shape.hidden, Codes::Q4_1),
        ];
        let gain = random.values(shape.width);
        let head_gain = random.values(shape.heads.dim).into_iter().map(f32::signum).collect();
        Inputs { shape, tokens, step, area, values, matrices, gain, head_gain }
    }

    /// A value of `cols` columns in an area of the arena.
    fn place(&self, area: usize, cols: usize) -> Place {
        let offset = area * self.area * size_of::<f32>();
        Place { offset, rows: Rows::Tokens, cols, precision: Precision::F32 }
    }

    /// Element `col` of row `row` of an area that has `cols` columns.
    fn x(&self, area: usize, cols: usize, row: usize, col: usize) -> f64 {
        self.values[area][row * cols + col].into()
    }

    /// A part of a row of area 0, normalised; it begins at `first` and is as long as `gain`.
    fn normed(&self, gain: &[f32], cols: usize, row: usize, first: usize) -> Vec<f64> {
        let part = &self.values[0][row * cols + first..][..gain.len()];
        let squares: f64 = part.iter().map(|&x| f64::from(x).powi(2)).sum();
        let rms = (squares / gain.len() as f64 + f64::from(EPS)).sqrt();
        part.iter().zip(gain).map(|(&x, &gain)| f64::from(x) / rms * f64::from(gain)).collect()
    }

    /// `x` times a row of a matrix.
    fn dot(&self, matrix: MatrixId, row: usize, x: &[f64]) -> f64 {
        let mut weights = vec![0.0; x.len()];
        self.matrices[matrix.0 as usize].dequantize_row(row, &mut weights);
        weights.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()
    }

    fn machine(&self, ops: &[Op]) -> Machine<Cpu> {
        let cpu = Cpu::new(&CpuOptions::default()).expect("the machine's own instruction set");
        let prepare = |matrix: &QuantMatrix| cpu.prepare(&WeightMatrix::Quant(matrix.clone()));
        let upload = |values: &Vec<f32>| cpu.upload_vector(values).expect("memory");
        let weights = Weights {
            matrices: self.matrices.iter().map(|matrix| prepare(matrix).expect("memory")).collect(),
            vectors: [&self.gain, &self.head_gain].map(upload).into(),
        };
        let heads = self.shape.heads;
        let kv = KvLayout { layers: 1, kv_heads: heads.kv, head_dim: heads.dim, dtype: KvDtype::F16 };
        let bytes = AREAS * self.area * size_of::<f32>();
        let layout = Layout { bytes, ..Layout::new(self.tokens) };
        let room = Room { layout, kv, pages: self.step.pages.len(), ops };
        Machine::new(cpu, weights, self.step.clone(), room)
    }

    /// Runs a case on fresh inputs and holds what it leaves against f64.
    fn assert_answers(&self, machine: &mut Machine<Cpu>, case: &Case<'_>) {
        for (area, values) in self.values.iter().enumerate() {
            machine.write(&Place { rows: Rows::Fixed(1), ..self.place(area, values.len()) }, values);
        }
        machine.run(std::slice::from_ref(&case.op));
        for answer in &case.answers {
            machine.run(answer.seen_by.as_slice());
            self.assert_answer(case.name, answer, &machine.read(&answer.place));
        }
    }

    /// Some elements of the first and of the last row.
    fn assert_answer(&self, name: &str, answer: &Answer<'_>, out: &[f32]) {
        let cols = answer.place.cols;
        for row in [0, out.len() / cols - 1] {
            for col in (0..cols).step_by(cols.div_ceil(29)).chain([cols - 1]) {
                let (found, expected) = (f64::from(out[row * cols + col]), (answer.expected)(row, col));
                assert!(
                    (found - expected).abs() <= answer.tolerance * (1.0 + expected.abs()),
                    "{name} of {}: {found} for {expected} at [{row}, {col}]",
                    self.shape.name
                );
            }
        }
    }
}

fn benches(criterion: &mut Criterion) {
    for shape in MODELS {
        for tokens in TOKENS {
            let inputs = Inputs::new(shape, tokens);
            let cases = inputs.cases();
            let all = cases.iter().flat_map(|case| {
                std::iter::once(&case.op).chain(case.answers.iter().flat_map(|answer| &answer.seen_by))
            });
            let mut machine = inputs.machine(&all.cloned().collect::<Vec<Op>>());
            for case in &cases {
                bench(criterion, &inputs, &mut machine, case);
            }
        }
    }
}

fn bench(criterion: &mut Criterion, inputs: &Inputs, machine: &mut Machine<Cpu>, case: &Case<'_>) {
    let name = format!("{}/m{}", inputs.shape.name, inputs.tokens);
    let bench = Bench { group: case.name, name: &name, work: case.work, operations: 1 };
    time(criterion, &bench, move || {
        inputs.assert_answers(machine, case);
        move || machine.run(std::slice::from_ref(&case.op))
    });
}

criterion_group!(ops, benches);
criterion_main!(ops);
