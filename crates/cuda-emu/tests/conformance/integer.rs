//! Integer arithmetic: sums, products, quotients, extremes, carries.

use crate::row::{P, Row, Size, W};
use crate::values::{integers, mask, pairs, singles, triples, tuples, wide};

/// A type's name, bits, signedness.
pub type Integer = (&'static str, u32, bool);
pub const ALL: [Integer; 6] = [
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];
/// Those of 32 and 64 bits.
pub const LARGE: [Integer; 4] = [ALL[2], ALL[3], ALL[4], ALL[5]];

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for ty in ALL {
        two_operands(&mut rows, ty);
        products(&mut rows, ty);
    }
    for ty in LARGE {
        carries(&mut rows, ty);
        products_with_carry(&mut rows, ty);
    }
    saturation(&mut rows);
    rows
}

fn two_operands(rows: &mut Vec<Row>, (name, bits, signed): Integer) {
    let size = Size::of(bits);
    let (values, all) = (integers(bits), mask(bits));
    let w = move |v: u64| wide(v, bits, signed);
    let mut row = |op: &str, f: &dyn Fn(i128, i128) -> i128| {
        let row = Row::new(&format!("{op}.{name}"), &[size], &[size, size], pairs(&values, &values));
        rows.push(row.gives(|v| f(w(v[0]), w(v[1])) as u64 & all));
    };
    row("add", &|a, b| a + b);
    row("sub", &|a, b| a - b);
    row("min", &|a, b| a.min(b));
    row("max", &|a, b| a.max(b));
    // Division by zero, and quotients that do not fit, have no defined result.
    let defined = |v: &Vec<u64>| w(v[1]) != 0 && !(signed && w(v[1]) == -1 && w(v[0]) == w(1 << (bits - 1)));
    let inputs: Vec<_> = pairs(&values, &values).into_iter().filter(defined).collect();
    let row = |op: &str| Row::new(&format!("{op}.{name}"), &[size], &[size, size], inputs.clone());
    rows.push(row("div").gives(|v| (w(v[0]) / w(v[1])) as u64 & all));
    rows.push(row("rem").gives(|v| (w(v[0]) % w(v[1])) as u64 & all));
    let sad = Row::new(&format!("sad.{name}"), &[size], &[size; 3], triples(&values, 512));
    rows.push(sad.gives(|v| ((w(v[0]) - w(v[1])).abs() + w(v[2])) as u64 & all));
    if signed {
        let row = |op: &str| Row::new(&format!("{op}.{name}"), &[size], &[size], singles(&values));
        rows.push(row("neg").gives(|v| -w(v[0]) as u64 & all));
        rows.push(row("abs").gives(|v| w(v[0]).unsigned_abs() as u64 & all));
    }
}

fn products(rows: &mut Vec<Row>, (name, bits, signed): Integer) {
    let size = Size::of(bits);
    let (values, all) = (integers(bits), mask(bits));
    let w = move |v: u64| wide(v, bits, signed);
    // Of two 64-bit factors the product is taken modulo 2^128: u64 × u64 needs the unsigned one.
    let product =
        move |a: u64, b: u64| if signed { (w(a) * w(b)) as u128 } else { w(a) as u128 * w(b) as u128 };
    let high =
        move |a, b| if signed { (product(a, b) as i128 >> bits) as u128 } else { product(a, b) >> bits };
    let two =
        |op: &str, d: Size| Row::new(&format!("{op}.{name}"), &[d], &[size; 2], pairs(&values, &values));
    let triples = triples(&values, 768);
    let three = |op: &str| Row::new(&format!("{op}.{name}"), &[size], &[size; 3], triples.clone());
    rows.push(two("mul.lo", size).gives(|v| product(v[0], v[1]) as u64 & all));
    rows.push(two("mul.hi", size).gives(|v| high(v[0], v[1]) as u64 & all));
    rows.push(three("mad.lo").gives(|v| (product(v[0], v[1]) as u64).wrapping_add(v[2]) & all));
    rows.push(three("mad.hi").gives(|v| (high(v[0], v[1]) as u64).wrapping_add(v[2]) & all));
    if bits < 64 {
        let double = Size::of(bits * 2);
        rows.push(two("mul.wide", double).gives(|v| product(v[0], v[1]) as u64 & mask(bits * 2)));
        let added = integers(bits * 2);
        let inputs = tuples(&[&values, &values, &added], 768);
        let mad = Row::new(&format!("mad.wide.{name}"), &[double], &[size, size, double], inputs);
        rows.push(mad.gives(|v| (product(v[0], v[1]) as u64).wrapping_add(v[2]) & mask(bits * 2)));
    }
}

