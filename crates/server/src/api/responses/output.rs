//! The answer of `/v1/responses`: items with their events.

use ottava::engine::Usage;
use serde_json::{Value, json};

use super::item::Item;
use crate::answer::json::is_large;
use crate::answer::output_items::{Section, Sections, Step};
use crate::answer::stream::{ResponseFormat, Wire};
use crate::answer::{Output, Piece};
use crate::error::ApiError;
use crate::ids::now;
use crate::request::call_forms::CallForms;

/// Events of a response.
pub(crate) struct Items {
    /// The response before its first item.
    shell: Value,
    forms: CallForms,
    /// Whether the shell is large; it repeats the request's fields.
    is_large: bool,
    sections: Sections,
    open: Option<Item>,
    /// Ended items.
    output: Vec<Value>,
    sequence: u64,
    usage: Usage,
    is_cut: bool,
}

impl Items {
    pub(crate) fn new(shell: Value, forms: CallForms) -> Items {
        Items {
            is_large: is_large(&shell),
            shell,
            forms,
            sections: Sections::default(),
            open: None,
            output: Vec::new(),
            sequence: 0,
            usage: Usage::default(),
            is_cut: false,
        }
    }

    fn event(&mut self, kind: &str, fields: Value) -> Value {
        let mut event = json!({"type": kind, "sequence_number": self.sequence});
        self.sequence += 1;
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
            event.extend(fields);
        }
        event
    }

    /// An event of the open item, or of its part if it has parts.
    fn about(&mut self, kind: &str, item: &Item, fields: Value) -> Value {
        let mut place = json!({"item_id": item.value["id"], "output_index": self.output.len()});
        if item.has_parts() {
            place["content_index"] = 0.into();
        }
        if let (Some(place), Value::Object(fields)) = (place.as_object_mut(), fields) {
            place.extend(fields);
        }
        self.event(kind, place)
    }

    fn steps(&mut self, steps: Vec<Step>) -> Vec<Value> {
        let mut events = Vec::new();
        let last = steps.len().saturating_sub(1);
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Open(section) => events.extend(self.open(section)),
                Step::More(text) => events.extend(self.more(text)),
                Step::Close if self.is_cut && at == last => events.extend(self.close("incomplete")),
                Step::Close => events.extend(self.close("completed")),
            }
        }
        events
    }

    fn open(&mut self, section: Section) -> Vec<Value> {
        let item = Item::new(section, &self.forms);
        let added = json!({"output_index": self.output.len(), "item": item.value});
        let mut events = vec![self.event("response.output_item.added", added)];
        if item.has_parts() {
            events.push(self.about("response.content_part.added", &item, json!({"part": item.part()})));
        }
        self.open = Some(item);
        events
    }

    fn more(&mut self, text: String) -> Option<Value> {
        let mut item = self.open.take()?;
        let event = item.push(text).and_then(|more| self.delta(&item, more));
        self.open = Some(item);
        event
    }

    fn delta(&mut self, item: &Item, text: String) -> Option<Value> {
        Some(self.about(&format!("{}.delta", item.events?), item, item.delta(text)))
    }

    fn close(&mut self, status: &str) -> Vec<Value> {
        let Some(mut item) = self.open.take() else { return Vec::new() };
        let mut events = Vec::new();
        if let Some(rest) = item.rest() {
            events.extend(self.delta(&item, rest));
        }
        if let Some(kind) = item.events {
            events.push(self.about(&format!("{kind}.done"), &item, item.done()));
        }
        if item.has_parts() {
            events.push(self.about("response.content_part.done", &item, json!({"part": item.part()})));
        }
        item.fill();
        item.value["status"] = status.into();
        let done = json!({"output_index": self.output.len(), "item": item.value});
        events.push(self.event("response.output_item.done", done));
        self.output.push(item.value);
        events
    }

    /// The response so far.
    fn response(&self, status: &str) -> Value {
        let mut response = self.shell.clone();
        response["status"] = status.into();
        response["output"] = self.output.clone().into();
        response
    }

    fn usage(&self) -> Value {
        let usage = &self.usage;
        json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self.sections.reasoning_tokens()},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        })
    }
}

impl ResponseFormat for Items {
    const WIRE: Wire = Wire { named: true, quiet: ": keep-alive\n\n", last: "" };

    fn is_large(&self) -> bool {
        self.is_large
    }

    fn begin(&mut self) -> Vec<Value> {
        ["response.created", "response.in_progress"]
            .map(|kind| self.event(kind, json!({"response": self.shell})))
            .into()
    }

    fn chunks(&mut self, Output { piece, .. }: Output) -> Vec<Value> {
        let steps = match piece {
            Piece::Token { parts, usage, .. } => {
                self.usage = usage;
                self.sections.token(parts)
            }
            Piece::End(end) => {
                self.usage = end.usage;
                self.is_cut = end.finish == "length";
                self.sections.end(end.parts)
            }
        };
        self.steps(steps)
    }

