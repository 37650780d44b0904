//! Atomics and reductions: each thread at a place of its own (the old value is known), and all
//! threads at one place (only the end is known).

use crate::number::{BF16, F16, F32, F64, Format, Mode, add, decode, encode};
use crate::row::{Check, Row, Size, W, X};
use crate::values::{floats, integers, mask, tuples, wide};

/// An operation: name, type, bits, what is left of (old, b, c).
struct Operation {
    name: String,
    bits: u32,
    compare: bool,
    /// Values that a sum in any order gives exactly.
    float: Option<Format>,
    result: Box<dyn Fn(u64, u64, u64) -> u64>,
}

fn operations() -> Vec<Operation> {
    let mut all = Vec::new();
    let mut push = |name: &str, bits, result: Box<dyn Fn(u64, u64, u64) -> u64>| {
        all.push(Operation {
            name: name.to_string(),
            bits,
            compare: name.starts_with("cas"),
            float: None,
            result,
        })
    };
    for (ty, bits, signed) in [("u32", 32, false), ("s32", 32, true), ("u64", 64, false), ("s64", 64, true)] {
        let w = move |v| wide(v, bits, signed);
        if ty != "s64" {
            push(&format!("add.{ty}"), bits, Box::new(move |a, b, _| a.wrapping_add(b) & mask(bits)));
        }
        push(&format!("min.{ty}"), bits, Box::new(move |a, b, _| if w(a) < w(b) { a } else { b }));
        push(&format!("max.{ty}"), bits, Box::new(move |a, b, _| if w(a) > w(b) { a } else { b }));
    }
    for bits in [32, 64] {
        push(&format!("and.b{bits}"), bits, Box::new(|a, b, _| a & b));
        push(&format!("or.b{bits}"), bits, Box::new(|a, b, _| a | b));
        push(&format!("xor.b{bits}"), bits, Box::new(|a, b, _| a ^ b));
        push(&format!("exch.b{bits}"), bits, Box::new(|_, b, _| b));
    }
    for bits in [16, 32, 64] {
        push(&format!("cas.b{bits}"), bits, Box::new(|a, b, c| if a == b { c } else { a }));
    }
    push("inc.u32", 32, Box::new(|a, b, _| if a >= b { 0 } else { a + 1 }));
    push("dec.u32", 32, Box::new(|a, b, _| if a == 0 || a > b { b } else { a - 1 }));
    let sum = |a: u64, b: u64, f: Format| {
        encode(&add(&decode(a, f), &decode(b, f), Mode::Nearest), f, Mode::Nearest)
    };
    let mut float = |name: &str, f: Format, packed: bool| {
        let half = move |a: u64, b: u64, n: u32| sum(a >> n & 0xffff, b >> n & 0xffff, f) << n;
        let result: Box<dyn Fn(u64, u64, u64) -> u64> = match packed {
            true => Box::new(move |a, b, _| half(a, b, 0) | half(a, b, 16)),
            false => Box::new(move |a, b, _| sum(a, b, f)),
        };
        let bits = if packed { 32 } else { f.bits() };
        all.push(Operation { name: name.to_string(), bits, compare: false, float: Some(f), result });
    };
    float("add.f32", F32, false);
    float("add.f64", F64, false);
    float("add.noftz.f16", F16, false);
    float("add.noftz.f16x2", F16, true);
    float("add.noftz.bf16", BF16, false);
    float("add.noftz.bf16x2", BF16, true);
    all
}

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for operation in operations() {
        for space in ["global", "shared", ""] {
            apart(&mut rows, &operation, space, "");
            together(&mut rows, &operation, space, "");
        }
        for order in [".relaxed", ".acquire", ".release", ".acq_rel"] {
            for scope in [".cta", ".gpu", ".sys"] {
                apart(&mut rows, &operation, "global", &format!("{order}{scope}"));
            }
        }
        apart(&mut rows, &operation, "shared", ".relaxed.cta");
        apart(&mut rows, &operation, "global", ".gpu");
        if operation.name == "add.u32" {
            for order in [".relaxed", ".acquire", ".release", ".acq_rel"] {
                headers(&mut rows, &operation, order);
            }
            let mut newer = Vec::new();
            apart(&mut newer, &operation, "global", ".relaxed.cluster");
            rows.extend(newer.into_iter().map(Row::sm90));
            let mut longer = Vec::new();
            apart(&mut longer, &operation, "shared", "");
            rows.extend(longer.into_iter().map(|row| {
                let form = row.form.replace(".shared.", ".shared::cta.");
                renamed(row, &form)
            }));
        }
    }
    vectors(&mut rows);
    rows
}

