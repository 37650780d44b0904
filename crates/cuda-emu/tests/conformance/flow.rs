//! Branches, calls, barriers, fences, and what has no effect that a kernel could see.

use crate::row::{P, Row, Size, W, X};
use crate::values::mask;

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    branches(&mut rows);
    calls(&mut rows);
    barriers(&mut rows);
    named_barriers(&mut rows);
    reductions(&mut rows);
    fences(&mut rows);
    hints(&mut rows);
    rows
}

fn threads(count: u64) -> Vec<Vec<u64>> {
    (0..count).map(|n| vec![n]).collect()
}

fn row(form: &str, text: &str, wanted: impl Fn(u64) -> u64) -> Row {
    Row::new(form, &[W], &[W], threads(64)).text(text).gives(|v| wanted(v[0]) & mask(32))
}

fn branches(rows: &mut Vec<Row>) {
    // A loop of as many turns as the lane's number, with a part that only odd turns take.
    let collatz = |bra: &str| {
        format!(
            "mov.u32 %d0, 0; mov.u32 %r1, 0; LOOP: setp.ge.u32 %p1, %r1, %a0; @%p1 bra DONE; \
             and.b32 %r2, %r1, 1; setp.eq.u32 %p2, %r2, 0; @%p2 bra EVEN; mad.lo.u32 %d0, %d0, 3, %r1; {bra} NEXT; \
             EVEN: xor.b32 %d0, %d0, %r1; NEXT: add.u32 %r1, %r1, 1; {bra} LOOP; DONE:"
        )
    };
    let turns = |n: u64| {
        (0..n).fold(0u64, |d, turn| if turn % 2 == 0 { d ^ turn } else { (d * 3 + turn) & mask(32) })
    };
    rows.push(row("bra", &collatz("bra"), turns));
    rows.push(row("bra.uni", &collatz("bra.uni"), turns));
    let table = |brx: &str| {
        format!(
            "and.b32 %r1, %a0, 3; TABLE: .branchtargets A, B, C, B; {brx} %r1, TABLE; A: mov.u32 %d0, 10; bra END; \
             B: mov.u32 %d0, 20; bra END; C: mov.u32 %d0, 30; END:"
        )
    };
    let chosen = |n: u64| [10, 20, 30, 20][n as usize & 3];
    rows.push(row("brx.idx", &table("brx.idx"), chosen));
    // All lanes of a warp go the same way.
    let uniform = table("brx.idx.uni").replace("and.b32 %r1, %a0, 3", "shr.u32 %r1, %a0, 5");
    rows.push(row("brx.idx.uni", &uniform, |n| chosen(n / 32)));
    let leave = |form: &str| {
        format!("st.global.b64 [%out], 7; setp.lt.u32 %p1, %a0, 5; @%p1 {form}; mov.u32 %d0, 9;")
    };
    for form in ["exit", "ret", "ret.uni"] {
        if form == "ret.uni" {
            let text = leave(form).replace("lt.u32 %p1, %a0, 5", "lt.u32 %p1, %a0, 32");
            rows.push(row(form, &text, |n| if n < 32 { 7 } else { 9 }));
        } else {
            rows.push(row(form, &leave(form), |n| if n < 5 { 7 } else { 9 }));
        }
    }
    // Guards of either sign, on what writes.
    let text =
        "setp.gt.u32 %p1, %a0, 20; mov.u32 %d0, 1; @%p1 add.u32 %d0, %d0, 5; @!%p1 sub.u32 %d0, %d0, 3;";
    rows.push(row("add.u32", text, |n| if n > 20 { 6 } else { u64::MAX - 1 }));
}

fn calls(rows: &mut Vec<Row>) {
    let module = ".func (.param .b32 result) weigh(.param .b32 a, .param .align 8 .b8 rest[8]) {\n\
                  .reg .b32 %r<9>; .reg .pred %p<2>; ld.param.b32 %r1, [a]; ld.param.b32 %r2, [rest+4];\n\
                  setp.gt.u32 %p1, %r1, 40; @%p1 bra BIG; add.u32 %r3, %r1, %r2; st.param.b32 [result], %r3; ret;\n\
                  BIG: mul.lo.u32 %r3, %r1, %r2; st.param.b32 [result], %r3; ret; }\n";
    for form in ["call", "call.uni"] {
        let text = format!(
            "{{ .param .b32 first; .param .align 8 .b8 second[8]; .param .b32 back; st.param.b32 [first], %a0; \
             st.param.b32 [second], 0; st.param.b32 [second+4], 6; {form} (back), weigh, (first, second); \
             ld.param.b32 %d0, [back]; }}"
        );
        let wanted = |n: u64| if n > 40 { n * 6 } else { n + 6 };
        for form in [form, "st.param.b32", "ld.param.b32"] {
            rows.push(row(form, &text, wanted).module(module));
        }
        let parts = "st.param.b32 [second], 0; st.param.b32 [second+4], 6;";
        let whole = text.replace(parts, "st.param.b64 [second], 0x600000000;");
        rows.push(row("st.param.b64", &whole, wanted).module(module));
        let text = text.replace(".param.b32 [", ".param::func.b32 [");
        for form in ["st.param::func.b32", "ld.param::func.b32"] {
            let text = text.replace("ld.param.b32", "ld.param::func.b32");
            rows.push(row(form, &text, wanted).module(module));
        }
    }
}

