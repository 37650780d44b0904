//! `/openapi.json`: the routes, with request schemas from the table of fields. The file `openapi.json` in
//! this folder has the components.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::api::chat::ChatRequest;
use crate::api::completions::CompletionRequest;
use crate::api::typed::ApiRequest;
use crate::api::{messages, responses, tokens};

/// The document without its paths.
const COMPONENTS: &str = include_str!("openapi.json");

static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());

/// `/openapi.json`
pub(crate) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}

/// A route with its method.
struct Operation {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Schema of the body; `None` for GET.
    body: Option<Value>,
    /// Responses by status.
    answers: Value,
}

fn document() -> Value {
    // A constant, which the tests parse.
    let mut document: Value = serde_json::from_str(COMPONENTS).unwrap_or_default();
    let mut paths = Map::new();
    for operation in operations() {
        let mut described = json!({"summary": operation.summary});
        if let Some(schema) = operation.body {
            let content = json!({"application/json": {"schema": schema}});
            described["requestBody"] = json!({"required": true, "content": content});
        }
        described["responses"] = operation.answers;
        if operation.path.ends_with("{id}") {
            let schema = json!({"type": "string"});
            described["parameters"] =
                json!([{"name": "id", "in": "path", "required": true, "schema": schema}]);
        }
        paths.insert(operation.path.to_owned(), json!({operation.method: described}));
    }
    document["paths"] = paths.into();
    document
}

fn operations() -> Vec<Operation> {
    vec![
        streamed::<ChatRequest>("/v1/chat/completions", "Answer a conversation"),
        answered::<tokens::CountRequest>(
            "/v1/chat/completions/input_tokens",
            "How many tokens a conversation's prompt is",
        ),
        answered::<tokens::RenderRequest>(
            "/v1/chat/completions/render",
            "A conversation's prompt as tokens, for vllm-router",
        ),
        streamed::<CompletionRequest>("/v1/completions", "Continue prompts without a template"),
        streamed::<responses::ResponsesRequest>(
            "/v1/responses",
            "Answer an input, for agents; nothing is kept",
        ),
        answered::<responses::CountRequest>("/v1/responses/input_tokens", "How many tokens an input is"),
        streamed::<messages::MessagesRequest>("/v1/messages", "Answer a conversation by Anthropic's API"),
        answered::<messages::CountRequest>("/v1/messages/count_tokens", "How many tokens a conversation is"),
        post(
            "/v1/embeddings",
            "Refused: no model here makes embeddings",
            "Answer",
            json!({"type": "object"}),
        ),
        get("/v1/models", "The names of the model", "application/json"),
        get("/v1/models/{id}", "The model by one of its names", "application/json"),
        answered::<tokens::TokenizeRequest>("/tokenize", "The tokens of a text or of messages"),
        answered::<tokens::DetokenizeRequest>("/detokenize", "The text of tokens"),
        get("/health", "The process lives", "application/json"),
        get("/v1/health", "The process lives", "application/json"),
        get("/ready", "It can answer now", "application/json"),
        get("/metrics", "Counters by vLLM's names", "application/openmetrics-text"),
        get("/version", "The server's version", "application/json"),
        get("/openapi.json", "This document", "application/json"),
        get("/", "A page to chat", "text/html"),
    ]
}

/// A route with a typed request and one JSON answer.
fn answered<T: ApiRequest>(path: &'static str, summary: &'static str) -> Operation {
    post(path, summary, "Answer", schema::<T>())
}

/// A route with a typed request and an answer that may be streamed.
fn streamed<T: ApiRequest>(path: &'static str, summary: &'static str) -> Operation {
    post(path, summary, "AnswerOrStream", schema::<T>())
}

/// JSON schema of a typed request.
fn schema<T: ApiRequest>() -> Value {
    let properties: Map<String, Value> =
        T::rows().into_iter().map(|row| (row.name().to_owned(), row.schema())).collect();
    let mut schema = json!({"type": "object"});
    if !T::REQUIRED.is_empty() {
        schema["required"] = T::REQUIRED.into();
    }
    schema["properties"] = properties.into();
    schema
}

fn post(path: &'static str, summary: &'static str, answer: &str, body: Value) -> Operation {
    let of = |name: &str| json!({"$ref": format!("#/components/responses/{name}")});
    // Errors of this API have another form.
    let prefix = if path.starts_with("/v1/messages") { "Anthropic" } else { "" };
    let errors = [
        ("400", "Invalid"),
        ("401", "NoKey"),
        ("403", "Foreign"),
        ("404", "NoModel"),
        ("408", "Slow"),
        ("413", "Large"),
        ("429", "Busy"),
        ("500", "Own"),
        ("503", "Stopping"),
    ];
    let mut answers = json!({"200": of(answer)});
    for (status, name) in errors {
        answers[status] = of(&format!("{prefix}{name}"));
    }
    Operation { method: "post", path, summary, body: Some(body), answers }
}

