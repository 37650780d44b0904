//! Asynchronous copies without tensors, and mbarriers.

use super::memory::random_bytes;
use crate::row::{P, Row, W, X};
use crate::values::mask;

const BUFFER: &str = ".shared .align 128 .b8 buffer[1024]; .shared .align 8 .b64 barrier;";

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    groups(&mut rows);
    sizes(&mut rows);
    arrivals_of_copies(&mut rows);
    phases(&mut rows);
    transactions(&mut rows);
    bulk(&mut rows);
    rows
}

fn threads() -> Vec<Vec<u64>> {
    (0..32).map(|n| vec![n]).collect()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    (0..8).map(|n| u64::from(bytes[at + n]) << (8 * n)).sum()
}

/// `%r0`: the thread's 16 bytes of `buffer`; `%x1`: those of memory; `%r8`: the barrier.
const OWN: &str = "mul.wide.u32 %x1, %t, 16; add.u64 %x1, %memory, %x1; mov.u32 %r9, buffer; \
                   mad.lo.u32 %r0, %t, 16, %r9; mov.u32 %r8, barrier;";

fn sizes(rows: &mut Vec<Row>) {
    let bytes = random_bytes(512);
    for (cache, sizes) in [("ca", &[4u64, 8, 16][..]), ("cg", &[16])] {
        for space in ["shared", "shared::cta"] {
            for hint in
                ["", ".L2::64B", ".L2::128B", ".L2::256B", ".L2::cache_hint", ".L2::cache_hint.L2::128B"]
            {
                for size in sizes {
                    let form = format!("cp.async.{cache}.{space}.global{hint}");
                    let policy = if hint.contains("hint") {
                        (", %x3", "createpolicy.fractional.L2::evict_first.b64 %x3, 1.0;")
                    } else {
                        ("", "")
                    };
                    // All bytes; and as many as the operand says, the rest zero.
                    for part in [false, true] {
                        let operand = if part { ", %a0" } else { "" };
                        let text = format!(
                            "{OWN} {} st.shared.v2.b64 [%r0], {{0, 0}}; {form} [%r0], [%x1], {size}{operand}{}; \
                             cp.async.wait_all; ld.shared.v2.b64 {{%d0, %d1}}, [%r0];",
                            policy.1, policy.0
                        );
                        let counts = (0..32).map(|n| vec![(n * 3) % (size + 1)]).collect();
                        let row =
                            Row::new(&form, &[X, X], &[W], counts).module(BUFFER).memory(&bytes).text(&text);
                        let numbers: Vec<usize> = (0..32).collect();
                        rows.push(row.whole(|inputs| {
                            numbers
                                .iter()
                                .map(|n| {
                                    let count = if part { inputs[*n][0] } else { *size } as u32;
                                    let of = |at: u32| {
                                        word(&bytes, n * 16 + at as usize)
                                            & if count > at { mask(8 * (count - at).min(8)) } else { 0 }
                                    };
                                    vec![of(0), of(8)]
                                })
                                .collect()
                        }));
                    }
                }
            }
        }
    }
}

fn groups(rows: &mut Vec<Row>) {
    let bytes = random_bytes(512);
    let copy = |offset: u32| format!("cp.async.ca.shared.global [%r0+{offset}], [%x1+{offset}], 8;");
    let waits = [
        ("cp.async.commit_group", "cp.async.commit_group; CP1 cp.async.commit_group; cp.async.wait_group 0;"),
        // The older of two groups is there while the newer may still be under way.
        (
            "cp.async.wait_group",
            "cp.async.commit_group; CP1 cp.async.commit_group; cp.async.wait_group 1; FIRST cp.async.wait_group 0;",
        ),
        ("cp.async.wait_all", "CP1 cp.async.wait_all;"),
    ];
    for (form, wait) in waits {
        let wait = wait.replace("CP1", &copy(8)).replace("FIRST", "ld.shared.b64 %d0, [%r0];");
        let text = format!("{OWN} {} {wait} ld.shared.v2.b64 {{%d0, %d1}}, [%r0];", copy(0));
        let row = Row::new(form, &[X, X], &[X], threads()).module(BUFFER).memory(&bytes).text(&text);
        rows.push(row.each(|v| {
            let at = v[0] as usize * 16;
            vec![word(&bytes, at), word(&bytes, at + 8)]
        }));
    }
}

