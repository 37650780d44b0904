//! The layers of a model at decode, as a step launches them: what kernels cost each other, which none of
//! them has alone. Layers have weights and pages of their own, and all work on one residual stream.

use ottava::backend::cuda::Cuda;
use ottava::backend::{Backend, Reference, Weights};
use ottava::ir::{
    Attention, Epilogue, Heads, KvAppend, KvDtype, KvLayout, Matmul, MatrixId, Op, Place, Precision, Product,
    RmsNorm, Rope, RopePairing, VectorId, WriteMode,
};
use ottava::quant::{QuantMatrix, WeightMatrix};

use super::cost::Launches;
use super::products::codes_of;
use super::report::Report;
use super::selection::Case;
use super::subject::Prepare;
use super::support::machine::{Layout, Machine, Room};
use super::support::product::Repeats;
use super::support::random::Random;
use super::support::shapes::{LLAMA_3_1_8B, LLAMA_3_2_1B, SMOLLM2_135M, Shape};
use super::support::{brief, decodes};
use super::{copies, repeats};

const MODELS: [Shape; 3] = [LLAMA_3_2_1B, LLAMA_3_1_8B, SMOLLM2_135M];
/// Operations of a layer: an append and its attention are one launch.
const OPS: usize = 6;

pub fn cases(brief: bool) -> Vec<Case> {
    let layer =
        |shape: &Shape, format, tokens, keys| Case { keys, ..Case::new("layer", shape.name, format, tokens) };
    if brief {
        return vec![layer(&SMOLLM2_135M, "w8g32", 3, 1)];
    }
    let of = |shape: Shape| {
        let formats = ["w8g128", "w4g32"].into_iter();
        formats.flat_map(move |format| [1, 4, 16, 64].map(|tokens| layer(&shape, format, tokens, 512)))
    };
    MODELS[..2].iter().copied().flat_map(of).collect()
}

/// Cases of a model and a format.
pub fn measure(report: &mut Report, cases: &[Case]) {
    let shape = MODELS.iter().find(|shape| shape.name == cases[0].shape).expect("a model of this name");
    let codes = codes_of(cases[0].format);
    let mut random = Random(7);
    let matrices: Vec<QuantMatrix> = sizes(shape).map(|[rows, cols]| random.matrix(rows, cols, codes)).into();
    for case in cases {
        let layer = Layer::new(shape, case, &matrices, size_of::<f32>());
        report.attempt(case, |report| layer.measure(report, case));
    }
}

/// Rows and columns of q, k, v, o, gate, up and down.
fn sizes(shape: &Shape) -> [[usize; 2]; 7] {
    let Shape { width, hidden, heads: Heads { query, kv, dim }, .. } = *shape;
    let [query, kv] = [query * dim, kv * dim];
    [
        [query, width],
        [kv, width],
        [kv, width],
        [width, query],
        [hidden, width],
        [hidden, width],
        [width, hidden],
    ]
}

struct Layer<'m> {
    shape: &'m Shape,
    case: &'m Case,
    matrices: &'m [QuantMatrix],
    /// Of these, and of an element.
    bytes: usize,
    element_bytes: usize,
    x: Place,
    q: Place,
    k: Place,
    v: Place,
    angles: Place,
    attended: Place,
    hidden: Place,
}

