//! Constraints on an answer: a JSON schema or a grammar, from a file or the command line.

use std::path::{Path, PathBuf};

use clap::Args;
use ottava::constrain::Grammar;

use super::Failure;
use super::input;

/// Constraints on an answer.
#[derive(Args)]
pub struct ConstrainOptions {
    /// JSON schema that the answer must satisfy: a file, or the schema itself
    #[arg(long, value_name = "FILE|JSON", value_parser = input::utf8(), conflicts_with = "grammar")]
    json_schema: Option<String>,
    /// Grammar that the answer must follow, in Lark's syntax
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
}

impl ConstrainOptions {
    /// Name of the option that reads standard input, if there is one.
    pub fn reader(&self) -> Option<&'static str> {
        let schema = self.json_schema.as_ref().and_then(|schema| input::reader("--json-schema", schema));
        schema.or(self.grammar.as_ref().and_then(|grammar| input::reader("--grammar", grammar)))
    }

    /// Name of the constraint in the note on a cut answer.
    pub fn name(&self) -> Option<&'static str> {
        let schema = self.json_schema.as_ref().map(|_| "the schema");
        schema.or(self.grammar.as_ref().map(|_| "the grammar"))
    }

    /// Reads the schema or grammar, if one is given.
    pub fn read(&self) -> Result<Option<Grammar>, Failure> {
        match (&self.json_schema, &self.grammar) {
            (Some(schema), _) => Ok(Some(Grammar::json_schema(read_schema(schema)?))),
            (None, Some(path)) => Ok(Some(Grammar::lark(input::read_file(path)?))),
            (None, None) => Ok(None),
        }
    }
}

/// Reads a schema: the text itself if it begins with a brace, otherwise the file of that name.
fn read_schema(given: &str) -> Result<serde_json::Value, Failure> {
    if given.trim().is_empty() {
        return Err(Failure::Usage(
            "--json-schema: expected a schema or a file's name, found an empty text".into(),
        ));
    }
    let (text, name) = match given.trim_start().starts_with('{') {
        true => (given.to_owned(), "--json-schema"),
        false => (input::read_file(Path::new(given))?, given),
    };
    serde_json::from_str(&text).map_err(|error| Failure::Failed(format!("{name}: no JSON: {error}")))
}
