//! Readers: timeouts, cancellation from other threads, and usage before the end.

use std::time::Instant;

use super::text::{spelled, with_text, words};
use super::*;
use crate::engine::event::Event;

/// An engine held at a closed gate with one request. Its prompt is as long as a step.
fn held() -> (Handle, Arc<fake::Probe>, Generation) {
    let fake = Fake::new(100);
    let probe = Arc::clone(&fake.probe);
    let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
    probe.close_gate();
    let generation = handle.submit(request(1, 300, 40)).unwrap();
    probe.wait_for_a_step();
    (handle, probe, generation)
}

/// The step does not end before the reader returns, so only the reader's own timeout ends its wait.
#[test]
fn a_reader_comes_back_when_its_time_is_over() {
    let (handle, probe, mut generation) = held();
    let asked = Instant::now();
    assert_eq!(generation.recv_timeout(Duration::from_millis(50)), Received::Nothing);
    assert!(asked.elapsed() >= Duration::from_millis(50), "it waits that long");
    assert_eq!(generation.recv_timeout(Duration::ZERO), Received::Nothing);
    drop(generation);
    probe.open_gate();
    assert_eq!(settled(&handle).cancelled, 1);
}

#[test]
fn a_reader_with_time_gets_every_event_and_then_the_end() {
    let (_handle, probe, mut generation) = held();
    probe.open_gate();
    let mut ids = Vec::new();
    loop {
        match generation.recv_timeout(Duration::MAX) {
            Received::Event(Ok(Event::Token(token))) => ids.push(token.id),
            Received::Event(Ok(Event::Done(done))) => assert_eq!(done.tokens, ids),
            other => break assert_eq!(other, Received::Ended),
        }
    }
    assert_eq!(ids, expected(&request(1, 300, 40)));
    assert_eq!((generation.recv(), generation.recv_timeout(Duration::ZERO)), (None, Received::Ended));
}

#[test]
fn a_canceller_ends_a_wait_on_another_thread_and_keeps_nothing_alive() {
    let (handle, probe, generation) = held();
    let canceller = generation.canceller();
    let reader = std::thread::spawn(move || read(generation));
    canceller.clone().cancel();
    probe.open_gate();
    let (tokens, end) = reader.join().unwrap();
    // The step in flight has given its token.
    assert_eq!((tokens.len(), end.unwrap().0), (1, FinishReason::Cancelled));
    assert_eq!(settled(&handle).cancelled, 1);
    canceller.cancel();
}

#[test]
fn what_has_been_used_is_known_before_the_end_and_after_a_failure() {
    let (handle, probe, mut generation) = held();
    let usage = |prompt_tokens, cached_tokens, completion_tokens| Usage {
        prompt_tokens,
        cached_tokens,
        completion_tokens,
    };
    assert_eq!(generation.usage(), usage(300, 0, 0));
    probe.open_gate();
    let last = (&mut generation).into_iter().last();
    assert!(matches!(last, Some(Ok(Event::Done(done))) if done.usage == usage(300, 0, 40)));
    let mut again = handle.submit(request(1, 300, 40)).unwrap();
    assert!(again.recv().is_some_and(|event| event.is_ok()));
    let so_far = again.usage();
    assert!(so_far.cached_tokens == 288 && so_far.completion_tokens >= 1, "{so_far:?}");
    let mut ill = handle.submit(with_token(POISON)).unwrap();
    assert!(matches!(ill.recv(), Some(Err(GenerationError::Sampling(_)))));
    assert_eq!(ill.usage(), usage(30, 16, 0));
}

/// The usual event loop loses no text, wherever the answer is cut.
#[test]
fn nothing_that_was_held_back_is_lost_at_any_length() {
    let handle = spawn(64, EngineConfig::default());
    let all = expected(&with_text(&words(), &[]));
    let mut held = 0;
    for max_tokens in 1..=all.len() {
        let whole = spelled(&all[..max_tokens]);
        // Each of these begins with the end of some cut answer.
        let stops: Vec<String> = all.iter().map(|&id| format!("{}#", spelled(&[id]))).collect();
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let asked = || TokenRequest { max_tokens, ..with_text(&words(), &stops) };
        let mut shown = String::new();
        for event in handle.submit(asked()).unwrap() {
            shown.push_str(event.unwrap().text());
        }
        assert_eq!(shown, whole, "{max_tokens} tokens");
        let answer = handle.submit(asked()).unwrap().text().unwrap();
        assert_eq!((answer.text, &*answer.tokens), (whole, &all[..max_tokens]));
        assert_eq!((answer.finish, answer.stop), (FinishReason::Length, None));
        let last = handle.submit(asked()).unwrap().into_iter().last();
        held += usize::from(last.is_some_and(|event| !event.unwrap().text().is_empty()));
    }
    assert_eq!(held, all.len(), "the end of each was held back");
}

#[test]
fn the_stop_string_that_came_is_named() {
    let handle = spawn(64, EngineConfig::default());
    let all = expected(&with_text(&words(), &[]));
    let stop = spelled(&all[9..11]);
    let answer = handle.submit(with_text(&words(), &["never", &stop])).unwrap().text().unwrap();
    assert_eq!((answer.finish, answer.stop), (FinishReason::Stop, Some(stop)));
    assert_eq!((answer.text, &*answer.tokens), (spelled(&all[..9]), &all[..11]));
}

#[test]
fn the_rest_of_an_answer_is_what_has_not_been_read() {
    let handle = spawn(64, EngineConfig::default());
    let all = expected(&with_text(&words(), &[]));
    let mut generation = handle.submit(with_text(&words(), &[])).unwrap();
    let begun = (&mut generation).into_iter().take(3).map(|event| event.unwrap().text().to_owned());
    let begun: String = begun.collect();
    let rest = generation.text().unwrap();
    assert_eq!((begun + &rest.text, rest.tokens), (spelled(&all), all));
    let mut ended = handle.submit(request(1, 10, 2)).unwrap();
    assert_eq!((&mut ended).into_iter().count(), 3);
    assert_eq!(ended.text(), Err(GenerationError::Stopped));
}
