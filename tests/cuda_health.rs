//! A device's health where it can be asked, and a typed reason where not, which fails nothing. Without
//! NVIDIA's management library, as on machines without a card, the reason is what is tested.

#![cfg(feature = "cuda")]

mod tiny;

use ottava::backend::cuda::{Cuda, CudaOptions};
use ottava::backend::{Backend, NoHealth};
use ottava::{Device, Engine};
use tiny::Outcome;

#[test]
fn health_is_known_or_a_reason_is_given() -> Outcome {
    let emulator = cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU"))?;
    let cuda = Cuda::new(&CudaOptions::default())?;
    let place = &cuda.device().pci_bus_id;
    match cuda.monitor() {
        Err(NoHealth::NotBuilt) if !cfg!(feature = "nvml") => {
            eprintln!("skipped: built without the feature nvml")
        }
        Err(NoHealth::NoLibrary(reason)) => assert!(reason.contains("nvidia-ml"), "{reason}"),
        // The emulated card is at a place where the machine may have another or none.
        Err(NoHealth::NoDevice { pci_bus_id, .. }) if emulator.is_emulated() => {
            assert_eq!(&pci_bus_id, place)
        }
        Err(NoHealth::LibraryFailed(reason)) if emulator.is_emulated() => assert!(!reason.is_empty()),
        Err(why) => panic!("{why}"),
        Ok(monitor) => {
            let health = monitor.health()?;
            if !emulator.is_emulated() {
                assert_eq!(health.name.as_ref(), Some(&cuda.device().name), "the same card: {health:?}");
                let bytes = health.memory_used_bytes.zip(health.memory_free_bytes);
                assert!(bytes.is_some_and(|(used, free)| used > 0 && free > 0), "{health:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn an_engine_runs_whether_its_health_is_known_or_not() -> Outcome {
    let emulator = cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU"))?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny::llama()?)?;
    let engine = |device| Engine::builder(&path).context_max(64).device(device).build();
    assert_eq!(engine(Device::Cpu)?.health(), Err(NoHealth::Cpu));
    let cuda = engine(Device::Cuda(0))?;
    let before = cuda.health();
    assert!(emulator.is_emulated() || before.is_ok() || !cfg!(feature = "nvml"), "{before:?}");
    assert_eq!(cuda.score(&[ottava::TokenId(1), ottava::TokenId(2)], 0)?.nll.len(), 1);
    Ok(())
}