fn get(path: &'static str, summary: &'static str, kind: &str) -> Operation {
    let of = |name: &str| json!({"$ref": format!("#/components/responses/{name}")});
    let mut answers = json!({
        "200": {"description": "the answer", "content": {kind: {}}},
        "401": of("NoKey"),
        "403": of("Foreign"),
    });
    match path {
        "/v1/models/{id}" => answers["404"] = of("NoModel"),
        "/ready" => answers["503"] = of("NotReady"),
        _ => {}
    }
    Operation { method: "get", path, summary, body: None, answers }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::request::fields::{Group, RequestFields};
    use crate::request::table::EVERY_REQUEST;

    type Names = BTreeSet<String>;

    /// A route's fields: as its request is read, as the table has them, as `/openapi.json` has them.
    struct Fields {
        path: &'static str,
        read: Names,
        table: Names,
        groups: Vec<&'static Group>,
    }

    fn fields<T: ApiRequest>(path: &'static str, body: Value) -> Fields {
        let mut fields = RequestFields::of(body.as_object().expect("an object").clone());
        T::read(&mut fields, None).map(drop).unwrap_or_else(|error| panic!("{path}: {error:?}"));
        let taken = fields.taken().iter().chain([&"model"]);
        Fields {
            path,
            read: taken.map(|name| (*name).to_owned()).collect(),
            table: T::rows().into_iter().map(|row| row.name().to_owned()).collect(),
            groups: T::GROUPS.iter().copied().flatten().copied().collect(),
        }
    }

    fn routes() -> Vec<Fields> {
        let messages = json!([{"role": "user", "content": "a"}]);
        let chat = json!({"messages": messages});
        vec![
            fields::<ChatRequest>("/v1/chat/completions", chat.clone()),
            fields::<tokens::CountRequest>("/v1/chat/completions/input_tokens", chat.clone()),
            fields::<tokens::RenderRequest>("/v1/chat/completions/render", chat.clone()),
            fields::<CompletionRequest>("/v1/completions", json!({"prompt": "a"})),
            fields::<responses::ResponsesRequest>("/v1/responses", json!({"input": "a"})),
            fields::<responses::CountRequest>("/v1/responses/input_tokens", json!({"input": "a"})),
            fields::<messages::MessagesRequest>(
                "/v1/messages",
                json!({"messages": messages, "max_tokens": 1}),
            ),
            fields::<messages::CountRequest>("/v1/messages/count_tokens", chat.clone()),
            fields::<tokens::TokenizeRequest>("/tokenize", chat),
            fields::<tokens::DetokenizeRequest>("/detokenize", json!({"tokens": [1]})),
        ]
    }

    #[test]
    fn requests_read_the_fields_of_their_tables_and_no_others() {
        for route in routes() {
            assert_eq!(route.read, route.table, "{}", route.path);
        }
    }

    #[test]
    fn the_document_has_the_fields_of_the_table_and_no_others() {
        let document = document();
        for Fields { path, table, .. } in routes() {
            let schema =
                &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
            let described: Names =
                schema["properties"].as_object().expect("fields").keys().cloned().collect();
            assert_eq!(described, table, "{path}");
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            assert!(required.into_iter().all(|name| table.contains(name)), "{path}");
        }
    }

    #[test]
    fn the_document_has_every_component_that_it_names() {
        let (document, mut named) = (document(), Vec::new());
        collect(&document, &mut named);
        assert!(named.len() > 100, "{named:?}");
        for path in &named {
            assert!(document.pointer(path.trim_start_matches('#')).is_some(), "{path}");
        }
        for kind in ["schemas", "responses"] {
            for name in document["components"][kind].as_object().expect("components").keys() {
                let path = format!("#/components/{kind}/{name}");
                assert!(named.contains(&path), "{path} is not used");
            }
        }
    }

    fn collect(value: &Value, named: &mut Vec<String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(name, value)| match value {
                Value::String(path) if name == "$ref" => named.push(path.clone()),
                _ => collect(value, named),
            }),
            Value::Array(list) => list.iter().for_each(|value| collect(value, named)),
            _ => {}
        }
    }

    /// A group's section lists each of its fields: in the first cell of a table's row, or in a list of names.
    #[test]
    fn the_manual_has_the_fields_of_the_table_and_no_others() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/server.md");
        let manual = std::fs::read_to_string(path).expect("the manual");
        let mut table: BTreeMap<&str, Names> = BTreeMap::new();
        let groups = routes().into_iter().flat_map(|route| route.groups).chain([&EVERY_REQUEST]);
        for group in groups {
            let names = group.rows.iter().map(|row| row.name().to_owned());
            table.entry(group.title).or_default().extend(names);
        }
        let mut sections: BTreeMap<&str, Names> = BTreeMap::new();
        let (_, fields) = manual.split_once("\n## Fields\n").expect("the section of fields");
        let (fields, _) = fields.split_once("\n## ").expect("a section after it");
        for section in fields.split("\n### ").skip(1) {
            let (title, text) = section.split_once('\n').expect("a heading");
            sections.insert(title, text.lines().flat_map(named).collect());
        }
        assert_eq!(sections, table);
    }

    /// Names of fields in a line of the manual.
    fn named(line: &str) -> Vec<String> {
        let names = match (line.strip_prefix("| "), line.strip_prefix('`')) {
            (Some(row), _) => row.split(" | ").next().unwrap_or_default(),
            (None, Some(_)) => line,
            (None, None) => "",
        };
        names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    }
}
