//! Matrix products of warpgroups: A from registers or shared memory, B from shared memory, in the
//! layouts that descriptors can say.

use super::matrix::{BRAIN, Element, FINE, HALF, SIGNED, TENSOR, UNSIGNED, WIDE_RANGE, sum};
use crate::number::{F16, F32, F64, Mode, decode, encode};
use crate::row::{Row, W};
use crate::values::Random;

/// How a matrix lies in shared memory.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Layout {
    /// Bytes of a swizzled line: 16 (none), 32, 64 or 128.
    line: usize,
    /// Lines go along the rows of A (columns of B) instead of along the sum.
    transposed: bool,
}

const PLAIN: Layout = Layout { line: 128, transposed: false };

impl Layout {
    /// The descriptor's bits without the address.
    fn descriptor(self) -> u64 {
        let mode = match self.line {
            128 => 1u64,
            64 => 2,
            32 => 3,
            _ => 0,
        };
        let (leading, stride) = match (self.line, self.transposed) {
            // Two core matrices of 8 lines of 16 bytes along the sum, then the next 8 rows.
            (16, false) => (128, 256),
            (line, false) => (16, line * 8),
            // Atoms of `line` bytes by 8 of the sum: along the sum first.
            (line, true) => (line * 16, line * 8),
        };
        mode << 62 | (stride as u64 >> 4) << 32 | (leading as u64 >> 4) << 16
    }

    /// Where the element of row `row` and place `k` of the sum lies, of elements of some bytes; the
    /// instruction reads the second 32 bytes of a line, where there are as many.
    fn place(self, row: usize, k: usize, bytes: usize) -> usize {
        let linear = match (self.line, self.transposed) {
            (16, false) => row / 8 * 256 + k * bytes / 16 * 128 + row % 8 * 16 + k * bytes % 16,
            (line, false) => row * line + self.skipped() + k * bytes,
            (line, true) => {
                let (atom, inside) = (row * bytes / line, row * bytes % line);
                atom * line * 16 + k / 8 * line * 8 + k % 8 * line + inside
            }
        };
        let bits = self.line / 16 - 1;
        linear ^ (linear >> 7 & bits) << 4
    }

    fn skipped(self) -> usize {
        if self.line > 32 && !self.transposed { 32 } else { 0 }
    }

    fn bytes(self, count: usize) -> usize {
        match self.transposed {
            true => (count * 2).next_multiple_of(self.line) * 16,
            false => count * self.line.max(32),
        }
    }
}

/// What a row multiplies.
struct Case {
    n: usize,
    element: Element,
    acc: &'static str,
    a_layout: Option<Layout>,
    b_layout: Layout,
    /// Signs of A and B, and whether the accumulators count.
    scale: (i32, i32, bool),
}

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let case = |n, element, acc| Case {
        n,
        element,
        acc,
        a_layout: Some(PLAIN),
        b_layout: PLAIN,
        scale: (1, 1, true),
    };
    for n in (8..=256).step_by(8) {
        for (element, acc) in [
            (HALF, "f32"),
            (HALF, "f16"),
            (BRAIN, "f32"),
            (TENSOR, "f32"),
            (FINE, "f32"),
            (WIDE_RANGE, "f32"),
        ] {
            // Few of the other types' many sizes have a second row with A in registers.
            rows.push(multiply(&case(n, element, acc)));
            rows.push(multiply(&Case { a_layout: None, ..case(n, element, acc) }));
        }
        for element in [SIGNED, UNSIGNED].into_iter().filter(|_| n < 32 || n % 16 == 0) {
            rows.push(multiply(&case(n, element, "s32")));
            rows.push(multiply(&Case { a_layout: None, ..case(n, element, "s32") }));
        }
    }
    for line in [16, 32, 64] {
        let layout = Layout { line, transposed: false };
        for element in [HALF, TENSOR, SIGNED] {
            let acc = if element.bits == 8 { "s32" } else { "f32" };
            rows.push(multiply(&Case { a_layout: Some(layout), b_layout: layout, ..case(64, element, acc) }));
        }
    }
    for line in [32, 64, 128] {
        let across = Layout { line, transposed: true };
        for n in [64, 128] {
            rows.push(multiply(&Case { b_layout: across, ..case(n, HALF, "f32") }));
            rows.push(multiply(&Case { a_layout: Some(across), b_layout: across, ..case(n, BRAIN, "f32") }));
            rows.push(multiply(&Case { a_layout: None, b_layout: across, ..case(n, HALF, "f32") }));
        }
    }
    for scale in [(-1, 1, true), (1, -1, true), (-1, -1, false), (1, 1, false)] {
        rows.push(multiply(&Case { scale, ..case(16, HALF, "f32") }));
    }
    rows
}

