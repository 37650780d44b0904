//! Out-of-range numbers and system limits: the program gives an answer or a one-line error, and never ends by
//! a signal. `ulimit` in a shell sets the memory limits.

#![cfg(target_os = "linux")]

#[path = "../../../tests/tiny/mod.rs"]
mod tiny;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ottava::backend::cpu::THREADS_MAX;
use ottava::engine::COUNT_MAX;
use ottava::{Device, Engine, EngineBuilder, EngineConfig, KvBudget, Request, TokenId};
use tiny::{Outcome, Tiny};

/// A tiny model in a temporary folder.
fn model() -> Outcome<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny::llama()?)?;
    Ok((folder, path))
}

fn builder(model: &Path) -> EngineBuilder {
    Engine::builder(model).device(Device::Cpu)
}

#[test]
fn a_builder_takes_any_number_or_says_its_range() -> Outcome {
    let (_folder, path) = model()?;
    let number = |n: usize| NonZeroUsize::new(n).expect("more than 0");
    for found in [THREADS_MAX + 1, 1 << 40, usize::MAX] {
        let error = builder(&path).threads(number(found)).build().unwrap_err().to_string();
        assert_eq!(error, format!("threads: expected 1 to {THREADS_MAX}, found {found}"));
        let config = EngineConfig { prefill_chunk: Some(found.max(COUNT_MAX + 1)), ..Default::default() };
        let error = builder(&path).scheduling(config).build().unwrap_err().to_string();
        assert!(error.starts_with(&format!("prefill_chunk: expected 1 to {COUNT_MAX}, found ")), "{error}");
    }
    // Larger than any memory: refused before any of it is touched.
    for bytes in [u64::MAX, u64::MAX / 2, 1 << 50] {
        let error = builder(&path).kv(KvBudget::Bytes(bytes)).build().unwrap_err().to_string();
        assert!(error.contains(" bytes free") && !error.contains('\n'), "{error}");
    }
    assert!(builder(&path).kv(KvBudget::Bytes(0)).build().is_err());
    assert!(builder(&path).context_max(0).build().is_err());
    let engine = builder(&path).threads(number(2)).build()?;
    let trained = engine.info().context_trained;
    let error = builder(&path).context_max(trained + 1).build().unwrap_err();
    let said = format!("expected 1 to {trained}, the trained context");
    assert!(error.to_string().contains(&said) && error.field() == Some("context_max"), "{error}");
    for end in engine.submit(Request::tokens(vec![TokenId(5); 9]).max_tokens(usize::MAX))? {
        end?;
    }
    Ok(())
}

/// Runs the program with `kib` KiB of address space.
fn within(kib: usize, arguments: &[&str]) -> Output {
    Command::new("/bin/sh")
        .args(["-c", &format!("ulimit -v {kib} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_ottava")])
        .args(arguments)
        .env("OTTAVA_OFFLINE", "1")
        .output()
        .expect("a shell starts")
}

/// Whether the program succeeded. A failure must be a one-line error with exit code 1.
fn ends(output: &Output, what: &str) -> bool {
    let error = String::from_utf8_lossy(&output.stderr);
    let lines = error.lines().filter(|line| !line.starts_with("note: ") && !line.starts_with("warning: "));
    match output.status.code() {
        Some(0) => true,
        Some(1) => {
            assert_eq!(lines.count(), 1, "{what}: {error}");
            assert!(!error.contains("panicked"), "{what}: {error}");
            false
        }
        _ => panic!("{what}: {:?}: {error}", output.status),
    }
}

/// A large vocabulary, so that logits and similar buffers take noticeable memory.
const LARGE: Tiny = Tiny::narrow(200_000);

