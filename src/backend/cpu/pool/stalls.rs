//! Decides when workers nap and when the submitter works alone. If another process competes for the cores,
//! threads that wait for each other are slower than one thread. `README.md` has a table of the modes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Minimum wait for other threads that counts as a stall. It must also be at least the time of
/// [`STALL_CHUNKS`] chunks.
const STALL: Duration = Duration::from_micros(300);
const STALL_CHUNKS: u32 = 8;
/// Length of a window, in nanoseconds of jobs. At its end the pool compares the time that workers saved the
/// submitter with the time that they cost it. A difference of at least one [`EIGHTH`] of the window is
/// significant.
const WINDOW: u64 = 4_000_000;
const EIGHTH: u64 = 8;
/// With one worker: minimum saving, in eighths of a window. On a core of its own a worker saves 6 to 9, on a
/// core shared with a busy process 0 to 4 (a slower core looks the same). With more workers, one busy core
/// has too small an effect to detect.
const HELP_OF_ONE: u64 = 5;
/// Shorter jobs are not judged: even a healthy worker may be too late for them.
const SHORT: Duration = Duration::from_micros(20);
/// Duration of napping, in nanoseconds: default, and maximum if stalls recur. With more than two threads, one
/// late thread would make all others nap, so the default is also the maximum.
const STAY_MIN: u64 = 10_000_000;
const STAY_MAX: u64 = 500_000_000;
/// A stall within this time, in nanoseconds, is a recurrence: a shared core is lost every few milliseconds. A
/// core that is lost only occasionally saves more than it costs.
const AGAIN: u64 = 30_000_000;

/// The threads that work, and how they idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// All threads. Workers spin and yield between jobs.
    Spin,
    /// All threads, but workers nap 20 µs after every 200 µs awake. They then use less than their fair share
    /// of the core, so the scheduler neither preempts them in a chunk nor queues them on wake-up.
    Nap,
    /// The submitter alone.
    Serial,
}

/// Statistics of stalls, and the mode that follows from them. A busy process takes a thread's core for
/// milliseconds. If that happens in a chunk, all threads wait; if it happens while the thread yields, it
/// misses most jobs. Then workers nap for a while. If napping workers still cost more than they save, the
/// submitter works alone.
pub(super) struct Stalls {
    /// Number of threads in the pool, the submitter included.
    threads: usize,
    /// Origin of the times below, which are in nanoseconds.
    start: Instant,
    /// End of napping, and end of the submitter working alone.
    nap_until: AtomicU64,
    serial_until: AtomicU64,
    /// Duration of the last napping phase.
    pub(super) stay: AtomicU64,
    /// Number of the last job that stalled.
    job: AtomicUsize,
    /// Sums over the current window in the modes `Spin` and `Nap`: time of the jobs, time saved by
    /// workers, time lost by the submitter.
    windows: [[AtomicU64; 3]; 2],
}

impl Default for Stalls {
    fn default() -> Stalls {
        Stalls::of(1)
    }
}

impl Stalls {
    /// Empty statistics for a pool of `threads`.
    pub(super) fn of(threads: usize) -> Stalls {
        let [nap_until, serial_until, stay] = Default::default();
        let (job, windows) = Default::default();
        Stalls { threads, start: Instant::now(), nap_until, serial_until, stay, job, windows }
    }

    fn at(&self, now: Instant) -> u64 {
        now.duration_since(self.start).as_nanos() as u64
    }

    pub(super) fn mode(&self, now: Instant) -> Mode {
        let before = |until: &AtomicU64| self.at(now) < until.load(Ordering::Relaxed);
        match (before(&self.serial_until), before(&self.nap_until)) {
            (true, _) => Mode::Serial,
            (false, true) => Mode::Nap,
            (false, false) => Mode::Spin,
        }
    }

