//! The CUDA backend against the f64 reference: the table of operations, on the emulated driver or,
//! with `OTTAVA_TEST_GPU=1`, on this machine's own card.

#![cfg(feature = "cuda")]

#[path = "op_table/agree.rs"]
mod agree;
#[path = "op_table/case.rs"]
mod case;
#[path = "op_table/table.rs"]
mod table;

use agree::{assert_agrees, assert_refuses, assert_same_bits};
use case::{Case, run};
use ottava::backend::Op;
use ottava::backend::cuda::{Cuda, CudaOptions};

/// The card of this process: emulated unless the environment asks for the real one.
fn cuda() -> Cuda {
    cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU")).expect("an emulator");
    Cuda::new(&CudaOptions::default()).unwrap_or_else(|error| panic!("{error}: {:?}", cuda_emu::last_fault()))
}

/// Products and attention multiply in f16 and add in f32.
fn eps(case: &Case) -> f64 {
    let in_f16 = case.ops.iter().any(|op| matches!(op, Op::Matmul(_) | Op::Attention(_)));
    if in_f16 { case.eps.max(2e-3) } else { case.eps }
}

#[test]
fn the_table_agrees_with_the_reference() {
    assert_agrees(&cuda(), eps);
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