fn arrivals_of_copies(rows: &mut Vec<Row>) {
    let bytes = random_bytes(512);
    for (space, noinc) in [("shared", false), ("shared", true), ("shared::cta", false), ("shared::cta", true)]
    {
        let form = format!("cp.async.mbarrier.arrive{}.{space}.b64", if noinc { ".noinc" } else { "" });
        // Without `.noinc` the copies' arrivals come on top of the threads' own.
        let own = if noinc { "" } else { "mbarrier.arrive.shared.b64 %x5, [%r8];" };
        let text = format!(
            "{OWN} setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared.b64 [%r8], 32; bar.sync 0; \
             cp.async.ca.shared.global [%r0], [%x1], 8; {form} [%r8]; {own} \
             WAIT: mbarrier.test_wait.parity.shared.b64 %p2, [%r8], 0; @!%p2 bra WAIT; \
             xor.b32 %r1, %t, 1; mad.lo.u32 %r1, %r1, 16, %r9; ld.shared.b64 %d0, [%r1];"
        );
        let row = Row::new(&form, &[X], &[X], threads()).module(BUFFER).memory(&bytes).text(&text);
        rows.push(row.gives(|v| word(&bytes, (v[0] as usize ^ 1) * 16)));
    }
}

/// A row of one thread.
fn alone(form: &str, outs: &[crate::row::Size], text: &str, wanted: &[u64]) -> Row {
    let row = Row::new(form, outs, &[X], vec![vec![0]]).shape([1, 1, 1], [1, 1, 1]).module(BUFFER);
    row.text(&format!("{OWN} {text}")).each(|_| wanted.to_vec())
}

fn phases(rows: &mut Vec<Row>) {
    for space in ["shared", "shared::cta"] {
        let at = format!("{space}.b64");
        let init = |count: u32| format!("mbarrier.init.{at} [%r8], {count};");
        let parity = |d: &str, phase: u32| format!("mbarrier.test_wait.parity.{at} {d}, [%r8], {phase};");
        // Before its completion, phase 0 is not complete, and the phase before it is.
        let text = format!("{} {} {}", init(2), parity("%d0", 0), parity("%d1", 1));
        rows.push(alone(&format!("mbarrier.init.{at}"), &[P, P], &text, &[0, 1]));
        for name in ["test_wait", "try_wait"] {
            let form = format!("mbarrier.{name}.{at}");
            let text = format!(
                "{} mbarrier.arrive.{at} %x3, [%r8]; {form} %d0, [%r8], %x3; mbarrier.arrive.{at} %x4, [%r8]; \
                 {form} %d1, [%r8], %x3;",
                init(2)
            );
            let row = alone(&form, &[P, P], &text, &[0, 1]);
            rows.push(if name == "try_wait" { row.sm90() } else { row });
            let form = format!("mbarrier.{name}.parity.{at}");
            let text = format!(
                "{} mbarrier.arrive.{at} %x3, [%r8]; {form} %d0, [%r8], 0; {form} %d1, [%r8], 1;",
                init(1)
            );
            let row = alone(&form, &[P, P], &text, &[1, 0]);
            rows.push(if name == "try_wait" { row.sm90() } else { row });
        }
        let text = format!(
            "{} mbarrier.arrive.{at} %x3, [%r8]; mbarrier.arrive.{at} %x4, [%r8]; \
             mbarrier.pending_count.b64 %d0, %x3; mbarrier.pending_count.b64 %d1, %x4; {}",
            init(5),
            parity("%d2", 0)
        );
        rows.push(alone("mbarrier.pending_count.b64", &[W, W, P], &text, &[5, 4, 0]));
        rows.push(alone(&format!("mbarrier.arrive.{at}"), &[W, W, P], &text, &[5, 4, 0]));
        // The next phase expects one thread less.
        let text = format!(
            "{} mbarrier.arrive_drop.{at} %x3, [%r8]; mbarrier.arrive.{at} %x3, [%r8]; {} \
             mbarrier.arrive.{at} %x4, [%r8]; {}",
            init(2),
            parity("%d0", 0),
            parity("%d1", 1)
        );
        rows.push(alone(&format!("mbarrier.arrive_drop.{at}"), &[P, P], &text, &[1, 1]));
        incomplete(rows, space);
        let text = format!("{} mbarrier.inval.{at} [%r8]; {} {}", init(1), init(3), parity("%d0", 0));
        rows.push(alone(&format!("mbarrier.inval.{at}"), &[P], &text, &[0]));
    }
    counted(rows);
}

