//! The thread pool: persistent threads that run one job at a time, chunk by chunk. `README.md` lists the
//! states of a worker and the modes.
//!
//! A job is a function, a pointer to its data and a number of chunks. Each thread has a range of chunks in an
//! atomic word of its own and claims the next one by compare-and-swap. A thread without chunks steals the
//! second half of another thread's range, into a second word. So threads read long runs of memory forwards
//! and share no cache line while there is enough work, and a late thread's chunks are done by others.
//!
//! A thread reads the function pointer only after a claim. The submitter cannot replace a job before every
//! claimed chunk is reported done, so a claim always belongs to the current job. A job may be published
//! before its input is ready ([`Pool::run_after`]). After start-up, no lock is taken and nothing is
//! allocated.
//!
//! A waiting thread spins, then yields; an idle worker then parks ([`Worker`]). If preemption is detected to
//! stall jobs, workers nap or the submitter works alone ([`Stalls`]).

mod cores;
mod stalls;
mod worker;

use std::any::Any;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Instant;

pub(crate) use cores::default_threads;
use stalls::{Mode, Stalls};
use worker::Worker;

use crate::backend::BackendError;
use crate::headroom;

/// Spins before a waiting thread starts to yield: some microseconds, about the gap between two operations of
/// a step.
const SPINS: u32 = 600;

/// `task(data, chunk, worker)`
type Task = unsafe fn(*const (), usize, usize);

/// A value in its own cache line, so that claims do not slow reports.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

#[derive(Default)]
struct Shared {
    /// Per thread, the submitter first: the end of its range (high half) and the next chunk (low half).
    ranges: Vec<Line<AtomicU64>>,
    /// Per thread: the range stolen from others, which others may steal back.
    taken: Vec<Line<AtomicU64>>,
    /// Chunks reported done.
    done: Line<AtomicUsize>,
    /// A [`Task`], valid while a claimed chunk is not reported.
    task: AtomicPtr<()>,
    data: AtomicPtr<()>,
    /// Whether the job's input is ready.
    ready: AtomicBool,
    /// Whether a thread is submitting.
    busy: AtomicBool,
    /// Number of job starts plus job ends: odd while a job runs.
    jobs: AtomicUsize,
    /// Whether the mode is [`Mode::Nap`]: workers nap.
    naps: AtomicBool,
    /// Core of the submitter.
    core: AtomicUsize,
    panicked: AtomicBool,
    stopping: AtomicBool,
    /// Number of workers that have started.
    begun: AtomicUsize,
    /// Per worker: whether it has announced that it parks.
    parked: Vec<AtomicBool>,
    stalls: Stalls,
}

