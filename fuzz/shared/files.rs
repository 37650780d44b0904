//! Files of fuzz targets: in memory where the system has a folder for that.

use std::path::{Path, PathBuf};

/// A path of this process's own.
pub fn path(name: &str) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    folder.join(format!("ottava-fuzz-{}-{name}", std::process::id()))
}

/// The files of a Hugging Face folder, in their order in an input of the target `model_folder`; [`SEPARATOR`] stands
/// between them.
#[allow(dead_code, reason = "other targets have no folder")]
pub const FOLDER: [&str; 5] =
    ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"];

/// No byte of the documents of a folder.
#[allow(dead_code, reason = "other targets have no folder")]
pub const SEPARATOR: u8 = 0x1e;
