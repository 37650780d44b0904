//! Batching, chunks, preemption, prefixes, cancellation, back pressure, limits.

use super::*;

#[test]
fn sixty_four_at_once_on_few_pages_give_the_tokens_of_a_solo_run() {
    // 64 sequences of up to 9 pages want 500 pages; there are 40.
    let (handle, probe) = engine(Fake::new(40), EngineConfig::default());
    let requests = || (0..64).map(|seed| request(seed, 20 + seed as usize, 40 + seed as usize % 20));
    let expected: Vec<Vec<TokenId>> = requests().map(|request| expected(&request)).collect();
    probe.close_gate();
    let generations: Vec<Generation> = requests().map(|request| handle.submit(request).unwrap()).collect();
    probe.open_gate();
    let readers: Vec<_> = generations
        .into_iter()
        .map(|generation| std::thread::spawn(move || super::read(generation)))
        .collect();
    for (reader, expected) in readers.into_iter().zip(expected) {
        let read = reader.join().unwrap();
        assert_eq!(read.tokens, expected);
        assert_eq!(read.finish, Some(FinishReason::Length));
        assert_eq!(read.usage.completion_tokens, expected.len());
    }
    assert_settled(&handle);
    let stats = handle.stats();
    assert!(stats.preemptions > 0, "the test wants preemptions: {stats:?}");
    assert!(probe.tokens_most.load(std::sync::atomic::Ordering::SeqCst) > 64, "prefill beside decodes");
    assert_eq!(stats.first_tokens, 64);
    assert!(stats.first_token_time_max >= stats.first_token_time_mean());
}

#[test]
fn chunks_and_step_limits_change_nothing() {
    let request = || request(3, 300, 20);
    let expected = expected(&request());
    for (prefill_chunk, tokens_max, outputs_max) in [(1, 300, 64), (7, 300, 1), (256, 300, 8), (256, 1, 1)] {
        let config = EngineConfig { prefill_chunk, ..EngineConfig::default() };
        let (handle, probe) = engine(Fake::new(64).limits(tokens_max, outputs_max), config);
        let (one, two) = (handle.submit(request()).unwrap(), handle.submit(request()).unwrap());
        assert_eq!(read(one).tokens, expected, "chunk {prefill_chunk}");
        assert_eq!(read(two).tokens, expected, "chunk {prefill_chunk}");
        let most = probe.tokens_most.load(std::sync::atomic::Ordering::SeqCst);
        assert!(most <= tokens_max.min(prefill_chunk + 1), "{most} tokens in a step");
    }
}

#[test]
fn a_prompt_that_was_seen_is_not_computed_again() {
    let (handle, _) = engine(Fake::new(64), EngineConfig::default());
    let first = read(handle.submit(request(5, 100, 10)).unwrap());
    let second = read(handle.submit(request(5, 100, 10)).unwrap());
    assert_eq!((first.usage.cached_tokens, second.usage.cached_tokens), (0, 96));
    assert_eq!(first.tokens, second.tokens);
    assert_eq!(second.tokens, expected(&request(5, 100, 10)));
    assert_eq!(handle.stats().cached_tokens, 96);
    let off = EngineConfig { prefix: PrefixReuse::Off, ..EngineConfig::default() };
    let (handle, _) = engine(Fake::new(64), off);
    for _ in 0..2 {
        assert_eq!(read(handle.submit(request(5, 100, 10)).unwrap()).usage.cached_tokens, 0);
    }
}

#[test]
fn a_window_survives_preemption_and_small_pools() {
    let windowed =
        |seed| TokenRequest { window: Some(Window { window: 40, sinks: 4 }), ..request(seed, 50, 150) };
    let config = EngineConfig { prefill_chunk: 16, ..EngineConfig::default() };
    let (ample, _) = engine(Fake::new(500), config);
    // 200 tokens would take 13 pages; the window leaves at most 7.
    let (small, probe) = engine(Fake::new(9), config);
    let alone: Vec<Vec<TokenId>> =
        (0..6).map(|seed| read(ample.submit(windowed(seed)).unwrap()).tokens).collect();
    probe.close_gate();
    let together: Vec<Generation> = (0..6).map(|seed| small.submit(windowed(seed)).unwrap()).collect();
    probe.open_gate();
    let readers: Vec<_> =
        together.into_iter().map(|generation| std::thread::spawn(move || super::read(generation))).collect();
    for (reader, alone) in readers.into_iter().zip(alone) {
        let read = reader.join().unwrap();
        assert!(read.error.is_none(), "{read:?}");
        assert_eq!(read.tokens, alone);
    }
    assert!(small.stats().preemptions > 0);
    assert_settled(&small);
}

