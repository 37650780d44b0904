//! Small kernels, written by hand, at the edges of what is checked: right ones pass, and their
//! broken twins are reported.

mod support;

use cuda_emu::{
    Arch, Checks, Device, DeviceConfig, Element, FaultKind, Launch, LaunchError, Module, Swizzle, TensorMap,
    launch,
};
use support::{kernel_of, upload};

const SEEDS: std::ops::Range<u64> = 0..32;

fn device(arch: Arch, seed: u64) -> Device {
    Device::new(DeviceConfig { arch, seed, threads: 1, ..DeviceConfig::default() })
}

fn run(device: &Device, ptx: &str, grid: u32, threads: u32, a: u64) -> Result<(), LaunchError> {
    let module = Module::load(device, ptx).unwrap();
    assert_eq!(module.problems().next(), None);
    let kernel = module.kernel("k").unwrap();
    let params = a.to_le_bytes();
    let plain = Launch::new(&kernel, [grid, 1, 1], [threads, 1, 1], &params);
    launch(device, &Launch { dynamic_shared_bytes: 4096, ..plain }).map(|_| ())
}

/// A kernel for sm_80, of one block.
fn run_block(seed: u64, body: &str, threads: u32, a: &[u32]) -> (Result<(), LaunchError>, Vec<u32>) {
    let device = device(Arch::Sm80, seed);
    let address = upload(&device, a, |word| word.to_le_bytes());
    let result = run(&device, &kernel_of("sm_80", body), 1, threads, address);
    (result, words(&device, address, a.len()))
}

