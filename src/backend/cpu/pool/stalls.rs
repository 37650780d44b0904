//! When workers are guests on their cores, or the submitter works alone: where others want the cores, too,
//! threads that wait for each other are slower than one.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Waiting for others so long, and for so many chunks' time, is a stall.
const STALL: Duration = Duration::from_micros(300);
const STALL_CHUNKS: u32 = 8;
/// Jobs of so many nanoseconds together are judged by how much of it workers were at work, and how much the
/// submitter lost by them: an eighth makes a difference.
const WINDOW: u64 = 4_000_000;
const EIGHTH: u64 = 8;
/// Jobs shorter than this say nothing: a healthy worker may come too late for them.
const SHORT: Duration = Duration::from_micros(20);
/// How long workers are guests, in nanoseconds: at first, and when it goes on. Of many threads most would be
/// guests because of one that is waited for: then no longer than at first.
const STAY_MIN: u64 = 10_000_000;
const STAY_MAX: u64 = 500_000_000;
/// It goes on if it is back so soon, in nanoseconds: a core that is shared is lost every few milliseconds. One that something
/// else takes now and then is worth more than it costs.
const AGAIN: u64 = 30_000_000;

/// Who works, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// All threads, which wait awake for the next job.
    Owners,
    /// All threads, but workers sleep often: to the system that is less than their share of the core, and it neither
    /// takes them off in the middle of a chunk nor lets them wait behind a neighbour when they wake up.
    Guests,
    /// The submitter.
    Alone,
}

/// What is known of threads that do not run. Where others want the cores, too, the system takes a thread off for
/// milliseconds: in the middle of a chunk, and all wait for that, or while it yields, and it comes to few jobs. Then
/// workers become guests for a while, and if even so the submitter loses more than they do it works alone.
pub(super) struct Stalls {
    /// The submitter's too.
    threads: usize,
    /// What times are counted from.
    start: Instant,
    /// Nanoseconds after `start` up to which workers are guests, and up to which the submitter works alone.
    pub(super) guests_until: AtomicU64,
    alone_until: AtomicU64,
    /// Nanoseconds that workers were guests for, the last time.
    pub(super) stay: AtomicU64,
    /// The job that last stalled.
    job: AtomicUsize,
    /// Of the jobs since a window began: nanoseconds, those of workers, and those that the submitter lost.
    window: [AtomicU64; 3],
}

impl Default for Stalls {
    fn default() -> Stalls {
        Stalls::of(1)
    }
}

impl Stalls {
    /// Nothing is known yet of so many threads.
    pub(super) fn of(threads: usize) -> Stalls {
        let [guests_until, alone_until, stay] = Default::default();
        let (job, window) = Default::default();
        Stalls { threads, start: Instant::now(), guests_until, alone_until, stay, job, window }
    }

    fn at(&self, now: Instant) -> u64 {
        now.duration_since(self.start).as_nanos() as u64
    }

    pub(super) fn mode(&self, now: Instant) -> Mode {
        let before = |until: &AtomicU64| self.at(now) < until.load(Ordering::Relaxed);
        match (before(&self.alone_until), before(&self.guests_until)) {
            (true, _) => Mode::Alone,
            (false, true) => Mode::Guests,
            (false, false) => Mode::Owners,
        }
    }

    /// Of job `job` a thread did `own` chunks in the first time, and until `now` waited the second for the
    /// others. Gives whether that is a stall; guests are judged by [`Stalls::count`] alone.
    pub(super) fn note(&self, job: usize, [took, waited]: [Duration; 2], own: usize, now: Instant) -> bool {
        let chunk = took / own.max(1) as u32;
        if own == 0 || waited < STALL.max(chunk * STALL_CHUNKS) || self.mode(now) != Mode::Owners {
            return false;
        }
        if self.job.swap(job, Ordering::Relaxed) == job {
            // Somebody else has noted it.
            return true;
        }
        self.be_guests(now, if self.threads > 2 { STAY_MIN } else { STAY_MAX });
        true
    }

