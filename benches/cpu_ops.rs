//! Every operation of the CPU backend but plain products and attention, which have benches of their
//! own, at the shapes of SmolLM2-135M and Gemma-3-270m: one token, and a chunk of 256.
//!
//! Each answer is asserted, element by element against f64, before it is timed. Throughput counts
//! the bytes that an operation must read and write.

use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use ottava::TokenId;
use ottava::backend::cpu::{Cpu, CpuOptions, Vector};
use ottava::backend::{
    Activation, Attention, Backend, BinaryFn, Epilogue, Frame, Heads, KvAppend, KvDtype, KvLayout, Matmul,
    MatrixId, Op, PAGE_TOKENS, PageId, PageRef, Place, Precision, Product, RmsNorm, Rope, RopeAngles,
    RopePairing, Rows, StepInput, StepLimits, StepSequence, UnaryFn, VectorId, Weights, Write,
};
use ottava::quant::{Bits, QuantMatrix, QuantParts, WeightMatrix, code_bytes_per_row};

/// What the operations of a model work on.
struct Shape {
    name: &'static str,
    width: usize,
    hidden: usize,
    heads: Heads,
    vocab: usize,
    head_norm: bool,
    activation: Activation,
}

const SHAPES: [Shape; 2] = [
    Shape {
        name: "smollm2",
        width: 576,
        hidden: 1536,
        heads: Heads { query: 9, kv: 3, dim: 64 },
        vocab: 49152,
        head_norm: false,
        activation: Activation::Silu,
    },
    Shape {
        name: "gemma3-270m",
        width: 640,
        hidden: 2048,
        heads: Heads { query: 4, kv: 1, dim: 256 },
        vocab: 262_144,
        head_norm: true,
        activation: Activation::GeluTanh,
    },
];
const TOKENS: [usize; 2] = [1, 256];
/// Rows of the embedding table here: more would only take longer to make.
const TABLE_ROWS: usize = 8192;
const EPS: f32 = 1e-5;
/// Bytes of the arena for each of an operation's values.
const AREA: usize = 4 << 20;
const AREAS: usize = 4;
const GAIN: VectorId = VectorId(0);
const HEAD_GAIN: VectorId = VectorId(1);
const TABLE: MatrixId = MatrixId(0);
const GATE: MatrixId = MatrixId(1);
const UP: MatrixId = MatrixId(2);

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next() as f32 / (1u32 << 30) as f32 - 1.0).collect()
    }
}

fn matrix(seed: u64, rows: usize, cols: usize, bits: Bits, mins: bool) -> QuantMatrix {
    let mut random = Random(seed);
    let codes = (0..rows * code_bytes_per_row(bits, cols)).map(|_| random.next() as u8).collect();
    let mut floats = |size| {
        let values = random.values(rows * cols.div_ceil(32));
        values.into_iter().map(|x| f16::from_f32(x * size)).collect::<Vec<f16>>()
    };
    let (scales, mins) = (floats(0.01), mins.then(|| floats(0.05)));
    QuantMatrix::new(QuantParts { rows, cols, bits, group: 32, codes, scales, mins }).expect("a valid shape")
}

/// The value of `cols` columns in an area of the arena.
fn place(area: usize, cols: usize) -> Place {
    Place { offset: area * AREA, rows: Rows::Tokens, cols, precision: Precision::F32 }
}

/// An operation, what it costs, and what it must answer.
struct Timed<'m> {
    name: &'static str,
    op: Op,
    /// Makes visible what `op` wrote to the pages.
    then: Option<Op>,
    dst: Place,
    bytes: usize,
    expected: Box<dyn Fn(usize, usize) -> f64 + 'm>,
    tolerance: f64,
}

/// A backend with a model's weights and one step's values.
struct Machine<'s> {
    shape: &'s Shape,
    tokens: usize,
    cpu: Cpu,
    weights: Weights<Cpu>,
    sources: Vec<QuantMatrix>,
    gain: Vec<f32>,
    /// Signs only: a head that is normalised in place again and again keeps its size.
    head_gain: Vec<f32>,
    /// What each area holds before an operation.
    inputs: Vec<Vec<f32>>,
    step: StepInput,
}

