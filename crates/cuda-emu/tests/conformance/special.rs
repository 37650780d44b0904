//! Special registers, and clusters of blocks.

use crate::row::{P, Row, W, X};

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    places(&mut rows);
    clusters(&mut rows);
    neighbours(&mut rows);
    rows
}

/// Blocks of 5 × 4 × 2 threads, 3 × 2 × 2 of them.
const GRID: [u32; 3] = [3, 2, 2];
const BLOCK: [u32; 3] = [5, 4, 2];

/// The coordinates of a number, the first dimension innermost.
fn unrolled(number: u64, sides: [u32; 3]) -> [u64; 3] {
    let [x, y, _] = sides.map(u64::from);
    [number % x, number / x % y, number / x / y]
}

fn places(rows: &mut Vec<Row>) {
    let per_block = u64::from(BLOCK.iter().product::<u32>());
    let mut row = |register: &str, wanted: &dyn Fn(u64, u64) -> u64| {
        let inputs = (0..per_block * 12).map(|n| vec![n]).collect();
        let row = Row::new(&format!("%{register}"), &[W], &[X], inputs).shape(GRID, BLOCK);
        rows.push(
            row.text(&format!("mov.u32 %d0, %{register};"))
                .gives(|v| wanted(v[0] / per_block, v[0] % per_block)),
        );
    };
    for (d, axis) in ["x", "y", "z"].into_iter().enumerate() {
        row(&format!("tid.{axis}"), &|_, thread| unrolled(thread, BLOCK)[d]);
        row(&format!("ntid.{axis}"), &|_, _| u64::from(BLOCK[d]));
        row(&format!("ctaid.{axis}"), &|block, _| unrolled(block, GRID)[d]);
        row(&format!("nctaid.{axis}"), &|_, _| u64::from(GRID[d]));
    }
    row("laneid", &|_, thread| thread % 32);
    row("warpid", &|_, thread| thread / 32);
    row("nwarpid", &|_, _| 2);
    row("lanemask_eq", &|_, thread| 1 << (thread % 32));
    row("lanemask_lt", &|_, thread| (1 << (thread % 32)) - 1);
    row("lanemask_le", &|_, thread| (2 << (thread % 32)) - 1);
    row("lanemask_gt", &|_, thread| 0xffff_ffff & !((2 << (thread % 32)) - 1));
    row("lanemask_ge", &|_, thread| 0xffff_ffff & !((1 << (thread % 32)) - 1));
    row("dynamic_smem_size", &|_, _| 0);
    // What differs from card to card is only in its bounds.
    let inputs: Vec<Vec<u64>> = (0..32).map(|n| vec![n]).collect();
    let text = "mov.u32 %r1, %smid; mov.u32 %r2, %nsmid; setp.lt.u32 %p1, %r1, %r2; selp.u32 %d0, 1, 0, %p1;";
    for register in ["%smid", "%nsmid"] {
        rows.push(Row::new(register, &[W], &[X], inputs.clone()).text(text).gives(|_| 1));
    }
    let grid = Row::new("%gridid", &[W], &[X], inputs.clone());
    let text =
        "mov.u64 %x1, %gridid; mov.u64 %x2, %gridid; setp.eq.u64 %p1, %x1, %x2; selp.u32 %d0, 1, 0, %p1;";
    rows.push(grid.text(text).gives(|_| 1));
    let total = Row::new("%total_smem_size", &[W], &[X], inputs);
    let text = "mov.u32 %r9, buffer; st.shared.u32 [%r9], 1; mov.u32 %r1, %total_smem_size; \
                setp.ge.u32 %p1, %r1, 640; selp.u32 %d0, 1, 0, %p1;";
    let text =
        text.replace("st.shared.u32 [%r9], 1;", "setp.eq.u32 %p2, %t, 0; @%p2 st.shared.u32 [%r9], 1;");
    rows.push(total.module(".shared .align 4 .b8 buffer[640];").text(&text).gives(|_| 1));
}

