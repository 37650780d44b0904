//! Tests of the engine with a fake decoder. Its logits are a hash of the tokens that it reads back from its
//! pages. So any mistake with pages, chunks, copies, prefixes or preemption changes the tokens.

mod arrival;
mod breakdown;
mod cache_events;
mod ends;
mod fake;
mod faults;
mod flow;
mod life;
mod masks;
mod one_token;
mod readers;
mod requests;
mod scheduler;
mod snapshots;
mod stages;
mod states;
mod text;
mod watchdog;

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::*;
use crate::ir::Window;
use crate::sample::{History, SampleError, Sampler, Sampling, TokenMask, TokenSet, log_sum_exp};
use fake::{FAILING, Fake, PANICKING, POISON, VOCAB, logits_after};

/// Longer than any of these tests should take, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn request(seed: u32, len: u32, max_tokens: usize) -> TokenRequest {
    let prompt = (0..len).map(|i| TokenId(((seed * 31) ^ (i * 7)) % 60)).collect();
    let sampling = Sampling { temperature: 0.8, seed: u64::from(seed), ..Sampling::default() };
    TokenRequest { sampling, ..TokenRequest::new(prompt, max_tokens) }
}

fn with_token(token: TokenId) -> TokenRequest {
    let mut request = request(1, 30, 20);
    request.prompt[17] = token;
    request
}

/// Reads a generation to its end, on a thread of its own so that a hang is a failure.
fn read(generation: Generation) -> (Vec<TokenId>, Result<(FinishReason, Usage), GenerationError>) {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut tokens = Vec::new();
        for event in generation {
            match event {
                Ok(Event::Token(token)) => tokens.push(token.id),
                Ok(Event::Done(done)) => {
                    assert!(done.tokens.ends_with(&tokens));
                    drop(sender.send((tokens.clone(), Ok((done.finish, done.usage)))))
                }
                Err(error) => drop(sender.send((tokens.clone(), Err(error)))),
            }
        }
    });
    receiver.recv_timeout(PATIENCE).expect("a generation ends")
}

fn tokens(handle: &Handle, request: TokenRequest) -> Vec<TokenId> {
    let (tokens, end) = read(handle.submit(request).unwrap());
    assert_eq!(end.map(|(finish, _)| finish), Ok(FinishReason::Length));
    tokens
}

fn spawn(pages: usize, config: EngineConfig) -> Handle {
    Handle::spawn(Fake::new(pages), config).unwrap()
}

/// The tokens that a request without a window must give, computed without an engine.
fn expected(request: &TokenRequest) -> Vec<TokenId> {
    let (mut tokens, prompt) = (request.prompt.clone(), request.prompt.len());
    let mut sampler = Sampler::default();
    for _ in 0..request.max_tokens {
        let history = History { tokens: &tokens, prompt };
        let chosen = sampler.choose(&mut logits_after(&tokens), &request.sampling, None, history);
        tokens.push(chosen.unwrap());
    }
    tokens.split_off(prompt)
}

/// Waits until the engine's statistics fulfil `holds`, checking once per round of the engine: a job is
/// answered once a round.
fn eventually(handle: &Handle, what: &str, holds: impl Fn(&Stats) -> bool) {
    for _ in 0..100_000 {
        if holds(&handle.stats()) {
            return;
        }
        handle.check_integrity().unwrap();
    }
    panic!("{what}: {:?}", handle.stats());
}

/// Waits until no request is left. Then no request or page may be lost, and the accounting must be
/// consistent.
fn settled(handle: &Handle) -> Stats {
    eventually(handle, "everything ends", |stats| stats.waiting + stats.running == 0);
    handle.check_integrity().unwrap();
    let stats = handle.stats();
    assert_eq!(stats.admitted, stats.finished + stats.failed + stats.cancelled, "{stats:?}");
    assert_eq!((stats.pages_used, stats.memory.sequences.bytes), (0, 0), "{stats:?}");
    stats
}

