//! A model in several files: each is a GGUF file of its own, says which part it is, and is named
//! `NAME-00001-of-00003.gguf`. Opened from any part, all become one [`ModelFile`].

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::load::Part;
use super::shown::part_name;
use super::source::Source;
use super::{Checkpoint, Fault, Metadata, ModelFile, OpenOptions, WeightsError};

/// What a part says about itself.
#[derive(Clone, Copy)]
struct Split {
    /// Which part it is, from 1.
    part: u64,
    /// Parts in all.
    count: u64,
}

impl Split {
    /// None for a model in one file.
    fn of(metadata: &Metadata) -> Option<Split> {
        // A value of another type says nothing that this reader relies on.
        let number = |key| metadata.u64(key).ok().flatten();
        let count = number("split.count").filter(|&count| count > 1)?;
        Some(Split { part: number("split.no").unwrap_or(0).saturating_add(1), count })
    }
}

/// The model's name and folder, if the path is named as that part is.
fn base(path: &Path, split: Split) -> Option<(String, PathBuf)> {
    let ending = part_name("", split.part, split.count);
    let name = path.file_name()?.to_str()?.strip_suffix(&ending)?;
    Some((name.to_owned(), path.parent().unwrap_or(Path::new("")).to_owned()))
}

impl ModelFile {
    /// Opens and checks the file at `path`; if it is one part of a model (`NAME-00002-of-00003.gguf`), all
    /// parts, which lie beside it.
    ///
    /// # Errors
    /// [`WeightsError::Io`] if it cannot be opened, mapped or read, or is not a regular file;
    /// [`WeightsError::Malformed`] if it is not a sound GGUF file, holds a tensor type that cannot be read,
    /// or lacks another part; [`WeightsError::Changed`] if it changes meanwhile.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<ModelFile, WeightsError> {
        whole(Part::open(path, options)?, |part| Part::open(part, options))
    }

    /// A file from its bytes; errors call it `name`.
    ///
    /// # Errors
    /// [`WeightsError::Malformed`], as [`ModelFile::open`]; also if it is one part of several.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<ModelFile, WeightsError> {
        alone(Part::read(Path::new(name), Source::Owned(bytes))?)
    }
}

/// A model in one file; refuses a part whose other parts cannot be looked for.
fn alone(part: Part) -> Result<ModelFile, WeightsError> {
    match Split::of(&part.metadata) {
        Some(Split { part: number, count }) => {
            Err(WeightsError::malformed(part.file.path(), Fault::Split { part: number, count }))
        }
        None => ModelFile::of_parts(part, []),
    }
}

/// The whole model that `part` belongs to, or is; `open` opens one file.
fn whole(part: Part, open: impl Fn(&Path) -> Result<Part, WeightsError>) -> Result<ModelFile, WeightsError> {
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
    let others: Vec<Part> = (2..=split.count).map(part_of).collect::<Result<_, _>>()?;
    let whole = ModelFile::of_parts(first, others)?;
    let found = whole.tensors().len() as u64;
    match expected {
        Some(expected) if expected != found => {
            Err(WeightsError::malformed(whole.path(), Fault::PartTensors { expected, found }))
        }
        _ => Ok(whole),
    }
}

/// Names the part that is not there; any other error names its file itself.
fn missing(error: WeightsError, path: &Path, split: Split, missing: u64, name: String) -> WeightsError {
    match error {
        WeightsError::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
            let Split { part, count } = split;
            WeightsError::malformed(path, Fault::MissingPart { part, count, missing, name })
        }
        other => other,
    }
}
