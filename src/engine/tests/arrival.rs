//! Order of arrival: of starts, of preemption, and of running ahead.

use std::sync::atomic::Ordering;

use super::*;
use crate::engine::generation::Channel;
use crate::engine::request_queue::{Job, Order, RequestQueue};
use crate::engine::sequence::{Goal, Sequence};

/// An engine with steps that a test can observe and hold.
fn gated(fake: Fake, config: EngineConfig) -> (Handle, Arc<fake::Probe>) {
    let probe = Arc::clone(&fake.probe);
    (Handle::spawn(fake, config).unwrap(), probe)
}

/// The first token of a request, which identifies each of the requests below.
fn first(seed: u32) -> TokenId {
    request(seed, 1, 1).prompt[0]
}

/// First tokens of the sequences that were computed from their start, in that order.
fn started(probe: &fake::Probe) -> Vec<TokenId> {
    probe.started.lock().unwrap().iter().map(|&(_, token)| token).collect()
}

/// Submits requests while the step of the first one is held, so that all are queued before the second step.
fn submit_all(handle: &Handle, probe: &fake::Probe, requests: Vec<TokenRequest>) -> Vec<Generation> {
    let mut requests = requests.into_iter();
    probe.close_gate();
    let mut generations = vec![handle.submit(requests.next().unwrap()).unwrap()];
    probe.wait_for_a_step();
    generations.extend(requests.map(|request| handle.submit(request).unwrap()));
    probe.open_gate();
    generations
}

/// Without prefix sharing, a preempted sequence starts anew.
fn config(sequences_max: usize) -> EngineConfig {
    EngineConfig { sequences_max, share_prefixes: false, event_buffer: 1000, ..EngineConfig::default() }
}

#[test]
fn who_comes_first_is_served_first_when_seats_are_full() {
    // Short and long ones alternate: none passes another because it is shorter.
    let lengths = [40, 3, 90, 1, 20, 70, 5, 33];
    for sequences_max in [1, 2, 3] {
        let (handle, probe) = gated(Fake::new(100), config(sequences_max));
        let requests = (0..8).zip(lengths).map(|(seed, len)| request(seed, len, 4 + len as usize / 2));
        let generations = submit_all(&handle, &probe, requests.collect());
        generations.into_iter().for_each(|generation| assert!(read(generation).1.is_ok()));
        let expected: Vec<TokenId> = (0..8).map(first).collect();
        assert_eq!(started(&probe), expected, "{sequences_max} slots");
        settled(&handle);
    }
}

/// Ties go by arrival, and a running sequence goes on.
#[test]
fn who_has_a_higher_priority_starts_first() {
    let (handle, probe) = gated(Fake::new(100), config(1));
    let priorities = [0, 0, 5, -1, i8::MAX, 5, i8::MIN, 0];
    let requests = (0..8).zip(priorities);
    let requests = requests.map(|(seed, priority)| TokenRequest { priority, ..request(seed, 20, 6) });
    let generations = submit_all(&handle, &probe, requests.collect());
    for (seed, generation) in (0..8).zip(generations) {
        assert_eq!(read(generation).0, expected(&request(seed, 20, 6)));
    }
    assert_eq!(started(&probe), [0, 4, 2, 5, 1, 7, 3, 6].map(first));
    settled(&handle);
}

/// Each grows to nine pages of 16, so one is preempted: the one of lower priority, although it came first.
#[test]
fn who_has_a_lower_priority_gives_up_its_pages_first() {
    let (handle, probe) = gated(Fake::new(16), config(8));
    let requests = [0, 1].map(|seed| TokenRequest { priority: seed as i8, ..request(seed, 30, 110) });
    let generations = submit_all(&handle, &probe, requests.into());
    for (seed, generation) in (0..2).zip(generations) {
        assert_eq!(read(generation).0, expected(&request(seed, 30, 110)));
    }
    assert_eq!(started(&probe), [0, 1, 0].map(first));
    settled(&handle);
}

