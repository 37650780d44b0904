//! Failures: each one concerns only its own request.

use super::*;

/// Runs a request with `bad` in its prompt in one step with sound ones. Returns its error.
fn among_others(handle: &Handle, probe: &fake::Probe, bad: TokenId) -> GenerationError {
    probe.close_gate();
    let submit = |seed| (seed, handle.submit(request(seed, 30, 10)).unwrap());
    let early: Vec<_> = (2..4).map(submit).collect();
    let ill = handle.submit(with_token(bad)).unwrap();
    let late: Vec<_> = (4..6).map(submit).collect();
    probe.open_gate();
    for (seed, sound) in early.into_iter().chain(late) {
        assert_eq!(read(sound).0, expected(&request(seed, 30, 10)), "beside {bad:?}");
    }
    let (found, end) = read(ill);
    assert!(found.is_empty());
    end.expect_err("the ill one fails")
}

#[test]
fn nan_errors_and_panics_of_the_decoder_fail_their_own_request() {
    let fake = Fake::new(100);
    let probe = Arc::clone(&fake.probe);
    let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
    assert!(matches!(among_others(&handle, &probe, POISON), GenerationError::Sampling(_)));
    assert!(matches!(among_others(&handle, &probe, FAILING), GenerationError::Step(_)));
    let panicked = among_others(&handle, &probe, PANICKING);
    assert!(panicked.to_string().contains("panicked"), "{panicked}");
    let stats = settled(&handle);
    assert_eq!((stats.failed, stats.finished), (3, 12));
}

#[test]
fn pages_behind_nan_are_not_found_again() {
    let handle = spawn(100, EngineConfig::default());
    let ill = || {
        let mut request = request(50, 40, 10);
        request.prompt[33] = POISON;
        request
    };
    assert!(read(handle.submit(ill()).unwrap()).1.is_err());
    let cached = settled(&handle).cached_tokens;
    assert!(read(handle.submit(ill()).unwrap()).1.is_err());
    assert_eq!(settled(&handle).cached_tokens, cached);
}

#[test]
fn scores_and_snapshots_fail_alone_too() {
    let handle = spawn(100, EngineConfig::default());
    let running = handle.submit(request(3, 30, 60)).unwrap();
    let ids = |bad| with_token(bad).prompt;
    assert!(matches!(handle.score(&ids(POISON), 0), Err(EngineError::Sampling(_))));
    assert!(matches!(handle.score(&ids(FAILING), 0), Err(EngineError::Step(_))));
    assert!(matches!(handle.score(&ids(PANICKING), 0), Err(EngineError::Internal(_))));
    let path = std::path::Path::new("never written");
    assert!(matches!(handle.save(&ids(FAILING), path), Err(EngineError::Step(_))));
    assert!(!path.exists());
    assert_eq!(read(running).0, expected(&request(3, 30, 60)));
    settled(&handle);
}

#[test]
fn a_breakdown_of_the_thread_leaves_nobody_waiting() {
    let config = EngineConfig { sequences_max: 1, event_buffer: 5, ..EngineConfig::default() };
    let fake = Fake::new(100);
    let probe = Arc::clone(&fake.probe);
    let handle = Handle::spawn(fake, config).unwrap();
    probe.breaks_down.store(true, std::sync::atomic::Ordering::SeqCst);
    let paused = handle.submit(request(0, 10, 500)).unwrap();
    let waiting = handle.submit(request(1, 10, 10)).unwrap();
    eventually(&handle, "the buffer is full", |stats| stats.decode_tokens >= 5);
    let saved = handle.save(&request(3, 20, 1).prompt, std::path::Path::new("never written"));
    assert!(matches!(saved, Err(EngineError::Dead(EngineFailure::Panicked))), "{saved:?}");
    let (found, end) = read(paused);
    assert_eq!(found.len(), 5, "what had come can be read");
    assert_eq!(end, Err(EngineFailure::Panicked.into()));
    drop(waiting);
    assert_eq!(handle.submit(request(0, 5, 5)).unwrap_err(), SubmitError::Dead(EngineFailure::Panicked));
    assert!(matches!(handle.check_integrity(), Err(EngineError::Dead(EngineFailure::Panicked))));
    let stats = handle.stats();
    assert_eq!(stats.admitted, stats.finished + stats.failed + stats.cancelled, "{stats:?}");
    assert_eq!((stats.admitted, stats.running, stats.memory.kv_pages.bytes), (2, 0, 0));
}