    fn end(&mut self) -> Vec<Value> {
        let status = if self.is_cut { "incomplete" } else { "completed" };
        let mut response = self.response(status);
        response["usage"] = self.usage();
        if self.is_cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        } else {
            response["completed_at"] = now().into();
        }
        vec![self.event(&format!("response.{status}"), json!({"response": response}))]
    }

    fn empty(&self) -> Value {
        self.shell.clone()
    }

    /// The last event has the whole response.
    fn fold(&self, whole: &mut Value, mut chunk: Value) {
        if let Some(response) = chunk.get_mut("response") {
            *whole = response.take();
        }
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Value> {
        let mut response = self.response("failed");
        response["error"] = json!({"code": error.responses_code(), "message": error.message()});
        vec![self.event("response.failed", json!({"response": response}))]
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;
    use crate::answer::output_items::tests::{
        all_parts, arguments, call, folded, outputs, streamed, text, thought,
    };
    use crate::request::call_forms::{CallForm, CallKind};

    fn items() -> Items {
        items_with(CallForms::default())
    }

    fn items_with(forms: CallForms) -> Items {
        let shell = json!({"id": "resp_1", "status": "in_progress", "output": [], "usage": null});
        Items::new(shell, forms)
    }

    #[test]
    fn events_come_in_order_with_their_ids_and_without_a_gap() {
        let mut items = items();
        let events = streamed(&mut items, outputs(all_parts(), "stop", None));
        let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
        let mut expected = vec!["created".to_owned(), "in_progress".into()];
        for name in ["reasoning_text", "output_text"] {
            let of = [format!("{name}.delta"), format!("{name}.delta"), format!("{name}.done")];
            expected.extend(["output_item.added", "content_part.added"].map(String::from));
            expected.extend(of);
            expected.extend(["content_part.done", "output_item.done"].map(String::from));
        }
        for deltas in [2, 1] {
            expected.push("output_item.added".into());
            expected.extend(std::iter::repeat_n("function_call_arguments.delta".into(), deltas));
            expected.extend(["function_call_arguments.done", "output_item.done"].map(String::from));
        }
        expected.push("completed".into());
        let expected: Vec<String> = expected.iter().map(|kind| format!("response.{kind}")).collect();
        assert_eq!(kinds, expected);
        for (at, event) in events.iter().enumerate() {
            assert_eq!(event["sequence_number"], at as u64);
        }
        let response = &events.last().expect("events")["response"];
        for event in &events[2..events.len() - 1] {
            let index = event["output_index"].as_u64().expect("an index") as usize;
            let id = event.get("item_id").unwrap_or(&event["item"]["id"]);
            assert_eq!(*id, response["output"][index]["id"], "{event}");
        }
    }

    #[test]
    fn a_whole_response_is_its_deltas_joined() {
        let mut items = items();
        let events = streamed(&mut items, outputs(all_parts(), "stop", None));
        let whole = folded(&items, &events);
        let mut joined = vec![String::new(); 4];
        for event in &events {
            if let Some(delta) = event["delta"].as_str() {
                joined[event["output_index"].as_u64().expect("an index") as usize] += delta;
            }
        }
        assert_eq!(joined, ["Let me look.", "I look.", "{\"x\":1}", "{}"]);
        let output = &whole["output"];
        assert_eq!(output[0]["content"][0], json!({"type": "reasoning_text", "text": joined[0]}));
        assert_eq!(output[1]["content"][0]["text"], joined[1]);
        assert_eq!(
            (&output[2]["arguments"], &output[2]["call_id"]),
            (&joined[2].as_str().into(), &"call_0".into())
        );
        assert_eq!((&output[3]["arguments"], &output[3]["name"]), (&joined[3].as_str().into(), &"g".into()));
        assert!(
            output.as_array().is_some_and(|items| items.iter().all(|item| item["status"] == "completed"))
        );
        let usage = json!({
            "input_tokens": 7, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 16,
        });
        assert_eq!((&whole["status"], &whole["usage"]), (&"completed".into(), &usage));
    }

    /// The items and event types of calls of one tool, and of a second call that is cut.
    fn called(kind: CallKind, pieces: &[&str], cut: &str) -> (Vec<Value>, Vec<String>) {
        let form = CallForm { kind, name: "own".into(), namespace: Some("ns".into()) };
        let mut items = items_with(CallForms::new([("f".to_owned(), form)].into()));
        let mut parts = vec![call(0, "f")];
        parts.extend(pieces.iter().map(|piece| arguments(0, piece)));
        parts.extend([call(1, "f"), arguments(1, cut)]);
        let events = streamed(&mut items, outputs(parts, "length", None));
        let whole = folded(&items, &events);
        let mut output = whole["output"].as_array().expect("items").clone();
        for item in &mut output {
            let id = item.as_object_mut().and_then(|item| item.shift_remove("id"));
            assert!(id.is_some_and(|id| id.as_str().is_some_and(|id| id.contains('_'))));
        }
        let kinds = events.iter().filter(|event| event["output_index"] == 0);
        (output, kinds.filter_map(|event| event["type"].as_str().map(str::to_owned)).collect())
    }

    #[test]
    fn calls_have_the_forms_of_their_tools() {
        let item = |kind: &str, index: usize, status: &str, more: Value| {
            let mut item = json!({"type": kind, "call_id": format!("call_{index}")});
            let fields = more.as_object().expect("an object").clone();
            item.as_object_mut().expect("an object").extend(fields);
            item["status"] = status.into();
            item
        };
        let two = |kind: &str, first: Value, second: Value| {
            vec![item(kind, 0, "completed", first), item(kind, 1, "incomplete", second)]
        };
        let of = |events: &[&str]| -> Vec<String> {
            let events = events.iter().map(|event| format!("response.{event}"));
            let added = std::iter::once("response.output_item.added".to_owned());
            added.chain(events).chain(["response.output_item.done".to_owned()]).collect()
        };
        let (items, events) =
            called(CallKind::Custom, &["{\"input\": \"a\\n", "b\"", "}"], "{\"input\": \"c");
        let named = |input: &str| json!({"name": "own", "namespace": "ns", "input": input});
        assert_eq!(items, two("custom_tool_call", named("a\nb"), named("c")));
        let name = "custom_tool_call_input";
        assert_eq!(
            events,
            of(&[&format!("{name}.delta"), &format!("{name}.delta"), &format!("{name}.done")])
        );
        let (items, _) = called(CallKind::Custom, &["{\"other\": 1}"], "{\"in");
        assert_eq!(items, two("custom_tool_call", named("{\"other\": 1}"), named("{\"in")), "as it came");

        let (items, _) = called(CallKind::Function, &["{}"], "{");
        let named = |text: &str| json!({"name": "own", "namespace": "ns", "arguments": text});
        assert_eq!(items, two("function_call", named("{}"), named("{")));

        let (items, events) = called(CallKind::LocalShell, &["{\"command\": ", "[\"ls\"]}"], "{\"comm");
        let action = |command: Value| json!({"action": {"command": command, "type": "exec", "env": {}}});
        assert_eq!(items, two("local_shell_call", action(json!(["ls"])), action(json!([]))));
        assert_eq!(events, of(&[]), "the item comes whole");

        let (items, _) = called(CallKind::Shell, &["{\"commands\": [\"ls\"], \"timeout_ms\": 5}"], "{}");
        let action = |commands: Value, time: Value| json!({"action": {"commands": commands, "timeout_ms": time, "max_output_length": null}});
        assert_eq!(items, two("shell_call", action(json!(["ls"]), json!(5)), action(json!([]), Value::Null)));

        let deletion = json!({"type": "delete_file", "path": "a"});
        let (items, _) = called(CallKind::ApplyPatch, &[&deletion.to_string()], "");
        let cut = json!({"operation": {"type": "update_file", "path": "", "diff": ""}});
        assert_eq!(items, two("apply_patch_call", json!({"operation": deletion}), cut));

        let (items, _) = called(CallKind::ToolSearch, &["{\"query\": \"a\"}"], "");
        let search = |arguments: Value| json!({"arguments": arguments, "execution": "client"});
        assert_eq!(items, two("tool_search_call", search(json!({"query": "a"})), search(json!({}))));
    }

    #[test]
    fn an_answer_that_is_cut_is_incomplete() {
        let mut items = items();
        let events = streamed(&mut items, outputs(vec![thought("hm"), text("a")], "length", None));
        let last = events.last().expect("events");
        assert_eq!(last["type"], "response.incomplete");
        assert_eq!(last["response"]["incomplete_details"], json!({"reason": "max_output_tokens"}));
        let statuses = [&last["response"]["output"][0]["status"], &last["response"]["output"][1]["status"]];
        assert_eq!(statuses, ["completed", "incomplete"]);
    }

    #[test]
    fn an_error_ends_the_stream_in_its_sequence() {
        let mut items = items();
        let begun = items.begin().len();
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "the device is lost");
        let events = items.failed(&error);
        assert_eq!((events.len(), &events[0]["sequence_number"]), (1, &begun.into()));
        assert_eq!(events[0]["type"], "response.failed");
        assert_eq!(
            events[0]["response"]["error"],
            json!({"code": "server_error", "message": "the device is lost"})
        );
        assert_eq!(events[0]["response"]["status"], "failed");
    }
}
