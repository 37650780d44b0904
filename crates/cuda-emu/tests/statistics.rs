//! Sectors and bank conflicts of kernels against counts by hand, and the driver's statistics.

mod support;

use cuda_emu::{Arch, Device, DeviceConfig, LaunchStats, Module};
use support::Params;

fn device() -> Device {
    Device::new(DeviceConfig { memory_statistics: true, ..DeviceConfig::default() })
}

/// Runs a body in one block: %rd1 is a buffer of zeros, %r1 the thread, %r2 shared memory.
fn count(threads: u32, body: &str) -> LaunchStats {
    count_on(&device(), "sm_80", threads, body)
}

fn count_on(device: &Device, target: &str, threads: u32, body: &str) -> LaunchStats {
    let text = support::kernel_of(target, body);
    let module = Module::load(device, &text).unwrap();
    let kernel = module.kernel("k").unwrap();
    let buffer = device.memory().alloc(1 << 18).unwrap();
    device.memory().fill(buffer, &[0], 1 << 18).unwrap();
    Params::new(&kernel).pointer(buffer).launch(device, [1, 1, 1], [threads, 1, 1], 16 << 10).unwrap()
}

/// Requests and sectors of an access to global memory, `stride` bytes from lane to lane.
fn global(threads: u32, stride: u32, access: &str) -> (u64, u64) {
    let body = format!("mul.wide.u32 %rd2, %r1, {stride}; add.s64 %rd3, %rd1, %rd2; {access}");
    let stats = count(threads, &body);
    assert_eq!((stats.shared_requests, stats.shared_bank_conflicts), (0, 0));
    (stats.global_requests, stats.global_sectors)
}

/// Requests and conflicts of an access to shared memory, `stride` bytes from lane to lane.
fn shared(stride: u32, access: &str) -> (u64, u64) {
    let stats = count(32, &format!("mad.lo.u32 %r3, %r1, {stride}, %r2; {access}"));
    assert_eq!((stats.global_requests, stats.global_sectors), (0, 0));
    (stats.shared_requests, stats.shared_bank_conflicts)
}

#[test]
fn global_sectors() {
    assert_eq!(global(32, 4, "ld.global.u32 %r3, [%rd3];"), (1, 4), "coalesced");
    assert_eq!(global(128, 4, "st.global.u32 [%rd3], %r1;"), (4, 16), "of four warps");
    assert_eq!(global(32, 32, "ld.global.u32 %r3, [%rd3];"), (1, 32), "strided");
    assert_eq!(global(32, 8, "ld.global.u32 %r3, [%rd3];"), (1, 8), "every other word");
    assert_eq!(global(32, 4, "ld.global.u32 %r3, [%rd3+20];"), (1, 5), "off by five words");
    assert_eq!(global(32, 0, "ld.global.u32 %r3, [%rd3];"), (1, 1), "the same word");
    assert_eq!(global(32, 1, "ld.global.u8 %rs1, [%rd3];"), (1, 1), "bytes");
    assert_eq!(global(20, 4, "ld.global.u32 %r3, [%rd3];"), (1, 3), "20 lanes");
    assert_eq!(global(32, 16, "ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd3];"), (1, 16), "vectors");
    assert_eq!(global(32, 8, "st.global.v2.u32 [%rd3], {%r1, %r2};"), (1, 8), "pairs");
    assert_eq!(global(32, 4, "red.global.add.u32 [%rd3], %r1;"), (1, 4), "atomics");
    assert_eq!(global(32, 0, "atom.global.add.u32 %r3, [%rd3], %r1;"), (1, 1), "atomics on one word");
    assert_eq!(global(32, 4, "setp.lt.u32 %p1, %r1, 8; @%p1 ld.global.u32 %r3, [%rd3];"), (1, 1), "guarded");
    assert_eq!(global(32, 4, "setp.gt.u32 %p1, %r1, 99; @%p1 ld.global.u32 %r3, [%rd3];"), (0, 0), "by none");
}

#[test]
fn a_footprint_counts_each_sector_once_a_launch() {
    let footprint = |threads, stride, access: &str| {
        let body = format!("mul.wide.u32 %rd2, %r1, {stride}; add.s64 %rd3, %rd1, %rd2; {access}");
        count(threads, &body).global_footprint_bytes
    };
    assert_eq!(footprint(32, 4, "ld.global.u32 %r3, [%rd3]; st.global.u32 [%rd3], %r1;"), 128, "twice");
    assert_eq!(footprint(256, 0, "ld.global.u32 %r3, [%rd3];"), 32, "by eight warps");
    assert_eq!(footprint(64, 4096, "ld.global.u32 %r3, [%rd3+64]; ld.global.u32 %r3, [%rd3+32];"), 64 * 64);
}

