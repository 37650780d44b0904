//! Logic, shifts, bit fields, counts, permutations of bytes, and small dot products.

use super::integer::{ALL, LARGE};
use crate::row::{P, Row, Size, W};
use crate::values::{Random, integers, mask, pairs, singles, triples, tuples, wide};

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for bits in [16, 32, 64] {
        logic(&mut rows, bits);
    }
    predicates(&mut rows);
    shifts(&mut rows);
    for bits in [32, 64] {
        counts(&mut rows, bits);
        insertion(&mut rows, bits);
    }
    extraction(&mut rows);
    tables(&mut rows);
    permutations(&mut rows);
    funnels(&mut rows);
    masks(&mut rows);
    dot_products(&mut rows);
    rows
}

fn logic(rows: &mut Vec<Row>, bits: u32) {
    let (size, values, all) = (Size::of(bits), integers(bits), mask(bits));
    let row = |op: &str| Row::new(&format!("{op}.b{bits}"), &[size], &[size; 2], pairs(&values, &values));
    rows.push(row("and").gives(|v| v[0] & v[1]));
    rows.push(row("or").gives(|v| v[0] | v[1]));
    rows.push(row("xor").gives(|v| v[0] ^ v[1]));
    rows.push(Row::new(&format!("not.b{bits}"), &[size], &[size], singles(&values)).gives(|v| !v[0] & all));
}

fn predicates(rows: &mut Vec<Row>) {
    let both = || pairs(&[0, 1], &[0, 1]);
    let row = |op: &str| Row::new(op, &[P], &[P, P], both());
    rows.push(row("and.pred").gives(|v| v[0] & v[1]));
    rows.push(row("or.pred").gives(|v| v[0] | v[1]));
    rows.push(row("xor.pred").gives(|v| v[0] ^ v[1]));
    rows.push(Row::new("not.pred", &[P], &[P], singles(&[0, 1])).gives(|v| v[0] ^ 1));
    rows.push(Row::new("mov.pred", &[P], &[P], singles(&[0, 1])).gives(|v| v[0]));
    for bits in [16, 32, 64] {
        let (size, values) = (Size::of(bits), integers(bits));
        for name in [format!("b{bits}"), format!("u{bits}"), format!("s{bits}"), format!("f{bits}")] {
            if name == "f16" {
                continue;
            }
            let row = Row::new(&format!("mov.{name}"), &[size], &[size], singles(&values));
            rows.push(row.gives(|v| v[0]));
        }
    }
    packs(rows);
}

