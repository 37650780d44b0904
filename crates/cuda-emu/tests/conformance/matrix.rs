//! Tensor-core instructions of warps, and the loads and stores of their fragments.

use super::memory::random_bytes;
use crate::number::{BF16, E4M3, E5M2, F16, F32, F64, Format, Mode, TF32, decode, encode};
use crate::row::{Row, W};
use crate::values::{Random, mask, wide};

/// The type of matrix elements: name, bits, and how to read them.
#[derive(Clone, Copy)]
pub struct Element {
    pub name: &'static str,
    pub bits: u32,
    pub kind: Kind,
}

#[derive(Clone, Copy)]
pub enum Kind {
    Float(Format),
    Integer(bool),
}

const fn float(name: &'static str, bits: u32, format: Format) -> Element {
    Element { name, bits, kind: Kind::Float(format) }
}

pub const HALF: Element = float("f16", 16, F16);
pub const BRAIN: Element = float("bf16", 16, BF16);
pub const TENSOR: Element = float("tf32", 32, TF32);
pub const WIDE_RANGE: Element = float("e5m2", 8, E5M2);
pub const FINE: Element = float("e4m3", 8, E4M3);
pub const SIGNED: Element = Element { name: "s8", bits: 8, kind: Kind::Integer(true) };
pub const UNSIGNED: Element = Element { name: "u8", bits: 8, kind: Kind::Integer(false) };

impl Element {
    pub fn value(self, bits: u64) -> f64 {
        match self.kind {
            Kind::Float(f) => decode(bits & mask(self.bits), f).to_f64(),
            Kind::Integer(signed) => wide(bits, self.bits, signed) as f64,
        }
    }

    /// Moderate random elements.
    pub fn random(self, random: &mut Random) -> u64 {
        match self.kind {
            Kind::Integer(_) => random.bits() & 0xff,
            Kind::Float(f) => {
                let value = (random.below(257) as f64 - 128.0) / 64.0;
                encode(&decode(value.to_bits(), F64), f, Mode::Nearest)
            }
        }
    }
}

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for k in [8, 16] {
        multiply(&mut rows, k, HALF, HALF, "f32");
        multiply(&mut rows, k, HALF, HALF, "f16");
        multiply(&mut rows, k, BRAIN, BRAIN, "f32");
        multiply(&mut rows, k / 2, TENSOR, TENSOR, "f32");
        for a in [SIGNED, UNSIGNED] {
            for b in [SIGNED, UNSIGNED] {
                multiply(&mut rows, k * 2, a, b, "s32");
            }
        }
    }
    for a in [FINE, WIDE_RANGE] {
        for b in [FINE, WIDE_RANGE] {
            multiply(&mut rows, 32, a, b, "f32");
        }
    }
    for count in [1, 2, 4] {
        for transposed in [false, true] {
            load_matrices(&mut rows, count, transposed);
            for space in ["shared", "shared::cta"] {
                store_matrices(&mut rows, count, transposed, space);
            }
        }
    }
    rows
}

/// Of a warp's operand: registers of each lane.
fn fragments(registers: usize, f: impl Fn(usize, usize) -> u64) -> Vec<Vec<u64>> {
    (0..32).map(|lane| (0..registers).map(|register| f(lane, register)).collect()).collect()
}

