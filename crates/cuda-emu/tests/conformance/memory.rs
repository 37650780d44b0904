//! Loads and stores of all spaces, types and lengths; address conversions.

use cuda_emu::Arch;

use crate::row::{Extra, P, Row, Size, W, X};
use crate::values::{Random, mask, wide};

/// A type: name, bits, signedness.
const TYPES: [(&str, u32, bool); 14] = [
    ("b8", 8, false),
    ("u8", 8, false),
    ("s8", 8, true),
    ("b16", 16, false),
    ("u16", 16, false),
    ("s16", 16, true),
    ("b32", 32, false),
    ("u32", 32, false),
    ("s32", 32, true),
    ("f32", 32, false),
    ("b64", 64, false),
    ("u64", 64, false),
    ("s64", 64, true),
    ("f64", 64, false),
];

/// Bytes of test memory: 16 a thread.
const BYTES: usize = 512;

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for ty in TYPES {
        for count in [1, 2, 4] {
            if count * ty.1 <= 128 {
                for space in SPACES {
                    load(&mut rows, ty, count, space, "");
                }
                for space in ["global", "shared", "local", ""] {
                    store(&mut rows, ty, count, space, "");
                }
                parameter(&mut rows, ty, count);
            }
        }
    }
    qualified(&mut rows);
    named_spaces(&mut rows);
    addresses(&mut rows);
    let mut between = Vec::new();
    conversions(&mut between);
    rows.extend(between.into_iter().map(|row| if row.text.contains("::cluster") { row.sm90() } else { row }));
    hints(&mut rows);
    rows
}

pub fn random_bytes(count: usize) -> Vec<u8> {
    let mut random = Random::new(count as u64);
    (0..count).map(|_| random.bits() as u8).collect()
}

/// `.space` as in opcodes; generic addresses have none.
fn dotted(space: &str) -> String {
    if space.is_empty() { String::new() } else { format!(".{space}") }
}

fn vector(count: u32) -> &'static str {
    match count {
        1 => "",
        2 => ".v2",
        _ => ".v4",
    }
}

/// `%d0` or `{%d0, %d1}`.
fn operands(letter: char, count: u32) -> String {
    let names: Vec<_> = (0..count).map(|n| format!("%{letter}{n}")).collect();
    if count == 1 { names[0].clone() } else { format!("{{{}}}", names.join(", ")) }
}

/// Spaces to load from; the last three by generic addresses.
const SPACES: [&str; 7] = ["global", "const", "shared", "local", "", "generic shared", "generic local"];

/// Declarations, and a text that leaves the address of the thread's own 16 bytes in an operand.
/// Global, shared, local and constant memory then hold `random_bytes`.
fn placed(space: &str) -> (String, String, &'static str) {
    let own =
        "mul.wide.u32 %x1, %t, 16; add.u64 %x1, %memory, %x1; ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%x1];";
    let shared = "shl.b32 %r0, %t, 4; mov.u32 %r5, buffer; add.u32 %r0, %r0, %r5; \
                  st.shared.v4.b32 [%r0], {%r1, %r2, %r3, %r4}; bar.sync 0;";
    let local = ".local .align 16 .b8 frame[32]; mov.u64 %x2, frame; \
                 st.local.v4.b32 [%x2+16], {%r1, %r2, %r3, %r4}; add.u64 %x2, %x2, 16;";
    let module = ".shared .align 16 .b8 buffer[512];".to_string();
    match space {
        "shared" => (module, format!("{own} {shared}"), "%r0"),
        "generic shared" => {
            (module, format!("{own} {shared} cvt.u64.u32 %x2, %r0; cvta.shared.u64 %x2, %x2;"), "%x2")
        }
        "local" => (String::new(), format!("{own} {local}"), "%x2"),
        "generic local" => (String::new(), format!("{own} {local} cvta.local.u64 %x2, %x2;"), "%x2"),
        "const" => {
            let bytes: Vec<_> = random_bytes(BYTES).iter().map(u8::to_string).collect();
            let module = format!(".const .align 16 .b8 table[{BYTES}] = {{{}}};", bytes.join(", "));
            (
                module,
                "mov.u64 %x1, table; mul.wide.u32 %x2, %t, 16; add.u64 %x1, %x1, %x2;".to_string(),
                "%x1",
            )
        }
        _ => (String::new(), "mul.wide.u32 %x1, %t, 16; add.u64 %x1, %memory, %x1;".to_string(), "%x1"),
    }
}

