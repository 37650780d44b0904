//! Flow control: full queues, cancellation, sleeping readers, step limits, memory gauges.

use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::ir::OpTime;

/// SplitMix64's next number (Steele, Lea, Flood 2014).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn gated(fake: Fake, config: EngineConfig) -> (Handle, Arc<fake::Probe>) {
    let probe = Arc::clone(&fake.probe);
    (Handle::spawn(fake, config).unwrap(), probe)
}

#[test]
fn a_full_queue_of_jobs_refuses_and_recovers() {
    let (handle, probe) = gated(Fake::new(40), EngineConfig { jobs_max: 2, ..EngineConfig::default() });
    let score = |answers: &mpsc::Sender<_>| {
        let (handle, answers) = (handle.clone(), answers.clone());
        std::thread::spawn(move || answers.send(handle.score(&request(7, 50, 1).prompt, 0)).unwrap());
    };
    probe.close_gate();
    let (answers, answered) = mpsc::channel();
    score(&answers);
    probe.wait_for_a_step();
    // One is at work. Of five more, two find room and three are refused.
    (0..5).for_each(|_| score(&answers));
    for _ in 0..3 {
        let refused = answered.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(refused, Err(EngineError::JobsFull { waiting: 2 })), "{refused:?}");
    }
    // Requests and their cancellation need no room among the jobs.
    let cancelled = handle.submit(request(1, 20, 50)).unwrap();
    cancelled.cancel();
    probe.open_gate();
    for _ in 0..3 {
        assert_eq!(answered.recv_timeout(PATIENCE).unwrap().unwrap().nll.len(), 49);
    }
    assert_eq!(read(cancelled).1.unwrap().0, FinishReason::Cancelled);
    assert!(handle.score(&request(7, 50, 1).prompt, 0).is_ok());
    settled(&handle);
}

#[test]
fn submitters_in_a_race_fill_the_queue_exactly() {
    let (handle, probe) = gated(Fake::new(200), EngineConfig { queue_max: 10, ..EngineConfig::default() });
    probe.close_gate();
    let submitters: Vec<_> = (0..8)
        .map(|thread| {
            let handle = handle.clone();
            std::thread::spawn(move || {
                (0..4).filter_map(|i| handle.submit(request(8 * i + thread, 10, 5)).ok()).collect::<Vec<_>>()
            })
        })
        .collect();
    let admitted: Vec<Generation> =
        submitters.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    assert_eq!(admitted.len(), 10, "neither more nor fewer");
    probe.open_gate();
    admitted.into_iter().for_each(|generation| assert!(read(generation).1.is_ok()));
    assert_eq!(settled(&handle).admitted, 10);
}

#[test]
fn a_thousand_random_cancellations_leak_no_page_and_hit_no_neighbour() {
    let config = EngineConfig { queue_max: 64, sequences_max: 8, event_buffer: 4, ..EngineConfig::default() };
    let handle = spawn(24, config);
    let (mut state, mut cancelled, mut sound) = (1, 0, 0);
    while cancelled < 1000 {
        let steady = request(cancelled, 30, 8);
        let expected = expected(&steady);
        let steady = handle.submit(steady).unwrap();
        let others: Vec<_> = (0..20u32)
            .map(|other| {
                let len = 1 + (random(&mut state) % 180) as u32;
                // More tokens than fit in the buffer: none ends before it is cancelled.
                handle.submit(request(cancelled + other, len, 60)).unwrap()
            })
            .collect();
        for mut generation in others {
            let events = random(&mut state) % 6;
            assert!((&mut generation).into_iter().take(events as usize).all(|event| event.is_ok()));
            if random(&mut state).is_multiple_of(4) {
                generation.cancel();
                assert_eq!(read(generation).1.unwrap().0, FinishReason::Cancelled);
            }
            cancelled += 1;
        }
        assert_eq!(read(steady).0, expected);
        sound += 1;
    }
    let stats = settled(&handle);
    assert_eq!((stats.cancelled, stats.finished, stats.failed), (u64::from(cancelled), sound, 0));
    assert!(stats.preemptions > 0, "the cache is too small for all: {stats:?}");
}

