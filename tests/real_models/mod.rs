//! Real models and the references recorded for them, for the tests that need them.
//!
//! The folder `OTTAVA_TEST_MODELS` holds `smollm2.gguf` and `gemma3.gguf` (`ci/golden.sh` fetches
//! them). Where it is not set, a program's last lines say what was not run; where it is set and a model is
//! not in it, the test fails. The references are part of the program, which may run on another machine.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// What was not run, for the last lines.
static NOT_RUN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The file of a model, or `None` where no folder of models is named.
///
/// # Panics
/// If a folder is named and has no such file: a test that was asked for fails where it cannot run.
#[allow(dead_code, reason = "not every test that includes this module has real models")]
pub fn path(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("OTTAVA_TEST_MODELS").filter(|value| !value.is_empty()) else {
        not_run(format!("{name}: no real model (OTTAVA_TEST_MODELS)"));
        return None;
    };
    let path = PathBuf::from(folder).join(format!("{name}.gguf"));
    assert!(path.exists(), "OTTAVA_TEST_MODELS is set, and {} is not there", path.display());
    Some(path)
}

/// The folder of a model, or `None` where none of this name is next to the real models.
#[allow(dead_code, reason = "not every test that includes this module has folders of models")]
pub fn folder(name: &str) -> Option<PathBuf> {
    let models = std::env::var_os("OTTAVA_TEST_MODELS").filter(|value| !value.is_empty());
    let path = models.map(|folder| PathBuf::from(folder).join(name)).filter(|path| path.is_dir());
    if path.is_none() {
        not_run(format!("{name}: no such folder in OTTAVA_TEST_MODELS"));
    }
    path
}

/// Notes what is not run, for the program's last lines: behind the test runner's own.
pub fn not_run(what: String) {
    let mut all = NOT_RUN.lock().unwrap_or_else(PoisonError::into_inner);
    if all.is_empty() {
        // SAFETY: the function takes nothing and is there until the process ends.
        unsafe { libc::atexit(say_what_was_not_run) };
    }
    all.insert(what);
}

extern "C" fn say_what_was_not_run() {
    let all = NOT_RUN.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().for_each(|what| eprintln!("not run: {what}"));
}

/// The cases of `tests/golden/FILE`.
#[allow(dead_code, reason = "not every test that includes this module has recorded cases")]
pub fn golden(file: &str) -> Vec<Value> {
    let text = match file {
        "gemma3.json" => include_str!("../golden/gemma3.json"),
        "gemma3.tokens.json" => include_str!("../golden/gemma3.tokens.json"),
        "smollm2.chat.json" => include_str!("../golden/smollm2.chat.json"),
        "smollm2.json" => include_str!("../golden/smollm2.json"),
        "smollm2.tokens.json" => include_str!("../golden/smollm2.tokens.json"),
        _ => panic!("{file} is not among the recorded references"),
    };
    serde_json::from_str(text).expect("the golden file is a JSON array")
}
