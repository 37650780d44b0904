//! What a card refuses, or loses: memory that runs out, a fault that sticks, a device that is not
//! there. Faults are injected into the emulated driver; a real card's would end its process.

#![cfg(feature = "cuda")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_emu::{DeviceConfig, Emulator, Injection, InstallOptions};
use ottava::backend::cuda::{Cuda, CudaOptions, Unavailable, probe};
use ottava::backend::{ArenaMemory, Backend, BackendError, Frame, StepQueue, Weights};
use ottava::ir::{KvDtype, KvLayout, Op, Place, Precision, Rows, StepInput, StepLimits, Unary, UnaryFn};

/// The emulated card, for one test at a time; `None` and a line on a real one.
fn card() -> Option<(Emulator, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let options = InstallOptions::skipped_by("OTTAVA_TEST_GPU");
    let device = DeviceConfig { memory_bytes: 256 << 20, ..options.device.clone() };
    let emulator = cuda_emu::install(&InstallOptions { device, ..options }).expect("an emulator");
    if emulator.reset().is_err() {
        eprintln!("skipped: faults are injected into the emulator only");
        return None;
    }
    Some((emulator, turn))
}

fn cuda() -> Cuda {
    Cuda::new(&CudaOptions::default()).expect("the emulated card")
}

const LIMITS: StepLimits = StepLimits { tokens_max: 4, outputs_max: 4 };
const NO_KV: KvLayout = KvLayout { layers: 0, kv_heads: 0, head_dim: 0, dtype: KvDtype::F16 };

/// Doubles four numbers on the card.
fn doubled(cuda: &Cuda) -> Result<Vec<f32>, BackendError> {
    let place = Place { offset: 0, rows: Rows::Fixed(1), cols: 4, precision: Precision::F32 };
    let op = Op::Unary(Unary { dst: place, src: place, f: UnaryFn::Scale(2.0) });
    let mut arena = cuda.arena(64, std::slice::from_ref(&op), LIMITS)?;
    arena.write(&place, &[1.0, 2.0, 3.0, 4.0])?;
    let (weights, mut kv) = (Weights { matrices: vec![], vectors: vec![] }, cuda.kv_pool(NO_KV, 0)?);
    let step = StepInput::default();
    let mut frame = Frame { weights: &weights, arena: &mut arena, kv: &mut kv, step: &step };
    frame.begin(cuda)?;
    cuda.execute(&op, &mut frame)?;
    let mut out = vec![0.0; 4];
    arena.read(&place, 0, &mut out)?;
    Ok(out)
}

#[test]
fn memory_that_runs_out_is_one_error_and_the_card_goes_on() {
    let Some((emulator, _turn)) = card() else { return };
    let cuda = cuda();
    let found = cuda.kv_pool(KvLayout { layers: 1, kv_heads: 1, head_dim: 8, ..NO_KV }, usize::MAX);
    assert!(matches!(found, Err(BackendError::OutOfMemory { .. })), "{found:?}");
    // An arena's values, its step's tables here and there, and so on to the last.
    for allocation in 1.. {
        emulator.inject(Injection::OutOfMemory { allocation }).expect("an emulator");
        let found = doubled(&cuda);
        if !matches!(found, Err(BackendError::OutOfMemory { .. })) {
            assert_eq!(found, Ok(vec![2.0, 4.0, 6.0, 8.0]));
            assert!(allocation > 5, "an arena has more than {allocation} allocations");
            break;
        }
        assert_eq!(doubled(&cuda), Ok(vec![2.0, 4.0, 6.0, 8.0]), "after allocation {allocation} failed");
    }
}

#[test]
fn a_lost_device_gives_the_same_error_from_then_on() {
    let Some((emulator, _turn)) = card() else { return };
    let cuda = cuda();
    emulator.inject(Injection::Error { launch: 1, code: 700 }).expect("an emulator");
    let Err(first) = doubled(&cuda) else { panic!("an error was injected") };
    assert!(matches!(first, BackendError::Device { lost: true, .. }), "{first:?}");
    assert!(first.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{first}");
    assert_eq!(doubled(&cuda), Err(first.clone()));
    assert_eq!(cuda.wait(), Err(first.clone()));
    assert_eq!(cuda.upload_vector(&[1.0]).map(drop), Err(first));
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let Some(_card) = card() else { return };
    assert_eq!(probe(7), Err(Unavailable::NoDevice { ordinal: 7, count: 1 }));
    let refused = Cuda::new(&CudaOptions { ordinal: 7, ..CudaOptions::default() }).map(drop);
    assert!(matches!(refused, Err(BackendError::Unavailable { .. })), "{refused:?}");
}

#[test]
fn a_thousand_arenas_leave_no_memory_behind() {
    let Some(_card) = card() else { return };
    let cuda = cuda();
    // A thousand arenas of 1 MiB fit into 256 MiB one after the other only.
    for _ in 0..1000 {
        cuda.arena(1 << 20, &[], LIMITS).expect("the memory of the arena before");
    }
}

#[test]
fn a_backend_may_move_to_another_thread() {
    let Some(_card) = card() else { return };
    let cuda = cuda();
    let moved = std::thread::spawn(move || doubled(&cuda)).join().expect("no panic");
    assert_eq!(moved, Ok(vec![2.0, 4.0, 6.0, 8.0]));
}