fn words(device: &Device, address: u64, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    device.memory().copy_out(address, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[track_caller]
fn fault(result: Result<(), LaunchError>) -> FaultKind {
    match result {
        Err(LaunchError::Fault(fault)) => fault.kind,
        other => panic!("expected a fault, got {other:?}"),
    }
}

/// A cluster of two blocks: each writes a word, twice; then all come to `body`.
fn cluster(seed: u64, before: &str, body: &str) -> (Result<(), LaunchError>, Vec<u32>) {
    let body = format!(
        "mov.u32 %r3, %cluster_ctarank;
         setp.eq.u32 %p1, %r1, 0;
         @%p1 st.shared.u32 [%r2], %r1;
         {MEET}
         @%p1 st.shared.u32 [%r2], %r3;
         {before}
         {body}
         {MEET}
         @%p1 ld.shared.u32 %r4, [%r2];
         mad.wide.u32 %rd2, %r3, 4, %rd1;
         @%p1 st.global.u32 [%rd2], %r4;"
    );
    let text =
        kernel_of("sm_90", &body).replace("(.param .u64 a) {", "(.param .u64 a) .reqnctapercluster 2 {");
    let device = device(Arch::Sm90, seed);
    let out = upload(&device, &[7u32, 7], |word| word.to_le_bytes());
    let result = run(&device, &text, 2, 64, out);
    (result, words(&device, out, 2))
}

const MEET: &str = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";

#[test]
fn lanes_of_a_warp_read_several_blocks() {
    let read = "setp.lt.u32 %p2, %r1, 2;
        @%p2 mapa.shared::cluster.u32 %r5, %r2, %r1;
        @%p2 ld.shared::cluster.u32 %r6, [%r5];";
    let one_reads = "setp.lt.u32 %p2, %r1, 2; setp.eq.and.u32 %p2, %r3, 0, %p2;
        @%p2 mapa.shared::cluster.u32 %r5, %r2, %r1;
        @%p2 ld.shared::cluster.u32 %r6, [%r5];";
    for (seed, read) in SEEDS.flat_map(|seed| [(seed, read), (seed, one_reads)]) {
        let (result, found) = cluster(seed, MEET, read);
        result.unwrap();
        assert_eq!(found, [0, 1]);
        let found = fault(cluster(seed, "", read).0);
        assert!(matches!(found, FaultKind::Race { .. }), "seed {seed}: {found}");
    }
}

#[test]
fn lanes_of_a_warp_add_to_several_blocks() {
    let add = "and.b32 %r5, %r1, 1;
        mapa.shared::cluster.u32 %r6, %r2, %r5;
        red.shared::cluster.add.u32 [%r6], 1;";
    for seed in SEEDS {
        let (result, found) = cluster(seed, MEET, add);
        result.unwrap();
        assert_eq!(found, [64, 65]);
        let found = fault(cluster(seed, "", add).0);
        assert!(matches!(found, FaultKind::Race { .. }), "seed {seed}: {found}");
    }
}

#[test]
fn copies_and_matrix_loads_reach_their_own_block_only() {
    let copy = "@%p1 cp.async.ca.shared.global [%r6], [%rd1], 4; cp.async.wait_all;";
    let load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r5}, [%r6];";
    let store = "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r6], {%r5};";
    let of_rank = |rank: &str, body: &str| format!("{rank} mapa.shared::cluster.u32 %r6, %r2, %r5; {body}");
    for seed in SEEDS {
        let (result, found) = cluster(seed, MEET, &of_rank("mov.u32 %r5, %r3;", copy));
        result.unwrap();
        assert_eq!(found, [7, 7]);
        for body in [copy, load, store] {
            let found = fault(cluster(seed, MEET, &of_rank("xor.b32 %r5, %r3, 1;", body)).0);
            assert!(matches!(found, FaultKind::OutOfBounds { .. }), "seed {seed}: {found}");
        }
    }
}

/// A barrier that half of the warps come to, each in two parts, orders nothing of the others.
#[test]
fn a_barrier_of_some_warps_orders_no_others() {
    let body = "shr.u32 %r3, %r1, 5; setp.ge.u32 %p1, %r3, 2; @%p1 bra OTHERS;
        and.b32 %r4, %r1, 16; setp.ne.u32 %p2, %r4, 0; @%p2 bra HIGH;
        barrier.sync 1, 64; bra DONE;
      HIGH: barrier.sync 1, 64; bra DONE;
      OTHERS: and.b32 %r5, %r1, 31; shl.b32 %r5, %r5, 2; add.u32 %r5, %r5, %r2;
        st.shared.u32 [%r5], %r3;
      DONE:";
    for seed in 0..200 {
        let found = fault(run_block(seed, body, 128, &[0]).0);
        assert!(matches!(found, FaultKind::Race { .. }), "seed {seed}: {found}");
    }
}

/// The same where warps have lost lanes: those that wait are fewer than they seem.
#[test]
fn a_barrier_of_halved_warps_orders_no_others() {
    let body = "shr.u32 %r3, %r1, 5; setp.ge.u32 %p1, %r3, 2; @%p1 bra OTHERS;
        and.b32 %r4, %r1, 16; setp.ne.u32 %p2, %r4, 0; @%p2 exit;
        barrier.sync.aligned 1, 64; bra DONE;
      OTHERS: setp.ne.u32 %p3, %r1, 64; setp.ne.and.u32 %p3, %r1, 96, %p3; @%p3 exit;
        st.shared.u32 [%r2], %r3;
      DONE:";
    for seed in 0..200 {
        let found = fault(run_block(seed, body, 128, &[0]).0);
        assert!(matches!(found, FaultKind::Race { .. }), "seed {seed}: {found}");
    }
}

/// What `mma` gives for zeros times zeros is its accumulator, in other registers.
#[test]
fn mma_gives_its_sums_to_registers_of_c_in_another_order() {
    let (a, b) = ("{%r30, %r30, %r30, %r30}", "{%r30, %r30}");
    let four = |ty: &str| {
        format!("mma.sync.aligned.{ty} {{%r12, %r13, %r10, %r11}}, {a}, {b}, {{%r10, %r11, %r12, %r13}};")
    };
    let cases = [
        (four("m16n8k32.row.col.s32.s8.s8.s32"), [1, 2, 3, 4], [3, 4, 1, 2]),
        (
            four("m16n8k16.row.col.f32.f16.f16.f32")
                .replace("%r12, %r13, %r10, %r11", "%f2, %f3, %f0, %f1")
                .replace("%r10, %r11, %r12, %r13", "%f0, %f1, %f2, %f3"),
            [1f32, 2.0, 3.0, 4.0].map(f32::to_bits),
            [3f32, 4.0, 1.0, 2.0].map(f32::to_bits),
        ),
        (
            format!(
                "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {{%r11, %r10}}, {a}, {b}, {{%r10, %r11}};"
            ),
            [0x3c00_4000, 0x4200_4400, 5, 6],
            [0x4200_4400, 0x3c00_4000, 5, 6],
        ),
    ];
    for (mma, given, wanted) in cases {
        let registers = if mma.contains("%f") { "{%f0, %f1, %f2, %f3}" } else { "{%r10, %r11, %r12, %r13}" };
        let kind = if mma.contains("%f") { "f32" } else { "u32" };
        let body = format!(
            "mov.u32 %r30, 0; ld.global.v4.{kind} {registers}, [%rd1]; {mma}
             setp.eq.u32 %p1, %r1, 0; bar.warp.sync -1; @%p1 st.global.v4.{kind} [%rd1], {registers};"
        );
        let (result, found) = run_block(0, &body, 32, &given);
        result.unwrap();
        assert_eq!(found, wanted, "{mma}");
    }
}

/// A copy of fewer bytes than it writes reads no others.
#[test]
fn a_short_copy_ends_where_its_bytes_end() {
    let copy = |from: u32, bytes: u32| {
        let body = format!(
            "cp.async.ca.shared.global [%r2], [%rd1+{from}], 16, {bytes}; cp.async.wait_all;
             ld.shared.v4.u32 {{%r3, %r4, %r5, %r6}}, [%r2]; st.global.v4.u32 [%rd1], {{%r3, %r4, %r5, %r6}};"
        );
        run_block(0, &body, 1, &[1, 2, 3, 4, 5, 6])
    };
    let (result, found) = copy(16, 8);
    result.unwrap();
    assert_eq!(found, [5, 6, 0, 0, 5, 6]);
    let (result, found) = copy(16, 3);
    result.unwrap();
    assert_eq!(found, [5, 0, 0, 0, 5, 6]);
    let found = fault(copy(16, 9).0);
    assert!(matches!(found, FaultKind::OutOfBounds { bytes: 9, .. }), "{found}");
    let found = fault(copy(8, 8).0);
    assert!(matches!(found, FaultKind::Misaligned { bytes: 16, .. }), "{found}");
    let found = fault(copy(0, 17).0);
    assert!(matches!(found, FaultKind::Invalid(_)), "{found}");
}

/// Each lane gets parts of all rows, also where it gives the address of the one that it wrote.
#[test]
fn a_fragment_is_read_by_all_lanes() {
    let body = |meet: &str| {
        format!(
            "shl.b32 %r3, %r1, 4; add.u32 %r3, %r3, %r2;
             st.shared.v4.u32 [%r3], {{%r1, %r1, %r1, %r1}};
             {meet}
             ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r4, %r5, %r6, %r7}}, [%r3];"
        )
    };
    run_block(0, &body("bar.warp.sync -1;"), 32, &[0]).0.unwrap();
    run_block(0, &body("bar.sync 0;"), 32, &[0]).0.unwrap();
    let found = fault(run_block(0, &body(""), 32, &[0]).0);
    assert!(matches!(found, FaultKind::Race { .. }), "{found}");
}