    /// A job that nobody has noted took the first time, of which workers were at work for the second and the submitter
    /// lost the third: it woke them, and waited for them.
    pub(super) fn count(&self, job: usize, times: [Duration; 3], now: Instant) {
        if times[0] < SHORT || self.job.load(Ordering::Relaxed) == job {
            return;
        }
        let mut sums = [0; 3];
        for ((sum, total), time) in sums.iter_mut().zip(&self.window).zip(times) {
            *sum = total.load(Ordering::Relaxed) + time.as_nanos() as u64;
            total.store(*sum, Ordering::Relaxed);
        }
        let [took, worked, lost] = sums;
        if took < WINDOW {
            return;
        }
        self.window.iter().for_each(|total| total.store(0, Ordering::Relaxed));
        match self.mode(now) {
            Mode::Owners if worked < took / EIGHTH => self.be_guests(now, STAY_MAX),
            Mode::Guests if lost > worked.max(took / EIGHTH) => {
                let until = self.guests_until.load(Ordering::Relaxed).max(self.at(now) + STAY_MIN);
                self.guests_until.store(until, Ordering::Relaxed);
                self.alone_until.store(until, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Whether a thread has ever waited too long.
    #[cfg(test)]
    pub(super) fn noted(&self) -> bool {
        self.job.load(Ordering::Relaxed) != 0
    }

    /// From `now` on workers are guests for a while, `max` at most.
    fn be_guests(&self, now: Instant, max: u64) {
        let (now, before) = (self.at(now), self.stay.load(Ordering::Relaxed));
        let again = now < self.guests_until.load(Ordering::Relaxed) + AGAIN;
        let stay = if again { 2 * before } else { 0 }.clamp(STAY_MIN, max);
        self.stay.store(stay, Ordering::Relaxed);
        self.guests_until.store(now + stay, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;
    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn workers_are_guests_after_a_stall_and_longer_if_they_go_on() {
        let stalls = Stalls::of(2);
        // Ten chunks in 1 ms, then so long for the others.
        let number = std::cell::Cell::new(1);
        let job = |end: Duration, waited: Duration| {
            number.set(number.get() + 2);
            stalls.note(number.get(), [MS(1), waited], 10, stalls.start + end)
        };
        let guests = |at: Duration| stalls.mode(stalls.start + at) == Mode::Guests;
        assert!(!job(MS(100), US(700)) && !guests(MS(100)), "less than eight chunks");
        assert!(job(MS(200), MS(3)));
        assert!(!job(MS(205), MS(3)), "guests are not waited for so long");
        assert!(guests(MS(209)) && !guests(MS(210)));
        job(MS(235), MS(3));
        let again = stalls.note(number.get(), [MS(1), MS(3)], 10, stalls.start + MS(256));
        assert!(again, "seen by another thread");
        assert!(guests(MS(254)) && !guests(MS(255)), "twice as long");
        let mut end = MS(260);
        for _ in 0..9 {
            job(end, MS(3));
            end += Duration::from_nanos(stalls.stay.load(Ordering::Relaxed));
        }
        assert!(guests(end - US(1)) && !guests(end));
        assert_eq!(stalls.stay.load(Ordering::Relaxed), STAY_MAX, "no longer than this");
        job(end + MS(31), MS(3));
        assert!(guests(end + MS(40)) && !guests(end + MS(41)), "it had stopped");
        stalls.note(99, [MS(1), MS(3)], 0, stalls.start + MS(9000));
        assert!(!guests(MS(9000)), "the submitter itself was late");
        let many = Stalls::of(4);
        for job in 1..9 {
            many.note(job, [MS(1), MS(3)], 10, many.start + MS(10 * job as u64));
        }
        let guests = |at: Duration| many.mode(many.start + at) == Mode::Guests;
        assert!(guests(MS(89)) && !guests(MS(90)), "three would be guests because of one");
    }

    #[test]
    fn workers_that_hardly_help_are_guests() {
        // Jobs that take 2 ms together, twice, and how long workers were at work in each.
        let after = |took: Duration, worked: Duration| {
            let stalls = Stalls::default();
            let end = stalls.start + MS(100);
            let count = || {
                (0..MS(2).as_micros() / took.as_micros())
                    .for_each(|_| stalls.count(1, [took, worked, Duration::ZERO], end));
            };
            count();
            assert_eq!(stalls.mode(end), Mode::Owners, "that is too few to tell");
            count();
            stalls.mode(end)
        };
        assert_eq!([after(US(80), US(0)), after(US(80), US(9))], [Mode::Guests; 2], "less than an eighth");
        assert_eq!([after(US(80), US(10)), after(US(80), US(70))], [Mode::Owners; 2]);
        assert_eq!(after(US(10), US(0)), Mode::Owners, "no worker would be in time");
        let stalls = Stalls::default();
        for (job, worked) in [(1, MS(2)), (3, MS(0)), (5, MS(2))] {
            stalls.count(job, [MS(4), worked, MS(0)], stalls.start);
            assert_eq!(stalls.mode(stalls.start) == Mode::Guests, worked == MS(0), "each window for itself");
            stalls.guests_until.store(0, Ordering::Relaxed);
        }
        stalls.note(7, [MS(1), MS(3)], 10, stalls.start);
        stalls.guests_until.store(0, Ordering::Relaxed);
        stalls.count(7, [MS(4), MS(0), MS(0)], stalls.start);
        assert_eq!(stalls.mode(stalls.start), Mode::Owners, "once for a job");
    }

    #[test]
    fn the_submitter_works_alone_where_guests_cost_more_than_they_do() {
        let after = |worked: Duration, lost: Duration| {
            let stalls = Stalls::of(2);
            stalls.note(1, [MS(1), MS(3)], 10, stalls.start);
            stalls.count(3, [MS(4), worked, lost], stalls.start + MS(8));
            [8, 17, 18].map(|ms| stalls.mode(stalls.start + MS(ms)))
        };
        assert_eq!(after(US(500), US(600)), [Mode::Alone, Mode::Alone, Mode::Owners]);
        assert_eq!(after(US(700), US(600))[0], Mode::Guests, "they do more");
        assert_eq!(after(US(0), US(500))[0], Mode::Guests, "it is not worth it");
    }
}