    /// Judges one thread's wait in job `job`: it did `own` chunks in the time `took`, then waited `waited`,
    /// until `now`, for the others. Returns true if that is a stall. Mode `Nap` is judged in
    /// [`Stalls::count`] only.
    pub(super) fn note(
        &self,
        mode: Mode,
        job: usize,
        [took, waited]: [Duration; 2],
        own: usize,
        now: Instant,
    ) -> bool {
        let chunk = took / own.max(1) as u32;
        if mode == Mode::Nap || own == 0 || waited < STALL.max(chunk * STALL_CHUNKS) {
            return false;
        }
        if self.job.swap(job, Ordering::Relaxed) == job {
            // Another thread has noted this job.
            return true;
        }
        self.nap(now, if self.threads > 2 { STAY_MIN } else { STAY_MAX });
        true
    }

    /// Adds a job without a stall to the window. `took` is the time of the job, `worked` of the submitter's
    /// own work, `lost` of waking and waiting. `own` chunks were done by the submitter, `others` by workers.
    /// The saving is the time that the submitter would have needed for the workers' chunks. The workers' own
    /// time would include time in which they were preempted.
    pub(super) fn count(
        &self,
        mode: Mode,
        job: usize,
        [took, worked, lost]: [Duration; 3],
        [own, others]: [usize; 2],
        now: Instant,
    ) {
        if took < SHORT || own == 0 || self.job.load(Ordering::Relaxed) == job {
            return;
        }
        let helped = worked * others as u32 / own as u32;
        let window = &self.windows[usize::from(mode == Mode::Nap)];
        let mut sums = [0; 3];
        for ((sum, total), time) in sums.iter_mut().zip(window).zip([took, helped, lost]) {
            *sum = total.load(Ordering::Relaxed) + time.as_nanos() as u64;
            total.store(*sum, Ordering::Relaxed);
        }
        let [took, helped, lost] = sums;
        if took < WINDOW {
            return;
        }
        window.iter().for_each(|total| total.store(0, Ordering::Relaxed));
        match mode {
            Mode::Spin if helped < self.help_min(took) => self.nap(now, STAY_MAX),
            Mode::Nap if lost > helped.max(took / EIGHTH) => {
                let until = self.nap_until.load(Ordering::Relaxed).max(self.at(now) + STAY_MIN);
                self.set([until; 2]);
            }
            _ => {}
        }
    }

    /// Minimum saving in a window of `took`. Workers that save less share their cores with other processes.
    fn help_min(&self, took: u64) -> u64 {
        took / EIGHTH * if self.threads == 2 { HELP_OF_ONE } else { 1 }
    }

    /// Sets the end of napping and the end of the submitter working alone.
    pub(super) fn set(&self, [nap, serial]: [u64; 2]) {
        self.nap_until.store(nap, Ordering::Relaxed);
        self.serial_until.store(serial, Ordering::Relaxed);
    }

    /// Whether any job has stalled.
    #[cfg(test)]
    pub(super) fn has_stalled(&self) -> bool {
        self.job.load(Ordering::Relaxed) != 0
    }

    /// Makes workers nap from `now` on: twice as long as last time if that is recent, at most `max`.
    fn nap(&self, now: Instant, max: u64) {
        let (now, before) = (self.at(now), self.stay.load(Ordering::Relaxed));
        let again = now < self.nap_until.load(Ordering::Relaxed) + AGAIN;
        let stay = if again { 2 * before } else { 0 }.clamp(STAY_MIN, max);
        self.stay.store(stay, Ordering::Relaxed);
        self.nap_until.store(now + stay, Ordering::Relaxed);
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
        // Ten chunks in 1 ms, then a wait of `waited` for the others.
        let number = std::cell::Cell::new(1);
        let job = |end: Duration, waited: Duration| {
            number.set(number.get() + 2);
            let end = stalls.start + end;
            stalls.note(stalls.mode(end), number.get(), [MS(1), waited], 10, end)
        };
        let naps = |at: Duration| stalls.mode(stalls.start + at) == Mode::Nap;
        assert!(!job(MS(100), US(700)) && !naps(MS(100)), "less than eight chunks");
        assert!(job(MS(200), MS(3)));
        assert!(!job(MS(205), MS(3)), "napping workers are waited for");
        assert!(naps(MS(209)) && !naps(MS(210)));
        job(MS(235), MS(3));
        let again = stalls.note(Mode::Spin, number.get(), [MS(1), MS(3)], 10, stalls.start + MS(256));
        assert!(again, "seen by another thread");
        assert!(naps(MS(254)) && !naps(MS(255)), "twice as long");
        let mut end = MS(260);
        for _ in 0..9 {
            job(end, MS(3));
            end += Duration::from_nanos(stalls.stay.load(Ordering::Relaxed));
        }
        assert!(naps(end - US(1)) && !naps(end));
        assert_eq!(stalls.stay.load(Ordering::Relaxed), STAY_MAX, "no longer than this");
        job(end + MS(31), MS(3));
        assert!(naps(end + MS(40)) && !naps(end + MS(41)), "it had stopped");
        stalls.note(Mode::Spin, 99, [MS(1), MS(3)], 0, stalls.start + MS(9000));
        assert!(!naps(MS(9000)), "the submitter itself was late");
        let many = Stalls::of(4);
        for job in 1..9 {
            many.note(Mode::Spin, job, [MS(1), MS(3)], 10, many.start + MS(10 * job as u64));
        }
        let naps = |at: Duration| many.mode(many.start + at) == Mode::Nap;
        assert!(naps(MS(89)) && !naps(MS(90)), "three would nap because of one");
    }