/// Where operands lie: at `%x1`, from memory's copy in shared memory or in memory itself.
fn placed(space: &str, at: &str) -> (String, String, String) {
    if space != "shared" {
        return (String::new(), format!("{at} add.u64 %x1, %memory, %x2;"), String::new());
    }
    // 256 bytes go into shared memory and back; a block has 32 threads.
    let copy = |from: &str, to: &str, store: &str, load: &str| {
        format!(
            "mul.wide.u32 %x4, %t, 8; add.u64 %x5, {from}, %x4; {load}.b64 %x6, [%x5]; \
             add.u64 %x5, {to}, %x4; {store}.b64 [%x5], %x6;"
        )
    };
    let before = copy("%memory", "%x3", "st.shared", "ld.global");
    let after = copy("%x3", "%memory", "st.global", "ld.shared");
    (
        ".shared .align 16 .b8 buffer[256];".to_string(),
        format!("mov.u64 %x3, buffer; {before} bar.sync 0; {at} add.u64 %x1, %x3, %x2;"),
        format!("bar.sync 0; {after}"),
    )
}

fn form(opcode: &str, order: &str, space: &str, operation: &str) -> String {
    let space = if space.is_empty() { String::new() } else { format!(".{space}") };
    format!("{opcode}{order}{space}.{operation}")
}

fn bytes_of(values: &[u64], bits: u32) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()[..bits as usize / 8].to_vec()).collect()
}

fn apart(rows: &mut Vec<Row>, operation: &Operation, space: &str, order: &str) {
    let (bits, size) = (operation.bits, Size::of(operation.bits));
    let values: Vec<u64> = match operation.float {
        // Subnormal f32 are flushed by some cards' atomics on global memory, so none here.
        Some(f) => floats(f).into_iter().filter(|v| !f.subnormal(*v) && !f.is_nan(*v)).collect(),
        None => integers(bits),
    };
    let mut lists = tuples(&[&values, &values, &values], 32);
    for (n, tuple) in lists.iter_mut().enumerate() {
        // Compare with what is there half of the time.
        if operation.compare && n % 2 == 0 {
            tuple[1] = tuple[0];
        }
        let sum = (operation.result)(tuple[0], tuple[1], tuple[2]);
        if operation.float.is_some_and(|f| f.subnormal(sum & mask(f.bits()))) {
            tuple[1] = 0;
        }
    }
    let old: Vec<u64> = lists.iter().map(|v| v[0]).collect();
    let new: Vec<u64> = lists.iter().map(|v| (operation.result)(v[0], v[1], v[2])).collect();
    let resize = |mut bytes: Vec<u8>| {
        bytes.resize(256, 0);
        bytes
    };
    let (module, before, after) = placed(space, &format!("mul.wide.u32 %x2, %t, {};", bits / 8));
    for opcode in ["atom", "red"] {
        let reduces = opcode == "red";
        let unknown = ["exch", "cas"].iter().any(|op| operation.name.starts_with(op));
        if reduces && (unknown || order.contains("acq") || order == ".gpu") {
            continue;
        }
        let form = form(opcode, order, space, &operation.name);
        let third = if operation.compare { ", %a2" } else { "" };
        let target = if reduces { "" } else { "%d0, " };
        let outs = if reduces { &[][..] } else { &[size][..] };
        let row = Row::new(&form, outs, &[size; 3], lists.clone())
            .module(&module)
            .memory(&resize(bytes_of(&old, bits)))
            .memory_after(resize(bytes_of(&new, bits)))
            .text(&format!("{before} {form} {target}[%x1], %a1{third}; {after}"));
        let row = if operation.name.contains("bf16") { row.sm90() } else { row };
        let check = operation.float.map_or(row.check, Check::Float);
        rows.push(Row { check, ..row }.each(|v| if reduces { Vec::new() } else { vec![v[0]] }));
    }
}