impl Layer<'_> {
    fn new<'m>(
        shape: &'m Shape,
        case: &'m Case,
        matrices: &'m [QuantMatrix],
        element_bytes: usize,
    ) -> Layer<'m> {
        let Heads { query, kv, dim } = shape.heads;
        let mut layout = Layout { element_bytes, ..Layout::new(case.tokens) };
        let [x, q, k, v, angles, attended, hidden] =
            [shape.width, query * dim, kv * dim, kv * dim, dim, query * dim, shape.hidden]
                .map(|cols| layout.place(cols));
        Layer {
            shape,
            case,
            matrices,
            bytes: layout.bytes,
            element_bytes,
            x,
            q,
            k,
            v,
            angles,
            attended,
            hidden,
        }
    }

    /// The operations of one of so many layers.
    fn ops(&self, layer: usize, layers: usize) -> [Op; OPS] {
        let Layer { x, q, k, v, angles, attended, hidden, .. } = *self;
        let heads = self.shape.heads;
        let matrix = |index: usize| MatrixId((index * layers + layer) as u32);
        let product = |dst, index, epilogue| Product { dst, matrix: matrix(index), bias: None, epilogue };
        let [store, add] = [WriteMode::Store, WriteMode::Add].map(Epilogue::Write);
        let gated = Epilogue::Gated { up: matrix(5), activation: self.shape.activation };
        let norm = Some(RmsNorm { weight: VectorId(0), eps: 1e-5 });
        let matmul = |src, norm, products| Op::Matmul(Matmul { src, norm, products });
        let rope = Some(Rope { angles, pairing: RopePairing::Halves });
        let scale = 1.0 / (heads.dim as f32).sqrt();
        [
            matmul(x, norm, vec![product(q, 0, store), product(k, 1, store), product(v, 2, store)]),
            Op::KvAppend(KvAppend { q, k, v, layer, heads, q_norm: None, k_norm: None, rope }),
            Op::Attention(Attention { dst: attended, q, layer, heads, scale, window: None, soft_cap: None }),
            matmul(attended, None, vec![product(x, 3, add)]),
            matmul(x, norm, vec![product(hidden, 4, gated)]),
            matmul(hidden, None, vec![product(x, 6, add)]),
        ]
    }

    fn repeats(&self) -> Repeats {
        let repeats = repeats(self.matrices.iter().map(QuantMatrix::bytes).sum());
        Repeats { launches: repeats.launches.min(160), ..repeats }
    }

    fn measure(&self, report: &mut Report, case: &Case) {
        let Repeats { copies: layers, launches } = self.repeats();
        let ops: Vec<Op> = (0..launches).flat_map(|launch| self.ops(launch % layers, layers)).collect();
        let mut machine = self.machine(report.cuda(), layers, &ops, &copies);
        self.write(&mut machine);
        if brief() {
            machine.run(&ops[..OPS]);
            self.assert_agrees(&machine.read(&self.x));
        } else {
            self.fill_pages(&mut machine);
        }
        self.write(&mut machine);
        let replayed = machine.with_frame(|cuda, frame| cuda.replay_seconds(&ops, frame, 0));
        replayed.expect("operations that can be replayed");
        report.assert_bits_of_others(case, &machine.read(&self.x));
        self.write(&mut machine);
        let size = |id: MatrixId| sizes(self.shape)[id.0 as usize / layers];
        let measured = report.time(&mut machine, &Launches { ops: &ops, each: OPS, matrix: &size });
        report.row(case, &measured);
    }

    /// `copies` makes the matrices of all layers of one.
    fn machine<B: Backend>(
        &self,
        backend: B,
        layers: usize,
        ops: &[Op],
        copies: Prepare<'_, B>,
    ) -> Machine<B> {
        let gain = backend.upload_vector(&Random(11).values(self.shape.width)).expect("memory");
        let matrices = self.matrices.iter().flat_map(|matrix| copies(&backend, matrix, layers)).collect();
        let weights = Weights { matrices, vectors: vec![gain] };
        let step = decodes(self.case.tokens, self.case.keys - 1);
        let Heads { kv: kv_heads, dim: head_dim, .. } = self.shape.heads;
        let kv = KvLayout { layers, kv_heads, head_dim, dtype: KvDtype::F16 };
        let layout =
            Layout { tokens: self.case.tokens, bytes: self.bytes, element_bytes: self.element_bytes };
        let pages = step.pages.len();
        Machine::new(backend, weights, step, Room { layout, kv, pages, ops })
    }

    fn write<B: Backend>(&self, machine: &mut Machine<B>) {
        let rows = self.case.tokens;
        machine.write(&self.x, &Random(9).values(rows * self.x.cols));
        // Angles of 0, so that none of a head is turned.
        let (half, no_turn) = (self.angles.cols / 2, [1.0, 0.0]);
        let angles = |at: usize| no_turn[at / half % 2];
        machine.write(&self.angles, &(0..rows * self.angles.cols).map(angles).collect::<Vec<f32>>());
    }

    /// A past of ordinary numbers.
    fn fill_pages(&self, machine: &mut Machine<Cuda>) {
        let halves =
            Random(5).values(machine.kv_layout.page_bytes() / 2).into_iter().map(half::f16::from_f32);
        let pages = machine.step.pages.len();
        machine.fill_pages(pages, &halves.flat_map(half::f16::to_le_bytes).collect::<Vec<u8>>());
    }

    /// Holds a first layer's result against the reference, for tokens that see themselves alone.
    fn assert_agrees(&self, found: &[f32]) {
        let prepare = |reference: &Reference, matrix: &QuantMatrix, layers: usize| {
            let matrix = WeightMatrix::Quant(matrix.clone());
            (0..layers).map(|_| reference.prepare(&matrix).expect("memory")).collect()
        };
        let exact = Layer::new(self.shape, self.case, self.matrices, Reference.element_bytes(Precision::F32));
        let ops = exact.ops(0, 1);
        let mut machine = exact.machine(Reference, 1, &ops, &prepare);
        exact.write(&mut machine);
        machine.execute(&ops);
        for (at, (&found, expected)) in found.iter().zip(machine.read(&exact.x)).enumerate() {
            assert!(
                (found - expected).abs() <= 0.02 * (1.0 + expected.abs()),
                "{found} for {expected} at {at}"
            );
        }
    }
}