impl<'s> Machine<'s> {
    fn new(shape: &'s Shape, tokens: usize) -> Machine<'s> {
        let cpu = Cpu::new(&CpuOptions::default()).expect("the machine's own instruction set");
        let sources = vec![
            matrix(1, TABLE_ROWS, shape.width, Bits::Eight, false),
            matrix(2, shape.hidden, shape.width, Bits::Four, true),
            matrix(3, shape.hidden, shape.width, Bits::Four, true),
        ];
        let prepare =
            |source: &QuantMatrix| cpu.prepare(WeightMatrix::Quant(source.clone())).expect("memory");
        let gain = Random(4).values(shape.width);
        let head_gain: Vec<f32> = gain[..shape.heads.dim].iter().map(|x| x.signum()).collect();
        let vector = |values: &[f32]| -> Vector { cpu.upload_vector(values).expect("memory") };
        let weights = Weights {
            matrices: sources.iter().map(prepare).collect(),
            vectors: vec![vector(&gain), vector(&head_gain)],
        };
        let widest = (shape.hidden * tokens).max(shape.vocab);
        let step = step(tokens);
        let mut inputs: Vec<Vec<f32>> =
            (0..AREAS).map(|area| Random(5 + area as u64).values(widest)).collect();
        // Heads are turned in place again and again: true angles keep their size.
        inputs[3] = step.positions.iter().flat_map(|&position| angles(position, shape.heads.dim)).collect();
        Machine { shape, tokens, cpu, weights, sources, gain, head_gain, inputs, step }
    }

    /// Element `col` of row `row` of an area, as f64.
    fn x(&self, area: usize, cols: usize, row: usize, col: usize) -> f64 {
        self.inputs[area][row * cols + col].into()
    }

    /// Element `col` of a part of a row, after the part's norm; as many gains as elements.
    fn normed(&self, gain: &[f32], cols: usize, row: usize, first: usize, col: usize) -> f64 {
        let part = first..first + gain.len();
        let squares: f64 = part.map(|at| self.x(0, cols, row, at).powi(2)).sum();
        let rms = (squares / gain.len() as f64 + f64::from(EPS)).sqrt();
        self.x(0, cols, row, first + col) / rms * f64::from(gain[col])
    }

    fn dot(&self, matrix: MatrixId, row: usize, out: usize) -> f64 {
        let mut weights = vec![0.0; self.shape.width];
        self.sources[matrix.0 as usize].dequantize_row(out, &mut weights);
        let terms = weights.iter().enumerate();
        terms.map(|(col, &w)| f64::from(w) * self.x(0, self.shape.width, row, col)).sum()
    }

    fn cases(&self) -> Vec<Timed<'_>> {
        let mut cases = self.rows();
        cases.extend(self.elements());
        cases.extend(self.heads());
        cases.push(self.gated());
        cases
    }