fn saturation(rows: &mut Vec<Row>) {
    let values = integers(32);
    let w = |v: u64| wide(v, 32, true);
    let clamp = |v: i128| v.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as u32 as u64;
    let two = |op: &str| Row::new(op, &[W], &[W, W], pairs(&values, &values));
    rows.push(two("add.sat.s32").gives(|v| clamp(w(v[0]) + w(v[1]))));
    rows.push(two("sub.sat.s32").gives(|v| clamp(w(v[0]) - w(v[1]))));
}

/// Chains: each row's carry out is read by an `addc` of zeros (`subc` for a borrow).
fn carries(rows: &mut Vec<Row>, (name, bits, _): Integer) {
    let size = Size::of(bits);
    let (values, all) = (integers(bits), mask(bits));
    let lists: [&[u64]; 3] = [&values, &values, &[0, 1]];
    let inputs = tuples(&lists, 512);
    let row = |op: &str, text: &str, outs: usize| {
        let ins = [size, size, P];
        let text = text.replace("TY", name).replace("BITS", &bits.to_string());
        Row::new(&format!("{op}.{name}"), &vec![size; outs], &ins, inputs.clone()).text(&text)
    };
    let w = |v: u64| i128::from(v);
    rows.push(row("add.cc", "add.cc.TY %d0, %a0, %a1; addc.TY %d1, 0, 0;", 2).each(|v| {
        let sum = w(v[0]) + w(v[1]);
        vec![sum as u64 & all, (sum >> bits) as u64]
    }));
    rows.push(row("sub.cc", "sub.cc.TY %d0, %a0, %a1; subc.TY %d1, 0, 0;", 2).each(|v| {
        let difference = w(v[0]) - w(v[1]);
        vec![difference as u64 & all, (difference >> 64) as u64 & all]
    }));
    // The carry in, from a predicate: 1 + all ones carries, 0 + all ones does not.
    let set = "selp.bBITS %d0, 1, 0, %a2; add.cc.TY %d0, %d0, -1;";
    let addc = |op: &str, rest: &str, outs| row(op, &format!("{set} {op}.TY %d0, %a0, %a1; {rest}"), outs);
    rows.push(addc("addc", "", 1).gives(|v| (w(v[0]) + w(v[1]) + w(v[2])) as u64 & all));
    rows.push(addc("addc.cc", "addc.TY %d1, 0, 0;", 2).each(|v| {
        let sum = w(v[0]) + w(v[1]) + w(v[2]);
        vec![sum as u64 & all, (sum >> bits) as u64]
    }));
    // The borrow in: 0 − 1 borrows.
    let set = "selp.bBITS %d0, 1, 0, %a2; sub.cc.TY %d0, 0, %d0;";
    let subc = |op: &str, rest: &str, outs| row(op, &format!("{set} {op}.TY %d0, %a0, %a1; {rest}"), outs);
    rows.push(subc("subc", "", 1).gives(|v| (w(v[0]) - w(v[1]) - w(v[2])) as u64 & all));
    rows.push(subc("subc.cc", "subc.TY %d1, 0, 0;", 2).each(|v| {
        let difference = w(v[0]) - w(v[1]) - w(v[2]);
        vec![difference as u64 & all, (difference >> 64) as u64 & all]
    }));
}

fn products_with_carry(rows: &mut Vec<Row>, (name, bits, signed): Integer) {
    let size = Size::of(bits);
    let (values, all) = (integers(bits), mask(bits));
    let lists: [&[u64]; 4] = [&values, &values, &values, &[0, 1]];
    let inputs = tuples(&lists, 512);
    for (half, high) in [("lo", false), ("hi", true)] {
        let part = move |a: u64, b: u64| {
            let (a, b) = (wide(a, bits, signed), wide(b, bits, signed));
            let product = if signed { (a * b) as u128 } else { a as u128 * b as u128 };
            let shifted = if signed { (product as i128 >> bits) as u128 } else { product >> bits };
            i128::from((if high { shifted } else { product }) as u64 & all)
        };
        for (op, carry_in, carry_out) in [("mad", false, true), ("madc", true, false), ("madc", true, true)] {
            let form = format!("{op}.{half}{}.{name}", if carry_out { ".cc" } else { "" });
            let outs = vec![size; 1 + usize::from(carry_out)];
            let text = format!(
                "selp.b{bits} %d0, 1, 0, %a3; add.cc.{name} %d0, %d0, -1; {form} %d0, %a0, %a1, %a2; {}",
                if carry_out { format!("addc.{name} %d1, 0, 0;") } else { String::new() }
            );
            let row = Row::new(&form, &outs, &[size, size, size, P], inputs.clone()).text(&text);
            rows.push(row.each(|v| {
                let sum = part(v[0], v[1]) + i128::from(v[2]) + if carry_in { i128::from(v[3]) } else { 0 };
                let mut results = vec![sum as u64 & all, (sum >> bits) as u64];
                results.truncate(outs.len());
                results
            }));
        }
    }
}
