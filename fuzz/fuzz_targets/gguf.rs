//! Any bytes as a GGUF file: opened or refused with a typed error, every tensor decoded or refused.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ottava::checkpoint::{Checkpoint, ModelFile};

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = ModelFile::from_bytes("fuzz.gguf", bytes.to_vec()) else { return };
    file.fingerprint().expect("a file in memory is read");
    for tensor in file.tensors() {
        let Ok(matrix) = file.matrix(&tensor.name) else { continue };
        let mut row = vec![0.0; matrix.cols()];
        matrix.dequantize_row(matrix.rows() - 1, &mut row);
    }
});
