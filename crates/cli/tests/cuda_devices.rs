//! NVIDIA cards in the program's output, with an emulated driver: their list, and why a card is not used.

#![cfg(feature = "cuda")]

#[path = "../../../tests/tiny/mod.rs"]
mod tiny;

use tiny::Outcome;

/// Whether the tests run on a real card, with a note that they are skipped: they need emulated drivers.
fn has_a_real_card() -> bool {
    let real = std::env::var_os("OTTAVA_TEST_GPU").is_some();
    if real {
        eprintln!("skipped: drivers are emulated only");
    }
    real
}

/// Runs the program with the emulator as `libcuda.so` in its library path.
fn ottava(arguments: &[&str], variable: &str, value: &str) -> Outcome<std::process::Output> {
    let program = std::env::current_exe()?;
    // Linking the emulator builds its driver library next to the test programs.
    let _ = cuda_emu::InstallOptions::default();
    let mut folders = program.ancestors().skip(1).take(3);
    let library = folders.find_map(|folder| Some(folder.join("libcuda_emu.so")).filter(|path| path.exists()));
    let library = std::env::var_os("CUDA_EMU_LIBRARY").map(Into::into).or(library).ok_or("the emulator")?;
    let folder = tempfile::tempdir()?;
    std::os::unix::fs::symlink(library, folder.path().join("libcuda.so"))?;
    let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_ottava"));
    Ok(program.args(arguments).env("LD_LIBRARY_PATH", folder.path()).env(variable, value).output()?)
}

#[test]
fn the_program_lists_them() -> Outcome {
    if has_a_real_card() {
        return Ok(());
    }
    let output = ottava(&["devices", "--json"], "CUDA_EMU_DEVICE", "sm_80,sm_90")?;
    let json: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let devices = json["devices"].as_array().ok_or("devices")?;
    let names: Vec<_> = devices.iter().filter_map(|device| device["device"].as_str()).collect();
    assert_eq!(names, ["cpu", "cuda:0", "cuda:1"], "{json}");
    assert_eq!(devices[1]["compute_capability"], "8.0");
    assert_eq!(devices[2]["compute_capability"], "9.0");
    Ok(())
}

/// `--device cuda` fails with one line; `--device auto` runs on the CPU, with a note.
#[test]
fn a_driver_or_card_that_cannot_be_used_is_named() -> Outcome {
    if has_a_real_card() {
        return Ok(());
    }
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
