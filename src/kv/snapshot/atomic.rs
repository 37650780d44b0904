//! A file that is whole or not there: written beside its name, synced, renamed.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A writer that remembers the hash of what passed.
pub(super) struct Hashing<'a> {
    file: BufWriter<&'a File>,
    hasher: blake3::Hasher,
}

impl<'a> Hashing<'a> {
    pub(super) fn new(file: &'a File) -> Hashing<'a> {
        Hashing { file: BufWriter::new(file), hasher: blake3::Hasher::new() }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes)
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        let hash = self.hasher.finalize();
        self.file.write_all(hash.as_bytes())?;
        self.file.flush()
    }
}

/// A file in the target's folder that vanishes unless it is renamed.
pub(super) struct Temporary {
    path: PathBuf,
    pub(super) file: File,
    folder: PathBuf,
}

impl Temporary {
    pub(super) fn beside(target: &Path) -> io::Result<Temporary> {
        let name = target.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new(".")).to_owned();
        for attempt in 0..1000 {
            let mut temporary = std::ffi::OsString::from(".");
            temporary.push(name);
            temporary.push(format!(".{}-{attempt}.tmp", std::process::id()));
            let path = folder.join(temporary);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Temporary { path, file, folder }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The content is on the disk before the name is, and the name before this returns.
    pub(super) fn rename_to(self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.path, target)?;
        if cfg!(unix) {
            File::open(&self.folder)?.sync_all()?;
        }
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename there is nothing to remove, and nobody to tell if there is.
        let _ = std::fs::remove_file(&self.path);
    }
}
