//! Warps that wait for each other by flags in shared memory: right ones pass whatever the order of
//! warps, and each that lacks a piece is a race.

mod support;

use cuda_emu::{Arch, Device, DeviceConfig, FaultKind, Launch, LaunchError, Module, launch};
use support::{kernel_of, upload};

const SEEDS: std::ops::Range<u64> = 0..20;
/// Words of the result.
const WORDS: usize = 32;

/// Runs a kernel of `grid` blocks; its lane is in %r3, its warp in %r4, the address of the lane's word in
/// %r5, zero in %r6. The flags, from byte 128 on, are zero.
fn run(
    seed: u64,
    target: &str,
    (grid, warps): (u32, u32),
    body: &str,
) -> (Result<(), LaunchError>, Vec<u32>) {
    run_at_most(50_000_000, seed, target, (grid, warps), body)
}

fn run_at_most(
    warp_instructions_max: u64,
    seed: u64,
    target: &str,
    (grid, warps): (u32, u32),
    body: &str,
) -> (Result<(), LaunchError>, Vec<u32>) {
    let arch = if target == "sm_90" { Arch::Sm90 } else { Arch::Sm80 };
    let device = Device::new(DeviceConfig {
        arch,
        seed,
        threads: 1,
        warp_instructions_max,
        ..DeviceConfig::default()
    });
    let out = upload(&device, &[0u32; WORDS], |word| word.to_le_bytes());
    let body = format!(
        "and.b32 %r3, %r1, 31; shr.u32 %r4, %r1, 5; shl.b32 %r5, %r3, 2; add.u32 %r5, %r5, %r2;
         mov.u32 %r6, 0; setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r3, 0;
         @%p1 st.shared.v4.u32 [%r2+128], {{%r6, %r6, %r6, %r6}}; bar.sync 0; {body}"
    );
    let mut text = kernel_of(target, &body);
    if grid > 1 {
        text = text.replace("(.param .u64 a) {", &format!("(.param .u64 a) .reqnctapercluster {grid} {{"));
    }
    let module = Module::load(&device, &text).unwrap();
    assert_eq!(module.problems().next(), None);
    let kernel = module.kernel("k").unwrap();
    let params = out.to_le_bytes();
    let plain = Launch::new(&kernel, [grid, 1, 1], [32 * warps, 1, 1], &params);
    let result = launch(&device, &Launch { dynamic_shared_bytes: 4096, ..plain }).map(|_| ());
    let mut bytes = [0; 4 * WORDS];
    device.memory().copy_out(out, &mut bytes).unwrap();
    (result, bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

#[track_caller]
fn is_right(target: &str, shape: (u32, u32), body: &str, wanted: impl Fn(u32) -> u32) {
    for seed in SEEDS {
        let (result, found) = run(seed, target, shape, body);
        result.unwrap_or_else(|error| panic!("seed {seed}: {error}\n{body}"));
        assert!(found.into_iter().eq((0..WORDS as u32).map(&wanted)), "seed {seed}: {body}");
    }
}

#[track_caller]
fn is_a_race(target: &str, shape: (u32, u32), body: &str) {
    for seed in SEEDS {
        match run(seed, target, shape, body).0 {
            Err(LaunchError::Fault(fault)) if matches!(fault.kind, FaultKind::Race { .. }) => {}
            other => panic!("seed {seed}: {other:?}\n{body}"),
        }
    }
}

/// The first lane comes back here until what `get` reads into %r7 is what it waits for.
fn poll(label: &str, get: &str, until: u32) -> String {
    format!(
        "@!%p2 bra {label}_MEET;
       {label}: {get} setp.ne.u32 %p3, %r7, {until}; @%p3 bra {label};
       {label}_MEET: bar.warp.sync -1;"
    )
}

/// Each lane's result is the word of the lane beside it.
const READ: &str = "xor.b32 %r8, %r5, 4; ld.shared.u32 %r9, [%r8];
    mad.wide.u32 %rd2, %r3, 4, %rd1; st.global.u32 [%rd2], %r9;";

/// Warp 0 writes a word a lane, and sets a flag; warp 1 waits for that, and reads.
fn hand_over([before, set, get, after]: [&str; 4]) -> String {
    format!(
        "mov.u32 %r10, 1; mov.u64 %rd3, smem; cvta.shared.u64 %rd3, %rd3;
         setp.ne.u32 %p4, %r4, 0; @%p4 bra READER;
         st.shared.u32 [%r5], %r1; bar.warp.sync -1; {before} @%p2 {set} bra DONE;
       READER: {} {after} {READ}
       DONE:",
        poll("POLL", get, 1)
    )
}

const NONE: &str = "";
const FENCE: &str = "fence.acq_rel.cta;";
const MEMBAR: &str = "membar.cta;";
const RELEASE: &str = "st.release.cta.shared.u32 [%r2+128], %r10;";
const ACQUIRE: &str = "ld.acquire.cta.shared.u32 %r7, [%r2+128];";
const RELAXED_STORE: &str = "st.relaxed.cta.shared.u32 [%r2+128], %r10;";
const RELAXED_LOAD: &str = "ld.relaxed.cta.shared.u32 %r7, [%r2+128];";
const VOLATILE_STORE: &str = "st.volatile.shared.u32 [%r2+128], %r10;";
const VOLATILE_LOAD: &str = "ld.volatile.shared.u32 %r7, [%r2+128];";
const WEAK_STORE: &str = "st.shared.u32 [%r2+128], %r10;";
const WEAK_LOAD: &str = "ld.shared.u32 %r7, [%r2+128];";

#[test]
fn a_flag_hands_over() {
    let right = [
        [NONE, RELEASE, ACQUIRE, NONE],
        [FENCE, RELAXED_STORE, RELAXED_LOAD, FENCE],
        [MEMBAR, VOLATILE_STORE, VOLATILE_LOAD, MEMBAR],
        [FENCE, RELAXED_STORE, ACQUIRE, NONE],
        [NONE, RELEASE, VOLATILE_LOAD, MEMBAR],
        [
            NONE,
            "st.release.cta.shared.u32 [%r2+128], %r6; st.relaxed.cta.shared.u32 [%r2+128], %r10;",
            ACQUIRE,
            NONE,
        ],
        [NONE, "atom.release.cta.shared.exch.b32 %r11, [%r2+128], %r10;", ACQUIRE, NONE],
        [NONE, "red.release.cta.shared.add.u32 [%r2+128], %r10;", ACQUIRE, NONE],
        [NONE, RELEASE, "atom.acquire.cta.shared.or.b32 %r7, [%r2+128], %r6;", NONE],
        [NONE, "atom.acq_rel.cta.shared.cas.b32 %r11, [%r2+128], %r6, %r10;", ACQUIRE, NONE],
        [MEMBAR, "red.shared.add.u32 [%r2+128], %r10;", "atom.shared.cas.b32 %r7, [%r2+128], 2, 3;", MEMBAR],
        [NONE, "st.release.cta.u32 [%rd3+128], %r10;", "ld.acquire.cta.u32 %r7, [%rd3+128];", NONE],
        [
            MEMBAR,
            "st.volatile.shared.v2.u32 [%r2+128], {%r10, %r10};",
            "ld.volatile.shared.u32 %r7, [%r2+132];",
            MEMBAR,
        ],
        [MEMBAR, VOLATILE_STORE, "ld.volatile.shared.v2.u32 {%r7, %r11}, [%r2+128];", MEMBAR],
        // Who has met the flag's value may take it back, by a plain store too.
        [MEMBAR, VOLATILE_STORE, VOLATILE_LOAD, "membar.cta; @%p2 st.shared.u32 [%r2+128], %r6;"],
        [
            "membar.cta; @%p2 st.release.cta.shared.u32 [%r2+132], %r10;",
            VOLATILE_STORE,
            VOLATILE_LOAD,
            "membar.cta; @%p2 st.shared.u32 [%r2+128], %r6;",
        ],
        [
            NONE,
            "st.release.cta.shared.u32 [%r2+128], %r6; @%p2 st.relaxed.cta.shared.u32 [%r2+128], %r10;",
            ACQUIRE,
            "@%p2 st.shared.u32 [%r2+128], %r6;",
        ],
    ];
    for pieces in right {
        is_right("sm_80", (1, 2), &hand_over(pieces), |lane| lane ^ 1);
    }
}

#[test]
fn a_flag_that_lacks_a_piece_orders_nothing() {
    let wrong = [
        [NONE, RELAXED_STORE, ACQUIRE, NONE],
        [NONE, RELEASE, RELAXED_LOAD, NONE],
        [NONE, RELAXED_STORE, RELAXED_LOAD, FENCE],
        [FENCE, RELAXED_STORE, RELAXED_LOAD, NONE],
        [NONE, VOLATILE_STORE, VOLATILE_LOAD, MEMBAR],
        [MEMBAR, VOLATILE_STORE, VOLATILE_LOAD, NONE],
        [MEMBAR, WEAK_STORE, VOLATILE_LOAD, MEMBAR],
        [MEMBAR, VOLATILE_STORE, WEAK_LOAD, MEMBAR],
        [MEMBAR, WEAK_STORE, WEAK_LOAD, MEMBAR],
        [NONE, "red.shared.add.u32 [%r2+128], %r10;", ACQUIRE, NONE],
        [NONE, RELEASE, "atom.shared.or.b32 %r7, [%r2+128], %r6;", NONE],
        // The fence stands before what is written, or on the wrong side of the flag.
        ["membar.cta; st.shared.u32 [%r5], %r3;", VOLATILE_STORE, VOLATILE_LOAD, MEMBAR],
        [NONE, "st.volatile.shared.u32 [%r2+128], %r10; membar.cta;", VOLATILE_LOAD, MEMBAR],
        [MEMBAR, VOLATILE_STORE, "membar.cta; ld.volatile.shared.u32 %r7, [%r2+128];", NONE],
        // A flag of one word is not the next one.
        [
            NONE,
            "st.release.cta.shared.u32 [%r2+132], %r10; st.relaxed.cta.shared.u32 [%r2+128], %r10;",
            ACQUIRE,
            NONE,
        ],
        // An atomic that writes nothing releases nothing.
        [
            NONE,
            "atom.release.cta.shared.cas.b32 %r11, [%r2+128], %r10, %r6; st.relaxed.cta.shared.u32 [%r2+128], %r10;",
            ACQUIRE,
            NONE,
        ],
    ];
    for pieces in wrong {
        is_a_race("sm_80", (1, 2), &hand_over(pieces));
    }
    // Who does not wait is found where it comes first.
    let body = hand_over([NONE, RELEASE, &format!("{ACQUIRE} mov.u32 %r7, 1;"), NONE]);
    let found: Vec<_> = SEEDS.map(|seed| run(seed, "sm_80", (1, 2), &body).0).collect();
    assert!(found.iter().any(Result::is_ok) && found.iter().any(Result::is_err), "{found:?}");
}

/// Fences of one side; PTX has them of clusters only.
#[test]
fn a_fence_may_order_one_way() {
    let acquire = "fence.acquire.sync_restrict::shared::cluster.cluster;";
    let release = "fence.release.sync_restrict::shared::cta.cluster;";
    let body = |before, after| hand_over([before, RELAXED_STORE, RELAXED_LOAD, after]);
    is_right("sm_90", (1, 2), &body(release, acquire), |lane| lane ^ 1);
    is_a_race("sm_90", (1, 2), &body(acquire, acquire));
    is_a_race("sm_90", (1, 2), &body(release, release));
}

/// Warp 0 sets a flag to 1, warp 1 waits for that and does something, and warp 2 reads what warp 0 wrote.
fn chain(middle: &str, last: &str) -> String {
    format!(
        "mov.u32 %r10, 1; mov.u32 %r12, 2;
         setp.eq.u32 %p4, %r4, 1; @%p4 bra MIDDLE; setp.eq.u32 %p5, %r4, 2; @%p5 bra LAST;
         st.shared.u32 [%r5], %r1; bar.warp.sync -1; @%p2 {RELEASE} bra DONE;
       MIDDLE: {middle} bra DONE;
       LAST: {last} {READ}
       DONE:"
    )
}

#[test]
fn flags_hand_on_what_they_got() {
    let after = |get: &str, then: &str| format!("{} {then}", poll("WAIT", get, 1));
    let (release, relaxed) = (
        "@%p2 st.release.cta.shared.u32 [%r2+132], %r10;",
        "@%p2 st.relaxed.cta.shared.u32 [%r2+132], %r10;",
    );
    let last = poll("LOOK", "ld.acquire.cta.shared.u32 %r7, [%r2+132];", 1);
    for middle in [after(ACQUIRE, release), after(RELAXED_LOAD, &format!("{FENCE} {relaxed}"))] {
        is_right("sm_80", (1, 3), &chain(&middle, &last), |lane| lane ^ 1);
    }
    for middle in [after(ACQUIRE, relaxed), after(RELAXED_LOAD, release), after(RELAXED_LOAD, relaxed)] {
        is_a_race("sm_80", (1, 3), &chain(&middle, &last));
    }
}

/// What was released into a flag stays there through atomics, and not through a store.
#[test]
fn an_atomic_keeps_what_a_flag_holds() {
    let middle = |set: &str| format!("{} @%p2 {set}", poll("WAIT", RELAXED_LOAD, 1));
    let last = format!("{} {ACQUIRE}", poll("LOOK", RELAXED_LOAD, 2));
    let add = "red.relaxed.cta.shared.add.u32 [%r2+128], %r10;";
    is_right("sm_80", (1, 3), &chain(&middle(add), &last), |lane| lane ^ 1);
    let store = "st.relaxed.cta.shared.u32 [%r2+128], %r12;";
    is_a_race("sm_80", (1, 3), &chain(&middle(store), &last));
}

/// Who has not read all that was written there reads a flag by strong loads only.
#[test]
fn a_strong_write_hides_no_other() {
    let both = |write: &str, read: &str| {
        format!("mov.u32 %r10, 1; @%p2 {write} setp.eq.u32 %p4, %r4, 1; @%p4 {read}")
    };
    for read in [WEAK_LOAD, WEAK_STORE] {
        is_a_race("sm_80", (1, 2), &both("st.relaxed.cta.shared.u32 [%r2+128], %r4;", read));
        // Who adds last has read the sum of the others. It need not come last.
        for write in ["red.shared.add.u32 [%r2+128], 1;", "atom.shared.add.u32 %r7, [%r2+128], 1;"] {
            let found: Vec<_> =
                SEEDS.map(|seed| run(seed, "sm_80", (1, 2), &both(write, read)).0.is_ok()).collect();
            assert!(found.contains(&true) && found.contains(&false), "{write} {read}: {found:?}");
        }
    }
    // Warp 1 knows what came before the flag's new value, but has read the old one only.
    let body = format!(
        "mov.u32 %r10, 1; setp.ne.u32 %p4, %r4, 0; @%p4 bra READER;
         {FENCE} @%p2 st.relaxed.cta.shared.u32 [%r2+132], %r10; {} @%p2 {RELAXED_STORE} bra DONE;
       READER: @%p2 {RELAXED_LOAD} @%p2 st.relaxed.cta.shared.u32 [%r2+136], %r10; {} {WEAK_LOAD}
       DONE:",
        poll("WAIT", "ld.relaxed.cta.shared.u32 %r7, [%r2+136];", 1),
        poll("POLL", "ld.acquire.cta.shared.u32 %r7, [%r2+132];", 1),
    );
    is_a_race("sm_80", (1, 2), &body);
}

/// What was read is behind who has read it, without any fence.
#[test]
fn who_has_read_a_flag_may_take_it_back() {
    let count = "@%p2 atom.shared.add.u32 %r9, [%r2+128], 1; @!%p2 bra DONE;
         setp.eq.u32 %p3, %r9, 2; @%p3 st.shared.u32 [%r2+128], %r6;
       DONE:";
    is_right("sm_80", (1, 3), count, |_| 0);
    let flag = |set: &str, get: &str| {
        format!(
            "mov.u32 %r10, 1; setp.ne.u32 %p4, %r4, 0; @%p4 bra READER;
             @%p2 {RELEASE} @%p2 st.release.cta.shared.u32 [%r2+132], %r10; @%p2 {set} bra DONE;
           READER: {} @%p2 {WEAK_STORE}
           DONE:",
            poll("POLL", get, 2)
        )
    };
    let set = "st.relaxed.cta.shared.u32 [%r2+128], 2;";
    is_right("sm_80", (1, 2), &flag(set, RELAXED_LOAD), |_| 0);
    is_right("sm_80", (1, 2), &flag("red.shared.add.u32 [%r2+128], 1;", ACQUIRE), |_| 0);
    // A store, by whoever, makes its value of no other.
    let stores = format!(
        "mov.u32 %r10, 1; setp.eq.u32 %p4, %r4, 2; @%p4 bra READER; @%p2 {RELAXED_STORE} @%p2 {} bra DONE;
       READER: {} @%p2 {WEAK_STORE}
       DONE:",
        "red.shared.add.u32 [%r2+132], 1;",
        poll("POLL", "ld.relaxed.cta.shared.u32 %r7, [%r2+132];", 2)
            .replace("POLL_MEET:", "POLL_MEET: @%p2 ld.relaxed.cta.shared.u32 %r7, [%r2+128];"),
    );
    is_a_race("sm_80", (1, 3), &stores);
}

#[test]
fn lanes_meet_before_a_volatile_load_of_what_another_wrote() {
    let body = |meet: &str| {
        format!(
            "xor.b32 %r8, %r5, 4; st.shared.u32 [%r5], %r3; {meet} ld.volatile.shared.u32 %r9, [%r8];
             mad.wide.u32 %rd2, %r3, 4, %rd1; st.global.u32 [%rd2], %r9;"
        )
    };
    is_right("sm_80", (1, 1), &body("bar.warp.sync -1;"), |lane| lane ^ 1);
    is_a_race("sm_80", (1, 1), &body(NONE));
}

/// Each thread counts itself, one at a time.
fn lock(take: &str, after: &str, before: &str, give: &str) -> String {
    format!(
        "mov.u32 %r10, 1; mov.u32 %r11, 0; @%p1 st.shared.u32 [%r2], %r6; bar.sync 0;
       AGAIN: {take} setp.ne.u32 %p3, %r7, 0; @%p3 bra NEXT;
         {after} ld.shared.u32 %r8, [%r2]; add.u32 %r8, %r8, 1; st.shared.u32 [%r2], %r8; {before} {give}
         mov.u32 %r11, 1;
       NEXT: setp.eq.u32 %p3, %r11, 0; @%p3 bra AGAIN;
         bar.sync 0; ld.shared.u32 %r8, [%r2]; mad.wide.u32 %rd2, %r3, 4, %rd1; st.global.u32 [%rd2], %r8;"
    )
}

#[test]
fn a_lock_orders_who_holds_it() {
    let (take, give) =
        ("atom.shared.cas.b32 %r7, [%r2+128], %r6, %r10;", "atom.shared.exch.b32 %r9, [%r2+128], %r6;");
    let (acquire, release) = (
        "atom.acquire.cta.shared.cas.b32 %r7, [%r2+128], %r6, %r10;",
        "st.release.cta.shared.u32 [%r2+128], %r6;",
    );
    for body in [
        lock(acquire, NONE, NONE, release),
        lock(take, MEMBAR, MEMBAR, give),
        lock(take, MEMBAR, MEMBAR, "st.volatile.shared.u32 [%r2+128], %r6;"),
    ] {
        is_right("sm_80", (1, 3), &body, |_| 96);
    }
    for body in [
        lock(take, NONE, NONE, release),
        lock(take, NONE, MEMBAR, give),
        lock(take, MEMBAR, NONE, give),
        lock(acquire, NONE, NONE, give),
        lock(acquire, NONE, NONE, "st.shared.u32 [%r2+128], %r6;"),
    ] {
        is_a_race("sm_80", (1, 3), &body);
    }
}

/// Each warp writes its words and counts itself; the last adds all up, and takes the count back.
fn last_warp(before: &str, after: &str) -> String {
    let read = "ld.shared.u32 %r11, [%r5+256]; ld.shared.u32 %r12, [%r5+384]; ld.shared.u32 %r13, [%r5+512];";
    format!(
        "mad.lo.u32 %r8, %r4, 128, %r5; st.shared.u32 [%r8+256], %r1; {before} bar.warp.sync -1;
         @%p2 atom.shared.add.u32 %r9, [%r2+128], 1; shfl.sync.idx.b32 %r9, %r9, 0, 31, -1;
         setp.ne.u32 %p3, %r9, 2; @%p3 bra DONE;
         {after} {read} add.u32 %r11, %r11, %r12; add.u32 %r11, %r11, %r13;
         @%p2 st.shared.u32 [%r2+128], %r6;
         mad.wide.u32 %rd2, %r3, 4, %rd1; st.global.u32 [%rd2], %r11;
       DONE:"
    )
}

#[test]
fn the_last_warp_finds_what_all_wrote() {
    is_right("sm_80", (1, 3), &last_warp(MEMBAR, MEMBAR), |lane| 3 * lane + 96);
    is_a_race("sm_80", (1, 3), &last_warp(NONE, MEMBAR));
    is_a_race("sm_80", (1, 3), &last_warp(MEMBAR, NONE));
}

/// A barrier of all threads forgets what flags held, as all of that is behind it.
#[test]
fn a_flag_serves_again_after_a_barrier() {
    let rounds = |before: &str| {
        format!(
            "mov.u32 %r10, 0;
           ROUND: add.u32 %r10, %r10, 1; setp.ne.u32 %p4, %r4, 0; @%p4 bra READER;
             st.shared.u32 [%r5], %r3; {before} bar.warp.sync -1; @%p2 {VOLATILE_STORE} bra MET;
           READER: @!%p2 bra POLL_MEET;
           POLL: {VOLATILE_LOAD} setp.ne.u32 %p3, %r7, %r10; @%p3 bra POLL;
           POLL_MEET: bar.warp.sync -1; {MEMBAR} {READ}
           MET: bar.sync 0; setp.lt.u32 %p3, %r10, 5; @%p3 bra ROUND;"
        )
    };
    is_right("sm_80", (1, 2), &rounds(MEMBAR), |lane| lane ^ 1);
    is_a_race("sm_80", (1, 2), &rounds("setp.eq.u32 %p5, %r10, 1; @%p5 membar.cta;"));
}

/// What a flag held before a barrier says nothing of what comes after it.
#[test]
fn a_barrier_empties_flags() {
    let body = format!(
        "mov.u32 %r10, 1; setp.ne.u32 %p4, %r4, 0; @%p4 bra MET;
         st.shared.u32 [%r5], %r1; {RELEASE} {RELEASE}
       MET: bar.sync 0; @%p4 bra READER;
         st.shared.u32 [%r5], %r3; bra DONE;
       READER: {ACQUIRE} {READ}
       DONE:"
    );
    is_a_race("sm_80", (1, 2), &body);
}

/// A flag in another block's memory.
#[test]
fn blocks_of_a_cluster_hand_over() {
    let meet = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";
    let body = |set: &str| {
        format!(
            "mov.u32 %r10, %cluster_ctarank; mov.u32 %r11, 1;
             mapa.shared::cluster.u32 %r12, %r2, 0; mapa.shared::cluster.u32 %r13, %r5, 0; {meet}
             setp.eq.u32 %p4, %r10, 0; @%p4 bra READER;
             st.shared::cluster.u32 [%r13], %r3; bar.warp.sync -1; @%p2 {set} bra DONE;
           READER: {} {READ}
           DONE: {meet}",
            poll("POLL", "ld.acquire.cluster.shared::cluster.u32 %r7, [%r2+128];", 1)
        )
    };
    is_right("sm_90", (2, 1), &body("st.release.cluster.shared::cluster.u32 [%r12+128], %r11;"), |lane| {
        lane ^ 1
    });
    is_a_race("sm_90", (2, 1), &body("st.relaxed.cluster.shared::cluster.u32 [%r12+128], %r11;"));
}

/// A warp that polls keeps nobody from going on: neither a copy that another waits for, nor turns that
/// are handed to and fro more often than idle ones are borne.
#[test]
fn who_polls_lets_others_go_on() {
    let copy = |get: &str| {
        format!(
            "mov.u32 %r10, 1; setp.ne.u32 %p4, %r4, 0; @%p4 bra READER;
         @%p2 mbarrier.init.shared::cta.b64 [%r2+256], 1; bar.warp.sync -1; add.u32 %r11, %r2, 256;
         @%p2 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd2, [%r11], 128;
         @%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 128, [%r11];
       WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11], 0; @!%p3 bra WAIT;
         @%p2 {RELEASE} bra DONE;
       READER: {} {READ}
       DONE:",
            poll("POLL", get, 1)
        )
    };
    is_right("sm_90", (1, 2), &copy(ACQUIRE), |_| 0);
    is_right("sm_90", (1, 2), &copy("atom.acquire.cta.shared.or.b32 %r7, [%r2+128], %r6;"), |_| 0);
    is_right("sm_90", (1, 2), &copy("atom.acquire.cta.shared.cas.b32 %r7, [%r2+128], 2, 3;"), |_| 0);
    // One that takes a lock and gives it back each time.
    let take = "LOCK: atom.acquire.cta.shared.cas.b32 %r9, [%r2+132], %r6, %r10; setp.ne.u32 %p5, %r9, 0;
         @%p5 bra LOCK;";
    let locked = format!("{take} {RELAXED_LOAD} {} {ACQUIRE}", "st.release.cta.shared.u32 [%r2+132], %r6;");
    is_right("sm_90", (1, 2), &copy(&locked), |_| 0);
    let rally = "mov.u32 %r10, 0; @!%p2 bra DONE;
       AGAIN: setp.ge.u32 %p4, %r10, 200; @%p4 bra DONE;
       POLL: nanosleep.u32 20; ld.acquire.cta.shared.u32 %r7, [%r2+128]; and.b32 %r8, %r7, 1;
         setp.ne.u32 %p3, %r8, %r4; @%p3 bra POLL;
         add.u32 %r10, %r7, 1; st.release.cta.shared.u32 [%r2+128], %r10; bra AGAIN;
       DONE:";
    is_right("sm_80", (1, 2), rally, |_| 0);
}

/// Another block or the host may be about to change global memory, and time goes on: who sleeps and looks there
/// may go on.
#[test]
fn who_looks_at_what_others_change_is_not_stuck() {
    let ends = |get: &str| {
        let body = format!("POLL: nanosleep.u32 20; {get} setp.ne.u32 %p3, %r7, 1; @%p3 bra POLL;");
        match run_at_most(100_000, 1, "sm_80", (1, 1), &body).0 {
            Err(LaunchError::Fault(fault)) => fault.kind,
            other => panic!("{other:?}"),
        }
    };
    for get in [
        "ld.acquire.gpu.global.u32 %r7, [%rd1];",
        "atom.global.or.b32 %r7, [%rd1], %r6;",
        "mov.u32 %r7, %clock; and.b32 %r7, %r7, 0;",
    ] {
        assert!(matches!(ends(get), FaultKind::NeverEnds { .. }), "{get}");
    }
    assert!(matches!(ends(VOLATILE_LOAD), FaultKind::Deadlock { .. }));
}