/// Persistent worker threads. The submitting thread works as thread 0.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// Starts a pool of `threads`, the submitter included.
    ///
    /// # Errors
    /// [`BackendError::Thread`] if the system refuses one; those already started have then ended.
    pub(crate) fn new(threads: NonZeroUsize) -> Result<Pool, BackendError> {
        let [mut ranges, mut taken] = [Vec::new(), Vec::new()];
        let mut parked = Vec::new();
        ranges.resize_with(threads.get(), Line::default);
        taken.resize_with(threads.get(), Line::default);
        parked.resize_with(threads.get() - 1, AtomicBool::default);
        let shared = Arc::new(Shared {
            ranges,
            taken,
            parked,
            stalls: Stalls::of(threads.get()),
            ..Shared::default()
        });
        // If an error drops the pool, the threads started so far end.
        let mut pool = Pool { shared, workers: Vec::new(), handles: Vec::new() };
        for index in 0..threads.get() - 1 {
            let number = index + 1;
            pool.start(index).map_err(|error| BackendError::Thread {
                number,
                threads: threads.get(),
                reason: error.to_string(),
            })?;
        }
        Ok(pool)
    }

    /// Starts a worker.
    fn start(&mut self, index: usize) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let work = move || Worker::new(&shared, index).work();
        let worker = headroom::spawn(format!("ottava-cpu-{}", index + 1), work)?;
        self.handles.push(worker.thread().clone());
        self.workers.push(worker);
        // A starting thread allocates; a running one does not. Starting one at a time leaves each the memory
        // it needs.
        while self.shared.begun.load(Ordering::Acquire) < self.workers.len() {
            thread::yield_now();
        }
        Ok(())
    }

    /// Number of threads that work on a job, the submitter included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Initial range of `thread` among `chunks` chunks.
    fn share(&self, chunks: usize, thread: usize) -> Range<usize> {
        let first = |thread| chunks * thread / self.threads();
        first(thread)..first(thread + 1)
    }

    /// Calls `task(data, chunk, thread)` for every chunk below `chunks`, on all threads, and returns when all
    /// are done. If the pool is busy (with another submitter, or because a task submits), the caller does all
    /// chunks itself, as thread 0.
    ///
    /// # Panics
    /// If a task panicked, after all other tasks have ended.
    ///
    /// # Safety
    /// `task` may be called with `data` and every chunk, from any thread, in any order.
    pub(crate) unsafe fn run<T: Sync>(&self, task: unsafe fn(&T, usize, usize), data: &T, chunks: usize) {
        // SAFETY: the contract of this function is that of `submit`.
        unsafe { self.submit(None, task, data, chunks) }
    }

    /// [`Pool::run`] for tasks that depend on the result of `before`. The caller runs `before` while the
    /// other threads claim their chunks.
    ///
    /// # Panics
    /// If `before` or a task panicked, after all tasks have ended.
    ///
    /// # Safety
    /// As for [`Pool::run`], once `before` has ended.
    pub(crate) unsafe fn run_after<T: Sync>(
        &self,
        mut before: impl FnMut(),
        task: unsafe fn(&T, usize, usize),
        data: &T,
        chunks: usize,
    ) {
        // SAFETY: the contract of this function is that of `submit`.
        unsafe { self.submit(Some(&mut before), task, data, chunks) }
    }

    unsafe fn submit<T: Sync>(
        &self,
        before: Option<&mut dyn FnMut()>,
        task: unsafe fn(&T, usize, usize),
        data: &T,
        chunks: usize,
    ) {
        assert!(u32::try_from(chunks).is_ok(), "fewer than 2^32 chunks");
        let started = Instant::now();
        let mode = self.shared.stalls.mode(started);
        let serial = chunks <= 1 || self.workers.is_empty() || mode == Mode::Serial;
        if serial || self.shared.busy.swap(true, Ordering::Acquire) {
            let mut payload = before.and_then(caught);
            for chunk in 0..chunks {
                // SAFETY: promised by the caller.
                payload = payload.or(caught(|| unsafe { task(data, chunk, 0) }));
            }
            return payload.map_or((), |panic| resume_unwind(panic));
        }
        self.shared.task.store(task as *mut (), Ordering::Relaxed);
        self.shared.data.store(std::ptr::from_ref(data).cast_mut().cast(), Ordering::Relaxed);
        self.shared.done.0.store(0, Ordering::Relaxed);
        self.shared.ready.store(before.is_none(), Ordering::Relaxed);
        let naps = mode == Mode::Nap;
        if naps {
            self.shared.core.store(cores::current().unwrap_or(usize::MAX), Ordering::Relaxed);
        }
        self.shared.naps.store(naps, Ordering::Release);
        let job = self.publish(chunks);
        self.wake();
        let woken = Instant::now();
        let before_panic = before.and_then(caught);
        self.shared.ready.store(true, Ordering::Release);
        let prepared = Instant::now();
        let (own, own_panic) = self.shared.drain(0, || false);
        let drained = Instant::now();
        let (late, late_panic) = self.shared.wait_done(chunks, naps);
        self.shared.jobs.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let stalls = &self.shared.stalls;
        let worked = drained - prepared;
        if !stalls.note(mode, job, [worked, now - drained], own, now) {
            let late_work = worked * late as u32 / own.max(1) as u32;
            let lost = (woken - started) + (now - drained).saturating_sub(late_work);
            let took = now - started - (prepared - woken);
            stalls.count(mode, job, [took, worked, lost], [own, chunks - own - late], now);
        }
        let panicked = self.shared.panicked.swap(false, Ordering::Relaxed);
        self.shared.busy.store(false, Ordering::Release);
        match before_panic.or(own_panic).or(late_panic) {
            Some(payload) => resume_unwind(payload),
            None if panicked => panic!("a task panicked on a pool thread"),
            None => {}
        }
    }

    /// Gives every thread its range of a job; returns the job's number.
    fn publish(&self, chunks: usize) -> usize {
        let job = self.shared.jobs.fetch_add(1, Ordering::Relaxed) + 1;
        for (thread, range) in (0..self.threads()).zip(&self.shared.ranges) {
            let share = self.share(chunks, thread);
            // Sequentially consistent, like the parking flags: either a worker sees its chunks before it
            // parks, or the submitter sees that it has parked.
            range.0.store((share.end as u64) << 32 | share.start as u64, Ordering::SeqCst);
        }
        job
    }

    fn wake(&self) {
        for (flag, handle) in self.shared.parked.iter().zip(&self.handles) {
            if flag.load(Ordering::SeqCst) && flag.swap(false, Ordering::SeqCst) {
                handle.unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.handles.iter().for_each(Thread::unpark);
        for worker in self.workers.drain(..) {
            // A worker catches its tasks' panics, so there is nothing to report here.
            let _ = worker.join();
        }
    }
}

impl Line<AtomicU64> {
    /// Shrinks the range to `left(next, end)`; returns the range before that, or `None` if it was empty.
    fn split(&self, left: impl Fn(u64, u64) -> (u64, u64)) -> Option<(u64, u64)> {
        let mut range = self.0.load(Ordering::Acquire);
        loop {
            let (next, end) = (range & u64::from(u32::MAX), range >> 32);
            if next >= end {
                return None;
            }
            let (left_next, left_end) = left(next, end);
            let left = left_end << 32 | left_next;
            match self.0.compare_exchange_weak(range, left, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((next, end)),
                Err(now) => range = now,
            }
        }
    }

    /// Claims the first chunk.
    fn claim(&self) -> Option<usize> {
        self.split(|next, end| (next + 1, end)).map(|(next, _)| next as usize)
    }

    /// Claims the second half, or all if that is one chunk.
    fn claim_half(&self) -> Option<(u64, u64)> {
        let middle = |next, end| next + (end - next) / 2;
        let (next, end) = self.split(|next, end| (next, middle(next, end)))?;
        Some((middle(next, end), end))
    }
}

impl Shared {
    /// Claims a chunk of the current job: the next of the thread's own ranges, or one stolen from another
    /// thread.
    fn claim(&self, thread: usize) -> Option<usize> {
        let (given, taken) = (self.ranges.get(thread)?, self.taken.get(thread)?);
        given.claim().or_else(|| taken.claim()).or_else(|| {
            let (before, from) = self.ranges.split_at(thread);
            let (first, end) = from.iter().chain(before).chain(&self.taken).find_map(Line::claim_half)?;
            // The submitter may be publishing this chunk's job at the same time, but it never writes `taken`.
            // While a chunk is claimed there is no other job.
            taken.0.store(end << 32 | (first + 1), Ordering::Release);
            Some(first as usize)
        })
    }

    /// Runs chunks until none is left or `tired` returns true. Returns their number, and the first panic's
    /// payload.
    fn drain(&self, thread: usize, tired: impl Fn() -> bool) -> (usize, Option<Box<dyn Any + Send>>) {
        let (mut count, mut payload) = (0, None);
        while !tired()
            && let Some(chunk) = self.claim(thread)
        {
            self.wait_ready();
            let data = self.data.load(Ordering::Relaxed);
            // SAFETY: `submit` stored a `Task` whose first parameter is a thin reference, in the same
            // slot, before it published the range that the claim acquired.
            let task = unsafe { std::mem::transmute::<*mut (), Task>(self.task.load(Ordering::Relaxed)) };
            // SAFETY: the claimed chunk is not reported yet, so `submit` has not returned and `data`
            // lives; its caller promised that any thread may do any chunk.
            if let Some(panic) = caught(|| unsafe { task(data, chunk, thread) }) {
                self.panicked.store(true, Ordering::Relaxed);
                payload.get_or_insert(panic);
            }
            count += 1;
        }
        // Makes the chunks' writes visible to `wait_done`. Nothing of the job is accessed afterwards.
        if count > 0 {
            self.done.0.fetch_add(count, Ordering::Release);
        }
        (count, payload)
    }

    /// Waits until all chunks are done. Returns the number of chunks that the caller did itself meanwhile,
    /// and the first panic's payload.
    fn wait_done(&self, chunks: usize, naps: bool) -> (usize, Option<Box<dyn Any + Send>>) {
        let (mut spins, mut count, mut payload) = (0, 0, None);
        while self.done.0.load(Ordering::Acquire) != chunks {
            if naps {
                // A worker may nap on chunks that it has just stolen.
                let (late, panic) = self.drain(0, || false);
                count += late;
                payload = payload.or(panic);
            }
            pause(&mut spins);
        }
        (count, payload)
    }

    /// Waits until the job's input is ready.
    fn wait_ready(&self) {
        let mut spins = 0;
        while !self.ready.load(Ordering::Acquire) {
            pause(&mut spins);
        }
    }

    /// Whether the worker has unclaimed chunks.
    fn has_work(&self, index: usize) -> bool {
        let range = self.ranges[index + 1].0.load(Ordering::SeqCst);
        range >> 32 > range & u64::from(u32::MAX)
    }
}

/// Spins; after [`SPINS`] calls it yields.
fn pause(spins: &mut u32) {
    if *spins < SPINS {
        *spins += 1;
        std::hint::spin_loop();
    } else {
        thread::yield_now();
    }
}

/// Runs `run`; returns the payload if it panics.
fn caught(run: impl FnOnce()) -> Option<Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(run)).err()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::worker::{AWAKE_MAX, YIELD_FOR};
    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    struct Counts(Vec<AtomicUsize>);

    unsafe fn count(counts: &Counts, chunk: usize, _worker: usize) {
        counts.0[chunk].fetch_add(1, Ordering::Relaxed);
    }

    fn counts(n: usize) -> Counts {
        Counts((0..n).map(|_| AtomicUsize::new(0)).collect())
    }

    fn assert_each(counts: &Counts, expected: usize) {
        assert!(counts.0.iter().all(|n| n.load(Ordering::Relaxed) == expected));
    }

    #[test]
    fn each_chunk_of_many_tiny_jobs_is_done_once() {
        for (threads, nap_until) in [(1, 0), (2, 0), (2, u64::MAX), (3, 0), (8, 0), (8, u64::MAX)] {
            let pool = pool(threads);
            assert_eq!(pool.threads(), threads);
            for job in 0..3000 {
                pool.shared.stalls.set([nap_until, 0]);
                let data = counts(job % 9);
                // SAFETY: `count` may run anywhere.
                unsafe { pool.run(count, &data, job % 9) };
                assert_each(&data, 1);
            }
        }
    }

    #[test]
    fn workers_wake_after_they_have_parked() {
        let pool = pool(3);
        for _ in 0..5 {
            thread::sleep(YIELD_FOR * 3);
            let data = counts(64);
            // SAFETY: `count` may run anywhere.
            unsafe { pool.run(count, &data, 64) };
            assert_each(&data, 1);
        }
    }

    #[test]
    fn two_submitters_share_a_pool() {
        let pool = pool(2);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let data = counts(7);
                        // SAFETY: `count` may run anywhere.
                        unsafe { pool.run(count, &data, 7) };
                        assert_each(&data, 1);
                    }
                });
            }
        });
    }

    /// The first chunk of the second half ends after all others.
    unsafe fn wait_for_others(counts: &Counts, chunk: usize, _worker: usize) {
        let all = counts.0.len();
        let done = || counts.0.iter().map(|n| n.load(Ordering::Relaxed)).sum::<usize>();
        let start = Instant::now();
        while chunk == all / 2 && done() < all - 1 {
            assert!(start.elapsed() < Duration::from_secs(10), "nobody does the others");
            thread::yield_now();
        }
        counts.0[chunk].fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn chunks_of_a_thread_that_is_late_are_done_by_the_other() {
        let pool = pool(2);
        for _ in 0..20 {
            // In the mode `Serial`, no other thread would do the other chunks.
            pool.shared.stalls.set([0; 2]);
            let data = counts(64);
            // SAFETY: `wait_for_others` may run anywhere.
            unsafe { pool.run(wait_for_others, &data, 64) };
            assert_each(&data, 1);
            assert_eq!(
                pool.shared.jobs.load(Ordering::Relaxed) % 2,
                0,
                "it is over, and nobody waits for it"
            );
        }
    }

    unsafe fn work_for_long(counts: &Counts, chunk: usize, _worker: usize) {
        let start = Instant::now();
        while start.elapsed() < AWAKE_MAX / 2 {
            std::hint::spin_loop();
        }
        counts.0[chunk].fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn guests_that_sleep_in_the_middle_of_a_job_lose_nothing() {
        let pool = pool(3);
        for _ in 0..20 {
            pool.shared.stalls.set([u64::MAX, 0]);
            let data = counts(64);
            // SAFETY: `work_for_long` may run anywhere.
            unsafe { pool.run(work_for_long, &data, 64) };
            assert_each(&data, 1);
            assert!(pool.shared.naps.load(Ordering::Relaxed));
        }
    }

    #[test]
    fn the_submitter_does_what_a_guest_sleeps_on() {
        let mut shared = Shared::default();
        shared.ranges.resize_with(2, Line::default);
        shared.taken.resize_with(2, Line::default);
        shared.ready.store(true, Ordering::Relaxed);
        let data = counts(5);
        let task: unsafe fn(&Counts, usize, usize) = count;
        shared.task.store(task as *mut (), Ordering::Relaxed);
        shared.data.store(std::ptr::from_ref(&data).cast_mut().cast(), Ordering::Relaxed);
        // The worker has done the first two chunks and stolen the others.
        shared.done.0.store(2, Ordering::Relaxed);
        shared.taken[1].0.store(5 << 32 | 2, Ordering::Relaxed);
        assert_eq!(shared.wait_done(5, true).0, 3);
        let done: Vec<usize> = data.0.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        assert_eq!(done, [0, 0, 1, 1, 1]);
    }

    /// The input of the chunks, and the number of times that each was done.
    struct Made(AtomicBool, Counts);

    unsafe fn use_what_was_made(made: &Made, chunk: usize, worker: usize) {
        assert!(made.0.load(Ordering::Relaxed), "chunk {chunk}");
        // SAFETY: it may run anywhere.
        unsafe { count(&made.1, chunk, worker) };
    }

    #[test]
    fn chunks_wait_for_what_comes_before_them() {
        for (threads, until) in [(1, [0; 2]), (3, [0; 2]), (3, [u64::MAX, 0]), (3, [0, u64::MAX])] {
            let pool = pool(threads);
            for chunks in [0, 1, 2, 9] {
                pool.shared.stalls.set(until);
                let made = Made(AtomicBool::default(), counts(chunks));
                let make = || {
                    thread::sleep(Duration::from_millis(2));
                    made.0.store(true, Ordering::Relaxed);
                };
                // SAFETY: `use_what_was_made` may run anywhere.
                unsafe { pool.run_after(make, use_what_was_made, &made, chunks) };
                assert!(made.0.load(Ordering::Relaxed));
                assert_each(&made.1, 1);
            }
        }
    }

    /// A task whose first chunk takes long on the submitter.
    unsafe fn stop_the_submitter(counts: &Counts, chunk: usize, worker: usize) {
        if (chunk, worker) == (0, 0) {
            thread::sleep(Duration::from_millis(20));
        }
        counts.0[chunk].fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn workers_see_that_the_submitter_is_stopped_and_one_says_so() {
        for threads in [2, 4] {
            let pool = pool(threads);
            let stay = || pool.shared.stalls.stay.load(Ordering::Relaxed);
            // The workers may be preempted meanwhile, or have done the first chunk.
            for _ in 0..100 {
                pool.shared.stalls.set([0; 2]);
                let data = counts(64);
                // SAFETY: `stop_the_submitter` may run anywhere.
                unsafe { pool.run(stop_the_submitter, &data, 64) };
                assert_each(&data, 1);
                if pool.shared.stalls.has_stalled() {
                    break;
                }
            }
            assert!(pool.shared.stalls.has_stalled() && stay() > 0, "{threads} threads");
        }
    }

    #[test]
    fn halves_of_a_range_are_all_of_it() {
        let range = |next: u64, end: u64| Line(AtomicU64::new(end << 32 | next));
        assert_eq!((range(7, 7).claim_half(), range(7, 7).claim()), (None, None));
        assert_eq!(range(7, 8).claim_half(), Some((7, 8)));
        for end in 8..40 {
            let range = range(7, end);
            let (first, last) = range.claim_half().unwrap();
            assert_eq!((first, last), (7 + (end - 7) / 2, end));
            let left: Vec<usize> = std::iter::from_fn(|| range.claim()).collect();
            assert!(left.into_iter().eq(7..first as usize));
        }
    }

    unsafe fn nested((pool, outer): &(Pool, Counts), chunk: usize, _worker: usize) {
        let inner = counts(5);
        // SAFETY: `count` may run anywhere.
        unsafe { pool.run(count, &inner, 5) };
        assert_each(&inner, 1);
        outer.0[chunk].fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn a_task_may_submit() {
        let data = (pool(2), counts(9));
        // SAFETY: `nested` may run anywhere.
        unsafe { data.0.run(nested, &data, 9) };
        assert_each(&data.1, 1);
    }

    unsafe fn fail_at_three(counts: &Counts, chunk: usize, _worker: usize) {
        assert!(chunk != 3, "chunk three");
        counts.0[chunk].fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn a_panic_reaches_the_submitter_and_the_pool_lives_on() {
        let pool = pool(3);
        for _ in 0..20 {
            let data = counts(16);
            // SAFETY: `fail_at_three` may run anywhere.
            let run = || unsafe { pool.run(fail_at_three, &data, 16) };
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            let done: usize = data.0.iter().map(|n| n.load(Ordering::Relaxed)).sum();
            assert_eq!(done, 15, "every other chunk was done");
            let data = counts(16);
            // SAFETY: `count` may run anywhere.
            let run = || unsafe { pool.run_after(|| panic!("before the chunks"), count, &data, 16) };
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            assert_each(&data, 1);
            let data = counts(16);
            // SAFETY: `count` may run anywhere.
            unsafe { pool.run(count, &data, 16) };
            assert_each(&data, 1);
        }
    }
}