/// Warp 0 writes, warp 2 copies, two barriers between them: a proxy fence counts wherever it stands
/// behind the one and before the other, and nowhere else.
#[test]
fn a_proxy_fence_counts_on_the_way_from_the_write_to_the_copy() {
    let body = |warp: u32, place: usize| {
        let mut fences = [""; 3];
        fences[place] = "@%p2 fence.proxy.async;";
        let [before, between, behind] = fences;
        format!(
            "shr.u32 %r3, %r1, 5; shl.b32 %r4, %r1, 2; add.u32 %r4, %r2, %r4;
             setp.eq.u32 %p2, %r3, {warp}; setp.eq.u32 %p3, %r1, 64;
             st.shared.u32 [%r4], %r1;
             {before} bar.sync 0; {between} bar.sync 0; {behind}
             @%p3 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128;
             @%p3 cp.async.bulk.commit_group;
             @%p3 cp.async.bulk.wait_group 0;"
        )
    };
    let counts = [(0, 0), (0, 1), (1, 1), (2, 1), (2, 2)];
    for (warp, place) in (0..3).flat_map(|warp| (0..3).map(move |place| (warp, place))) {
        for seed in SEEDS {
            let device = device(Arch::Sm90, seed);
            let out = upload(&device, &[7u32; 32], |word| word.to_le_bytes());
            let result = run(&device, &kernel_of("sm_90", &body(warp, place)), 1, 96, out);
            if counts.contains(&(warp, place)) {
                result.unwrap();
                assert_eq!(words(&device, out, 2), [0, 1]);
            } else {
                let found = fault(result);
                assert!(matches!(found, FaultKind::MissingProxyFence { .. }), "{warp}, {place}: {found}");
            }
        }
    }
}

