//! Instructions of a warp: shuffles, votes, matches, reductions. Each block is one warp.

use crate::row::{P, Row, Size, W, X};
use crate::values::{Random, integers, mask, wide};

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    shuffles(&mut rows);
    votes(&mut rows);
    matches(&mut rows);
    reductions(&mut rows);
    rows
}

/// What a warp gives, for each warp of the grid.
fn by_warp(row: Row, warp: impl Fn(&[Vec<u64>]) -> Vec<Vec<u64>>) -> Row {
    row.whole(|threads| threads.chunks(32).flat_map(&warp).collect())
}

fn shuffles(rows: &mut Vec<Row>) {
    let mut random = Random::new(1);
    // c: the clamp, and in bits 8 to 12 which lane bits name the segment.
    let controls = [31, 0, 0x1c03, 0x1800, 0x1807, 0x1000, 0x100f, 0x1e01, 0x1f1f, 0x0c07, 15];
    let mut inputs = Vec::new();
    for control in controls {
        for same in [true, true, false] {
            let common = random.below(32);
            for _ in 0..32 {
                let amount = if same { common } else { random.bits() & 0xff };
                inputs.push(vec![random.bits() & mask(32), amount, control]);
            }
        }
    }
    for mode in ["up", "down", "bfly", "idx"] {
        let form = format!("shfl.sync.{mode}.b32");
        let warp = |threads: &[Vec<u64>]| -> Vec<Vec<u64>> {
            (0..32u64)
                .map(|lane| {
                    let (b, c) = (threads[lane as usize][1] & 31, threads[lane as usize][2]);
                    let (clamp, segment) = (c & 31, c >> 8 & 31);
                    let most = (lane & segment) | (clamp & !segment & 31);
                    let least = lane & segment;
                    let (source, inside) = match mode {
                        "up" => (lane as i64 - b as i64, lane as i64 - b as i64 >= most as i64),
                        "down" => ((lane + b) as i64, lane + b <= most),
                        "bfly" => ((lane ^ b) as i64, lane ^ b <= most),
                        _ => ((least | b & !segment & 31) as i64, (least | b & !segment & 31) <= most),
                    };
                    let source = if inside { source as usize } else { lane as usize };
                    vec![threads[source][0], u64::from(inside)]
                })
                .collect()
        };
        let row = || Row::new(&form, &[W, P], &[W, W, W], inputs.clone());
        rows.push(by_warp(row().text(&format!("{form} %d0|%d1, %a0, %a1, %a2, -1;")), warp));
        let row = Row::new(&form, &[W], &[W, W, W], inputs.clone());
        rows.push(by_warp(row.text(&format!("{form} %d0, %a0, %a1, %a2, 0xffffffff;")), |threads| {
            warp(threads).iter().map(|d| vec![d[0]]).collect()
        }));
    }
    halves_of_warps(rows);
}

/// Lanes of a part of the warp, named by the mask; the others do something else.
fn halves_of_warps(rows: &mut Vec<Row>) {
    let inputs: Vec<Vec<u64>> = (0..32).map(|n| vec![n * 3 + 1]).collect();
    let text = "and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 0; mov.u32 %d0, 0; \
                @%p1 shfl.sync.bfly.b32 %d0, %a0, 2, 31, 0x55555555; \
                @!%p1 shfl.sync.down.b32 %d0, %a0, 2, 31, 0xaaaaaaaa;";
    let row = Row::new("shfl.sync.bfly.b32", &[W], &[W], inputs).text(text);
    rows.push(by_warp(row, |threads| {
        (0..32usize)
            .map(|lane| {
                let source = if lane % 2 == 0 {
                    lane ^ 2
                } else if lane + 2 < 32 {
                    lane + 2
                } else {
                    lane
                };
                threads[source].clone()
            })
            .collect()
    }));
}