#[test]
fn who_comes_first_is_served_first_when_prompts_share_a_chunk() {
    let (handle, probe) = gated(Fake::new(100), EngineConfig { prefill_chunk: Some(16), ..config(8) });
    let generations = submit_all(&handle, &probe, (0..8).map(|seed| request(seed, 40, 5)).collect());
    generations.into_iter().for_each(|generation| assert!(read(generation).1.is_ok()));
    assert_eq!(started(&probe), (0..8).map(first).collect::<Vec<_>>());
}

#[test]
fn who_came_last_gives_up_its_pages_first() {
    // Each grows to nine pages of 16.
    let (handle, probe) = gated(Fake::new(16), config(8));
    let generations = submit_all(&handle, &probe, (0..4).map(|seed| request(seed, 30, 110)).collect());
    for (seed, generation) in (0..4).zip(generations) {
        assert_eq!(read(generation).0, expected(&request(seed, 30, 110)), "request {seed}");
    }
    let started = started(&probe);
    let again: Vec<TokenId> = started[4..].to_vec();
    assert_eq!(started[..4], [0, 1, 2, 3].map(first));
    assert!(!again.contains(&first(0)), "the oldest never loses its pages: {started:?}");
    assert!(again.contains(&first(3)), "the youngest does: {started:?}");
    // The first to lose its pages is the first to start again.
    let position = |seed| again.iter().position(|&token| token == first(seed)).unwrap_or(usize::MAX);
    assert!(position(3) < position(2) && position(2) < position(1), "{started:?}");
    assert!(handle.stats().preemptions >= 2);
    settled(&handle);
}

/// The younger one needs a fifth page while the older one has the other five: it waits, and takes none.
#[test]
fn a_younger_one_waits_for_the_pages_of_an_older_one() {
    let (handle, probe) = gated(Fake::new(9), config(8));
    let both = vec![request(0, 40, 40), request(1, 30, 100)];
    for (generation, asked) in submit_all(&handle, &probe, both).into_iter().zip([(0, 40, 40), (1, 30, 100)])
    {
        let (seed, len, max_tokens) = asked;
        assert_eq!(read(generation).0, expected(&request(seed, len, max_tokens)));
    }
    assert_eq!(started(&probe), [0, 1].map(first), "nobody starts again");
    assert_eq!(settled(&handle).preemptions, 0);
}

/// A paused sequence is preempted before a running one, however old it is.
#[test]
fn a_sleeper_gives_up_its_pages_before_a_younger_one_that_works() {
    let config = EngineConfig { event_buffer: 60, ..config(8) };
    let (handle, probe) = gated(Fake::new(13), config);
    let sleeper = handle.submit(request(0, 30, 100)).unwrap();
    eventually(&handle, "the sleeper's buffer is full", |stats| stats.decode_tokens == 60);
    let both = [1, 2].map(|seed| request(seed, 30, 50)).into();
    let mut others = submit_all(&handle, &probe, both).into_iter();
    let (older, younger) = (others.next().unwrap(), others.next().unwrap());
    let (older, younger) =
        (std::thread::spawn(move || read(older)), std::thread::spawn(move || read(younger)));
    assert_eq!(older.join().unwrap().0, expected(&request(1, 30, 50)));
    assert_eq!(younger.join().unwrap().0, expected(&request(2, 30, 50)));
    assert_eq!(started(&probe), [0, 1, 2].map(first), "nobody who works starts again");
    assert_eq!(handle.stats().preemptions, 1, "the sleeper lost its pages");
    assert_eq!(read(sleeper).0, expected(&request(0, 30, 100)));
    assert_eq!(started(&probe), [0, 1, 2, 0].map(first));
    settled(&handle);
}

