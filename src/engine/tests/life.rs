//! The end of an engine: by a drain, a drop, or the loss of its device.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::*;
use crate::kind::ErrorKind;

fn spawned(config: EngineConfig) -> (Handle, Arc<fake::Probe>) {
    let fake = Fake::new(100);
    let probe = Arc::clone(&fake.probe);
    (Handle::spawn(fake, config).unwrap(), probe)
}

fn causes(error: &dyn std::error::Error) -> usize {
    std::iter::successors(error.source(), |cause| cause.source()).count()
}

#[test]
fn a_lost_device_ends_the_engine_and_every_request_within_the_step() {
    let (handle, probe) = spawned(EngineConfig { sequences_max: 2, ..EngineConfig::default() });
    assert_eq!(handle.state(), EngineState::Running);
    probe.close_gate();
    let crowd: Vec<_> = (0..5).map(|seed| handle.submit(request(seed, 20, 50)).unwrap()).collect();
    probe.wait_for_a_step();
    let scored = std::thread::scope(|scope| {
        let score = scope.spawn(|| handle.score(&request(9, 20, 1).prompt, 0));
        probe.lost.store(true, Ordering::SeqCst);
        probe.open_gate();
        score.join().unwrap()
    });
    let error = scored.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::DeviceLost, false), "{error}");
    for generation in crowd {
        let (found, end) = read(generation);
        let error = end.unwrap_err();
        assert!(
            found.is_empty() && matches!(error, GenerationError::Dead(EngineFailure::DeviceLost(_))),
            "{error}"
        );
        assert_eq!(error.kind(), ErrorKind::DeviceLost);
        assert!(error.to_string().contains("IT_FELL_OFF") && causes(&error) > 0, "{error}");
    }
    let EngineState::Dead(failure) = handle.state() else { panic!("{:?}", handle.state()) };
    let refused = handle.submit(request(1, 5, 5)).unwrap_err();
    assert_eq!((refused.kind(), &refused), (ErrorKind::DeviceLost, &SubmitError::Dead(failure)));
    assert!(matches!(handle.check_integrity(), Err(EngineError::Dead(_))));
    // At most one more step: the sequences of a failed step run alone, but none after the first.
    assert!(probe.steps.load(Ordering::SeqCst) <= 1, "a lost device was given more work");
    probe.wait_until_dropped();
    let stats = handle.stats();
    assert_eq!((stats.admitted, stats.failed, stats.memory.weights.bytes), (5, 5, 0));
}

#[test]
fn a_panic_of_the_engines_thread_shows_in_its_state() {
    let (handle, probe) = spawned(EngineConfig::default());
    probe.breaks_down.store(true, Ordering::SeqCst);
    let saved = handle.save(&request(3, 20, 1).prompt, std::path::Path::new("never written"));
    assert!(matches!(saved, Err(EngineError::Dead(EngineFailure::Panicked))), "{saved:?}");
    assert_eq!(handle.state(), EngineState::Dead(EngineFailure::Panicked));
    assert_eq!(handle.submit(request(1, 5, 5)).unwrap_err().kind(), ErrorKind::Stopped);
    assert_eq!(handle.drain(Instant::now()).aborted, 0, "there is nothing to wait for");
}

#[test]
fn a_drain_lets_all_end_that_ends_in_time() {
    let (handle, probe) = spawned(EngineConfig { sequences_max: 2, ..EngineConfig::default() });
    let crowd: Vec<_> = (0..6).map(|seed| handle.submit(request(seed, 20, 30)).unwrap()).collect();
    let drained = handle.drain(Instant::now() + PATIENCE);
    assert_eq!((drained.aborted, handle.state()), (0, EngineState::Stopped));
    assert!(probe.dropped.load(Ordering::SeqCst), "the memory is given back");
    for (seed, generation) in (0..).zip(crowd) {
        assert_eq!(read(generation).0, expected(&request(seed, 20, 30)));
    }
    assert_eq!(handle.submit(request(1, 5, 5)).unwrap_err(), SubmitError::Stopped);
}

#[test]
fn a_drain_cuts_off_what_does_not() {
    let (handle, probe) = spawned(EngineConfig { event_buffer: 5, sequences_max: 1, ..Default::default() });
    let asleep = handle.submit(request(0, 10, 500)).unwrap();
    let waiting = handle.submit(request(1, 10, 10)).unwrap();
    eventually(&handle, "the buffer is full", |stats| stats.decode_tokens >= 5);
    probe.close_gate();
    let drained = std::thread::scope(|scope| {
        let draining = scope.spawn(|| handle.drain(Instant::now() + Duration::from_millis(20)));
        while handle.state() == EngineState::Running {
            std::thread::yield_now();
        }
        assert_eq!(handle.submit(request(2, 5, 5)).unwrap_err(), SubmitError::Stopped, "it admits no more");
        probe.open_gate();
        draining.join().unwrap()
    });
    let (found, end) = read(asleep);
    assert_eq!((found.len(), end.unwrap().0), (5, FinishReason::Cancelled), "it keeps what it has");
    let waited = read(waiting).1.unwrap().0;
    assert_eq!(drained.aborted, 1 + usize::from(waited == FinishReason::Cancelled));
    assert_eq!(handle.stats().failed, 0);
}

#[test]
fn a_drop_waits_for_no_step() {
    let (handle, probe) = spawned(EngineConfig::default());
    probe.close_gate();
    let running = handle.submit(request(1, 20, 50)).unwrap();
    probe.wait_for_a_step();
    drop(handle);
    assert!(!probe.dropped.load(Ordering::SeqCst), "the step is still held");
    probe.open_gate();
    assert_eq!(read(running).1.map(drop), Err(GenerationError::Stopped));
    probe.wait_until_dropped();
}

#[test]
fn a_step_that_hangs_shows_in_the_statistics() {
    let (handle, probe) = spawned(EngineConfig::default());
    assert_eq!(handle.stats().step_running_s, 0.0);
    probe.close_gate();
    let generation = handle.submit(request(0, 20, 5)).unwrap();
    probe.wait_for_a_step();
    let early = handle.stats().step_running_s;
    eventually(&handle, "the step's time goes on", |stats| stats.step_running_s > early);
    probe.open_gate();
    assert!(read(generation).1.is_ok());
    eventually(&handle, "no step is at work", |stats| stats.step_running_s == 0.0);
}

#[test]
fn as_many_sequences_run_at_once_as_a_step_has_outputs() {
    for (outputs_max, sequences_max, expected) in [(200, 200, 200), (256, 64, 64), (100, 200, 100)] {
        let fake = Fake::new(400).limits(600, outputs_max);
        let probe = Arc::clone(&fake.probe);
        let handle = Handle::spawn(fake, EngineConfig { sequences_max, ..Default::default() }).unwrap();
        assert_eq!(handle.sequences_max(), expected);
        probe.close_gate();
        let crowd: Vec<_> = (0..201).map(|seed| handle.submit(request(seed, 1, 3)).unwrap()).collect();
        probe.wait_for_a_step();
        probe.open_gate();
        crowd.into_iter().for_each(|generation| assert_eq!(read(generation).0.len(), 3));
        assert_eq!(probe.tokens_most.load(Ordering::SeqCst), expected);
    }
}
