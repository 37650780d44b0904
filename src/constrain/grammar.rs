//! [`Grammar`]: what an answer has to follow, as people write it.

use serde_json::{Map, Value, json};

use super::error::ConstraintError;
use super::{bounds, normalise};

/// What JSON may have between its tokens. It is bounded, so that no answer loops in it.
const WHITESPACE: &str = r"[ \t\n\r]{1,40}";
/// What may stand behind a \ in a string.
const ESCAPES: &str = r#"nrbtf\""#;
/// The key of a schema that switches the parser below, whose values could make it look away.
const SWITCHES: &str = "x-guidance";

/// What an answer has to follow. [`Engine::constrain`](crate::Engine::constrain) makes a
/// [`Constraint`](super::Constraint) of it.
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

/// A grammar as the parser below takes it.
#[derive(Debug)]
pub(super) enum Source {
    Schema(Value),
    Lark(String),
}

impl Grammar {
    /// JSON that satisfies a schema. A keyword that cannot be kept is refused, never overlooked; a `format` that JSON
    /// Schema does not define is an annotation, and says nothing of the text.
    pub fn json_schema(schema: Value) -> Grammar {
        Grammar { form: Form::Json { schema, whitespace: None } }
    }

    /// Any JSON object.
    pub fn json_object() -> Grammar {
        Grammar::json_schema(json!({"type": "object"}))
    }

    /// What the whole answer matches: a regular expression without look-around and back references. `^` at its
    /// beginning and `$` at its end change nothing.
    pub fn regex(pattern: impl Into<String>) -> Grammar {
        Grammar { form: Form::Regex(pattern.into()) }
    }

    /// One of these texts.
    pub fn choice<S: Into<String>>(texts: impl IntoIterator<Item = S>) -> Grammar {
        Grammar { form: Form::Choice(texts.into_iter().map(Into::into).collect()) }
    }

    /// A grammar in Lark's syntax, whose first rule is `start`. A control token is named like `<|im_end|>` or, by its
    /// id, `<[42]>`; `%json {…}` is a JSON schema as a rule.
    pub fn lark(text: impl Into<String>) -> Grammar {
        Grammar { form: Form::Lark(text.into()) }
    }

    /// What stands between the tokens of JSON, a regular expression. Default: up to 40 spaces, tabs and line
    /// ends. Only a JSON schema has it.
    pub fn whitespace(mut self, pattern: impl Into<String>) -> Grammar {
        if let Form::Json { whitespace, .. } = &mut self.form {
            *whitespace = Some(pattern.into());
        }
        self
    }

    /// The grammar as a part of a rule of another one.
    ///
    /// # Errors
    /// As those of compiling it, as far as its text shows them.
    pub(crate) fn part(&self) -> Result<String, ConstraintError> {
        Ok(match self.source()? {
            Source::Schema(schema) => format!("%json {schema}"),
            Source::Lark(text) => format!("%lark {{\n{text}\n}}"),
        })
    }

    /// What errors call it.
    pub(super) fn field(&self) -> &'static str {
        match &self.form {
            Form::Json { .. } => "json_schema",
            Form::Regex(_) => "regex",
            Form::Choice(_) => "choice",
            Form::Lark(_) => "grammar",
        }
    }

    /// What the parser below gets.
    ///
    /// # Errors
    /// [`ConstraintError::Invalid`] for what need not be parsed to be refused.
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
    /// What no other grammar has.
    pub(super) fn key(&self) -> blake3::Hash {
        match self {
            Source::Schema(schema) => blake3::hash(format!("json {schema}").as_bytes()),
            Source::Lark(text) => blake3::hash(format!("lark {text}").as_bytes()),
        }
    }
}

/// A schema with our whitespace in it. What switches the parser is ours alone.
fn switched(schema: &Value, whitespace: Option<&str>) -> Result<Value, String> {
    let mut object = match schema {
        Value::Object(object) => object.clone(),
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err("no value satisfies the schema false".into()),
        _ => return Err("expected an object or true".into()),
    };
    // Spelled with \u a name could come twice: the second one need not follow its own schema.
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

/// Whether a line defines a rule as GBNF and BNF do.
fn is_bnf(text: &str) -> bool {
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_".contains(c));
    text.lines().filter_map(|line| line.split_once("::=")).any(|(name, _)| is_name(name.trim()))
}

/// A regular expression as a grammar of one terminal.
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

/// Texts as a grammar of one terminal.
fn choice(texts: &[String]) -> Result<String, String> {
    if texts.is_empty() {
        return Err("expected at least 1 text, found none".into());
    }
    bounds::texts(texts.iter().map(String::len).sum())?;
    // Lark's texts are JSON's, but for this character.
    let quote = |text: &String| json!(text).to_string().replace('\u{7f}', "\\u007f");
    let quoted: Vec<String> = texts.iter().map(quote).collect();
    Ok(format!("start: TEXT\nTEXT: {}", quoted.join(" | ")))
}
