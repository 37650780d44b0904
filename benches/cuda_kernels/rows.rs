//! Operations on rows and on single elements, and sampling: all that is neither product nor attention.

use std::sync::Arc;

use ottava::TokenId;
use ottava::ir::{
    Binary, BinaryFn, Embed, GatherOutputs, LogitAdjustment, Normalize, Op, Place, RmsNorm, RopeAngles,
    RowSampling, Rows, SampleRows, Softmax, StepInput, Unary, UnaryFn, VectorId, WriteMode,
};
use ottava::quant::QuantMatrix;

use super::report::Report;
use super::selection::Case;
use super::subject::{Operands, Subject};
use super::support::decodes;
use super::support::random::{Codes, Random};
use super::support::shapes::{LLAMA_3_1_8B, LLAMA_3_2_1B, QWEN2_5_1_5B, SMOLLM2_135M, Shape};

const MODELS: [Shape; 4] = [LLAMA_3_2_1B, LLAMA_3_1_8B, QWEN2_5_1_5B, SMOLLM2_135M];
const TOKENS: [usize; 4] = [1, 16, 64, 512];
const OPERATIONS: [&str; 6] =
    ["rms_norm", "rope_angles", "gather_outputs", "activation", "multiply", "softmax"];
/// The format of sampling that is not greedy.
const DRAWN: &str = "drawn";
const SEQUENCES: [usize; 3] = [1, 16, 64];
/// Tables of embeddings, with so many rows here: more would only take longer to make.
const TABLES: [(&str, Codes); 2] = [("w8g32", Codes::Q8_0), ("w4g32", Codes::Q4_0)];
const TABLE_ROWS: usize = 8192;
/// Logits of a row that penalties change.
const ADJUSTED: usize = 256;
/// Bytes of a step's tables that a launch touches, beside those of each token.
const STEP_BYTES: usize = 256;
const TOKEN_BYTES: usize = 4;

/// Tokens at many places of a vocabulary and of a text.
fn tokens_of(count: usize) -> StepInput {
    let spread = |row: usize| (row * 7919 + 1) % TABLE_ROWS;
    StepInput {
        tokens: (0..count).map(|row| TokenId(spread(row) as u32)).collect(),
        positions: (0..count).map(|row| spread(row) as u32).collect(),
        ..decodes(count, 0)
    }
}

/// One that reads `sources` and has no weights.
fn plain<'s>(tokens: usize, sources: &[usize], dst: usize, op: &'s dyn Fn(&Operands) -> Op) -> Subject<'s> {
    Subject {
        step: tokens_of(tokens),
        sources: sources.to_vec(),
        dst,
        matrices: &[],
        vectors: &[],
        op,
        rows: tokens,
        tolerance: 4e-6,
        beside: STEP_BYTES + TOKEN_BYTES * tokens,
        tensor_macs: 0..=0,
    }
}

/// All but sampling.
pub fn cases(brief: bool) -> Vec<Case> {
    let (models, tokens): (&[Shape], &[usize]) =
        if brief { (&MODELS[3..], &[1, 5]) } else { (&MODELS, &TOKENS) };
    let operations =
        TABLES.map(|(format, _)| ("embed", format)).into_iter().chain(OPERATIONS.map(|op| (op, "f32")));
    let cases = |model: &Shape| {
        let all = |(op, format)| tokens.iter().map(move |&n| Case::new(op, model.name, format, n));
        operations.clone().flat_map(all).collect::<Vec<_>>()
    };
    models.iter().flat_map(cases).collect()
}

/// Of each vocabulary the greedy token, and one that is drawn after everything else that a request may ask for.
pub fn sampling(brief: bool) -> Vec<Case> {
    let (models, rows): (&[Shape], &[usize]) =
        if brief { (&MODELS[3..], &[2]) } else { (&MODELS[1..], &SEQUENCES) };
    let cases = |model: &Shape| {
        let of = |format| rows.iter().map(move |&rows| Case::new("sample", model.name, format, rows));
        ["greedy", DRAWN].into_iter().flat_map(of).collect::<Vec<_>>()
    };
    models.iter().flat_map(cases).collect()
}

/// Cases of one operation.
pub fn measure(report: &mut Report, cases: &[Case]) {
    let model = MODELS.iter().find(|model| model.name == cases[0].shape).expect("a model of this name");
    let codes = TABLES.iter().find(|(format, _)| *format == cases[0].format).map(|(_, codes)| *codes);
    let table = codes.map(|codes| Random(7).matrix(TABLE_ROWS, model.width, codes));
    for case in cases {
        report.attempt(case, |report| match (&table, case.op) {
            (Some(table), _) => embed(report, model, table, case),
            (None, "sample") => sample(model.vocab, case.tokens, case.format == DRAWN).measure(report, case),
            (None, _) => of_model(report, model, case),
        });
    }
}

