//! Bugs of kernels with mbarriers, TMA, wgmma and clusters.

use super::cases::{self, BUGS};
use super::hopper_cases::{self, CHAINED, HOPPER};
use super::scene::{Bug, bug};
use crate::support::edit::Edit;

const TRY_WAIT: &str = "mbarrier.try_wait*;";
/// Goes on at once.
const NO_WAIT: &str = "setp.eq.u32 p, 0, 0;";
const PARITY: &str = "{ .reg .pred p; *: mbarrier.try_wait.parity.shared::cta.b64 p, [*], *; @!p bra";
/// Waits for the other parity.
const OTHER_PARITY: &str = "{ .reg .pred p; .reg .b32 t; xor.b32 t, $3, 1; $1: mbarrier.try_wait.parity.shared::cta.b64 p, [$2], t; @!p bra";

pub static RELAY: &[Bug] = &[
    bug!("a stage is read before it is full", BUGS."relay", cases::relay,
        [Edit::nth((1, 2), "relay", TRY_WAIT, NO_WAIT)], ["Race", "Uninitialised"], "stage[lane ^ 1]"),
    bug!("a stage is filled before it is empty", BUGS."relay", cases::relay,
        [Edit::nth((0, 2), "relay", TRY_WAIT, NO_WAIT)], ["Race", "Invalid", "Deadlock"], ""),
    bug!("the reader waits for the wrong parity", BUGS."relay", cases::relay,
        [Edit::nth((1, 2), "relay", PARITY, OTHER_PARITY)], ["Race", "Uninitialised", "Deadlock"], ""),
    bug!("the writer waits for the wrong parity", BUGS."relay", cases::relay,
        [Edit::nth((0, 2), "relay", PARITY, OTHER_PARITY)], ["Deadlock"], ""),
    bug!("an mbarrier is for more arrivals than come", BUGS."relay", cases::relay,
        [Edit::all(1, "relay", "mov.u32 \t%r14, 32;", "mov.u32 \t%r14, 33;")], ["Deadlock"], ""),
    bug!("an mbarrier is for fewer arrivals than come", BUGS."relay", cases::relay,
        [Edit::all(1, "relay", "mov.u32 \t%r14, 32;", "mov.u32 \t%r14, 24;")], ["Race", "Invalid", "Deadlock"], ""),
    bug!("an mbarrier is not initialised", BUGS."relay", cases::relay,
        [Edit::nth((0, 2), "relay", "mbarrier.init", "// mbarrier.init")], ["Uninitialised"], "mbarrier"),
    bug!("mbarriers are used before they are there", BUGS."relay", cases::relay,
        [Edit::all(1, "relay", "bar.sync \t0;", "")], ["Race", "Uninitialised", "Invalid"], "mbarrier"),
    bug!("an arrival that is said not to complete a phase does", BUGS."relay", cases::relay,
        [Edit::all(1, "relay", "mbarrier.arrive.shared::cta.b64 _, [%r21];", "mbarrier.arrive.noComplete.shared::cta.b64 _, [%r21], 1;")],
        ["Invalid"], ""),
    bug!("a stage is handed back before it is read", BUGS."relay", cases::relay, [
        Edit::all(1, "relay", "ld.shared.f32 \t%f1, [%r4];", "mbarrier.arrive.shared::cta.b64 _, [%r19+8]; ld.shared.f32 %f1, [%r4];"),
        Edit::all(1, "relay", "mbarrier.arrive.shared::cta.b64 _, [%r21];", "")], ["Race", "Invalid", "Uninitialised"], ""),
    bug!("stmatrix is misaligned", BUGS."fragments", cases::fragments,
        [Edit::all(1, "fragments", "x4.shared.b16 [*],", "x4.shared.b16 [$1+8],")], ["Misaligned"], "\"r\"(v.x)"),
    bug!("a fragment is read before lanes have met", BUGS."fragments", cases::fragments,
        [Edit::all(1, "fragments", "bar.warp.sync \t-1;", "")], ["Race"], "tile[i * 32 + threadIdx.x]"),
];

