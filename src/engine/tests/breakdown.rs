//! The engine's thread panics while jobs wait: each of them is answered.

use std::sync::atomic::Ordering;

use super::*;

type Answer = (&'static str, Result<(), EngineError>);

/// Does a job on its own thread, and sends its answer with its name.
fn ask(
    answers: &mpsc::Sender<Answer>,
    handle: &Handle,
    name: &'static str,
    job: impl FnOnce(&Handle) -> Result<(), EngineError> + Send + 'static,
) {
    let (answers, handle) = (answers.clone(), handle.clone());
    std::thread::spawn(move || drop(answers.send((name, job(&handle)))));
}

/// Jobs of every kind wait for one with pages that cannot be copied. The refusal of one more job proves that
/// all others are queued.
#[test]
fn jobs_of_every_kind_that_wait_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    spawn(64, EngineConfig::default()).save(&request(8, 40, 1).prompt, &path).unwrap();
    let fake = Fake::new(100);
    let probe = Arc::clone(&fake.probe);
    let handle = Handle::spawn(fake, EngineConfig { jobs_max: 7, ..EngineConfig::default() }).unwrap();
    probe.breaks_down.store(true, Ordering::SeqCst);
    let (answers, answered) = mpsc::channel();
    probe.close_gate();
    let never = folder.path().join("never written");
    let second = never.clone();
    let at_work = never.clone();
    ask(&answers, &handle, "at work", move |h| h.save(&request(3, 20, 1).prompt, &at_work));
    probe.wait_for_a_step();
    ask(&answers, &handle, "score", |h| h.score(&request(4, 20, 1).prompt, 1).map(drop));
    ask(&answers, &handle, "save", move |h| h.save(&request(5, 20, 1).prompt, &second));
    ask(&answers, &handle, "restore", move |h| h.restore(&path).map(drop));
    ask(&answers, &handle, "check", |h| h.check_integrity());
    ask(&answers, &handle, "start", |h| h.start_profile());
    ask(&answers, &handle, "take", |h| h.take_profile().map(drop));
    let next = || answered.recv_timeout(PATIENCE).expect("every job is answered");
    for _ in 0..2 {
        ask(&answers, &handle, "check", |h| h.check_integrity());
    }
    let (name, refused) = next();
    assert!(matches!(refused, Err(EngineError::JobsFull { waiting: 7 })), "{name}: {refused:?}");
    probe.open_gate();
    let mut names = vec![name];
    for _ in 0..8 {
        let (name, answer) = next();
        assert!(matches!(answer, Err(EngineError::Dead(EngineFailure::Panicked))), "{name}: {answer:?}");
        names.push(name);
    }
    names.sort_unstable();
    assert_eq!(names, ["at work", "check", "check", "check", "restore", "save", "score", "start", "take"]);
    assert!(!never.exists());
    assert!(matches!(
        handle.score(&request(4, 20, 1).prompt, 1),
        Err(EngineError::Dead(EngineFailure::Panicked))
    ));
    assert_eq!(handle.stats().memory.snapshots.bytes, 0);
}

/// A save is at work when the thread panics, and requests have not had their turn.
#[test]
fn requests_that_wait_are_answered() {
    let fake = Fake::new(100);
    let probe = Arc::clone(&fake.probe);
    let handle = Handle::spawn(fake, EngineConfig { sequences_max: 1, ..EngineConfig::default() }).unwrap();
    probe.breaks_down.store(true, Ordering::SeqCst);
    let (answers, answered) = mpsc::channel();
    probe.close_gate();
    ask(&answers, &handle, "save", |h| {
        h.save(&request(3, 20, 1).prompt, std::path::Path::new("never written"))
    });
    probe.wait_for_a_step();
    // These arrive during the step after which the thread panics.
    let unserved: Vec<_> = (0..3).map(|seed| handle.submit(request(seed, 10, 10)).unwrap()).collect();
    probe.open_gate();
    let (_, answer) = answered.recv_timeout(PATIENCE).expect("the save is answered");
    assert!(matches!(answer, Err(EngineError::Dead(EngineFailure::Panicked))), "{answer:?}");
    for generation in unserved {
        assert_eq!(read(generation).1.map(drop), Err(EngineFailure::Panicked.into()));
    }
}
