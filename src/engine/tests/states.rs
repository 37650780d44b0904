//! Recurrent states: with any chunks, few slots, shared prefixes and failing steps, each sequence gets the
//! tokens of a solo run.

use super::*;
use crate::kv::{KvError, snapshot::SnapshotError};

fn stateful(pages: usize, slots: usize, config: EngineConfig) -> Handle {
    Handle::spawn(Fake::new(pages).stateful(slots), config).unwrap()
}

#[test]
fn many_with_few_slots_or_few_pages_get_the_tokens_of_a_solo_run() {
    for (pages, slots, preempted) in [(400, 2, true), (400, 5, true), (400, 40, false), (24, 40, true)] {
        let handle = stateful(pages, slots, EngineConfig::default());
        let submit = |seed| handle.submit(request(seed, 20 + 3 * seed, 30)).unwrap();
        let generations: Vec<_> = (0..12).map(submit).collect();
        for (seed, generation) in (0..).zip(generations) {
            let found = read(generation).0;
            assert_eq!(found, expected(&request(seed, 20 + 3 * seed, 30)), "{seed} of {slots} slots");
        }
        let stats = settled(&handle);
        assert_eq!(stats.preemptions > 0, preempted, "{slots} slots, {pages} pages: {stats:?}");
    }
}

#[test]
fn sleepers_give_up_their_slots() {
    let config = EngineConfig { event_buffer: 4, ..EngineConfig::default() };
    let handle = stateful(400, 3, config);
    let sleepers: Vec<_> = (0..3).map(|seed| handle.submit(request(seed, 30, 50)).unwrap()).collect();
    assert_eq!(tokens(&handle, request(9, 100, 60)), expected(&request(9, 100, 60)));
    for (seed, sleeper) in (0..).zip(sleepers) {
        assert_eq!(read(sleeper).0, expected(&request(seed, 30, 50)));
    }
    settled(&handle);
}

#[test]
fn chunks_and_prefixes_change_nothing_and_a_conversation_goes_on_from_its_answer() {
    for prefill_chunk in [Some(1), Some(7), Some(256), None] {
        let config = EngineConfig { prefill_chunk, ..EngineConfig::default() };
        let handle = stateful(60, 8, config);
        let asked = || request(3, 200, 40);
        let answer = tokens(&handle, asked());
        assert_eq!(answer, expected(&asked()));
        let (again, end) = read(handle.submit(asked()).unwrap());
        assert_eq!((&again, end.unwrap().1.cached_tokens), (&answer, 192));
        // The last state covers 239 tokens, of which 224 fill pages.
        let mut next = request(3, 200, 20);
        next.prompt.extend(answer.iter().copied().chain((0..9).map(TokenId)));
        let want = expected(&next);
        let (found, end) = read(handle.submit(next).unwrap());
        assert_eq!((found, end.unwrap().1.cached_tokens), (want, 224));
        // A prompt that leaves the conversation early continues from a kept state, if there is one.
        let mut other = request(3, 150, 10);
        other.prompt.push(TokenId(59));
        let want = expected(&other);
        assert_eq!(tokens(&handle, other), want);
        settled(&handle);
    }
    let apart = EngineConfig { share_prefixes: false, ..EngineConfig::default() };
    let handle = stateful(60, 8, apart);
    for _ in 0..2 {
        assert_eq!(tokens(&handle, request(3, 200, 40)), expected(&request(3, 200, 40)));
    }
    assert_eq!(settled(&handle).cached_tokens, 0);
}

