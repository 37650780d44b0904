//! What fails, and that it fails alone.

use super::*;
use crate::sample::{SampleError, TokenMask};

/// Runs a request with `bad` in its prompt among sound ones; returns how it ended.
fn among_others(bad: TokenId) -> (Handle, GenerationError, Vec<(Vec<TokenId>, Read)>) {
    let (handle, probe) = engine(Fake::new(100), EngineConfig::default());
    probe.close_gate();
    let mut ill = request(50, 40, 10);
    ill.prompt[33] = bad;
    let mut sound: Vec<_> =
        (0..4).map(|seed| (expected(&request(seed, 30, 10)), request(seed, 30, 10))).collect();
    let late = sound.split_off(2);
    let submit = |sound: Vec<(Vec<TokenId>, TokenRequest)>| -> Vec<_> {
        sound.into_iter().map(|(expected, request)| (expected, handle.submit(request).unwrap())).collect()
    };
    let early = submit(sound);
    let ill = handle.submit(ill).unwrap();
    let late = submit(late);
    probe.open_gate();
    let ill = read(ill);
    let others = early.into_iter().chain(late).map(|(expected, g)| (expected, read(g))).collect();
    assert!(ill.tokens.is_empty());
    (handle, ill.error.unwrap(), others)
}

#[test]
fn nan_fails_its_own_request_and_leaves_nothing_in_the_cache() {
    let (handle, error, others) = among_others(POISON);
    assert!(matches!(error, GenerationError::Sample(SampleError::NotFinite { .. })), "{error}");
    for (expected, read) in others {
        assert_eq!(read.tokens, expected);
    }
    assert_settled(&handle);
    let cached = handle.stats().cached_tokens;
    let mut again = request(50, 40, 10);
    again.prompt[33] = POISON;
    assert!(read(handle.submit(again).unwrap()).error.is_some());
    assert_eq!(handle.stats().cached_tokens, cached, "pages behind NaN are not shared");
}

#[test]
fn a_failing_step_is_tried_again_sequence_by_sequence() {
    let (handle, error, others) = among_others(FAILING);
    assert!(matches!(error, GenerationError::Step(_)), "{error}");
    for (expected, read) in others {
        assert_eq!(read.tokens, expected);
    }
    assert_settled(&handle);
    assert_eq!((handle.stats().failed, handle.stats().finished), (1, 4));
}

#[test]
fn a_panic_in_the_decoder_hangs_nobody_and_the_engine_goes_on() {
    let (handle, error, others) = among_others(PANICKING);
    assert!(matches!(error, GenerationError::Panicked { .. }), "{error}");
    for (expected, read) in others {
        // Who shared the step fails with it; the others are sound.
        match read.error {
            Some(error) => assert!(matches!(error, GenerationError::Panicked { .. }), "{error}"),
            None => assert_eq!(read.tokens, expected),
        }
    }
    assert_settled(&handle);
    let after = request(9, 30, 10);
    assert_eq!(expected(&after), read(handle.submit(after).unwrap()).tokens);
}

#[test]
fn scoring_fails_alone_too() {
    let (handle, _) = engine(Fake::new(100), EngineConfig::default());
    let mut ids = prompt(1, 50);
    ids[20] = POISON;
    assert!(matches!(handle.score(&ids, 0), Err(EngineError::Failed(GenerationError::Sample(_)))));
    ids[20] = FAILING;
    assert!(matches!(handle.score(&ids, 0), Err(EngineError::Failed(GenerationError::Step(_)))));
    assert_settled(&handle);
}

#[derive(Debug)]
struct Breaking {
    accepted: usize,
}

impl TokenMask for Breaking {
    fn mask(&mut self, logits: &mut [f32]) {
        assert!(self.accepted < 3, "a mask that panics");
        logits[1..].fill(f32::NEG_INFINITY);
    }

    fn accept(&mut self, token: TokenId) {
        assert_eq!(token, TokenId(0));
        self.accepted += 1;
    }
}

#[test]
fn a_mask_that_panics_fails_its_own_request() {
    let (handle, _) = engine(Fake::new(100), EngineConfig::default());
    let mut masked = request(1, 10, 10);
    masked.mask = Some(Box::new(Breaking { accepted: 0 }));
    let masked = handle.submit(masked).unwrap();
    let sound = handle.submit(request(2, 10, 50)).unwrap();
    let masked = read(masked);
    assert_eq!(masked.tokens, [TokenId(0); 3]);
    assert!(matches!(masked.error, Some(GenerationError::Panicked { .. })));
    assert_eq!(read(sound).tokens, expected(&request(2, 10, 50)));
    assert_settled(&handle);
}

#[test]
fn dropping_the_last_handle_ends_the_thread_and_every_generation() {
    let config = EngineConfig { sequences_max: 2, event_buffer: 3, ..EngineConfig::default() };
    let (handle, probe) = engine(Fake::new(100), config);
    let clone = handle.clone();
    let live: Vec<Generation> = (0..6).map(|seed| handle.submit(request(seed, 10, 500)).unwrap()).collect();
    wait_until(&handle, "paused", |stats| stats.paused >= 1);
    drop(handle);
    assert!(!probe.dropped.load(std::sync::atomic::Ordering::SeqCst));
    drop(clone);
    assert!(probe.dropped.load(std::sync::atomic::Ordering::SeqCst), "the thread was joined");
    for generation in live {
        assert!(matches!(read(generation).error, Some(GenerationError::Stopped)));
    }
}

#[test]
fn a_breakdown_of_the_thread_leaves_nobody_waiting() {
    let config = EngineConfig { sequences_max: 1, event_buffer: 5, ..EngineConfig::default() };
    let (handle, probe) = engine(Fake::new(100), config);
    probe.breaks_down.store(true, std::sync::atomic::Ordering::SeqCst);
    let paused = handle.submit(request(0, 10, 500)).unwrap();
    wait_until(&handle, "paused", |stats| stats.paused == 1);
    let path = std::path::Path::new("/nonexistent/never written");
    let saved = handle.save(&prompt(3, 20), path);
    assert!(matches!(saved, Err(EngineError::Failed(GenerationError::Stopped))), "{saved:?}");
    let paused = read(paused);
    assert_eq!(paused.tokens.len(), 5, "what had come can be read");
    assert!(matches!(paused.error, Some(GenerationError::Stopped)));
    assert_eq!(handle.submit(request(0, 5, 5)).unwrap_err(), SubmitError::Stopped);
    let stats = handle.stats();
    assert_eq!((stats.admitted, stats.failed, stats.active, stats.queued), (2, 2, 0, 0));
}

#[test]
fn a_decoder_without_room_is_refused_at_the_start() {
    for fake in [Fake::new(0), Fake::new(1).limits(0, 1), Fake::new(1).limits(1, 0)] {
        assert!(matches!(Handle::spawn(fake, EngineConfig::default()), Err(EngineError::Config { .. })));
    }
    let config = EngineConfig { event_buffer: 0, ..EngineConfig::default() };
    assert!(matches!(Handle::spawn(Fake::new(1), config), Err(EngineError::Config { what: "event_buffer" })));
}

#[test]
fn handles_and_generations_go_where_they_are_needed() {
    fn anywhere<T: Send + 'static>() {}
    fn everywhere<T: Send + Sync + Clone + 'static>() {}
    everywhere::<Handle>();
    anywhere::<Generation>();
    everywhere::<GenerationError>();
}
