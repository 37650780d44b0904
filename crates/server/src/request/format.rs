//! Constraints on an answer: `response_format`, `structured_outputs`, and the names of older vLLM, llama.cpp,
//! SGLang and NVIDIA's servers.

use std::sync::Arc;
use std::time::Duration;

use ottava::Error;
use ottava::constrain::{Constraint, ConstraintError, Grammar};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use crate::error::{ApiError, quoted, wrong};
use crate::request::fields::RequestFields;
use crate::request::json_fields::Fields;
use crate::request::table::{
    EBNF, GRAMMAR, GUIDED, JSON_SCHEMA, NVEXT, REGEX, RESPONSE_FORMAT, STRUCTURED_OUTPUTS,
};
use crate::state::App;

/// Time limit for compiling a grammar.
const TIME_MAX: Duration = Duration::from_secs(1);

/// A grammar, and the request's field that contains it.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    field: &'static str,
    grammar: Grammar,
}

impl Format {
    /// Takes every field with a constraint; `None` if all are absent or empty.
    ///
    /// # Errors
    /// A wrong value, or more than one constraint.
    pub(crate) fn take(
        fields: &mut RequestFields,
        response_format: Option<Map<String, Value>>,
    ) -> Result<Option<Format>, ApiError> {
        let mut found = Vec::new();
        let own = fields.take(&RESPONSE_FORMAT)?;
        format_of_type(response_format.or(own), &mut found)?;
        structured_outputs(fields, &mut found)?;
        guided(fields, &mut found)?;
        nvext(fields, &mut found)?;
        alone(fields, &mut found)?;
        match &found[..] {
            [first, second, ..] => {
                let (first, second) = (first.field, second.field);
                let message = format!("{second}: expected one thing to follow, found {first} beside it");
                Err(ApiError::invalid(second, message))
            }
            _ => Ok(found.pop()),
        }
    }

    /// The grammar, checked by compiling it alone, for use inside a larger grammar.
    ///
    /// # Errors
    /// As [`Format::compile`].
    pub(crate) async fn checked(self, app: &Arc<App>) -> Result<Grammar, ApiError> {
        let grammar = self.grammar.clone();
        self.compile(app).await.map(|_| grammar)
    }

    /// Compiles the grammar on a worker thread.
    ///
    /// # Errors
    /// The grammar's own, by its field; or a compile time above [`TIME_MAX`].
    pub(crate) async fn compile(self, app: &Arc<App>) -> Result<Constraint, ApiError> {
        let Format { field, grammar } = self;
        // The first grammar waits for the vocabulary; that time does not count.
        app.work(|engine| Ok(engine.constraints().map(drop)?)).await?;
        let (begun, begins) = oneshot::channel();
        let mut compiled = std::pin::pin!(app.work(move |engine| {
            // The receiver is dropped with the request.
            let _ = begun.send(());
            engine.constrain(&grammar).map_err(|error| refused(field, error))
        }));
        // The time limit starts when a thread begins.
        tokio::select! {
            compiled = &mut compiled => return compiled,
            _ = begins => {}
        }
        let too_slow = || {
            let limit = TIME_MAX.as_millis();
            ApiError::invalid(field, format!("{field}: it takes longer than {limit} ms to compile"))
        };
        tokio::time::timeout(TIME_MAX, compiled).await.unwrap_or_else(|_| Err(too_slow()))
    }
}

/// An error of the library, by the field that the client sent.
fn refused(field: &'static str, error: Error) -> ApiError {
    match error {
        Error::Constraint(ConstraintError::Invalid { message, .. }) => {
            ApiError::invalid(field, format!("{field}: {message}"))
        }
        other => other.into(),
    }
}

type Found = Vec<Format>;

/// OpenAI's `{"type": "json_schema", "json_schema": {"schema": …}}`; llama.cpp has the schema next to the
/// type, Hugging Face's TGI has it in `value`. A schema is enforced whether it is `strict` or not. Other
/// servers have the types `json`, `regex` and `grammar`.
fn format_of_type(format: Option<Map<String, Value>>, found: &mut Found) -> Result<(), ApiError> {
    const FIELD: &str = "response_format";
    let Some(mut format) = format else { return Ok(()) };
    let mut take = |name: &str| format.shift_remove(name).filter(|value| !value.is_null());
    let kind = take("type").unwrap_or_default();
    let (beside, nested, value) = (take("schema"), take("json_schema"), take("value"));
    let of_value = || value.as_ref().map(|value| value.get("schema").unwrap_or(value).clone());
    let schema = beside.or_else(|| nested?.get("schema").cloned()).or_else(of_value);
    let mut text = |name: &str| {
        let text = take(name).or_else(|| value.clone());
        let text = text.as_ref().and_then(Value::as_str).map(str::to_owned);
        text.ok_or_else(|| {
            ApiError::invalid(FIELD, format!("{FIELD}: expected a text in {name}, found none"))
        })
    };
    let grammar = match (kind.as_str().unwrap_or_default(), schema) {
        ("text", _) => return Ok(()),
        ("regex", _) => Grammar::regex(text("pattern")?),
        ("grammar", _) => Grammar::lark(text("grammar")?),
        ("json_object" | "json", None) => Grammar::json_object(),
        ("json_object" | "json" | "json_schema", Some(schema)) => Grammar::json_schema(schema),
        ("json_schema", None) => {
            return Err(ApiError::invalid(
                FIELD,
                format!("{FIELD}: expected json_schema with a schema, found none"),
            ));
        }
        _ => return Err(wrong(FIELD, "the type text, json_object or json_schema", &kind)),
    };
    found.push(Format { field: FIELD, grammar });
    Ok(())
}

