//! A writer that hashes everything written.

use std::fs::File;
use std::io::{self, BufWriter, Write};

/// Writes to a file, and at the end the hash of its content.
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