#[test]
fn too_little_memory_ends_in_one_line() -> Outcome {
    let (folder, path) = model()?;
    let large = folder.path().join("large.gguf");
    let mut vocabulary = tiny::vocabulary::byte_level();
    vocabulary.pad(LARGE.vocab);
    let file = tiny::file_with(&LARGE, &[], |writer| {
        vocabulary.describe(writer);
        Ok(())
    })?;
    std::fs::write(&large, file)?;
    let (path, large) = (path.to_str().ok_or("a path")?, large.to_str().ok_or("a path")?);
    let run = ["run", "the den", "--raw", "-n", "3", "--device", "cpu", "--threads", "2", "--model", path];
    let with = |more: &[&'static str]| [&run[..], more].concat();
    let cases = [
        with(&[]),
        with(&["--mmap"]),
        with(&["--sidecar"]),
        with(&["--kv-budget", "300"]),
        with(&["--prefill-chunk", "65536", "--kv-budget", "100"]),
        with(&["--weights", "w4g32"]),
        [&["score", "--ids", "5,9,70", "--top", "10000", "--device", "cpu", "--model"][..], &[large]]
            .concat(),
        [&["inspect", "--model"][..], &[large]].concat(),
    ];
    for case in &cases {
        let (mut good, mut refused) = (0, 0);
        for kib in (60_000..1_000_000).step_by(90_000) {
            match ends(&within(kib, case), &format!("{kib} KiB: {case:?}")) {
                true => good += 1,
                false => refused += 1,
            }
        }
        assert!(good > 0 && refused > 0, "{good} good, {refused} refused: {case:?}");
    }
    Ok(())
}

/// JSON of many small values, which takes hundreds of times its size once it is parsed.
fn many_values(before: &str, after: &str) -> String {
    format!("{before}[{}0]{after}", "{\"\":0},".repeat(1_000_000))
}

/// A GGUF file with `keys` metadata keys and `tensors` tensors, all with short names and complete data.
fn many_entries(keys: u64, tensors: u64) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3_u32.to_le_bytes());
    file.extend([tensors, keys].map(u64::to_le_bytes).concat());
    let name = |file: &mut Vec<u8>, number: u64| {
        file.extend(6_u64.to_le_bytes());
        file.extend(format!("{number:06x}").into_bytes());
    };
    for key in 0..keys {
        name(&mut file, key);
        // The u8 value 1.
        file.extend([0, 0, 0, 0, 1]);
    }
    for tensor in 0..tensors {
        name(&mut file, tensor);
        file.extend([1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        file.extend((tensor * 32).to_le_bytes());
    }
    file.resize(file.len().next_multiple_of(32) + 32 * tensors as usize, 0);
    file
}

#[test]
fn headers_of_many_small_values_end_in_one_line() -> Outcome {
    let folder = tempfile::tempdir()?;
    let config = r#"{"model_type":"llama","vocab_size":300,"hidden_size":64,"intermediate_size":128,
        "num_hidden_layers":2,"num_attention_heads":4}"#;
    let write = |model: &str, name: &str, bytes: &[u8]| -> Outcome<String> {
        let path = folder.path().join(model);
        std::fs::create_dir_all(&path)?;
        std::fs::write(path.join("config.json"), config)?;
        std::fs::write(path.join(name), bytes)?;
        Ok(path.to_str().ok_or("a path")?.to_owned())
    };
    let header = many_values("{\"__metadata__\":", "}").into_bytes();
    let header = [&(header.len() as u64).to_le_bytes()[..], &header].concat();
    let keys = folder.path().join("keys.gguf");
    std::fs::write(&keys, many_entries(1_000_000, 0))?;
    let tensors = folder.path().join("tensors.gguf");
    std::fs::write(&tensors, many_entries(0, 400_000))?;
    let models = [
        write("config", "config.json", many_values("{\"x\":", "}").as_bytes())?,
        write("index", "model.safetensors.index.json", many_values("{\"x\":", "}").as_bytes())?,
        write("header", "model.safetensors", &header)?,
        keys.to_str().ok_or("a path")?.to_owned(),
        tensors.to_str().ok_or("a path")?.to_owned(),
    ];
    for model in &models {
        for kib in (80_000..800_000).step_by(80_000) {
            ends(&within(kib, &["inspect", "--model", model]), &format!("{kib} KiB: {model}"));
        }
    }
    Ok(())
}

#[test]
fn a_thread_that_cannot_be_started_is_one_line() -> Outcome {
    let (_folder, path) = model()?;
    let path = path.to_str().ok_or("a path")?;
    for threads in ["400", "1024"] {
        let arguments = ["run", "the", "--device", "cpu", "--model", path, "--threads", threads];
        let output = within(600_000, &arguments);
        assert!(!ends(&output, threads));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(&format!("of {threads} could not start")), "{error}");
    }
    for threads in ["1025", "18446744073709551615"] {
        let arguments = ["run", "the", "--device", "cpu", "--model", path, "--threads", threads];
        let output = within(600_000, &arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{threads}: {error}");
        assert!(error.contains("from 1 to 1024") && error.lines().count() == 1, "{error}");
    }
    Ok(())
}
