//! Cache events, as a router reads them.

use std::collections::HashSet;
use std::time::Duration;

use super::{read, request, spawn};
use crate::engine::{CacheEvent, CacheEvents, EngineConfig, Handle};

const PATIENCE: Duration = Duration::from_secs(30);

fn listened_to(cache_events: usize) -> (Handle, CacheEvents) {
    let handle = spawn(12, EngineConfig { cache_events, ..EngineConfig::default() });
    let events = handle.cache_events().expect("they were asked for");
    (handle, events)
}

/// Applies all available events to the set of known pages.
fn hear(events: &CacheEvents, known: &mut HashSet<[u8; 32]>, cleared: &mut bool) {
    for event in events.recv_timeout(Duration::ZERO).expect("the engine lives") {
        match event {
            CacheEvent::Stored(page) => _ = known.insert(page.hash),
            CacheEvent::Removed { hash } => assert!(known.remove(&hash)),
            CacheEvent::Cleared => {
                known.clear();
                *cleared = true;
            }
        }
    }
}

#[test]
fn a_reader_hears_of_pages_that_come_and_go() {
    let (handle, events) = listened_to(1000);
    read(handle.submit(request(1, 40, 1)).unwrap()).1.unwrap();
    let heard = events.recv_timeout(PATIENCE).expect("the engine lives");
    let [CacheEvent::Stored(first), CacheEvent::Stored(second)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((first.parent, second.parent), (None, Some(first.hash)));
    assert_eq!([first.tokens.clone(), second.tokens.clone()].concat(), request(1, 40, 1).prompt[..32]);
    assert_eq!(events.recv_timeout(Duration::ZERO), Some(Vec::new()));
    // This request takes all twelve pages.
    read(handle.submit(request(2, 190, 1)).unwrap()).1.unwrap();
    let heard = events.recv_timeout(PATIENCE).expect("the engine lives");
    assert!(heard.contains(&CacheEvent::Removed { hash: second.hash }), "{heard:?}");
    drop(handle);
    while let Some(heard) = events.recv_timeout(PATIENCE) {
        assert!(!heard.is_empty(), "the engine did not end");
    }
}

#[test]
fn a_reader_that_falls_behind_hears_all_again() {
    let (handle, events) = listened_to(3);
    let (mut known, mut cleared) = (HashSet::new(), false);
    for s in 0..6 {
        read(handle.submit(request(s, 70, 1)).unwrap()).1.unwrap();
    }
    handle.check_integrity().unwrap();
    hear(&events, &mut known, &mut cleared);
    assert!(cleared, "six prompts are more than three changes");
    assert_eq!(known.len() as u64, handle.stats().pages_cached, "all that is there, and no more");
    assert!(handle.stats().pages_cached > 3);
}

#[test]
fn a_queue_holds_as_many_changes_as_were_asked_for() {
    let (handle, events) = listened_to(4);
    let (mut known, mut cleared) = (HashSet::new(), false);
    read(handle.submit(request(1, 70, 1)).unwrap()).1.unwrap();
    handle.check_integrity().unwrap();
    hear(&events, &mut known, &mut cleared);
    assert_eq!((known.len(), cleared), (4, false));
}

#[test]
fn nobody_hears_what_nobody_asked_for() {
    assert!(spawn(12, EngineConfig::default()).cache_events().is_none());
}
