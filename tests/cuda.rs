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

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use agree::{answered, assert_agrees, assert_refuses, assert_rows_alone, assert_same_bits};
use case::{Bench, run};
use compare::{Case, Run, STEP_TOKENS, cases};
use cuda_emu::{DeviceConfig, Emulator};
use ottava::TokenId;
use ottava::backend::cuda::{Cuda, CudaOptions};
use ottava::backend::{Backend, BackendError, PageMemory};
use ottava::ir::{
    Epilogue, KvDtype, KvLayout, LogitAdjustment, Matmul, Op, PageId, Place, Product, RowSampling, Rows,
    SampleRows, WriteMode,
};
use ottava::quant::Bits;
use table::{large, vocabularies};

/// The card, emulated unless the environment asks for the real one: for one test at a time, which sets its
/// order and counts what it runs.
fn card() -> (Emulator, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let options = cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU");
    // The same card with the driver's other answer.
    let others = vec![DeviceConfig { reserved_is_static: true, ..options.device.clone() }];
    let emulator = cuda_emu::install(&cuda_emu::InstallOptions { others, ..options });
    (emulator.expect("an emulator"), turn)
}

fn cuda(batch_invariant: bool) -> Cuda {
    let options = CudaOptions { batch_invariant, ..CudaOptions::default() };
    Cuda::new(&options).unwrap_or_else(|error| panic!("{error}: {:?}", cuda_emu::last_fault()))
}

#[test]
fn the_table_agrees_with_the_reference_and_runs_every_kernel() {
    let (emulator, _turn) = card();
    // What the tests before have run is forgotten; a real card counts nothing.
    let _ = emulator.reset();
    let cuda = [false, true].map(cuda);
    let table = answered(table::cases());
    for seed in 0..3 {
        // The order of warps, blocks and streams; a real card has one of its own.
        let emulated = emulator.set_seed(seed).is_ok();
        assert_agrees(&table, &cuda[0], |case| case.eps_f16);
        if !emulated {
            break;
        }
    }
    assert_agrees(&table, &cuda[1], |case| case.eps_f16);
    for long in [large::long_rows(), large::long_prompts(), vocabularies::cases()] {
        assert_agrees(&answered(long), &cuda[0], |case| case.eps_f16);
    }
    if emulator.is_emulated() {
        let ran = emulator.statistics().into_keys().collect();
        let all = kernels(cuda[0].device().compute_capability == (9, 0));
        let other: Vec<_> = all.symmetric_difference(&ran).collect();
        assert!(
            other.is_empty(),
            "kernels that no case runs, or that ci/sass.table does not name: {other:?}"
        );
    }
}

/// A driver may count what the system keeps of each block as a kernel's own, or not: a plan that fits by one
/// count only is a launch that the other refuses.
#[test]
fn blocks_that_are_full_are_planned_as_the_driver_counts() {
    let (emulator, _turn) = card();
    let full = answered(large::full_blocks());
    let answers = if emulator.is_emulated() { 2 } else { 1 };
    for (ordinal, batch_invariant) in (0..answers).flat_map(|ordinal| [(ordinal, false), (ordinal, true)]) {
        let cuda = Cuda::new(&CudaOptions { ordinal, batch_invariant }).expect("a card");
        assert_agrees(&full, &cuda, |case| case.eps_f16);
    }
}

/// All kernels of a step that the emulated card has code for: `ci/sass.sh` sees to it that the table names
/// them all.
fn kernels(hopper: bool) -> BTreeSet<String> {
    let built = option_env!("OTTAVA_CUDA_ARCHS").is_none_or(|archs| archs.contains("90a"));
    let hopper = hopper && built;
    let rows = include_str!("../ci/sass.table").lines().filter(|row| !row.starts_with('#'));
    let names = rows.filter_map(|row| row.split_whitespace().next()).filter(|name| *name != "loop");
    let of_a_step = |name: &&str| match *name {
        // Of bandwidth alone.
        "copy_memory" | "read_memory" => false,
        name => hopper || !name.starts_with("sm90_"),
    };
    names.filter(of_a_step).map(String::from).collect()
}

/// Where blocks share tiles, the one that comes last adds up: whichever it is, and however often.
#[test]
fn shared_tiles_agree_and_have_the_same_bits_in_any_order() {
    let (emulator, _turn) = card();
    let cuda = cuda(false);
    assert_agrees(&answered(large::uneven()), &cuda, |case| case.eps_f16);
    for mut case in large::uneven() {
        let want = run(&cuda, &case);
        // The same again in one arena, where the first has left its counts; but not onto a residual.
        let adds = |product: &Product| matches!(product.epilogue, Epilogue::Write(WriteMode::Add));
        if !matches!(&case.ops[..], [Op::Matmul(op)] if op.products.iter().any(adds)) {
            case.ops = [case.ops.clone(), case.ops.clone()].concat();
        }
        for seed in 1..4 {
            // A real card has an order of its own, each time.
            let _ = emulator.set_seed(seed);
            assert_same_bits(&run(&cuda, &case), &want, &format!("{}, seed {seed}", case.name));
        }
    }
}