/// Two warps exchange through shared memory.
fn barriers(rows: &mut Vec<Row>) {
    let module = ".shared .align 4 .b8 buffer[256];";
    let exchange = |barrier: &str| {
        format!(
            "mov.u32 %r9, buffer; mad.lo.u32 %r0, %a0, 4, %r9; mul.lo.u32 %r1, %a0, 11; st.shared.u32 [%r0], %r1; \
             {barrier}; xor.b32 %r2, %a0, 33; mad.lo.u32 %r2, %r2, 4, %r9; ld.shared.u32 %d0, [%r2];"
        )
    };
    let all = [
        ("bar.sync", "bar.sync 0"),
        ("bar.sync", "bar.sync 3, 64"),
        ("bar.sync", "mov.u32 %r3, 5; bar.sync %r3"),
        ("bar.cta.sync", "bar.cta.sync 1"),
        ("barrier.sync", "barrier.sync 2"),
        ("barrier.sync", "barrier.sync 2, 64"),
        ("barrier.sync.aligned", "barrier.sync.aligned 0"),
        ("barrier.cta.sync", "barrier.cta.sync 0"),
        ("barrier.cta.sync.aligned", "barrier.cta.sync.aligned 0, 64"),
    ];
    for (form, text) in all {
        let row = Row::new(form, &[W], &[W], threads(64)).shape([1, 1, 1], [64, 1, 1]).module(module);
        rows.push(row.text(&exchange(text)).gives(|v| (v[0] ^ 33) * 11));
    }
    let text = "mov.u32 %r9, buffer; and.b32 %r8, %a0, 31; mad.lo.u32 %r0, %r8, 4, %r9; st.shared.u32 [%r0], %a0; \
                bar.warp.sync 0xffffffff; xor.b32 %r2, %r8, 1; mad.lo.u32 %r2, %r2, 4, %r9; ld.shared.u32 %d0, [%r2];";
    let row = row("bar.warp.sync", text, |n| n ^ 1);
    rows.push(row.module(module));
}

/// One warp arrives and goes on, the other waits for it.
fn named_barriers(rows: &mut Vec<Row>) {
    let module = ".shared .align 4 .b8 buffer[128];";
    for (arrive, sync) in [
        ("bar.arrive", "bar.sync"),
        ("bar.cta.arrive", "bar.cta.sync"),
        ("barrier.arrive", "barrier.sync"),
        ("barrier.arrive.aligned", "barrier.sync.aligned"),
        ("barrier.cta.arrive", "barrier.cta.sync"),
        ("barrier.cta.arrive.aligned", "barrier.cta.sync.aligned"),
    ] {
        let text = format!(
            "mov.u32 %r9, buffer; and.b32 %r8, %a0, 31; mad.lo.u32 %r0, %r8, 4, %r9; mov.u32 %d0, 3; \
             setp.lt.u32 %p1, %a0, 32; @%p1 bra WRITES; {sync} 7, 64; ld.shared.u32 %d0, [%r0]; bra END; \
             WRITES: st.shared.u32 [%r0], %a0; {arrive} 7, 64; END:"
        );
        let row = Row::new(arrive, &[W], &[W], threads(64)).shape([1, 1, 1], [64, 1, 1]).module(module);
        rows.push(row.text(&text).gives(|v| if v[0] < 32 { 3 } else { v[0] - 32 }));
    }
}

fn reductions(rows: &mut Vec<Row>) {
    let inputs = |kind: u64| {
        (0..64).map(|n| vec![u64::from(kind == 2 || kind == 1 && n % 3 == 0)]).collect::<Vec<_>>()
    };
    for opcode in ["bar", "bar.cta", "barrier", "barrier.cta"] {
        for aligned in ["", ".aligned"].into_iter().filter(|a| a.is_empty() || opcode.starts_with("barrier"))
        {
            for kind in 0..3 {
                for (op, d) in [("popc.u32", W), ("and.pred", P), ("or.pred", P)] {
                    let (name, ty) = op.split_once('.').unwrap();
                    let form = format!("{opcode}.red.{name}{aligned}.{ty}");
                    for threads in ["", ", 64"] {
                        let text = format!("{form} %d0, 1{threads}, !%a0;");
                        let row = Row::new(&form, &[d], &[P], inputs(kind)).shape([1, 1, 1], [64, 1, 1]);
                        rows.push(row.text(&text).whole(|v| {
                            let count = v.iter().filter(|v| v[0] == 0).count() as u64;
                            let result = match name {
                                "popc" => count,
                                "and" => u64::from(count == 64),
                                _ => u64::from(count > 0),
                            };
                            vec![vec![result]; 64]
                        }));
                    }
                }
            }
        }
    }
}

