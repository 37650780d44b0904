//! [`Grammar`]: the user's description of valid answers.

use serde_json::{Map, Value, json};

use super::error::ConstraintError;
use super::{bounds, normalise};

/// White space between JSON tokens. Bounded, so that an answer cannot loop in it.
const WHITESPACE: &str = r"[ \t\n\r]{1,40}";
/// Characters allowed after a backslash in a JSON string.
const ESCAPES: &str = r#"nrbtf\""#;
/// Schema key with options for llguidance. Rejected in user schemas, because some options disable checks.
const SWITCHES: &str = "x-guidance";

/// Description of valid answers. [`Engine::constrain`](crate::Engine::constrain) compiles it to a
/// [`Constraint`](super::Constraint).
///
/// ```
/// use ottava::constrain::Grammar;
/// use serde_json::json;
///
/// let person = Grammar::json_schema(json!({
///     "type": "object",
///     "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
///     "required": ["name", "age"],
///     "additionalProperties": false,
/// }));
/// let date = Grammar::regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}");
/// let mood = Grammar::choice(["good", "bad", "neither"]);
/// let sum = Grammar::lark(r#"start: NUMBER ("+" NUMBER)*
/// NUMBER: /[0-9]+/"#);
/// # let _ = (person, date, mood, sum);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Grammar {
    form: Form,
}

#[derive(Clone, Debug, PartialEq)]
enum Form {
    Json { schema: Value, whitespace: Option<String> },
    Regex(String),
    Choice(Vec<String>),
    Lark(String),
}

/// A grammar in the input format of llguidance.
#[derive(Debug)]
pub(super) enum Source {
    Schema(Value),
    Lark(String),
}

impl Grammar {
    /// JSON that satisfies a schema. Unsupported keywords are rejected when the grammar is compiled, never
    /// ignored. A `format` that JSON Schema does not define is an annotation without effect.
    pub fn json_schema(schema: Value) -> Grammar {
        Grammar { form: Form::Json { schema, whitespace: None } }
    }

    /// Any JSON object.
    pub fn json_object() -> Grammar {
        Grammar::json_schema(json!({"type": "object"}))
    }

    /// Text that matches a regular expression as a whole. Look-around and back references are not supported.
    /// A leading `^` and a trailing `$` have no effect.
    pub fn regex(pattern: impl Into<String>) -> Grammar {
        Grammar { form: Form::Regex(pattern.into()) }
    }

    /// One of the given texts.
    pub fn choice<S: Into<String>>(texts: impl IntoIterator<Item = S>) -> Grammar {
        Grammar { form: Form::Choice(texts.into_iter().map(Into::into).collect()) }
    }

    /// A grammar in Lark's syntax with `start` as its first rule. Control tokens are written by name,
    /// `<|im_end|>`, or by id, `<[42]>`; `%json {…}` embeds a JSON schema.
    pub fn lark(text: impl Into<String>) -> Grammar {
        Grammar { form: Form::Lark(text.into()) }
    }

    /// Regular expression for the white space between JSON tokens. Default: up to 40 spaces, tabs and line
    /// ends. No effect on grammars other than JSON schemas.
    pub fn whitespace(mut self, pattern: impl Into<String>) -> Grammar {
        if let Form::Json { whitespace, .. } = &mut self.form {
            *whitespace = Some(pattern.into());
        }
        self
    }

    /// The grammar as an element of another grammar's rule.
    ///
    /// # Errors
    /// [`ConstraintError::Invalid`] as far as the error is found without compilation.
    pub(crate) fn part(&self) -> Result<String, ConstraintError> {
        Ok(match self.source()? {
            Source::Schema(schema) => format!("%json {schema}"),
            Source::Lark(text) => format!("%lark {{\n{text}\n}}"),
        })
    }