/// Lanes of a warp may store one result; other warps, and lanes that come back, may not without a barrier.
#[test]
fn one_value_is_stored_by_one_warp() {
    let store = "mov.u32 %r3, 7; @%p1 st.shared.u32 [%r2], %r3;";
    let by = |lanes: &str| format!("{lanes} {store}");
    for seed in SEEDS {
        run_block(seed, &by("setp.lt.u32 %p1, %r1, 32;"), 64, &[0]).0.unwrap();
        // The second warp's lane 1, and the first's lane 0.
        let two = by("setp.eq.u32 %p1, %r1, 0; setp.eq.or.u32 %p1, %r1, 33, %p1;");
        let found = fault(run_block(seed, &two, 64, &[0]).0);
        assert!(matches!(found, FaultKind::Race { .. }), "seed {seed}: {found}");
    }
}

/// A copy in bulk lies in one unit of a pool, not across two, even where the next begins.
#[test]
fn a_bulk_copy_stays_in_its_part() {
    let body = |bytes: u32| {
        format!(
            "shl.b32 %r4, %r1, 2; add.u32 %r4, %r2, %r4; setp.eq.u32 %p1, %r1, 0;
             st.shared.u32 [%r4], %r1; fence.proxy.async; bar.sync 0;
             @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], {bytes};
             @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;"
        )
    };
    let device = device(Arch::Sm90, 0);
    let pool = upload(&device, &[7u32; 64], |word| word.to_le_bytes());
    device.memory().register_part(pool, 128).unwrap();
    device.memory().register_part(pool + 128, 128).unwrap();
    run(&device, &kernel_of("sm_90", &body(128)), 1, 64, pool).unwrap();
    assert_eq!(words(&device, pool, 33)[31..], [31, 7]);
    let found = fault(run(&device, &kernel_of("sm_90", &body(256)), 1, 64, pool));
    assert!(matches!(found, FaultKind::OutOfBounds { bytes: 256, .. }), "{found}");
}

/// A copy from shared memory to shared memory reads its source by the asynchronous proxy, until it has come.
#[test]
fn a_bulk_copy_reads_shared_memory() {
    let body = |write: &str, fence: &str, before: &str, after: &str| {
        let overwrite = "st.shared.u32 [%r6], %r2;";
        let [before, after] = [before, after].map(|here| here.replace("overwrite", overwrite));
        format!(
            "setp.eq.u32 %p1, %r1, 0; add.u32 %r3, %r2, 512; add.u32 %r4, %r2, 1024;
             shl.b32 %r5, %r1, 2; add.u32 %r6, %r3, %r5; add.u32 %r7, %r4, %r5;
             @%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
             {write} {fence} bar.sync 0;
             @%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd2, [%r2], 128;
             @%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r4], [%r3], 128, [%r2];
             bar.warp.sync -1; {before}
           WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra WAIT;
             {after} ld.shared.u32 %r8, [%r7]; mad.wide.u32 %rd3, %r1, 4, %rd1; st.global.u32 [%rd3], %r8;"
        )
    };
    let (write, fence) = ("st.shared.u32 [%r6], %r1;", "fence.proxy.async;");
    for seed in SEEDS {
        let go = |body: &str| {
            let device = device(Arch::Sm90, seed);
            let out = upload(&device, &[99u32; 32], |word| word.to_le_bytes());
            let result = run(&device, &kernel_of("sm_90", body), 1, 32, out);
            (result, words(&device, out, 32))
        };
        let (result, found) = go(&body(write, fence, "", "overwrite"));
        result.unwrap();
        assert!(found.into_iter().eq(0..32));
        let found = fault(go(&body("", fence, "", "")).0);
        assert!(matches!(found, FaultKind::Uninitialised { .. }), "seed {seed}: {found}");
        let found = fault(go(&body(write, "", "", "")).0);
        assert!(matches!(found, FaultKind::MissingProxyFence { .. }), "seed {seed}: {found}");
        let found = fault(go(&body(write, fence, "overwrite", "")).0);
        assert!(
            matches!(found, FaultKind::Race { access: "write", other_access: "read", .. }),
            "seed {seed}: {found}"
        );
    }
}