    #[test]
    fn workers_that_hardly_help_are_guests() {
        // Jobs of 2 ms in total, twice; workers did `others` of a hundred chunks.
        let after = |threads: usize, took: Duration, others: usize| {
            let stalls = Stalls::of(threads);
            let end = stalls.start + MS(100);
            let count = || {
                (0..MS(2).as_micros() / took.as_micros()).for_each(|_| {
                    stalls.count(Mode::Spin, 1, [took, took, MS(0)], [100 - others, others], end);
                });
            };
            count();
            assert_eq!(stalls.mode(end), Mode::Spin, "that is too few to tell");
            count();
            stalls.mode(end)
        };
        assert_eq!([0, 11].map(|others| after(3, US(80), others)), [Mode::Nap; 2], "less than an eighth");
        assert_eq!([12, 50].map(|others| after(3, US(80), others)), [Mode::Spin; 2]);
        assert_eq!([0, 38].map(|others| after(2, US(80), others)), [Mode::Nap; 2], "less than five eighths");
        assert_eq!([39, 50].map(|others| after(2, US(80), others)), [Mode::Spin; 2]);
        assert_eq!(after(2, US(10), 0), Mode::Spin, "no worker would be in time");
        let stalls = Stalls::of(3);
        for (job, others) in [(1, 5), (3, 0), (5, 5)] {
            stalls.count(Mode::Spin, job, [MS(4), MS(4), MS(0)], [5, others], stalls.start);
            assert_eq!(stalls.mode(stalls.start) == Mode::Nap, others == 0, "each window for itself");
            stalls.set([0; 2]);
        }
        stalls.note(Mode::Spin, 7, [MS(1), MS(3)], 10, stalls.start);
        stalls.set([0; 2]);
        stalls.count(Mode::Spin, 7, [MS(4), MS(4), MS(0)], [5, 0], stalls.start);
        assert_eq!(stalls.mode(stalls.start), Mode::Spin, "once for a job");
    }

    #[test]
    fn the_submitter_works_alone_where_guests_cost_more_than_they_do() {
        // The submitter did ten chunks in 2 ms and lost `lost`; workers did `others` chunks.
        let after = |others: usize, lost: Duration| {
            let stalls = Stalls::of(2);
            stalls.note(Mode::Spin, 1, [MS(1), MS(3)], 10, stalls.start);
            stalls.count(Mode::Nap, 3, [MS(4), MS(2), lost], [10, others], stalls.start + MS(8));
            [8, 17, 18].map(|ms| stalls.mode(stalls.start + MS(ms)))
        };
        assert_eq!(after(9, MS(2)), [Mode::Serial, Mode::Serial, Mode::Spin]);
        assert_eq!(after(10, MS(2))[0], Mode::Nap, "they do as much");
        assert_eq!(after(0, US(500))[0], Mode::Nap, "it is an eighth, no more");
    }
}
