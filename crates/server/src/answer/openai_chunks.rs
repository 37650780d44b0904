//! Chunks of chat and completions: common fields, usage, and the fold into a whole answer.

use ottava::TokenId;
use ottava::chat::ChatPart;
use ottava::engine::{Timings, Usage};
use serde_json::{Value, json};

use crate::answer::End;
use crate::answer::output_items::ReasoningCounter;
use crate::ids::now;
use crate::request::params::Params;
use crate::state::App;

/// Common fields of an answer's chunks, and its token counts so far.
pub(crate) struct Frame {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: String,
    /// By choice; the choices of a prompt are adjacent.
    usage: Vec<Usage>,
    /// By choice; empty if reasoning is not counted.
    reasoning_counters: Vec<ReasoningCounter>,
    prompts: usize,
    /// Whether the last chunk has the usage, and whether every chunk has.
    ends_with_usage: bool,
    continuous_usage: bool,
}

impl Frame {
    /// A frame for answers to `prompts` prompts.
    pub(crate) fn new(id: String, object: &'static str, app: &App, params: &Params, prompts: usize) -> Frame {
        Frame {
            id,
            object,
            created: now(),
            model: app.name().to_owned(),
            system_fingerprint: app.fingerprint().to_owned(),
            usage: vec![Usage::default(); params.n * prompts],
            reasoning_counters: Vec::new(),
            prompts,
            ends_with_usage: params.include_usage || !params.stream,
            continuous_usage: params.continuous_usage,
        }
    }

    /// Counts reasoning tokens, too.
    pub(crate) fn counting_reasoning(mut self) -> Frame {
        self.reasoning_counters = vec![ReasoningCounter::default(); self.usage.len()];
        self
    }

    /// Number of choices.
    pub(crate) fn choices(&self) -> usize {
        self.usage.len()
    }

    /// Stores a choice's token counts so far.
    pub(crate) fn note(&mut self, index: usize, usage: Usage) {
        if let Some(kept) = self.usage.get_mut(index) {
            *kept = usage;
        }
    }

    /// Counts a choice's token as reasoning or not.
    pub(crate) fn read(&mut self, index: usize, parts: &[ChatPart]) {
        if let Some(counter) = self.reasoning_counters.get_mut(index) {
            counter.token(parts);
        }
    }

    /// The chunk of one choice.
    pub(crate) fn chunk(&self, choice: Value) -> Value {
        let mut chunk = self.whole(self.object);
        chunk["choices"] = json!([choice]);
        if self.continuous_usage {
            chunk["usage"] = self.usage();
        }
        chunk
    }

    /// The final chunk with usage, if requested.
    pub(crate) fn end(&self) -> Vec<Value> {
        if !self.ends_with_usage {
            return Vec::new();
        }
        let mut last = self.whole(self.object);
        last["choices"] = json!([]);
        last["usage"] = self.usage();
        vec![last]
    }

    /// An answer without choices.
    pub(crate) fn whole(&self, object: &str) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        })
    }

    /// Tokens of all choices. The choices of a prompt share it: it counts once.
    fn usage(&self) -> Value {
        let n = (self.usage.len() / self.prompts.max(1)).max(1);
        let prompt: usize = self.usage.iter().step_by(n).map(|usage| usage.prompt_tokens).sum();
        let cached: usize = self.usage.iter().step_by(n).map(|usage| usage.cached_tokens).sum();
        let completion: usize = self.usage.iter().map(|usage| usage.completion_tokens).sum();
        let mut usage = json!({
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        });
        if !self.reasoning_counters.is_empty() {
            let reasoning: usize = self.reasoning_counters.iter().map(ReasoningCounter::tokens).sum();
            usage["completion_tokens_details"] = json!({"reasoning_tokens": reasoning});
        }
        usage
    }
}

/// `stop_reason` of a choice: the stop string or the stop token that ended it, as in vLLM.
pub(crate) fn stop_reason(end: &End) -> Value {
    match (&end.stop, &end.token) {
        (Some(stop), _) => stop.as_str().into(),
        (None, Some((id, _))) if end.at_stop_token => id.0.into(),
        _ => Value::Null,
    }
}

/// Token ids in JSON.
pub(crate) fn numbers(ids: &[TokenId]) -> Value {
    ids.iter().map(|id| id.0).collect()
}

/// Timings with llama.cpp's names.
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

/// Folds a chunk into a whole answer: `usage` and `timings` replace the old ones, choices are merged by
/// `fold`.
pub(crate) fn fold_chunk(whole: &mut Value, mut chunk: Value, fold: impl Fn(&mut Value, &Value)) {
    for name in ["usage", "timings"] {
        if let Some(found) = chunk.get_mut(name) {
            whole[name] = found.take();
        }
    }
    let Some(Value::Array(parts)) = chunk.get_mut("choices").map(Value::take) else { return };
    for mut part in parts {
        let index = part["index"].as_u64().and_then(|index| usize::try_from(index).ok());
        let Some(choice) = index.and_then(|index| whole["choices"].get_mut(index)) else { continue };
        fold(choice, &part);
        for name in ["finish_reason", "stop_reason"] {
            match part.get_mut(name).map(Value::take) {
                None | Some(Value::Null) => {}
                Some(found) => choice[name] = found,
            }
        }
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
