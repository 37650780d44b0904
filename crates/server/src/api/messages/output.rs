//! The answer of `/v1/messages`: blocks with their events.

use ottava::engine::Usage;
use serde_json::{Value, json};

use crate::answer::openai_chunks::append;
use crate::answer::output_items::{Section, Sections, Step};
use crate::answer::stream::{ResponseFormat, Wire};
use crate::answer::{Output, Piece};
use crate::error::ApiError;

/// Events of a message.
pub(crate) struct Blocks {
    /// The message before its first block.
    shell: Value,
    sections: Sections,
    /// Type and field name of the open block's deltas.
    delta: (&'static str, &'static str),
    /// Number of ended blocks.
    ended: usize,
    usage: Usage,
    stop_reason: &'static str,
    stop_sequence: Option<String>,
}

impl Blocks {
    pub(crate) fn new(shell: Value) -> Blocks {
        Blocks {
            shell,
            sections: Sections::default(),
            delta: TEXT,
            ended: 0,
            usage: Usage::default(),
            stop_reason: "end_turn",
            stop_sequence: None,
        }
    }

    fn events(&mut self, step: Step) -> Vec<Value> {
        match step {
            Step::Open(section) => {
                let (block, delta) = block(section);
                self.delta = delta;
                let event =
                    json!({"type": "content_block_start", "index": self.ended, "content_block": block});
                vec![event]
            }
            Step::More(text) => vec![self.delta(self.delta, text)],
            Step::Close => {
                // Clients return reasoning with its signature; nothing here depends on it.
                let signed = self.shell["id"].as_str().filter(|_| self.delta == THINKING);
                let mut events: Vec<Value> = signed
                    .map(|id| self.delta(("signature_delta", "signature"), id.to_owned()))
                    .into_iter()
                    .collect();
                events.push(json!({"type": "content_block_stop", "index": self.ended}));
                self.ended += 1;
                events
            }
        }
    }

    fn delta(&self, (kind, name): (&str, &str), text: String) -> Value {
        let mut delta = json!({"type": kind});
        delta[name] = text.into();
        json!({"type": "content_block_delta", "index": self.ended, "delta": delta})
    }

    fn stop_reason(&self, finish: &str, stop: Option<&String>) -> &'static str {
        match finish {
            "length" => "max_tokens",
            _ if self.sections.calls() > 0 => "tool_use",
            _ if stop.is_some() => "stop_sequence",
            _ => "end_turn",
        }
    }
}

const TEXT: (&str, &str) = ("text_delta", "text");
const THINKING: (&str, &str) = ("thinking_delta", "thinking");
const INPUT: (&str, &str) = ("input_json_delta", "partial_json");

/// A block at its beginning, with the type and field name of its deltas.
fn block(section: Section) -> (Value, (&'static str, &'static str)) {
    match section {
        Section::Text => (json!({"type": "text", "text": ""}), TEXT),
        Section::Reasoning => (json!({"type": "thinking", "thinking": "", "signature": ""}), THINKING),
        Section::Call { id, name } => {
            (json!({"type": "tool_use", "id": id, "name": name, "input": {}}), INPUT)
        }
    }
}

impl ResponseFormat for Blocks {
    const WIRE: Wire = Wire { named: true, quiet: "event: ping\ndata: {\"type\":\"ping\"}\n\n", last: "" };

    fn begin(&mut self) -> Vec<Value> {
        vec![json!({"type": "message_start", "message": self.shell})]
    }

    fn chunks(&mut self, Output { piece, .. }: Output) -> Vec<Value> {
        let steps = match piece {
            Piece::Token { parts, usage, .. } => {
                self.usage = usage;
                self.sections.token(parts)
            }
            Piece::End(end) => {
                self.usage = end.usage;
                let steps = self.sections.end(end.parts);
                self.stop_reason = self.stop_reason(end.finish, end.stop.as_ref());
                self.stop_sequence = end.stop.filter(|_| self.stop_reason == "stop_sequence");
                steps
            }
        };
        steps.into_iter().flat_map(|step| self.events(step)).collect()
    }

    fn end(&mut self) -> Vec<Value> {
        let usage = &self.usage;
        // This API counts cached tokens separately.
        let usage = json!({
            "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"thinking_tokens": self.sections.reasoning_tokens()},
        });
        let delta = json!({"stop_reason": self.stop_reason, "stop_sequence": self.stop_sequence});
        let last = json!({"type": "message_delta", "delta": delta, "usage": usage});
        vec![last, json!({"type": "message_stop"})]
    }

    fn empty(&self) -> Value {
        self.shell.clone()
    }

