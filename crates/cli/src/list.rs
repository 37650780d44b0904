//! `ottava list`: the known models, and the files in the cache.

use super::output::Bytes;
use clap::Args;

use super::fetch::{self, Place, State};
use super::{Failure, catalog, output};

/// Arguments of `list`.
#[derive(Args)]
#[command(after_help = "\
verified: the bytes were right at the last check, and size and time have not changed since.
not verified: the size is right. damaged, partly fetched: `ottava pull NAME` repairs it.")]
pub struct List {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl List {
    /// Prints one line per model.
    pub fn run(self) -> Result<(), Failure> {
        let folder = fetch::models_folder()?;
        let place = |entry| Place::new(entry, &folder);
        if self.json {
            let models: Vec<_> = catalog::ENTRIES
                .iter()
                .map(|entry| {
                    let state = place(entry).state();
                    serde_json::json!({
                        "name": entry.name,
                        "file": folder.join(entry.file).to_string_lossy(),
                        "bytes": entry.bytes,
                        "cached": matches!(state, State::Verified | State::Unverified),
                        "state": name(&state),
                        "damage": if let State::Damaged(why) = &state { Some(why) } else { None },
                        "licence": entry.licence,
                    })
                })
                .collect();
            return output::print_json(
                &serde_json::json!({ "folder": folder.to_string_lossy(), "models": models }),
            );
        }
        for entry in catalog::ENTRIES {
            let state = place(entry).state();
            let size = Bytes(entry.bytes).to_string();
            let (model, licence, shown) = (entry.name, entry.licence, name(&state));
            let damage = if let State::Damaged(why) = &state { format!("; {why}") } else { String::new() };
            output::print_line(format_args!("{model:<24} {size:>10}  {shown:<14} {licence}{damage}"))?;
        }
        output::print_line(format_args!("models are kept in {}", folder.display()))
    }
}

fn name(state: &State) -> &'static str {
    match state {
        State::Absent => "not fetched",
        State::Partial(_) => "partly fetched",
        State::Verified => "verified",
        State::Unverified => "not verified",
        State::Damaged(_) => "damaged",
    }
}