#[test]
fn what_has_no_kernel_is_refused_by_its_name() {
    let _card = card();
    let cuda = cuda(false);
    for case in table::words::cases() {
        let refused = Bench::new(&cuda, &case).execute(&case.ops[0]);
        assert!(matches!(refused, Err(BackendError::Unavailable { .. })), "{}: {refused:?}", case.name);
        assert_eq!(cuda.check_kernel(&case.ops[0]), refused, "{}: refused when it is loaded, too", case.name);
    }
}

#[test]
fn a_row_alone_has_the_bits_it_has_among_others() {
    let _card = card();
    let cuda = cuda(false);
    // Products have the same bits for any number of tokens, but for Hopper's own kernels; prompts are
    // attended by another kernel than tokens.
    let is_product = |case: &case::Case| case.ops.iter().all(|op| matches!(op, Op::Matmul(_)));
    let few = |cases: Vec<case::Case>| {
        cases
            .into_iter()
            .filter(move |case| case.rows_alone().len() <= if is_product(case) { 64 } else { 32 })
    };
    for case in few(table::cases()) {
        assert_rows_alone(&cuda, &case, 1);
    }
    // Many in chunks, and one at once.
    for case in few(large::long_rows()) {
        assert_rows_alone(&cuda, &case, 15);
    }
}

/// How often sampling reads a row of logits: greedy and top-k once, what needs all weights twice.
#[test]
fn sampling_reads_logits_once_or_twice() {
    const COLS: usize = 128_256;
    /// A tile of 128 columns, and what every lane reads beside the logits.
    const BESIDE: f64 = 0.08;
    let (emulator, _turn) = card();
    let warm = RowSampling { temperature: 0.8, draw: 1 << 62, ..RowSampling::default() };
    let kinds = [
        (RowSampling::default(), 1.0),
        (RowSampling { top_k: 40, ..warm.clone() }, 1.1),
        (RowSampling { top_k: 40, top_p: 0.95, min_p: 0.02, ..warm.clone() }, 1.1),
        (RowSampling { min_p: 0.05, ..warm.clone() }, 1.1),
        (RowSampling { top_p: 0.95, ..warm.clone() }, 2.1),
        (warm, 2.0),
    ];
    let cuda = cuda(false);
    for (sampling, rows) in kinds {
        let mut case = case::Case::new(format!("{sampling:?}")).at(0..1);
        case.step.outputs = vec![0];
        case.step.sampling = vec![sampling];
        let src = case.input(&case::Numbers(3).take(COLS), COLS);
        let dst = case.gathered(1);
        case.ops = vec![Op::Sample(SampleRows { dst, src })];
        if emulator.reset().is_err() {
            // A real card counts nothing.
            return;
        }
        run(&cuda, &case);
        let read = emulator.statistics()["sample"].sum.global_bytes_read as f64 / (4 * COLS) as f64;
        assert!((1.0..rows + BESIDE).contains(&read), "{}: read {read:.2} times", case.name);
    }
}

/// A head of a vocabulary, and what is sampled from its logits: up to seven rows, each in a way of its own, some
/// adjusted, and the second of logits that are no numbers.
fn head(vocab: usize, rows: usize) -> case::Case {
    let warm = RowSampling { temperature: 0.8, draw: u64::MAX / 3, ..RowSampling::default() };
    let mut case = case::Case::new("a head and its sampling").at(0..rows as u32);
    case.step.outputs = (0..rows as u32).collect();
    let entry = |token: usize| LogitAdjustment {
        token: TokenId(token as u32),
        bias: 1e4,
        repetition: 1.0,
        penalty: 10.0 * token as f32,
    };
    case.step.adjustments = [0, vocab - 1, 77].map(entry).to_vec();
    case.step.sampling = vec![
        RowSampling::default(),
        RowSampling::default(),
        RowSampling { adjustments: 0..3, ..RowSampling::default() },
        warm.clone(),
        RowSampling { top_p: 0.9, adjustments: 1..3, ..warm.clone() },
        RowSampling { top_k: 20, ..warm.clone() },
        RowSampling { min_p: 0.1, ..warm },
    ];
    case.step.sampling.truncate(rows);
    let mut numbers = case::Numbers(31);
    let mut x = numbers.take(rows * 64);
    x.iter_mut().skip(64).take(1).for_each(|x| *x = f32::NAN);
    let matrix = case.matrix(numbers.matrix([vocab, 64], Bits::Eight, 32, false));
    let src = Place { rows: Rows::Outputs, ..case.input(&x, 64) };
    let logits = case.gathered(vocab);
    let dst = case.gathered(1);
    let product = Product { dst: logits, matrix, bias: None, epilogue: Epilogue::Write(WriteMode::Store) };
    let products = vec![product];
    case.ops =
        vec![Op::Matmul(Matmul { src, norm: None, products }), Op::Sample(SampleRows { dst, src: logits })];
    case
}

