//! The cache folder: for each model `FILE`, its verification record `FILE.verified`, and during a download
//! `FILE.part` and `FILE.wheels`.
//!
//! The lock on `FILE.part` guards it and `FILE.wheels`. The system releases a lock when its process ends, so
//! the next pull resumes from the files of a killed one, or removes them.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use ottava::file::{Temporary, open_regular};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::catalog::{self, Entry};
use super::super::output;
use super::Limits;

/// Bytes per read or write.
pub const BLOCK: usize = 1 << 20;
/// Polling interval for another process's lock.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Size limit of a verification record.
const RECORD_BYTES_MAX: u64 = 4096;

/// Paths of a model in the cache folder.
pub struct Place<'e> {
    pub entry: &'e Entry,
    folder: PathBuf,
}

/// State of a model's file in the cache.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    Absent,
    /// Number of bytes in the partial file.
    Partial(u64),
    /// The record has the right SHA-256 for the file's current size and modification time.
    Verified,
    /// The size is right, and the file has changed since its last verification or was never verified.
    Unverified,
    /// Kind of the damage: a wrong type, size or SHA-256, or a file that cannot be read.
    Damaged(String),
}

impl<'e> Place<'e> {
    pub fn new(entry: &'e Entry, folder: &Path) -> Place<'e> {
        Place { entry, folder: folder.to_owned() }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn file(&self) -> PathBuf {
        self.folder.join(self.entry.file)
    }

    pub fn wheels(&self) -> PathBuf {
        self.beside("wheels")
    }

    fn partial(&self) -> PathBuf {
        self.beside("part")
    }

    fn record(&self) -> PathBuf {
        self.beside("verified")
    }

    fn beside(&self, what: &str) -> PathBuf {
        self.folder.join(format!("{}.{what}", self.entry.file))
    }

    /// State by metadata and record, without reading the file.
    pub fn state(&self) -> State {
        let data = match fs::metadata(self.file()) {
            Ok(data) => data,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let partial = fs::metadata(self.partial()).map_or(0, |data| data.len());
                return if partial > 0 { State::Partial(partial) } else { State::Absent };
            }
            Err(error) => return State::Damaged(error.to_string()),
        };
        if !data.is_file() {
            return State::Damaged("no regular file".into());
        }
        let (expected, found) = (self.entry.bytes, data.len());
        if found != expected {
            return State::Damaged(format!("expected {expected} bytes, found {found}"));
        }
        match self.recorded() {
            Some(record) if record["file"] == stamp(&data) => {
                record["sha256"].as_str().map_or(State::Unverified, |found| self.judged(found))
            }
            _ => State::Unverified,
        }
    }

    /// `Verified` or `Damaged`, by the SHA-256 of the file.
    fn judged(&self, found: &str) -> State {
        let expected = self.entry.sha256;
        if found == expected {
            return State::Verified;
        }
        State::Damaged(format!("expected SHA-256 {expected}, found {found}"))
    }

    fn recorded(&self) -> Option<Value> {
        let path = self.record();
        if !fs::metadata(&path).ok()?.is_file() {
            return None;
        }
        let mut text = String::new();
        File::open(path).ok()?.take(RECORD_BYTES_MAX).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// State after reading all of a file that has the right size. The SHA-256 is recorded.
    pub fn verify(&self) -> State {
        match self.state() {
            State::Verified | State::Unverified | State::Damaged(_) => {}
            absent => return absent,
        }
        self.read_whole().unwrap_or_else(|error| State::Damaged(error.to_string()))
    }

    /// The result does not depend on the record, which cannot be written in a read-only folder.
    fn read_whole(&self) -> io::Result<State> {
        let (mut file, data) = open_regular(&self.file())?;
        if data.len() != self.entry.bytes {
            return Ok(self.state());
        }
        let found = sha256(&mut file)?;
        if stamp(&fs::metadata(self.file())?) != stamp(&data) {
            // The file was modified during the read.
            return Ok(State::Unverified);
        }
        self.note(&data, &found);
        Ok(self.judged(&found))
    }

    /// Writes the record. A failure is ignored: the next load reads the file again.
    fn note(&self, data: &fs::Metadata, sha256: &str) {
        let record = json!({ "file": stamp(data), "sha256": sha256 });
        let _ = write_record(&self.record(), &format!("{record}\n"));
    }

    /// Removes the partial file of a model that is complete, unless another process holds the lock.
    pub fn drop_partial(&self) {
        remove_unless_held(&self.partial());
    }
}

/// Replaces a record atomically: a full disk leaves the old record or none, never an empty one.
fn write_record(path: &Path, record: &str) -> io::Result<()> {
    let temporary = Temporary::beside(path)?;
    temporary.file().write_all(record.as_bytes())?;
    temporary.rename_unsynced(path)
}

/// Fingerprint of a file's version: size and modification time.
fn stamp(data: &fs::Metadata) -> Value {
    let since = data.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    json!([data.len(), since.map(|time| time.as_nanos().to_string())])
}

/// SHA-256 of the bytes from the current position to the end, in hexadecimal.
pub fn sha256(file: &mut File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut block = vec![0; BLOCK];
    loop {
        match file.read(&mut block) {
            Ok(0) => break,
            Ok(n) => hash.update(block.get(..n).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Partial file, locked by this process.
pub struct Held {
    file: File,
    path: PathBuf,
}

impl Held {
    /// Waits for the lock, at most as long as the limit.
    pub fn acquire(place: &Place<'_>, limits: &Limits) -> Result<Held, String> {
        let path = place.partial();
        let began = Instant::now();
        let mut is_told = false;
        loop {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let file = file.map_err(|error| say(&path, &error))?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => return Held { file, path }.checked(),
                // The previous holder has renamed or removed this file.
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => {
                    let path = path.display();
                    output::tell(format_args!("warning: {path}: no lock keeps others from it: {error}"));
                    return Held { file, path: place.partial() }.checked();
                }
            }
            let name = place.entry.name;
            if !is_told {
                output::tell(format_args!("note: another process is fetching {name}; waiting for it"));
                is_told = true;
            }
            if began.elapsed() > limits.wait {
                let seconds = limits.wait.as_secs();
                return Err(format!(
                    "{}: another process is still fetching {name} after {seconds} s; try again later",
                    path.display()
                ));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn checked(self) -> Result<Held, String> {
        let data = self.file.metadata().map_err(|error| say(&self.path, &error))?;
        if data.is_file() { Ok(self) } else { Err(format!("{}: no regular file", self.path.display())) }
    }

    pub fn len(&self) -> Result<u64, String> {
        Ok(self.file.metadata().map_err(|error| say(&self.path, &error))?.len())
    }

    /// Truncates the file to `len` bytes.
    pub fn truncate(&self, len: u64) -> Result<(), String> {
        self.file.set_len(len).map_err(|error| say(&self.path, &error))
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), String> {
        let written = self.file.seek(SeekFrom::End(0)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|error| say(&self.path, &error))
    }

    /// Duplicates the handle for a child process, which then keeps the lock if this process is killed.
    pub fn lent(&self) -> Result<File, String> {
        self.file.try_clone().map_err(|error| say(&self.path, &error))
    }

    /// Checks size and SHA-256. Wrong bytes are dropped; a short file is kept for the next try.
    pub fn verify(&mut self, entry: &Entry) -> Result<(), String> {
        let found = self.len()?;
        if found < entry.bytes {
            let expected = entry.bytes;
            return Err(format!("expected {expected} bytes, found {found}; the next try goes on from there"));
        }
        let hash = self.file.rewind().and_then(|()| sha256(&mut self.file));
        let hash = hash.map_err(|error| say(&self.path, &error))?;
        if hash == entry.sha256 {
            return Ok(());
        }
        self.truncate(0)?;
        Err(format!("expected SHA-256 {}, found {hash}; the bytes were dropped", entry.sha256))
    }

    /// Renames the verified file to its final name, after syncing it to the disk.
    pub fn publish(self, place: &Place<'_>) -> Result<(), String> {
        let target = place.file();
        self.file.sync_all().map_err(|error| say(&self.path, &error))?;
        let data = self.file.metadata().map_err(|error| say(&self.path, &error))?;
        fs::rename(&self.path, &target).map_err(|error| say(&target, &error))?;
        if cfg!(unix) {
            File::open(place.folder())
                .and_then(|folder| folder.sync_all())
                .map_err(|e| say(place.folder(), &e))?;
        }
        place.note(&data, place.entry.sha256);
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // An empty file has nothing to resume from.
        if self.len() == Ok(0) && is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether the path still leads to the open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |data: fs::Metadata| (data.dev(), data.ino());
    file.metadata().map(id).ok() == fs::symlink_metadata(path).map(id).ok()
}

/// Other systems do not rename or remove an open file.
#[cfg(not(unix))]
fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

fn say(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Removes leftovers of killed processes that no live process has locked. Only names that Ottava creates are
/// touched: users keep other files in the folder.
pub fn sweep(folder: &Path) {
    for entry in catalog::ENTRIES {
        let place = Place::new(entry, folder);
        if fs::symlink_metadata(place.wheels()).is_ok() {
            remove_wheels(&place.wheels(), &place.partial());
        }
        if !place.file().exists() {
            let _ = fs::remove_file(place.record());
        }
    }
}

fn remove_unless_held(partial: &Path) {
    if !fs::symlink_metadata(partial).is_ok_and(|data| data.is_file()) {
        return;
    }
    let Ok(file) = OpenOptions::new().write(true).open(partial) else { return };
    if file.try_lock().is_ok() && is_at(&file, partial) {
        let _ = fs::remove_file(partial);
    }
}

/// Removes a folder of wheels if the lock on its partial file is free.
fn remove_wheels(wheels: &Path, partial: &Path) {
    let lock = OpenOptions::new().write(true).create(true).truncate(false).open(partial);
    let Ok(lock) = lock else { return };
    if lock.try_lock().is_ok() && is_at(&lock, partial) {
        let _ = fs::remove_dir_all(wheels);
        let held = Held { file: lock, path: partial.to_owned() };
        drop(held);
    }
}