#[test]
fn a_decoder_or_a_setting_without_room_is_refused_at_the_start() {
    let refused = |fake: Fake, config| match Handle::spawn(fake, config) {
        Err(EngineError::Config { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    let default = EngineConfig::default();
    assert_eq!(refused(Fake::new(0), default), "the decoder's pages");
    assert_eq!(refused(Fake::new(1).limits(0, 1), default), "the decoder's tokens of a step");
    assert_eq!(refused(Fake::new(1).limits(1, 0), default), "the decoder's outputs of a step");
    assert_eq!(refused(Fake::new(1), EngineConfig { event_buffer: 0, ..default }), "event_buffer");
    assert_eq!(refused(Fake::new(1), EngineConfig { jobs_max: 0, ..default }), "jobs_max");
}

#[test]
fn counts_have_a_range_that_is_named_with_what_was_found() {
    let default = EngineConfig::default();
    let too_large = |found: usize| {
        [
            ("queue_max", EngineConfig { queue_max: found, ..default }),
            ("jobs_max", EngineConfig { jobs_max: found, ..default }),
            ("sequences_max", EngineConfig { sequences_max: found, ..default }),
            ("prefill_chunk", EngineConfig { prefill_chunk: Some(found), ..default }),
            ("event_buffer", EngineConfig { event_buffer: found, ..default }),
        ]
    };
    for found in [0, COUNT_MAX + 1, u32::MAX as usize + 1, usize::MAX] {
        for (name, config) in too_large(found) {
            let error = Handle::spawn(Fake::new(1), config).unwrap_err().to_string();
            assert_eq!(error, format!("{name}: expected 1 to {COUNT_MAX}, found {found}"));
        }
    }
    for (name, config) in too_large(COUNT_MAX) {
        let handle = Handle::spawn(Fake::new(40), config).unwrap();
        assert_eq!(tokens(&handle, request(3, 20, 5)), expected(&request(3, 20, 5)), "{name}");
    }
}

#[test]
fn requests_of_any_numbers_are_answered_or_refused() {
    let handle = spawn(300, EngineConfig::default());
    let most = TokenRequest { max_tokens: usize::MAX, ..request(3, 20, 5) };
    let (found, end) = read(handle.submit(most).unwrap());
    assert!(
        end.is_ok() && found.starts_with(&expected(&request(3, 20, 5))) && found.len() > 1000,
        "as long as the context"
    );
    let ids = request(3, 20, 5).prompt;
    for top in [VOCAB + 1, usize::MAX] {
        let error = handle.score(&ids, top).unwrap_err().to_string();
        assert!(error.contains(&format!("expected at most {VOCAB} for 20 tokens, found {top}")), "{error}");
    }
    for first in [20, usize::MAX] {
        assert_eq!(handle.score_from(&ids, first, 1).unwrap(), Scores::default(), "nothing is asked for");
    }
    let refused = |request: TokenRequest| handle.submit(request).unwrap_err().to_string();
    let top = TokenRequest { top: Some(usize::MAX), ..request(3, 20, 5) };
    assert!(refused(top).contains(&format!("top_logprobs: expected at most 100, found {}", usize::MAX)));
    let stop = TokenRequest { stop_ids: vec![TokenId(1); VOCAB + 1], ..request(3, 20, 5) };
    assert!(refused(stop).contains(&format!("stop: expected at most {VOCAB} tokens, found {}", VOCAB + 1)));
    let texts = TokenRequest { stop_strings: vec!["x".into(); 65], ..request(3, 20, 5) };
    assert!(refused(texts).contains("stop: expected at most 64 texts, found 65"));
    let long = TokenRequest { stop_strings: vec!["x".repeat(1025)], ..request(3, 20, 5) };
    assert!(refused(long).contains("stop: expected texts of 1 to 1024 bytes, found 1025"));
    // A prompt beyond the context is refused by its length, before its tokens are checked.
    let strange = TokenRequest::new(vec![TokenId(u32::MAX); 1 << 20], 1);
    assert!(matches!(handle.submit(strange), Err(SubmitError::TooLong { tokens: 1_048_576, .. })));
}

#[test]
fn handles_and_generations_go_where_they_are_needed() {
    fn anywhere<T: Send + 'static>() {}
    fn everywhere<T: Send + Sync + Clone + 'static>() {}
    everywhere::<Handle>();
    anywhere::<Generation>();
    everywhere::<GenerationError>();
}