    /// Operations over rows as wide as the residual stream, and the probabilities' softmax.
    fn rows(&self) -> Vec<Timed<'_>> {
        let width = self.shape.width;
        let (src, dst) = (place(0, width), place(1, width));
        let vector = 4 * self.tokens * width;
        let norm = RmsNorm { weight: GAIN, eps: EPS };
        let columns = if self.tokens == 1 { self.shape.vocab } else { 1024 };
        let probability = move |row, col| {
            let sum: f64 = (0..columns).map(|at| self.x(0, columns, row, at).exp()).sum();
            self.x(0, columns, row, col).exp() / sum
        };
        let op = Op::Softmax { dst: place(1, columns), src: place(0, columns) };
        let softmax = self.case("softmax", op, place(1, columns), 8 * self.tokens * columns, probability);
        let embedding = move |row: usize, col: usize| {
            let mut out = vec![0.0; width];
            self.sources[0].dequantize_row(self.step.tokens[row].index(), &mut out);
            2.0 * f64::from(out[col])
        };
        let code_bytes = self.sources[0].bytes() / TABLE_ROWS * self.tokens;
        let added = move |row, col| self.x(1, width, row, col) + self.normed(&self.gain, width, row, 0, col);
        vec![
            self.case("rms_norm_add", Op::Norm { dst, src, norm, write: Write::Add }, dst, 3 * vector, added),
            self.case(
                "embed",
                Op::Embed { dst, table: TABLE, scale: 2.0 },
                dst,
                vector + code_bytes,
                embedding,
            ),
            self.case(
                "gather",
                Op::GatherOutputs { dst: Place { rows: Rows::Outputs, ..dst }, src },
                dst,
                2 * vector,
                move |row, col| self.x(0, width, row, col),
            ),
            Timed { tolerance: 1e-4 / columns as f64, ..softmax },
        ]
    }

    /// Operations over single elements, as wide as the MLP.
    fn elements(&self) -> Vec<Timed<'_>> {
        let hidden = self.shape.hidden;
        let [a, b, dst] = [0, 1, 2].map(|area| place(area, hidden));
        let bytes = 4 * self.tokens * hidden;
        let f = UnaryFn::Activation(self.shape.activation);
        let fixed = |place: Place, rows, cols| Place { rows: Rows::Fixed(rows), cols, ..place };
        let (from, to) = (fixed(a, self.tokens, hidden), fixed(dst, hidden, self.tokens));
        let activated = move |row, col| activate(self.shape.activation, self.x(0, hidden, row, col));
        vec![
            self.case("activation", Op::Unary { dst, src: a, f }, dst, 2 * bytes, activated),
            self.case("mul", Op::Binary { dst, a, b, f: BinaryFn::Mul }, dst, 3 * bytes, move |row, col| {
                self.x(0, hidden, row, col) * self.x(1, hidden, row, col)
            }),
            self.case("transpose", Op::Transpose { dst: to, src: from }, to, 2 * bytes, move |row, col| {
                self.x(0, hidden, col, row)
            }),
        ]
    }

    /// Rotation, and what an attention is prepared with.
    fn heads(&self) -> Vec<Timed<'_>> {
        let heads = self.shape.heads;
        let dim = heads.dim;
        let [q, k, v] = [(0, heads.query), (1, heads.kv), (2, heads.kv)].map(|(at, n)| place(at, n * dim));
        let made = RopeAngles {
            dst: place(1, dim),
            inv_freq: (0..dim / 2).map(|i| frequency(i, dim)).collect::<Arc<[f64]>>(),
            magnitude: 1.0,
        };
        let cos_sin = move |row: usize, col: usize| {
            let angle = f64::from(self.step.positions[row]) * frequency(col % (dim / 2), dim);
            if col < dim / 2 { angle.cos() } else { angle.sin() }
        };
        let rope = Rope { angles: place(3, dim), pairing: RopePairing::Halves };
        let turned = move |row: usize, col: usize| {
            let (head, at, half) = (col / dim * dim, col % dim, dim / 2);
            let x = |i: usize| self.x(0, q.cols, row, head + i);
            let (c, s) = (self.x(3, dim, row, at % half), self.x(3, dim, row, half + at % half));
            if at < half { x(at) * c - x(at + half) * s } else { x(at) * c + x(at - half) * s }
        };
        let norm = |weight| self.shape.head_norm.then_some(RmsNorm { weight, eps: EPS });
        let append = KvAppend {
            q,
            k,
            v,
            layer: 0,
            heads,
            q_norm: norm(HEAD_GAIN),
            k_norm: norm(HEAD_GAIN),
            rope: None,
        };
        let rows = 4 * self.tokens * dim;
        let written = 2 * 2 * self.tokens * heads.kv * dim;
        let appended = move |row: usize, col: usize| {
            if !self.shape.head_norm {
                return self.x(0, q.cols, row, col);
            }
            self.normed(&self.head_gain, q.cols, row, col / dim * dim, col % dim)
        };
        let bytes = rows * (2 * heads.query + 3 * heads.kv) + written;
        vec![
            self.case("rope_angles", Op::RopeAngles(made), place(1, dim), rows, cos_sin),
            self.case(
                "rope",
                Op::Rope { x: q, head_dim: dim, rope },
                q,
                rows * (2 * heads.query + 1),
                turned,
            ),
            self.case("kv_append", Op::KvAppend(append.clone()), q, bytes, appended),
            self.values_are_kept(append, bytes),
        ]
    }

    /// The same append, asserted by what an attention that sees nothing but itself reads back.
    fn values_are_kept(&self, append: KvAppend, bytes: usize) -> Timed<'_> {
        let KvAppend { q, v, heads, .. } = append;
        let dst = Place { offset: 3 * AREA, ..q };
        let see = Attention { dst, q, layer: 0, heads, scale: 1.0, window: Some(1), soft_cap: None };
        let value = move |row: usize, col: usize| {
            let head = col / heads.dim / (heads.query / heads.kv);
            self.x(2, v.cols, row, head * heads.dim + col % heads.dim)
        };
        let case = self.case("kv_append_values", Op::KvAppend(append), dst, bytes, value);
        Timed { then: Some(Op::Attention(see)), tolerance: 1e-3, ..case }
    }

    fn gated(&self) -> Timed<'_> {
        let dst = place(1, self.shape.hidden);
        let epilogue = Epilogue::Gated { up: UP, activation: self.shape.activation };
        let products = vec![Product { dst, matrix: GATE, bias: None, epilogue }];
        let op = Op::Matmul(Matmul { src: place(0, self.shape.width), norm: None, products });
        let bytes = 2 * self.sources[1].bytes() + 4 * self.tokens * (self.shape.width + self.shape.hidden);
        let expected =
            |row, col| activate(self.shape.activation, self.dot(GATE, row, col)) * self.dot(UP, row, col);
        Timed { tolerance: 0.03, ..self.case("matmul_gated", op, dst, bytes, expected) }
    }

    fn case<'m>(
        &'m self,
        name: &'static str,
        op: Op,
        dst: Place,
        bytes: usize,
        expected: impl Fn(usize, usize) -> f64 + 'm,
    ) -> Timed<'m> {
        Timed { name, op, then: None, dst, bytes, expected: Box::new(expected), tolerance: 2e-6 }
    }

    fn bench(&self, criterion: &mut Criterion, case: &Timed<'_>) {
        let ops = [Some(&case.op), case.then.as_ref()].into_iter().flatten().cloned().collect::<Vec<_>>();
        let limits = StepLimits { tokens_max: self.tokens, outputs_max: self.tokens };
        let mut arena = self.cpu.arena(AREAS * AREA, &ops, limits).expect("memory");
        let Heads { kv, dim, .. } = self.shape.heads;
        let layout = KvLayout { layers: 1, kv_heads: kv, head_dim: dim, dtype: KvDtype::F16 };
        let mut kv = self.cpu.kv_pool(layout, self.step.pages.len()).expect("memory");
        for (area, values) in self.inputs.iter().enumerate() {
            let all = Place { rows: Rows::Fixed(1), ..place(area, values.len()) };
            self.cpu.write(&mut arena, &all, values).expect("a place in the arena");
        }
        let Machine { cpu, weights, step, .. } = self;
        let mut run = |op: &Op, arena: &mut _| {
            let mut frame = Frame { weights, arena, kv: &mut kv, step };
            cpu.execute(op, &mut frame).expect("a valid operation");
        };
        ops.iter().for_each(|op| run(op, &mut arena));
        self.assert_answer(case, &arena);
        if case.then.is_some() {
            return;
        }
        let mut group = criterion.benchmark_group(case.name);
        group.throughput(Throughput::Bytes(case.bytes as u64)).sample_size(20);
        group.warm_up_time(std::time::Duration::from_millis(200));
        group.measurement_time(std::time::Duration::from_millis(500));
        let name = format!("{}/m{}", self.shape.name, self.tokens);
        group.bench_function(name, |bencher| bencher.iter(|| run(&case.op, &mut arena)));
        group.finish();
    }

    /// Some elements of the first and of the last row.
    fn assert_answer(&self, case: &Timed<'_>, arena: &<Cpu as Backend>::Arena) {
        let cols = case.dst.cols;
        let rows = case.dst.rows.count(&self.step);
        let mut out = vec![0.0; rows * cols];
        self.cpu.read(arena, &case.dst, 0, &mut out).expect("a place in the arena");
        for row in [0, rows - 1] {
            for col in (0..cols).step_by(cols.div_ceil(29)).chain([cols - 1]) {
                let (found, expected) = (f64::from(out[row * cols + col]), (case.expected)(row, col));
                assert!(
                    (found - expected).abs() <= case.tolerance * (1.0 + expected.abs()),
                    "{} of {}: {found} for {expected} at [{row}, {col}]",
                    case.name,
                    self.shape.name
                );
            }
        }
    }
}