/// As many bytes as an mbarrier can expect in a phase.
#[test]
fn an_mbarrier_counts_so_many_bytes() {
    let body = |expect: &str| format!("mbarrier.init.shared::cta.b64 [%r2], 2; mbarrier.{expect};");
    for (expect, most) in [
        ("arrive.expect_tx.release.cta.shared::cta.b64 %rd2, [%r2], BYTES", 0xf_ffff),
        ("expect_tx.relaxed.cta.shared::cta.b64 [%r2], BYTES", 0xf_ffff),
    ] {
        let go = |bytes: u32| {
            let device = device(Arch::Sm90, 0);
            run(&device, &kernel_of("sm_90", &body(&expect.replace("BYTES", &bytes.to_string()))), 1, 1, 0)
        };
        go(most).unwrap();
        let found = fault(go(most + 1));
        assert!(matches!(found, FaultKind::Invalid(_)), "{expect}: {found}");
    }
}

/// Each lane's own operand counts, of the barriers that a warp's lanes come to.
#[test]
fn lanes_name_their_barriers() {
    let halves = "setp.lt.u32 %p1, %r1, 16; selp.b32 %r3, 0xffff, 0xffff0000, %p1;";
    let one_less = "mov.u32 %r3, 0x7fffffff;";
    let sync = "bar.warp.sync %r3;";
    run_block(0, &format!("{halves} {sync}"), 32, &[0]).0.unwrap();
    let wrong = [
        format!("{one_less} {sync}"),
        format!("{halves} not.b32 %r3, %r3; {sync}"),
        "and.b32 %r3, %r1, 1; barrier.sync %r3;".to_string(),
        "and.b32 %r3, %r1, 32; add.u32 %r3, %r3, 32; shr.u32 %r4, %r1, 4; and.b32 %r4, %r4, 1;
         mad.lo.u32 %r3, %r4, 32, %r3; barrier.sync 1, %r3;"
            .to_string(),
    ];
    for body in wrong {
        let found = fault(run_block(0, &body, 32, &[0]).0);
        assert!(matches!(found, FaultKind::Invalid(_)), "{body}: {found}");
    }
}

/// Atomics and copies read global memory like loads: what something wrote.
#[test]
fn nothing_wrote_what_is_read() {
    let bodies = [
        "atom.global.add.u32 %r3, [%rd1], 1;",
        "red.global.add.u32 [%rd1], 1;",
        "cp.async.ca.shared.global [%r2], [%rd1], 16; cp.async.wait_all;",
        "cp.async.ca.shared.global [%r2], [%rd1], 16, 4; cp.async.wait_all;",
        "mbarrier.init.shared::cta.b64 [%r2], 1; add.u32 %r3, %r2, 128;
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1], 16, [%r2];",
    ];
    for body in bodies {
        let device = device(Arch::Sm90, 0);
        let fresh = device.memory().alloc(64).unwrap();
        let found = fault(run(&device, &kernel_of("sm_90", body), 1, 1, fresh));
        assert!(matches!(found, FaultKind::Uninitialised { .. }), "{body}: {found}");
    }
}

/// A bulk store writes its bytes and no others.
#[test]
fn a_bulk_store_writes_global_memory() {
    let body = |read: u32| {
        format!(
            "shl.b32 %r4, %r1, 2; add.u32 %r4, %r2, %r4; setp.eq.u32 %p1, %r1, 0;
             st.shared.u32 [%r4], %r1; fence.proxy.async; bar.sync 0;
             @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128;
             @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;
             bar.sync 0; ld.global.u32 %r5, [%rd1+{read}];"
        )
    };
    let device = device(Arch::Sm90, 0);
    let fresh = device.memory().alloc(256).unwrap();
    run(&device, &kernel_of("sm_90", &body(124)), 1, 32, fresh).unwrap();
    let found = fault(run(&device, &kernel_of("sm_90", &body(128)), 1, 32, fresh));
    assert!(matches!(found, FaultKind::Uninitialised { .. }), "{found}");
}

#[test]
fn addresses_are_multiples_of_the_access() {
    let bodies = [
        "st.shared.u32 [%r2+2], %r1;",
        "st.shared.v2.u32 [%r2+4], {%r1, %r1};",
        "st.shared.u32 [%r2], %r1; ld.shared.u16 %rs1, [%r2+1];",
        "st.shared.u64 [%r2], %rd1; atom.shared.add.u32 %r3, [%r2+2], 1;",
        "cp.async.ca.shared.global [%r2+4], [%rd1], 8;",
        ".local .align 8 .b8 b[16]; mov.u64 %rd2, b; st.local.u32 [%rd2+2], %r1;",
        ".local .align 8 .b8 b[16]; mov.u64 %rd2, b; cvta.local.u64 %rd2, %rd2; st.u64 [%rd2+4], %rd1;",
    ];
    for body in bodies {
        let found = fault(run_block(0, body, 1, &[0, 0]).0);
        assert!(matches!(found, FaultKind::Misaligned { .. }), "{body}: {found}");
    }
}