#[test]
fn shared_bank_conflicts() {
    assert_eq!(shared(4, "st.shared.u32 [%r3], %r1; ld.shared.u32 %r4, [%r3];"), (2, 0), "a word each");
    assert_eq!(shared(8, "st.shared.u32 [%r3], %r1;"), (1, 1), "every other word");
    assert_eq!(shared(128, "st.shared.u32 [%r3], %r1;"), (1, 31), "a column");
    assert_eq!(shared(132, "st.shared.u32 [%r3], %r1;"), (1, 0), "a column of padded rows");
    assert_eq!(shared(16, "st.shared.v4.u32 [%r3], {%r1, %r1, %r1, %r1};"), (1, 0), "vectors");
    assert_eq!(shared(128, "st.shared.v4.u32 [%r3], {%r1, %r1, %r1, %r1};"), (1, 28), "a column of vectors");
    assert_eq!(shared(16, "st.shared.v2.u32 [%r3], {%r1, %r1};"), (1, 2), "every other pair");
    let zero = "setp.eq.u32 %p1, %r1, 0; mov.u32 %r5, 0; @%p1 st.shared.u32 [%r2], %r5; bar.sync 0;";
    let same = "ld.shared.u32 %r4, [%r2];";
    assert_eq!(shared(0, &format!("{zero} {same}")), (2, 0), "a word for all");
    let atomic = "red.shared.add.u32 [%r2], %r1;";
    assert_eq!(shared(0, &format!("{zero} {atomic}")), (2, 31), "atomics on one word");
}

#[test]
fn matrices_and_copies() {
    // Rows of 16 bytes, `pitch` apart: 8 rows of a matrix each a quarter of the request.
    let matrices = |pitch: u32| {
        let body = format!(
            "mov.u32 %r5, 0; mov.u32 %r6, 0;
           L: mad.lo.u32 %r7, %r1, 4, %r2; mad.lo.u32 %r7, %r6, 128, %r7; st.shared.u32 [%r7], %r5;
             add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 40; @%p1 bra L;
             bar.sync 0;
             mad.lo.u32 %r3, %r1, {pitch}, %r2;
             ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r8, %r9, %r10, %r11}}, [%r3];"
        );
        let stats = count(32, &body);
        assert_eq!((stats.shared_requests, stats.shared_bytes_read), (41, 512));
        stats.shared_bank_conflicts
    };
    assert_eq!(matrices(16), 0, "rows one after another");
    assert_eq!(matrices(128), 28, "a column: seven more cycles a matrix");
    assert_eq!(matrices(144), 0, "padded rows");
    let stats = count(
        32,
        "mul.wide.u32 %rd2, %r1, 16; add.s64 %rd3, %rd1, %rd2; mad.lo.u32 %r3, %r1, 128, %r2;
         cp.async.cg.shared.global [%r3], [%rd3], 16; cp.async.wait_all;",
    );
    assert_eq!((stats.global_requests, stats.global_sectors), (1, 16));
    assert_eq!((stats.shared_requests, stats.shared_bank_conflicts), (1, 28));
}

#[test]
fn a_bulk_copy_moves_sectors_and_makes_no_request() {
    let device = Device::new(DeviceConfig { arch: Arch::Sm90, ..device().config().clone() });
    let body = "mov.u32 %r5, 0; mad.lo.u32 %r3, %r1, 4, %r2; st.shared.u32 [%r3], %r5;
         fence.proxy.async; bar.sync 0; setp.eq.u32 %p1, %r1, 0;
         @%p1 cp.async.bulk.global.shared::cta.bulk_group [%rd1+16], [%r2], 96;
         cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;";
    let stats = count_on(&device, "sm_90a", 32, body);
    assert_eq!((stats.global_requests, stats.global_sectors, stats.global_bytes_written), (0, 4, 96));
}

#[test]
fn nothing_is_measured_unless_asked_for() {
    let device = Device::new(DeviceConfig::default());
    let module = support::load(&device, support::card::ADD);
    let kernel = module.kernel("add").unwrap();
    let buffer = support::upload(&device, &[0u32; 64], |v| v.to_le_bytes());
    let stats =
        Params::new(&kernel).pointer(buffer).int(1).launch(&device, [1, 1, 1], [64, 1, 1], 0).unwrap();
    assert_eq!((stats.global_requests, stats.global_sectors), (4, 0));
}