/// What stands at an offset, as a type.
fn at(bytes: &[u8], offset: usize, bits: u32, signed: bool) -> i128 {
    let raw = (0..bits as usize / 8).fold(0u64, |v, n| v | u64::from(bytes[offset + n]) << (8 * n));
    wide(raw, bits, signed)
}

fn threads() -> Vec<Vec<u64>> {
    (0..32).map(|n| vec![n]).collect()
}

fn load(
    rows: &mut Vec<Row>,
    (ty, bits, signed): (&str, u32, bool),
    count: u32,
    space: &str,
    qualifier: &str,
) {
    let bytes = random_bytes(BYTES);
    let (module, text, address) = placed(space);
    let space = if space.starts_with("generic") { "" } else { space };
    let form = format!("ld{qualifier}{}{}.{ty}", dotted(space), vector(count));
    // Registers may be wider than the type: the value is extended by its sign.
    for size in [Size::of(bits), W, X].into_iter().filter(|size| size.bits() >= bits) {
        // A second load, of the last element, is at an offset.
        let last = 16 - count * bits / 8;
        let text = format!("{text} {form} {}, [{address}+{last}];", operands('d', count));
        let row = Row::new(&form, &vec![size; count as usize], &[X], threads()).memory(&bytes);
        rows.push(row.module(&module).text(&text).each(|v| {
            let start = v[0] as usize * 16 + last as usize;
            let element = |n| at(&bytes, start + (n * bits / 8) as usize, bits, signed);
            (0..count).map(|n| element(n) as u64 & mask(size.bits())).collect()
        }));
    }
}

fn store(rows: &mut Vec<Row>, (ty, bits, _): (&str, u32, bool), count: u32, space: &str, qualifier: &str) {
    let bytes = random_bytes(BYTES);
    let (module, text, address) = placed(space);
    let form = format!("st{qualifier}{}{}.{ty}", dotted(space), vector(count));
    let mut random = Random::new(u64::from(bits + count));
    for size in [Size::of(bits), X].into_iter().filter(|size| size.bits() >= bits) {
        let inputs: Vec<Vec<u64>> =
            (0..32).map(|_| (0..count).map(|_| random.bits() & mask(size.bits())).collect()).collect();
        let last = 16 - count * bits / 8;
        // What is not global is read back as words and copied out.
        let back = match space {
            "shared" | "local" => format!(
                "ld.{space}.v4.b32 {{%r1, %r2, %r3, %r4}}, [{address}]; \
                 mul.wide.u32 %x1, %t, 16; add.u64 %x1, %memory, %x1; st.global.v4.b32 [%x1], {{%r1, %r2, %r3, %r4}};"
            ),
            _ => String::new(),
        };
        let text = format!("{text} {form} [{address}+{last}], {}; {back}", operands('a', count));
        let mut after = bytes.clone();
        for (thread, values) in inputs.iter().enumerate() {
            for (n, value) in values.iter().enumerate() {
                let width = bits as usize / 8;
                let start = thread * 16 + last as usize + n * width;
                after[start..start + width].copy_from_slice(&value.to_le_bytes()[..width]);
            }
        }
        let row = Row::new(&form, &[], &vec![size; count as usize], inputs).memory(&bytes);
        rows.push(row.module(&module).text(&text).memory_after(after).each(|_| Vec::new()));
    }
}

fn parameter(rows: &mut Vec<Row>, (ty, bits, signed): (&str, u32, bool), count: u32) {
    let bytes: [u8; 128] = random_bytes(128).try_into().unwrap();
    let form = format!("ld.param{}.{ty}", vector(count));
    let size = Size::of(bits);
    let text = format!("{form} {}, [extra+48];", operands('d', count));
    let row = Row::new(&form, &vec![size; count as usize], &[X], threads()).extra(Extra::Bytes(bytes));
    rows.push(row.text(&text).each(|_| {
        let element = |n| at(&bytes, 48 + (n * bits / 8) as usize, bits, signed);
        (0..count).map(|n| element(n) as u64 & mask(size.bits())).collect()
    }));
}