    /// Name of the grammar's form in errors.
    pub(super) fn field(&self) -> &'static str {
        match &self.form {
            Form::Json { .. } => "json_schema",
            Form::Regex(_) => "regex",
            Form::Choice(_) => "choice",
            Form::Lark(_) => "grammar",
        }
    }

    /// The grammar in the input format of llguidance.
    ///
    /// # Errors
    /// [`ConstraintError::Invalid`] for errors that are found without the parser.
    pub(super) fn source(&self) -> Result<Source, ConstraintError> {
        let refused = |message: String| ConstraintError::invalid(self.field(), message);
        match &self.form {
            Form::Json { schema, whitespace } => {
                let schema = switched(schema, whitespace.as_deref()).map_err(refused)?;
                bounds::json(&schema).map_err(refused)?;
                Ok(Source::Schema(schema))
            }
            Form::Regex(pattern) => regex(pattern).map(Source::Lark).map_err(refused),
            Form::Choice(texts) => choice(texts).map(Source::Lark).map_err(refused),
            Form::Lark(text) if is_bnf(text) => {
                Err(refused("expected a grammar in Lark's syntax, found one in GBNF or BNF (::=)".into()))
            }
            Form::Lark(text) => {
                let schemas = bounds::lark(text).map_err(refused)?;
                normalise::normalise_in_lark(text, &schemas).map(Source::Lark).map_err(refused)
            }
        }
    }
}

impl Source {
    /// Hash of the source, the cache key.
    pub(super) fn key(&self) -> blake3::Hash {
        match self {
            Source::Schema(schema) => blake3::hash(format!("json {schema}").as_bytes()),
            Source::Lark(text) => blake3::hash(format!("lark {text}").as_bytes()),
        }
    }
}

/// Adds our options for llguidance to a schema. Rejects a schema that has its own.
fn switched(schema: &Value, whitespace: Option<&str>) -> Result<Value, String> {
    let mut object = match schema {
        Value::Object(object) => object.clone(),
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err("no value satisfies the schema false".into()),
        _ => return Err("expected an object or true".into()),
    };
    // With `\u` allowed, a key could be spelled in two ways and occur twice; the second value would escape
    // its schema.
    let switches = json!({
        "whitespace_pattern": whitespace.unwrap_or(WHITESPACE),
        "json_allowed_escapes": ESCAPES,
    });
    match object.insert(SWITCHES.into(), switches) {
        Some(_) => Err(format!("the keyword {SWITCHES} is not supported")),
        None => {
            normalise::normalise(&mut object)?;
            Ok(Value::Object(object))
        }
    }
}

/// Whether a line defines a rule in GBNF or BNF syntax.
fn is_bnf(text: &str) -> bool {
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_".contains(c));
    text.lines().filter_map(|line| line.split_once("::=")).any(|(name, _)| is_name(name.trim()))
}

/// Regular expression as a grammar with one terminal.
fn regex(pattern: &str) -> Result<String, String> {
    bounds::pattern(pattern.len())?;
    let escaped = |text: &str| text.len() - text.trim_end_matches('\\').len();
    if escaped(pattern) % 2 == 1 {
        return Err("it ends with a lone \\".into());
    }
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    let pattern = match pattern.strip_suffix('$') {
        Some(rest) if escaped(rest) % 2 == 0 => rest,
        _ => pattern,
    };
    if pattern.is_empty() {
        return choice(&[String::new()]);
    }
    Ok(format!("start: TEXT\nTEXT: /{}/", llguidance::regex_to_lark(pattern, "")))
}

/// Alternative texts as a grammar with one terminal.
fn choice(texts: &[String]) -> Result<String, String> {
    if texts.is_empty() {
        return Err("expected at least 1 text, found none".into());
    }
    bounds::texts(texts.iter().map(String::len).sum())?;
    // Lark's string literals are JSON strings, except for DEL.
    let quote = |text: &String| json!(text).to_string().replace('\u{7f}', "\\u007f");
    let quoted: Vec<String> = texts.iter().map(quote).collect();
    Ok(format!("start: TEXT\nTEXT: {}", quoted.join(" | ")))
}