#[test]
fn a_queued_request_is_cancelled_without_its_turn() {
    let config = EngineConfig { sequences_max: 1, event_buffer: 1000, ..EngineConfig::default() };
    let (handle, probe) = gated(Fake::new(40), config);
    probe.close_gate();
    let running = handle.submit(request(0, 5, 400)).unwrap();
    probe.wait_for_a_step();
    let queued = handle.submit(request(1, 5, 5)).unwrap();
    queued.cancel();
    drop(handle.submit(request(2, 5, 5)).unwrap());
    drop(running);
    probe.open_gate();
    let (found, end) = read(queued);
    assert_eq!((end.unwrap().0, found.len()), (FinishReason::Cancelled, 0));
    assert_eq!(settled(&handle).cancelled, 3);
}

#[test]
fn chunks_and_step_limits_change_nothing() {
    let asked = || request(3, 300, 20);
    let expected = expected(&asked());
    for (prefill_chunk, tokens_max, outputs_max) in [(1, 300, 64), (7, 300, 1), (256, 300, 8), (256, 1, 1)] {
        let config = EngineConfig { prefill_chunk: Some(prefill_chunk), ..EngineConfig::default() };
        let (handle, probe) = gated(Fake::new(64).limits(tokens_max, outputs_max), config);
        let two = [handle.submit(asked()).unwrap(), handle.submit(asked()).unwrap()];
        for generation in two {
            assert_eq!(read(generation).0, expected, "chunk {prefill_chunk}");
        }
        let most = probe.tokens_most.load(std::sync::atomic::Ordering::SeqCst);
        assert!(most <= tokens_max.min(prefill_chunk + 1), "{most} tokens in a step");
    }
}

#[test]
fn a_window_survives_preemption_and_a_small_cache() {
    let windowed =
        |seed| TokenRequest { window: Some(Window { window: 40, sinks: 4 }), ..request(seed, 50, 150) };
    let config = EngineConfig { prefill_chunk: Some(16), ..EngineConfig::default() };
    let ample = spawn(500, config);
    // 200 tokens would take 13 pages; the window leaves at most 7.
    let (small, probe) = gated(Fake::new(9), config);
    probe.close_gate();
    let together: Vec<_> = (0..6).map(|seed| small.submit(windowed(seed)).unwrap()).collect();
    probe.open_gate();
    let readers = together.into_iter().map(|generation| std::thread::spawn(move || read(generation)));
    for (seed, reader) in (0..6).zip(readers.collect::<Vec<_>>()) {
        assert_eq!(reader.join().unwrap().0, tokens(&ample, windowed(seed)), "request {seed}");
    }
    assert!(settled(&small).preemptions > 0);
}

/// Sinks, window, a page at each of three edges, and a chunk: 4 + 40 + 3 · 16 + 16 tokens.
#[test]
fn a_window_needs_its_own_pages_and_those_at_its_edges() {
    let windowed = || TokenRequest { window: Some(Window { window: 40, sinks: 4 }), ..request(6, 150, 80) };
    let config = EngineConfig { prefill_chunk: Some(16), ..EngineConfig::default() };
    let refused = spawn(6, config).submit(windowed()).unwrap_err();
    assert_eq!(refused, SubmitError::TooLarge { tokens: 108, needed: 7, pages: 6 });
    assert_eq!(tokens(&spawn(7, config), windowed()), tokens(&spawn(60, config), windowed()));
    // A window that is longer than the request needs no more than the request.
    let wide =
        TokenRequest { window: Some(Window { window: u32::MAX, sinks: u32::MAX }), ..request(6, 20, 12) };
    assert_eq!(tokens(&spawn(2, config), wide), expected(&request(6, 20, 12)));
}