#[test]
fn sixty_four_in_a_small_cache_get_the_tokens_of_a_solo_run() {
    let crowded = spawn(40, EngineConfig::default());
    let generations: Vec<_> = (0..64).map(|s| crowded.submit(request(s, 20 + s, 50)).unwrap()).collect();
    let together: Vec<_> = generations.into_iter().map(|generation| read(generation).0).collect();
    assert!(crowded.stats().preemptions > 0, "the cache is too small for all at once");
    let prompts = (0..64).map(|s| 20 + s).sum();
    let stats = crowded.stats();
    assert_eq!((stats.prompt_tokens, stats.answer_tokens), (prompts, 64 * 50), "each counts once");
    eventually(&crowded, "all pages are given back", |stats| stats.pages_used == 0);
    let ample = spawn(400, EngineConfig { share_prefixes: false, ..EngineConfig::default() });
    for (s, found) in (0..64).zip(together) {
        assert_eq!(found, tokens(&ample, request(s, 20 + s, 50)), "request {s}");
    }
}

#[test]
fn prefill_chunks_and_prefix_reuse_change_nothing() {
    let whole = tokens(&spawn(40, EngineConfig::default()), request(3, 200, 20));
    for prefill_chunk in [Some(1), Some(7), Some(256), None] {
        let handle = spawn(40, EngineConfig { prefill_chunk, ..EngineConfig::default() });
        assert_eq!(tokens(&handle, request(3, 200, 20)), whole);
        let (again, end) = read(handle.submit(request(3, 200, 20)).unwrap());
        assert_eq!((again, end.unwrap().1.cached_tokens), (whole.clone(), 192));
    }
}

#[test]
fn readers_that_never_read_stall_nobody() {
    let config = EngineConfig { sequences_max: 2, event_buffer: 4, ..EngineConfig::default() };
    let handle = spawn(20, config);
    let sleepers: Vec<_> = (0..3).map(|s| handle.submit(request(s, 30, 50)).unwrap()).collect();
    eventually(&handle, "the sleepers' buffers are full", |stats| stats.decode_tokens >= 8);
    assert_eq!(tokens(&handle, request(9, 100, 100)).len(), 100);
    for (s, sleeper) in (0..3).zip(sleepers) {
        let alone = tokens(&spawn(20, EngineConfig::default()), request(s, 30, 50));
        assert_eq!(read(sleeper).0, alone, "a sleeper that wakes goes on where it was");
    }
}

#[test]
fn what_cannot_be_served_is_refused() {
    let handle = spawn(10, EngineConfig { queue_max: 2, ..EngineConfig::default() });
    let refused = |request: TokenRequest| handle.submit(request).unwrap_err();
    assert!(matches!(refused(request(0, 0, 1)), SubmitError::Invalid { .. }));
    assert!(matches!(refused(request(0, 1, 0)), SubmitError::Invalid { .. }));
    assert!(matches!(refused(request(0, 5000, 1)), SubmitError::TooLong { tokens: 5000, context_max: 4096 }));
    assert!(matches!(refused(request(0, 100, 100)), SubmitError::TooLarge { needed: 13, pages: 10, .. }));
    let strange = TokenRequest::new(vec![TokenId(VOCAB as u32)], 1);
    assert!(refused(strange).to_string().contains("token 0 is 64"));
    let hot = Sampling { temperature: f32::NAN, ..Sampling::default() };
    assert!(refused(TokenRequest { sampling: hot, ..request(0, 3, 3) }).to_string().contains("temperature"));
    let stop = TokenRequest { stop_strings: vec!["x".into()], ..request(0, 3, 3) };
    assert!(refused(stop).to_string().contains("vocabulary"));
    let zero = EngineConfig { prefill_chunk: Some(0), ..EngineConfig::default() };
    assert!(matches!(
        Handle::spawn(Fake::new(1), zero),
        Err(EngineError::Config { name: "prefill_chunk", .. })
    ));
}

