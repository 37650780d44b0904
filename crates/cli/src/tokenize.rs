//! `ottava tokenize`: token ids and pieces of a text.

use clap::Args;
use ottava::text::{AddBos, Special, Tokenizer};

use super::input::TextInput;
use super::options::{ModelOptions, of_file};
use super::visible::in_line;
use super::{Failure, output};

/// Arguments of `tokenize`.
#[derive(Args)]
pub struct Tokenize {
    #[command(flatten)]
    text: TextInput,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelOptions,
}

impl Tokenize {
    /// Prints one line per token.
    pub fn run(self) -> Result<(), Failure> {
        let text = self.text.read(&[self.model.reader()])?;
        let file = self.model.checkpoint()?;
        let of_file = |error: ottava::text::TextError| of_file(file.path(), error.into());
        let tokenizer = Tokenizer::from_checkpoint(&*file).map_err(of_file)?;
        output::tell_warnings(tokenizer.vocab().warnings());
        let ids = tokenizer.encode(&text, Special::Parse, AddBos::AsModel).map_err(of_file)?;
        let piece = |id| tokenizer.vocab().piece(id).unwrap_or_default();
        if self.json {
            let pieces: Vec<_> = ids.iter().map(|&id| piece(id)).collect();
            let ids: Vec<_> = ids.iter().map(|id| id.0).collect();
            return output::print_json(&serde_json::json!({ "ids": ids, "pieces": pieces }));
        }
        if ids.is_empty() {
            let bytes = text.len();
            output::tell(format_args!(
                "note: no token: the text has {bytes} bytes, and this model adds no BOS"
            ));
        }
        let mut page = output::Page::new();
        for &id in &ids {
            page.line(format_args!("{:>7}  {}", id.0, in_line(piece(id))))?;
        }
        page.finish()
    }
}