/// Radians that pair `i` of a head turns in a position.
fn frequency(i: usize, dim: usize) -> f64 {
    10_000_f64.powf(-2.0 * i as f64 / dim as f64)
}

/// All cosines of a position, then all sines.
fn angles(position: u32, dim: usize) -> Vec<f32> {
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
    }
}

/// One sequence: its only token at position 511, or its first `tokens`.
fn step(tokens: usize) -> StepInput {
    let first = if tokens == 1 { 511 } else { 0 };
    let positions: Vec<u32> = (first..first + tokens as u32).collect();
    let page = |index: u32| PageRef { page: PageId(index), start: index * PAGE_TOKENS as u32 };
    let pages: Vec<PageRef> = (0..(first + tokens as u32).div_ceil(PAGE_TOKENS as u32)).map(page).collect();
    let mut random = Random(6);
    StepInput {
        tokens: (0..tokens).map(|_| TokenId(random.next() % TABLE_ROWS as u32)).collect(),
        positions,
        sequences: vec![StepSequence { rows: 0..tokens as u32, pages: 0..pages.len() as u32, window: None }],
        pages,
        outputs: (0..tokens as u32).collect(),
    }
}

fn benches(criterion: &mut Criterion) {
    for shape in &SHAPES {
        for tokens in TOKENS {
            let machine = Machine::new(shape, tokens);
            for case in machine.cases() {
                machine.bench(criterion, &case);
            }
        }
    }
}

criterion_group!(ops, benches);
criterion_main!(ops);
