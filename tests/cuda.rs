//! The CUDA backend against the f64 reference: the table of operations, on the emulated driver or,
//! with `OTTAVA_TEST_GPU=1`, on this machine's own card.

#![cfg(feature = "cuda")]

#[path = "op_table/agree.rs"]
mod agree;
#[path = "op_table/case.rs"]
#[allow(dead_code, reason = "the other backends' tolerances")]
mod case;
#[path = "golden/compare.rs"]
mod compare;
mod real_models;
#[path = "op_table/table.rs"]
mod table;

use agree::{assert_agrees, assert_refuses, assert_same_bits};
use case::run;
use compare::{Run, STEP_TOKENS, cases};
use ottava::backend::KvDtype;
use ottava::backend::cuda::{Cuda, CudaOptions};

/// The card of this process: emulated unless the environment asks for the real one.
fn cuda() -> Cuda {
    cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU")).expect("an emulator");
    Cuda::new(&CudaOptions::default()).unwrap_or_else(|error| panic!("{error}: {:?}", cuda_emu::last_fault()))
}

#[test]
fn the_table_agrees_with_the_reference() {
    assert_agrees(&cuda(), |case| case.eps_f16);
}

#[test]
fn a_row_alone_has_the_bits_it_has_among_others() {
    let cuda = cuda();
    for case in table::cases() {
        let whole = run(&cuda, &case);
        for (row, alone) in case.rows_alone().iter().enumerate() {
            let of_row = whole.iter().zip(&case.results);
            let want: Vec<Vec<f32>> =
                of_row.map(|(all, place)| all[row * place.cols..][..place.cols].to_vec()).collect();
            assert_same_bits(&run(&cuda, alone), &want, &format!("{} row {row}", case.name));
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_refused_and_nothing_runs() {
    assert_refuses(&cuda());
}

/// A model's first cases, `chunk` tokens a step.
fn check_model(name: &str, kv: KvDtype, rms_max: f64, chunk: usize, count: usize) {
    let cases = cases(name);
    let run = Run { kv, rms_max, chunk };
    compare::check(name, &format!("{chunk} tokens a step"), run, &cases[..count.min(cases.len())], cuda);
}

#[test]
fn smollm2_in_prompts() {
    check_model("smollm2", KvDtype::F16, 0.05, STEP_TOKENS, usize::MAX);
}

#[test]
fn smollm2_token_by_token() {
    check_model("smollm2", KvDtype::F16, 0.05, 1, 1);
    check_model("smollm2", KvDtype::Int8, 0.2, 1, 1);
}

#[test]
fn gemma3_in_prompts_and_token_by_token() {
    check_model("gemma3", KvDtype::F16, 0.05, STEP_TOKENS, 1);
}
