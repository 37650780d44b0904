//! Options of requests: deadlines, salts, ids.

use std::time::Instant;

use super::text::{spelled, with_text, words};
use super::*;

fn gated(config: EngineConfig) -> (Handle, Arc<fake::Probe>) {
    let fake = Fake::new(100);
    let probe = Arc::clone(&fake.probe);
    (Handle::spawn(fake, config).unwrap(), probe)
}

/// It waits for the only sequence slot, and never starts.
#[test]
fn a_deadline_ends_a_request_in_the_queue() {
    let config = EngineConfig { sequences_max: 1, event_buffer: 1000, ..EngineConfig::default() };
    let (handle, probe) = gated(config);
    probe.close_gate();
    let running = handle.submit(request(0, 5, 50)).unwrap();
    probe.wait_for_a_step();
    let late = TokenRequest { deadline: Some(Instant::now()), ..request(1, 5, 5) };
    let late = handle.submit(late).unwrap();
    let early = TokenRequest { deadline: Some(Instant::now() + 2 * PATIENCE), ..request(2, 5, 5) };
    let early = handle.submit(early).unwrap();
    probe.open_gate();
    let (tokens, end) = read(late);
    assert_eq!((tokens.len(), end.unwrap().0), (0, FinishReason::Deadline));
    assert_eq!(read(running).0, expected(&request(0, 5, 50)));
    assert_eq!(read(early).0, expected(&request(2, 5, 5)));
    assert_eq!(probe.started.lock().unwrap().len(), 2, "the late one never started");
    assert_eq!(settled(&handle).finished, 3);
}

/// Its prompt is computed in chunks; the first is in flight when the deadline passes.
#[test]
fn a_deadline_ends_a_prompt_under_way() {
    let (handle, probe) = gated(EngineConfig { prefill_chunk: Some(16), ..EngineConfig::default() });
    probe.close_gate();
    let deadline = Instant::now() + Duration::from_millis(20);
    let long = TokenRequest { deadline: Some(deadline), ..request(1, 300, 5) };
    let long = handle.submit(long).unwrap();
    probe.wait_for_a_step();
    std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
    probe.open_gate();
    let (tokens, end) = read(long);
    assert_eq!((tokens.len(), end.unwrap().0), (0, FinishReason::Deadline));
    assert_eq!(probe.tokens_all.load(std::sync::atomic::Ordering::SeqCst), 16);
    settled(&handle);
}

/// The reader sleeps, so the engine does, too. The generated text is kept, including the part held back.
#[test]
fn a_deadline_wakes_an_engine_that_sleeps() {
    let (handle, _probe) = gated(EngineConfig { event_buffer: 4, ..EngineConfig::default() });
    let all = expected(&with_text(&words(), &[]));
    let stop = format!("{}#", spelled(&all[3..4]));
    let asked = Instant::now();
    let deadline = Some(asked + Duration::from_millis(300));
    let sleeper = handle.submit(TokenRequest { deadline, ..with_text(&words(), &[&stop]) }).unwrap();
    while handle.stats().finished == 0 {
        assert!(asked.elapsed() < Duration::from_millis(900), "it sleeps on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let answer = sleeper.text().unwrap();
    assert_eq!((answer.finish, answer.text), (FinishReason::Deadline, spelled(&all[..4])));
    assert_eq!(answer.tokens, all[..4]);
    settled(&handle);
}

#[test]
fn salts_share_no_page() {
    let handle = spawn(100, EngineConfig::default());
    let cached = |cache_salt: Option<[u8; 32]>| {
        let asked = TokenRequest { cache_salt, ..request(4, 100, 5) };
        let (tokens, end) = read(handle.submit(asked).unwrap());
        assert_eq!(tokens, expected(&request(4, 100, 5)));
        settled(&handle);
        end.unwrap().1.cached_tokens
    };
    let (one, other) = (Some([1; 32]), Some([2; 32]));
    // A zero salt is a salt.
    for salt in [None, one, other, Some([0; 32])] {
        assert_eq!(cached(salt), 0, "{salt:?}");
    }
    for salt in [None, one, other, Some([0; 32])] {
        assert_eq!(cached(salt), 96, "{salt:?}");
    }
}

#[test]
fn a_number_comes_back_and_texts_are_not_printed() {
    let handle = spawn(40, EngineConfig::default());
    let mut asked = request(1, 30, 2);
    asked.id = Some(77);
    asked.stop_ids = vec![TokenId(59)];
    assert_eq!(format!("{asked:?}"), "TokenRequest { prompt_tokens: 30, max_tokens: 2, id: Some(77), .. }");
    let generation = handle.submit(asked).unwrap();
    assert_eq!(generation.id(), Some(77));
    assert!(format!("{generation:?}").starts_with("Generation { id: Some(77), usage: Usage {"));
    assert_eq!(handle.submit(request(1, 30, 2)).unwrap().id(), None);
    assert!(format!("{handle:?}").len() < 80, "{handle:?}");
}