/// What orders memory: here only that it is taken.
fn fences(rows: &mut Vec<Row>) {
    let same = |form: &str, text: &str| {
        Row::new(form, &[W], &[W], threads(64)).text(&format!("{text}; mov.b32 %d0, %a0;")).gives(|v| v[0])
    };
    let scopes = ["cta", "gpu", "sys"];
    for form in ["membar.cta", "membar.gl", "membar.sys"] {
        rows.push(same(form, form));
    }
    for form in scopes.iter().flat_map(|s| [format!("fence.sc.{s}"), format!("fence.acq_rel.{s}")]) {
        rows.push(same(&form, &form));
    }
    let hopper = [
        "fence.sc.cluster",
        "fence.acq_rel.cluster",
        "fence.proxy.async",
        "fence.proxy.async.global",
        "fence.proxy.async.shared::cta",
        "fence.proxy.async.shared::cluster",
        "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster",
        "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster",
        "fence.acquire.sync_restrict::shared::cluster.cluster",
        "fence.release.sync_restrict::shared::cta.cluster",
        "fence.mbarrier_init.release.cluster",
        "griddepcontrol.wait",
        "griddepcontrol.launch_dependents",
        "wgmma.fence.sync.aligned",
        "wgmma.commit_group.sync.aligned",
    ];
    for form in hopper {
        rows.push(same(form, form).sm90());
    }
    rows.push(same("wgmma.wait_group.sync.aligned", "wgmma.wait_group.sync.aligned 0").sm90());
    rows.push(same("fence.proxy.alias", "fence.proxy.alias"));
    for form in ["setmaxnreg.inc.sync.aligned.u32", "setmaxnreg.dec.sync.aligned.u32"] {
        let count = if form.contains("inc") { 232 } else { 24 };
        let row = Row::new(form, &[W], &[W], threads(128)).shape([1, 1, 1], [128, 1, 1]).sm90();
        let row = row.directives(".maxntid 128 .minnctapersm 1");
        rows.push(row.text(&format!("{form} {count}; mov.b32 %d0, %a0;")).gives(|v| v[0]));
    }
    rows.push(same("nanosleep.u32", "nanosleep.u32 100"));
    rows.push(same("pmevent", "pmevent 1"));
}

fn hints(rows: &mut Vec<Row>) {
    let hints = [
        "applypriority.global.L2::evict_normal",
        "applypriority.L2::evict_normal",
        "discard.global.L2",
        "discard.L2",
    ];
    for form in hints {
        let row = Row::new(form, &[W], &[W], threads(32)).memory(&[0; 128]);
        rows.push(row.text(&format!("{form} [%memory], 128; mov.b32 %d0, %a0;")).gives(|v| v[0]));
    }
    for (form, d) in [
        ("%clock", W),
        ("%clock_hi", W),
        ("%clock64", X),
        ("%globaltimer", X),
        ("%globaltimer_lo", W),
        ("%globaltimer_hi", W),
    ] {
        clock(rows, form, d);
    }
}

/// Clocks do not go back.
fn clock(rows: &mut Vec<Row>, form: &str, size: Size) {
    let bits = size.bits();
    if form.ends_with("_hi") {
        // The upper half of what the whole is; it changes every four seconds.
        let whole = if form == "%clock_hi" { "%clock64" } else { "%globaltimer" };
        let text = format!(
            "mov.u64 %x1, {whole}; mov.u32 %r1, {form}; mov.u64 %x2, {whole}; shr.u64 %x1, %x1, 32; \
             shr.u64 %x2, %x2, 32; cvt.u64.u32 %x3, %r1; setp.ge.u64 %p1, %x3, %x1; \
             setp.le.and.u64 %p1, %x3, %x2, %p1; selp.b32 %d0, 1, 0, %p1;"
        );
        rows.push(Row::new(form, &[size], &[W], threads(32)).text(&text).gives(|_| 1));
        return;
    }
    let text = format!(
        "mov.u{bits} %d0, {form}; mov.u{bits} %{0}3, {form}; sub.u{bits} %{0}3, %{0}3, %d0; \
         setp.ge.s{bits} %p1, %{0}3, 0; selp.b{bits} %d0, 1, 0, %p1;",
        if size == W { 'r' } else { 'x' }
    );
    rows.push(Row::new(form, &[size], &[W], threads(32)).text(&text).gives(|_| 1));
}