/// The matrices of a case: 64 by k, k by n (kept by columns), and the accumulators.
struct Matrices {
    left: Vec<u64>,
    right: Vec<u64>,
    start: Vec<u64>,
}

fn matrices(case: &Case, k: usize) -> Matrices {
    let mut random = Random::new(case.n as u64);
    let number = |random: &mut Random| (random.below(65) as f64 - 32.0) / 8.0;
    let mut accumulator = || match case.acc {
        "s32" => random.bits() & 0xffff,
        "f16" => encode(&decode(number(&mut random).to_bits(), F64), F16, Mode::Nearest),
        _ => encode(&decode(number(&mut random).to_bits(), F64), F32, Mode::Nearest),
    };
    let start = (0..64 * case.n).map(|_| accumulator()).collect();
    let mut elements = |count: usize| (0..count).map(|_| case.element.random(&mut random)).collect();
    Matrices { left: elements(64 * k), right: elements(k * case.n), start }
}

/// Of each thread: `registers` values by warp, lane, number.
fn fragments(registers: usize, f: impl Fn(usize, usize, usize) -> u64) -> Vec<Vec<u64>> {
    (0..128).map(|t| (0..registers).map(|q| f(t / 32, t % 32, q)).collect()).collect()
}

fn multiply(case: &Case) -> Row {
    let bytes = case.element.bits as usize / 8;
    let (n, k, per) = (case.n, 32 / bytes, 4 / bytes);
    let all = matrices(case, k);
    // Row and column of accumulator q of a lane.
    let place = |warp: usize, lane: usize, q: usize| {
        (warp * 16 + lane / 4 + q / 2 % 2 * 8, q / 4 * 8 + lane % 4 * 2 + q % 2)
    };
    let halves = case.acc == "f16";
    let packed = |values: &[u64]| {
        fragments(if halves { n / 4 } else { n / 2 }, |warp, lane, q| {
            let at = |q: usize| {
                let (row, column) = place(warp, lane, q);
                values[row * n + column]
            };
            if halves { at(2 * q) | at(2 * q + 1) << 16 } else { at(q) }
        })
    };
    let a_parts = fragments(4, |warp, lane, q| {
        let (row, from) = (warp * 16 + lane / 4 + q % 2 * 8, lane % 4 * per + q / 2 * 4 * per);
        (0..per).map(|i| all.left[row * k + from + i] << (i as u32 * case.element.bits)).sum()
    });
    let mut inputs = packed(&all.start);
    if case.a_layout.is_none() {
        inputs.iter_mut().zip(&a_parts).for_each(|(v, a)| v.extend(a));
    }
    let [left, right] =
        [&all.left, &all.right].map(|m| m.iter().map(|bits| case.element.value(*bits)).collect::<Vec<f64>>());
    let results: Vec<u64> = (0..64 * n)
        .map(|at| {
            let (row, column) = (at / n, at % n);
            let product = |e: usize| left[row * k + e] * right[e * n + column];
            let sign = f64::from(case.scale.0 * case.scale.1);
            let start = if case.scale.2 { all.start[at] } else { 0 };
            sum(case.acc, sign * (0..k).map(product).sum::<f64>(), start, false)
        })
        .collect();
    let wanted = packed(&results);
    let registers = wanted[0].len();
    let (form, text, a_bytes) = text(case, k, registers);
    let row = Row::new(&form, &vec![W; registers], &vec![W; inputs[0].len()], inputs)
        .shape([1, 1, 1], [128, 1, 1])
        .sm90()
        .memory(&image(case, &all, k, a_bytes))
        .text(&text);
    let shared = row.memory.len();
    let row = row.module(&format!(".shared .align 1024 .b8 buffer[{shared}];"));
    let row = match case.acc {
        "s32" => row,
        "f16" => row.card_only(F16, 2e-3, 8e-3),
        _ => row.card_only(F32, 1e-4, 1e-4),
    };
    row.whole(|_| wanted.clone())
}