fn embed(report: &mut Report, model: &Shape, table: &QuantMatrix, case: &Case) {
    let op =
        |operands: &Operands| Op::Embed(Embed { dst: operands.dst, table: operands.matrices[0], scale: 1.0 });
    let subject = plain(case.tokens, &[], model.width, &op);
    // A row's codes lie between those of the row 8 further on, its scales between those of its strip.
    let beside = subject.beside + case.tokens * model.width * 2;
    Subject { matrices: std::slice::from_ref(table), beside, ..subject }.measure(report, case);
}

/// Columns that an operation reads, columns of its result, and of f32 that it reads beside them; and what it is.
type Operation<'o> = (Vec<usize>, usize, usize, &'o dyn Fn(&Operands) -> Op);

/// One of [`OPERATIONS`].
fn of_model(report: &mut Report, model: &Shape, case: &Case) {
    let (width, hidden, dim) = (model.width, model.hidden, model.heads.dim);
    let frequency = |i: usize| 10_000_f64.powf(-2.0 * i as f64 / dim as f64);
    let inv_freq: Arc<[f64]> = (0..dim / 2).map(frequency).collect();
    let norm = |o: &Operands| {
        let norm = RmsNorm { weight: VectorId(0), eps: 1e-5 };
        Op::Norm(Normalize { dst: o.dst, src: o.sources[0], norm: norm.into(), write: WriteMode::Store })
    };
    let angles = |o: &Operands| {
        Op::RopeAngles(RopeAngles { dst: o.dst, inv_freq: Arc::clone(&inv_freq), magnitude: 1.0 })
    };
    let gather = |o: &Operands| {
        Op::GatherOutputs(GatherOutputs { dst: Place { rows: Rows::Outputs, ..o.dst }, src: o.sources[0] })
    };
    let activate = |o: &Operands| {
        Op::Unary(Unary { dst: o.dst, src: o.sources[0], f: UnaryFn::Activation(model.activation) })
    };
    let multiply =
        |o: &Operands| Op::Binary(Binary { dst: o.dst, a: o.sources[0], b: o.sources[1], f: BinaryFn::Mul });
    let softmax = |o: &Operands| Op::Softmax(Softmax { dst: o.dst, src: o.sources[0] });
    let (sources, dst, shared, op): Operation<'_> = match case.op {
        "rms_norm" => (vec![width], width, width, &norm),
        "rope_angles" => (vec![], dim, dim, &angles),
        "gather_outputs" => (vec![width], width, 0, &gather),
        "activation" => (vec![hidden], hidden, 0, &activate),
        "multiply" => (vec![hidden, hidden], hidden, 0, &multiply),
        "softmax" => (vec![hidden], hidden, 0, &softmax),
        other => panic!("no operation {other}"),
    };
    let gain = [Random(11).values(width)];
    let subject = plain(case.tokens, &sources, dst, op);
    let beside = subject.beside + size_of::<f32>() * shared;
    Subject { vectors: &gain, beside, ..subject }.measure(report, case);
}

fn sample(vocab: usize, rows: usize, drawn: bool) -> Subject<'static> {
    let subject = plain(rows, &[vocab], 1, &|o| Op::Sample(SampleRows { dst: o.dst, src: o.sources[0] }));
    let step = if drawn { drawn_rows(rows, vocab) } else { tokens_of(rows) };
    let adjustments = size_of::<LogitAdjustment>() * step.adjustments.len();
    // Ids are written for the host, too.
    let beside = subject.beside + adjustments + (size_of::<RowSampling>() + size_of::<TokenId>()) * rows;
    // The reference sorts whole vocabularies.
    Subject { step, beside, rows: rows.min(4), ..subject }
}

fn drawn_rows(rows: usize, vocab: usize) -> StepInput {
    let mut random = Random(13);
    let row = |row: usize| RowSampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.02,
        draw: ((random.unit() + 1.0) * 2f32.powi(63)) as u64,
        adjustments: (row * ADJUSTED) as u32..((row + 1) * ADJUSTED) as u32,
    };
    let sampling = (0..rows).map(row).collect();
    // A logit is adjusted again by each launch, and stays a number.
    let adjusted = |at: usize| LogitAdjustment {
        token: TokenId((at * 61 % vocab) as u32),
        bias: 0.0,
        repetition: 1.0,
        penalty: 0.5,
    };
    StepInput { sampling, adjustments: (0..rows * ADJUSTED).map(adjusted).collect(), ..tokens_of(rows) }
}