#[test]
fn what_mbarriers_cannot_count_is_invalid() {
    let bodies = [
        "st.shared.u64 [%r2], %rd1; mbarrier.arrive.shared.b64 %rd2, [%r2];",
        "mbarrier.init.shared.b64 [%r2], 0;",
        "mbarrier.init.shared.b64 [%r2], 1; mbarrier.inval.shared.b64 [%r2]; mbarrier.arrive.shared.b64 %rd2, [%r2];",
        "mbarrier.init.shared.b64 [%r2], 1; mbarrier.arrive.noComplete.shared.b64 %rd2, [%r2], 2;",
        "mbarrier.init.shared.b64 [%r2], 1; mbarrier.arrive.noComplete.shared.b64 %rd2, [%r2], 1;",
        "mbarrier.init.shared.b64 [%r2], 1; mbarrier.arrive_drop.noComplete.shared.b64 %rd2, [%r2], 2;",
    ];
    for body in bodies {
        let found = fault(run_block(0, body, 1, &[0]).0);
        assert!(matches!(found, FaultKind::Invalid(_)), "{body}: {found}");
    }
    run_block(
        0,
        "mbarrier.init.shared.b64 [%r2], 2; mbarrier.arrive.noComplete.shared.b64 %rd2, [%r2], 1;",
        1,
        &[0],
    )
    .0
    .unwrap();
}

/// A block's memory ends with it: whoever reads it later, and who has not said that it is done.
#[test]
fn a_block_that_exits_takes_its_memory_along() {
    let read = "setp.eq.u32 %p2, %r3, 0; @%p2 exit;
        mov.u32 %r5, 0; mapa.shared::cluster.u32 %r5, %r2, %r5; ld.shared::cluster.u32 %r6, [%r5];";
    let found: Vec<FaultKind> = SEEDS.map(|seed| fault(cluster(seed, MEET, read).0)).collect();
    let freed = |kind: &FaultKind| matches!(kind, FaultKind::UseAfterFree { .. });
    let raced = |kind: &FaultKind| matches!(kind, FaultKind::Race { access: "exit", .. });
    assert!(found.iter().all(|kind| freed(kind) || raced(kind)), "{found:?}");
    assert!(found.iter().any(freed) && found.iter().any(raced), "{found:?}");
}

#[test]
fn a_bulk_load_comes_before_its_block_ends() {
    let body = |wait: &str| {
        format!(
            "mbarrier.init.shared::cta.b64 [%r2], 1; add.u32 %r3, %r2, 128;
             mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd2, [%r2], 16;
             cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1], 16, [%r2]; {wait}"
        )
    };
    let wait = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra WAIT;";
    let device = device(Arch::Sm90, 0);
    let from = upload(&device, &[7u32; 4], |word| word.to_le_bytes());
    run(&device, &kernel_of("sm_90", &body(wait)), 1, 1, from).unwrap();
    let found = fault(run(&device, &kernel_of("sm_90", &body("")), 1, 1, from));
    assert!(matches!(found, FaultKind::NotAwaited { access: "exit", .. }), "{found}");
}

/// A wait for bulk stores is for the lane's own, and leaves as many groups as it says.
#[test]
fn waits_for_bulk_stores_count_groups_of_a_lane() {
    let body = |lane: u32, keep: u32, group: u32| {
        format!(
            "shl.b32 %r4, %r1, 2; add.u32 %r4, %r2, %r4; setp.eq.u32 %p1, %r1, 0; setp.eq.u32 %p2, %r1, {lane};
             st.shared.u32 [%r4], %r1; st.shared.u32 [%r4+128], %r1; fence.proxy.async; bar.sync 0;
             @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 128;
             cp.async.bulk.commit_group; add.u32 %r5, %r2, 128;
             @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1+128], [%r5], 128;
             cp.async.bulk.commit_group;
             @%p2 cp.async.bulk.wait_group {keep}; bar.warp.sync -1;
             st.shared.u32 [%r4+{}], %r1; @%p1 cp.async.bulk.wait_group 0;",
            128 * group
        )
    };
    for (lane, keep, group, ordered) in
        [(0, 0, 0, true), (0, 0, 1, true), (0, 1, 0, true), (0, 1, 1, false), (1, 0, 0, false)]
    {
        let device = device(Arch::Sm90, 0);
        let to = upload(&device, &[0u32; 64], |word| word.to_le_bytes());
        let result = run(&device, &kernel_of("sm_90", &body(lane, keep, group)), 1, 32, to);
        if ordered {
            result.unwrap();
        } else {
            let found = fault(result);
            assert!(matches!(found, FaultKind::Race { .. }), "{lane}, {keep}, {group}: {found}");
        }
    }
}