/// `mov` between a register and its parts.
fn packs(rows: &mut Vec<Row>) {
    for (whole, part, count) in [(32, 16, 2), (64, 32, 2), (64, 16, 4), (32, 8, 4)] {
        // Parts of 8 bits have no operand size of their own in this table.
        if part == 8 {
            continue;
        }
        let names = |letter: char| {
            let names: Vec<_> = (0..count).map(|n| format!("%{letter}{n}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let (large, small) = (Size::of(whole), Size::of(part));
        let form = format!("mov.b{whole}");
        let unpack = Row::new(&form, &vec![small; count], &[large], singles(&integers(whole)));
        rows.push(
            unpack
                .text(&format!("{form} {}, %a0;", names('d')))
                .each(|v| (0..count).map(|n| v[0] >> (n as u32 * part) & mask(part)).collect()),
        );
        let values = integers(part);
        let lists: Vec<&[u64]> = vec![&values; count];
        let pack = Row::new(&form, &[large], &vec![small; count], tuples(&lists, 256));
        rows.push(
            pack.text(&format!("{form} %d0, {};", names('a')))
                .gives(|v| v.iter().enumerate().map(|(n, part_bits)| part_bits << (n as u32 * part)).sum()),
        );
    }
}

fn shifts(rows: &mut Vec<Row>) {
    let amounts = [0, 1, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 0x8000_0000, 0xffff_ffff];
    for bits in [16, 32, 64] {
        let (size, values) = (Size::of(bits), integers(bits));
        let row = |form: String| Row::new(&form, &[size], &[size, W], pairs(&values, &amounts));
        // Amounts beyond the size are clamped to it.
        rows.push(
            row(format!("shl.b{bits}"))
                .gives(|v| if v[1] >= u64::from(bits) { 0 } else { v[0] << v[1] & mask(bits) }),
        );
        rows.push(
            row(format!("shr.b{bits}")).gives(|v| if v[1] >= u64::from(bits) { 0 } else { v[0] >> v[1] }),
        );
    }
    for (name, bits, signed) in ALL {
        let (size, values) = (Size::of(bits), integers(bits));
        let row = Row::new(&format!("shr.{name}"), &[size], &[size, W], pairs(&values, &amounts));
        rows.push(row.gives(|v| (wide(v[0], bits, signed) >> v[1].min(u64::from(bits))) as u64 & mask(bits)));
    }
}

fn counts(rows: &mut Vec<Row>, bits: u32) {
    let (size, values) = (Size::of(bits), integers(bits));
    let row = |op: &str, d| Row::new(&format!("{op}.b{bits}"), &[d], &[size], singles(&values));
    rows.push(row("popc", W).gives(|v| (0..bits).map(|n| v[0] >> n & 1).sum()));
    rows.push(
        row("clz", W).gives(|v| (0..bits).take_while(|n| v[0] >> (bits - 1 - n) & 1 == 0).count() as u64),
    );
    rows.push(row("brev", size).gives(|v| (0..bits).map(|n| (v[0] >> n & 1) << (bits - 1 - n)).sum()));
}

fn insertion(rows: &mut Vec<Row>, bits: u32) {
    let (size, values) = (Size::of(bits), integers(bits));
    let amounts = [0, 1, 5, 16, 31, 32, 33, 63, 64, 255, 256, 0x101];
    let inputs = tuples(&[&values, &values, &amounts, &amounts], 1024);
    let row = Row::new(&format!("bfi.b{bits}"), &[size], &[size, size, W, W], inputs);
    rows.push(row.gives(|v| {
        // f = b; for (i = 0; i < len && pos + i <= msb; i++) f[pos + i] = a[i]
        let (position, length) = (v[2] & 0xff, v[3] & 0xff);
        (0..length)
            .take_while(|i| position + i < u64::from(bits))
            .fold(v[1], |f, i| f & !(1 << (position + i)) | (v[0] >> i & 1) << (position + i))
    }));
}

fn extraction(rows: &mut Vec<Row>) {
    let amounts = [0, 1, 5, 16, 31, 32, 33, 63, 64, 255, 256, 0x101];
    for (name, bits, signed) in LARGE {
        let (size, values) = (Size::of(bits), integers(bits));
        let inputs = tuples(&[&values, &amounts, &amounts], 1024);
        let row = Row::new(&format!("bfe.{name}"), &[size], &[size, W, W], inputs);
        rows.push(row.gives(|v| {
            let (position, length, top) = (v[1] & 0xff, v[2] & 0xff, u64::from(bits) - 1);
            let sign = match length {
                _ if !signed => 0,
                0 => 0,
                _ => v[0] >> (position + length - 1).min(top) & 1,
            };
            let bit =
                |i: u64| if i < length && position + i <= top { v[0] >> (position + i) & 1 } else { sign };
            (0..u64::from(bits)).map(|i| bit(i) << i).sum()
        }));
        for shift in [false, true] {
            let form = format!("bfind{}.{name}", if shift { ".shiftamt" } else { "" });
            rows.push(Row::new(&form, &[W], &[size], singles(&values)).gives(|v| {
                let negative = signed && v[0] >> (bits - 1) & 1 == 1;
                let searched = if negative { !v[0] & mask(bits) } else { v[0] };
                match (0..bits).rev().find(|n| searched >> n & 1 == 1) {
                    None => 0xffff_ffff,
                    Some(n) if shift => u64::from(bits - 1 - n),
                    Some(n) => u64::from(n),
                }
            }));
        }
    }
}

/// Some truth tables, in one row each.
fn tables(rows: &mut Vec<Row>) {
    let values = integers(32);
    let inputs = triples(&values, 96);
    for table in [0u64, 0xff, 0x80, 0xfe, 0x96, 0xe8, 0x1a, 0xf0, 0xcc, 0xaa, 0x40, 0x6a, 0xb8, 0x27] {
        let text = format!("lop3.b32 %d0, %a0, %a1, %a2, {table};");
        rows.push(Row::new("lop3.b32", &[W], &[W; 3], inputs.clone()).text(&text).gives(|v| {
            (0..32)
                .map(|n| {
                    let index = (v[0] >> n & 1) << 2 | (v[1] >> n & 1) << 1 | v[2] >> n & 1;
                    (table >> index & 1) << n
                })
                .sum()
        }));
    }
}

fn permutations(rows: &mut Vec<Row>) {
    let mut values = integers(32);
    values.extend([0x0302_0100, 0x8786_8584, 0x7f80_ff01]);
    let mut random = Random::new(3);
    let selectors: Vec<u64> =
        (0..64).map(|_| random.bits() & 0xffff_ffff).chain([0x7654, 0x3210, 0xfedc]).collect();
    let byte = |v: &[u64], n: u64| (v[0] | v[1] << 32) >> (n * 8) & 0xff;
    let inputs = tuples(&[&values, &values, &selectors], 512);
    let row = |form: &str| Row::new(form, &[W], &[W; 3], inputs.clone());
    rows.push(row("prmt.b32").gives(|v| {
        (0..4)
            .map(|n| {
                let select = v[2] >> (4 * n) & 15;
                let byte = byte(v, select & 7);
                (if select & 8 == 0 { byte } else { (byte >> 7) * 255 }) << (8 * n)
            })
            .sum()
    }));
    // The manual's table of the special modes: the source of bytes 3, 2, 1, 0 for selectors 0 to 3.
    let modes: [(&str, [[u64; 4]; 4]); 6] = [
        ("f4e", [[3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2], [6, 5, 4, 3]]),
        ("b4e", [[5, 6, 7, 0], [6, 7, 0, 1], [7, 0, 1, 2], [0, 1, 2, 3]]),
        ("rc8", [[0; 4], [1; 4], [2; 4], [3; 4]]),
        ("ecl", [[3, 2, 1, 0], [3, 2, 1, 1], [3, 2, 2, 2], [3, 3, 3, 3]]),
        ("ecr", [[0, 0, 0, 0], [1, 1, 1, 0], [2, 2, 1, 0], [3, 2, 1, 0]]),
        ("rc16", [[1, 0, 1, 0], [3, 2, 3, 2], [1, 0, 1, 0], [3, 2, 3, 2]]),
    ];
    for (mode, table) in modes {
        rows.push(row(&format!("prmt.b32.{mode}")).gives(|v| {
            let sources = table[(v[2] & 3) as usize];
            (0..4).map(|n| byte(v, sources[3 - n]) << (8 * n)).sum()
        }));
    }
}

fn funnels(rows: &mut Vec<Row>) {
    let values = integers(32);
    let amounts = [0, 1, 7, 16, 31, 32, 33, 63, 64, 0xffff_ffff];
    let inputs = tuples(&[&values, &values, &amounts], 512);
    for (mode, wrap) in [("clamp", false), ("wrap", true)] {
        let amount = move |c: u64| if wrap { c & 31 } else { c.min(32) };
        let row = |side: &str| Row::new(&format!("shf.{side}.{mode}.b32"), &[W], &[W; 3], inputs.clone());
        // b is the high half: left takes the top of what is shifted, right the bottom.
        rows.push(
            row("l").gives(|v| (u128::from(v[1] << 32 | v[0]) << amount(v[2]) >> 32) as u64 & mask(32)),
        );
        rows.push(row("r").gives(|v| ((v[1] << 32 | v[0]) >> amount(v[2])) & mask(32)));
    }
}

fn masks(rows: &mut Vec<Row>) {
    let amounts = [0, 1, 7, 16, 31, 32, 33, 63, 64, 0xffff_ffff];
    for (mode, wrap) in [("clamp", false), ("wrap", true)] {
        let amount = move |c: u64| if wrap { c & 31 } else { c.min(32) };
        let row = Row::new(&format!("bmsk.{mode}.b32"), &[W], &[W; 2], pairs(&amounts, &amounts));
        rows.push(row.gives(|v| {
            let (from, length) = (amount(v[0]), amount(v[1]));
            (0..32).filter(|n| *n >= from && *n < from + length).map(|n| 1 << n).sum()
        }));
    }
}

fn dot_products(rows: &mut Vec<Row>) {
    let values = integers(32);
    let inputs = triples(&values, 512);
    for (a_name, a_signed) in [("u32", false), ("s32", true)] {
        for (b_name, b_signed) in [("u32", false), ("s32", true)] {
            let byte = |v: u64, n: u64, signed| wide(v >> (8 * n), 8, signed);
            let signed = a_signed || b_signed;
            let row = |op: &str| Row::new(&format!("{op}.{a_name}.{b_name}"), &[W], &[W; 3], inputs.clone());
            rows.push(row("dp4a").gives(|v| {
                let dot: i128 = (0..4).map(|n| byte(v[0], n, a_signed) * byte(v[1], n, b_signed)).sum();
                (dot + wide(v[2], 32, signed)) as u64 & mask(32)
            }));
            for (half, first) in [("lo", 0), ("hi", 2)] {
                rows.push(row(&format!("dp2a.{half}")).gives(|v| {
                    let part =
                        |n: u64| wide(v[0] >> (16 * n), 16, a_signed) * byte(v[1], first + n, b_signed);
                    (part(0) + part(1) + wide(v[2], 32, signed)) as u64 & mask(32)
                }));
            }
        }
    }
}