#[test]
fn jobs_are_done_in_order_of_arrival() {
    let queue = RequestQueue::new(&EngineConfig::default());
    for first in 0..5 {
        let (reply, _) = mpsc::sync_channel(1);
        let goal = Goal::Score { first, top: 0, scores: Scores::default(), cancelled: None, reply };
        queue.put_job(Job::Compute(Sequence::job(Vec::new(), None, goal))).unwrap();
    }
    let order = std::iter::from_fn(|| queue.take_job()).map(|job| match job {
        Job::Compute(Sequence { goal: Goal::Score { first, .. }, .. }) => first,
        other => panic!("{other:?}"),
    });
    assert_eq!(order.collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

/// A wake-up that comes while the engine is busy is not lost: the engine does not fall asleep after it.
#[test]
fn whoever_wants_a_look_is_seen_at_the_next_one() {
    let queue = Arc::new(RequestQueue::new(&EngineConfig::default()));
    let seen = |what: &str| {
        assert!(!queue.is_empty(), "{what}");
        // Returns at once; a lost wake-up takes a second.
        let asked = std::time::Instant::now();
        queue.wake().wait(None);
        assert!(asked.elapsed() < Duration::from_millis(900), "{what}");
        drop(queue.take());
        assert!(queue.is_empty(), "{what}, after the look");
    };
    assert!(queue.is_empty());
    queue.wake().set();
    seen("a wake-up");
    let channel = Channel::new(2, Arc::clone(queue.wake()));
    let mut generation = Generation::new(Arc::clone(&channel), None);
    (0..2).for_each(|id| channel.token(Token { id: TokenId(id), text: String::new(), logprobs: None }));
    assert!(queue.is_empty(), "an event is no call");
    assert!(generation.recv().is_some());
    seen("room in a buffer that was full");
    assert!(generation.recv().is_some());
    assert!(queue.is_empty(), "there was room already");
    generation.cancel();
    seen("a cancellation");
    drop(generation);
    seen("a reader that goes");
    let (reply, _) = mpsc::sync_channel(1);
    queue.put_job(Job::Check { reply }).unwrap();
    assert!(!queue.is_empty());
    assert!(queue.take_job().is_some());
    seen("a job");
    queue.order(Order::Stop);
    assert!(!queue.is_empty() && queue.take().order == Order::Stop);
}

/// Waiting requests cannot get a sequence slot, so the running ones run ahead.
#[test]
fn full_seats_run_ahead_while_others_wait() {
    for sequences_max in [1, 3] {
        let (handle, probe) = gated(Fake::new(100), config(sequences_max));
        let seeds = 0..2 * sequences_max as u32;
        let requests = seeds.clone().map(|seed| request(seed, 10, 64)).collect();
        for (seed, generation) in seeds.zip(submit_all(&handle, &probe, requests)) {
            assert_eq!(read(generation).0, expected(&request(seed, 10, 64)));
        }
        let steps = probe.steps_ahead.load(Ordering::SeqCst);
        assert!(steps >= 100, "two rounds of 64 tokens in {steps} steps ahead");
        settled(&handle);
    }
}

/// Sequences that could run ahead do not keep a prompt from its part of a chunk.
#[test]
fn nobody_runs_ahead_of_a_prompt_that_has_a_seat_to_come() {
    let (handle, probe) = gated(Fake::new(100), EngineConfig { prefill_chunk: Some(16), ..config(8) });
    let generations = submit_all(&handle, &probe, (0..4).map(|seed| request(seed, 16, 200)).collect());
    for (seed, generation) in (0..4).zip(generations) {
        assert_eq!(read(generation).0, expected(&request(seed, 16, 200)));
    }
    let steps: Vec<usize> = probe.started.lock().unwrap().iter().map(|&(step, _)| step).collect();
    assert_eq!(steps, [0, 1, 2, 3], "one prompt a step");
}

/// The youngest waits for a page that the end of another one frees: no sequence runs ahead past that.
/// Otherwise it would take the page later, and the youngest would start again.
#[test]
fn nobody_runs_ahead_of_one_that_waits_for_a_page() {
    let (handle, probe) = gated(Fake::new(6), config(8));
    let shapes = [(0, 4, 90), (1, 41, 7), (2, 30, 12)];
    let requests = shapes.map(|(seed, len, max_tokens)| request(seed, len, max_tokens)).into();
    for (generation, (seed, len, max_tokens)) in submit_all(&handle, &probe, requests).into_iter().zip(shapes)
    {
        assert_eq!(read(generation).0, expected(&request(seed, len, max_tokens)));
    }
    assert_eq!(started(&probe), [0, 1, 2].map(first), "nobody starts again");
    assert_eq!(settled(&handle).preemptions, 0);
}
