//! Bugs of kernels with barriers, copies of their own, and tensor cores of a warp.

use super::cases::{self, BUGS, LLM};
use super::scene::{Bug, bug};
use crate::support::edit::Edit;

/// A barrier that the first hundred threads come to.
const DIVERGENT: &str =
    "{ .reg .pred q; .reg .b32 t; mov.u32 t, %tid.x; setp.lt.u32 q, t, 100; @q bar.sync 0; }";

/// The lowest 31 lanes alone shuffle.
const LANES_31: &str =
    "{ .reg .pred q; .reg .b32 t; mov.u32 t, %laneid; setp.lt.u32 q, t, 31; @q shfl.sync.bfly.b32 $1; }";

/// The second block leaves at once.
const BLOCK_LEAVES: &str = "{ .reg .pred q; .reg .b32 t; mov.u32 t, %ctaid.x; setp.eq.u32 q, t, 1; @q ret; }\n mov.u32 %r6, %envreg2;";

pub static MODEL: &[Bug] = &[
    bug!("a norm's sums are read before they are there", LLM."rmsnorm", cases::rmsnorm,
        [Edit::all(1, "rmsnorm", "bar.sync \t0;", "")], ["Race", "Uninitialised"], "total += parts[i]"),
    bug!("a norm's tail is not clamped", LLM."rmsnorm", cases::rmsnorm,
        [Edit::nth((0, 1), "rmsnorm", "setp.lt.s32 \t%p2,", "setp.le.s32 \t%p2,")], ["OutOfBounds", "Wrong"], ""),
    bug!("a norm writes past its last row", LLM."rmsnorm", cases::rmsnorm,
        [Edit::nth((0, 1), "rmsnorm", "st.global.u16 \t[*],", "st.global.u16 \t[$1+2],")], ["OutOfBounds"], "y[(size_t)blockIdx.x"),
    bug!("a copy's wait is too weak", LLM."gemm", cases::gemm,
        [Edit::all(1, "gemm", "cp.async.wait_group 1;", "cp.async.wait_group 2;")], ["NotAwaited"], "tile[s & 1][0][warp * 16"),
    bug!("the last copies are not waited for", LLM."gemm", cases::gemm,
        [Edit::all(1, "gemm", "cp.async.wait_group 0;", "cp.async.wait_group 1;")], ["NotAwaited"], "tile[s & 1][0][warp * 16"),
    bug!("a stage is loaded while others read it", LLM."gemm", cases::gemm,
        [Edit::nth((1, 2), "gemm", "bar.sync \t0;", "")], ["Race", "NotAwaited"], ""),
    bug!("a tile is read before all have waited for it", LLM."gemm", cases::gemm,
        [Edit::nth((0, 2), "gemm", "bar.sync \t0;", "")], ["Race", "NotAwaited", "Uninitialised"], "tile[s & 1]"),
    bug!("the rows of a tile are not clamped", LLM."gemm", cases::gemm,
        [Edit::all(1, "gemm", "setp.lt.s32 \t%p10, *, *;", "setp.eq.s32 %p10, $1, $1;")], ["OutOfBounds"], "shared_address(&tile[stage][which][r][q])"),
    bug!("an output has a row less", LLM."gemm", cases::gemm, cases::gemm_without_last_row, [], ["OutOfBounds"], "c[(size_t)row * n + col]"),
    bug!("the output's rows are not clamped", LLM."gemm", cases::gemm,
        [Edit::all(1, "gemm", "setp.ge.s32 \t%p39, *, *;", "setp.ne.s32 %p39, $1, $1;")], ["OutOfBounds"], "c[(size_t)row * n + col]"),
    bug!("ldmatrix is misaligned", LLM."gemm", cases::gemm,
        [Edit::nth((0, 2), "gemm", "x4.shared.b16 {*}, [*];", "x4.shared.b16 {$1}, [$2+8];")], ["Misaligned"], "tile[s & 1][0][warp * 16"),
    bug!("a fragment's registers are in the wrong order", LLM."gemm", cases::gemm,
        [Edit::nth((0, 16), "gemm", "x2.shared.b16 {*,*}, [*];", "x2.shared.b16 {$2,$1}, [$3];")], ["Wrong"], ""),
    bug!("the weights are read from the wrong columns", LLM."gemm", cases::gemm,
        [Edit::nth((3, 16), "gemm", "x2.shared.b16 {*}, [*];", "x2.shared.b16 {$1}, [$2+16];")], ["Wrong", "Uninitialised"], ""),
    bug!("a warp's mma lacks lanes", LLM."gemm", cases::gemm,
        [Edit::nth((0, 16), "gemm", "mma.sync*;", "{ .reg .pred q; .reg .b32 t; mov.u32 t, %laneid; setp.lt.u32 q, t, 8; @q mma.sync$1; }")],
        ["Divergent"], "r\"(fb[0])"),
    bug!("weights start at a wrong alignment", LLM."gemv_int8", cases::gemv, cases::gemv_misaligned, [], ["Misaligned"], "const int4*"),
    bug!("rows past the last are not left out", LLM."gemv_int8", cases::gemv,
        [Edit::nth((0, 1), "gemv_int8", "setp.ge.s32 \t%p1, *, *;", "setp.ne.s32 %p1, $1, $1;")], ["OutOfBounds"], ""),
    bug!("a row is read past its end", LLM."gemv_int8", cases::gemv,
        [Edit::nth((0, 1), "gemv_int8", "ld.global.v4.u32 \t{*}, [*];", "ld.global.v4.u32 {$1}, [$2+576];")], ["OutOfBounds", "Wrong"], ""),
    bug!("a barrier is in a branch", LLM."attention", cases::attention,
        [Edit::nth((1, 3), "attention", "bar.sync \t0;", DIVERGENT)], ["Divergent"], "__syncthreads"),
    bug!("a shuffle is in a branch", LLM."attention", cases::attention,
        [Edit::nth((0, 35), "attention", "shfl.sync.bfly.b32 \t*;", LANES_31)], ["Divergent"], "__shfl_xor_sync"),
    bug!("scores are read before they are there", LLM."attention", cases::attention,
        [Edit::nth((0, 3), "attention", "bar.sync \t0;", "")], ["Race", "Uninitialised"], "scores[t]"),
    bug!("maxima are read before they are there", LLM."attention", cases::attention,
        [Edit::nth((1, 3), "attention", "bar.sync \t0;", "")], ["Race", "Uninitialised"], "parts[0]"),
    bug!("weights are read before they are there", LLM."attention", cases::attention,
        [Edit::nth((2, 3), "attention", "bar.sync \t0;", "")], ["Race", "Uninitialised"], ""),
    bug!("too little dynamic shared memory", LLM."attention", cases::attention, cases::attention_short_of_shared, [], ["OutOfBounds"], "scores[t]"),
    bug!("a score is never written", LLM."attention", cases::attention,
        [Edit::nth((1, 10), "attention", "st.shared.f32 \t[%r2*;", "")], ["Uninitialised"], "scores[t]"),
    bug!("keys are read past the cache", LLM."attention", cases::attention, cases::attention_past_the_keys, [], ["OutOfBounds"], "k + (size_t)t * 64"),
];

