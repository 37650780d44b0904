//! Bugs of split and tiled attention, and of a multiplication by weights of 8 bits.

use super::model_cases::{self, MODEL};
use super::scene::{Bug, bug};
use crate::support::edit::Edit;

pub static ATTENTION: &[Bug] = &[
    bug!("the last chunk is not clamped", MODEL."decode_split", model_cases::decode,
        [Edit::all(1, "decode_split", "min.s32 \t*, *, *;", "mov.b32 $1, 64;")], ["OutOfBounds"], "keys + (size_t)t"),
    bug!("chunks have too little shared memory", MODEL."decode_split", model_cases::decode, model_cases::decode_short_of_shared,
        [], ["OutOfBounds"], "scores[t] = s"),
    bug!("a chunk's maxima are read before they are there", MODEL."decode_split", model_cases::decode,
        [Edit::nth((0, 3), "decode_split", "bar.sync \t0;", "")], ["Race", "Uninitialised"], ""),
    bug!("a chunk's weights are read before they are there", MODEL."decode_split", model_cases::decode,
        [Edit::nth((1, 3), "decode_split", "bar.sync \t0;", "")], ["Race", "Uninitialised"], ""),
    bug!("half of the values are not there yet", MODEL."decode_split", model_cases::decode,
        [Edit::nth((2, 3), "decode_split", "bar.sync \t0;", "")], ["Race", "Uninitialised"], "halves[tid]"),
    bug!("a tile of keys is used before all have it", MODEL."flash_prefill", model_cases::flash,
        [Edit::nth((0, 2), "flash_prefill", "bar.sync \t0;", "")], ["Race", "NotAwaited", "Uninitialised"], ""),
    bug!("the next tile comes while others use this one", MODEL."flash_prefill", model_cases::flash,
        [Edit::nth((1, 2), "flash_prefill", "bar.sync \t0;", "")], ["Race", "NotAwaited"], ""),
    bug!("keys and values are not waited for", MODEL."flash_prefill", model_cases::flash,
        [Edit::all(1, "flash_prefill", "cp.async.wait_group 0;", "cp.async.wait_group 1;")], ["NotAwaited"], ""),
    bug!("values are not transposed", MODEL."flash_prefill", model_cases::flash,
        [Edit::all(32, "flash_prefill", "x2.trans.shared", "x2.shared")], ["Wrong"], ""),
    bug!("tiles have too little shared memory", MODEL."flash_prefill", model_cases::flash, model_cases::flash_short_of_shared,
        [], ["OutOfBounds"], ""),
    bug!("weights of 8 bits are not waited for", MODEL."gemm_w8a16", model_cases::gemm,
        [Edit::all(1, "gemm_w8a16", "cp.async.wait_group 1;", "cp.async.wait_group 2;")], ["NotAwaited"], ""),
    bug!("weights of 8 bits end early", MODEL."gemm_w8a16", model_cases::gemm, model_cases::gemm_without_last_weights,
        [], ["OutOfBounds"], ""),
];