#[test]
fn a_full_queue_refuses_and_recovers() {
    let fake = Fake::new(40);
    let probe = Arc::clone(&fake.probe);
    let handle = Handle::spawn(fake, EngineConfig { queue_max: 2, ..EngineConfig::default() }).unwrap();
    probe.close_gate();
    let admitted = [1, 2].map(|s| handle.submit(request(s, 20, 5)).unwrap());
    assert!(matches!(handle.submit(request(3, 20, 5)), Err(SubmitError::Overloaded { waiting: 2 })));
    probe.open_gate();
    admitted.into_iter().for_each(|generation| assert!(read(generation).1.is_ok()));
    assert_eq!(tokens(&handle, request(3, 20, 5)).len(), 5);
}

#[test]
fn a_stop_id_ends_the_answer_before_itself() {
    let handle = spawn(40, EngineConfig::default());
    let all = tokens(&handle, request(5, 30, 30));
    let stop = all[12];
    let first = all.iter().position(|&id| id == stop).unwrap();
    let (found, end) =
        read(handle.submit(TokenRequest { stop_ids: vec![stop], ..request(5, 30, 30) }).unwrap());
    assert_eq!(found, all[..first]);
    let (finish, usage) = end.unwrap();
    assert_eq!((finish, usage.completion_tokens, usage.prompt_tokens), (FinishReason::Eos, first, 30));
}

#[test]
fn scores_and_saved_prompts_compute_no_cached_prefix_again() {
    let fake = Fake::new(60).limits(50, 8);
    let probe = Arc::clone(&fake.probe);
    let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
    let computed = |work: &dyn Fn()| {
        let before = probe.tokens_all.load(Ordering::SeqCst);
        work();
        probe.tokens_all.load(Ordering::SeqCst) - before
    };
    let ids = request(7, 100, 1).prompt;
    let all = handle.score(&ids, 2).unwrap();
    assert_eq!(computed(&|| assert_eq!(handle.score(&ids, 2).unwrap(), all)), 100, "each row is looked at");
    // 96 tokens fill six pages, 80 five.
    for (first, expected) in [(99, 4), (96, 4), (95, 20), (80, 20), (79, 36), (15, 100)] {
        let tail = || {
            let found = handle.score_from(&ids, first, 2).unwrap();
            assert_eq!(found.nll, all.nll[first..], "from {first} on");
            assert_eq!(found.top, all.top[first..], "from {first} on");
        };
        assert_eq!(computed(&tail), expected, "from {first} on");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    assert_eq!(computed(&|| handle.save(&ids, &path).unwrap()), 4);
    let other = spawn(60, EngineConfig::default());
    assert_eq!(other.restore(&path).unwrap(), 100);
    let asked = request(7, 100, 20);
    assert_eq!(
        read(other.submit(request(7, 100, 20)).unwrap()).0,
        expected(&asked),
        "it is what was computed"
    );
}

#[test]
fn scores_that_nobody_wants_end_with_their_step() {
    let fake = Fake::new(60).limits(10, 8);
    let probe = Arc::clone(&fake.probe);
    let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
    let ids = request(7, 100, 1).prompt;
    let cancelled = Arc::new(AtomicBool::new(false));
    let options = ScoreOptions { cancelled: Some(Arc::clone(&cancelled)), ..ScoreOptions::default() };
    probe.close_gate();
    let end = std::thread::scope(|scope| {
        let scoring = scope.spawn(|| handle.score_with(&ids, options.clone()));
        probe.wait_for_a_step();
        cancelled.store(true, Ordering::SeqCst);
        probe.open_gate();
        scoring.join().unwrap()
    });
    assert!(matches!(end, Err(EngineError::Cancelled)), "{end:?}");
    assert!(probe.tokens_all.load(Ordering::SeqCst) <= 20, "no step but those in flight");
    handle.check_integrity().unwrap();
    assert_eq!(handle.stats().pages_used, 0);
    cancelled.store(false, Ordering::SeqCst);
    assert_eq!(handle.score_with(&ids, options).unwrap(), handle.score(&ids, 0).unwrap());
}

#[test]
fn scores_are_those_of_the_logits() {
    let handle = Handle::spawn(Fake::new(40).limits(50, 8), EngineConfig::default()).unwrap();
    let ids = request(7, 100, 1).prompt;
    let running = handle.submit(request(8, 40, 60)).unwrap();
    let scores = handle.score(&ids, 3).unwrap();
    assert_eq!((scores.nll.len(), scores.top.len()), (99, 100));
    for i in 0..99 {
        let logits = logits_after(&ids[..=i]);
        let expected = log_sum_exp(&logits).unwrap() - f64::from(logits[ids[i + 1].index()]);
        assert!((scores.nll[i] - expected).abs() < 1e-9, "token {i}");
        assert!(scores.top[i].windows(2).all(|pair| pair[0].1 >= pair[1].1));
        assert_eq!(scores.top[i][0].1, logits.iter().copied().fold(f32::MIN, f32::max));
        assert_eq!(scores.log_sums[i], log_sum_exp(&logits).unwrap());
    }
    assert_eq!(scores.log_sums.len(), 100);
    assert_eq!(handle.score_from(&ids, 60, 0).unwrap().nll, scores.nll[60..]);
    assert!(read(running).1.is_ok());
    assert!(matches!(handle.score(&[], 0), Err(EngineError::Submit(SubmitError::Invalid { .. }))));
    assert!(handle.score(&request(7, 5000, 1).prompt, 0).is_err());
}

#[test]
fn a_saved_prompt_comes_back_and_a_damaged_one_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    let prompt = request(4, 100, 20).prompt;
    let first = spawn(40, EngineConfig::default());
    first.save(&prompt, &path).unwrap();
    let expected = tokens(&first, request(4, 100, 20));
    let second = spawn(40, EngineConfig::default());
    assert_eq!(second.restore(&path).unwrap(), 100);
    let (found, end) = read(second.submit(request(4, 100, 20)).unwrap());
    assert_eq!((found, end.unwrap().1.cached_tokens), (expected, 96));
    let stranger = Handle::spawn(Fake::new(40).model(2), EngineConfig::default()).unwrap();
    assert!(matches!(stranger.restore(&path), Err(EngineError::Snapshot(_))));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[200] ^= 4;
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(second.restore(&path), Err(EngineError::Snapshot(_))));
    assert!(second.restore(&folder.path().join("nothing")).is_err());
}