pub static TOGETHER: &[Bug] = &[
    bug!("a vector load is misaligned", BUGS."twice", cases::twice, cases::twice_misaligned, [], ["Misaligned"], "float4 v = x[i]"),
    bug!("an input is too short", BUGS."twice", cases::twice, cases::twice_short, [], ["OutOfBounds"], "float4 v = x[i]"),
    bug!("an input was freed", BUGS."twice", cases::twice, cases::twice_freed, [], ["UseAfterFree"], "float4 v = x[i]"),
    bug!("nothing wrote an input", BUGS."twice", cases::twice, cases::twice_unwritten, [], ["Uninitialised"], "float4 v = x[i]"),
    bug!("a read goes past its part of a pool", BUGS."twice", cases::twice_in_pool, cases::twice_past_part, [], ["OutOfBounds"], "float4 v = x[i]"),
    bug!("threads past the end are not left out", BUGS."twice", cases::twice,
        [Edit::all(1, "twice", "@%p1 bra", "// bra")], ["OutOfBounds"], "float4 v = x[i]"),
    bug!("lanes swap without meeting", BUGS."swap_lanes", cases::swap_lanes,
        [Edit::all(1, "swap_lanes", "bar.warp.sync \t-1;", "")], ["Race"], "values[threadIdx.x ^ 1]"),
    bug!("a shuffle reads a lane that is not there", BUGS."swap_half", cases::swap_half,
        [Edit::all(1, "swap_half", "mov.u32 \t%r4, 1;", "mov.u32 \t%r4, 16;")], ["Invalid"], "__shfl_xor_sync"),
    bug!("a shuffle's mask names lanes that do not come", BUGS."swap_half", cases::swap_half,
        [Edit::all(1, "swap_half", "65535;", "0xffffffff;"), Edit::all(1, "swap_half", "$L__BB2_2:", "$L__BB2_2: bar.warp.sync -1;")], ["Divergent"], "__shfl_xor_sync"),
    bug!("counts begin before they are zero", BUGS."histogram", cases::histogram,
        [Edit::nth((0, 2), "histogram", "bar.sync \t0;", "")], ["Race", "Uninitialised"], ""),
    bug!("counts are read while others count", BUGS."histogram", cases::histogram,
        [Edit::nth((1, 2), "histogram", "bar.sync \t0;", "")], ["Race"], ""),
    bug!("atomics are misaligned", BUGS."histogram", cases::histogram, cases::histogram_misaligned, [], ["Misaligned"], "atomicAdd(&bins"),
    bug!("a barrier is for other counts of threads", BUGS."hand_over", cases::hand_over,
        [Edit::all(1, "hand_over", "bar.sync 1, 128;", "bar.sync 1, 96;")], ["Invalid"], ""),
    bug!("arrivals go to another barrier", BUGS."hand_over", cases::hand_over,
        [Edit::all(1, "hand_over", "bar.arrive 1,", "bar.arrive 2,")], ["Deadlock"], ""),
    bug!("values are taken before they are handed over", BUGS."hand_over", cases::hand_over,
        [Edit::all(1, "hand_over", "bar.sync 1, 128;", "")], ["Race", "Uninitialised"], "values[63 - i]"),
    bug!("a copy's data is read after the own wait only", BUGS."staged", cases::staged,
        [Edit::all(1, "staged", "bar.sync \t0;", "")], ["Race", "NotAwaited", "Uninitialised"], "tile[127 - threadIdx.x]"),
    bug!("a copy is not waited for", BUGS."staged", cases::staged,
        [Edit::all(1, "staged", "cp.async.wait_group 0;", "")], ["NotAwaited"], "tile[127 - threadIdx.x]"),
    bug!("a copy is not committed", BUGS."staged", cases::staged,
        [Edit::all(1, "staged", "cp.async.commit_group;", "")], ["NotAwaited"], "tile[127 - threadIdx.x]"),
    bug!("an index goes past a table on the stack", BUGS."look_up", cases::look_up, cases::look_up_outside, [], ["OutOfBounds"], "table[index[threadIdx.x]]"),
    bug!("a block does not come to the grid's barrier", BUGS."around", cases::around,
        [Edit::nth((0, 1), "around", "mov.u32 %r6, %envreg2;", BLOCK_LEAVES)], ["NeverEnds", "Deadlock"], ""),
    bug!("a grid's barrier in a launch that is not cooperative", BUGS."around", cases::around, cases::around_alone, [], ["Trap", "NeverEnds"], ""),
    bug!("blocks do not meet", BUGS."around", cases::around,
        [Edit::all(2, "around", "barrier.sync \t0;", ""), Edit::all(1, "around", "@%p4 bra", "// bra")], ["Uninitialised"], "x[(i + blockDim.x) % n]"),
    bug!("an assertion does not hold", BUGS."positions", cases::positions, cases::positions_outside, [], ["Assert"], "assert("),
];
