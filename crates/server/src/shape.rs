//! What answers of chat and completions have in common.

use ottava::engine::{Timings, Usage};
use serde_json::{Value, json};

use crate::app::App;

/// What every chunk of an answer begins with.
pub(crate) struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
}

impl Head {
    pub(crate) fn new(id: String, object: &'static str, app: &App) -> Head {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let created = now.map_or(app.started, |time| time.as_secs());
        Head { id, object, created, model: app.name().to_owned() }
    }

    /// A chunk with these choices; the tokens counted, if they are wanted in it.
    pub(crate) fn chunk(&self, choices: Value, usage: Option<Value>) -> Value {
        let mut chunk = self.whole(self.object);
        chunk["choices"] = choices;
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        chunk
    }

    /// An answer without choices.
    pub(crate) fn whole(&self, object: &str) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model})
    }

    /// Takes from a chunk what counts for the whole answer.
    pub(crate) fn take_totals(&self, chunk: &mut Value, whole: &mut Value) {
        for name in ["usage", "timings"] {
            if let Some(found) = chunk.get_mut(name) {
                whole[name] = found.take();
            }
        }
    }
}

/// Tokens of all choices: the prompt counts once for each prompt.
pub(crate) fn usage(choices: &[Usage]) -> Value {
    usage_of(choices, 1)
}

/// The same of several prompts with `choices.len() / prompts` choices each.
pub(crate) fn usage_of(choices: &[Usage], prompts: usize) -> Value {
    let n = (choices.len() / prompts.max(1)).max(1);
    let firsts = choices.iter().step_by(n);
    let (prompt, cached) = firsts
        .fold((0, 0), |(prompt, cached), usage| (prompt + usage.prompt_tokens, cached + usage.cached_tokens));
    let completion: usize = choices.iter().map(|usage| usage.completion_tokens).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    })
}

/// Times as llama.cpp names them.
pub(crate) fn timings(usage: &Usage, timings: &Timings) -> Value {
    let ms = |seconds: f64| (seconds * 1e6).round() / 1e3;
    json!({
        "cache_n": usage.cached_tokens,
        "prompt_n": usage.prompt_tokens - usage.cached_tokens.min(usage.prompt_tokens),
        "prompt_ms": ms(timings.prefill_s),
        "prompt_per_second": timings.prefill_tokens_per_s,
        "predicted_n": usage.completion_tokens,
        "predicted_ms": ms(timings.decode_s),
        "predicted_per_second": timings.decode_tokens_per_s,
        "queued_ms": ms(timings.queued_s),
    })
}

/// The choices of a chunk.
pub(crate) fn choices(mut chunk: Value) -> Vec<Value> {
    match chunk.get_mut("choices").map(Value::take) {
        Some(Value::Array(choices)) => choices,
        _ => Vec::new(),
    }
}

/// Appends a text to a text.
pub(crate) fn append(text: &mut Value, more: &Value) {
    if let (Value::String(text), Some(more)) = (text, more.as_str()) {
        text.push_str(more);
    }
}

/// Appends a list to the list `name` of an object, which may be null so far.
pub(crate) fn extend(object: &mut Value, name: &str, more: &Value) {
    let Some(more) = more.as_array() else { return };
    if object.is_null() {
        *object = json!({});
    }
    match &mut object[name] {
        Value::Array(list) => list.extend_from_slice(more),
        place => *place = more.clone().into(),
    }
}

/// Why a choice ended, from the chunk that says so.
pub(crate) fn take_end(choice: &mut Value, mut part: Value) {
    for name in ["finish_reason", "stop_reason"] {
        match part.get_mut(name).map(Value::take) {
            None | Some(Value::Null) => {}
            Some(found) => choice[name] = found,
        }
    }
}
