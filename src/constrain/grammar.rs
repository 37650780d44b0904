//! [`Grammar`]: the user's description of valid answers.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::bounds;
use super::error::ConstraintError;
use super::lark::Lark;
use super::schema::Schema;

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
    Json {
        schema: Value,
        whitespace: Option<String>,
    },
    Regex(String),
    Choice(Vec<String>),
    Lark(String),
    /// Built by this crate. An error is reported on compilation, as those of the other forms.
    Built(Result<Lark, String>),
}

/// A grammar with checked and rewritten schemas.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Source {
    Schema(Schema),
    Lark(Lark),
}

/// A grammar in the input format of llguidance.
pub(super) struct Printed {
    pub(super) grammar: TopLevelGrammar,
    /// Hash of the grammar, the cache key.
    pub(super) key: blake3::Hash,
    pub(super) has_schema: bool,
}

impl Grammar {
    /// JSON that satisfies a schema. Unsupported keywords are rejected when the grammar is compiled, never
    /// ignored. A `format` that JSON Schema does not define is an annotation without effect. An object has
    /// only the properties that its schema describes, unless the schema has `additionalProperties` or no
    /// `properties`.
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

    /// Regular expression for the white space between JSON tokens. Default: up to 8 spaces, tabs and line
    /// ends. No effect on grammars other than JSON schemas.
    pub fn whitespace(mut self, pattern: impl Into<String>) -> Grammar {
        if let Form::Json { whitespace, .. } = &mut self.form {
            *whitespace = Some(pattern.into());
        }
        self
    }

    /// A grammar of this crate, or the reason why there is none.
    pub(crate) fn built(grammar: Result<Lark, String>) -> Grammar {
        Grammar { form: Form::Built(grammar) }
    }

    /// Text of a grammar that this crate built, beyond the limits, too.
    #[cfg(test)]
    pub(crate) fn built_text(&self) -> String {
        let Form::Built(Ok(grammar)) = &self.form else { panic!("expected a built grammar, found {self:?}") };
        grammar.print()
    }

    /// Name of the grammar's form in errors.
    pub(crate) fn field(&self) -> &'static str {
        match &self.form {
            Form::Json { .. } => "json_schema",
            Form::Regex(_) => "regex",
            Form::Choice(_) => "choice",
            Form::Lark(_) | Form::Built(_) => "grammar",
        }
    }

    /// Checks the grammar and rewrites its schemas.
    ///
    /// # Errors
    /// [`ConstraintError::Invalid`] for errors that are found without the parser.
    pub(crate) fn source(&self) -> Result<Source, ConstraintError> {
        let source = match &self.form {
            Form::Json { schema, whitespace } => {
                Schema::of_answer(schema, whitespace.as_deref()).map(Source::Schema)
            }
            Form::Regex(pattern) => regex(pattern).map(Source::Lark),
            Form::Choice(texts) => choice(texts).map(Source::Lark),
            Form::Lark(text) if is_bnf(text) => {
                Err("expected a grammar in Lark's syntax, found one in GBNF or BNF (::=)".into())
            }
            Form::Lark(text) => Lark::parse(text).and_then(Lark::within_limits).map(Source::Lark),
            Form::Built(grammar) => grammar.clone().and_then(Lark::within_limits).map(Source::Lark),
        };
        source.map_err(|message| ConstraintError::invalid(self.field(), message))
    }
}

impl Source {
    /// The grammar as an element of another grammar's rule.
    pub(crate) fn nested(&self) -> Lark {
        match self {
            Source::Schema(schema) => Lark::schema(schema.clone()),
            Source::Lark(lark) => lark.clone().nested(),
        }
    }

    pub(super) fn print(&self) -> Printed {
        match self {
            Source::Schema(schema) => {
                let mut hasher = blake3::Hasher::new();
                hasher.update(b"json ");
                // A hasher takes every write, and a schema's keys are strings.
                let _ = serde_json::to_writer(&mut hasher, schema.value());
                let grammar = TopLevelGrammar::from_json_schema(schema.value().clone());
                Printed { grammar, key: hasher.finalize(), has_schema: true }
            }
            Source::Lark(lark) => {
                let text = lark.print();
                let key = blake3::Hasher::new().update(b"lark ").update(text.as_bytes()).finalize();
                Printed { grammar: TopLevelGrammar::from_lark(text), key, has_schema: lark.has_schema() }
            }
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
fn regex(pattern: &str) -> Result<Lark, String> {
    bounds::patterns([pattern])?;
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
    Ok(terminal(format!("/{}/", llguidance::regex_to_lark(pattern, ""))))
}

/// Alternative texts as a grammar with one terminal.
fn choice(texts: &[String]) -> Result<Lark, String> {
    if texts.is_empty() {
        return Err("expected at least 1 text, found none".into());
    }
    bounds::texts(texts.iter().map(String::len).sum())?;
    // Lark's string literals are JSON strings, except for DEL.
    let quote = |text: &String| json!(text).to_string().replace('\u{7f}', "\\u007f");
    let quoted: Vec<String> = texts.iter().map(quote).collect();
    Ok(terminal(quoted.join(" | ")))
}

/// Grammar of one terminal.
fn terminal(body: String) -> Lark {
    let mut grammar = Lark::default();
    grammar.define("start", "TEXT");
    grammar.define("TEXT", body);
    grammar
}
