//! Comparisons, selections, classes.

use cuda_emu::Arch;

use super::integer::ALL;
use crate::number::{BF16, F16, F32, F64, Format, Value, add, decode};
use crate::row::{H, P, Row, Size, W};
use crate::values::{floats, integers, mask, singles, tuples, wide};

/// How a comparison may go.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    Less,
    Equal,
    Greater,
    Unordered,
}
use Order::{Equal, Greater, Less, Unordered};

/// A comparison's name and when it holds.
type Comparison = (&'static str, &'static [Order]);

const EQUALITY: [Comparison; 2] = [("eq", &[Equal]), ("ne", &[Less, Greater])];
const ORDER: [Comparison; 4] =
    [("lt", &[Less]), ("le", &[Less, Equal]), ("gt", &[Greater]), ("ge", &[Greater, Equal])];
/// Other names of the order of unsigned numbers.
const UNSIGNED: [Comparison; 4] =
    [("lo", &[Less]), ("ls", &[Less, Equal]), ("hi", &[Greater]), ("hs", &[Greater, Equal])];
const FLOAT: [Comparison; 8] = [
    ("equ", &[Equal, Unordered]),
    ("neu", &[Less, Greater, Unordered]),
    ("ltu", &[Less, Unordered]),
    ("leu", &[Less, Equal, Unordered]),
    ("gtu", &[Greater, Unordered]),
    ("geu", &[Greater, Equal, Unordered]),
    ("num", &[Less, Equal, Greater]),
    ("nan", &[Unordered]),
];

type Combination = fn(u64, u64) -> u64;

/// Ways to combine with a predicate.
const COMBINED: [(&str, Combination); 4] =
    [("", |a, _| a), (".and", |a, c| a & c), (".or", |a, c| a | c), (".xor", |a, c| a ^ c)];

/// Whether subnormal numbers can be zeros: both ways for f32 and f16, not for others.
pub fn flushing(f: Format) -> impl Iterator<Item = bool> {
    [false, true].into_iter().filter(move |ftz| !ftz || f == F32 || f == F16)
}

/// A type that is compared: name, bits, order of two values, comparisons.
struct Compared {
    name: String,
    bits: u32,
    order: Box<dyn Fn(u64, u64) -> Order>,
    comparisons: Vec<Comparison>,
    values: Vec<u64>,
}

impl Compared {
    fn arch(&self) -> Arch {
        if self.name == "bf16" { Arch::Sm90 } else { Arch::Sm80 }
    }
}

fn compared() -> Vec<Compared> {
    let mut all = Vec::new();
    for bits in [16, 32, 64] {
        let order = Box::new(|a, b| if a == b { Equal } else { Less });
        let (name, comparisons) = (format!("b{bits}"), EQUALITY.to_vec());
        all.push(Compared { name, bits, order, comparisons, values: integers(bits) });
    }
    for (name, bits, signed) in ALL {
        let order = Box::new(move |a, b| match wide(a, bits, signed).cmp(&wide(b, bits, signed)) {
            std::cmp::Ordering::Less => Less,
            std::cmp::Ordering::Equal => Equal,
            std::cmp::Ordering::Greater => Greater,
        });
        let mut comparisons = [&EQUALITY[..], &ORDER].concat();
        if !signed {
            comparisons.extend(UNSIGNED);
        }
        all.push(Compared { name: name.to_string(), bits, order, comparisons, values: integers(bits) });
    }
    for (f, name) in [(F16, "f16"), (BF16, "bf16"), (F32, "f32"), (F64, "f64")] {
        for ftz in flushing(f) {
            all.push(Compared {
                name: format!("{}{name}", if ftz { "ftz." } else { "" }),
                bits: f.bits(),
                order: Box::new(move |a, b| float_order(f.flush(a, ftz), f.flush(b, ftz), f)),
                comparisons: [&EQUALITY[..], &ORDER, &FLOAT].concat(),
                values: floats(f),
            });
        }
    }
    all
}

fn float_order(a: u64, b: u64, f: Format) -> Order {
    match add(&decode(a, f), &decode(b, f).negated(), crate::number::Mode::Nearest) {
        // Infinities of one sign have no difference.
        Value::Nan if a == b && !f.is_nan(a) => Equal,
        Value::Nan => Unordered,
        Value::Zero(_) => Equal,
        difference if difference.negative() => Less,
        _ => Greater,
    }
}

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for ty in compared() {
        predicates(&mut rows, &ty);
        values(&mut rows, &ty);
    }
    packed(&mut rows);
    selections(&mut rows);
    classes(&mut rows);
    rows
}