/// Shared memory: A, if it lies there, then B from the next 1024 bytes on.
fn image(case: &Case, all: &Matrices, k: usize, a_bytes: usize) -> Vec<u8> {
    let bytes = case.element.bits as usize / 8;
    let length = a_bytes + case.b_layout.bytes(case.n);
    let mut image = super::memory::random_bytes(length.next_multiple_of(2048));
    let mut put =
        |at: usize, value: u64| image[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    for e in 0..k {
        for row in (0..64).filter(|_| case.a_layout.is_some()) {
            put(case.a_layout.unwrap().place(row, e, bytes), all.left[row * k + e]);
        }
        for column in 0..case.n {
            put(a_bytes + case.b_layout.place(column, e, bytes), all.right[e * case.n + column]);
        }
    }
    image
}

/// The form, the kernel's text, and the bytes of A in shared memory.
fn text(case: &Case, k: usize, registers: usize) -> (String, String, usize) {
    let element = case.element;
    let a_bytes = case.a_layout.map_or(0, |layout| layout.bytes(64).next_multiple_of(1024));
    let form = format!(
        "wgmma.mma_async.sync.aligned.m64n{}k{k}.{}.{}.{}",
        case.n, case.acc, element.name, element.name
    );
    let copies = (a_bytes + case.b_layout.bytes(case.n)).div_ceil(2048);
    let mut text = "mov.u32 %r9, buffer; mad.lo.u32 %r0, %t, 16, %r9; mul.wide.u32 %x1, %t, 16; \
                    add.u64 %x1, %memory, %x1;\n"
        .to_string();
    for n in 0..copies {
        text += &format!(
            "ld.global.v4.b32 {{%r1, %r2, %r3, %r4}}, [%x1+{}]; st.shared.v4.b32 [%r0+{}], {{%r1, %r2, %r3, %r4}};\n",
            n * 2048,
            n * 2048
        );
    }
    let mut descriptor = |register: &str, offset: usize, bits: u64| {
        text += &format!(
            "add.u32 %r1, %r9, {offset}; shr.u32 %r1, %r1, 4; and.b32 %r1, %r1, 0x3fff; \
             cvt.u64.u32 {register}, %r1; or.b64 {register}, {register}, {bits:#x};\n"
        );
    };
    if let Some(layout) = case.a_layout {
        descriptor("%x2", layout.skipped(), layout.descriptor());
    }
    descriptor("%x3", a_bytes + case.b_layout.skipped(), case.b_layout.descriptor());
    for n in 0..registers {
        text += &format!("mov.b32 %d{n}, %a{n}; ");
    }
    let list = |letter: char, from: usize, count: usize| {
        (from..from + count).map(|n| format!("%{letter}{n}")).collect::<Vec<_>>().join(", ")
    };
    let a = match case.a_layout {
        Some(_) => "%x2".to_string(),
        None => format!("{{{}}}", list('a', registers, 4)),
    };
    // Signs are for floats, transposition for 16 bits (of A only from shared memory).
    let mut immediates = String::new();
    if case.acc != "s32" {
        immediates += &format!(", {}, {}", case.scale.0, case.scale.1);
    }
    if element.bits == 16 {
        if let Some(layout) = case.a_layout {
            immediates += &format!(", {}", u8::from(layout.transposed));
        }
        immediates += &format!(", {}", u8::from(case.b_layout.transposed));
    }
    text += &format!(
        "\nfence.proxy.async; bar.sync 0; wgmma.fence.sync.aligned; setp.ne.u32 %p1, {}, 0;\n\
         {form} {{{}}}, {a}, %x3, %p1{immediates};\n\
         wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        u8::from(case.scale.2),
        list('d', 0, registers)
    );
    (form, text, a_bytes)
}
