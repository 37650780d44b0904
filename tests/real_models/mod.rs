//! Real models and the references recorded for them, for the tests that need them.
//!
//! The folder `OTTAVA_TEST_MODELS` holds `smollm2.gguf` and `gemma3.gguf` (`ci/golden.sh` fetches
//! them). A test without its model says that it was skipped, past the test runner's capture.

use std::io::Write;
use std::path::PathBuf;

use serde_json::Value;

/// The file of a model, or `None` and a line that says so.
pub fn path(name: &str) -> Option<PathBuf> {
    let skipped = |why: String| {
        // Written past the runner's capture; a closed stderr is no reason to fail.
        let _ = std::io::stderr().write_all(format!("skipped: {name}: {why}\n").as_bytes());
        None
    };
    let Some(folder) = std::env::var_os("OTTAVA_TEST_MODELS") else {
        return skipped(format!("OTTAVA_TEST_MODELS is not set to a folder with {name}.gguf"));
    };
    let path = PathBuf::from(folder).join(format!("{name}.gguf"));
    if path.exists() { Some(path) } else { skipped(format!("{} is not there", path.display())) }
}

/// The cases of `tests/golden/FILE`.
#[allow(dead_code, reason = "not every test that includes this module has recorded cases")]
pub fn golden(file: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file);
    let text = std::fs::read_to_string(path).expect("the golden file is in the repository");
    serde_json::from_str(&text).expect("the golden file is a JSON array")
}
