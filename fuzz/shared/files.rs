//! Files of fuzz targets: in memory where the system has a folder for that.

use std::path::{Path, PathBuf};

/// A path of this process's own.
pub fn path(name: &str) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    folder.join(format!("ottava-fuzz-{}-{name}", std::process::id()))
}
