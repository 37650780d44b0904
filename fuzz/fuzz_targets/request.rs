//! Requests with random parameters on a tiny engine: answered or refused with a typed error; an answer keeps
//! to its limits, ends, and leaves the cache's accounting right.

#![no_main]

#[path = "../shared/engine.rs"]
mod engine;
#[path = "../shared/files.rs"]
mod files;
#[path = "../../tests/tiny/mod.rs"]
mod tiny;

use std::sync::LazyLock;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ottava::engine::Event;
use ottava::ir::Window;
use ottava::text::Message;
use ottava::{Engine, Request, TokenId};

static ENGINE: LazyLock<Engine> = LazyLock::new(engine::tiny);

#[derive(Arbitrary, Debug)]
enum Prompt {
    Tokens(Vec<u16>),
    Any(Vec<u32>),
    Text(String),
    Chat(Vec<(String, String)>),
    /// As a program's users hand them in.
    Json(String),
}

#[derive(Arbitrary, Debug)]
struct Asked {
    prompt: Prompt,
    max_tokens: u8,
    endless: bool,
    floats: [f32; 6],
    sound: bool,
    top_k: usize,
    penalty_last_n: usize,
    seed: u64,
    bias: Vec<(u16, f32)>,
    stops: Vec<String>,
    ignore_eos: bool,
    window: Option<(u8, u8)>,
    top: Option<u8>,
}

impl Asked {
    fn request(&self) -> Option<Request> {
        let ids = |ids: &[u32]| Request::tokens(ids.iter().copied().map(TokenId).collect());
        Some(match &self.prompt {
            Prompt::Tokens(tokens) => {
                ids(&tokens.iter().map(|&id| u32::from(id) % 271).collect::<Vec<u32>>())
            }
            Prompt::Any(tokens) => ids(tokens),
            Prompt::Text(text) => Request::text(text.as_str()),
            Prompt::Chat(messages) => {
                Request::chat(messages.iter().map(|(role, text)| Message::new(role, text.as_str())))
            }
            Prompt::Json(text) => Request::chat(serde_json::from_str::<Vec<Message>>(text).ok()?),
        })
    }

    fn sampled(&self, request: Request) -> Request {
        // Mostly within the bounds, so that most requests run.
        let bounded = |value: f32, low: f32, high: f32| {
            if self.sound { (value.abs() % 1.0).mul_add(high - low, low).clamp(low, high) } else { value }
        };
        let [temperature, top_p, min_p, repetition, presence, frequency] = self.floats;
        request
            .temperature(bounded(temperature, 0.0, 100.0))
            .top_k(self.top_k)
            .top_p(bounded(top_p, 0.01, 1.0))
            .min_p(bounded(min_p, 0.0, 1.0))
            .repetition_penalty(bounded(repetition, 0.01, 100.0))
            .presence_penalty(bounded(presence, -100.0, 100.0))
            .frequency_penalty(bounded(frequency, -100.0, 100.0))
            .penalty_last_n(self.penalty_last_n)
            .logit_bias(self.bias.iter().map(|&(id, bias)| (TokenId(id.into()), bias)))
            .seed(self.seed)
    }
}

fuzz_target!(|asked: Asked| {
    let Some(request) = asked.request() else { return };
    let max_tokens = if asked.endless { usize::MAX } else { usize::from(asked.max_tokens % 12) };
    let mut request = asked.sampled(request).max_tokens(max_tokens).stop(&asked.stops);
    if asked.ignore_eos {
        request = request.ignore_eos();
    }
    if let Some((window, sinks)) = asked.window {
        request = request.window(Window { window: window.into(), sinks: sinks.into() });
    }
    if let Some(top) = asked.top {
        request = request.top_logprobs(top.into());
    }
    let Ok(generation) = ENGINE.submit(request) else { return };
    let (mut tokens, mut text, mut ends) = (0, String::new(), 0);
    for event in generation {
        text += event.as_ref().map_or("", Event::text);
        match event {
            Ok(Event::Done(done)) => {
                ends += 1;
                assert_eq!((done.usage.completion_tokens, done.tokens.len()), (tokens, tokens));
                assert!(done.usage.prompt_tokens + tokens <= engine::CONTEXT);
            }
            Ok(_) => tokens += 1,
            // NaN of a bias that is as large as floats are.
            Err(_) => ends += 1,
        }
    }
    assert_eq!(ends, 1, "one last event");
    assert!(tokens <= max_tokens);
    assert!(asked.stops.iter().all(|stop| !text.contains(stop.as_str())), "{text:?}");
    ENGINE.check_integrity().expect("the books are right");
});
