//! Killed loads and special files: the next run finds neither leftover temporaries nor a half-written file,
//! and does not block.

#![cfg(target_os = "linux")]

#[path = "../../../tests/tiny/mod.rs"]
mod tiny;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tiny::{Outcome, Tiny};

/// A model with about 10 MB of packed weights, so that writing them takes a while.
const MODEL: Tiny = Tiny::narrow(150_000);

const PATIENCE: Duration = Duration::from_secs(60);

fn folder() -> Outcome<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.gguf");
    let mut vocabulary = tiny::vocabulary::byte_level();
    vocabulary.pad(MODEL.vocab);
    let file = tiny::file_with(&MODEL, &[], |writer| {
        vocabulary.describe(writer);
        Ok(())
    })?;
    fs::write(&path, file)?;
    Ok((folder, path))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn temporaries(folder: &Path) -> Vec<String> {
    names(folder).into_iter().filter(|name| name.ends_with(".tmp")).collect()
}

/// A load with a sidecar, in a shell that first runs `before`.
fn load(before: &str, model: &Path) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("{before} exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_ottava")]);
    command.args(["score", "--ids", "5,9,70", "--sidecar", "--device", "cpu", "--threads", "1", "--model"]);
    command.arg(model).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Runs a load that must succeed.
fn loads(model: &Path) -> Output {
    let output = load("", model).output().expect("a shell starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn signal(child: &Child, signal: &str) {
    let sent = Command::new("/bin/sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status();
    assert!(sent.is_ok_and(|status| status.success()), "{signal}");
}

/// Sends SIGSTOP and waits until all threads have stopped: each finishes its system call first.
fn stop(child: &Child) {
    signal(child, "STOP");
    let stopped = |task: fs::DirEntry| {
        // A thread that ended after the folder was read has no state.
        let state = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        state.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['T', 'Z', 'X']))
    };
    let tasks =
        || fs::read_dir(format!("/proc/{}/task", child.id())).expect("a child that is not waited for");
    while !tasks().flatten().all(stopped) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a process holds the file's lock. A file that was just created is not locked yet.
fn is_held(file: &Path) -> bool {
    let file = fs::File::open(file).expect("a temporary of a stopped load");
    matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock))
}

/// Starts a load and returns it while it writes its temporary. `None` if the load ended first.
fn writing(model: &Path) -> Option<Child> {
    let folder = model.parent().expect("a folder");
    let before = temporaries(folder);
    let mut child = load("", model).spawn().expect("a shell starts");
    // `before` has the leftovers of other loads, so only a new name counts.
    while temporaries(folder).iter().all(|name| before.contains(name)) {
        if child.try_wait().expect("a child").is_some() {
            fs::remove_file(model.with_file_name("model.gguf.packed")).expect("what it wrote");
            return None;
        }
    }
    Some(child)
}

#[test]
fn what_killed_loads_leave_is_removed_by_the_next() -> Outcome {
    let (folder, path) = folder()?;
    // The file size limit kills the load by a signal in the middle of the write.
    let killed = load("ulimit -f 8000;", &path).status()?;
    assert!(killed.code().is_none(), "{killed:?}");
    assert_eq!(temporaries(folder.path()).len(), 1);
    let killed = load("ulimit -f 9000;", &path).status()?;
    assert!(killed.code().is_none(), "{killed:?}");
    assert_eq!(temporaries(folder.path()).len(), 1, "each removes what the one before has left");
    let mut killed = 0;
    for _ in 0..8 {
        let Some(mut child) = writing(&path) else { continue };
        child.kill()?;
        child.wait()?;
        killed += temporaries(folder.path()).len();
        if path.with_file_name("model.gguf.packed").exists() {
            fs::remove_file(path.with_file_name("model.gguf.packed"))?;
        }
    }
    assert!(killed > 0, "no load was killed while it wrote");
    loads(&path);
    assert_eq!(names(folder.path()), ["model.gguf", "model.gguf.packed"]);
    // Leftovers next to a valid sidecar are removed, too.
    fs::rename(path.with_file_name("model.gguf.packed"), folder.path().join("aside"))?;
    load("ulimit -f 8000;", &path).status()?;
    fs::rename(folder.path().join("aside"), path.with_file_name("model.gguf.packed"))?;
    assert_eq!(temporaries(folder.path()).len(), 1);
    loads(&path);
    assert_eq!(names(folder.path()), ["model.gguf", "model.gguf.packed"]);
    Ok(())
}

#[test]
fn a_load_that_still_writes_keeps_its_file() -> Outcome {
    let (folder, path) = folder()?;
    for attempt in 0.. {
        assert!(attempt < 50, "no load was stopped while it wrote");
        let Some(mut child) = writing(&path) else { continue };
        stop(&child);
        let live = temporaries(folder.path());
        let written = live.iter().any(|name| is_held(&folder.path().join(name)));
        loads(&path);
        let kept = temporaries(folder.path());
        signal(&child, "CONT");
        assert!(child.wait()?.success());
        assert!(
            !written || kept == live,
            "{live:?}, then {kept:?}: the file of a load that was stopped for a while"
        );
        assert_eq!(names(folder.path()), ["model.gguf", "model.gguf.packed"]);
        fs::remove_file(path.with_file_name("model.gguf.packed"))?;
        if written {
            break;
        }
    }
    Ok(())
}

/// Runs the program, which must not block.
fn ottava(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ottava"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("{arguments:?} waits");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("a child")
}

#[test]
fn models_that_are_no_files_are_refused_at_once() -> Outcome {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).to_str().expect("a path").to_owned();
    assert!(Command::new("mkfifo").arg(path("pipe.gguf")).status()?.success());
    std::os::unix::fs::symlink("pipe.gguf", path("link.gguf"))?;
    let _socket = std::os::unix::net::UnixListener::bind(path("socket.gguf"))?;
    fs::create_dir(path("folder.gguf"))?;
    let cases = [
        (path("pipe.gguf"), "a named pipe"),
        (path("link.gguf"), "a named pipe"),
        (path("socket.gguf"), "a socket"),
        // A folder may be a model; this one is empty.
        (path("folder.gguf"), "config.json: cannot open"),
        ("/dev/zero".into(), "a character device"),
        ("/dev/tty".into(), "a character device"),
    ];
    for (model, found) in &cases {
        for command in [&["run", "x"][..], &["tokenize", "x"], &["score", "x"], &["inspect"], &["bench"]] {
            for more in [&[][..], &["--mmap"], &["--no-mmap"]] {
                let output = ottava(&[command, &["--model", model], more].concat());
                let error = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(1), "{model}: {error}");
                let told = error.contains(model.as_str()) && error.contains(found);
                assert!(told && error.lines().count() == 1, "{command:?} {model}: {error}");
            }
        }
    }
    Ok(())
}
