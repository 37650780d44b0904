//! Errors of grammars, with short messages in place of the multi-line dumps of llguidance.

use crate::kind::ErrorKind;

/// Maximum length of a quotation in a message, in characters.
const QUOTED_MAX: usize = 120;

/// Why a grammar cannot constrain an answer. The message is one line of at most 300 characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// Invalid grammar: a syntax error, no possible answer, or too much work.
    #[error("{field}: {message}")]
    Invalid {
        /// Form of the grammar: `json_schema`, `regex`, `choice` or `grammar`.
        field: &'static str,
        /// Expected and found value.
        message: String,
    },
    /// The system could not start a thread for compilation.
    #[error("no thread to compile a grammar on: {0}")]
    Thread(String),
    /// A defect in this crate or in llguidance.
    #[error("a grammar could not be compiled: {0}")]
    Internal(&'static str),
}

impl ConstraintError {
    pub(super) fn invalid(field: &'static str, message: impl Into<String>) -> ConstraintError {
        ConstraintError::Invalid { field, message: message.into() }
    }

    /// Category of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ConstraintError::Invalid { .. } => ErrorKind::Invalid,
            ConstraintError::Thread(_) => ErrorKind::OutOfMemory,
            ConstraintError::Internal(_) => ErrorKind::Internal,
        }
    }

    /// Form of the invalid grammar: `json_schema`, `regex`, `choice` or `grammar`. `None` for other errors.
    pub fn field(&self) -> Option<&'static str> {
        if let ConstraintError::Invalid { field, .. } = self { Some(field) } else { None }
    }
}

pub(super) const TOO_COMPLEX: &str = "it is too complex";
pub(super) const OVERLAP: &str = "the branches of a oneOf may overlap; write anyOf in its place";
const NO_TOKEN: &str = "it names a token that the vocabulary has not";
const NO_REFERENCE: &str = "a $ref is not found in the schema; only those that begin with # are followed";
const NO_PATTERN: &str =
    "a pattern is no regular expression that is supported: look-around and back references are not";

/// Fragments of llguidance's messages and their explanations. `{}` is replaced by the text after the
/// fragment, `{<}` by the word before it.
const MEANINGS: &[(&str, &str)] = &[
    ("panic: ", "the parser cannot take it"),
    ("NoExtensionBias", "no answer satisfies it"),
    ("Token range end too large", NO_TOKEN),
    ("fuel exhausted", TOO_COMPLEX),
    ("too large", TOO_COMPLEX),
    ("too complex", TOO_COMPLEX),
    ("precomputation failed", TOO_COMPLEX),
    ("too many", TOO_COMPLEX),
    ("level exceeded", TOO_COMPLEX),
    ("too deeply nested", "it is nested too deeply"),
];

/// Fragments that occur in errors of JSON schemas. The last row matches everything.
const OF_A_SCHEMA: &[(&str, &str)] = &[
    ("Unknown format: ", "the format {} is not supported"),
    ("Unimplemented keys: ", "these keywords are not supported: {}"),
    ("Unsatisfiable schema", "no value satisfies the schema"),
    ("oneOf constraints are not supported", OVERLAP),
    ("Only absolute $ref", NO_REFERENCE),
    ("Reference segment", NO_REFERENCE),
    ("Definition not found", NO_REFERENCE),
    ("not disjoint", "patterns of patternProperties overlap"),
    ("are disjoint", "patterns of patternProperties may overlap"),
    ("regex parse error", NO_PATTERN),
    ("lookarounds not supported", NO_PATTERN),
    ("Invalid type: ", "there is no type {}"),
    ("min/maxProperties only", "minProperties and maxProperties are not supported next to these properties"),
    ("circular references", "a $ref that leads back to itself has keywords next to it"),
    ("integer range", "minimum or maximum: the range is not supported"),
    ("float range", "minimum, maximum or const: a number is out of range"),
    ("'multipleOf'", "multipleOf: the number is not supported"),
    ("if regex is empty", "pattern: it is too complex"),
    (" must be ", "{<}: expected {}"),
    ("Expected ", "expected {}"),
    ("", "it is no JSON schema of the supported kind"),
];

/// Fragments that occur in errors of Lark grammars. The last row matches everything.
const OF_A_GRAMMAR: &[(&str, &str)] = &[
    ("failed to parse \"%json\"", "what follows %json is no JSON"),
    ("unknown special token: ", "the vocabulary has no control token {}"),
    ("unknown name: ", "it uses {}, which it does not define"),
    ("no start rule found", "it has no rule with the name start"),
    ("invalid regex", NO_PATTERN),
    ("", "it is no grammar in Lark's syntax"),
];

/// Converts a message of llguidance into an error.
pub(super) fn explain(field: &'static str, said: &str) -> ConstraintError {
    let (schema, said_of_it) = match said.split_once("failed to compile JSON schema: ") {
        Some((_, rest)) => (true, rest),
        None => (field == "json_schema", said),
    };
    let own = match field {
        _ if schema => OF_A_SCHEMA,
        "regex" => &[("", NO_PATTERN)],
        _ => OF_A_GRAMMAR,
    };
    let meaning = MEANINGS.iter().chain(own).find_map(|&(words, meaning)| {
        let (before, rest) = said_of_it.split_once(words)?;
        let word = before.rsplit(char::is_whitespace).next().unwrap_or_default();
        Some(meaning.replace("{<}", &quoted(word)).replace("{}", &quoted(rest)))
    });
    ConstraintError::invalid(field, meaning.unwrap_or_default() + &place(field, said))
}

/// Line and column of an error in a grammar, if the message has them.
fn place(field: &str, said: &str) -> String {
    let at = |said: &str| {
        let (line, rest) = said.trim_start_matches("at ").split_once('(')?;
        let (column, _) = rest.split_once(')')?;
        Some((line.trim().parse::<u32>().ok()?, column.parse::<u32>().ok()?))
    };
    match at(said).filter(|_| field == "grammar") {
        Some((line, column)) => format!(" (line {line}, column {column})"),
        None => String::new(),
    }
}

/// A text of the user's in quotation marks, cut and on one line.
pub(super) fn quotation(text: &str) -> String {
    format!("{:?}", quoted(text))
}

/// Start of the quotation, on one line.
fn quoted(rest: &str) -> String {
    let line = rest.split(['\n', ';']).next().unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(QUOTED_MAX).collect()
}