/// Clusters of 2 × 1 × 2 blocks of one warp, 4 × 2 × 2 blocks in all.
fn clusters(rows: &mut Vec<Row>) {
    let (grid, cluster) = ([4, 2, 2], [2u64, 1, 2]);
    let mut row = |register: &str, wanted: &dyn Fn([u64; 3]) -> u64| {
        let inputs = (0..32 * 16).map(|n| vec![n]).collect();
        let row = Row::new(&format!("%{register}"), &[W], &[X], inputs).shape(grid, [32, 1, 1]).sm90();
        let row = row.directives(".explicitcluster .reqnctapercluster 2, 1, 2");
        rows.push(
            row.text(&format!("mov.u32 %d0, %{register};")).gives(|v| wanted(unrolled(v[0] / 32, grid))),
        );
    };
    for (d, axis) in ["x", "y", "z"].into_iter().enumerate() {
        row(&format!("clusterid.{axis}"), &|at| at[d] / cluster[d]);
        row(&format!("nclusterid.{axis}"), &|_| u64::from(grid[d]) / cluster[d]);
        row(&format!("cluster_ctaid.{axis}"), &|at| at[d] % cluster[d]);
        row(&format!("cluster_nctaid.{axis}"), &|_| cluster[d]);
    }
    row("cluster_ctarank", &|at| at[0] % 2 + at[2] % 2 * 2);
    row("cluster_nctarank", &|_| 4);
    // A predicate: whether the launch is one of clusters.
    for (directives, answer) in [(".explicitcluster .reqnctapercluster 2, 1, 2", 1), ("", 0)] {
        let inputs = (0..32 * 16).map(|n| vec![n]).collect();
        let row = Row::new("%is_explicit_cluster", &[P], &[X], inputs).shape(grid, [32, 1, 1]).sm90();
        let text = "mov.pred %d0, %is_explicit_cluster;";
        rows.push(row.directives(directives).text(text).gives(|_| answer));
    }
}

/// Each thread's word of `buffer`: `%r0`, generic `%x0`; the other block's rank: `%r6`.
const START: &str = "mov.u32 %r9, buffer; mov.u32 %r8, %tid.x; mad.lo.u32 %r0, %r8, 4, %r9; mov.u64 %x0, buffer; \
                 mul.wide.u32 %x2, %r8, 4; add.u64 %x0, %x0, %x2; cvta.shared.u64 %x0, %x0; \
                 mov.u32 %r7, %cluster_ctarank; xor.b32 %r6, %r7, 1; st.shared.u32 [%r0], %a0;";
const MEET: &str = "barrier.cluster.arrive; barrier.cluster.wait;";
const READ: &str = "mapa.shared::cluster.u32 %r1, %r0, %r6; ld.shared::cluster.u32 %d0, [%r1];";

/// A row of two pairs of blocks.
fn pairs(form: &str, text: &str) -> Row {
    let inputs: Vec<Vec<u64>> = (0..128).map(|n| vec![n]).collect();
    let module = ".shared .align 16 .b8 buffer[512]; .shared .align 8 .b64 barrier;";
    Row::new(form, &[W], &[W], inputs)
        .shape([4, 1, 1], [32, 1, 1])
        .sm90()
        .directives(".explicitcluster .reqnctapercluster 2, 1, 1")
        .module(module)
        .text(&format!("{START} {text}"))
}

/// What the other block's thread has.
fn peer(v: &[u64]) -> u64 {
    v[0] ^ 32
}

/// Pairs of blocks that meet, and read each other's shared memory.
fn neighbours(rows: &mut Vec<Row>) {
    let aligned = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;";
    let meets = [
        ("barrier.cluster.arrive", "barrier.cluster.wait"),
        ("barrier.cluster.arrive.aligned", "barrier.cluster.wait.aligned"),
        ("barrier.cluster.arrive.release", "barrier.cluster.wait.acquire"),
        ("barrier.cluster.arrive.release.aligned", "barrier.cluster.wait.acquire.aligned"),
    ];
    for (arrive, wait) in meets {
        for form in [arrive, wait] {
            rows.push(pairs(form, &format!("{arrive}; {wait}; {READ} {aligned}")).gives(peer));
        }
    }
    for arrive in ["barrier.cluster.arrive.relaxed", "barrier.cluster.arrive.relaxed.aligned"] {
        let text = format!("{MEET} {READ} {arrive}; barrier.cluster.wait;");
        rows.push(pairs(arrive, &text).gives(peer));
    }
    let ways = [
        ("mapa.shared::cluster.u32", READ),
        ("ld.shared::cluster.u32", READ),
        (
            "mapa.shared::cluster.u64",
            "cvt.u64.u32 %x1, %r0; mapa.shared::cluster.u64 %x1, %x1, %r6; ld.shared::cluster.u32 %d0, [%x1];",
        ),
        ("mapa.u64", "mapa.u64 %x1, %x0, %r6; ld.u32 %d0, [%x1];"),
    ];
    for (form, read) in ways {
        rows.push(pairs(form, &format!("{MEET} {read} {MEET}")).gives(peer));
    }
    remote_writes(rows);
}

