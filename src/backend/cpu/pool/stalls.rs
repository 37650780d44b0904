//! When the submitter works alone: where others want the cores, too, threads that wait for each other are slower
//! than one.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Waiting for others so long, and for so many chunks' time, is a stall.
const STALL: Duration = Duration::from_micros(300);
const STALL_CHUNKS: u32 = 8;
/// Where in so many nanoseconds of jobs the workers together were at work for less than an eighth of them, they are not
/// worth waking.
const WINDOW: u64 = 4_000_000;
const HELP: u64 = 8;
/// Jobs shorter than this say nothing: a healthy worker may come too late for them.
const SHORT: Duration = Duration::from_micros(20);
/// How long the submitter works alone after either, in nanoseconds: at first, and when it goes on. Of many threads all but one
/// would be idle because of one that is waited for, which is worse than to wait: then no longer than at first.
const PAUSE_MIN: u64 = 10_000_000;
const PAUSE_MAX: u64 = 500_000_000;
/// It goes on if it is back so soon, in nanoseconds: a core that is shared is lost every few milliseconds. One that something
/// else takes now and then is worth more than it costs.
const AGAIN: u64 = 30_000_000;

/// What is known of threads that do not run. Where others want the cores, too, the system takes a thread off for
/// milliseconds: in the middle of a chunk, and all wait for that, or while it yields, and it comes to few jobs. One
/// thread on a core of its own is faster than both.
pub(super) struct Stalls {
    /// The submitter's too.
    threads: usize,
    /// What times are counted from.
    start: Instant,
    /// Nanoseconds after `start` up to which the submitter works alone.
    pub(super) alone_until: AtomicU64,
    /// Nanoseconds that it worked alone for, the last time.
    pub(super) pause: AtomicU64,
    /// The job that last stalled.
    job: AtomicUsize,
    /// Of the jobs since a window began: nanoseconds, and those of workers.
    spent: AtomicU64,
    helped: AtomicU64,
}

impl Default for Stalls {
    fn default() -> Stalls {
        Stalls::of(1)
    }
}

impl Stalls {
    /// Nothing is known yet of so many threads.
    pub(super) fn of(threads: usize) -> Stalls {
        let [alone_until, pause, spent, helped] = [0; 4].map(AtomicU64::new);
        let job = AtomicUsize::new(0);
        Stalls { threads, start: Instant::now(), alone_until, pause, job, spent, helped }
    }

    fn at(&self, now: Instant) -> u64 {
        now.duration_since(self.start).as_nanos() as u64
    }

    pub(super) fn work_alone(&self, now: Instant) -> bool {
        self.at(now) < self.alone_until.load(Ordering::Relaxed)
    }

    /// Of job `job` a thread did `own` chunks in the first time, and until `now` waited the second for the
    /// others. Gives whether that is a stall.
    pub(super) fn note(&self, job: usize, [took, waited]: [Duration; 2], own: usize, now: Instant) -> bool {
        let chunk = took / own.max(1) as u32;
        if own == 0 || waited < STALL.max(chunk * STALL_CHUNKS) {
            return false;
        }
        if self.job.swap(job, Ordering::Relaxed) == job {
            // Somebody else has noted it.
            return true;
        }
        self.pause(now, if self.threads > 2 { PAUSE_MIN } else { PAUSE_MAX });
        true
    }

    /// A job that nobody has noted took so long, of which workers were at work for so many nanoseconds.
    pub(super) fn count(&self, job: usize, took: Duration, worked: u64, now: Instant) {
        if took < SHORT || self.job.load(Ordering::Relaxed) == job {
            return;
        }
        let spent = self.spent.load(Ordering::Relaxed) + took.as_nanos() as u64;
        let helped = self.helped.load(Ordering::Relaxed) + worked;
        if spent >= WINDOW && helped < spent / HELP {
            self.pause(now, PAUSE_MAX);
        }
        let over = spent >= WINDOW;
        self.spent.store(if over { 0 } else { spent }, Ordering::Relaxed);
        self.helped.store(if over { 0 } else { helped }, Ordering::Relaxed);
    }