/// Orders, scopes and cache hints, on a few types.
fn qualified(rows: &mut Vec<Row>) {
    let word = ("u32", 32, false);
    let scopes = ["cta", "cluster", "gpu", "sys"];
    let ordered = |orders: &[&str]| -> Vec<String> {
        orders.iter().flat_map(|order| scopes.iter().map(move |scope| format!(".{order}.{scope}"))).collect()
    };
    let plain = [".weak", ".volatile"].map(String::from);
    for qualifier in plain.iter().chain(&ordered(&["relaxed", "acquire"])) {
        for space in ["global", "shared", ""] {
            load(rows, word, 1, space, qualifier);
            load(rows, ("u64", 64, false), 1, space, qualifier);
        }
    }
    for qualifier in plain.iter().chain(&ordered(&["relaxed", "release"])) {
        for space in ["global", "shared", ""] {
            store(rows, word, 1, space, qualifier);
            store(rows, ("u64", 64, false), 1, space, qualifier);
        }
    }
    for ty in TYPES {
        for space in ["global", ""] {
            load(rows, ty, 1, space, ".mmio.relaxed.sys");
            store(rows, ty, 1, space, ".mmio.relaxed.sys");
        }
    }
    // What is of clusters, or newer than Ampere.
    let newer = [".cluster", ".mmio"];
    rows.iter_mut()
        .filter(|row| newer.iter().any(|word| row.form.contains(word)))
        .for_each(|row| row.arch = Arch::Sm90);
}

/// Spaces by their longer names.
fn named_spaces(rows: &mut Vec<Row>) {
    let word = ("u32", 32, false);
    for space in ["shared::cta", "shared::cluster"] {
        for (opcode, make) in [("ld", load as fn(&mut Vec<Row>, _, _, &str, &str)), ("st", store)] {
            let mut found = Vec::new();
            make(&mut found, word, 1, "shared", "");
            rows.extend(found.into_iter().map(|mut row| {
                let form = format!("{opcode}.{space}.u32");
                row.text = row.text.replace(&row.form, &form);
                row.form = form;
                if space == "shared::cluster" { row.sm90() } else { row }
            }));
        }
    }
    let mut found = Vec::new();
    parameter(&mut found, word, 1);
    rows.extend(found.into_iter().map(|mut row| {
        row.form = "ld.param::entry.u32".to_string();
        row.text = row.text.replace("ld.param.u32", &row.form);
        row
    }));
}

/// Hints after the space change nothing.
fn hints(rows: &mut Vec<Row>) {
    let loads = [
        ".ca",
        ".cg",
        ".cs",
        ".lu",
        ".cv",
        ".nc",
        ".L1::evict_normal",
        ".L1::evict_last",
        ".L1::evict_first",
        ".L1::evict_unchanged",
        ".L1::no_allocate",
        ".L2::64B",
        ".L2::128B",
        ".L2::256B",
        ".nc.L1::no_allocate",
        ".nc.L1::evict_last",
        ".nc.L1::no_allocate.L2::128B",
        ".nc.L2::256B",
    ];
    let stores = [".wb", ".cg", ".cs", ".wt", ".L1::evict_last", ".L1::no_allocate"];
    for (opcode, hints) in [("ld", &loads[..]), ("st", &stores[..])] {
        for hint in hints {
            for (count, ty) in [(1, "u32"), (1, "b32"), (4, "u32"), (4, "f32"), (2, "u64")] {
                let plain = format!("{opcode}.global{}.{ty}", vector(count));
                let mut found: Vec<Row> = Vec::new();
                let bits = if ty == "u64" { 64 } else { 32 };
                if opcode == "ld" {
                    load(&mut found, (ty, bits, false), count, "global", "");
                } else {
                    store(&mut found, (ty, bits, false), count, "global", "");
                }
                let mut row = found.swap_remove(0);
                row.form = format!("{opcode}.global{hint}{}.{ty}", vector(count));
                row.text = row.text.replace(&plain, &row.form);
                rows.push(row);
            }
        }
    }
    let prefetches = [
        "prefetch.global.L1",
        "prefetch.global.L2",
        "prefetch.global.L2::evict_last",
        "prefetch.global.L2::evict_normal",
        "prefetch.L1",
        "prefetch.L2",
        "prefetchu.L1",
    ];
    for form in prefetches {
        let row = Row::new(form, &[X], &[X], threads()).memory(&[0; 16]);
        rows.push(row.text(&format!("{form} [%memory]; mov.b64 %d0, %a0;")).gives(|v| v[0]));
    }
    for form in ["prefetch.local.L1", "prefetch.local.L2"] {
        let text =
            format!(".local .align 16 .b8 frame[32]; mov.u64 %x2, frame; {form} [%x2]; mov.b64 %d0, %a0;");
        rows.push(Row::new(form, &[X], &[X], threads()).text(&text).gives(|v| v[0]));
    }
    policies(rows);
    uniform(rows);
}