/// Blocks that write, add to, and arrive in each other's shared memory.
fn remote_writes(rows: &mut Vec<Row>) {
    let ranks = [
        (
            "getctarank.shared::cluster.u32",
            "mapa.shared::cluster.u32 %r1, %r0, %r6; getctarank.shared::cluster.u32 %d0, %r1;",
        ),
        (
            "getctarank.shared::cluster.u64",
            "cvt.u64.u32 %x1, %r0; mapa.shared::cluster.u64 %x1, %x1, %r6; getctarank.shared::cluster.u64 %d0, %x1;",
        ),
        ("getctarank.u64", "mapa.u64 %x1, %x0, %r6; getctarank.u64 %d0, %x1;"),
    ];
    for (form, text) in ranks {
        rows.push(pairs(form, &format!("{text} {MEET}")).gives(|v| (v[0] / 32 % 2) ^ 1));
    }
    let write = "mapa.shared::cluster.u32 %r1, %r0, %r6; st.shared::cluster.u32 [%r1+128], %a0;";
    rows.push(
        pairs("st.shared::cluster.u32", &format!("{MEET} {write} {MEET} ld.shared.u32 %d0, [%r0+128];"))
            .gives(peer),
    );
    let add = "mapa.shared::cluster.u32 %r1, %r0, %r6; atom.shared::cluster.add.u32 %r2, [%r1], 1000;";
    rows.push(
        pairs("atom.shared::cluster.add.u32", &format!("{MEET} {add} {MEET} ld.shared.u32 %d0, [%r0];"))
            .gives(|v| v[0] + 1000),
    );
    let add = add.replace("atom", "red").replace("%r2, ", "");
    rows.push(
        pairs("red.shared::cluster.add.u32", &format!("{MEET} {add} {MEET} ld.shared.u32 %d0, [%r0];"))
            .gives(|v| v[0] + 1000),
    );
    let init = "mov.u32 %r5, barrier; setp.eq.u32 %p1, %r8, 0; @%p1 mbarrier.init.shared::cta.b64 [%r5], 32; \
                @%p1 fence.mbarrier_init.release.cluster;";
    let mut remote = |form: &str, text: &str| {
        let text = format!(
            "{init} {MEET} mapa.shared::cluster.u32 %r1, %r5, %r6; {text} \
             WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r5], 0; @!%p2 bra WAIT; {READ} {MEET}"
        );
        rows.push(pairs(form, &text).gives(peer));
    };
    let [expect, complete] = ["expect_tx", "complete_tx"]
        .map(|what| format!("mbarrier.{what}.relaxed.cluster.shared::cluster.b64"));
    for what in ["arrive", "arrive_drop"] {
        let form = format!("mbarrier.{what}.release.cluster.shared::cluster.b64");
        remote(&form, &format!("{form} _, [%r1];"));
        remote(&form, &format!("setp.lt.u32 %p3, %r8, 16; @%p3 {form} _, [%r1], 2;"));
        let form = format!("mbarrier.{what}.expect_tx.release.cluster.shared::cluster.b64");
        remote(&form, &format!("{form} _, [%r1], 8; {complete} [%r1], 8;"));
    }
    for scope in ["cta", "cluster"] {
        let [expect, complete] = [&expect, &complete]
            .map(|form: &String| form.replace("relaxed.cluster", &format!("relaxed.{scope}")));
        let text = format!(
            "{expect} [%r1], 24; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1]; {complete} [%r1], 24;"
        );
        remote(&expect, &text);
        remote(&complete, &text);
    }
}
