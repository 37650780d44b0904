//! `ottava run`: one prompt, one answer, streamed.

use clap::Args;
use ottava::engine::{Done, Event, FinishReason, Generation, MemoryStats, Timings, Usage};
use ottava::text::Message;
use ottava::{Engine, Request, TokenId};
use serde_json::json;

use super::constrain::ConstrainOptions;
use super::input::{self, TextInput};
use super::options::{ModelOptions, SamplingOptions};
use super::{Failure, output};

/// Arguments of `run`.
#[derive(Args)]
pub struct Run {
    #[command(flatten)]
    prompt: TextInput,
    /// Continue the prompt without the chat template; control tokens in it, such as <|im_end|>, are parsed
    #[arg(long)]
    raw: bool,
    /// System message before the prompt
    #[arg(long, conflicts_with = "raw", allow_hyphen_values = true, value_parser = input::utf8())]
    system: Option<String>,
    /// Print one JSON object instead of streaming text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    constrain: ConstrainOptions,
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
}

/// A finished answer.
pub struct Answer {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<TokenId>,
    /// Finish reason.
    pub finish: FinishReason,
    /// Token counts.
    pub usage: Usage,
    /// Seconds and rates.
    pub timings: Timings,
}

impl Run {
    /// Loads the model and answers.
    pub fn run(self) -> Result<(), Failure> {
        let prompt = self.prompt.read(&[self.constrain.reader(), self.model.reader()])?;
        if prompt.is_empty() && !self.raw {
            return Err(Failure::Usage("the prompt is empty".into()));
        }
        let grammar = self.constrain.read()?;
        let engine = self.model.engine()?;
        let constraint = grammar.map(|grammar| engine.constrain(&grammar)).transpose()?;
        let prompt_ids = engine.prompt_ids(&self.request(&engine, prompt)?)?;
        self.sampling.tell_top_k(engine.vocab().len());
        let seed = self.sampling.seed_or_new();
        let request = self.sampling.apply(Request::tokens(prompt_ids.clone()), seed);
        let request = match constraint {
            Some(constraint) => request.mask(constraint),
            None => request,
        };
        let answer = answer(&engine, request, |text| if self.json { Ok(()) } else { output::print(text) })?;
        let context = engine.info().context_max;
        if self.json {
            output::print_json(&answer.to_json(&engine, &prompt_ids, seed))?;
            self.tell_incomplete(&answer, context);
            return Ok(());
        }
        output::print_line("")?;
        if !self.tell_incomplete(&answer, context) {
            self.tell_cut(&answer, context);
        }
        if output::is_interactive() {
            output::tell(output::stats_line(&answer.usage, &answer.timings, &engine.stats().memory));
        }
        Ok(())
    }

    /// Prints a note if a limit or a stop text cut a constrained answer, even an explicit `-n`: the answer's
    /// reader may rely on the schema or grammar.
    fn tell_incomplete(&self, answer: &Answer, context: usize) -> bool {
        let Some(form) = self.constrain.name() else { return false };
        let cut = match answer.finish {
            FinishReason::Length => self.sampling.cut(answer.usage.completion_tokens, context),
            FinishReason::Stop => "the answer ends before a text of --stop".to_owned(),
            _ => return false,
        };
        output::tell(format_args!("note: {cut}; {form} may want more of it"));
        true
    }

    /// Prints a note if the default length limit or the context cut the answer, not a `-n`.
    fn tell_cut(&self, answer: &Answer, context: usize) {
        let tokens = answer.usage.completion_tokens;
        if answer.finish == FinishReason::Length && self.sampling.max_tokens != Some(tokens) {
            output::tell(format_args!("note: {}", self.sampling.cut(tokens, context)));
        }
    }

    fn request(&self, engine: &Engine, prompt: String) -> Result<Request, Failure> {
        if self.system.is_some() && !engine.has_chat_template() {
            return Err(ottava::Error::NoChatTemplate { model: engine.info().name.clone() }.into());
        }
        if self.raw || !engine.has_chat_template() {
            // A raw prompt is complete, so control tokens in it are parsed.
            return Ok(Request::text(prompt).parse_control_tokens());
        }
        let system = self.system.iter().map(|text| Message::new("system", text.clone()));
        Ok(Request::chat(system.chain([Message::new("user", prompt)])))
    }
}

impl Answer {
    fn to_json(&self, engine: &Engine, prompt_ids: &[TokenId], seed: u64) -> serde_json::Value {
        let ids = |ids: &[TokenId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
        json!({
            "model": engine.info().name,
            "device": engine.info().device_name,
            "fallback": engine.info().fallback,
            "text": self.text,
            "prompt_ids": ids(prompt_ids),
            "token_ids": ids(&self.ids),
            "finish_reason": self.finish.to_string(),
            "seed": seed,
            "usage": usage_json(&self.usage),
            "timings": timings_json(engine, &self.timings),
            "memory": memory_json(&engine.stats().memory),
        })
    }
}

fn usage_json(usage: &Usage) -> serde_json::Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

fn timings_json(engine: &Engine, timings: &Timings) -> serde_json::Value {
    json!({
        "load_s": engine.info().load_seconds,
        "first_token_s": timings.first_token_s,
        "prefill_s": timings.prefill_s,
        "decode_s": timings.decode_s,
        "prefill_tokens_per_s": timings.prefill_tokens_per_s,
        "decode_tokens_per_s": timings.decode_tokens_per_s,
    })
}

/// Memory in bytes. For the KV pages it is the maximum so far.
fn memory_json(memory: &MemoryStats) -> serde_json::Value {
    json!({
        "weight_bytes": memory.weights.bytes,
        "arena_bytes": memory.arena.bytes,
        "kv_pool_bytes": memory.kv_pool.bytes,
        "kv_bytes_max": memory.kv_pages.bytes_max,
    })
}

/// Runs a request to its end, passing each piece of text to `on_text`.
pub fn answer(
    engine: &Engine,
    request: Request,
    on_text: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Answer, Failure> {
    read(engine.submit(request)?, on_text)
}

/// Reads an answer to its end, passing each piece of text to `on_text`.
pub fn read(
    mut generation: Generation,
    mut on_text: impl FnMut(&str) -> Result<(), Failure>,
) -> Result<Answer, Failure> {
    let mut text = String::new();
    while let Some(event) = generation.recv() {
        let event = event.map_err(ottava::Error::from)?;
        text.push_str(event.text());
        on_text(event.text())?;
        if let Event::Done(Done { tokens, finish, usage, timings, .. }) = event {
            return Ok(Answer { text, ids: tokens, finish, usage, timings });
        }
    }
    Err(Failure::Failed("the engine stopped before the answer was complete".into()))
}
