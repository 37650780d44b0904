//! The CUDA backend against the f64 reference: the table of operations, on the emulated driver or,
//! with `OTTAVA_TEST_GPU=1`, on this machine's own card.

#![cfg(feature = "cuda")]

#[path = "op_table/agree.rs"]
mod agree;
#[path = "op_table/case.rs"]
mod case;
#[path = "golden/compare.rs"]
mod compare;
mod real_models;
#[path = "op_table/table.rs"]
mod table;

use agree::{assert_agrees, assert_agrees_in, assert_refuses, assert_same_bits};
use case::run;
use compare::{Case, Run, STEP_TOKENS, cases};
use ottava::backend::cuda::{Cuda, CudaOptions};
use ottava::backend::{Backend, Epilogue, KvDtype, KvLayout, Op, PageId, Product, Write};

/// The card of this process: emulated unless the environment asks for the real one.
fn emulator() -> cuda_emu::Emulator {
    cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU")).expect("an emulator")
}

fn cuda() -> Cuda {
    emulator();
    Cuda::new(&CudaOptions::default()).unwrap_or_else(|error| panic!("{error}: {:?}", cuda_emu::last_fault()))
}

#[test]
fn the_table_agrees_with_the_reference() {
    let cuda = cuda();
    for seed in 0..3 {
        // The order of warps, blocks and streams; a real card has one of its own.
        let emulated = emulator().set_seed(seed).is_ok();
        assert_agrees(&cuda, |case| case.eps_f16);
        if !emulated {
            return;
        }
    }
    // Where the code for compute capability 9.0 was built, its kernels were among those that agreed.
    let ran = emulator().statistics();
    let of_90 = ran.keys().filter(|name| name.starts_with("sm90_")).count();
    let built = option_env!("OTTAVA_CUDA_ARCHS").is_none_or(|archs| archs.contains("90a"));
    let expected = if built && cuda.device().compute_capability == (9, 0) { 5 } else { 0 };
    assert_eq!(of_90, expected, "{:?}", ran.keys());
}

/// Where blocks share tiles, the one that comes last adds up: whichever it is, and however often.
#[test]
fn shared_tiles_agree_and_have_the_same_bits_in_any_order() {
    let cuda = cuda();
    assert_agrees_in(table::uneven(), &cuda, |case| case.eps_f16);
    for mut case in table::uneven() {
        let want = run(&cuda, &case);
        // The same again in one arena, where the first has left its counts; but not onto a residual.
        let adds = |product: &Product| matches!(product.epilogue, Epilogue::Write(Write::Add));
        if !matches!(&case.ops[..], [Op::Matmul(op)] if op.products.iter().any(adds)) {
            case.ops = [case.ops.clone(), case.ops.clone()].concat();
        }
        for seed in 1..4 {
            // A real card has an order of its own, each time.
            let _ = emulator().set_seed(seed);
            assert_same_bits(&run(&cuda, &case), &want, &format!("{}, seed {seed}", case.name));
        }
    }
}

#[test]
fn a_row_alone_has_the_bits_it_has_among_others() {
    let cuda = cuda();
    // More than 32 rows are another kernel's.
    for case in table::cases().into_iter().filter(|case| case.rows_alone().len() <= 32) {
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

#[test]
fn pages_are_copied_exported_and_imported() {
    let cuda = cuda();
    let layout = KvLayout { layers: 3, kv_heads: 2, head_dim: 40, dtype: KvDtype::Int8 };
    let mut pool = cuda.kv_pool(layout, 4).expect("a pool");
    let bytes: Vec<u8> = (0..layout.page_bytes()).map(|i| (i * 7 % 251) as u8).collect();
    cuda.import_page(&mut pool, PageId(3), &bytes).expect("a page's bytes");
    cuda.copy_page(&mut pool, PageId(3), PageId(0)).expect("two pages");
    for (page, want) in [(0, bytes.clone()), (1, vec![0; bytes.len()]), (3, bytes.clone())] {
        let mut found = vec![];
        cuda.export_page(&pool, PageId(page), &mut found).expect("a page");
        assert!(found == want, "page {page}");
    }
    assert!(cuda.copy_page(&mut pool, PageId(0), PageId(4)).is_err());
    assert!(cuda.import_page(&mut pool, PageId(0), &bytes[1..]).is_err());
    assert!(cuda.export_page(&pool, PageId(9), &mut vec![]).is_err());
}

/// Some of a model's cases.
fn check_model(name: &str, run: Run, cases: &[Case]) {
    compare::check(name, &format!("steps of {:?} tokens", run.chunks), run, cases, cuda);
}

const WHOLE: Run = Run { kv: KvDtype::F16, rms_max: 0.03, chunks: &[STEP_TOKENS] };

#[test]
fn smollm2_in_prompts_and_token_by_token() {
    // Where there is no model, the recorded cases may be missing, too.
    if real_models::path("smollm2").is_none() {
        return;
    }
    let cases = cases("smollm2");
    check_model("smollm2", WHOLE, &cases);
    check_model("smollm2", Run { chunks: &[13, 1, 40, 1, 1], ..WHOLE }, &cases[..1]);
    check_model("smollm2", Run { kv: KvDtype::Int8, rms_max: 0.2, chunks: &[7, 35, 1] }, &cases[..1]);
}

#[test]
fn gemma3_in_prompts() {
    if real_models::path("gemma3").is_none() {
        return;
    }
    check_model("gemma3", WHOLE, &cases("gemma3")[..1]);
}
