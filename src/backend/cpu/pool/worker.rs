//! A worker's life: it works, waits awake for the next job, yields, parks, and as a guest sleeps often.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::stalls::Mode;
use super::{SPINS, Shared, cores};

/// How long an idle worker yields before it parks: longer than sampling takes between two steps.
pub(super) const YIELD_FOR: Duration = Duration::from_millis(2);

/// How long a worker that is a guest ([`Mode::Guests`]) is awake before it sleeps for a moment.
pub(super) const AWAKE_MAX: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_micros(20);
/// How long it stays where it is after it has left a core.
const ASIDE_AFTER: Duration = Duration::from_millis(5);

/// A pool thread other than the submitter.
pub(super) struct Worker<'a> {
    shared: &'a Shared,
    /// Among the workers.
    index: usize,
    /// When it last slept, and when it last left the submitter's core.
    woken: Instant,
    aside: Instant,
}

impl<'a> Worker<'a> {
    pub(super) fn new(shared: &'a Shared, index: usize) -> Worker<'a> {
        let now = Instant::now();
        Worker { shared, index, woken: now, aside: now }
    }

    fn guest(&self) -> bool {
        self.shared.guests.load(Ordering::Acquire)
    }

    /// Works off chunks and idles until the pool ends.
    pub(super) fn work(mut self) {
        self.shared.begun.fetch_add(1, Ordering::Release);
        while !self.shared.stopping.load(Ordering::Relaxed) {
            let (started, job) = (Instant::now(), self.shared.jobs.load(Ordering::Relaxed));
            let tired = || self.guest() && self.woken.elapsed() > AWAKE_MAX;
            let (own, _) = self.shared.drain(self.index + 1, tired);
            if tired() {
                self.nap();
                continue;
            }
            let drained = Instant::now();
            let shared = self.shared;
            let others_take_long = |now| {
                let times = [drained - started, now - drained];
                let mode = if shared.guests.load(Ordering::Acquire) { Mode::Guests } else { Mode::Owners };
                shared.jobs.load(Ordering::Relaxed) == job && shared.stalls.note(mode, job, times, own, now)
            };
            self.idle(others_take_long);
        }
    }

    /// Returns when there is work. Parks where there is none for long, or others take long.
    fn idle(&mut self, others_take_long: impl Fn(Instant) -> bool) {
        let parked = &self.shared.parked[self.index];
        for _ in 0..SPINS {
            if self.shared.has_work(self.index) {
                return;
            }
            self.shared.upcoming[self.index + 1].0.ask();
            std::hint::spin_loop();
        }
        let start = Instant::now();
        loop {
            let now = Instant::now();
            // A yield may take longer than both where others want the core.
            if others_take_long(now) || now - start >= YIELD_FOR {
                break;
            }
            if self.shared.has_work(self.index) {
                return;
            }
            // Who yields behind a neighbour comes back a time slice later, who wakes up at once.
            if self.guest() {
                self.nap();
            } else {
                thread::yield_now();
            }
        }
        parked.store(true, Ordering::SeqCst);
        if self.shared.has_work(self.index) || self.shared.stopping.load(Ordering::SeqCst) {
            parked.store(false, Ordering::SeqCst);
            return;
        }
        thread::park();
        parked.store(false, Ordering::SeqCst);
        self.wake_up();
    }

    /// Sleeps for a moment.
    fn nap(&mut self) {
        thread::sleep(NAP);
        self.wake_up();
    }

    /// A guest leaves the submitter's core, where its work would gain nothing.
    fn wake_up(&mut self) {
        self.woken = Instant::now();
        if self.guest() && self.woken - self.aside > ASIDE_AFTER {
            let submitter = self.shared.core.load(Ordering::Relaxed);
            if cores::current() == Some(submitter) {
                cores::leave(submitter);
                self.aside = self.woken;
            }
        }
    }
}
