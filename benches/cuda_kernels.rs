//! The CUDA kernels of a step on this machine's card at the shapes of real models, beside what the card's
//! memory can do: products, attention, sampling, and all that goes before and between them.
//!
//! Each kernel runs over copies of its operands, too many for the second-level cache where they are not as
//! small as in a step, launched so often that a run takes milliseconds. A run is one graph, timed by events
//! on the card (`Cuda::replay_seconds`); a figure is the median of several, divided by the launches. Answers
//! are asserted first or with it. Not criterion: it repeats and times on the host, and all programs' figures
//! become one table. `--json FILE` writes a line a case, for benches/cuda_table.py; `--seconds N` ends after
//! so many, the cases of most worth first. `--test` runs a few on the emulated card and holds the bytes and
//! multiply-adds that are printed against what it counts.

use cuda_emu::{DeviceConfig, InstallOptions};
use ottava::backend::cuda::{Cuda, CudaOptions};

#[path = "cuda_kernels/attention.rs"]
mod attention;
#[path = "cuda_kernels/cost.rs"]
mod cost;
#[path = "cuda_kernels/products.rs"]
mod products;
#[path = "cuda_kernels/report.rs"]
mod report;
#[path = "cuda_kernels/rows.rs"]
mod rows;
#[path = "cuda_kernels/subject.rs"]
mod subject;
mod support;
use report::Report;
use support::brief;
use support::product::Repeats;

/// Operands of a run together: five times the cache of an H200.
const COPIES_BYTES: usize = 320 << 20;
/// Bytes that the launches of a run read: milliseconds on any card.
const RUN_BYTES: usize = 8 << 30;

fn cuda() -> Cuda {
    Cuda::new(&CudaOptions::default()).expect("a card")
}

/// Copies of an operand and how often kernels go over them, for one that moves so many bytes.
fn repeats(bytes: usize) -> Repeats {
    if brief() {
        return Repeats { copies: 2, launches: 2 };
    }
    Repeats {
        copies: COPIES_BYTES.div_ceil(bytes).clamp(1, 512),
        launches: RUN_BYTES.div_ceil(bytes).clamp(24, 1024),
    }
}

fn main() {
    let emulator = brief().then(|| {
        let options = InstallOptions::skipped_by("OTTAVA_TEST_GPU");
        let device = DeviceConfig { memory_statistics: true, ..options.device.clone() };
        cuda_emu::install(&InstallOptions { device, ..options }).expect("an emulator")
    });
    let mut report = Report::new(emulator);
    // Held to the end: the device's context is made once.
    let cuda = cuda();
    report.ceilings(&cuda);
    products::products(&mut report);
    attention::attentions(&mut report);
    rows::sampling(&mut report);
    products::gates(&mut report);
    products::packing(&mut report);
    attention::appends(&mut report);
    rows::rows(&mut report);
    products::logits(&mut report);
    if report.wrong > 0 {
        println!("{} cases gave wrong answers", report.wrong);
        std::process::exit(1);
    }
}
