//! Conversions between integers, floats, and the formats of tensor cores.

use super::compare::flushing;
use crate::number::{BF16, E4M3, E5M2, F16, F32, F64, Format, MODES, Mode, TF32, Value, decode, encode};
use crate::row::{H, Row, Size, W, X};
use crate::values::{floats, integers, mask, singles, tuples, wide};

type Integer = (&'static str, u32, bool);

const INTEGERS: [Integer; 8] = [
    ("u8", 8, false),
    ("s8", 8, true),
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];

const FLOATS: [(&str, Format); 4] = [("f16", F16), ("bf16", BF16), ("f32", F32), ("f64", F64)];

/// Rounding to integers.
const WHOLE: [(&str, Mode); 4] =
    [("rni", Mode::Nearest), ("rzi", Mode::Zero), ("rmi", Mode::Down), ("rpi", Mode::Up)];

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    between_integers(&mut rows);
    for integer in INTEGERS {
        for (name, f) in FLOATS {
            from_integer(&mut rows, integer, name, f);
            to_integer(&mut rows, integer, name, f);
        }
    }
    for (from_name, from) in FLOATS {
        whole(&mut rows, from_name, from);
        for (to_name, to) in FLOATS {
            if from != to {
                between_floats(&mut rows, (to_name, to), (from_name, from));
            }
        }
    }
    rectified(&mut rows);
    finite(&mut rows);
    pairs_of_halves(&mut rows);
    bytes(&mut rows);
    rows
}

