//! Split GGUF models: each part is a GGUF file named `NAME-00001-of-00003.gguf` with its part number in the
//! metadata. Opening any part opens all of them as one [`ModelFile`].

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::load::GgufFile;
use super::shown::part_name;
use super::source::Source;
use super::{Checkpoint, Fault, Metadata, ModelFile, OpenOptions, WeightsError};

/// Part number and count in the metadata of a part.
#[derive(Clone, Copy)]
struct Split {
    /// Part number, from 1.
    part: u64,
    /// Total number of parts.
    count: u64,
}

impl Split {
    /// `None` for a model in one file.
    fn of(metadata: &Metadata) -> Option<Split> {
        // Values of another type are ignored.
        let number = |key| metadata.u64(key).ok().flatten();
        let count = number("split.count").filter(|&count| count > 1)?;
        Some(Split { part: number("split.no").unwrap_or(0).saturating_add(1), count })
    }
}

/// Base name and folder of a split model, if the file name matches the part number.
fn base(path: &Path, split: Split) -> Option<(String, PathBuf)> {
    let ending = part_name("", split.part, split.count);
    let name = path.file_name()?.to_str()?.strip_suffix(&ending)?;
    Some((name.to_owned(), path.parent().unwrap_or(Path::new("")).to_owned()))
}

impl ModelFile {
    /// Opens and checks the file at `path`. For one part of a split model (`NAME-00002-of-00003.gguf`), opens
    /// all parts, which must be in the same folder.
    ///
    /// # Errors
    /// [`WeightsError::Io`] if a file cannot be opened, mapped or read, or is not a regular file;
    /// [`WeightsError::Malformed`] if it is not a valid GGUF file, has an unsupported tensor type, or a part
    /// is missing; [`WeightsError::Changed`] if it changes during the call.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<ModelFile, WeightsError> {
        whole(GgufFile::open(path, options)?, |part| GgufFile::open(part, options))
    }

    /// Parses a GGUF file in memory. `name` is its path in error messages.
    ///
    /// # Errors
    /// [`WeightsError::Malformed`], as for [`ModelFile::open`], and for one part of a split model.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<ModelFile, WeightsError> {
        alone(GgufFile::read(Path::new(name), Source::Owned(bytes))?)
    }
}

/// A model in one file. Refuses a single part of a split model.
fn alone(part: GgufFile) -> Result<ModelFile, WeightsError> {
    match Split::of(&part.metadata) {
        Some(Split { part: number, count }) => {
            Err(WeightsError::malformed(part.file.path(), Fault::Split { part: number, count }))
        }
        None => ModelFile::of_parts(part, []),
    }
}

/// The whole model of `part`. `open` opens one of the other parts.
fn whole(
    part: GgufFile,
    open: impl Fn(&Path) -> Result<GgufFile, WeightsError>,
) -> Result<ModelFile, WeightsError> {
    let Some(split) = Split::of(&part.metadata) else { return alone(part) };
    let path = part.file.path().to_owned();
    let Some((name, folder)) = base(&path, split) else { return alone(part) };
    let mut opened = Some(part);
    let mut part_of = |number: u64| {
        let name = part_name(&name, number, split.count);
        let found = match opened.take_if(|_| number == split.part) {
            Some(part) => part,
            None => open(&folder.join(&name)).map_err(|error| missing(error, &path, split, number, name))?,
        };
        let said = Split::of(&found.metadata).unwrap_or(Split { part: 1, count: 1 });
        if (said.part, said.count) != (number, split.count) {
            let (part, found_count) = (number, said.count);
            let fault = Fault::OtherPart { part, count: split.count, found: said.part, found_count };
            return Err(WeightsError::malformed(found.file.path(), fault));
        }
        Ok(found)
    };
    let first = part_of(1)?;
    let expected = first.metadata.u64("split.tensors.count").ok().flatten();
    let others: Vec<GgufFile> = (2..=split.count).map(part_of).collect::<Result<_, _>>()?;
    let whole = ModelFile::of_parts(first, others)?;
    let found = whole.tensors().len() as u64;
    match expected {
        Some(expected) if expected != found => {
            Err(WeightsError::malformed(whole.path(), Fault::PartTensors { expected, found }))
        }
        _ => Ok(whole),
    }
}

/// Turns "file not found" into an error about the missing part; other errors name their own file.
fn missing(error: WeightsError, path: &Path, split: Split, missing: u64, name: String) -> WeightsError {
    match error {
        WeightsError::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
            let Split { part, count } = split;
            WeightsError::malformed(path, Fault::MissingPart { part, count, missing, name })
        }
        other => other,
    }
}
