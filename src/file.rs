//! Files as every reader and writer here wants them: opened only if they are regular, written beside their name
//! and renamed, so that a file is whole or not there. What killed writers have left is removed by the next one.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Stands in the name of every temporary.
const OURS: &str = ".ottava-";
/// The end of that name.
const ENDING: &str = ".tmp";
/// A target's name up to so many bytes is part of its temporary's: file systems take 255.
const NAME_BYTES_MAX: usize = 200;
/// Digits that stand for a host and its start.
const HOST_DIGITS: usize = 8;
/// No writer leaves its file alone for so long. Without a lock that counts, age says that a file is nobody's.
const STALE_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Why a file is not opened, or not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a regular file, found {found}")]
pub struct NotRegular {
    /// What stands there: "a directory", "a named pipe".
    pub found: &'static str,
}

/// Opens a file to read it, with its metadata. Links to regular files are followed.
///
/// A named pipe would block for ever, a device may do anything: neither is opened.
///
/// # Errors
/// The system's; [`NotRegular`], as an error of kind [`io::ErrorKind::InvalidInput`].
pub fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    // Before, because opening a device may have an effect; and after, because something else may stand there
    // by then.
    check_regular(&fs::metadata(path).map_err(|error| with_link(path, error))?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    without_waiting(&mut options);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    check_regular(&metadata)?;
    Ok((file, metadata))
}

/// Whether something stands there, be it a link to a file that does not. What cannot be looked at counts as there: to
/// open it says why.
#[cfg(feature = "safetensors")]
pub(crate) fn is_there(path: &Path) -> bool {
    !matches!(fs::symlink_metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Says of a file that is not there whether a link to it is.
fn with_link(path: &Path, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound if path.is_symlink() => {
            io::Error::new(io::ErrorKind::NotFound, "expected a file, found a link to one that is not there")
        }
        _ => error,
    }
}

/// Checks that a file may be written to `path`: nothing stands there, or a regular file, which it replaces.
///
/// # Errors
/// As [`open_regular`].
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

/// What stands there; none for a regular file.
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

/// A named pipe that has just taken a file's place does not block, a terminal does not become the process's.
fn without_waiting(options: &mut OpenOptions) {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NONBLOCK | libc::O_NOCTTY);
    #[cfg(not(unix))]
    let _ = options;
}

/// A file that several threads read at any place.
#[derive(Debug)]
pub(crate) struct ReadAt {
    file: File,
    /// Where a file has one position for all.
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

    /// Fills `buffer` with the bytes from `offset` on.
    #[cfg(unix)]
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buffer, offset)
    }

    /// Fills `buffer` with the bytes from `offset` on.
    #[cfg(not(unix))]
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        let _alone = self.alone.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut file = &self.file;
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(buffer)
    }
}

/// A file in the target's folder that vanishes unless it is renamed.
///
/// It is locked while it is written. A lock ends with its process, so a temporary that nobody holds is left over.
#[derive(Debug)]
pub struct Temporary {
    path: PathBuf,
    file: File,
    folder: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// An empty file beside `target`. Temporaries in that folder whose writers are gone are removed.
    ///
    /// # Errors
    /// The system's, and [`NotRegular`] if something stands at `target` that a file must not replace.
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
                // Another process took it for left over before it was locked, and removes it.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// The file, to be written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The content is on the disk before the name is, and the name before this returns.
    ///
    /// # Errors
    /// The system's; the temporary is gone then.
    pub fn rename_to(mut self, target: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        self.rename(target)?;
        if cfg!(unix) {
            File::open(&self.folder)?.sync_all()?;
        }
        Ok(())
    }

    /// The name is there when this returns, the content on the disk some time later: for what can be made
    /// again, and is checked when it is read.
    ///
    /// # Errors
    /// The system's; the temporary is gone then.
    pub fn rename_unsynced(mut self, target: &Path) -> io::Result<()> {
        self.rename(target)
    }

    fn rename(&mut self, target: &Path) -> io::Result<()> {
        if cfg!(windows) {
            // A lock keeps readers out there. No lock was there if it cannot be taken off.
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
            // There is nobody to tell that it is still there.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The folder that a file is in, or would be.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Locks a temporary that was just made; whether it is still there, and this writer's.
fn hold(file: &File) -> bool {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => false,
        // Where a file system has no locks, age protects the file.
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

/// A number that no temporary has had: a cleaner that is slow must not find another writer's file under the name of
/// one that it has seen.
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

/// This host since its start, as digits: locks of its processes are seen by all of them. Empty if the system does
/// not say.
fn host() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.chars().filter(char::is_ascii_hexdigit).take(HOST_DIGITS).collect()
}

/// The host in a temporary's name; none if it is the name of anything else.
fn host_of(name: &OsStr) -> Option<&str> {
    let name = name.to_str().or_else(|| ascii_tail(name))?;
    let (_, rest) = name.strip_suffix(ENDING)?.rsplit_once(OURS)?;
    let mut parts = rest.split('-');
    let (host, process, number) = (parts.next()?, parts.next()?, parts.next()?);
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_host = [0, HOST_DIGITS].contains(&host.len()) && host.bytes().all(|b| b.is_ascii_hexdigit());
    (is_host && digits(process) && digits(number) && parts.next().is_none()).then_some(host)
}

/// What follows the last byte of a name that is not ASCII.
fn ascii_tail(name: &OsStr) -> Option<&str> {
    let bytes = name.as_encoded_bytes();
    let start = bytes.iter().rposition(|byte| !byte.is_ascii()).map_or(0, |last| last + 1);
    std::str::from_utf8(bytes.get(start..)?).ok()
}

/// Removes the temporaries in `folder` whose writers are gone, and nothing else. It is a service to the next
/// writer, so what cannot be removed is left.
///
/// A writer on this host is gone if nobody holds the file's lock. Another host's locks may not be seen here, so its
/// files have to be a day old as well, as do all files where there are no locks.
pub fn remove_stale(folder: &Path) {
    let own = host();
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if let Some(host) = host_of(&entry.file_name()) {
            let locks_count = !own.is_empty() && host == own;
            // Whatever keeps it from being removed, the next one tries again.
            let _ = remove_if_stale(&entry.path(), locks_count);
        }
    }
}

fn remove_if_stale(path: &Path, locks_count: bool) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    check_regular(&found)?;
    let mut options = OpenOptions::new();
    // Some file systems lock only what may be written.
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
    // The name is this file's or nobody's: a writer that made it and finds it locked takes another.
    if stale && is_linked(&file) { fs::remove_file(path) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
