//! The KV accounting takes no memory while a sequence grows: everything is reserved at `allocate`.
//! Counts what this thread allocates; other tests run in other threads and do not disturb.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ottava::TokenId;
use ottava::ir::Window;
use ottava::kv::{KvCacheManager, KvConfig, PrefixSharing, SeqId, SequenceSpec};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to `System` unchanged; counting touches a thread local without a
// destructor or lazy initialiser, so it neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

fn write(kv: &mut KvCacheManager, seq: SeqId, tokens: &[TokenId]) {
    kv.reserve(seq, tokens.len()).unwrap();
    kv.advance(seq, tokens).unwrap();
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn reserve_and_advance_allocate_nothing() {
    let mut kv =
        KvCacheManager::new(KvConfig { pages: 64, prefix: PrefixSharing::On { salt: [1; 32] } }).unwrap();
    let window = Some(Window { window: 100, sinks: 20 });
    // Enough rounds that pages are cached, evicted, dropped and registered many times over.
    let mut counter = 0;
    for round in 0..50 {
        let fresh = [TokenId(10_000 + round)];
        let plain =
            kv.allocate(&fresh, SequenceSpec { tokens_max: 500, window: None, salt: None }).unwrap().seq;
        let sliding =
            kv.allocate(&fresh, SequenceSpec { tokens_max: 30_000, window, salt: None }).unwrap().seq;
        let mut work = || {
            for _ in 0..40 {
                let chunk: [TokenId; 12] = std::array::from_fn(|at| TokenId(counter + at as u32));
                counter += 1;
                write(&mut kv, plain, &chunk);
                for one in chunk {
                    write(&mut kv, sliding, &[one]);
                }
            }
        };
        assert_eq!(allocations(&mut work), 0, "round {round}");
        let fork = kv.fork(plain).unwrap();
        let copy = allocations(|| write(&mut kv, fork, &[TokenId(1)]));
        assert_eq!(copy, 0, "copy on write in round {round}");
        for seq in [plain, sliding, fork] {
            kv.release(seq).unwrap();
        }
        kv.check_integrity().unwrap();
    }
    let stats = kv.stats();
    assert!(stats.evictions > 1000, "the rounds were meant to evict: {stats:?}");
}

#[test]
fn a_window_that_runs_for_ever_allocates_nothing_either() {
    let mut kv = KvCacheManager::new(KvConfig { pages: 8, prefix: PrefixSharing::Off }).unwrap();
    let window = Some(Window { window: 32, sinks: 4 });
    let seq =
        kv.allocate(&[TokenId(0)], SequenceSpec { tokens_max: 200_000, window, salt: None }).unwrap().seq;
    let count = allocations(|| (0..200_000).for_each(|token| write(&mut kv, seq, &[TokenId(token)])));
    assert_eq!((count, kv.len(seq).unwrap(), kv.used_pages()), (0, 200_000, 3));
    kv.check_integrity().unwrap();
}