    fn fold(&self, whole: &mut Value, mut chunk: Value) {
        let index = chunk["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or_default();
        let delta = chunk["delta"].take();
        match chunk["type"].as_str() {
            Some("content_block_start") => {
                let content = whole["content"].as_array_mut();
                content.into_iter().for_each(|content| content.push(chunk["content_block"].take()));
            }
            Some("content_block_delta") => {
                if let Some(block) = whole["content"].get_mut(index) {
                    add(block, &delta);
                }
            }
            Some("content_block_stop") => {
                if let Some(input) = whole["content"].get_mut(index).and_then(|block| block.get_mut("input"))
                {
                    *input = object(input.take());
                }
            }
            Some("message_delta") => {
                whole["usage"] = chunk["usage"].take();
                for name in ["stop_reason", "stop_sequence"] {
                    whole[name] = delta[name].clone();
                }
            }
            _ => {}
        }
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Value> {
        vec![error.to_anthropic()]
    }
}

/// Adds a delta to its block. A call's input is text until it is complete.
fn add(block: &mut Value, delta: &Value) {
    for name in ["text", "thinking", "signature"] {
        if let Some(text) = block.get_mut(name) {
            append(text, &delta[name]);
        }
    }
    if let Some(part) = delta["partial_json"].as_str() {
        let so_far = block["input"].as_str().unwrap_or_default();
        block["input"] = format!("{so_far}{part}").into();
    }
}

/// A call's complete input. A truncated one is no JSON; Anthropic's clients expect it under this name.
fn object(input: Value) -> Value {
    let Value::String(text) = input else { return input };
    match serde_json::from_str(&text) {
        Ok(Value::Object(object)) => object.into(),
        _ => json!({"INVALID_JSON": text}),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;
    use crate::answer::output_items::tests::{all_parts, arguments, call, folded, outputs, streamed, text};

    fn blocks() -> Blocks {
        let usage = json!({"input_tokens": 7, "output_tokens": 0});
        Blocks::new(
            json!({"id": "msg_1", "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage}),
        )
    }

    #[test]
    fn events_come_in_order_and_a_whole_message_is_their_fold() {
        let mut blocks = blocks();
        let events = streamed(&mut blocks, outputs(all_parts(), "stop", None));
        let shown = |event: &Value| {
            let kind = event["type"].as_str().unwrap_or_default().trim_start_matches("content_block_");
            format!("{kind} {} {}", event["index"], event["delta"]["type"].as_str().unwrap_or_default())
        };
        let found: Vec<String> = events.iter().map(shown).collect();
        let expected = [
            "message_start null ",
            "start 0 ",
            "delta 0 thinking_delta",
            "delta 0 thinking_delta",
            "delta 0 signature_delta",
            "stop 0 ",
            "start 1 ",
            "delta 1 text_delta",
            "delta 1 text_delta",
            "stop 1 ",
            "start 2 ",
            "delta 2 input_json_delta",
            "delta 2 input_json_delta",
            "stop 2 ",
            "start 3 ",
            "delta 3 input_json_delta",
            "stop 3 ",
            "message_delta null ",
            "message_stop null ",
        ];
        assert_eq!(found, expected);
        let usage = json!({
            "input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 9,
            "output_tokens_details": {"thinking_tokens": 2},
        });
        let whole = json!({
            "id": "msg_1",
            "content": [
                {"type": "thinking", "thinking": "Let me look.", "signature": "msg_1"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call_0", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "call_1", "name": "g", "input": {}},
            ],
            "stop_reason": "tool_use", "stop_sequence": null, "usage": usage,
        });
        assert_eq!(folded(&blocks, &events), whole);
    }

    #[test]
    fn an_end_says_why() {
        let ended = |parts, finish, stop| {
            let mut blocks = blocks();
            let events = streamed(&mut blocks, outputs(parts, finish, stop));
            let whole = folded(&blocks, &events);
            (whole["stop_reason"].clone(), whole["stop_sequence"].clone())
        };
        let reason = |reason: &str| (Value::from(reason), Value::Null);
        assert_eq!(ended(vec![text("a")], "stop", None), reason("end_turn"));
        assert_eq!(ended(vec![text("a")], "length", None), reason("max_tokens"));
        assert_eq!(ended(vec![call(0, "f")], "stop", None), reason("tool_use"));
        assert_eq!(ended(vec![text("a")], "stop", Some("END")), ("stop_sequence".into(), "END".into()));
    }

    #[test]
    fn a_call_that_was_cut_keeps_its_text() {
        let mut blocks = blocks();
        let events =
            streamed(&mut blocks, outputs(vec![call(0, "f"), arguments(0, "{\"x\":")], "length", None));
        assert_eq!(folded(&blocks, &events)["content"][0]["input"], json!({"INVALID_JSON": "{\"x\":"}));
    }

    #[test]
    fn an_error_is_an_event_of_its_own() {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "the device is lost");
        let event =
            json!({"type": "error", "error": {"type": "overloaded_error", "message": "the device is lost"}});
        assert_eq!(blocks().failed(&error), [event]);
    }
}
