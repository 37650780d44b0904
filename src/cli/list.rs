//! `ottava list`: the known models, and the files in the cache.

use std::fs;

use clap::Args;
use ottava::Bytes;

use super::{Failure, catalog, fetch, output};

/// Arguments of `list`.
#[derive(Args)]
pub struct List {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl List {
    /// Prints a line a model.
    pub fn run(self) -> Result<(), Failure> {
        let folder = fetch::models_folder()?;
        let cached =
            |file: &str, bytes| fs::metadata(folder.join(file)).is_ok_and(|data| data.len() == bytes);
        if self.json {
            let models: Vec<_> = catalog::ENTRIES
                .iter()
                .map(|entry| {
                    serde_json::json!({
                        "name": entry.name,
                        "file": folder.join(entry.file),
                        "bytes": entry.bytes,
                        "cached": cached(entry.file, entry.bytes),
                        "licence": entry.licence,
                    })
                })
                .collect();
            return output::print_json(&serde_json::json!({ "folder": folder, "models": models }));
        }
        for entry in catalog::ENTRIES {
            let state = if cached(entry.file, entry.bytes) { "cached" } else { "not fetched" };
            let size = Bytes(usize::try_from(entry.bytes).unwrap_or(usize::MAX)).to_string();
            let (name, licence) = (entry.name, entry.licence);
            output::print_line(format_args!("{name:<24} {size:>10}  {state:<12} {licence}"))?;
        }
        output::print_line(format_args!("models are kept in {}", folder.display()))
    }
}
