//! Several cards in one process: engines that run at the same time each give their own tokens, a device
//! that is lost takes no other with it, and a device that is not there is named. On emulated cards of two
//! generations.

#![cfg(all(feature = "cuda", feature = "text"))]

mod tiny;

use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_emu::{Arch, DeviceConfig, Emulator, Injection, InstallOptions};
use ottava::engine::Event;
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
    let engine =
        |ordinal| Engine::builder().model(&path).context_max(128).device(Device::Cuda(ordinal)).build();
    Ok([engine(0)?, engine(1)?])
}

fn request(index: usize) -> Request {
    let text: String = "the thing in the den of a hero ".chars().cycle().skip(5 * index).take(20).collect();
    Request::text(text).max_tokens(6 + index).ignore_eos()
}

fn tokens(engine: &Engine, index: usize) -> Outcome<Vec<TokenId>> {
    let mut ids = Vec::new();
    for event in engine.submit(request(index))? {
        if let Event::Token { id, .. } = event? {
            ids.push(id);
        }
    }
    Ok(ids)
}

#[test]
fn two_engines_at_once_give_each_the_tokens_of_a_run_alone() -> Outcome {
    let Some(_cards) = cards() else { return Ok(()) };
    let engines = engines()?;
    for (ordinal, engine) in engines.iter().enumerate() {
        assert!(engine.info().device.starts_with(&format!("cuda:{ordinal}, ")), "{}", engine.info().device);
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
    let refused = Engine::builder().device("cuda:3".parse()?).build();
    let error = refused.err().ok_or("there are two")?.to_string();
    assert!(error.contains("there is no CUDA device 3: the driver shows 2"), "{error}");
    Ok(())
}

/// The program, which finds the emulator as a driver, as any program would.
#[cfg(feature = "cli")]
fn ottava(arguments: &[&str], variable: &str, value: &str) -> Outcome<std::process::Output> {
    let program = std::env::current_exe()?;
    let mut folders = program.ancestors().skip(1).take(3);
    let library = folders.find_map(|folder| Some(folder.join("libcuda_emu.so")).filter(|path| path.exists()));
    let library = std::env::var_os("CUDA_EMU_LIBRARY").map(Into::into).or(library).ok_or("the emulator")?;
    let folder = tempfile::tempdir()?;
    std::os::unix::fs::symlink(library, folder.path().join("libcuda.so"))?;
    let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_ottava"));
    Ok(program.args(arguments).env("LD_LIBRARY_PATH", folder.path()).env(variable, value).output()?)
}

#[cfg(feature = "cli")]
#[test]
fn the_program_lists_them() -> Outcome {
    let Some(_cards) = cards() else { return Ok(()) };
    let output = ottava(&["devices", "--json"], "CUDA_EMU_DEVICE", "sm_80,sm_90")?;
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let devices = json["devices"].as_array().ok_or("devices")?;
    let names: Vec<_> = devices.iter().filter_map(|device| device["device"].as_str()).collect();
    assert_eq!(names, ["cpu", "cuda:0", "cuda:1"], "{json}");
    assert_eq!(devices[1]["compute_capability"], "8.0");
    assert_eq!(devices[2]["compute_capability"], "9.0");
    Ok(())
}

/// Who asked for the card is told in one line, who did not goes on without it.
#[cfg(feature = "cli")]
#[test]
fn a_driver_or_card_that_cannot_be_used_is_named() -> Outcome {
    let Some(_cards) = cards() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny::llama()?)?;
    let model = path.to_str().ok_or("a path")?;
    let run = ["run", "the den", "--raw", "-n", "1", "--model", model, "--device"];
    for (variable, value, reason) in [
        (
            "CUDA_EMU_DRIVER",
            "12080",
            "the NVIDIA driver is for CUDA 12.8, this program needs CUDA 13.0: update the driver",
        ),
        (
            "CUDA_EMU_DRIVER",
            "mismatch",
            "the NVIDIA driver does not start: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        ),
        (
            "CUDA_EMU_DEVICE",
            "sm_75",
            "this program has no code for Tesla T4 (cuda-emu) (compute capability 7.5)",
        ),
    ] {
        let refused = ottava(&[&run[..], &["cuda"]].concat(), variable, value)?;
        let told = String::from_utf8(refused.stderr)?;
        assert_eq!(refused.status.code(), Some(1), "{value}: {told}");
        let lines: Vec<_> = told.lines().filter(|line| !line.starts_with("[cuda-emu]")).collect();
        assert!(lines.len() == 1 && lines[0].contains(reason), "{value}: {told}");
        let done = ottava(&[&run[..], &["auto"]].concat(), variable, value)?;
        let told = String::from_utf8(done.stderr)?;
        let noted = told.lines().any(|line| line.starts_with("note: runs on cpu") && line.contains(reason));
        assert!(done.status.success() && !done.stdout.is_empty() && noted, "{value}: {told}");
    }
    Ok(())
}