pub static COPIES: &[Bug] = &[
    bug!("a tile is read before it is there", HOPPER."gemm", hopper_cases::gemm,
        [Edit::nth((5, 8), "gemm", TRY_WAIT, NO_WAIT)], ["NotAwaited", "Uninitialised"], ""),
    bug!("a tile is loaded while others read it", HOPPER."gemm", hopper_cases::gemm,
        [Edit::nth((2, 8), "gemm", TRY_WAIT, NO_WAIT)], ["Race", "NotAwaited", "Invalid", "Uninitialised"], ""),
    bug!("too few bytes are expected", HOPPER."gemm", hopper_cases::gemm,
        [Edit::nth((0, 5), "gemm", "expect_tx.shared::cta.b64 _, [*], *;", "expect_tx.shared::cta.b64 _, [$1], 8192;")],
        ["NotAwaited", "Invalid", "Deadlock"], ""),
    bug!("too many bytes are expected", HOPPER."gemm", hopper_cases::gemm,
        [Edit::nth((0, 5), "gemm", "expect_tx.shared::cta.b64 _, [*], *;", "expect_tx.shared::cta.b64 _, [$1], 16400;")],
        ["Deadlock"], ""),
    bug!("the consumer waits for the wrong parity", HOPPER."gemm", hopper_cases::gemm,
        [Edit::nth((5, 8), "gemm", PARITY, OTHER_PARITY)], ["NotAwaited", "Uninitialised", "Deadlock"], ""),
    bug!("the accumulators are used before wgmma is done", HOPPER."gemm", hopper_cases::gemm,
        [Edit::nth((0, 3), "gemm", "wgmma.wait_group.sync.aligned 0;", ""), Edit::nth((1, 2), "gemm", "wgmma.wait_group.sync.aligned 0;", ""),
         Edit::all(1, "gemm", "wgmma.wait_group.sync.aligned 0;", ""), Edit::all(3, "gemm", "mbarrier.arrive.shared", "// arrive")],
        ["NotAwaited", "Deadlock"], ""),
    bug!("a stage is handed back before wgmma is done with it", HOPPER."gemm", hopper_cases::gemm,
        [Edit::all(3, "gemm", "wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;")], ["Race", "NotAwaited"], ""),
    bug!("wgmma without its fence", HOPPER."gemm", hopper_cases::gemm,
        [Edit::all(3, "gemm", "wgmma.fence.sync.aligned;", "")], ["Invalid"], ""),
    bug!("wgmma reads another swizzle than TMA writes", HOPPER."gemm", hopper_cases::gemm, hopper_cases::gemm_swizzled_wrongly,
        [], ["Wrong"], ""),
    bug!("a tensor map starts before its memory", HOPPER."gemm", hopper_cases::gemm, hopper_cases::gemm_mapped_wrongly,
        [], ["OutOfBounds"], "\"l\"(map)"),
    bug!("tiles go past shared memory", HOPPER."gemm", hopper_cases::gemm, hopper_cases::gemm_short_of_shared,
        [], ["OutOfBounds"], ""),
    bug!("a bulk copy is not waited for", HOPPER."bulk", hopper_cases::bulk,
        [Edit::all(1, "bulk", TRY_WAIT, NO_WAIT)], ["NotAwaited", "Uninitialised"], "data[threadIdx.x] *= 2"),
    bug!("a bulk copy's bytes are not expected", HOPPER."bulk", hopper_cases::bulk,
        [Edit::all(1, "bulk", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [*], *;", "mbarrier.arrive.shared::cta.b64 _, [$1];")],
        ["NotAwaited", "Uninitialised"], "data[threadIdx.x] *= 2"),
    bug!("a bulk copy is misaligned", HOPPER."bulk", hopper_cases::bulk, hopper_cases::bulk_misaligned, [], ["Invalid"], ""),
    bug!("a bulk copy reads past the end", HOPPER."bulk", hopper_cases::bulk, hopper_cases::bulk_past_the_end, [], ["OutOfBounds"], ""),
    bug!("what a bulk store reads has no proxy fence", HOPPER."bulk", hopper_cases::bulk,
        [Edit::all(1, "bulk", "fence.proxy.async.shared::cta;", "")], ["MissingProxyFence"], "cp.async.bulk.global"),
    bug!("the proxy fence is of another memory", HOPPER."bulk", hopper_cases::bulk,
        [Edit::all(1, "bulk", "fence.proxy.async.shared::cta;", "fence.proxy.async.global;")], ["MissingProxyFence"], "cp.async.bulk.global"),
    bug!("a bulk store reads before all have written", HOPPER."bulk", hopper_cases::bulk,
        [Edit::nth((1, 2), "bulk", "bar.sync \t0;", "")], ["Race", "Uninitialised"], "cp.async.bulk.global"),
    bug!("a block ends before its bulk store has read", HOPPER."bulk", hopper_cases::bulk,
        [Edit::all(1, "bulk", "cp.async.bulk.wait_group 0;", "")], ["NotAwaited"], ""),
    bug!("a bulk store is not committed", HOPPER."bulk", hopper_cases::bulk,
        [Edit::all(1, "bulk", "cp.async.bulk.commit_group;", "")], ["NotAwaited"], ""),
    bug!("a row is overwritten while it goes out", BUGS."rows_out", cases::rows_out,
        [Edit::all(1, "rows_out", "cp.async.bulk.wait_group.read 0;", "")], ["Race"], "row[threadIdx.x] = 2"),
    bug!("a row goes out with a fence of another block's", BUGS."rows_out", cases::rows_out,
        [Edit::all(1, "rows_out", "fence.proxy.async.shared::cta;", "membar.cta;")], ["MissingProxyFence"], "cp.async.bulk.global"),
];

const FENCE: &str = "wgmma.fence.sync.aligned;";
const COMMIT: &str = "wgmma.commit_group.sync.aligned;";

/// Registers of wgmma. The second fence is before the product whose A was just written.
pub static REGISTERS: &[Bug] = &[
    bug!("A is written, and no fence before wgmma", CHAINED."chained", hopper_cases::chained,
        [Edit::nth((1, 2), "chained", FENCE, "")], ["MissingWgmmaFence"], ""),
    bug!("A is written after the fence", CHAINED."chained", hopper_cases::chained,
        [Edit::nth((0, 2), "chained", FENCE, "wgmma.fence.sync.aligned; mov.b32 %r13, %r10;")], ["MissingWgmmaFence"], ""),
    bug!("an accumulator is written after the fence", CHAINED."chained", hopper_cases::chained,
        [Edit::nth((0, 2), "chained", FENCE, "wgmma.fence.sync.aligned; mov.f32 %f7, 0f00000000;")], ["MissingWgmmaFence"], ""),
    bug!("an accumulator is read after the fence", CHAINED."chained", hopper_cases::chained,
        [Edit::all(1, "chained", "cvt.rn.f16x2.f32 %r14, %f5, %f4;", "wgmma.fence.sync.aligned; cvt.rn.f16x2.f32 %r14, %f5, %f4;"),
         Edit::nth((2, 3), "chained", FENCE, "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%f4, %f5, %f6, %f7, %f8, %f9, %f10, %f11}, {%r10, %r11, %r12, %r13}, %rd1, 0, 1, 1, 0;")],
        ["MissingWgmmaFence"], ""),
    bug!("wgmma of two shapes have accumulators in common", CHAINED."chained", hopper_cases::chained,
        [Edit::nth((1, 2), "chained", COMMIT, "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%f4, %f5, %f6, %f7, %f0, %f1, %f2, %f3}, {%r10, %r11, %r12, %r13}, %rd1, 0, 1, 1, 0; wgmma.commit_group.sync.aligned;")],
        ["MissingWgmmaFence"], ""),
    bug!("A is written while wgmma may read it", CHAINED."chained", hopper_cases::chained,
        [Edit::nth((1, 2), "chained", COMMIT, "wgmma.commit_group.sync.aligned; mov.b32 %r15, 0;")], ["NotAwaited"], ""),
    bug!("A is read before the wait", CHAINED."chained", hopper_cases::chained,
        [Edit::nth((1, 2), "chained", COMMIT, "wgmma.commit_group.sync.aligned; mov.b32 %r18, %r15;")], ["NotAwaited"], ""),
    bug!("A of a group that a wait lets run is written", CHAINED."chained", hopper_cases::chained,
        [Edit::nth((0, 2), "chained", "wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1; mov.b32 %r10, %r11; wgmma.wait_group.sync.aligned 0;")],
        ["NotAwaited"], ""),
    bug!("an accumulator is written before the wait", CHAINED."chained", hopper_cases::chained,
        [Edit::nth((1, 2), "chained", COMMIT, "wgmma.commit_group.sync.aligned; mov.f32 %f2, 0f00000000;")], ["NotAwaited"], ""),
    bug!("an accumulator is another wgmma's A before the wait", CHAINED."chained", hopper_cases::chained,
        [Edit::nth((1, 2), "chained", FENCE, "wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned.m64n16k16.f16.f16.f16 {%r14, %r15, %r16, %r17}, {%r10, %r11, %r12, %r13}, %rd1, 0, 1, 1, 0;")],
        ["NotAwaited"], ""),
    bug!("the result is read before the wait", CHAINED."chained", hopper_cases::chained,
        [Edit::nth((1, 2), "chained", "wgmma.wait_group.sync.aligned 0;", "")], ["NotAwaited"], ""),
];

pub static CLUSTERS: &[Bug] = &[
    bug!("a neighbour is read before it has written", HOPPER."exchange", hopper_cases::exchange,
        [Edit::nth((0, 2), "exchange", "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", "")], ["Race", "Uninitialised"], "ld.shared::cluster"),
    bug!("a block ends while its neighbour reads it", HOPPER."exchange", hopper_cases::exchange,
        [Edit::nth((1, 2), "exchange", "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", "")], ["Race", "UseAfterFree"], ""),
    bug!("a block waits at another barrier than its cluster", HOPPER."exchange", hopper_cases::exchange,
        [Edit::nth((0, 2), "exchange", "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", "barrier.cluster.wait.aligned;")],
        ["Invalid", "Deadlock", "Race", "Uninitialised"], ""),
    bug!("a neighbour that is not in the cluster", HOPPER."exchange", hopper_cases::exchange,
        [Edit::all(1, "exchange", "mapa.shared::cluster.u32 *, *, *;", "mapa.shared::cluster.u32 $1, $2, 2;")], ["Invalid", "OutOfBounds"], "mapa"),
    bug!("a neighbour's memory is read past its end", HOPPER."exchange", hopper_cases::exchange,
        [Edit::all(1, "exchange", "ld.shared::cluster.u32 *, [*];", "ld.shared::cluster.u32 $1, [$2+8192];")], ["OutOfBounds"], "ld.shared::cluster"),
];
