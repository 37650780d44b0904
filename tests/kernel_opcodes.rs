//! What the kernels are made of is what the emulator is held against the PTX manual for: each of their
//! opcodes is in the list of which cuda-emu's `conformance` wants a row.

#![cfg(feature = "cuda")]

#[path = "../crates/cuda-emu/tests/support/opcodes.rs"]
mod opcodes;

use std::collections::BTreeSet;

#[test]
fn every_opcode_that_ships_is_in_the_list_of_the_emulators_conformance() {
    let listed: BTreeSet<&str> =
        include_str!("../crates/cuda-emu/tests/conformance/shipped.txt").lines().collect();
    // Nothing in the fat binary is compressed; a text ends with zero.
    let texts = include_bytes!(env!("OTTAVA_FATBIN")).split(|byte| *byte == 0);
    let texts: Vec<&str> = texts
        .filter_map(|text| std::str::from_utf8(text).ok())
        .filter(|text| text.contains(".address_size 64"))
        .collect();
    let shipped: BTreeSet<&str> = texts.iter().flat_map(|text| opcodes::of(text)).collect();
    assert!(shipped.contains("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"), "{} texts", texts.len());
    let missing: Vec<&str> = shipped.difference(&listed).copied().collect();
    assert!(
        missing.is_empty(),
        "add to crates/cuda-emu/tests/conformance/shipped.txt:\n{}",
        missing.join("\n")
    );
}
