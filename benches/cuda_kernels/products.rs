//! Matrix products from one token to a long prompt: plain ones, a vocabulary's, the gated pair behind its
//! norm; and what it takes to pack the activations of many tokens.

use std::ops::RangeInclusive;

use ottava::backend::{Backend, Weights};
use ottava::ir::{
    Epilogue, KvDtype, KvLayout, Matmul, MatrixId, Op, Place, Product, RmsNorm, VectorId, WriteMode,
};
use ottava::quant::{QuantMatrix, WeightMatrix};

use super::cost::{Cost, Launches, Measured};
use super::report::Report;
use super::selection::Case;
use super::subject::{Operands, Subject};
use super::support::machine::{Layout, Machine, Room};
use super::support::product::{Products, Repeats, assert_products};
use super::support::random::{Codes, Random};
use super::support::shapes::{LLAMA_3_1_8B, LLAMA_3_2_1B, QWEN2_5_1_5B, SMOLLM2_135M, Shape};
use super::support::{brief, decodes};
use super::{copies, profiles, repeats};

/// A name, rows, columns.
type Matrix = (&'static str, usize, usize);
/// A name, and how elements are kept.
type Format = (&'static str, Codes);

/// Matrices of Llama-3.1-8B, Llama-3.2-1B and Qwen2.5-1.5B; benches/cuda_peers.py has them too.
const MATRICES: [Matrix; 9] = [
    ("8b up", 14336, 4096),
    ("1b up", 8192, 2048),
    ("8b down", 4096, 14336),
    ("1.5b up", 8960, 1536),
    ("1b down", 2048, 8192),
    ("8b qkv", 6144, 4096),
    ("1b o", 2048, 2048),
    ("1.5b down", 1536, 8960),
    ("8b o", 4096, 4096),
];
const FORMATS: [Format; 3] = [("w8g128", Codes::W8G128), ("w8g32", Codes::Q8_0), ("w4g32", Codes::Q4_0)];
const TOKENS: [usize; 7] = [1, 4, 16, 32, 64, 512, 2048];
/// How the names of a vocabulary's matrix and of activations end.
const LOGITS: &str = " logits";
const COLUMNS: &str = " columns";
const MODELS: [Shape; 4] = [LLAMA_3_2_1B, LLAMA_3_1_8B, QWEN2_5_1_5B, SMOLLM2_135M];
/// Up to so many tokens each launch has a matrix of its own.
const FEW: usize = 64;
/// Up to so many tokens one kernel multiplies activations as they are.
const FEW_TOKENS: usize = 4;
/// Bytes of a step's tables that a launch touches.
const TABLE_BYTES: usize = 256;
/// Columns that kernels multiply at a time.
const UNIT_COLS: usize = 128;
/// Products that share a launch, and launches that share activations, where packing is measured.
const SHARED: usize = 4;
const LAUNCHES: usize = 8;

/// Multiply-adds of tensor cores for so many matrices: tokens are filled up to the kernels' tiles, and columns in
/// some kernels to whole units.
fn tensor_macs(matrices: &[QuantMatrix], tokens: usize) -> RangeInclusive<usize> {
    let tile = match tokens {
        0..=FEW_TOKENS => 8,
        5..=16 => 16,
        17..=32 => 32,
        _ => 128,
    };
    let rows: usize = matrices.iter().map(QuantMatrix::rows).sum();
    let cols = matrices[0].cols();
    rows * cols * tokens.next_multiple_of(8)
        ..=rows * cols.next_multiple_of(UNIT_COLS) * tokens.next_multiple_of(tile)
}

/// Bytes that products touch beside their operands: of few tokens a step's tables; of many a copy in f16,
/// and sums that blocks hand over.
fn scratch(cost: &Cost, tokens: usize) -> usize {
    if tokens <= FEW_TOKENS { TABLE_BYTES } else { 2 * cost.touched }
}

/// Plain products.
pub fn cases(brief: bool) -> Vec<Case> {
    let (matrices, tokens): (&[Matrix], &[usize]) =
        if brief { (&MATRICES[6..7], &[1, 8, 96]) } else { (&MATRICES, &TOKENS) };
    of_all("matmul", matrices.iter().map(|matrix| matrix.0.to_owned()), &FORMATS, tokens)
}

/// The last product of a step: a row for each token of the vocabulary.
pub fn logits(brief: bool) -> Vec<Case> {
    let (models, formats, tokens): (_, &[Format], &[usize]) =
        if brief { (&MODELS[3..], &FORMATS[1..2], &[1]) } else { (&MODELS[..], &FORMATS[1..], &[1, 16, 64]) };
    of_all("matmul", models.iter().map(|model| format!("{}{LOGITS}", model.name)), formats, tokens)
}

/// The gated pair of a feed-forward layer, which normalises its source.
pub fn gates(brief: bool) -> Vec<Case> {
    let (models, formats, tokens): (_, &[Format], &[usize]) = if brief {
        (&MODELS[3..], &FORMATS[1..2], &[1, 96])
    } else {
        (&MODELS[..3], &FORMATS[..], &[1, 16, 64, 512])
    };
    of_all("gate", models.iter().map(|model| model.name.to_owned()), formats, tokens)
}

/// What packing the activations of many tokens adds to products.
pub fn packing(brief: bool) -> Vec<Case> {
    let (cols, tokens): (&[usize], &[usize]) =
        if brief { (&[576], &[96]) } else { (&[2048, 4096, 14336], &[64, 512, 2048]) };
    let cases = |cols: &usize| {
        let shape = format!("{cols}{COLUMNS}");
        tokens.iter().map(|&tokens| Case::new("activations", &shape, "f16", tokens)).collect::<Vec<_>>()
    };
    cols.iter().flat_map(cases).collect()
}

fn of_all(
    op: &'static str,
    shapes: impl Iterator<Item = String>,
    formats: &[Format],
    tokens: &[usize],
) -> Vec<Case> {
    let of = |shape: String| {
        let cases =
            |&(format, _): &Format| tokens.iter().map(|&n| Case::new(op, &shape, format, n)).collect();
        formats.iter().flat_map::<Vec<Case>, _>(cases).collect::<Vec<_>>()
    };
    shapes.flat_map(of).collect()
}

fn model_of(name: &str) -> &'static Shape {
    MODELS.iter().find(|model| model.name == name).expect("a model of this name")
}

/// How a matrix of a format keeps its elements.
pub fn codes_of(format: &str) -> Codes {
    FORMATS.iter().find(|(name, _)| *name == format).expect("a format of this name").1
}

/// Rows and columns.
fn size_of_matrix(shape: &str) -> [usize; 2] {
    if let Some(model) = shape.strip_suffix(LOGITS).map(model_of) {
        return [model.vocab, model.width];
    }
    let matrix = MATRICES.iter().find(|matrix| matrix.0 == shape).expect("a matrix of this name");
    [matrix.1, matrix.2]
}

/// A matrix with each number of tokens: few on copies of it, many on few.
pub fn measure(report: &mut Report, cases: &[Case]) {
    let size = size_of_matrix(&cases[0].shape);
    let source = Random(7).matrix(size[0], size[1], codes_of(cases[0].format));
    for group in cases.chunk_by(|a, b| (a.tokens <= FEW) == (b.tokens <= FEW)) {
        let most = group.iter().map(|case| case.tokens).max().expect("a case");
        report.attempt(&group[0], |report| {
            let cuda = report.cuda();
            let Repeats { copies: count, launches } = repeats_of(most, source.bytes());
            let copies = copies(&cuda, &source, count);
            let mut products = Products::of_copies(cuda, (&source, copies), launches, decodes(most, 0));
            for case in group {
                products.set_step(decodes(case.tokens, 0));
                products.poison();
                let Products { machine, ops, .. } = &mut products;
                if profiles() {
                    machine.execute(ops);
                    products.assert_answer(&source);
                    report.profiled(case);
                    continue;
                }
                let measured = report.time(machine, &Launches { ops, each: 1, matrix: &|_| size });
                products.assert_answer(&source);
                let macs = tensor_macs(std::slice::from_ref(&source), case.tokens);
                measured.assert_counts(scratch(&measured.cost, case.tokens), macs);
                report.row(case, &measured);
            }
        });
    }
}

fn repeats_of(tokens: usize, bytes: usize) -> Repeats {
    let Repeats { copies, launches } = repeats(bytes);
    if tokens <= FEW {
        return Repeats { copies, launches };
    }
    Repeats { copies: copies.min(16), launches: launches.min(48) }
}

/// The gated pair with each number of tokens.
pub fn measure_gates(report: &mut Report, cases: &[Case]) {
    let (model, codes) = (model_of(&cases[0].shape), codes_of(cases[0].format));
    let pair = [7, 8].map(|seed| Random(seed).matrix(model.hidden, model.width, codes));
    for case in cases {
        report.attempt(case, |report| gate(report, case, (model, &pair)));
    }
}

fn gate(report: &mut Report, case: &Case, (model, pair): (&Shape, &[QuantMatrix; 2])) {
    let tokens = case.tokens;
    let op = |operands: &Operands| {
        let [gate, up] = [operands.matrices[0], operands.matrices[1]];
        let epilogue = Epilogue::Gated { up, activation: model.activation };
        let products = vec![Product { dst: operands.dst, matrix: gate, bias: None, epilogue }];
        let norm = Some(RmsNorm { weight: VectorId(0), eps: 1e-5 });
        Op::Matmul(Matmul { src: operands.sources[0], norm, products })
    };
    let bytes = 2 * pair[0].bytes() + size_of::<f32>() * tokens * (model.width + model.hidden);
    let cost = Cost { moved: bytes, touched: bytes, macs: 0 };
    let subject = Subject {
        step: decodes(tokens, 0),
        sources: vec![model.width],
        dst: model.hidden,
        matrices: pair,
        vectors: &[Random(11).values(model.width)],
        op: &op,
        rows: 1,
        tolerance: 0.02,
        beside: scratch(&cost, tokens) + size_of::<f32>() * model.width,
        tensor_macs: tensor_macs(pair, tokens),
    };
    subject.measure(report, case);
}

/// The time of products that each pack their activations, less the time of as many that share them.
pub fn measure_packing(report: &mut Report, cases: &[Case]) {
    for case in cases {
        report.attempt(case, |report| pack(report, case));
    }
}

fn pack(report: &mut Report, case: &Case) {
    let tokens = case.tokens;
    let cols: usize =
        case.shape.strip_suffix(COLUMNS).and_then(|cols| cols.parse().ok()).expect("a number of columns");
    let bytes = tokens * (size_of::<f32>() * (cols + 1) + size_of::<half::f16>() * cols);
    let repeats = repeats_of(tokens, bytes);
    let groups = repeats.launches.div_ceil(LAUNCHES);
    let mut layout = Layout::new(tokens);
    let sources: Vec<Place> = (0..repeats.copies).map(|_| layout.place(cols)).collect();
    // A strip of the tensor cores' operand: as little as there is to multiply.
    let strip = Random(7).matrix(16, cols, Codes::Q8_0);
    let results: Vec<Place> = (0..SHARED * LAUNCHES).map(|_| layout.place(strip.rows())).collect();
    let op = |source: usize, results: &[Place]| {
        let epilogue = Epilogue::Write(WriteMode::Store);
        let product = |&dst| Product { dst, matrix: MatrixId(0), bias: None, epilogue };
        let products = results.iter().map(product).collect();
        Op::Matmul(Matmul { src: sources[source % sources.len()], norm: None, products })
    };
    let shared: Vec<Op> = (0..groups).map(|group| op(group, &results)).collect();
    let own = |launch: usize| op(launch, &results[launch % LAUNCHES * SHARED..][..SHARED]);
    let own: Vec<Op> = (0..groups * LAUNCHES).map(own).collect();
    let backend = report.cuda();
    let matrix = backend.prepare(&WeightMatrix::Quant(strip.clone())).expect("memory");
    let weights = Weights { matrices: vec![matrix], vectors: vec![] };
    let kv = KvLayout { layers: 1, kv_heads: 1, head_dim: 32, dtype: KvDtype::F16 };
    let room = Room { layout, kv, pages: 1, ops: &own };
    let mut machine = Machine::new(backend, weights, decodes(tokens, 0), room);
    let values = Random(9).values(tokens * cols);
    sources.iter().for_each(|source| machine.write(source, &values));
    let poison = vec![f32::NAN; tokens * strip.rows()];
    results.iter().for_each(|result| machine.write(result, &poison));
    let matrix = |_| [strip.rows(), cols];
    let shared = report.time(&mut machine, &Launches { ops: &shared, each: 1, matrix: &matrix });
    let own = report.time(&mut machine, &Launches { ops: &own, each: 1, matrix: &matrix });
    results.iter().for_each(|result| assert_products(&machine.read(result), &values, &strip));
    // Of groups: as many products, and one packing instead of as many as there are launches.
    let seconds = (own.seconds * LAUNCHES as f64 - shared.seconds) / (LAUNCHES - 1) as f64;
    // On the emulated card the difference may be anything.
    let seconds = if brief() { seconds.max(1e-9) } else { seconds };
    let counted = own.counted.map(|(mut counts, launches)| {
        counts.retain(|kernel, _| kernel.ends_with("activations"));
        assert_eq!(counts.values().map(|count| count.launches as usize).sum::<usize>(), launches);
        (counts, launches)
    });
    let measured = Measured { cost: Cost { moved: bytes, touched: bytes, macs: 0 }, seconds, counted };
    // Rows are filled up to whole units of columns.
    let filling = tokens * size_of::<half::f16>() * (cols.next_multiple_of(UNIT_COLS) - cols);
    measured.assert_counts(TABLE_BYTES + filling, 0..=0);
    report.row(case, &measured);
}