fn limits(bits: u32, signed: bool) -> (i128, i128) {
    if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// The low bits, extended to the register by the type's sign.
fn extended(value: i128, bits: u32, signed: bool, register: Size) -> u64 {
    wide(value as u64, bits, signed) as u64 & mask(register.bits())
}

/// A conversion into registers of the type's own size and of 64 bits, from likewise.
fn between_integers(rows: &mut Vec<Row>) {
    for (to, to_bits, to_signed) in INTEGERS {
        for (from, from_bits, from_signed) in INTEGERS {
            // A clamp that could change nothing is no instruction.
            let ((low, high), (least, most)) = (limits(to_bits, to_signed), limits(from_bits, from_signed));
            for sat in [false, true].into_iter().filter(|sat| !sat || least < low || most > high) {
                let form = format!("cvt{}.{to}.{from}", if sat { ".sat" } else { "" });
                for (d, a) in [(Size::of(to_bits), Size::of(from_bits)), (X, X), (W, W)] {
                    if d.bits() < to_bits || a.bits() < from_bits {
                        continue;
                    }
                    // Upper bits of a register that is wider than the type do not count.
                    let row = Row::new(&form, &[d], &[a], singles(&integers(a.bits())));
                    rows.push(row.gives(|v| {
                        let value = wide(v[0], from_bits, from_signed);
                        let value = if sat { value.clamp(low, high) } else { value };
                        extended(value, to_bits, to_signed, d)
                    }));
                }
            }
        }
    }
}

fn from_integer(rows: &mut Vec<Row>, (from, bits, signed): Integer, to: &str, f: Format) {
    for (mode_name, mode) in MODES {
        // Directed rounding to f64 is refused by the decoder.
        if f == F64 && mode != Mode::Nearest {
            continue;
        }
        for sat in [false, true] {
            // bf16 has no clamp.
            if sat && f == BF16 {
                continue;
            }
            let form = format!("cvt.{mode_name}{}.{to}.{from}", if sat { ".sat" } else { "" });
            let inputs = singles(&integers(Size::of(bits).bits()));
            let row = Row::new(&form, &[Size::of(f.bits())], &[Size::of(bits)], inputs);
            let row = if f == BF16 { row.sm90() } else { row };
            // Of bytes and bf16 the assembler wants a register of the byte's own type.
            let text = format!("{{ .reg .{from} %c; cvt.{from}.u16 %c, %a0; {form} %d0, %c; }}");
            let row = if f == BF16 && bits == 8 { row.text(&text) } else { row };
            rows.push(row.gives(|v| {
                let value = wide(v[0], bits, signed);
                let value = if sat { value.clamp(0, 1) } else { value };
                encode(&Value::from_integer(value), f, mode)
            }));
        }
    }
}

fn to_integer(rows: &mut Vec<Row>, (to, bits, signed): Integer, from: &str, f: Format) {
    for (mode_name, mode) in WHOLE {
        for ftz in [false, true].into_iter().filter(|ftz| !ftz || f == F32) {
            for sat in [false, true].into_iter().filter(|sat| !sat || f != BF16) {
                let (ftz_text, sat_text) = (if ftz { ".ftz" } else { "" }, if sat { ".sat" } else { "" });
                let form = format!("cvt.{mode_name}{ftz_text}{sat_text}.{to}.{from}");
                let mut values = floats(f);
                // Around the limits of the smaller integers.
                values.extend(
                    [-129.0f64, -128.5, 127.5, 255.5, 256.0, 32767.5, 65535.5, 2147483647.5, 0.5, 2.5]
                        .map(|v| encode(&decode(v.to_bits(), F64), f, Mode::Nearest)),
                );
                let row = Row::new(&form, &[Size::of(bits)], &[Size::of(f.bits())], singles(&values));
                let row = if f == BF16 { row.sm90() } else { row };
                let text = format!("{{ .reg .{to} %c; {form} %c, %a0; cvt.{}16.{to} %d0, %c; }}", &to[..1]);
                let row = if f == BF16 && bits == 8 { row.text(&text) } else { row };
                rows.push(row.gives(|v| {
                    let (low, high) = limits(bits, signed);
                    let whole = match decode(f.flush(v[0], ftz), f) {
                        // "Zero if source is not .f64 and destination is not .s64, .u64; otherwise
                        // 1 << (BitWidth(dst) - 1)."
                        Value::Nan if f != F64 && bits != 64 => 0,
                        Value::Nan => 1 << (bits - 1),
                        Value::Infinity(negative) => {
                            if negative {
                                low
                            } else {
                                high
                            }
                        }
                        value => {
                            let whole = value.to_integer(mode).unwrap();
                            whole.clamp(low.into(), high.into()).try_into().unwrap()
                        }
                    };
                    extended(whole, bits, signed, Size::of(bits))
                }));
            }
        }
    }
}

/// The format's own integers: a float rounded to one, or just flushed or clamped.
fn whole(rows: &mut Vec<Row>, name: &str, f: Format) {
    let size = Size::of(f.bits());
    for (mode_name, mode) in WHOLE {
        for (ftz, sat) in [(false, false), (true, false), (false, true), (true, true)] {
            if ftz && f != F32 || f == BF16 {
                continue;
            }
            let (ftz_text, sat_text) = (if ftz { ".ftz" } else { "" }, if sat { ".sat" } else { "" });
            let form = format!("cvt.{mode_name}{ftz_text}{sat_text}.{name}.{name}");
            rows.push(Row::new(&form, &[size], &[size], singles(&floats(f))).float(f).gives(|v| {
                let bits = f.flush(v[0], ftz);
                let value = decode(bits, f);
                let rounded = match value.to_integer(mode) {
                    None => bits,
                    Some(whole) => {
                        let whole = i128::try_from(whole).map(Value::from_integer).unwrap_or(value.clone());
                        encode(&whole, f, mode) | bits & 1 << (f.bits() - 1)
                    }
                };
                if sat { clamped(rounded, f) } else { rounded }
            }));
        }
    }
    for (ftz, sat) in [(false, false), (true, false), (false, true), (true, true)] {
        if ftz && f != F32 || f == BF16 {
            continue;
        }
        let (ftz_text, sat_text) = (if ftz { ".ftz" } else { "" }, if sat { ".sat" } else { "" });
        let form = format!("cvt{ftz_text}{sat_text}.{name}.{name}");
        rows.push(Row::new(&form, &[size], &[size], singles(&floats(f))).float(f).gives(|v| {
            let bits = f.flush(v[0], ftz);
            if sat { clamped(bits, f) } else { bits }
        }));
    }
}

/// In [0, 1], NaN as +0.
fn clamped(bits: u64, f: Format) -> u64 {
    match decode(bits, f) {
        Value::Nan => 0,
        value if value.negative() => 0,
        _ => bits.min(f.one()),
    }
}

fn between_floats(rows: &mut Vec<Row>, (to_name, to): (&str, Format), (from_name, from): (&str, Format)) {
    let narrows = to.mantissa < from.mantissa || to.exponent < from.exponent;
    // bf16 widens exactly to f32 and f64; into f16 it is rounded.
    let modes: Vec<(String, Mode)> = if narrows {
        MODES.iter().map(|(name, mode)| (format!(".{name}"), *mode)).collect()
    } else {
        vec![(String::new(), Mode::Nearest)]
    };
    let has_bf16 = to == BF16 || from == BF16;
    for (dotted, mode) in modes {
        for ftz in flushing(F32).filter(|ftz| !ftz || !has_bf16 && (to == F32 || from == F32)) {
            for sat in [false, true].into_iter().filter(|sat| !sat || !has_bf16) {
                let (ftz_text, sat_text) = (if ftz { ".ftz" } else { "" }, if sat { ".sat" } else { "" });
                let form = format!("cvt{dotted}{ftz_text}{sat_text}.{to_name}.{from_name}");
                let mut values = floats(from);
                // Ties, and limits of the target.
                for near in floats(to).into_iter().filter(|v| !to.is_nan(*v)) {
                    let near = encode(&decode(near, to), from, Mode::Nearest);
                    values.extend(
                        [near.wrapping_sub(1), near, near.wrapping_add(1)].map(|v| v & mask(from.bits())),
                    );
                }
                let row = Row::new(&form, &[Size::of(to.bits())], &[Size::of(from.bits())], singles(&values));
                let row = if has_bf16 { row.sm90() } else { row };
                rows.push(row.float(to).gives(|v| {
                    // `.ftz` is about subnormal f32 only.
                    let bits = from.flush(v[0], ftz && from == F32);
                    let bits = to.flush(encode(&decode(bits, from), to, mode), ftz && to == F32);
                    if sat { clamped(bits, to) } else { bits }
                }));
            }
        }
    }
}

/// Negative results as zero, with `.relu`; tf32.
fn rectified(rows: &mut Vec<Row>) {
    let halves = [("f16", F16, H), ("bf16", BF16, H), ("tf32", TF32, W)];
    for (name, f, size) in halves {
        for (mode_name, mode) in [("rn", Mode::Nearest), ("rz", Mode::Zero), ("rna", Mode::Away)] {
            for relu in [false, true] {
                // Those without are conversions as others, but to tf32.
                let known = if f == TF32 { mode != Mode::Away || !relu } else { mode != Mode::Away && relu };
                if !known {
                    continue;
                }
                let form = format!("cvt.{mode_name}{}.{name}.f32", if relu { ".relu" } else { "" });
                let row = Row::new(&form, &[size], &[W], singles(&floats(F32))).float(f);
                let row = if f == TF32 && mode != Mode::Away { row.sm90() } else { row };
                rows.push(row.gives(|v| rectify(encode(&decode(v[0], F32), f, mode), f, relu)));
            }
        }
    }
}

/// Numbers that are too large as the largest one.
fn finite(rows: &mut Vec<Row>) {
    let values = floats(F32);
    let types = [("f16", F16), ("bf16", BF16), ("tf32", TF32), ("f16x2", F16), ("bf16x2", BF16)];
    for (name, f) in types {
        let modes = if f == TF32 { vec![("rna", Mode::Away)] } else { MODES[..2].to_vec() };
        for (mode_name, mode) in modes {
            let form = format!("cvt.{mode_name}.satfinite.{name}.f32");
            let bound = move |v: u64| {
                let bits = encode(&decode(v, F32), f, mode);
                if f.infinite && decode(bits, f) == Value::Infinity(false) {
                    f.largest()
                } else if decode(bits, f) == Value::Infinity(true) {
                    f.largest() | 1 << (f.bits() - 1)
                } else {
                    bits
                }
            };
            if name.ends_with("x2") {
                let row = Row::new(&form, &[W], &[W, W], tuples(&[&values, &values], 512)).float(f);
                rows.push(row.gives(|v| bound(v[0]) << 16 | bound(v[1])));
            } else {
                let row = Row::new(&form, &[Size::of(f.bits())], &[W], singles(&values)).float(f);
                rows.push(row.gives(|v| bound(v[0])));
            }
        }
    }
}

fn rectify(bits: u64, f: Format, relu: bool) -> u64 {
    let value = decode(bits, f);
    match value {
        Value::Nan => f.nan(),
        value if relu && value.negative() => 0,
        _ => bits,
    }
}

fn pairs_of_halves(rows: &mut Vec<Row>) {
    let values = floats(F32);
    for (name, f) in [("f16x2", F16), ("bf16x2", BF16)] {
        for (mode_name, mode) in &MODES[..2] {
            for relu in [false, true] {
                let form = format!("cvt.{mode_name}{}.{name}.f32", if relu { ".relu" } else { "" });
                let row = Row::new(&form, &[W], &[W, W], tuples(&[&values, &values], 512)).float(f);
                // a is the high half.
                rows.push(row.gives(|v| {
                    let [high, low] =
                        [v[0], v[1]].map(|v| rectify(encode(&decode(v, F32), f, *mode), f, relu));
                    high << 16 | low
                }));
            }
        }
    }
}

/// fp8: always two, never infinite.
fn bytes(rows: &mut Vec<Row>) {
    let (singles32, halves) = (floats(F32), floats(F16));
    for (name, f) in [("e4m3x2", E4M3), ("e5m2x2", E5M2)] {
        for relu in [false, true] {
            let dotted = if relu { ".relu" } else { "" };
            let narrow = move |bits: u64, from: Format| {
                let bits = encode(&decode(bits, from), f, Mode::Nearest);
                let sign = bits & 0x80;
                let largest =
                    if bits & 0x7f > f.largest() && !f.is_nan(bits) { sign | f.largest() } else { bits };
                rectify(largest, f, relu)
            };
            let form = format!("cvt.rn.satfinite{dotted}.{name}.f32");
            let row = Row::new(&form, &[H], &[W, W], tuples(&[&singles32, &singles32], 512)).sm90().float(f);
            rows.push(row.gives(|v| narrow(v[0], F32) << 8 | narrow(v[1], F32)));
            let form = format!("cvt.rn.satfinite{dotted}.{name}.f16x2");
            let inputs = tuples(&[&halves, &halves], 512).iter().map(|v| vec![v[0] << 16 | v[1]]).collect();
            let row = Row::new(&form, &[H], &[W], inputs).sm90().float(f);
            rows.push(row.gives(|v| narrow(v[0] >> 16, F16) << 8 | narrow(v[0] & 0xffff, F16)));
            let form = format!("cvt.rn{dotted}.f16x2.{name}");
            let codes: Vec<u64> = (0..256).map(|n| n << 8 | (n * 37 + 5) & 0xff).collect();
            let row = Row::new(&form, &[W], &[H], singles(&codes)).sm90().float(F16);
            rows.push(row.gives(|v| {
                let part = |bits: u64| rectify(encode(&decode(bits, f), F16, Mode::Nearest), F16, relu);
                part(v[0] >> 8) << 16 | part(v[0] & 0xff)
            }));
        }
    }
}
