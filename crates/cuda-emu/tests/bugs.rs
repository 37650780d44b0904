//! Bugs that are put into correct kernels, a row each, and what the emulator says of them.
//!
//! `bugs/scene.rs` tells what a row is; `bugs/ampere.rs`, `bugs/attention.rs` and `bugs/hopper.rs` are the
//! tables, the files of cases have the kernels' data.

mod support;

#[path = "bugs/ampere.rs"]
mod ampere;
#[path = "bugs/attention.rs"]
mod attention;
#[path = "bugs/cases.rs"]
mod cases;
#[path = "bugs/hopper.rs"]
mod hopper;
#[path = "bugs/hopper_cases.rs"]
mod hopper_cases;
#[path = "bugs/model_cases.rs"]
mod model_cases;
#[path = "bugs/scene.rs"]
mod scene;

use scene::Bug;

/// Seeds of the order of warps in which each bug must be found.
const SEEDS: [u64; 3] = [0, 1, 2];

/// Fails with all that is not as the table says.
fn check(table: &[Bug]) {
    let each = table.iter().flat_map(|bug| SEEDS.map(|seed| bug.check(seed)));
    let failures: Vec<String> = each.filter_map(Result::err).collect();
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

/// Fails with every report about a kernel that is right.
fn check_good(table: &[Bug]) {
    let mut seen = Vec::new();
    for bug in table {
        let case = bug.good as usize;
        if seen.contains(&case) {
            continue;
        }
        seen.push(case);
        let failures: Vec<String> = (0..20).filter_map(|seed| bug.check_good(seed).err()).collect();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

#[test]
fn bugs_of_a_models_kernels() {
    check(ampere::MODEL);
}

#[test]
fn bugs_of_attention() {
    check(attention::ATTENTION);
}

#[test]
fn bugs_of_working_together() {
    check(ampere::TOGETHER);
}

#[test]
fn bugs_of_stages_and_mbarriers() {
    check(hopper::RELAY);
}

#[test]
fn bugs_of_asynchronous_copies() {
    check(hopper::COPIES);
}

#[test]
fn bugs_of_registers_of_wgmma() {
    check(hopper::REGISTERS);
}

#[test]
fn bugs_of_clusters() {
    check(hopper::CLUSTERS);
}

#[test]
fn no_false_alarms() {
    let tables = [
        ampere::MODEL,
        ampere::TOGETHER,
        attention::ATTENTION,
        hopper::RELAY,
        hopper::COPIES,
        hopper::REGISTERS,
        hopper::CLUSTERS,
    ];
    tables.iter().for_each(|table| check_good(table));
}