#[test]
fn a_step_that_fails_runs_again_from_the_states_that_it_had() {
    let fake = Fake::new(100).stateful(20);
    let probe = Arc::clone(&fake.probe);
    let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
    for bad in [FAILING, PANICKING, POISON] {
        let running: Vec<_> =
            (1..4).map(|seed| (seed, handle.submit(request(seed, 20, 60)).unwrap())).collect();
        eventually(&handle, "some run", |stats| stats.decode_tokens > 3);
        probe.close_gate();
        let ill = handle.submit(with_token(bad)).unwrap();
        probe.open_gate();
        assert!(read(ill).1.is_err());
        for (seed, generation) in running {
            assert_eq!(read(generation).0, expected(&request(seed, 20, 60)), "beside {bad:?}");
        }
    }
    // Neither pages nor a state are found after rows that failed.
    let cached = settled(&handle).cached_tokens;
    assert!(read(handle.submit(with_token(POISON)).unwrap()).1.is_err());
    assert_eq!(settled(&handle).cached_tokens, cached);
}

#[test]
fn cancelled_ones_give_back_their_slots() {
    let handle = stateful(60, 6, EngineConfig { event_buffer: 4, ..EngineConfig::default() });
    for round in 0..40 {
        let steady = handle.submit(request(round, 30, 8)).unwrap();
        let others: Vec<_> =
            (0..6).map(|other| handle.submit(request(round + other, 7 * other + 1, 60)).unwrap()).collect();
        for (events, mut other) in others.into_iter().enumerate() {
            assert!((&mut other).into_iter().take(events).all(|event| event.is_ok()));
        }
        assert_eq!(read(steady).0, expected(&request(round, 30, 8)));
    }
    settled(&handle);
    assert_eq!(tokens(&handle, request(7, 100, 30)), expected(&request(7, 100, 30)));
}

#[test]
fn a_saved_prompt_brings_its_state_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    for (len, found) in [(100, 96), (96, 96), (17, 16), (9, 0)] {
        let asked = || request(8, len, 20);
        let mut next = asked();
        next.prompt.extend((0..5).map(TokenId));
        let want = expected(&next);
        let handle = stateful(60, 4, EngineConfig::default());
        let running = handle.submit(request(1, 30, 60)).unwrap();
        handle.save(&asked().prompt, &path).unwrap();
        assert_eq!(read(running).0, expected(&request(1, 30, 60)));
        let handle = stateful(60, 4, EngineConfig::default());
        for _ in 0..2 {
            assert_eq!(handle.restore(&path).unwrap(), len as usize);
            settled(&handle);
        }
        let (answer, end) = read(handle.submit(next).unwrap());
        assert_eq!((answer, end.unwrap().1.cached_tokens), (want, found), "{len} tokens");
        let without = spawn(60, EngineConfig::default());
        let restored = without.restore(&path);
        if found == 0 {
            assert_eq!(restored.unwrap(), len as usize, "pages alone are all there is");
        } else {
            let error = restored.unwrap_err();
            assert!(
                matches!(error, EngineError::Restore(RestoreError::State { expected: 0, found: 16 })),
                "{error}"
            );
        }
    }
    // A file without a state, and a prompt with a last whole page that was passed in the middle of a step.
    spawn(60, EngineConfig::default()).save(&request(8, 40, 1).prompt, &path).unwrap();
    let error = stateful(60, 4, EngineConfig::default()).restore(&path).unwrap_err();
    assert!(matches!(error, EngineError::Restore(RestoreError::State { expected: 16, found: 0 })), "{error}");
    let apart = EngineConfig { share_prefixes: false, ..EngineConfig::default() };
    let error = stateful(60, 4, apart).save(&request(8, 40, 1).prompt, &path).unwrap_err();
    assert!(matches!(error, EngineError::Snapshot(SnapshotError::NoState)), "{error}");
}

#[test]
fn scores_are_those_without_a_state() {
    let handle = stateful(60, 4, EngineConfig::default());
    let running = handle.submit(request(1, 30, 40)).unwrap();
    let ids = request(5, 90, 1).prompt;
    assert_eq!(handle.score(&ids, 2).unwrap(), spawn(60, EngineConfig::default()).score(&ids, 2).unwrap());
    assert_eq!(read(running).0, expected(&request(1, 30, 40)));
    settled(&handle);
    let refused = Handle::spawn(Fake::new(60).stateful(1), EngineConfig::default());
    assert!(matches!(refused, Err(EngineError::Kv(KvError::StateSlots { found: 1 }))));
}
