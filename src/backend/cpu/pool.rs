//! The thread pool: persistent threads that work off one job at a time, chunk by chunk.
//!
//! A job is a function, a pointer to its data and a number of chunks. One atomic word holds the
//! chunk count and the next chunk; a thread claims a chunk by compare-and-swap on it and only then
//! reads which function to call. A claim therefore always belongs to the job that stands in the
//! slot: the submitter cannot replace it before every claimed chunk is reported done. No lock is
//! taken and nothing is allocated after start-up. Waiting spins briefly, then yields, then (idle
//! workers) parks, so that an idle engine uses no CPU and a busy machine loses little.

use std::any::Any;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Spins before a waiting thread starts to yield: some microseconds, the gap between two
/// operations of a step.
const SPINS: u32 = 600;
/// How long an idle worker yields before it parks: longer than sampling takes between two steps.
const YIELD_FOR: Duration = Duration::from_millis(2);

/// `task(data, chunk, worker)`
type Task = unsafe fn(*const (), usize, usize);

/// A cache line of its own, so that claiming does not slow reporting.
#[derive(Default)]
#[repr(align(128))]
struct Line<T>(T);

#[derive(Default)]
struct Shared {
    /// Chunks of the job (high half) and the next one (low half).
    ticket: Line<AtomicU64>,
    /// Chunks reported done.
    done: Line<AtomicUsize>,
    /// A [`Task`], valid while a claimed chunk is not reported.
    task: AtomicPtr<()>,
    data: AtomicPtr<()>,
    /// Someone is submitting.
    busy: AtomicBool,
    panicked: AtomicBool,
    stopping: AtomicBool,
    /// Workers that have begun.
    begun: AtomicUsize,
    /// By worker: it has announced that it parks.
    parked: Vec<AtomicBool>,
}

/// Persistent worker threads; the submitting thread works as number 0.
pub(super) struct Pool {
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
    /// A pool of `threads`, the submitter included. If the system refuses threads the pool is
    /// smaller.
    pub(super) fn new(threads: NonZeroUsize) -> Pool {
        let mut parked = Vec::new();
        parked.resize_with(threads.get() - 1, AtomicBool::default);
        let shared = Arc::new(Shared { parked, ..Shared::default() });
        let mut workers = Vec::with_capacity(threads.get() - 1);
        for index in 0..threads.get() - 1 {
            let shared = Arc::clone(&shared);
            let builder = thread::Builder::new().name(format!("ottava-cpu-{}", index + 1));
            match builder.spawn(move || shared.work(index)) {
                Ok(worker) => workers.push(worker),
                Err(_) => break,
            }
        }
        let handles = workers.iter().map(|worker| worker.thread().clone()).collect();
        // A thread that starts allocates; from here on none does.
        while shared.begun.load(Ordering::Acquire) < workers.len() {
            thread::yield_now();
        }
        Pool { shared, workers, handles }
    }