#[test]
fn a_thousand_random_cancellations_leak_nothing_and_hit_no_neighbour() {
    let config = EngineConfig { queue_max: 32, sequences_max: 8, event_buffer: 4, ..EngineConfig::default() };
    let (handle, _) = engine(Fake::new(24), config);
    let mut sound = 0;
    let mut cancelled = 0u32;
    while cancelled < 1000 {
        let steady = request(cancelled, 30, 8);
        let expected = expected(&steady);
        let steady = handle.submit(steady).unwrap();
        let mut others = Vec::new();
        for other in 0..20u32 {
            let generation = handle.submit(request(cancelled + other, 10 + 9 * other as usize, 60)).unwrap();
            others.push((other % 5, generation));
        }
        for (events, mut generation) in others {
            assert!(generation.by_ref().take(events as usize).all(|event| event.is_ok()));
            if events == 1 {
                generation.cancel();
                assert_eq!(super::read(generation).finish, Some(FinishReason::Cancelled));
            }
            cancelled += 1;
        }
        let steady = read(steady);
        assert_eq!(steady.tokens, expected);
        sound += 1;
    }
    assert_settled(&handle);
    let stats = handle.stats();
    assert_eq!((stats.cancelled, stats.finished, stats.failed), (u64::from(cancelled), sound, 0));
}

#[test]
fn a_reader_that_never_reads_stalls_nobody() {
    let config = EngineConfig { sequences_max: 2, event_buffer: 4, ..EngineConfig::default() };
    let (handle, _) = engine(Fake::new(20), config);
    let sleepers: Vec<Generation> =
        (0..4).map(|seed| handle.submit(request(seed, 60, 50)).unwrap()).collect();
    wait_until(&handle, "paused", |stats| stats.paused == 4);
    for seed in 10..20 {
        let awake = request(seed, 60, 200);
        assert_eq!(expected(&awake), read(handle.submit(awake).unwrap()).tokens);
    }
    assert_eq!(handle.stats().paused, 4);
    for (seed, sleeper) in (0..4).zip(sleepers) {
        assert_eq!(read(sleeper).tokens, expected(&request(seed, 60, 50)), "who wakes up gets the rest");
    }
    assert_settled(&handle);
}

#[test]
fn a_full_queue_refuses_at_once_and_recovers() {
    let config = EngineConfig { queue_max: 3, sequences_max: 1, ..EngineConfig::default() };
    let (handle, probe) = engine(Fake::new(20), config);
    probe.close_gate();
    let running = handle.submit(request(0, 5, 5)).unwrap();
    wait_until(&handle, "running", |stats| stats.queued == 0);
    let queued: Vec<Generation> = (1..4).map(|seed| handle.submit(request(seed, 5, 5)).unwrap()).collect();
    assert_eq!(handle.submit(request(9, 5, 5)).unwrap_err(), SubmitError::Overloaded { waiting: 3 });
    let stats = handle.stats();
    assert_eq!((stats.queued, stats.active, stats.overloaded, stats.admitted), (3, 1, 1, 4));
    probe.open_gate();
    for (seed, generation) in (0..4).zip(std::iter::once(running).chain(queued)) {
        assert_eq!(read(generation).tokens, expected(&request(seed, 5, 5)));
    }
    assert_eq!(read(handle.submit(request(9, 5, 5)).unwrap()).tokens, expected(&request(9, 5, 5)));
}

#[test]
fn a_queued_request_is_cancelled_without_its_turn() {
    let config = EngineConfig { sequences_max: 1, event_buffer: 1000, ..EngineConfig::default() };
    let (handle, probe) = engine(Fake::new(40), config);
    probe.close_gate();
    let running = handle.submit(request(0, 5, 400)).unwrap();
    wait_until(&handle, "running", |stats| stats.queued == 0);
    let queued = handle.submit(request(1, 5, 5)).unwrap();
    queued.cancel();
    drop(handle.submit(request(2, 5, 5)).unwrap());
    drop(running);
    probe.open_gate();
    let read = super::read(queued);
    assert_eq!((read.finish, read.tokens.len()), (Some(FinishReason::Cancelled), 0));
    assert_settled(&handle);
    assert_eq!(handle.stats().cancelled, 3);
}