fn inputs(ty: &Compared) -> Vec<Vec<u64>> {
    let mut inputs = tuples(&[&ty.values, &ty.values, &[0, 1]], 480);
    inputs.extend(ty.values.iter().map(|v| vec![*v, *v, 1]));
    inputs
}

fn predicates(rows: &mut Vec<Row>, ty: &Compared) {
    let size = Size::of(ty.bits);
    for (comparison, orders) in &ty.comparisons {
        for (combined, combine) in COMBINED {
            let form = format!("setp.{comparison}{combined}.{}", ty.name);
            let third = if combined.is_empty() { "" } else { ", %a2" };
            let holds = |v: &[u64]| u64::from(orders.contains(&(ty.order)(v[0], v[1])));
            let row = |outs: &[Size], text: String| Row {
                arch: ty.arch(),
                ..Row::new(&form, outs, &[size, size, P], inputs(ty)).text(&text)
            };
            let half = ty.name.ends_with("f16");
            let both = row(&[P, P], format!("{form} %d0|%d1, %a0, %a1{third};"))
                .each(|v| vec![combine(holds(v), v[2]), combine(1 - holds(v), v[2])]);
            let one = row(&[P], format!("{form} %d0, %a0, %a1{third};")).gives(|v| combine(holds(v), v[2]));
            // A second predicate is not for halves (for two halves it is the other's).
            rows.push(if half { one } else { both });
            if !combined.is_empty() {
                rows.push(
                    row(&[P], format!("{form} %d0, %a0, %a1, !%a2;")).gives(|v| combine(holds(v), 1 - v[2])),
                );
            }
        }
    }
}

/// `set`: all ones, or 1.0, in a register.
fn values(rows: &mut Vec<Row>, ty: &Compared) {
    let size = Size::of(ty.bits);
    let half = ty.name.ends_with("f16");
    let mut results = vec![("u32", W, mask(32)), ("s32", W, mask(32))];
    match ty.name.as_str() {
        "f16" | "ftz.f16" => results.extend([("u16", H, 0xffff), ("s16", H, 0xffff), ("f16", H, F16.one())]),
        "bf16" => results.extend([("u16", H, 0xffff), ("s16", H, 0xffff), ("bf16", H, BF16.one())]),
        _ => results.push(("f32", W, F32.one())),
    }
    assert!(half == (results.len() == 5));
    for (to, d, full) in results {
        for (comparison, orders) in &ty.comparisons {
            for (combined, combine) in COMBINED {
                let (ftz, from) = ty.name.strip_prefix("ftz.").map_or(("", &*ty.name), |name| (".ftz", name));
                let form = format!("set.{comparison}{combined}{ftz}.{to}.{from}");
                let third = if combined.is_empty() { "" } else { ", %a2" };
                let row = Row { arch: ty.arch(), ..Row::new(&form, &[d], &[size, size, P], inputs(ty)) };
                rows.push(row.text(&format!("{form} %d0, %a0, %a1{third};")).gives(|v| {
                    let holds = u64::from(orders.contains(&(ty.order)(v[0], v[1])));
                    combine(holds, v[2]) * full
                }));
            }
        }
    }
}

/// Comparisons of two halves at once: a predicate for each.
fn packed(rows: &mut Vec<Row>) {
    for (f, name) in [(F16, "f16x2"), (BF16, "bf16x2")] {
        let values = floats(f);
        for ftz in flushing(f) {
            for (comparison, orders) in [&EQUALITY[..], &ORDER, &FLOAT].concat() {
                let form = format!("setp.{comparison}{}.{name}", if ftz { ".ftz" } else { "" });
                let inputs = tuples(&[&values[..]; 4], 256);
                let inputs = inputs.iter().map(|v| vec![v[0] | v[1] << 16, v[2] | v[3] << 16]).collect();
                let row = Row::new(&form, &[P, P], &[W, W], inputs);
                let row = if f == BF16 { row.sm90() } else { row };
                rows.push(row.text(&format!("{form} %d0|%d1, %a0, %a1;")).each(|v| {
                    let holds = |n: u32| {
                        let part = |v: u64| f.flush(v >> n & 0xffff, ftz);
                        u64::from(orders.contains(&float_order(part(v[0]), part(v[1]), f)))
                    };
                    vec![holds(0), holds(16)]
                }));
                masks(rows, (f, name, ftz), (comparison, orders));
            }
        }
    }
}