/// `ldu` is `ld` of an address that all threads have.
fn uniform(rows: &mut Vec<Row>) {
    for ty in TYPES {
        for (count, space) in [(1, "global"), (2, "global"), (4, "global"), (1, ""), (2, ""), (4, "")] {
            let mut found = Vec::new();
            if count * ty.1 <= 128 {
                load(&mut found, ty, count, space, "");
            }
            rows.extend(found.into_iter().map(|mut row| {
                let form = format!("ldu{}", &row.form[2..]);
                row.text = row.text.replace(&format!("{} ", row.form), &format!("{form} "));
                row.form = form;
                row
            }));
        }
    }
}

/// Policies of caches: made in each way, and then of no effect on what is loaded, stored and added.
fn policies(rows: &mut Vec<Row>) {
    let bytes = random_bytes(BYTES);
    let mut row = |form: &str, make: &str| {
        let text = format!(
            "{make} shl.b64 %x1, %a0, 2; add.u64 %x1, %memory, %x1; \
             ld.global.L2::cache_hint.b32 %d0, [%x1], %x3; st.global.L2::cache_hint.b32 [%x1], %d0, %x3; \
             red.global.or.L2::cache_hint.b32 [%x1], 0, %x3; atom.global.or.L2::cache_hint.b32 %r1, [%x1], 0, %x3; \
             xor.b32 %r1, %r1, %d0; add.u32 %d0, %d0, %r1;"
        );
        let row = Row::new(form, &[W], &[X], threads()).memory(&bytes);
        rows.push(row.text(&text).gives(|v| at(&bytes, v[0] as usize * 4, 32, false) as u64));
    };
    let default = "createpolicy.fractional.L2::evict_last.b64 %x3, 1.0;";
    for form in [
        "ld.global.L2::cache_hint.b32",
        "st.global.L2::cache_hint.b32",
        "red.global.or.L2::cache_hint.b32",
        "atom.global.or.L2::cache_hint.b32",
    ] {
        row(form, default);
    }
    for first in ["evict_last", "evict_normal", "evict_first", "evict_unchanged"] {
        for second in ["", ".L2::evict_first", ".L2::evict_unchanged"] {
            let form = format!("createpolicy.fractional.L2::{first}{second}.b64");
            row(&form, &format!("{form} %x3, 1.0;"));
            row(&form, &format!("{form} %x3;"));
            for space in ["", ".global"] {
                let form = format!("createpolicy.range{space}.L2::{first}{second}.b64");
                row(&form, &format!("{form} %x3, [%memory], 0x100, 0x200;"));
            }
        }
    }
    row("createpolicy.cvt.L2.b64", "createpolicy.cvt.L2.b64 %x3, 0x10F0000000000000;");
}

/// Addresses with offsets below zero, of variables, and as 64-bit shared addresses.
fn addresses(rows: &mut Vec<Row>) {
    let bytes = random_bytes(BYTES);
    let (module, text, _) = placed("shared");
    let expected = |offset: usize| {
        let bytes = bytes.clone();
        move |_: &[u64]| at(&bytes, offset, 32, false) as u64
    };
    let mut row = |address: &str, prepare: &str, offset: usize| {
        let row = Row::new("ld.shared.u32", &[W], &[X], threads()).memory(&bytes).module(&module);
        rows.push(
            row.text(&format!("{text} {prepare} ld.shared.u32 %d0, [{address}];")).gives(expected(offset)),
        );
    };
    row("buffer", "", 0);
    row("buffer+20", "", 20);
    row("%r5+-8", "add.u32 %r5, %r5, 64;", 56);
    row("%x3+12", "mov.u64 %x3, buffer;", 12);
    row("%r6", "mov.u32 %r6, buffer+36;", 36);
    let table = ".global .align 8 .u32 table[4] = {11, 22, 33, 44}; .global .u64 pointer = generic(table)+8;";
    let row = Row::new("ld.global.u64", &[W, W], &[X], threads()).module(table);
    rows.push(
        row.text("ld.global.u64 %x1, [pointer]; ld.u32 %d0, [%x1]; ld.global.u32 %d1, [table+4];")
            .each(|_| vec![33, 22]),
    );
}

