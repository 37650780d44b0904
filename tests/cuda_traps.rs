//! What has gone wrong for others with cudarc or the driver, trap by trap, with what keeps us out of each:
//! a test here, a test elsewhere by its name, or the reason why it cannot be fallen into.
//!
//! 1. Calls that panic where there is no driver, the printing of an error among them: `cuda_absent`.
//! 2. Features that stop a build, or that somebody else's contradict: [`the_bindings_are_those_that_fit`];
//!    what our own build needs: `build_script`.
//! 3. Functions that an older driver lacks, which panic when they are called: the same test, and
//!    `cuda_devices::a_driver_or_card_that_cannot_be_used_is_named`, which looks at the version first.
//! 4. Modules that load with the feature `nvrtc` only: the thin layer has no such condition.
//! 5. Events for each slice, launches that wait for them, streams that a capture refuses: the thin layer has
//!    none, and `cuda_step` counts the driver's calls of a step.
//! 6. Events of a capture that are used outside of it: the one event of a step is recorded behind the graph;
//!    the emulator knows the error, and `cuda_graph` would meet it.
//! 7. Reads of page-locked memory that do not wait for its copy: `cuda_step` compares the tokens of a step
//!    that nobody has waited for; [`page_locked_memory_is_left_alone_while_a_copy_needs_it`].
//! 8. Copies as long as the host's side: [`copies_are_as_long_as_both_sides`], and `cuda` for pages.
//! 9. Page-locked memory that the host reads slowly, or that changes or goes under a copy: it is allocated
//!    without flags, so cached; the second test of 7; `page_locked_memory_goes_after_its_copies_have_run` in
//!    the backend's `memory.rs`.
//! 10. Errors that show in a later, unrelated call, and devices that are lost: `cuda_faults` and
//!     `cuda_engine::a_device_lost_under_way_fails_every_request_and_hangs_none`.
//! 11. Pools that keep what was freed, allocations in a step: `cuda_step` counts none, `cuda_faults` makes a
//!     thousand arenas, `cuda_engine` counts what a load keeps that fails.
//! 12. Graphs whose memory has moved: `cuda_graph`.
//! 13. Arguments of another type or order: `params.rs` checks sizes, the table of operations in `cuda` the
//!     rest; kernels of more than 48 KiB of shared memory are in it, too.
//! 14. NCCL's communicators: there are none.
//! 15. Libraries that are looked for in folders of one architecture: nothing is linked; the names that are
//!     loaded are in `driver.rs`.
//! 16. Slices that panic when they are copied or cut: the thin layer has addresses, and ours are cut with
//!     checks (the test of 8).
//!
//! That the safe layer is not used at all (4, 5, 6, 14, 16) is [`only_the_thin_layer_is_used`].

#![cfg(feature = "cuda")]

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_emu::InstallOptions;
use cudarc::driver::sys;
use ottava::TokenId;
use ottava::backend::cuda::{Cuda, CudaOptions};
use ottava::backend::{ArenaMemory, Backend, BackendError, Frame, StepQueue, Weights};
use ottava::ir::{
    Embed, KvDtype, KvLayout, LogitAdjustment, MatrixId, Op, Place, Precision, RowSampling, Rows, StepInput,
    StepLimits,
};
use ottava::quant::{DenseMatrix, DenseValues, WeightMatrix};

/// The card, for one test at a time.
fn cuda() -> (Cuda, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let emulator = cuda_emu::install(&InstallOptions::skipped_by("OTTAVA_TEST_GPU")).expect("an emulator");
    // A real card is as the tests before have left it.
    let _ = emulator.reset();
    (Cuda::new(&CudaOptions::default()).expect("a card"), turn)
}

const COLS: usize = 4;
const LIMITS: StepLimits = StepLimits { tokens_max: 4, outputs_max: 4 };
const NO_KV: KvLayout = KvLayout { layers: 0, kv_heads: 0, head_dim: 0, dtype: KvDtype::F16 };

fn place(offset: usize, rows: Rows) -> Place {
    Place { offset, rows, cols: COLS, precision: Precision::F32 }
}

/// A table whose row `id` is of `id`s.
fn weights(cuda: &Cuda) -> Weights<Cuda> {
    let values = DenseValues::F32((0..10 * COLS).map(|i| (i / COLS) as f32).collect());
    let table = WeightMatrix::Dense(DenseMatrix::new(10, COLS, values).expect("a matrix"));
    Weights { matrices: vec![cuda.prepare(&table).expect("memory")], vectors: vec![] }
}

/// One token, whose logits have so many adjustments.
fn step(token: u32, adjusted: u32) -> StepInput {
    let adjust = |id| LogitAdjustment { token: TokenId(id), bias: 1.0, repetition: 1.0, penalty: 0.0 };
    StepInput {
        tokens: vec![TokenId(token)],
        positions: vec![0],
        outputs: vec![0],
        sampling: vec![RowSampling { adjustments: 0..adjusted, ..RowSampling::default() }],
        adjustments: (0..adjusted).map(adjust).collect(),
        ..StepInput::default()
    }
}

