//! A worker's loop: work, spin, yield, park; in mode `Nap` it also naps. `README.md` has a table of the
//! states.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::stalls::Mode;
use super::{SPINS, Shared, cores};

/// Time that an idle worker yields before it parks: longer than sampling takes between two steps.
pub(super) const YIELD_FOR: Duration = Duration::from_millis(2);

/// In mode [`Mode::Nap`], maximum time awake before a nap.
pub(super) const AWAKE_MAX: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_micros(20);
/// Minimum interval between moves off the submitter's core.
const ASIDE_AFTER: Duration = Duration::from_millis(5);

/// A pool thread other than the submitter.
pub(super) struct Worker<'a> {
    shared: &'a Shared,
    /// Index of this worker, from 0.
    index: usize,
    /// Times of the last wake-up and of the last move off the submitter's core.
    woken: Instant,
    aside: Instant,
}

impl<'a> Worker<'a> {
    pub(super) fn new(shared: &'a Shared, index: usize) -> Worker<'a> {
        let now = Instant::now();
        Worker { shared, index, woken: now, aside: now }
    }

    fn naps(&self) -> bool {
        self.shared.naps.load(Ordering::Acquire)
    }

    /// Runs chunks and idles until the pool stops.
    pub(super) fn work(mut self) {
        self.shared.begun.fetch_add(1, Ordering::Release);
        while !self.shared.stopping.load(Ordering::Relaxed) {
            let (started, job) = (Instant::now(), self.shared.jobs.load(Ordering::Relaxed));
            let tired = || self.naps() && self.woken.elapsed() > AWAKE_MAX;
            let (own, _) = self.shared.drain(self.index + 1, tired);
            if tired() {
                self.nap();
                continue;
            }
            let drained = Instant::now();
            let shared = self.shared;
            let others_take_long = |now| {
                let times = [drained - started, now - drained];
                let mode = if shared.naps.load(Ordering::Acquire) { Mode::Nap } else { Mode::Spin };
                shared.jobs.load(Ordering::Relaxed) == job && shared.stalls.note(mode, job, times, own, now)
            };
            self.idle(others_take_long);
        }
    }

    /// Returns when there is work. Parks after [`YIELD_FOR`] without work, or as soon as `others_take_long`
    /// returns true.
    fn idle(&mut self, others_take_long: impl Fn(Instant) -> bool) {
        let parked = &self.shared.parked[self.index];
        for _ in 0..SPINS {
            if self.shared.has_work(self.index) {
                return;
            }
            std::hint::spin_loop();
        }
        let start = Instant::now();
        loop {
            let now = Instant::now();
            // If another process is busy on the core, one yield may take longer than either limit.
            if others_take_long(now) || now - start >= YIELD_FOR {
                break;
            }
            if self.shared.has_work(self.index) {
                return;
            }
            // A thread that yields to another runnable thread loses a time slice. A thread that wakes from
            // sleep runs at once.
            if self.naps() {
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

    /// Sleeps for [`NAP`], then checks the core.
    fn nap(&mut self) {
        thread::sleep(NAP);
        self.wake_up();
    }

    /// Moves a napping worker off the submitter's core, where it could only delay the submitter.
    fn wake_up(&mut self) {
        self.woken = Instant::now();
        if self.naps() && self.woken - self.aside > ASIDE_AFTER {
            let submitter = self.shared.core.load(Ordering::Relaxed);
            if cores::current() == Some(submitter) {
                cores::leave(submitter);
                self.aside = self.woken;
            }
        }
    }
}
