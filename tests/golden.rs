//! Real models against recorded references: tokens, logits and likelihoods, teacher-forced.
//!
//! `tests/golden/*.json` was made by an independent f64 implementation on the dequantised weights
//! of the same files; `real_models` finds them. Without them the tests say that they were skipped.

mod real_models;

use ottava::backend::{
    KvDtype, PAGE_TOKENS, PageId, PageRef, Precision, StepInput, StepLimits, StepSequence,
    cpu::{Compute, Cpu, CpuOptions, Isa},
};
use ottava::model::{Decoder, LoadOptions, Model, ModelConfig};
use ottava::weights::{ModelFile, OpenOptions};
use ottava::{Bytes, TokenId};
use serde_json::Value;

/// Below this margin between the two best logits either may win.
const MARGIN_MIN: f64 = 0.25;
/// Relative difference of the mean negative log-likelihood.
const NLL_TOLERANCE: f64 = 0.005;

/// The mean over fewer tokens than this says little: one case scores as few as three.
const NLL_TOKENS_MIN: usize = 40;

/// How a run computes, and how far its logits may be from the reference (root mean square).
#[derive(Clone, Copy, Debug)]
struct Mode {
    compute: Compute,
    kv: KvDtype,
    rms_max: f64,
}

const MODES: [Mode; 4] = [
    Mode { compute: Compute::F32, kv: KvDtype::F16, rms_max: 0.02 },
    Mode { compute: Compute::F32, kv: KvDtype::Int8, rms_max: 0.2 },
    Mode { compute: Compute::Int8, kv: KvDtype::F16, rms_max: 0.2 },
    // Both roundings together: the root of the sum of their squares.
    Mode { compute: Compute::Int8, kv: KvDtype::Int8, rms_max: 0.28 },
];

struct Case {
    name: String,
    tokens: Vec<TokenId>,
    greedy: Vec<TokenId>,
    top: Vec<Vec<(usize, f64)>>,
    margin: Vec<f64>,
    nll: Vec<f64>,
}

fn model_file(name: &str) -> Option<ModelFile> {
    let path = real_models::path(name)?;
    Some(ModelFile::open(&path, &OpenOptions::default()).expect("the golden model opens"))
}

fn cases(name: &str) -> Vec<Case> {
    let ids = |v: &Value| -> Vec<TokenId> {
        v.as_array().unwrap().iter().map(|id| TokenId(id.as_u64().unwrap() as u32)).collect()
    };
    let floats =
        |v: &Value| -> Vec<f64> { v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect() };
    let best = |v: &Value| -> Vec<(usize, f64)> {
        v.as_array()
            .unwrap()
            .iter()
            .map(|p| (p[0].as_u64().unwrap() as usize, p[1].as_f64().unwrap()))
            .collect()
    };
    real_models::golden(&format!("{name}.json"))
        .iter()
        .map(|case| Case {
            name: case["name"].as_str().unwrap().into(),
            tokens: ids(&case["tokens"]),
            greedy: ids(&case["greedy"]),
            top: case["top"].as_array().unwrap().iter().map(best).collect(),
            margin: floats(&case["margin"]),
            nll: floats(&case["nll"]),
        })
        .collect()
}

fn load(file: &ModelFile, isa: Isa, mode: Mode) -> Model<Cpu> {
    let config = ModelConfig::from_file(file).expect("the model is supported");
    let options = CpuOptions { threads: None, isa: Some(isa), compute: mode.compute };
    let options_load = LoadOptions {
        limits: StepLimits { tokens_max: 128, outputs_max: 128 },
        kv_dtype: mode.kv,
        kv_bytes: Bytes::mib(64).0,
        context_max: 256,
        quantise: None,
        activations: Precision::F32,
    };
    let cpu = Cpu::new(&options).expect("the instruction set is there");
    Model::load(file, &config, cpu, &options_load, &mut |_| {}).expect("the model loads")
}

/// The logits after each of `ids`, computed in one step.
fn all_logits(model: &mut Model<Cpu>, ids: &[TokenId]) -> Vec<Vec<f32>> {
    let rows = ids.len() as u32;
    let pages = rows.div_ceil(PAGE_TOKENS as u32);
    let step = StepInput {
        tokens: ids.to_vec(),
        positions: (0..rows).collect(),
        sequences: vec![StepSequence { rows: 0..rows, pages: 0..pages, window: None }],
        pages: (0..pages).map(|i| PageRef { page: PageId(i), start: i * PAGE_TOKENS as u32 }).collect(),
        outputs: (0..rows).collect(),
    };
    model.step(&step).expect("the step runs");
    let read = |row| {
        let mut logits = vec![f32::NAN; model.vocab_size()];
        model.logits(row, &mut logits).expect("the row was asked for");
        logits
    };
    (0..ids.len()).map(read).collect()
}