/// `set` of two halves at once: all ones, or 1.0, in each half of a register.
fn masks(rows: &mut Vec<Row>, (f, name, ftz): (Format, &str, bool), (comparison, orders): Comparison) {
    let values = floats(f);
    let inputs = tuples(&[&values[..], &values, &values, &values, &[0, 1]], 256);
    let inputs: Vec<_> = inputs.iter().map(|v| vec![v[0] | v[1] << 16, v[2] | v[3] << 16, v[4]]).collect();
    for (to, full) in [("u32", 0xffff), ("s32", 0xffff), (name, f.one())] {
        for (combined, combine) in COMBINED {
            let form = format!("set.{comparison}{combined}{}.{to}.{name}", if ftz { ".ftz" } else { "" });
            let third = if combined.is_empty() { "" } else { ", %a2" };
            let row = Row::new(&form, &[W], &[W, W, P], inputs.clone());
            let row = if f == BF16 { row.sm90() } else { row };
            rows.push(row.text(&format!("{form} %d0, %a0, %a1{third};")).gives(|v| {
                let half = |n: u32| {
                    let part = |v: u64| f.flush(v >> n & 0xffff, ftz);
                    let holds = u64::from(orders.contains(&float_order(part(v[0]), part(v[1]), f)));
                    (combine(holds, v[2]) * full) << n
                };
                half(0) | half(16)
            }));
        }
    }
}

fn selections(rows: &mut Vec<Row>) {
    for bits in [16, 32, 64] {
        let (size, values) = (Size::of(bits), integers(bits));
        for ty in ["b", "u", "s", "f"].map(|letter| format!("{letter}{bits}")) {
            if ty == "f16" {
                continue;
            }
            let inputs = tuples(&[&values, &values, &[0, 1]], 128);
            let row = Row::new(&format!("selp.{ty}"), &[size], &[size, size, P], inputs);
            rows.push(row.gives(|v| if v[2] == 1 { v[0] } else { v[1] }));
            let (signed, single) = (integers(32), floats(F32));
            let by_sign = Row::new(
                &format!("slct.{ty}.s32"),
                &[size],
                &[size, size, W],
                tuples(&[&values, &values, &signed], 256),
            );
            rows.push(by_sign.gives(|v| if v[2] >> 31 == 0 { v[0] } else { v[1] }));
            for ftz in [false, true] {
                let form = format!("slct{}.{ty}.f32", if ftz { ".ftz" } else { "" });
                let inputs = tuples(&[&values, &values, &single], 256);
                let row = Row::new(&form, &[size], &[size, size, W], inputs);
                // −0 is at least 0; "for NaN, operand b is selected".
                rows.push(row.gives(|v| {
                    let c = F32.flush(v[2], ftz);
                    let at_least = matches!(float_order(c, 0, F32), Equal | Greater);
                    if at_least { v[0] } else { v[1] }
                }));
            }
        }
    }
}

fn classes(rows: &mut Vec<Row>) {
    for (f, ty) in [(F32, "f32"), (F64, "f64")] {
        let size = Size::of(f.bits());
        let mut row = |class: &str, holds: &dyn Fn(u64) -> bool| {
            let row = Row::new(&format!("testp.{class}.{ty}"), &[P], &[size], singles(&floats(f)));
            rows.push(row.gives(|v| u64::from(holds(v[0]))));
        };
        let infinite = |v: u64| matches!(decode(v, f), Value::Infinity(_));
        row("finite", &|v| !f.is_nan(v) && !infinite(v));
        row("infinite", &infinite);
        row("number", &|v| !f.is_nan(v));
        row("notanumber", &|v| f.is_nan(v));
        row("normal", &|v| !f.is_nan(v) && !infinite(v) && !f.subnormal(v) && decode(v, f).to_f64() != 0.0);
        row("subnormal", &|v| f.subnormal(v));
    }
}
