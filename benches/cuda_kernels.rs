//! The CUDA kernels of a step on this machine's card at the shapes of real models, beside what the card's
//! memory can do: products, attention, sampling, all that goes before and between them, and whole layers.
//!
//! Each kernel runs over copies of its operands, too many for the second-level cache where they are not as
//! small as in a step, launched so often that a run takes milliseconds. A run is one graph, timed by events
//! on the card (`Cuda::replay_seconds`); a figure is the median of several, divided by the launches. Answers
//! are asserted first or with it. Not criterion: it repeats and times on the host, and all programs' figures
//! become one table.
//!
//! Without a choice all cases are measured, those of most worth first:
//! - `--key` only these (`selection.rs` has the tables);
//! - `--switches` some layers, again with each switch of the backend turned off; all must have the same bits;
//! - `--profile` runs a case for each of ten kernels, once and unmeasured, for a profiler around it.
//!
//! `--json FILE` writes a line a case, for benches/cuda_table.py; `--seconds N` ends after so many. `--test`
//! runs small cases on the emulated card and holds the bytes and multiply-adds that are printed against what
//! it counts.

use cuda_emu::{DeviceConfig, InstallOptions};
use ottava::backend::Backend;
use ottava::backend::cuda::{Cuda, Matrix};
use ottava::quant::{QuantMatrix, WeightMatrix};

#[path = "cuda_kernels/attention.rs"]
mod attention;
#[path = "cuda_kernels/cost.rs"]
mod cost;
#[path = "cuda_kernels/layer.rs"]
mod layer;
#[path = "cuda_kernels/products.rs"]
mod products;
#[path = "cuda_kernels/report.rs"]
mod report;
#[path = "cuda_kernels/rows.rs"]
mod rows;
#[path = "cuda_kernels/selection.rs"]
mod selection;
#[path = "cuda_kernels/subject.rs"]
mod subject;
mod support;
use report::Report;
use selection::{Case, Selection};
use support::brief;
use support::product::Repeats;

/// Operands of a run together: five times the cache of an H200.
const COPIES_BYTES: usize = 320 << 20;
/// Bytes that the launches of a run read: milliseconds on any card.
const RUN_BYTES: usize = 8 << 30;

/// Whether a profiler looks on: a kernel is run once.
fn profiles() -> bool {
    Selection::of_arguments() == Selection::Profiled
}

/// Copies of an operand and how often kernels go over them, for one that moves so many bytes.
fn repeats(bytes: usize) -> Repeats {
    if profiles() {
        return Repeats { copies: 1, launches: 1 };
    }
    if brief() {
        return Repeats { copies: 2, launches: 2 };
    }
    Repeats {
        copies: COPIES_BYTES.div_ceil(bytes).clamp(1, 512),
        launches: RUN_BYTES.div_ceil(bytes).clamp(24, 1024),
    }
}

/// So many copies of a matrix. It is packed once: the card copies faster than the host packs.
fn copies(cuda: &Cuda, matrix: &QuantMatrix, count: usize) -> Vec<Matrix> {
    let first = cuda.prepare(&WeightMatrix::Quant(matrix.clone())).expect("memory for a matrix");
    let mut copies = vec![first];
    copies.extend((1..count).map(|_| copies[0].duplicate().expect("memory for a copy")).collect::<Vec<_>>());
    copies
}

/// All cases, small ones for an emulated card.
fn cases(brief: bool) -> Vec<Case> {
    [
        products::cases(brief),
        attention::cases(brief),
        rows::sampling(brief),
        products::gates(brief),
        products::packing(brief),
        layer::cases(brief),
        attention::appends(brief),
        rows::cases(brief),
        products::logits(brief),
    ]
    .concat()
}

/// Cases of one operation that share weights.
fn measure(report: &mut Report, cases: &[Case]) {
    let measure = match cases[0].op {
        "matmul" => products::measure,
        "gate" => products::measure_gates,
        "activations" => products::measure_packing,
        "layer" => layer::measure,
        "attention" | "append+attention" | "kv_append" => attention::measure,
        _ => rows::measure,
    };
    measure(report, cases);
}

fn main() {
    let emulator = brief().then(|| {
        selection::Selection::check(&cases(false));
        let options = InstallOptions::skipped_by("OTTAVA_TEST_GPU");
        let device = DeviceConfig { memory_statistics: true, ..options.device.clone() };
        cuda_emu::install(&InstallOptions { device, ..options }).expect("an emulator")
    });
    let selection = Selection::of_arguments();
    let chosen = selection.of(cases(brief()));
    let mut report = Report::new(emulator, selection.variants()[0]);
    // Held to the end: the device's context is made once.
    let cuda = report.cuda();
    if !profiles() {
        report.ceilings(&cuda);
    }
    report.names_variants = selection == Selection::Switched;
    for &variant in selection.variants() {
        report.variant = variant;
        chosen.chunk_by(Case::has_weights_of).for_each(|cases| measure(&mut report, cases));
    }
    if report.wrong > 0 {
        println!("{} cases gave wrong answers", report.wrong);
        std::process::exit(1);
    }
}