/// Lanes and warps that have exited are waited for by nobody.
#[test]
fn who_has_exited_is_not_waited_for() {
    let bodies = [
        "setp.ge.u32 %p1, %r1, 32; @%p1 bra OUT; bar.sync 0; OUT:",
        "and.b32 %r3, %r1, 31; setp.lt.u32 %p1, %r3, 4; @%p1 exit; bar.warp.sync -1;
         shfl.sync.down.b32 %r3, %r1, 1, 31, -1; bar.sync 0;",
    ];
    for (seed, body) in SEEDS.flat_map(|seed| bodies.map(|body| (seed, body))) {
        run_block(seed, body, 64, &[0]).0.unwrap();
    }
}

#[test]
fn more_than_are_expected_is_invalid() {
    let barrier = "setp.lt.u32 %p1, %r1, 16; setp.ge.or.u32 %p1, %r1, 32, %p1; @%p1 barrier.sync 1, 32;";
    let shuffle = "shfl.sync.down.b32 %r3, %r1, 1, 31, 0xffff;";
    for body in [barrier, shuffle] {
        let found = fault(run_block(0, body, 64, &[0]).0);
        assert!(matches!(found, FaultKind::Invalid(_)), "{body}: {found}");
    }
    let arrivals = "mbarrier.init.shared::cta.b64 [%r2], 1;
        mbarrier.arrive.release.cta.shared::cta.b64 %rd2, [%r2], 2;";
    let found = fault(run(&device(Arch::Sm90, 0), &kernel_of("sm_90", arrivals), 1, 1, 0));
    assert!(matches!(found, FaultKind::Invalid(_)), "{found}");
}

/// An arrival that does not wait orders nothing for its warp.
#[test]
fn an_arrival_is_no_wait() {
    let body = "setp.lt.u32 %p1, %r1, 32; @%p1 bra FIRST;
        st.shared.u32 [%r2], %r1; bar.sync 1, 64; bra DONE;
      FIRST: bar.arrive 1, 64; ld.shared.u32 %r3, [%r2];
      DONE:";
    for seed in SEEDS {
        let body = body.replace("st.shared", "setp.eq.u32 %p2, %r1, 32; @%p2 st.shared");
        let found = fault(run_block(seed, &body, 64, &[0]).0);
        let kinds = matches!(found, FaultKind::Race { .. } | FaultKind::Uninitialised { .. });
        assert!(kinds, "seed {seed}: {found}");
    }
}

/// Copies of boxes: the map has as many dimensions as the copy says, the box starts at a multiple of 128
/// bytes, and each block that a copy goes to has an mbarrier.
#[test]
fn a_box_comes_as_its_map_says() {
    let body = |dims: &str, offset: u32, with_mbarrier: &str, multicast: (&str, &str)| {
        format!(
            "setp.eq.u32 %p1, %r1, 0; mov.u32 %r5, %cluster_ctarank; setp.eq.and.u32 %p2, %r5, 0, %p1;
             add.u32 %r3, %r2, {offset}; add.u32 %r4, %r2, 2048; mov.u32 %r6, 0; mov.b16 %rs1, 3;
             @{with_mbarrier} mbarrier.init.shared::cta.b64 [%r4], 1; {MEET} @!{with_mbarrier} bra OUT;
             mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd2, [%r4], 64;
             @%p2 cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes{} [%r3], [%rd1, {dims}], [%r4]{};
           WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4], 0; @!%p3 bra WAIT;
           OUT: {MEET}",
            dims.matches("%r6").count(),
            multicast.0,
            multicast.1
        )
    };
    let go = |body: String| {
        let device = device(Arch::Sm90, 0);
        let map = TensorMap {
            element: Element::Word,
            address: upload(&device, &[1u32; 256], |word| word.to_le_bytes()),
            dims: vec![32, 8],
            strides: vec![128],
            box_dims: vec![8, 2],
            swizzle: Swizzle::None,
            fill_nan: false,
        };
        let map = upload(&device, &map.encode().unwrap(), |byte| [*byte]);
        let text =
            kernel_of("sm_90", &body).replace("(.param .u64 a) {", "(.param .u64 a) .reqnctapercluster 2 {");
        run(&device, &text, 2, 32, map)
    };
    let (plane, one, both) = ("{%r6, %r6}", ("", ""), (".multicast::cluster", ", %rs1"));
    go(body(plane, 0, "%p2", one)).unwrap();
    go(body(plane, 128, "%p1", both)).unwrap();
    let wrong = [body("{%r6}", 0, "%p2", one), body(plane, 16, "%p2", one), body(plane, 0, "%p2", both)];
    for body in wrong {
        let found = fault(go(body.clone()));
        assert!(matches!(found, FaultKind::Invalid(_)), "{body}: {found}");
    }
}

