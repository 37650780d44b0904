//! A file that is whole or not there: written beside its name, then renamed.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// A file in the target's folder that vanishes unless it is renamed.
pub(crate) struct Temporary {
    path: PathBuf,
    pub(crate) file: File,
    folder: PathBuf,
}

impl Temporary {
    pub(crate) fn beside(target: &Path) -> io::Result<Temporary> {
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
    pub(crate) fn rename_to(self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.path, target)?;
        if cfg!(unix) {
            File::open(&self.folder)?.sync_all()?;
        }
        Ok(())
    }

    /// The name is there when this returns, the content on the disk some time later: for what can be made
    /// again, and is checked when it is read.
    pub(crate) fn rename_unsynced(self, target: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, target)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename there is nothing to remove, and nobody to tell if there is.
        let _ = std::fs::remove_file(&self.path);
    }
}