/// Arrivals that leave the phase as it is, and tell so; of drops, the next phase has as many less.
fn incomplete(rows: &mut Vec<Row>, space: &str) {
    for order in ["", ".release.cta"] {
        for what in ["arrive", "arrive_drop"] {
            let form = format!("mbarrier.{what}.noComplete{order}.{space}.b64");
            let test =
                |d: &str, phase: u32| format!("mbarrier.test_wait.parity.{space}.b64 {d}, [%r8], {phase};");
            let next = if what == "arrive" { 6 } else { 3 };
            let text = format!(
                "mbarrier.init.{space}.b64 [%r8], 6; {form} %x3, [%r8], 2; {form} %x4, [%r8], 1; \
                 mbarrier.pending_count.b64 %d0, %x3; mbarrier.pending_count.b64 %d1, %x4; {} \
                 mbarrier.arrive.noComplete.{space}.b64 %x5, [%r8], 2; mbarrier.arrive.{space}.b64 %x5, [%r8]; {} \
                 mbarrier.arrive.{space}.b64 %x5, [%r8]; mbarrier.pending_count.b64 %d4, %x5;",
                test("%d2", 0),
                test("%d3", 0),
            );
            let row = alone(&form, &[W, W, P, P, W], &text, &[6, 4, 0, 1, next]);
            rows.push(if order.is_empty() { row } else { row.sm90() });
        }
    }
}

/// Hopper's: counts, orders and scopes, time limits.
fn counted(rows: &mut Vec<Row>) {
    let init = "mbarrier.init.shared::cta.b64 [%r8], 8;";
    for order in ["", ".release.cta", ".release.cluster"] {
        for what in ["arrive", "arrive_drop"] {
            let form = format!("mbarrier.{what}{order}.shared::cta.b64");
            let text = format!(
                "{init} {form} %x3, [%r8], 3; {form} %x4, [%r8], 2; mbarrier.pending_count.b64 %d0, %x4; \
                 {form} _, [%r8], 3; mbarrier.test_wait.parity.shared::cta.b64 %d1, [%r8], 0;"
            );
            rows.push(alone(&form, &[W, P], &text, &[5, 1]).sm90());
            // What drops out is of all of the count: of eight, three are left.
            let text = format!(
                "{init} {form} _, [%r8], 5; mbarrier.arrive.shared::cta.b64 _, [%r8], 3; \
                 mbarrier.arrive.shared::cta.b64 %x3, [%r8]; mbarrier.pending_count.b64 %d0, %x3;"
            );
            let left = if what == "arrive" { 8 } else { 3 };
            rows.push(alone(&form, &[W], &text, &[left]).sm90());
        }
    }
    for order in [".acquire.cta", ".acquire.cluster"] {
        for name in ["test_wait", "try_wait"] {
            let limit = if name == "try_wait" { ", 100" } else { "" };
            let form = format!("mbarrier.{name}.parity{order}.shared::cta.b64");
            let text = format!("{init} {form} %d0, [%r8], 0{limit}; {form} %d1, [%r8], 1{limit};");
            rows.push(alone(&form, &[P, P], &text, &[0, 1]).sm90());
            // The same by the phase's state instead of its parity.
            let form = format!("mbarrier.{name}{order}.shared::cta.b64");
            let text = format!(
                "{init} mbarrier.arrive.shared::cta.b64 %x3, [%r8], 7; {form} %d0, [%r8], %x3{limit}; \
                 mbarrier.arrive.shared::cta.b64 %x4, [%r8]; {form} %d1, [%r8], %x3{limit};"
            );
            rows.push(alone(&form, &[P, P], &text, &[0, 1]).sm90());
        }
    }
}