#[test]
fn memory_is_counted_by_kind() {
    let handle = spawn(40, EngineConfig { share_prefixes: false, ..EngineConfig::default() });
    let page = 8 * crate::ir::PAGE_TOKENS as u64;
    let constant = |bytes| MemoryUse { bytes, bytes_max: bytes };
    assert_eq!(tokens(&handle, request(1, 100, 30)).len(), 30);
    let memory = settled(&handle).memory;
    assert_eq!((memory.weights, memory.arena), (constant(1000), constant(100)));
    assert_eq!(memory.kv_pool, constant(40 * page));
    // 129 tokens have keys and values: the last one is never run.
    assert_eq!(memory.kv_pages, MemoryUse { bytes: 0, bytes_max: 9 * page });
    assert_eq!(memory.sequences, MemoryUse { bytes: 0, bytes_max: 4 * (130 + 100) });
    assert_eq!(memory.snapshots, MemoryUse::default());
}

/// A random request: its seed, the lengths of prompt and answer, and the number of events before its reader
/// cancels.
fn player() -> impl Strategy<Value = (u32, u32, usize, Option<usize>)> {
    (0..500u32, 1..140u32, 1..50usize, prop::option::weighted(0.3, 0..8usize))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// With any limits, every request ends with the tokens of a run without an engine.
    #[test]
    fn everyone_ends_with_its_own_tokens_whatever_the_limits(
        players in prop::collection::vec(player(), 1..14),
        (tokens_max, outputs_max) in (1..80usize, 1..10usize),
        prefill_chunk in prop::option::of(1..64usize),
        (sequences_max, event_buffer) in (1..9usize, 1..6usize),
        share_prefixes in any::<bool>(),
        spare in 0..20usize,
    ) {
        let pages = players.iter().map(|&(_, len, most, _)| (len as usize + most).div_ceil(16)).max();
        let fake = Fake::new(pages.unwrap_or(1) + spare).limits(tokens_max, outputs_max);
        let config =
            EngineConfig { prefill_chunk, sequences_max, event_buffer, share_prefixes, ..EngineConfig::default() };
        let handle = Handle::spawn(fake, config).unwrap();
        let submit = |&(seed, len, most, _): &_| handle.submit(request(seed, len, most)).unwrap();
        let generations: Vec<_> = players.iter().map(submit).collect();
        for (mut generation, (seed, len, most, cancel)) in generations.into_iter().zip(players) {
            let expected = expected(&request(seed, len, most));
            let Some(events) = cancel else {
                prop_assert_eq!(read(generation).0, expected);
                continue;
            };
            for (event, id) in (&mut generation).into_iter().take(events).zip(&expected) {
                let told = matches!(&event, Ok(Event::Token(token)) if token.id == *id);
                prop_assert!(told, "{:?}", event);
            }
        }
        let stats = settled(&handle);
        prop_assert_eq!(stats.failed, 0);
    }
}

/// Tokens, ends and texts equal those of an engine that waits for each step. Runs ahead end for every reason:
/// stops, lengths, cancellations, arrivals, penalties, sleeping readers.
#[test]
fn running_ahead_changes_nothing_but_the_number_of_waits() {
    let crowd = |handle: &Handle| {
        let stop = expected(&request(3, 21, 40))[11];
        let requests = (0..12u32).map(|s| {
            let mut request = request(s, 18 + s, 10 + 7 * s as usize);
            match s % 4 {
                1 => request.sampling.presence_penalty = 0.5,
                2 => request.top = Some(0),
                3 => request.stop_ids = vec![stop],
                _ => {}
            }
            request
        });
        let generations: Vec<_> = requests.map(|request| handle.submit(request).unwrap()).collect();
        let ends: Vec<_> = generations.into_iter().map(read).collect();
        let stopped = TokenRequest { stop_ids: vec![stop], ..request(3, 21, 40) };
        (ends, read(handle.submit(stopped).unwrap()))
    };
    let config = || EngineConfig { sequences_max: 5, event_buffer: 3, ..EngineConfig::default() };
    let ahead = Handle::spawn(Fake::new(60), config()).unwrap();
    let (in_step, never) = gated(Fake::new(60).in_step(), config());
    assert_eq!(crowd(&ahead), crowd(&in_step));
    assert_eq!(never.steps_ahead.load(std::sync::atomic::Ordering::SeqCst), 0);
    settled(&ahead);
    settled(&in_step);
}