/// vLLM's object with all forms.
fn structured_outputs(fields: &mut RequestFields, found: &mut Found) -> Result<(), ApiError> {
    const FIELD: &str = "structured_outputs";
    let Some(object) = fields.take(&STRUCTURED_OUTPUTS)? else { return Ok(()) };
    let mut inner = Fields::of(object);
    let names = Names {
        json: "json",
        json_object: "json_object",
        regex: "regex",
        choice: "choice",
        grammar: "grammar",
        whitespace: "whitespace_pattern",
    };
    let before = found.len();
    forms(&mut inner, &names, |_| FIELD, found)?;
    let unknown = inner.rest().into_iter().find(|(_, value)| !value.is_null() && *value != false);
    if let Some((name, _)) = unknown {
        return Err(ApiError::unsupported(
            FIELD,
            format!("{FIELD}: this server does not have {}", quoted(&name)),
        ));
    }
    match found.len() - before {
        0 | 1 => Ok(()),
        several => {
            Err(ApiError::invalid(FIELD, format!("{FIELD}: expected one thing to follow, found {several}")))
        }
    }
}

/// vLLM's older fields, one for each form.
fn guided(fields: &mut RequestFields, found: &mut Found) -> Result<(), ApiError> {
    forms(&mut fields.group(&GUIDED), &GUIDED_NAMES, |name| name, found)
}

/// NVIDIA's object with vLLM's older fields. The others are ignored, by their names.
fn nvext(fields: &mut RequestFields, found: &mut Found) -> Result<(), ApiError> {
    const FIELD: &str = "nvext";
    let Some(mut inner) = fields.inner(&NVEXT)? else { return Ok(()) };
    forms(&mut inner, &GUIDED_NAMES, |_| FIELD, found)?;
    inner.take("guided_decoding_backend");
    for (name, value) in inner.rest() {
        if name.starts_with("guided_") && !value.is_null() {
            let name = quoted(&name);
            return Err(ApiError::unsupported(FIELD, format!("{FIELD}: this server does not have {name}")));
        }
        fields.skipped().add(FIELD, &name);
    }
    Ok(())
}

/// Fields of one form each: llama.cpp's, where empty values are no-ops, and SGLang's.
fn alone(fields: &mut RequestFields, found: &mut Found) -> Result<(), ApiError> {
    let schema = fields.take(&JSON_SCHEMA)?.map(|schema| parsed("json_schema", schema)).transpose()?;
    let schema = schema.filter(|schema| *schema != Value::Object(Map::new()));
    found.extend(schema.map(|schema| Format { field: "json_schema", grammar: Grammar::json_schema(schema) }));
    for (field, text) in [("grammar", fields.take(&GRAMMAR)?), ("ebnf", fields.take(&EBNF)?)] {
        let text = text.filter(|text| !text.trim().is_empty());
        found.extend(text.map(|text| Format { field, grammar: Grammar::lark(text) }));
    }
    let pattern = fields.take(&REGEX)?;
    found.extend(pattern.map(|pattern| Format { field: "regex", grammar: Grammar::regex(pattern) }));
    Ok(())
}

/// Field names of the forms.
struct Names {
    json: &'static str,
    json_object: &'static str,
    regex: &'static str,
    choice: &'static str,
    grammar: &'static str,
    whitespace: &'static str,
}

const GUIDED_NAMES: Names = Names {
    json: "guided_json",
    json_object: "guided_json_object",
    regex: "guided_regex",
    choice: "guided_choice",
    grammar: "guided_grammar",
    whitespace: "guided_whitespace_pattern",
};

/// Takes every form; `field` maps its name to the field in errors.
fn forms(
    fields: &mut Fields,
    names: &Names,
    field: impl Fn(&'static str) -> &'static str,
    found: &mut Found,
) -> Result<(), ApiError> {
    let whitespace = fields.string(names.whitespace)?;
    let (before, within) = (found.len(), |grammar: Grammar| match &whitespace {
        Some(pattern) => grammar.whitespace(pattern.as_str()),
        None => grammar,
    });
    let mut add = |name, grammar| found.push(Format { field: field(name), grammar });
    if let Some(schema) = fields.take(names.json) {
        add(names.json, within(Grammar::json_schema(parsed(field(names.json), schema)?)));
    }
    if fields.bool(names.json_object)?.unwrap_or(false) {
        add(names.json_object, within(Grammar::json_object()));
    }
    // Only JSON forms have a white-space pattern.
    let json = found.len() > before;
    let mut add = |name, grammar| found.push(Format { field: field(name), grammar });
    if let Some(pattern) = fields.string(names.regex)? {
        add(names.regex, Grammar::regex(pattern));
    }
    if let Some(texts) = fields.strings(names.choice)? {
        add(names.choice, Grammar::choice(texts));
    }
    if let Some(text) = fields.string(names.grammar)? {
        add(names.grammar, Grammar::lark(text));
    }
    if whitespace.is_some() && !json {
        let name = names.whitespace;
        return Err(ApiError::invalid(field(name), format!("{name}: expected JSON beside it, found none")));
    }
    Ok(())
}

/// A schema, as an object or as JSON text.
fn parsed(field: &str, schema: Value) -> Result<Value, ApiError> {
    match schema {
        Value::String(text) => crate::request::json::parse(text.as_bytes())
            .map_err(|_| wrong(field, "a JSON schema", &Value::String(text))),
        schema => Ok(schema),
    }
}