/// The tokens of a head's logits, sampled behind it and without it, and the bytes that either read.
fn sampled_with_and_without_the_head(
    emulator: Emulator,
    cuda: &Cuda,
    head: impl Fn() -> case::Case,
) -> [(Vec<f32>, u64); 2] {
    let read = || emulator.statistics().get("sample").map_or(0, |sample| sample.sum.global_bytes_read);
    let [whole, mut product, mut alone] = [(); 3].map(|()| head());
    product.ops.truncate(1);
    alone.values[1].1 = run(cuda, &product).swap_remove(0);
    alone.ops.remove(0);
    [whole, alone].map(|case| {
        let before = read();
        let tokens = run(cuda, &case).swap_remove(1);
        (tokens, read() - before)
    })
}

/// What the head notes of its logits gives the tokens that the logits give, and costs less to read.
#[test]
fn sampling_from_what_the_head_has_noted() {
    let (emulator, _turn) = card();
    for invariant in [false, true] {
        // A vocabulary that ends within a strip.
        let [(found, _), (want, _)] =
            sampled_with_and_without_the_head(emulator, &cuda(invariant), || head(5003, 7));
        assert_eq!(found, want);
        assert!(want.iter().enumerate().all(|(row, &token)| (token >= 0.0) == (row != 1)), "{want:?}");
        assert_eq!(want[2], 0.0, "the one with the least penalty");
    }
    let [(found, noted), (want, all)] =
        sampled_with_and_without_the_head(emulator, &cuda(false), || head(100_003, 1));
    assert_eq!(found, want);
    // Of what is read beside logits, each lane's bytes count.
    assert!(!emulator.is_emulated() || noted < all * 3 / 4, "{noted} of {all} bytes");
}

#[test]
fn operands_that_do_not_fit_are_refused_and_nothing_runs() {
    let _card = card();
    assert_refuses(&cuda(false), table::refused());
}

#[test]
fn pages_are_copied_exported_and_imported() {
    let _card = card();
    let cuda = cuda(false);
    let layout = KvLayout { layers: 3, kv_heads: 2, head_dim: 40, dtype: KvDtype::Int8 };
    let mut pool = cuda.kv_pool(layout, 4).expect("a pool");
    let bytes: Vec<u8> = (0..layout.page_bytes()).map(|i| (i * 7 % 251) as u8).collect();
    pool.import_page(PageId(3), &bytes).expect("a page's bytes");
    pool.copy_page(PageId(3), PageId(0)).expect("two pages");
    for (page, want) in [(0, bytes.clone()), (1, vec![0; bytes.len()]), (3, bytes.clone())] {
        let mut found = vec![];
        pool.export_page(PageId(page), &mut found).expect("a page");
        assert!(found == want, "page {page}");
    }
    assert!(pool.copy_page(PageId(0), PageId(4)).is_err());
    assert!(pool.import_page(PageId(0), &bytes[1..]).is_err());
    assert!(pool.export_page(PageId(9), &mut vec![]).is_err());
}

/// Some of a model's cases.
fn check_model(name: &str, run: Run, cases: &[Case]) {
    let _card = card();
    compare::check(name, &format!("steps of {:?} tokens", run.chunks), run, cases, || cuda(false));
}

const WHOLE: Run = Run { kv: KvDtype::F16, rms_max: 0.03, chunks: &[STEP_TOKENS], sequences: 1 };

#[test]
fn smollm2_in_prompts_and_token_by_token() {
    if real_models::path("smollm2").is_none() {
        return;
    }
    let cases = cases("smollm2");
    // The emulator is slow: there one case whole, and another one in chunks and with int8 keys below.
    let emulated = card().0.is_emulated();
    check_model("smollm2", WHOLE, if emulated { &cases[1..2] } else { &cases });
    check_model("smollm2", Run { chunks: &[13, 1, 40, 1, 1], ..WHOLE }, &cases[..1]);
    let int8 = Run { kv: KvDtype::Int8, rms_max: 0.2, chunks: &[7, 35, 1], ..WHOLE };
    check_model("smollm2", int8, &cases[..1]);
}

/// A recorded prompt is too short for the kernels of large tiles, Hopper's own among them: two are not.
#[test]
fn large_tiles_multiply_a_real_prompt() {
    if real_models::path("smollm2").is_none() {
        return;
    }
    check_model("smollm2", Run { sequences: 2, ..WHOLE }, &cases("smollm2")[..1]);
}

#[test]
fn gemma3_in_prompts() {
    if real_models::path("gemma3").is_none() {
        return;
    }
    check_model("gemma3", WHOLE, &cases("gemma3")[..1]);
}