/// There is no other request, and the buffer of the reader has room for the whole answer.
#[test]
fn one_alone_runs_ahead_from_its_first_token_to_its_last() {
    let (handle, probe) = gated(Fake::new(60), EngineConfig { event_buffer: 256, ..EngineConfig::default() });
    assert_eq!(tokens(&handle, request(5, 40, 64)), expected(&request(5, 40, 64)));
    let steps = probe.steps_ahead.load(std::sync::atomic::Ordering::SeqCst);
    assert!(steps >= 62, "64 tokens in {steps} steps ahead");
    // The last token is never run, and none is run twice.
    assert_eq!(probe.tokens_all.load(std::sync::atomic::Ordering::SeqCst), 40 + 63);
}

/// The last generated token is not known yet when the next step is launched.
#[test]
fn penalties_keep_step() {
    let (handle, probe) = gated(Fake::new(40), EngineConfig::default());
    let penalised = || {
        let mut request = request(1, 20, 30);
        request.sampling.frequency_penalty = 0.3;
        request
    };
    assert_eq!(tokens(&handle, penalised()), expected(&penalised()));
    assert_eq!(probe.steps_ahead.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[test]
fn a_profile_has_prompts_and_decodes_apart_and_no_sleep() {
    let config = EngineConfig { prefill_chunk: Some(16), ..EngineConfig::default() };
    for fake in [Fake::new(40), Fake::new(40).in_step()] {
        let handle = Handle::spawn(fake, config).unwrap();
        assert_eq!(handle.take_profile().unwrap(), Profile::default(), "none was started");
        let unseen = tokens(&handle, request(5, 40, 8));
        let started = Instant::now();
        handle.start_profile().unwrap();
        std::thread::sleep(Duration::from_millis(60));
        let seen = tokens(&handle, request(5, 40, 8));
        let Profile { prefill, decode } = handle.take_profile().unwrap();
        let lasted = started.elapsed();
        assert_eq!(seen, unseen, "a profile changes no token");
        // Of 40 tokens 32 are cached; the prompt's step gives the first of eight tokens.
        assert_eq!((prefill.steps, prefill.tokens), (1, 8));
        assert_eq!((decode.steps, decode.tokens), (7, 7));
        for profile in [prefill, decode] {
            let [matmul, others @ ..] = profile.ops;
            assert_eq!(matmul.runs, profile.steps);
            assert_eq!(matmul.total, Duration::from_micros(profile.tokens));
            assert_eq!(others, [OpTime::default(); 4]);
            assert_eq!(profile.host(), profile.busy.saturating_sub(matmul.total));
        }
        let busy = prefill.busy + decode.busy;
        assert!(busy > Duration::ZERO && busy + Duration::from_millis(30) < lasted, "{busy:?} of {lasted:?}");
        assert_eq!(handle.take_profile().unwrap(), Profile::default(), "it has ended");
    }
}

#[test]
fn rates_are_tokens_over_their_seconds() {
    let config = EngineConfig { prefill_chunk: Some(16), ..EngineConfig::default() };
    let handle = spawn(40, config);
    for (computed, asked) in [(40, request(5, 40, 8)), (8, request(5, 40, 8)), (20, request(6, 20, 1))] {
        let tokens = asked.max_tokens;
        let last = handle.submit(asked).unwrap().into_iter().last().unwrap();
        let Ok(Event::Done(Done { timings, usage, .. })) = last else { panic!("{last:?}") };
        assert_eq!((usage.prompt_tokens - usage.cached_tokens, usage.completion_tokens), (computed, tokens));
        let Timings { queued_s, first_token_s, prefill_s, decode_s, .. } = timings;
        assert!(queued_s >= 0.0 && prefill_s > 0.0 && (first_token_s - queued_s - prefill_s).abs() < 1e-6);
        assert_eq!(timings.prefill_tokens_per_s, computed as f64 / prefill_s);
        let decodes = (tokens - 1) as f64;
        assert_eq!(timings.decode_tokens_per_s, if tokens > 1 { decodes / decode_s } else { 0.0 });
        assert_eq!(decode_s > 0.0, tokens > 1, "one token takes no time after itself");
    }
}