fn names(letter: char, from: usize, count: usize) -> String {
    let names: Vec<_> = (from..from + count).map(|n| format!("%{letter}{n}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// D = A × B + C of m16n8: A is 16 by k, B is k by 8.
fn multiply(rows: &mut Vec<Row>, k: usize, a: Element, b: Element, acc: &str) {
    for satfinite in [false, true].into_iter().filter(|sat| !sat || acc == "s32") {
        let mut random = Random::new(k as u64);
        let left: Vec<u64> = (0..16 * k).map(|_| a.random(&mut random)).collect();
        let right: Vec<u64> = (0..k * 8).map(|_| b.random(&mut random)).collect();
        let start: Vec<u64> = (0..128).map(|n| accumulator(acc, n, satfinite, &mut random)).collect();
        let row = multiply_row(k, (a, &left), (b, &right), (acc, &start), satfinite);
        rows.push(row);
    }
}

fn accumulator(acc: &str, n: u64, near_limits: bool, random: &mut Random) -> u64 {
    let value = (random.below(257) as f64 - 128.0) / 16.0;
    match acc {
        "s32" if near_limits && n.is_multiple_of(3) => u64::from(i32::MAX as u32) - n * 1000,
        "s32" if near_limits && n % 3 == 1 => u64::from(i32::MIN as u32) + n * 1000,
        "s32" => random.bits() & 0xffff,
        "f16" => encode(&decode(value.to_bits(), F64), F16, Mode::Nearest),
        _ => encode(&decode(value.to_bits(), F64), F32, Mode::Nearest),
    }
}

type Matrix<'m> = (Element, &'m [u64]);

fn multiply_row(
    k: usize,
    (a, left): Matrix,
    (b, right): Matrix,
    (acc, start): (&str, &[u64]),
    sat: bool,
) -> Row {
    let per = (32 / a.bits) as usize;
    let (a_count, acc_count) = (k * 16 / 32 / per, if acc == "f16" { 2 } else { 4 });
    // Lane 4g + t holds, of A, row g (+8 in odd registers) and elements from t × per on, a block of
    // 4 × per further in the registers after the second; of B likewise column g; of C rows as A's
    // and columns 2t and 2t + 1.
    let gather = |bits: u32, value: &dyn Fn(usize) -> u64| -> u64 {
        (0..(32 / bits) as usize).map(|i| value(i) << (i as u32 * bits)).sum()
    };
    let a_parts = fragments(a_count, |lane, q| {
        let (row, column) = (lane / 4 + q % 2 * 8, lane % 4 * per + q / 2 * 4 * per);
        gather(a.bits, &|i| left[row * k + column + i])
    });
    let b_parts = fragments(a_count / 2, |lane, q| {
        let (row, column) = (lane % 4 * per + q * 4 * per, lane / 4);
        gather(b.bits, &|i| right[(row + i) * 8 + column])
    });
    let place = |lane: usize, n: usize| (lane / 4 + n / 2 * 8, lane % 4 * 2 + n % 2);
    let c_parts = |values: &[u64]| {
        fragments(acc_count, |lane, q| {
            let at = |n: usize| {
                let (row, column) = place(lane, n);
                values[row * 8 + column]
            };
            if acc == "f16" { at(2 * q) | at(2 * q + 1) << 16 } else { at(q) }
        })
    };
    let c = c_parts(start);
    let inputs: Vec<Vec<u64>> =
        (0..32).map(|lane| [&a_parts[lane][..], &b_parts[lane], &c[lane]].concat()).collect();
    let form = format!(
        "mma.sync.aligned.m16n8k{k}.row.col{}.{acc}.{}.{}.{acc}",
        if sat { ".satfinite" } else { "" },
        a.name,
        b.name
    );
    let text = format!(
        "{form} {}, {}, {}, {};",
        names('d', 0, acc_count),
        names('a', 0, a_count),
        names('a', a_count, a_count / 2),
        names('a', a_count + a_count / 2, acc_count)
    );
    let results: Vec<u64> = (0..128)
        .map(|n| {
            let (row, column) = (n / 8, n % 8);
            let dot =
                (0..k).map(|e| a.value(left[row * k + e]) * b.value(right[e * 8 + column])).sum::<f64>();
            sum(acc, dot, start[n], sat)
        })
        .collect();
    let wanted = c_parts(&results);
    let row = Row::new(&form, &vec![W; acc_count], &vec![W; inputs[0].len()], inputs).text(&text);
    let row = if a.bits == 8 && acc == "f32" { row.sm90() } else { row };
    let row = match acc {
        "s32" => row,
        "f16" => row.card_only(F16, 2e-3, 4e-3),
        _ => row.card_only(F32, 1e-5, 1e-5),
    };
    row.whole(|_| wanted.clone())
}

/// A dot product and the accumulator: exact numbers so far, as sums are small.
pub fn sum(acc: &str, dot: f64, start: u64, sat: bool) -> u64 {
    match acc {
        "s32" => {
            let total = dot as i128 + wide(start, 32, true);
            let total = if sat { total.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) } else { total };
            total as u64 & mask(32)
        }
        "f16" => encode(&decode((dot + decode(start, F16).to_f64()).to_bits(), F64), F16, Mode::Nearest),
        _ => encode(&decode((dot + decode(start, F32).to_f64()).to_bits(), F64), F32, Mode::Nearest),
    }
}

/// Rows of 16 bytes, 80 bytes apart, in shared memory; `%r0` is the address of the lane's own row.
fn shared_rows(fill: bool) -> String {
    let load = "mul.wide.u32 %x1, %t, 16; add.u64 %x1, %memory, %x1;";
    let fill = if fill {
        "ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%x1]; st.shared.v4.b32 [%r0], {%r1, %r2, %r3, %r4};"
    } else {
        ""
    };
    format!("{load} mov.u32 %r9, buffer; mad.lo.u32 %r0, %t, 80, %r9; {fill} bar.warp.sync -1;")
}

const BUFFER: &str = ".shared .align 16 .b8 buffer[2560];";

fn load_matrices(rows: &mut Vec<Row>, count: usize, transposed: bool) {
    let bytes = random_bytes(512);
    let trans = if transposed { ".trans" } else { "" };
    for space in ["shared", "shared::cta"] {
        let form = format!("ldmatrix.sync.aligned.m8n8.x{count}{trans}.{space}.b16");
        let text = format!("{} {form} {}, [%r0];", shared_rows(true), names('d', 0, count));
        let row = Row::new(&form, &vec![W; count], &[W], (0..32).map(|n| vec![n]).collect());
        rows.push(row.module(BUFFER).memory(&bytes).text(&text).each(|v| {
            let (row, column) = (v[0] as usize / 4, v[0] as usize % 4 * 2);
            let element = |matrix: usize, row: usize, column: usize| {
                let (row, column) = if transposed { (column, row) } else { (row, column) };
                let start = (matrix * 8 + row) * 16 + column * 2;
                u64::from(u16::from_le_bytes([bytes[start], bytes[start + 1]]))
            };
            (0..count).map(|m| element(m, row, column) | element(m, row, column + 1) << 16).collect()
        }));
    }
}

fn store_matrices(rows: &mut Vec<Row>, count: usize, transposed: bool, space: &str) {
    let mut random = Random::new(5);
    let inputs: Vec<Vec<u64>> =
        (0..32).map(|_| (0..count).map(|_| random.bits() & mask(32)).collect()).collect();
    let trans = if transposed { ".trans" } else { "" };
    let form = format!("stmatrix.sync.aligned.m8n8.x{count}{trans}.{space}.b16");
    let text = format!(
        "{} {form} [%r0], {}; bar.warp.sync -1; setp.lt.u32 %p1, %t, {}; \
         @%p1 ld.shared.v4.b32 {{%r1, %r2, %r3, %r4}}, [%r0]; \
         @%p1 st.global.v4.b32 [%x1], {{%r1, %r2, %r3, %r4}};",
        shared_rows(false),
        names('a', 0, count),
        count * 8
    );
    let mut after = vec![0u8; 512];
    for (lane, values) in inputs.iter().enumerate() {
        for (matrix, value) in values.iter().enumerate() {
            for n in 0..2 {
                let (row, column) = (lane / 4, lane % 4 * 2 + n);
                let (row, column) = if transposed { (column, row) } else { (row, column) };
                let start = (matrix * 8 + row) * 16 + column * 2;
                after[start..start + 2].copy_from_slice(&((value >> (16 * n)) as u16).to_le_bytes());
            }
        }
    }
    let row = Row::new(&form, &[], &vec![W; count], inputs).sm90().module(BUFFER).memory(&[0; 512]);
    rows.push(row.text(&text).memory_after(after).each(|_| Vec::new()));
}