/// Between spaces and generic addresses.
fn conversions(rows: &mut Vec<Row>) {
    let mut random = Random::new(8);
    let inputs: Vec<Vec<u64>> = (0..32).map(|_| vec![random.bits() & mask(32)]).collect();
    let round_trip = [
        ("shared", "shared", ".shared .align 16 .b8 buffer[512];", "mov.u64 %x0, buffer;"),
        ("shared::cluster", "shared::cluster", ".shared .align 16 .b8 buffer[512];", "mov.u64 %x0, buffer;"),
        ("shared::cta", "shared::cta", ".shared .align 16 .b8 buffer[512];", "mov.u64 %x0, buffer;"),
        ("local", "local", "", ".local .align 16 .b8 buffer[512]; mov.u64 %x0, buffer;"),
        ("global", "global", "", "mov.u64 %x0, %memory;"),
    ];
    for (name, space, module, start) in round_trip {
        let text = |first: &str, through: &str, last: &str| {
            format!("{start} mul.wide.u32 %x1, %t, 4; add.u64 %x0, %x0, %x1; {first} {through} {last}")
        };
        let store = format!("st.{space}.b32 [%x0], %a0;");
        let row = |form: String| Row::new(&form, &[W], &[W], inputs.clone()).module(module).memory(&[0; 128]);
        let from = format!("cvta.{name}.u64");
        rows.push(
            row(from.clone())
                .text(&text(&store, &format!("{from} %x2, %x0;"), "ld.b32 %d0, [%x2];"))
                .gives(|v| v[0]),
        );
        let to = format!("cvta.to.{name}.u64");
        let last = format!("ld.{space}.b32 %d0, [%x3];");
        rows.push(
            row(to.clone())
                .text(&text(
                    &format!("{from} %x2, %x0; st.b32 [%x2], %a0;"),
                    &format!("{to} %x3, %x2;"),
                    &last,
                ))
                .gives(|v| v[0]),
        );
        // Which space is it? Each kind of address answers for itself alone.
        let asked = ["global", "shared", "local", "const", "shared::cta", "shared::cluster"];
        for (asked, answer) in asked.map(|asked| (asked, asked.split(':').next().unwrap_or_default())) {
            let form = format!("isspacep.{asked}");
            let text = text("", &format!("{from} %x2, %x0;"), &format!("{form} %d0, %x2;"));
            let same = u64::from(space.starts_with(answer));
            rows.push(
                Row::new(&form, &[P], &[W], inputs.clone())
                    .module(module)
                    .memory(&[0; 128])
                    .text(&text)
                    .gives(|_| same),
            );
        }
    }
    constants(rows);
}

fn constants(rows: &mut Vec<Row>) {
    let module = ".const .align 4 .u32 table[4] = {5, 6, 7, 8};";
    let row = |form: &str, outs: &[Size]| Row::new(form, outs, &[X], threads()).module(module);
    rows.push(
        row("cvta.const.u64", &[W])
            .text("mov.u64 %x0, table; cvta.const.u64 %x0, %x0; ld.u32 %d0, [%x0+8];")
            .gives(|_| 7),
    );
    rows.push(
        row("cvta.to.const.u64", &[W])
            .text("mov.u64 %x0, table; cvta.const.u64 %x0, %x0; cvta.to.const.u64 %x0, %x0; ld.const.u32 %d0, [%x0];")
            .gives(|_| 5),
    );
    // Parameters of kernels are reached by generic addresses too.
    let bytes: [u8; 128] = random_bytes(128).try_into().unwrap();
    rows.push(
        row("cvta.param.u64", &[W])
            .extra(Extra::Bytes(bytes))
            .text("mov.b64 %x0, extra; cvta.param.u64 %x0, %x0; ld.u32 %d0, [%x0+12];")
            .gives(|_| at(&bytes, 12, 32, false) as u64),
    );
    // The window of constants is no part of global memory, that of parameters is one.
    for (asked, of_table, of_extra) in [("const", 1, 0), ("global", 0, 1), ("shared", 0, 0), ("local", 0, 0)]
    {
        let form = format!("isspacep.{asked}");
        let text = format!(
            "mov.u64 %x0, table; cvta.const.u64 %x0, %x0; add.u64 %x1, %x0, 15; {form} %d0, %x0; {form} %d1, %x1;
             mov.b64 %x0, extra; cvta.param.u64 %x0, %x0; {form} %d2, %x0;"
        );
        let row = row(&form, &[P, P, P]).extra(Extra::Bytes(bytes)).text(&text);
        rows.push(row.each(|_| vec![of_table, of_table, of_extra]));
    }
}
