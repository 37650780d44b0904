//! `ottava tokenize`: ids and pieces of a text.

use std::io::{Read, Write};

use clap::Args;
use ottava::text::{AddBos, Special, Tokenizer};
use ottava::weights::ModelFile;

use super::options::ModelOptions;
use super::{Failure, output};

/// Arguments of `tokenize`.
#[derive(Args)]
pub struct Tokenize {
    /// The text, or - for standard input
    text: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

impl Tokenize {
    /// Prints a line a token.
    pub fn run(self) -> Result<(), Failure> {
        let text = read_text(&self.text)?;
        let file = ModelFile::open(&self.model.path()?, &self.model.open_options());
        let file = file.map_err(ottava::Error::from)?;
        let tokenizer = Tokenizer::from_metadata(file.metadata()).map_err(ottava::Error::from)?;
        let ids = tokenizer.encode(&text, Special::Parse, AddBos::AsModel).map_err(ottava::Error::from)?;
        let piece = |id| tokenizer.vocab().piece(id).unwrap_or_default();
        if self.json {
            let pieces: Vec<_> = ids.iter().map(|&id| piece(id)).collect();
            let ids: Vec<_> = ids.iter().map(|id| id.0).collect();
            return output::print_json(&serde_json::json!({ "ids": ids, "pieces": pieces }));
        }
        let mut out = std::io::stdout().lock();
        for &id in &ids {
            writeln!(out, "{:>7}  {}", id.0, output::one_line(piece(id)))?;
        }
        Ok(())
    }
}

/// The text itself, or standard input for `-`.
pub fn read_text(text: &str) -> Result<String, Failure> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    let mut input = String::new();
    std::io::stdin().lock().read_to_string(&mut input)?;
    Ok(input)
}