#[test]
fn the_bindings_are_those_that_fit() {
    let manifest = include_str!("../Cargo.toml");
    let line = manifest.lines().find(|line| line.starts_with("cudarc = ")).expect("cudarc");
    let features =
        line.split_once("features = [").and_then(|(_, rest)| rest.split_once(']')).expect("features");
    let features: Vec<&str> = features.0.split(',').map(|name| name.trim().trim_matches('"')).collect();
    let bindings: Vec<_> = features.iter().filter(|name| name.starts_with("cuda-")).collect();
    assert!(line.contains("default-features = false"), "{line}");
    assert_eq!(bindings.len(), 1, "one version, whatever the machine that builds has: {line}");
    // This one yields where another crate of the program links the driver.
    assert!(features.contains(&"fallback-dynamic-loading"), "{line}");
    let others = ["dynamic-loading", "dynamic-linking", "static-linking", "nvrtc", "nccl"];
    assert!(!others.iter().any(|other| features.contains(other)), "{line}");
    // The oldest driver that is let through has all of their functions.
    assert_eq!(*bindings[0], format!("cuda-{}", sys::CUDA_VERSION));
    const { assert!(sys::CUDA_VERSION <= 13_000) };
}

#[test]
fn only_the_thin_layer_is_used() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backend/cuda");
    let mut seen = 0;
    for file in std::fs::read_dir(folder).expect("the backend") {
        let path = file.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("text");
        for (at, _) in text.match_indices("cudarc::") {
            let rest = &text[at + "cudarc::".len()..];
            let thin = ["driver::result", "driver::sys"].iter().any(|module| rest.starts_with(module));
            assert!(thin, "{}: cudarc::{}", path.display(), rest.lines().next().unwrap_or_default());
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen} uses of cudarc");
}

#[test]
fn copies_are_as_long_as_both_sides() {
    let (cuda, _turn) = cuda();
    let place = place(0, Rows::Fixed(2));
    let mut arena = cuda.arena(size_of::<f32>() * 2 * COLS, &[], LIMITS).expect("an arena");
    let whole = [1.0; 2 * COLS];
    arena.write(&place, &whole).expect("all of it");
    let refused = |result| matches!(result, Err(BackendError::Shape { .. }));
    assert!(refused(arena.write(&place, &[2.0; 3 * COLS])));
    for (first, rows) in [(0, 3), (1, 2), (usize::MAX, 1)] {
        let mut out = vec![0.0; rows * COLS];
        assert!(refused(arena.read(&place, first, &mut out)), "{rows} rows from {first}");
    }
    let mut out = [0.0; 2 * COLS];
    arena.read(&place, 0, &mut out).expect("all of it");
    assert_eq!(out, whole, "what was refused was not begun");
}

/// Two backends have a stream each, on one card too: neither waits for what the other has begun.
#[test]
fn memory_of_another_backend_is_refused() {
    let (one, _turn) = cuda();
    let two = Cuda::new(&CudaOptions::default()).expect("the same card");
    let (own, others) = (weights(&one), weights(&two));
    let arena = |cuda: &Cuda| cuda.arena(64, &[], LIMITS).expect("an arena");
    let pool = |cuda: &Cuda| cuda.kv_pool(NO_KV, 0).expect("a pool");
    let step = step(1, 0);
    let begins = |weights, mut arena, mut kv| {
        Frame { weights, arena: &mut arena, kv: &mut kv, step: &step }.begin(&one)
    };
    assert_eq!(begins(&own, arena(&one), pool(&one)), Ok(()));
    for refused in [
        begins(&others, arena(&one), pool(&one)),
        begins(&own, arena(&two), pool(&one)),
        begins(&own, arena(&one), pool(&two)),
    ] {
        assert!(matches!(refused, Err(BackendError::Shape { .. })), "{refused:?}");
    }
}

/// Steps follow each other without anybody waiting; the last has longer tables, for which the memory of the
/// others goes, and then the arena goes under the copy of the last.
#[test]
fn page_locked_memory_is_left_alone_while_a_copy_needs_it() {
    const STEPS: u32 = 4;
    let (cuda, _turn) = cuda();
    let weights = weights(&cuda);
    let place = |token: u32| place(64 * token as usize, Rows::Tokens);
    let ops: Vec<Op> = (0..STEPS)
        .map(|token| Op::Embed(Embed { dst: place(token), table: MatrixId(0), scale: 1.0 }))
        .collect();
    let mut arena = cuda.arena(64 * STEPS as usize, &ops, LIMITS).expect("an arena");
    let mut kv = cuda.kv_pool(NO_KV, 0).expect("a pool");
    let mut begin = |arena: &mut _, token: u32, adjusted| {
        let step = step(token, adjusted);
        let mut frame = Frame { weights: &weights, arena, kv: &mut kv, step: &step };
        frame.begin(&cuda).expect("a step");
        cuda.execute(&ops[token as usize], &mut frame).expect("a launch");
    };
    (0..STEPS).for_each(|token| begin(&mut arena, token, if token + 1 == STEPS { 1000 } else { 0 }));
    for token in 0..STEPS {
        let mut out = [f32::NAN; COLS];
        arena.read(&place(token), 0, &mut out).expect("a row");
        assert_eq!(out, [token as f32; COLS]);
    }
    begin(&mut arena, 0, 0);
    drop(arena);
    assert_eq!((cuda.wait(), cuda_emu::last_fault()), (Ok(()), None));
}
