//! A model on any backend against its recorded references: tokens, logits and likelihoods,
//! teacher-forced.

use ottava::backend::Backend;
use ottava::checkpoint::{ModelFile, OpenOptions};
use ottava::ir::{KvDtype, PAGE_TOKENS, PageId, PageRef, Precision, StepInput, StepLimits, StepSequence};
use ottava::model::{Decoder, LoadOptions, Model, ModelConfig};
use ottava::{KvBudget, TokenId};
use serde_json::Value;

use crate::real_models;

/// Below this margin between the two best logits either may win.
const MARGIN_MIN: f64 = 0.25;
/// Relative difference of the mean negative log-likelihood.
const NLL_TOLERANCE: f64 = 0.005;
/// The mean over fewer tokens than this says little: one case scores as few as three.
const NLL_TOKENS_MIN: usize = 40;
/// Tokens of a step at most.
pub const STEP_TOKENS: usize = 128;
const CONTEXT_MAX: usize = 256;

/// A recorded case.
pub struct Case {
    pub name: String,
    tokens: Vec<TokenId>,
    greedy: Vec<TokenId>,
    top: Vec<Vec<(usize, f64)>>,
    margin: Vec<f64>,
    nll: Vec<f64>,
}

/// The cases of a model.
pub fn cases(name: &str) -> Vec<Case> {
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

/// How a model is run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub kv: KvDtype,
    /// How far logits may be from the reference (root mean square).
    pub rms_max: f64,
    /// Tokens of the steps, one after the other and again from the first.
    pub chunks: &'static [usize],
    /// Sequences that all have these tokens, side by side; the last one is compared.
    pub sequences: usize,
}

fn load<B: Backend>(name: &str, run: Run, backend: impl FnOnce() -> B) -> Option<Model<B>> {
    let path = real_models::path(name)?;
    let file = ModelFile::open(&path, &OpenOptions::default()).expect("the golden model opens");
    let config = ModelConfig::from_file(&file).expect("the model is supported");
    let options = LoadOptions {
        limits: StepLimits { tokens_max: STEP_TOKENS, outputs_max: STEP_TOKENS },
        kv_dtype: run.kv,
        kv: KvBudget::Bytes(64 << 20),
        context_max: CONTEXT_MAX,
        quantise: None,
        sidecar: None,
        activations: Precision::F32,
    };
    Some(Model::load(&file, &config, backend(), &options, &mut |_| {}).expect("the model loads"))
}

/// The logits after each of `ids`, computed in steps as `run` says.
fn all_logits<B: Backend>(model: &mut Model<B>, ids: &[TokenId], run: Run) -> Vec<Vec<f32>> {
    let count = run.sequences as u32;
    let mut logits: Vec<Vec<f32>> = Vec::with_capacity(ids.len());
    for &chunk in run.chunks.iter().cycle() {
        let tokens = &ids[logits.len()..(logits.len() + chunk).min(ids.len())];
        if tokens.is_empty() {
            break;
        }
        let (first, rows) = (logits.len() as u32, tokens.len() as u32);
        let pages = (first + rows).div_ceil(PAGE_TOKENS as u32);
        let own = |sequence: u32, count: u32| sequence * count..(sequence + 1) * count;
        let page = |sequence: u32, i: u32| PageRef {
            page: PageId(sequence * (CONTEXT_MAX / PAGE_TOKENS) as u32 + i),
            start: i * PAGE_TOKENS as u32,
        };
        let step = StepInput {
            tokens: tokens.repeat(run.sequences),
            positions: (0..count).flat_map(|_| first..first + rows).collect(),
            sequences: (0..count)
                .map(|i| StepSequence { rows: own(i, rows), pages: own(i, pages), window: None })
                .collect(),
            pages: (0..count).flat_map(|sequence| (0..pages).map(move |i| page(sequence, i))).collect(),
            outputs: own(count - 1, rows).collect(),
            ..StepInput::default()
        };
        model.step(&step).expect("the step runs");
        for row in 0..tokens.len() {
            let mut of_row = vec![f32::NAN; model.vocab_size()];
            model.logits(row, &mut of_row).expect("the row was asked for");
            logits.push(of_row);
        }
    }
    logits
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

fn compare<B: Backend>(model: &mut Model<B>, case: &Case, run: Run) -> Finding {
    let prompt = case.tokens.len();
    let ids: Vec<TokenId> = case.tokens.iter().chain(&case.greedy).copied().collect();
    let logits = all_logits(model, &ids[..ids.len() - 1], run);
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

/// Runs cases and compares; `what` names the backend in what is printed.
pub fn check<B: Backend>(name: &str, what: &str, run: Run, cases: &[Case], backend: impl FnOnce() -> B) {
    let Some(mut model) = load(name, run, backend) else { return };
    let findings: Vec<Finding> = cases.iter().map(|case| compare(&mut model, case, run)).collect();
    let rms: Vec<String> = findings.iter().map(|f| format!("{:.4}", f.rms)).collect();
    let [found, expected] = [0, 1].map(|i| findings.iter().map(|f| f.nll[i]).sum::<f64>());
    let relative = (found - expected).abs() / expected;
    println!("{name} {what} KV {:?}: rms {}, nll off by {relative:.5}", run.kv, rms.join(" "));
    for (case, finding) in cases.iter().zip(&findings) {
        assert!(finding.wrong.is_empty(), "{}: wrong tokens at {:?}, {what}", case.name, finding.wrong);
        let near = finding.rms <= run.rms_max;
        assert!(near, "{}: logits differ by {:.4} rms, {what} {run:?}", case.name, finding.rms);
    }
    let scored: usize = cases.iter().map(|case| case.nll.len()).sum();
    let steady = scored >= NLL_TOKENS_MIN;
    assert!(!steady || relative <= NLL_TOLERANCE, "nll {found:.4}, expected {expected:.4}, {what}");
}
