//! Any bytes as a model file: its hyperparameters are read or refused with a typed error, in memory that
//! the file's size bounds.

#![no_main]

#[path = "../shared/allocations.rs"]
mod allocations;

use allocations::{Counting, most_bytes};
use libfuzzer_sys::fuzz_target;
use ottava::checkpoint::ModelFile;
use ottava::model::ModelConfig;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that any file may cost, beside so many times its own.
const FLAT: usize = 1 << 20;
const TIMES: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let bytes_max = FLAT + TIMES * bytes.len();
    let (file, most) = most_bytes(|| ModelFile::from_bytes("fuzz.gguf", bytes.to_vec()));
    assert!(most <= bytes_max, "{most} bytes to open a file of {}", bytes.len());
    let Ok(file) = file else { return };
    let (config, most) = most_bytes(|| ModelConfig::from_file(&file));
    assert!(most <= bytes_max, "{most} bytes for the hyperparameters of a file of {}", bytes.len());
    if let Err(error) = config {
        let text = error.to_string();
        assert!(!text.is_empty() && !text.contains('\n'), "{text}");
    }
});
