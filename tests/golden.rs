//! Real models against recorded references: tokens, logits and likelihoods, teacher-forced.
//!
//! `tests/golden/*.json` was made by an independent f64 implementation on the dequantised weights
//! of the same files; `real_models` finds them. Without them the program's last lines say what was not run.

#[path = "golden/compare.rs"]
mod compare;
mod real_models;

use compare::{Case, Run, STEP_TOKENS, cases};
use ottava::backend::cpu::{Compute, Cpu, CpuOptions, Isa};
use ottava::ir::KvDtype;

/// How a run computes, and how far its logits may be from the reference (root mean square).
type Mode = (Compute, KvDtype, f64);

const MODES: [Mode; 4] = [
    (Compute::F32, KvDtype::F16, 0.02),
    (Compute::F32, KvDtype::Int8, 0.2),
    (Compute::Int8, KvDtype::F16, 0.15),
    // Both roundings together: the root of the sum of their squares.
    (Compute::Int8, KvDtype::Int8, 0.23),
];

fn check_model(name: &str, isa: Isa, modes: &[Mode]) {
    check_cases(name, isa, modes, &cases(name));
}

fn check_cases(name: &str, isa: Isa, modes: &[Mode], cases: &[Case]) {
    for &(compute, kv, rms_max) in modes {
        let options = CpuOptions { isa: Some(isa), compute, ..CpuOptions::default() };
        let cpu = || Cpu::new(&options).expect("the instruction set is there");
        compare::check(
            name,
            &format!("{isa} {compute:?}"),
            Run { kv, rms_max, chunks: &[STEP_TOKENS], sequences: 1 },
            cases,
            cpu,
        );
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
