//! A watchdog that names a hanging test.

use std::cell::RefCell;
use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

/// Far longer than any test takes, even on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Calls `hangs` unless it is dropped, or fed again within `limit`.
struct Watchdog(Sender<()>);

impl Watchdog {
    fn new(limit: Duration, hangs: impl FnOnce() + Send + 'static) -> Watchdog {
        let (fed, food) = mpsc::channel();
        std::thread::spawn(move || {
            loop {
                match food.recv_timeout(limit) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => return hangs(),
                }
            }
        });
        Watchdog(fed)
    }
}

thread_local! {
    /// Dropped at the end of the test's thread.
    static MINE: RefCell<Option<Watchdog>> = const { RefCell::new(None) };
}

/// Watches the calling test from now on: after [`LIMIT`] without another call the process ends, with the
/// test's name. If tests do not run on their own threads, nothing is watched.
pub(super) fn watch() {
    let thread = std::thread::current();
    let Some(name) = thread.name().filter(|name| name.contains("::")).map(str::to_owned) else { return };
    MINE.with_borrow_mut(|mine| match mine {
        Some(Watchdog(fed)) => drop(fed.send(())),
        None => *mine = Some(Watchdog::new(LIMIT, move || end_process(&name))),
    });
}

/// Writes to stderr directly: the harness captures the output of macros, and would never show it.
fn end_process(name: &str) {
    drop(writeln!(std::io::stderr(), "test {name} hangs: no sign of life in {LIMIT:?}"));
    std::process::abort();
}

#[test]
fn a_watchdog_barks_when_it_is_neither_fed_nor_sent_away() {
    let (bark, barked) = mpsc::channel();
    let never = bark.clone();
    drop(Watchdog::new(Duration::from_secs(3600), move || never.send("sent away").unwrap()));
    let hungry = Watchdog::new(Duration::from_millis(1), move || bark.send("hungry").unwrap());
    assert_eq!(barked.recv(), Ok("hungry"));
    drop(hungry);
    assert!(barked.recv().is_err(), "the other one does not");
}

#[test]
fn a_test_that_makes_a_decoder_is_watched() {
    drop(super::Fake::new(1));
    let named = std::thread::current().name().is_some_and(|name| name.contains("::"));
    assert_eq!(MINE.with_borrow(Option::is_some), named);
}
