//! Several cards in one process: engines that run at the same time each give their own tokens, a device
//! that is lost takes no other with it, and a device that is not there is named. On emulated cards of two
//! generations.

#![cfg(all(feature = "cuda", feature = "text"))]

mod tiny;

use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_emu::{Arch, DeviceConfig, Emulator, Injection, InstallOptions};
use ottava::{Device, Engine, Request, TokenId};
use tiny::Outcome;

const MEMORY_BYTES: u64 = 512 << 20;

/// Two cards, for one test at a time; `None` and a line where the tests run on a real one.
fn cards() -> Option<(Emulator, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let options = InstallOptions::skipped_by("OTTAVA_TEST_GPU");
    let device = DeviceConfig { memory_bytes: MEMORY_BYTES, ..options.device.clone() };
    let others = vec![DeviceConfig { arch: Arch::Sm90, ..device.clone() }];
    let emulator = cuda_emu::install(&InstallOptions { device, others, ..options }).expect("an emulator");
    if emulator.reset().is_err() {
        eprintln!("skipped: two cards are emulated only");
        return None;
    }
    Some((emulator, turn))
}

/// An engine on each card.
fn engines() -> Outcome<[Engine; 2]> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny::llama()?)?;
    let engine = |ordinal| Engine::builder(&path).context_max(128).device(Device::Cuda(ordinal)).build();
    Ok([engine(0)?, engine(1)?])
}

fn request(index: usize) -> Request {
    let text: String = "the thing in the den of a hero ".chars().cycle().skip(5 * index).take(20).collect();
    Request::text(text).max_tokens(6 + index).ignore_eos()
}

fn tokens(engine: &Engine, index: usize) -> Outcome<Vec<TokenId>> {
    Ok(engine.submit(request(index))?.text()?.tokens)
}

#[test]
fn two_engines_at_once_give_each_the_tokens_of_a_run_alone() -> Outcome {
    let Some(_cards) = cards() else { return Ok(()) };
    let engines = engines()?;
    for (ordinal, engine) in engines.iter().enumerate() {
        assert!(engine.info().device_name.starts_with(&format!("cuda:{ordinal}, ")), "{:?}", engine.info());
    }
    let alone: Vec<Vec<TokenId>> = (0..3).map(|index| tokens(&engines[0], index)).collect::<Outcome<_>>()?;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .flat_map(|card| (0..3).map(move |index| (card, index)))
            .map(|(card, index)| {
                let engine = &engines[card];
                (card, index, scope.spawn(move || tokens(engine, index).map_err(|error| error.to_string())))
            })
            .collect();
        for (card, index, reader) in readers {
            let found = reader.join().expect("a reader that ends");
            assert_eq!(found.as_ref(), Ok(&alone[index]), "card {card}, request {index}");
        }
    });
    Ok(())
}

#[test]
fn a_lost_device_leaves_the_other_at_work() -> Outcome {
    let Some((emulator, _turn)) = cards() else { return Ok(()) };
    let [zero, one] = engines()?;
    let want = tokens(&zero, 1)?;
    let second = emulator.device(1).ok_or("a second card")?;
    second.inject(Injection::Error { launch: 20, code: 700 })?;
    let error = tokens(&one, 1).err().ok_or("an error was injected")?.to_string();
    assert!(error.contains("CUDA device 1") && error.contains("lost"), "{error}");
    assert_eq!(tokens(&zero, 1)?, want);
    let error = tokens(&one, 1).err().ok_or("a lost device stays lost")?.to_string();
    assert!(error.contains("lost"), "{error}");
    // It can be let go of, and the other goes on.
    drop(one);
    assert_eq!(tokens(&zero, 1)?, want);
    assert_eq!(emulator.last_fault(), None);
    Ok(())
}

#[test]
fn a_device_that_is_not_there_is_named_with_their_number() -> Outcome {
    let Some(_cards) = cards() else { return Ok(()) };
    let devices = ottava::backend::cuda::devices()?;
    assert_eq!(devices.iter().map(|info| info.ordinal).collect::<Vec<_>>(), [0, 1]);
    assert_ne!(devices[0].pci_bus_id, devices[1].pci_bus_id);
    let listed: Vec<_> = Device::list().into_iter().map(|info| (info.device, info.unusable)).collect();
    assert_eq!(listed, [(Device::Cpu, None), (Device::Cuda(0), None), (Device::Cuda(1), None)]);
    let refused = Engine::builder("none").device("cuda:3".parse()?).build();
    let error = refused.err().ok_or("there are two")?.to_string();
    assert!(error.contains("there is no CUDA device 3: the driver shows 2"), "{error}");
    Ok(())
}