/// Negative log-likelihood of `id`, natural log.
fn nll(logits: &[f32], id: TokenId) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = logits.iter().map(|&x| (x as f64 - max).exp()).sum();
    sum.ln() + max - logits[id.index()] as f64
}

fn best(logits: &[f32]) -> usize {
    (1..logits.len()).fold(0, |best, id| if logits[id] > logits[best] { id } else { best })
}

/// What one case showed.
#[derive(Debug, Default)]
struct Finding {
    /// Root mean square difference of the recorded logits.
    rms: f64,
    /// Generated positions where another token won although the margin was clear.
    wrong: Vec<usize>,
    /// Sums of negative log-likelihoods of the prompt, found and expected.
    nll: [f64; 2],
}

fn compare(model: &mut Model<Cpu>, case: &Case) -> Finding {
    let prompt = case.tokens.len();
    let ids: Vec<TokenId> = case.tokens.iter().chain(&case.greedy).copied().collect();
    let logits = all_logits(model, &ids[..ids.len() - 1]);
    let (mut squares, mut count, mut wrong) = (0.0, 0, Vec::new());
    for (i, top) in case.top.iter().enumerate() {
        let row = &logits[prompt - 1 + i];
        if case.margin[i] > MARGIN_MIN && best(row) != case.greedy[i].index() {
            wrong.push(i);
        }
        squares += top.iter().map(|&(id, logit)| (row[id] as f64 - logit).powi(2)).sum::<f64>();
        count += top.len();
    }
    let found = (1..prompt).map(|i| nll(&logits[i - 1], ids[i])).sum();
    Finding { rms: (squares / count as f64).sqrt(), wrong, nll: [found, case.nll.iter().sum()] }
}

fn check_model(name: &str, isa: Isa, modes: &[Mode]) {
    check_cases(name, isa, modes, &cases(name));
}

fn check_cases(name: &str, isa: Isa, modes: &[Mode], cases: &[Case]) {
    let Some(file) = model_file(name) else { return };
    for &mode in modes {
        let mut model = load(&file, isa, mode);
        let findings: Vec<Finding> = cases.iter().map(|case| compare(&mut model, case)).collect();
        let rms: Vec<String> = findings.iter().map(|f| format!("{:.4}", f.rms)).collect();
        let [found, expected] = [0, 1].map(|i| findings.iter().map(|f| f.nll[i]).sum::<f64>());
        let relative = (found - expected).abs() / expected;
        println!(
            "{name} {isa} {:?} KV {:?}: rms {}, nll off by {relative:.5}",
            mode.compute,
            mode.kv,
            rms.join(" ")
        );
        for (case, finding) in cases.iter().zip(&findings) {
            assert!(finding.wrong.is_empty(), "{}: wrong tokens at {:?}, {mode:?}", case.name, finding.wrong);
            assert!(
                finding.rms <= mode.rms_max,
                "{}: logits differ by {:.4} rms, {mode:?}",
                case.name,
                finding.rms
            );
        }
        let scored: usize = cases.iter().map(|case| case.nll.len()).sum();
        let steady = scored >= NLL_TOKENS_MIN;
        assert!(!steady || relative <= NLL_TOLERANCE, "nll {found:.4}, expected {expected:.4}, {mode:?}");
    }
}

#[test]
fn smollm2_on_the_best_instruction_set() {
    check_model("smollm2", Isa::detect(), &MODES);
}

#[test]
fn gemma3_on_the_best_instruction_set() {
    check_model("gemma3", Isa::detect(), &MODES);
}

#[test]
fn smollm2_on_every_instruction_set() {
    for isa in Isa::available() {
        check_model("smollm2", isa, &[MODES[0], MODES[3]]);
    }
}

#[test]
fn gemma3_on_every_instruction_set() {
    for isa in Isa::available() {
        check_model("gemma3", isa, &[MODES[0], MODES[3]]);
    }
}

/// Short enough for an emulator: f32 on the best instruction set, int8 on all that have one. Portable
/// code is the same everywhere, and the other tests have it.
#[test]
fn smollm2_first_case_on_vector_instruction_sets() {
    let cases = cases("smollm2");
    check_cases("smollm2", Isa::detect(), &MODES[..1], &cases[..1]);
    for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::Portable) {
        check_cases("smollm2", isa, &MODES[2..3], &cases[..1]);
    }
}