/// A `wgmma` of zeros by one warpgroup: `before` stands between its fence and itself.
fn multiply(before: &str, a: &str, b: &str) -> Result<(), LaunchError> {
    let signs = if a.starts_with('{') { "0" } else { "0, 0" };
    let body = format!(
        "mov.u32 %r3, 0; shl.b32 %r4, %r1, 4; add.u32 %r4, %r4, %r2; mov.b32 %r10, 0; mov.b32 %r11, 0;
         st.shared.v4.u32 [%r4], {{%r3, %r3, %r3, %r3}}; fence.proxy.async; bar.sync 0;
         shr.u32 %r5, %r2, 4; cvt.u64.u32 %rd2, %r5; or.b64 %rd2, %rd2, 0x0000001000080000;
         and.b32 %r5, %r1, 1; cvt.u64.u32 %rd3, %r5; add.u64 %rd3, %rd3, %rd2;
         wgmma.fence.sync.aligned; {before}
         wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%f0, %f1, %f2, %f3}}, {a}, {b}, 0, 1, 1, {signs};
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
    );
    run(&device(Arch::Sm90, 0), &kernel_of("sm_90a", &body), 1, 128, 0)
}

#[test]
fn lanes_agree_on_descriptors() {
    multiply("", "%rd2", "%rd2").unwrap();
    for (a, b) in [("%rd3", "%rd2"), ("%rd2", "%rd3")] {
        let found = fault(multiply("", a, b));
        assert!(matches!(found, FaultKind::Invalid(_)), "{a}, {b}: {found}");
    }
}

/// A read of what was just written does not make up for the fence.
#[test]
fn a_fragment_that_was_written_and_read_needs_a_fence() {
    let fragment = "{%r10, %r11, %r11, %r11}";
    let (write, read) = ("mov.b32 %r10, %r1;", "add.u32 %r12, %r10, 1;");
    multiply(read, fragment, "%rd2").unwrap();
    multiply(&format!("{write} {read} wgmma.fence.sync.aligned;"), fragment, "%rd2").unwrap();
    let found = fault(multiply(&format!("{write} {read}"), fragment, "%rd2"));
    assert!(matches!(found, FaultKind::MissingWgmmaFence { .. }), "{found}");
}

/// Without the shadow too, what a copy has yet to bring is not what was there before.
#[test]
fn a_bulk_load_under_way_leaves_nothing_there() {
    let body = "mov.u32 %r3, 7; st.shared.u32 [%r2+128], %r3; add.u32 %r4, %r2, 128;
        mbarrier.init.shared::cta.b64 [%r2], 1;
        mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %rd2, [%r2], 16;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r4], [%rd1], 16, [%r2];
        ld.shared.u32 %r5, [%r4];
      WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra WAIT;
        ld.shared.u32 %r6, [%r4]; st.global.v2.u32 [%rd1+16], {%r5, %r6};";
    let config = DeviceConfig { arch: Arch::Sm90, checks: Checks::Bounds, ..DeviceConfig::default() };
    let device = Device::new(config);
    let at = upload(&device, &[5u32, 5, 5, 5, 0, 0], |word| word.to_le_bytes());
    run(&device, &kernel_of("sm_90", body), 1, 1, at).unwrap();
    assert_eq!(words(&device, at, 6)[4..], [u32::MAX, 5]);
}
