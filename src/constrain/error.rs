//! Why a grammar is refused, in our own words: the parser below writes dumps of many lines.

use crate::kind::ErrorKind;

/// Most characters of what a message quotes.
const QUOTED_MAX: usize = 120;

/// Why an answer cannot be constrained so. Its text is one line of at most 300 characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The grammar is at fault: it cannot be read, nothing can follow it, or it takes too much work.
    #[error("{field}: {message}")]
    Invalid {
        /// What was given: `json_schema`, `regex`, `choice` or `grammar`.
        field: &'static str,
        /// What was expected and what was found.
        message: String,
    },
    /// The system gave no thread to compile on.
    #[error("no thread to compile a grammar on: {0}")]
    Thread(String),
    /// A defect: of this crate, or of the parser below.
    #[error("a grammar could not be compiled: {0}")]
    Internal(&'static str),
}

impl ConstraintError {
    pub(super) fn invalid(field: &'static str, message: impl Into<String>) -> ConstraintError {
        ConstraintError::Invalid { field, message: message.into() }
    }

    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ConstraintError::Invalid { .. } => ErrorKind::Invalid,
            ConstraintError::Thread(_) => ErrorKind::OutOfMemory,
            ConstraintError::Internal(_) => ErrorKind::Internal,
        }
    }

    /// Which form of a grammar is at fault.
    pub fn field(&self) -> Option<&'static str> {
        if let ConstraintError::Invalid { field, .. } = self { Some(field) } else { None }
    }
}

/// What the parser's messages begin with or hold, and what they mean. `{}` is what stands behind the words.
const MEANINGS: &[(&str, &str)] = &[
    ("unknown special token: ", "the vocabulary has no control token {}"),
    ("Unknown format: ", "the format {} is not supported"),
    ("Unimplemented keys: ", "these keywords are not supported: {}"),
    ("Unsatisfiable schema", "no value satisfies the schema"),
    ("oneOf constraints are not supported", "the branches of a oneOf may overlap; write anyOf in its place"),
    ("Failed to resolve reference", "a $ref is not found in the schema; only those that begin with # are followed"),
    ("not found in document", "a $ref is not found in the schema; only those that begin with # are followed"),
    ("Definition not found", "a $ref is not found in the schema; only those that begin with # are followed"),
    ("External references", "a $ref is not found in the schema; only those that begin with # are followed"),
    ("not disjoint", "patterns of patternProperties overlap"),
    ("no forcing of token", "it names a token that the vocabulary has not"),
    ("fuel exhausted", TOO_COMPLEX),
    ("too large", TOO_COMPLEX),
    ("too complex", TOO_COMPLEX),
    ("too many", TOO_COMPLEX),
    ("level exceeded", TOO_COMPLEX),
    ("nest limit", "parentheses are nested too deeply"),
    ("invalid regex", "it is no regular expression of the supported syntax"),
    ("unknown name", "it uses the terminal {}, which it does not define"),
    ("rule \"", "it uses the rule \"{}, which it does not define"),
    ("must be ", "a keyword has a value of the wrong type"),
    ("Expected ", "a keyword has a value of the wrong type"),
    ("Invalid type: ", "there is no type {}"),
];

pub(super) const TOO_COMPLEX: &str = "it is too complex";

/// An error of what the parser below says of a grammar.
pub(super) fn explain(field: &'static str, said: &str) -> ConstraintError {
    let meaning = MEANINGS.iter().find_map(|&(words, meaning)| {
        let (_, rest) = said.split_once(words)?;
        Some(meaning.replace("{}", &quoted(rest)))
    });
    let unread = match field {
        "json_schema" => "it is no JSON schema of the supported kind",
        "regex" => "it is no regular expression of the supported syntax",
        _ => "it is no grammar in Lark's syntax",
    };
    let message = meaning.unwrap_or_else(|| unread.to_owned());
    ConstraintError::invalid(field, message + &place(field, said))
}

/// Where in a grammar's text the parser stood, where it says so.
fn place(field: &str, said: &str) -> String {
    let at = |said: &str| {
        let (line, rest) = said.split_once('(')?;
        let (column, _) = rest.split_once(')')?;
        Some((line.trim().parse::<u32>().ok()?, column.parse::<u32>().ok()?))
    };
    match at(said).filter(|_| field == "grammar") {
        Some((line, column)) => format!(" (line {line}, column {column})"),
        None => String::new(),
    }
}

/// The first words of what was quoted, on one line.
fn quoted(rest: &str) -> String {
    let line = rest.split(['\n', ';']).next().unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(QUOTED_MAX).collect()
}