#[test]
fn a_window_frees_old_pages_and_gives_the_same_tokens_in_any_chunks() {
    let windowed = || TokenRequest { window: Some(Window { window: 40, sinks: 4 }), ..request(6, 150, 80) };
    let whole = tokens(&spawn(60, EngineConfig::default()), windowed());
    let config = EngineConfig { prefill_chunk: Some(8), ..EngineConfig::default() };
    assert_eq!(tokens(&spawn(9, config), windowed()), whole, "230 tokens in 9 pages");
    assert_ne!(tokens(&spawn(60, EngineConfig::default()), request(6, 150, 80)), whole);
}

#[test]
fn the_last_handle_stops_the_engine_and_its_generations() {
    let fake = Fake::new(40);
    let probe = Arc::clone(&fake.probe);
    let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
    let generations = [1, 2].map(|s| handle.submit(request(s, 20, 4000 / 8)).unwrap());
    drop(handle.clone());
    drop(handle);
    for generation in generations {
        assert_eq!(read(generation).1.map(|_| ()), Err(GenerationError::Stopped));
    }
    probe.wait_until_dropped();
}

#[test]
fn log_probabilities_are_the_models_own() {
    let handle = spawn(40, EngineConfig::default());
    let asked = TokenRequest { top: Some(2), ..request(2, 20, 3) };
    let mut history = asked.prompt.clone();
    for event in handle.submit(asked).unwrap() {
        let Event::Token(Token { id, logprobs, .. }) = event.unwrap() else { continue };
        let logits = logits_after(&history);
        let normaliser = log_sum_exp(&logits).unwrap();
        let logprobs = logprobs.unwrap();
        assert!((logprobs.chosen - (f64::from(logits[id.index()]) - normaliser)).abs() < 1e-9);
        assert_eq!(logprobs.top.len(), 2);
        assert!(logprobs.top[0].1 >= logprobs.top[1].1);
        history.push(id);
    }
    assert_eq!(history.len(), 23);
}