/// All threads at the first place: where no order matters.
fn together(rows: &mut Vec<Row>, operation: &Operation, space: &str, order: &str) {
    let (bits, size) = (operation.bits, Size::of(operation.bits));
    if ["exch", "cas", "dec"].iter().any(|op| operation.name.starts_with(op)) {
        return;
    }
    let small = |n: u64| match operation.float {
        Some(f) => {
            let one = encode(&decode((n as f64 / 8.0).to_bits(), F64), f, Mode::Nearest);
            if bits > f.bits() { one | one << f.bits() } else { one }
        }
        // `inc` wraps beyond the same limit for all.
        None if operation.name.starts_with("inc") => 20,
        None => integers(bits)[n as usize % 29],
    };
    let inputs: Vec<Vec<u64>> = (0..32).map(|n| vec![small(n % 7)]).collect();
    let first = small(3);
    let last = inputs.iter().fold(first, |old, v| (operation.result)(old, v[0], 0));
    let memory = |value: u64| {
        let mut bytes = bytes_of(&[value], bits);
        bytes.resize(256, 0);
        bytes
    };
    let (module, before, after) = placed(space, "mov.u64 %x2, 0;");
    for opcode in ["atom", "red"] {
        let form = form(opcode, order, space, &operation.name);
        let target = if opcode == "red" {
            ""
        } else {
            if size == X {
                "%x9, "
            } else if bits == 16 {
                "%h9, "
            } else {
                "%r9, "
            }
        };
        let row = Row::new(&form, &[], &[size], inputs.clone())
            .module(&module)
            .memory(&memory(first))
            .memory_after(memory(last))
            .text(&format!("{before} {form} {target}[%x1], %a0; {after}"));
        let row = if operation.name.contains("bf16") { row.sm90() } else { row };
        rows.push(row.each(|_| Vec::new()));
    }
}

fn renamed(row: Row, form: &str) -> Row {
    Row { text: row.text.replace(&row.form, form), form: form.to_string(), ..row }
}

/// As cooperative groups' headers have it: the order and scope after the operation.
fn headers(rows: &mut Vec<Row>, operation: &Operation, order: &str) {
    for scope in ["cta", "gpu", "sys"] {
        let mut found = Vec::new();
        apart(&mut found, operation, "", &format!("{order}.{scope}"));
        let atomics = found.into_iter().filter(|row| row.form.starts_with("atom"));
        rows.extend(atomics.map(|row| renamed(row, &format!("atom.add{order}.{scope}.u32"))));
    }
}

/// Several neighbours at once, of Hopper's reductions.
fn vectors(rows: &mut Vec<Row>) {
    for (count, name) in [(2usize, "v2"), (4, "v4")] {
        let form = format!("red.global.add.{name}.f32");
        let operands: Vec<_> = (0..count).map(|n| format!("%a{n}")).collect();
        let text = format!(
            "mul.wide.u32 %x1, %t, 16; add.u64 %x1, %memory, %x1; {form} [%x1], {{{}}};",
            operands.join(", ")
        );
        let number = |n: usize| u64::from((n as f32 / 4.0).to_bits());
        let inputs: Vec<Vec<u64>> = (0..32).map(|t| (0..count).map(|n| number(t + n)).collect()).collect();
        let mut after = vec![0; 512];
        for (t, values) in inputs.iter().enumerate() {
            let start = t * 16;
            after[start..start + count * 4].copy_from_slice(&bytes_of(values, 32));
        }
        let row = Row::new(&form, &[], &vec![W; count], inputs).sm90().memory(&[0; 512]);
        rows.push(row.text(&text).memory_after(after).each(|_| Vec::new()));
    }
}
