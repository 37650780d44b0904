//! File access: only regular files are opened, and files are written atomically through a temporary and a
//! rename. Temporaries of killed writers are removed by the next writer.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Marker in the names of all temporaries.
const OURS: &str = ".ottava-";
/// Suffix of temporaries.
const ENDING: &str = ".tmp";
/// Longest target name included in the temporary's name: file systems limit names to 255 bytes.
const NAME_BYTES_MAX: usize = 200;
/// Digits of the host id.
const HOST_DIGITS: usize = 8;
/// Age from which a temporary is stale if locks are not visible. No writer pauses for this long.
const STALE_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// A path that is not a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a regular file, found {found}")]
pub struct NotRegular {
    /// The file type found: "a directory", "a named pipe".
    pub found: &'static str,
}

/// Opens a regular file for reading, and returns its metadata. Links are followed.
///
/// Named pipes and devices are refused: opening a pipe could block forever, opening a device can have side
/// effects.
///
/// # Errors
/// Errors of the system; [`NotRegular`] as an error of kind [`io::ErrorKind::InvalidInput`].
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    // Checked before opening, which can have side effects on devices, and again after, because the path may
    // have been replaced in between.
    check_regular(&fs::metadata(path).map_err(|error| with_link(path, error))?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    without_waiting(&mut options);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    check_regular(&metadata)?;
    Ok((file, metadata))
}

/// Whether the path exists, including dangling links. Paths that cannot be examined count as existing, so
/// that opening them reports the reason.
#[cfg(feature = "safetensors")]
pub(crate) fn is_there(path: &Path) -> bool {
    !matches!(fs::symlink_metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Distinguishes a dangling link from a missing file.
fn with_link(path: &Path, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound if path.is_symlink() => {
            io::Error::new(io::ErrorKind::NotFound, "expected a file, found a link to one that is not there")
        }
        _ => error,
    }
}

/// Checks that a file may be written to `path`: the path is free, or a regular file, which will be replaced.
///
/// # Errors
/// Those of [`open_regular`].
pub fn check_target(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(metadata) => check_regular(&metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn check_regular(metadata: &Metadata) -> io::Result<()> {
    match kind(metadata) {
        None => Ok(()),
        Some(found) => Err(io::Error::new(io::ErrorKind::InvalidInput, NotRegular { found })),
    }
}

/// Type of a file that is not regular; `None` for a regular file.
fn kind(metadata: &Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return None;
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kinds = [
            (kind.is_fifo(), "a named pipe"),
            (kind.is_socket(), "a socket"),
            (kind.is_char_device(), "a character device"),
            (kind.is_block_device(), "a block device"),
        ];
        if let Some(&(_, name)) = kinds.iter().find(|(is, _)| *is) {
            return Some(name);
        }
    }
    Some(if kind.is_dir() { "a directory" } else { "something else" })
}

/// Flags against races: a named pipe at the path does not block, and a terminal does not become the
/// controlling one.
fn without_waiting(options: &mut OpenOptions) {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | libc::O_NOCTTY);
    #[cfg(not(unix))]
    let _ = options;
}

/// A file for positional reads from several threads.
#[derive(Debug)]
pub(crate) struct ReadAt {
    file: File,
    /// Serialises seek and read on systems without positional reads.
    #[cfg(not(unix))]
    alone: std::sync::Mutex<()>,
}

impl ReadAt {
    pub(crate) fn new(file: File) -> ReadAt {
        ReadAt {
            file,
            #[cfg(not(unix))]
            alone: std::sync::Mutex::new(()),
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Reads exactly `buffer.len()` bytes at `offset`.
    #[cfg(unix)]
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buffer, offset)
    }

    /// Reads exactly `buffer.len()` bytes at `offset`.
    #[cfg(not(unix))]
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        let _alone = self.alone.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut file = &self.file;
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(buffer)
    }
}