fn votes(rows: &mut Vec<Row>) {
    let mut random = Random::new(2);
    let mut inputs = Vec::new();
    for kind in 0..12u64 {
        inputs.extend((0..32).map(|lane| {
            vec![match kind {
                0 => 0,
                1 => 1,
                2 => u64::from(lane == 5),
                3 => u64::from(lane != 31),
                _ => random.below(2),
            }]
        }));
    }
    let all = |threads: &[Vec<u64>]| threads.iter().all(|v| v[0] == 1);
    let any = |threads: &[Vec<u64>]| threads.iter().any(|v| v[0] == 1);
    let ballot = |threads: &[Vec<u64>]| -> u64 { (0..32).map(|n| threads[n][0] << n).sum() };
    let mut row = |form: &str, d: Size, result: &dyn Fn(&[Vec<u64>]) -> u64| {
        for (source, negated) in [("%a0", 0), ("!%a0", 1)] {
            let row = Row::new(form, &[d], &[P], inputs.clone()).text(&format!("{form} %d0, {source}, -1;"));
            rows.push(by_warp(row, |threads| {
                let seen: Vec<Vec<u64>> = threads.iter().map(|v| vec![v[0] ^ negated]).collect();
                vec![vec![result(&seen)]; 32]
            }));
        }
    };
    row("vote.sync.all.pred", P, &|v| u64::from(all(v)));
    row("vote.sync.any.pred", P, &|v| u64::from(any(v)));
    row("vote.sync.uni.pred", P, &|v| u64::from(all(v) || !any(v)));
    row("vote.sync.ballot.b32", W, &ballot);
    // Lanes outside of the mask are not asked.
    let text = "setp.lt.u32 %p1, %t, 16; mov.u32 %d0, 0; @%p1 vote.sync.ballot.b32 %d0, %a0, 0xffff; \
                activemask.b32 %r1;";
    let row = Row::new("vote.sync.ballot.b32", &[W], &[P], inputs[64..96].to_vec()).text(text);
    rows.push(by_warp(row, |threads| {
        let bits = (0..16).map(|n| threads[n][0] << n).sum();
        (0..32).map(|n| vec![if n < 16 { bits } else { 0 }]).collect()
    }));
    let text = "setp.lt.u32 %p1, %t, 9; mov.u32 %d0, 0; @!%p1 bra DONE; activemask.b32 %d0; DONE:";
    let row = Row::new("activemask.b32", &[W], &[P], inputs[..32].to_vec()).text(text);
    rows.push(by_warp(row, |_| (0..32).map(|n| vec![if n < 9 { 0x1ff } else { 0 }]).collect()));
    let row = Row::new("elect.sync", &[W, P], &[P], inputs[..32].to_vec()).sm90();
    let text = "setp.gt.u32 %p1, %t, 6; mov.u32 %d0, 0; setp.ne.u32 %d1, 0, 0; \
                @%p1 elect.sync %d0|%d1, 0xffffff80;";
    rows.push(by_warp(row.text(text), |_| {
        (0..32).map(|n| vec![if n > 6 { 7 } else { 0 }, u64::from(n == 7)]).collect()
    }));
}

fn matches(rows: &mut Vec<Row>) {
    for (bits, size) in [(32, W), (64, X)] {
        let mut random = Random::new(3);
        let values = integers(bits);
        let mut inputs = Vec::new();
        for kinds in [1, 2, 5, 20] {
            inputs.extend((0..32).map(|_| vec![values[random.below(kinds) as usize]]));
        }
        let same = |threads: &[Vec<u64>], lane: usize| -> u64 {
            (0..32).filter(|n| threads[*n] == threads[lane]).map(|n| 1 << n).sum()
        };
        let any = format!("match.any.sync.b{bits}");
        let row = Row::new(&any, &[W], &[size], inputs.clone()).text(&format!("{any} %d0, %a0, -1;"));
        rows.push(by_warp(row, |threads| (0..32).map(|lane| vec![same(threads, lane)]).collect()));
        let all = format!("match.all.sync.b{bits}");
        let row = Row::new(&all, &[W, P], &[size], inputs.clone()).text(&format!("{all} %d0|%d1, %a0, -1;"));
        rows.push(by_warp(row, |threads| {
            let equal = same(threads, 0) == mask(32);
            vec![vec![if equal { mask(32) } else { 0 }, u64::from(equal)]; 32]
        }));
        let row = Row::new(&all, &[W], &[size], inputs.clone()).text(&format!("{all} %d0, %a0, -1;"));
        rows.push(by_warp(row, |threads| {
            vec![vec![if same(threads, 0) == mask(32) { mask(32) } else { 0 }]; 32]
        }));
    }
}

fn reductions(rows: &mut Vec<Row>) {
    let mut random = Random::new(4);
    let values = integers(32);
    let inputs: Vec<Vec<u64>> = (0..128).map(|_| vec![random.pick(&values)]).collect();
    let mut row = |op: &str, ty: &str, signed: bool, f: &dyn Fn(i128, i128) -> i128| {
        let form = format!("redux.sync.{op}.{ty}");
        let row = Row::new(&form, &[W], &[W], inputs.clone()).text(&format!("{form} %d0, %a0, -1;"));
        rows.push(by_warp(row, |threads| {
            let all = threads.iter().map(|v| wide(v[0], 32, signed));
            vec![vec![all.reduce(f).unwrap() as u64 & mask(32)]; 32]
        }));
    };
    for (ty, signed) in [("u32", false), ("s32", true)] {
        row("add", ty, signed, &|a, b| a + b);
        row("min", ty, signed, &|a, b| a.min(b));
        row("max", ty, signed, &|a, b| a.max(b));
    }
    row("and", "b32", false, &|a, b| a & b);
    row("or", "b32", false, &|a, b| a | b);
    row("xor", "b32", false, &|a, b| a ^ b);
}
