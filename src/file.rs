//! A file that is whole or not there: written beside its name, then renamed.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// A file in the target's folder that vanishes unless it is renamed.
pub(crate) struct Temporary {
    path: PathBuf,
    pub(crate) file: File,
    folder: PathBuf,
    renamed: bool,
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
                Ok(file) => return Ok(Temporary { path, file, folder, renamed: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The content is on the disk before the name is, and the name before this returns.
    pub(crate) fn rename_to(mut self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        self.rename(target)?;
        if cfg!(unix) {
            File::open(&self.folder)?.sync_all()?;
        }
        Ok(())
    }

    /// The name is there when this returns, the content on the disk some time later: for what can be made
    /// again, and is checked when it is read.
    pub(crate) fn rename_unsynced(mut self, target: &Path) -> io::Result<()> {
        self.rename(target)
    }

    fn rename(&mut self, target: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, target)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename the name may be that of another thread's file already.
        if !self.renamed {
            // There is nobody to tell that it is still there.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_write_one_target_do_not_remove_each_others_files() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        Temporary::beside(&target).unwrap().rename_unsynced(&target).unwrap();
                    }
                });
            }
        });
        drop(Temporary::beside(&target).unwrap());
        let names: Vec<_> =
            folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["target"]);
    }
}