#[test]
fn what_cannot_fit_is_refused_by_its_length() {
    let (handle, _) = engine(Fake::new(10), EngineConfig::default());
    assert_eq!(handle.tokens_max(), 160);
    let too_long = |prompt, max_tokens| handle.submit(request(0, prompt, max_tokens)).unwrap_err();
    assert_eq!(too_long(100, 61), SubmitError::TooLong { tokens: 161, tokens_max: 160 });
    assert_eq!(too_long(1, usize::MAX), SubmitError::TooLong { tokens: usize::MAX, tokens_max: 160 });
    assert!(matches!(
        handle.score(&prompt(0, 161), 0),
        Err(EngineError::Refused(SubmitError::TooLong { .. }))
    ));
    assert_eq!(read(handle.submit(request(0, 100, 60)).unwrap()).tokens.len(), 60);
}

#[test]
fn nonsense_is_refused_field_by_field() {
    let (handle, _) = engine(Fake::new(10), EngineConfig::default());
    let refuse = |change: fn(&mut TokenRequest)| {
        let mut request = request(0, 5, 5);
        change(&mut request);
        match handle.submit(request).unwrap_err() {
            SubmitError::Invalid(invalid) => invalid.to_string(),
            other => panic!("{other}"),
        }
    };
    type Change = fn(&mut TokenRequest);
    let cases: [(Change, &str); 11] = [
        (|r| r.prompt.clear(), "prompt: expected at least one token"),
        (|r| r.prompt[3] = TokenId(64), "prompt[3]: token 64 is outside the vocabulary of 64"),
        (|r| r.max_tokens = 0, "max_tokens: expected at least 1"),
        (|r| r.sampling.temperature = f32::NAN, "sampling: temperature: expected 0 to 100, found NaN"),
        (|r| r.sampling.top_p = -0.5, "sampling: top_p"),
        (|r| r.sampling.logit_bias.push((TokenId(99), 0.0)), "sampling: logit_bias: token 99"),
        (|r| r.eos_ids.push(TokenId(64)), "eos_ids[0]"),
        (|r| r.stop_ids.push(TokenId(u32::MAX)), "stop_ids[0]"),
        (|r| r.stop_strings.push("x".into()), "stop_strings need `text`"),
        (|r| r.window = Some(Window { window: 0, sinks: 4 }), "window"),
        (|r| r.logprobs = Some(usize::MAX), "logprobs"),
    ];
    for (change, message) in cases {
        let found = refuse(change);
        assert!(found.starts_with(message), "{found}");
    }
    assert_eq!(handle.stats().admitted, 0);
}

#[test]
fn scores_are_those_of_the_definition_beside_other_work_and_preemption() {
    let (handle, _) = engine(Fake::new(24).limits(40, 5), EngineConfig::default());
    let generations: Vec<Generation> =
        (0..6).map(|seed| handle.submit(request(seed, 40, 40)).unwrap()).collect();
    let ids = prompt(77, 200);
    let scores = handle.score(&ids, 3).unwrap();
    assert_eq!((scores.nll.len(), scores.top.len()), (199, 200));
    for (position, nll) in scores.nll.iter().enumerate() {
        let logits = logits_after(&ids[..=position]);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let expected = sum.ln() - f64::from(logits[ids[position + 1].index()]);
        assert!((nll - expected).abs() < 1e-9, "{position}: {nll}, expected {expected}");
    }
    let last = logits_after(&ids);
    assert!(scores.top[199].iter().all(|&(token, logit)| last[token.index()] == logit));
    let best = last.iter().copied().fold(f32::MIN, f32::max);
    assert_eq!(scores.top[199][0].1, best);
    assert_eq!(handle.score(&ids, 3).unwrap(), scores, "a cached prefix is scored all the same");
    assert_eq!(handle.score(&ids[..1], 0).unwrap(), Scores::default());
    for (seed, generation) in (0..6).zip(generations) {
        assert_eq!(read(generation).tokens, expected(&request(seed, 40, 40)));
    }
    assert_settled(&handle);
}

#[test]
fn log_probabilities_are_of_the_untouched_logits() {
    let (handle, _) = engine(Fake::new(24), EngineConfig::default());
    let mut request = request(1, 10, 5);
    request.logprobs = Some(2);
    request.sampling.logit_bias = vec![(TokenId(7), 100.0)];
    let mut tokens = request.prompt.clone();
    for event in handle.submit(request).unwrap() {
        let Event::Token { id, logprob, top, .. } = event.unwrap() else { break };
        assert_eq!(id, TokenId(7));
        let logits = logits_after(&tokens);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let expected = |id: TokenId| (f64::from(logits[id.index()]) - sum.ln()) as f32;
        assert!((logprob.unwrap() - expected(id)).abs() < 1e-5);
        assert_eq!(top.len(), 2);
        assert!(top[0].1 >= top[1].1 && (top[0].1 - expected(top[0].0)).abs() < 1e-5);
        tokens.push(id);
    }
    assert_eq!(tokens.len(), 15);
}
