//! Blocks that hand results to each other through global memory, by arrivals at a counter: right ones pass
//! whatever the order of blocks and warps, and each that lacks a barrier or a fence is a race.

mod support;

use cuda_emu::{Arch, Checks, Device, DeviceConfig, FaultKind, Launch, LaunchError, Module, launch};
use support::{kernel_of, upload};

const SEEDS: std::ops::Range<u64> = 0..12;
const BLOCKS: u32 = 3;
const THREADS: u32 = 64;
/// Words: the counter's 64, a word a thread of all blocks, the results.
const WORDS: usize = 64 * (1 + BLOCKS as usize + 1);

fn run_with(checks: Checks, seed: u64, cooperative: bool, body: &str) -> (Result<(), LaunchError>, Vec<u32>) {
    let config = DeviceConfig { arch: Arch::Sm80, seed, threads: 2, checks, ..DeviceConfig::default() };
    let device = Device::new(config);
    let buffer = upload(&device, &[0u32; WORDS], |word| word.to_le_bytes());
    let module = Module::load(&device, &kernel_of("sm_80", body)).unwrap();
    assert_eq!(module.problems().next(), None);
    let kernel = module.kernel("k").unwrap();
    let params = buffer.to_le_bytes();
    let plain = Launch::new(&kernel, [BLOCKS, 1, 1], [THREADS, 1, 1], &params);
    let described = Launch { dynamic_shared_bytes: 64, cooperative, ..plain };
    let result = launch(&device, &described).map(|_| ());
    let mut bytes = [0; 4 * WORDS];
    device.memory().copy_out(buffer, &mut bytes).unwrap();
    (result, bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

fn run(seed: u64, cooperative: bool, body: &str) -> (Result<(), LaunchError>, Vec<u32>) {
    run_with(Checks::All, seed, cooperative, body)
}

/// Each thread writes a word; the block that arrives last adds those of all blocks, and puts the counter back.
struct Split {
    before_write: &'static str,
    all: &'static str,
    barrier: &'static str,
    one: &'static str,
    arrive: &'static str,
}

const FENCE: &str = "fence.acq_rel.gpu;";
const BARRIER: &str = "bar.sync 0;";
const RELAXED: &str = "atom.global.add.u32 %r13, [%rd1], 1;";
const SHIPPED: Split = Split { before_write: "", all: FENCE, barrier: BARRIER, one: "", arrive: RELAXED };

impl Split {
    fn body(&self) -> String {
        let Split { before_write, all, barrier, one, arrive } = self;
        format!(
            "mov.u32 %r10, %ctaid.x; mad.lo.u32 %r11, %r10, {THREADS}, %r1; mad.wide.u32 %rd2, %r11, 4, %rd1;
             add.u32 %r12, %r11, 1; setp.ne.u32 %p1, %r1, 0; {before_write}
             st.global.u32 [%rd2+256], %r12; {all} {barrier}
             @%p1 bra WAIT; {one} {arrive}
             setp.eq.u32 %p2, %r13, {}; selp.u32 %r14, 1, 0, %p2; st.shared.u32 [%r2], %r14;
             @%p2 st.global.u32 [%rd1], 0;
           WAIT: bar.sync 0; ld.shared.u32 %r14, [%r2]; setp.eq.u32 %p3, %r14, 0; @%p3 bra DONE;
             {FENCE} mad.wide.u32 %rd3, %r1, 4, %rd1;
             ld.global.u32 %r20, [%rd3+256]; ld.global.u32 %r21, [%rd3+512]; ld.global.u32 %r22, [%rd3+768];
             add.u32 %r20, %r20, %r21; add.u32 %r20, %r20, %r22; st.global.u32 [%rd3+1024], %r20;
           DONE:",
            BLOCKS - 1
        )
    }
}

#[track_caller]
fn is_right(split: &Split) {
    for seed in SEEDS {
        let (result, found) = run(seed, false, &split.body());
        result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let expected = (0..THREADS).map(|thread| (0..BLOCKS).map(|block| block * THREADS + thread + 1).sum());
        assert!(found[256..].iter().copied().eq(expected.collect::<Vec<u32>>()), "seed {seed}");
        assert_eq!(found[0], 0);
    }
}

#[track_caller]
fn lacks(what: &str, split: &Split) {
    for seed in SEEDS {
        match run(seed, false, &split.body()).0 {
            Err(LaunchError::Fault(fault)) => match &fault.kind {
                FaultKind::HandedTooEarly { access, other_access, missing, other_place, .. } => {
                    assert_eq!((*access, *other_access, *missing), ("read", "write", what), "seed {seed}");
                    assert!(other_place.ptx_text.starts_with("st.global.u32"), "{fault}");
                    assert!(fault.to_string().contains("race in global memory"), "{fault}");
                }
                other => panic!("seed {seed}: {other:?}"),
            },
            other => panic!("seed {seed}: {other:?}"),
        }
    }
}

#[test]
fn a_barrier_and_a_fence_hand_over() {
    is_right(&SHIPPED);
    is_right(&Split { all: "membar.gl;", ..SHIPPED });
    is_right(&Split { all: "", one: FENCE, ..SHIPPED });
    is_right(&Split { all: "", one: "membar.gl;", ..SHIPPED });
    is_right(&Split { all: "", arrive: "atom.acq_rel.gpu.global.add.u32 %r13, [%rd1], 1;", ..SHIPPED });
    is_right(&Split { all: "", arrive: "atom.release.gpu.global.inc.u32 %r13, [%rd1], 99;", ..SHIPPED });
    // A barrier by number, of all threads by count, and one that adds predicates.
    is_right(&Split { barrier: "bar.sync 3, 64;", ..SHIPPED });
    is_right(&Split { barrier: "bar.red.or.pred %p5, 1, %p1;", ..SHIPPED });
    // Two barriers, the fence between them.
    is_right(&Split { all: "bar.sync 0; fence.acq_rel.gpu;", ..SHIPPED });
    is_right(&Split { all: "bar.sync 0;", one: FENCE, barrier: "", ..SHIPPED });
}

#[test]
fn a_missing_barrier_is_a_race() {
    lacks("a barrier", &Split { barrier: "", ..SHIPPED });
    lacks("a barrier", &Split { barrier: "bar.warp.sync -1;", ..SHIPPED });
    lacks(
        "a barrier",
        &Split { barrier: "", arrive: "atom.acq_rel.gpu.global.add.u32 %r13, [%rd1], 1;", ..SHIPPED },
    );
    // Before the write it orders nothing.
    lacks("a barrier", &Split { before_write: BARRIER, barrier: "", ..SHIPPED });
}

#[test]
fn a_missing_fence_is_a_race() {
    lacks("a fence", &Split { all: "", ..SHIPPED });
    lacks("a fence", &Split { before_write: FENCE, all: "", ..SHIPPED });
    // One that acquires only is none.
    lacks(
        "a fence",
        &Split { all: "", arrive: "atom.acquire.gpu.global.add.u32 %r13, [%rd1], 1;", ..SHIPPED },
    );
}

#[test]
fn it_is_looked_for_with_all_checks_only() {
    let body = Split { barrier: "", ..SHIPPED }.body();
    assert!(run_with(Checks::Bounds, 0, false, &body).0.is_ok());
}

/// Block 0 waits until the two others have arrived, and reads what they wrote.
fn polled(before: &str, arrive: &str, look: &str, after: &str) -> String {
    format!(
        "mov.u32 %r10, %ctaid.x; mad.lo.u32 %r11, %r10, {THREADS}, %r1; mad.wide.u32 %rd2, %r11, 4, %rd1;
         setp.ne.u32 %p1, %r1, 0; setp.eq.u32 %p4, %r10, 0; @%p4 bra READER;
         st.global.u32 [%rd2+256], %r11; {before} @%p1 bra DONE; {arrive} bra DONE;
       READER: @%p1 bra MEET;
       POLL: {look} setp.ne.u32 %p2, %r13, 2; @%p2 bra POLL; {after}
       MEET: bar.sync 0; mad.wide.u32 %rd3, %r1, 4, %rd1;
         ld.global.u32 %r20, [%rd3+512]; st.global.u32 [%rd3+1024], %r20;
       DONE:"
    )
}

#[test]
fn a_counter_that_is_polled_hands_over() {
    let red = "red.release.gpu.global.add.u32 [%rd1], 1;";
    let acquire = "ld.acquire.gpu.global.u32 %r13, [%rd1];";
    let right = [
        polled(BARRIER, red, acquire, ""),
        polled(
            "fence.acq_rel.gpu; bar.sync 0;",
            "red.global.add.u32 [%rd1], 1;",
            "ld.volatile.global.u32 %r13, [%rd1];",
            FENCE,
        ),
        polled(BARRIER, red, "atom.global.or.b32 %r13, [%rd1], 0;", FENCE),
    ];
    for body in &right {
        for seed in SEEDS {
            let (result, found) = run(seed, true, body);
            result.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{body}"));
            assert!(found[256..].iter().copied().eq(THREADS..2 * THREADS), "seed {seed}");
        }
    }
    let body = polled("", red, acquire, "");
    let races = SEEDS.filter(|&seed| match run(seed, true, &body).0 {
        Err(LaunchError::Fault(fault)) => {
            assert!(matches!(fault.kind, FaultKind::HandedTooEarly { .. }), "seed {seed}: {fault}");
            true
        }
        // The reader came first to all words, and its memory was never written: nothing went wrong yet.
        _ => false,
    });
    assert!(races.count() >= 6, "most orders show it");
}

/// Blocks that take work from a counter, or count in a table, hand nothing to each other.
#[test]
fn counters_that_hand_over_nothing_are_no_races() {
    // A turn for each of three rounds: the block writes the tile that it drew.
    let work = "mov.u32 %r15, 0;
      NEXT: setp.ne.u32 %p1, %r1, 0; @%p1 bra HAVE; atom.global.add.u32 %r13, [%rd1], 1; st.shared.u32 [%r2], %r13;
      HAVE: bar.sync 0; ld.shared.u32 %r13, [%r2]; bar.sync 0; setp.ge.u32 %p2, %r13, 3; @%p2 bra DONE;
        mad.lo.u32 %r11, %r13, 64, %r1; mad.wide.u32 %rd2, %r11, 4, %rd1;
        ld.global.u32 %r16, [%rd2+256]; add.u32 %r16, %r16, 5; st.global.u32 [%rd2+256], %r16; bra NEXT;
      DONE:";
    // All threads of all blocks count in one table, and write a word of their own plainly.
    let table = "and.b32 %r11, %r1, 7; mad.wide.u32 %rd2, %r11, 4, %rd1; red.global.add.u32 [%rd2], 1;
        mov.u32 %r10, %ctaid.x; mad.lo.u32 %r11, %r10, 64, %r1; mad.wide.u32 %rd3, %r11, 4, %rd1;
        st.global.u32 [%rd3+256], %r11; ld.global.u32 %r12, [%rd3+256];";
    for seed in SEEDS {
        let (result, found) = run(seed, false, work);
        result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(found[64..256].iter().all(|&word| word == 5), "seed {seed}");
        let (result, found) = run(seed, false, table);
        result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(found[..8].iter().all(|&count| count == BLOCKS * THREADS / 8), "seed {seed}");
    }
}

/// A block that has seen another arrive reads what that one writes afterwards.
#[test]
fn what_is_written_after_the_arrival_is_a_race() {
    let late =
        Split { arrive: "atom.global.add.u32 %r13, [%rd1], 1; st.global.u32 [%rd2+256], %r1;", ..SHIPPED };
    lacks("a barrier", &late);
}
