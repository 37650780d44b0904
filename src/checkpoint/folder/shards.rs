//! Weight files of a folder: one safetensors file, or the shards of an index.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::stored::StoredFile;
use crate::checkpoint::{WeightsError, shown};
use crate::file::is_there;

use super::documents::{self, Size};
use super::header::TensorEntry;
use super::json::{Object, shown_value};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Weight files of a folder.
pub(super) struct Shards {
    pub paths: Vec<PathBuf>,
    index: Option<Index>,
}

/// The shard index.
struct Index {
    file: Arc<StoredFile>,
    /// Tensors that each shard must contain.
    tensors: BTreeMap<String, BTreeSet<String>>,
}

impl Shards {
    /// Finds the weight files. `named` is the fallback if the folder has neither of the usual names.
    pub fn find(folder: &Path, named: Option<&Path>) -> Result<Shards, WeightsError> {
        let shards = match (folder.join(SINGLE), folder.join(INDEX), named) {
            (single, _, _) if is_there(&single) => Shards { paths: vec![single], index: None },
            (_, index, _) if is_there(&index) => Shards::of_index(folder, &index)?,
            (_, _, Some(named)) => Shards { paths: vec![named.to_owned()], index: None },
            _ => return Err(refuse(folder, format!("expected {SINGLE} or {INDEX}, found neither"))),
        };
        match named.filter(|named| !shards.paths.iter().any(|path| path == named)) {
            Some(named) => Err(refuse(named, "this file is not among the weights of its folder".to_owned())),
            None => Ok(shards),
        }
    }

    fn of_index(folder: &Path, path: &Path) -> Result<Shards, WeightsError> {
        let file = StoredFile::document(path)?;
        let document = documents::parse(&file, Size::Large)?;
        let map = Object::of(path, &document)?.object("weight_map")?;
        let map = map.ok_or_else(|| refuse(path, "expected a key `weight_map`, found none".to_owned()))?;
        let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (tensor, file) in map.entries() {
            let expected = "the name of a file in the same folder";
            let name = file.as_str().filter(|name| is_plain(name));
            let name = name.ok_or_else(|| map.refuse(tensor, expected, shown_value(file)))?;
            files.entry(name.to_owned()).or_default().insert(tensor.to_owned());
        }
        let paths = files.keys().map(|name| folder.join(name)).collect();
        Ok(Shards { paths, index: Some(Index { file: Arc::new(file), tensors: files }) })
    }

    /// The index file, if any.
    pub fn index(&self) -> Option<Arc<StoredFile>> {
        self.index.as_ref().map(|index| Arc::clone(&index.file))
    }

    /// An error that names the index if a listed shard is missing. A dangling link keeps its own error.
    pub fn missing(&self, error: WeightsError) -> WeightsError {
        match (&self.index, error) {
            (Some(index), WeightsError::Io { file, source, .. })
                if source.kind() == ErrorKind::NotFound && !is_there(&file) =>
            {
                let name = shown(&file.file_name().unwrap_or_default().to_string_lossy());
                refuse(index.file.path(), format!("the file {name}, which it lists, is not in the folder"))
            }
            (_, other) => other,
        }
    }

    /// Checks that a shard contains all tensors that the index lists for it.
    pub fn check(&self, path: &Path, entries: &[TensorEntry]) -> Result<(), WeightsError> {
        let Some(index) = &self.index else { return Ok(()) };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let there: BTreeSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        let listed = index.tensors.get(name).into_iter().flatten();
        match listed.into_iter().find(|tensor| !there.contains(tensor.as_str())) {
            Some(tensor) => Err(refuse(
                index.file.path(),
                format!("tensor {} is not in {name}, as it says", shown(tensor)),
            )),
            None => Ok(()),
        }
    }
}

/// Whether a name is a plain file name, without a path.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != ".." && name != "." && !name.contains(['/', '\\', '\0'])
}

fn refuse(file: &Path, reason: String) -> WeightsError {
    WeightsError::Document { file: file.to_owned(), reason }
}
