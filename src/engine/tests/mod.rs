//! The engine against a decoder that cannot be fooled (`fake`): every test compares with tokens
//! computed without an engine.

mod fake;
mod faults;
mod flow;
mod scheduling;
mod snapshots;
mod text;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::TokenId;
use crate::backend::Window;
use crate::sample::{Draw, Sampler, Sampling};
use fake::{FAILING, Fake, PANICKING, POISON, Probe, VOCAB, logits_after};

/// An engine over `fake`, and a look into its decoder.
fn engine(fake: Fake, config: EngineConfig) -> (Handle, Arc<Probe>) {
    let probe = Arc::clone(&fake.probe);
    (Handle::spawn(fake, config).unwrap(), probe)
}

/// Some prompt of `len` tokens; different seeds soon differ.
fn prompt(seed: u32, len: usize) -> Vec<TokenId> {
    (0..len as u32)
        .map(|i| TokenId((seed.wrapping_mul(31) ^ i.wrapping_mul(7) ^ (i * seed) >> 3) % 60))
        .collect()
}

fn request(seed: u32, len: usize, max_tokens: usize) -> TokenRequest {
    let sampling = Sampling { temperature: 0.8, top_p: 0.95, seed: u64::from(seed), ..Sampling::default() };
    TokenRequest { prompt: prompt(seed, len), max_tokens, sampling, ..TokenRequest::default() }
}

/// The tokens that a request must give, computed without an engine.
fn expected(request: &TokenRequest) -> Vec<TokenId> {
    let mut tokens = request.prompt.clone();
    let prompt_len = tokens.len();
    let mut sampler = Sampler::new(VOCAB);
    while tokens.len() < prompt_len + request.max_tokens {
        let draw = Draw { sampling: &request.sampling, tokens: &tokens, prompt_len };
        let token = sampler.sample(&mut logits_after(&tokens), &draw, None).unwrap();
        tokens.push(token);
    }
    tokens.split_off(prompt_len)
}

/// A generation read to its end.
#[derive(Debug, Default)]
struct Read {
    tokens: Vec<TokenId>,
    text: String,
    finish: Option<FinishReason>,
    usage: Usage,
    error: Option<GenerationError>,
}

fn read(generation: impl Iterator<Item = Result<Event, GenerationError>>) -> Read {
    let mut read = Read::default();
    for event in generation {
        assert!(read.finish.is_none() && read.error.is_none(), "{event:?} after the end");
        match event {
            Ok(Event::Token { id, text, .. }) => {
                read.tokens.push(id);
                read.text.push_str(&text);
            }
            Ok(Event::Done { finish, usage, .. }) => (read.finish, read.usage) = (Some(finish), usage),
            Err(error) => read.error = Some(error),
        }
    }
    assert!(read.finish.is_some() || read.error.is_some(), "no end");
    read
}

/// Waits until the statistics are as asked for.
fn wait_until(handle: &Handle, what: &str, reached: impl Fn(&Stats) -> bool) {
    let begun = Instant::now();
    while !reached(&handle.stats()) {
        assert!(begun.elapsed() < Duration::from_secs(20), "never {what}: {:?}", handle.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Nothing runs, nothing is lost, no page is held.
fn assert_settled(handle: &Handle) {
    wait_until(handle, "settled", |stats| stats.active + stats.queued == 0);
    let stats = handle.stats();
    assert_eq!(stats.admitted, stats.finished + stats.failed + stats.cancelled, "{stats:?}");
    assert_eq!((stats.kv.used, stats.kv.sequences), (0, 0), "{stats:?}");
    assert_eq!(stats.kv.cached + stats.kv.free, stats.kv.pages, "{stats:?}");
}