/// Bytes that a phase waits for besides arrivals.
fn transactions(rows: &mut Vec<Row>) {
    let init = "mbarrier.init.shared::cta.b64 [%r8], 1;";
    let done = |d: &str| format!("mbarrier.test_wait.parity.shared::cta.b64 {d}, [%r8], 0;");
    let [expect, complete] =
        ["expect_tx", "complete_tx"].map(|what| format!("mbarrier.{what}.relaxed.cta.shared::cta.b64"));
    for order in ["", ".release.cta", ".release.cluster"] {
        for drop in ["", "_drop"] {
            let form = format!("mbarrier.arrive{drop}.expect_tx{order}.shared::cta.b64");
            let text = format!(
                "{init} {form} %x3, [%r8], 96; {} {complete} [%r8], 64; {} {complete} [%r8], 32; {}",
                done("%d0"),
                done("%d1"),
                done("%d2")
            );
            rows.push(alone(&form, &[P, P, P], &text, &[0, 0, 1]).sm90());
        }
    }
    for scope in ["cta", "cluster"] {
        let [expect, complete] =
            [&expect, &complete].map(|form| form.replace("relaxed.cta", &format!("relaxed.{scope}")));
        let text = format!(
            "{init} {expect} [%r8], 16; mbarrier.arrive.shared::cta.b64 %x3, [%r8]; {} {complete} [%r8], 16; {}",
            done("%d0"),
            done("%d1")
        );
        rows.push(alone(&expect, &[P, P], &text, &[0, 1]).sm90());
        rows.push(alone(&complete, &[P, P], &text, &[0, 1]).sm90());
    }
}

/// The start of a kernel with one arrival expected, of `bytes`.
fn expecting(bytes: u32) -> String {
    format!(
        "{OWN} setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared::cta.b64 [%r8], 1; \
         @%p1 fence.mbarrier_init.release.cluster; bar.sync 0; \
         @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 %x7, [%r8], {bytes};"
    )
}

const WAIT: &str = "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r8], 0; @!%p2 bra WAIT;";

fn bulk(rows: &mut Vec<Row>) {
    let bytes = random_bytes(512);
    let own = |v: &[u64]| {
        let at = v[0] as usize * 16;
        vec![word(&bytes, at), word(&bytes, at + 8)]
    };
    for hint in ["", ".L2::cache_hint"] {
        let policy = if hint.is_empty() { "" } else { ", %x3" };
        let make = "createpolicy.fractional.L2::evict_first.b64 %x3, 1.0;";
        for space in ["shared::cluster", "shared::cta"] {
            let form = format!("cp.async.bulk.{space}.global.mbarrier::complete_tx::bytes{hint}");
            let text = format!(
                "{make} {} @%p1 {form} [%r9], [%memory], 512, [%r8]{policy}; {WAIT} ld.shared.v2.b64 {{%d0, %d1}}, [%r0];",
                expecting(512)
            );
            let row = Row::new(&form, &[X, X], &[X], threads()).sm90().module(BUFFER).memory(&bytes);
            rows.push(row.text(&text).each(own));
        }
        let mut after = bytes.clone();
        after[0..512].copy_from_slice(&[7; 512]);
        for wait in ["", ".read"] {
            let form = format!("cp.async.bulk.global.shared::cta.bulk_group{hint}");
            // `.read` only waits until the source may be written: the end of the kernel is the rest.
            let text = format!(
                "{make} {OWN} setp.eq.u32 %p1, %t, 0; mov.b64 %x4, 0x0707070707070707; \
                 st.shared.v2.b64 [%r0], {{%x4, %x4}}; fence.proxy.async.shared::cta; bar.sync 0; \
                 @%p1 {form} [%memory], [%r9], 512{policy}; @%p1 cp.async.bulk.commit_group; \
                 @%p1 cp.async.bulk.wait_group{wait} 0; bar.sync 0;"
            );
            for form in [&form, "cp.async.bulk.commit_group", &format!("cp.async.bulk.wait_group{wait}")] {
                let row = Row::new(form, &[], &[X], threads()).sm90().module(BUFFER).memory(&bytes);
                rows.push(row.text(&text).memory_after(after.clone()).each(|_| Vec::new()));
            }
        }
        let form = format!("cp.async.bulk.prefetch.L2.global{hint}");
        let text = format!("{make} {form} [%memory], 512{policy}; mov.b64 %d0, %a0;");
        rows.push(Row::new(&form, &[X], &[X], threads()).sm90().memory(&bytes).text(&text).gives(|v| v[0]));
    }
    let form = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes";
    let text = format!(
        "{} ld.global.v2.b64 {{%x4, %x5}}, [%x1]; st.shared.v2.b64 [%r0], {{%x4, %x5}}; \
         fence.proxy.async.shared::cta; bar.sync 0; add.u32 %r10, %r9, 512; \
         @%p1 {form} [%r10], [%r9], 512, [%r8]; {WAIT} ld.shared.v2.b64 {{%d0, %d1}}, [%r0+512];",
        expecting(512)
    );
    let row = Row::new(form, &[X, X], &[X], threads()).sm90().module(BUFFER).memory(&bytes);
    rows.push(row.text(&text).each(own));
}