/// A temporary file in the target's folder, deleted on drop unless renamed.
///
/// It is locked while it is written. Locks end with their process, so an unlocked temporary is stale.
#[derive(Debug)]
pub struct Temporary {
    path: PathBuf,
    file: File,
    folder: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// Creates an empty temporary next to `target`, and removes stale temporaries in its folder.
    ///
    /// # Errors
    /// Errors of the system; [`NotRegular`] if `target` exists and is not a regular file.
    pub fn beside(target: &Path) -> io::Result<Temporary> {
        let name = target.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
        check_target(target)?;
        let folder = folder_of(target).to_owned();
        remove_stale(&folder);
        let host = host();
        for _ in 0..1000 {
            let path = folder.join(temporary_name(name, &host, unused_number()));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) if hold(&file) => return Ok(Temporary { path, file, folder, renamed: false }),
                // Another process took the file for stale before it was locked, and is removing it.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Renames durably: the content is synced before the rename, and the folder after it.
    ///
    /// # Errors
    /// Errors of the system; the temporary is then deleted.
    pub fn rename_to(mut self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        self.rename(target)?;
        if cfg!(unix) {
            File::open(&self.folder)?.sync_all()?;
        }
        Ok(())
    }

    /// Renames without syncing: the content may reach the disk later. For files that can be regenerated and
    /// are checked on read.
    ///
    /// # Errors
    /// Errors of the system; the temporary is then deleted.
    pub fn rename_unsynced(mut self, target: &Path) -> io::Result<()> {
        self.rename(target)
    }

    fn rename(&mut self, target: &Path) -> io::Result<()> {
        if cfg!(windows) {
            // A lock would exclude readers on Windows. Unlocking fails only if there was no lock.
            let _ = self.file.unlock();
        }
        fs::rename(&self.path, target)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // Errors cannot be reported from `drop`.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Parent folder of a path; "." for a bare name.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Locks a new temporary. Returns false if another process holds it or has removed it.
fn hold(file: &File) -> bool {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => false,
        // On a file system without locks, the file is protected by its age.
        Ok(()) | Err(TryLockError::Error(_)) => is_linked(file),
    }
}

#[cfg(unix)]
fn is_linked(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
}

#[cfg(not(unix))]
fn is_linked(_: &File) -> bool {
    true
}

/// A random number that is unique among temporaries: a slow cleaner must not find another writer's file under
/// a name that it has examined before.
fn unused_number() -> u64 {
    std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ())
}

fn temporary_name(target: &OsStr, host: &str, number: u64) -> OsString {
    let mut name = OsString::from(".");
    if target.len() <= NAME_BYTES_MAX {
        name.push(target);
    }
    name.push(format!("{OURS}{host}-{}-{number}{ENDING}", std::process::id()));
    name
}

/// Id of this host since its boot: locks are shared among processes with equal ids. Empty if the system has
/// no such id.
fn host() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.chars().filter(char::is_ascii_hexdigit).take(HOST_DIGITS).collect()
}

/// Host id in the name of a temporary; `None` for other names.
fn host_of(name: &OsStr) -> Option<&str> {
    let name = name.to_str().or_else(|| ascii_tail(name))?;
    let (_, rest) = name.strip_suffix(ENDING)?.rsplit_once(OURS)?;
    let mut parts = rest.split('-');
    let (host, process, number) = (parts.next()?, parts.next()?, parts.next()?);
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = [0, HOST_DIGITS].contains(&host.len()) && host.bytes().all(|b| b.is_ascii_hexdigit());
    (is_host && digits(process) && digits(number) && parts.next().is_none()).then_some(host)
}

/// Suffix of a name after its last non-ASCII byte.
fn ascii_tail(name: &OsStr) -> Option<&str> {
    let bytes = name.as_encoded_bytes();
    let start = bytes.iter().rposition(|byte| !byte.is_ascii()).map_or(0, |last| last + 1);
    std::str::from_utf8(bytes.get(start..)?).ok()
}

/// Removes stale temporaries in `folder`, and nothing else. Failures are ignored: the next writer tries
/// again.
///
/// On this host an unlocked temporary is stale. Locks of another host may not be visible here, so its files
/// must also be a day old, as must all files on file systems without locks.
pub fn remove_stale(folder: &Path) {
    let own = host();
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if let Some(host) = host_of(&entry.file_name()) {
            let locks_count = !own.is_empty() && host == own;
            // Best effort: the next writer tries again.
            let _ = remove_if_stale(&entry.path(), locks_count);
        }
    }
}

fn remove_if_stale(path: &Path, locks_count: bool) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    check_regular(&found)?;
    let mut options = OpenOptions::new();
    // Some file systems allow locks only on writable files.
    options.read(true).write(true);
    without_waiting(&mut options);
    let file = options.open(path)?;
    let old = || {
        let age = found.modified().ok().and_then(|time| SystemTime::now().duration_since(time).ok());
        age.is_some_and(|age| age >= STALE_AFTER)
    };
    let stale = match file.try_lock() {
        Ok(()) => locks_count || old(),
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => old(),
    };
    // The path still names this file, or no file: a writer that finds its new temporary locked chooses
    // another name.
    if stale && is_linked(&file) { fs::remove_file(path) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