    /// Threads that work on a job.
    pub(super) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(data, chunk, worker)` for every chunk below `chunks`, on all threads, and
    /// returns when all are done. If the pool is taken (another thread submits, or a task does)
    /// the caller does all chunks itself, as worker 0.
    ///
    /// # Panics
    /// If a task did, after all others have ended.
    ///
    /// # Safety
    /// `task` may be called with `data` and every chunk, from any thread, in any order.
    pub(super) unsafe fn run<T: Sync>(&self, task: unsafe fn(&T, usize, usize), data: &T, chunks: usize) {
        let alone = chunks <= 1 || self.workers.is_empty();
        if alone || self.shared.busy.swap(true, Ordering::Acquire) {
            for chunk in 0..chunks {
                // SAFETY: promised by the caller.
                unsafe { task(data, chunk, 0) };
            }
            return;
        }
        let chunks = u32::try_from(chunks).expect("fewer than 2^32 chunks");
        self.shared.task.store(task as *mut (), Ordering::Relaxed);
        self.shared.data.store(std::ptr::from_ref(data).cast_mut().cast(), Ordering::Relaxed);
        self.shared.done.0.store(0, Ordering::Relaxed);
        // Sequentially consistent, as are the parking flags: a worker either sees the job before
        // it parks or is seen parked here.
        self.shared.ticket.0.store(u64::from(chunks) << 32, Ordering::SeqCst);
        self.wake();
        let own_panic = self.shared.drain(0);
        self.shared.wait_done(chunks as usize);
        let panicked = self.shared.panicked.swap(false, Ordering::Relaxed);
        self.shared.busy.store(false, Ordering::Release);
        match own_panic {
            Some(payload) => resume_unwind(payload),
            None if panicked => panic!("a task panicked on a pool thread"),
            None => {}
        }
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
            // A worker catches its tasks' panics; there is nothing to report here.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Claims the next chunk of the current job.
    fn claim(&self) -> Option<usize> {
        let mut ticket = self.ticket.0.load(Ordering::Acquire);
        loop {
            let (chunks, next) = (ticket >> 32, ticket & u64::from(u32::MAX));
            if next >= chunks {
                return None;
            }
            match self.ticket.0.compare_exchange_weak(ticket, ticket + 1, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(next as usize),
                Err(now) => ticket = now,
            }
        }
    }

    /// Works off chunks until none is left; gives the first panic's payload.
    fn drain(&self, worker: usize) -> Option<Box<dyn Any + Send>> {
        let mut payload = None;
        while let Some(chunk) = self.claim() {
            let data = self.data.load(Ordering::Relaxed);
            // SAFETY: `run` stored a `Task` whose first parameter is a thin reference, in the same
            // slot, before it published the ticket that the claim acquired.
            let task = unsafe { std::mem::transmute::<*mut (), Task>(self.task.load(Ordering::Relaxed)) };
            // SAFETY: the claimed chunk is not reported yet, so `run` has not returned and `data`
            // lives; `run`'s caller promised that any thread may do any chunk.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { task(data, chunk, worker) }));
            if let Err(panic) = result {
                self.panicked.store(true, Ordering::Relaxed);
                payload.get_or_insert(panic);
            }
            // Releases the chunk's writes to `wait_done`. Nothing of the job is touched after.
            self.done.0.fetch_add(1, Ordering::Release);
        }
        payload
    }

    fn wait_done(&self, chunks: usize) {
        let mut spins = 0;
        while self.done.0.load(Ordering::Acquire) != chunks {
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }

    fn has_work(&self) -> bool {
        let ticket = self.ticket.0.load(Ordering::SeqCst);
        ticket >> 32 > ticket & u64::from(u32::MAX)
    }

    /// A worker's life.
    fn work(&self, index: usize) {
        self.begun.fetch_add(1, Ordering::Release);
        while !self.stopping.load(Ordering::Relaxed) {
            drop(self.drain(index + 1));
            self.idle(index);
        }
    }

    /// Returns when there is work, or is none for long and then is again.
    fn idle(&self, index: usize) {
        for _ in 0..SPINS {
            if self.has_work() {
                return;
            }
            std::hint::spin_loop();
        }
        let start = Instant::now();
        while start.elapsed() < YIELD_FOR {
            if self.has_work() {
                return;
            }
            thread::yield_now();
        }
        self.parked[index].store(true, Ordering::SeqCst);
        if self.has_work() || self.stopping.load(Ordering::SeqCst) {
            self.parked[index].store(false, Ordering::SeqCst);
            return;
        }
        thread::park();
        self.parked[index].store(false, Ordering::SeqCst);
    }
}

/// Threads for a pool when none are asked for: the physical cores that this process may use.
pub(super) fn default_threads() -> NonZeroUsize {
    let logical = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    physical_cores().map_or(logical, |physical| physical.min(logical))
}

/// Distinct sibling sets among the machine's CPUs, where the system tells.
fn physical_cores() -> Option<NonZeroUsize> {
    let mut siblings = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir("/sys/devices/system/cpu").ok()?.flatten() {
        if let Ok(list) = std::fs::read_to_string(entry.path().join("topology/thread_siblings_list")) {
            siblings.insert(list);
        }
    }
    NonZeroUsize::new(siblings.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(NonZeroUsize::new(threads).unwrap())
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
        for threads in [1, 2, 3, 8] {
            let pool = pool(threads);
            assert_eq!(pool.threads(), threads);
            for job in 0..3000 {
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
            unsafe { pool.run(count, &data, 16) };
            assert_each(&data, 1);
        }
    }
}