    /// Whether a thread has ever waited too long.
    #[cfg(test)]
    pub(super) fn noted(&self) -> bool {
        self.job.load(Ordering::Relaxed) != 0
    }

    /// From `now` on the submitter works alone for a while, `max` at most.
    fn pause(&self, now: Instant, max: u64) {
        let (now, before) = (self.at(now), self.pause.load(Ordering::Relaxed));
        let again = now < self.alone_until.load(Ordering::Relaxed) + AGAIN;
        let pause = if again { 2 * before } else { 0 }.clamp(PAUSE_MIN, max);
        self.pause.store(pause, Ordering::Relaxed);
        self.alone_until.store(now + pause, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_submitter_works_alone_after_a_stall_and_longer_if_they_go_on() {
        let stalls = Stalls::of(2);
        let ms = Duration::from_millis;
        // Ten chunks in 1 ms, then so long for the others.
        let number = std::cell::Cell::new(1);
        let job = |end: Duration, waited: Duration| {
            number.set(number.get() + 2);
            stalls.note(number.get(), [ms(1), waited], 10, stalls.start + end)
        };
        let alone = |at: Duration| stalls.work_alone(stalls.start + at);
        assert!(!job(ms(100), Duration::from_micros(700)) && !alone(ms(100)), "less than eight chunks");
        assert!(job(ms(200), ms(3)));
        assert!(
            stalls.note(number.get(), [ms(1), ms(3)], 10, stalls.start + ms(200)),
            "seen by another thread"
        );
        assert!(alone(ms(209)) && !alone(ms(210)));
        job(ms(235), ms(3));
        assert!(alone(ms(254)) && !alone(ms(255)), "twice as long");
        for _ in 0..9 {
            job(ms(260), ms(3));
        }
        assert!(alone(ms(759)) && !alone(ms(760)), "no longer than this");
        job(ms(791), ms(3));
        assert!(alone(ms(800)) && !alone(ms(801)), "it had stopped");
        stalls.note(99, [ms(1), ms(3)], 0, stalls.start + ms(3000));
        assert!(!alone(ms(3000)), "the submitter itself was late");
        let many = Stalls::of(4);
        for job in 1..9 {
            many.note(job, [ms(1), ms(3)], 10, many.start);
        }
        let alone = |at: Duration| many.work_alone(many.start + at);
        assert!(alone(ms(9)) && !alone(ms(10)), "three would be idle because of one");
    }

    #[test]
    fn the_submitter_works_alone_where_the_others_hardly_help() {
        let [us, ms] = [Duration::from_micros, Duration::from_millis];
        // Jobs that take 2 ms together, twice, and how long workers were at work in each.
        let after = |took: Duration, worked: Duration| {
            let stalls = Stalls::default();
            let end = stalls.start + ms(100);
            let count = || {
                (0..ms(2).as_micros() / took.as_micros())
                    .for_each(|_| stalls.count(1, took, worked.as_nanos() as u64, end));
            };
            count();
            assert!(!stalls.work_alone(end), "that is too few to tell");
            count();
            stalls.work_alone(end)
        };
        assert!(after(us(80), us(0)) && after(us(80), us(9)), "less than an eighth");
        assert!(!after(us(80), us(10)) && !after(us(80), us(70)));
        assert!(!after(us(10), us(0)), "no worker would be in time");
        let stalls = Stalls::default();
        for (job, worked) in [(1, 2_000_000), (3, 0), (5, 2_000_000)] {
            stalls.count(job, ms(4), worked, stalls.start);
            assert_eq!(stalls.work_alone(stalls.start), worked == 0, "each window for itself");
            stalls.alone_until.store(0, Ordering::Relaxed);
        }
        stalls.note(7, [ms(1), ms(3)], 10, stalls.start);
        stalls.alone_until.store(0, Ordering::Relaxed);
        stalls.count(7, ms(4), 0, stalls.start);
        assert!(!stalls.work_alone(stalls.start), "once for a job");
    }
}
