//! Arithmetic on f16 and bf16, alone and two in a register.

use super::float::extreme;
use crate::number::{BF16, F16, F64, Format, Mode, Value, add, decode, encode, mul};
use crate::row::{Check, Row, Size};
use crate::values::{Random, floats, pairs, singles, triples};

/// A type: name, format, whether two are in a register.
type Half = (&'static str, Format, bool);

const TYPES: [Half; 4] =
    [("f16", F16, false), ("f16x2", F16, true), ("bf16", BF16, false), ("bf16x2", BF16, true)];

/// What an approximation approximates.
type Function = fn(f64) -> f64;

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for half in TYPES {
        for rounding in ["", ".rn"] {
            sums(&mut rows, half, rounding);
        }
        fused(&mut rows, half);
        signs(&mut rows, half);
        approximations(&mut rows, half);
    }
    rows
}

/// Inputs of one value each, as they stand in registers: packed ones have a neighbour.
fn packed(inputs: Vec<Vec<u64>>, two: bool) -> Vec<Vec<u64>> {
    if !two {
        return inputs;
    }
    let shifted = inputs.iter().cycle().skip(7);
    inputs
        .iter()
        .zip(shifted)
        .map(|(low, high)| low.iter().zip(high).map(|(low, high)| low | high << 16).collect())
        .collect()
}

/// A row whose closure sees one value of each operand.
fn row(form: &str, (_, f, two): Half, inputs: Vec<Vec<u64>>, result: impl Fn(&[u64]) -> u64) -> Row {
    let size = Size::of(if two { 32 } else { 16 });
    let operands = inputs[0].len();
    let row = Row::new(form, &[size], &vec![size; operands], packed(inputs, two)).float(f);
    let row = if f == BF16 { row.sm90() } else { row };
    row.gives(|v| {
        let part = |shift: u32| result(&v.iter().map(|v| v >> shift & 0xffff).collect::<Vec<_>>()) << shift;
        part(0) | if two { part(16) } else { 0 }
    })
}

/// How a result becomes bits.
#[derive(Clone, Copy)]
struct How {
    f: Format,
    ftz: bool,
    sat: bool,
    relu: bool,
}

impl How {
    fn value(self, bits: u64) -> Value {
        decode(self.f.flush(bits, self.ftz), self.f)
    }

    fn bits(self, value: &Value) -> u64 {
        let bits = self.f.flush(encode(value, self.f, Mode::Nearest), self.ftz);
        match decode(bits, self.f) {
            Value::Nan if self.sat => 0,
            value if (self.sat || self.relu) && value.negative() => 0,
            _ if self.sat => bits.min(self.f.one()),
            _ => bits,
        }
    }
}

/// Flags: only f16 has `.ftz` and `.sat`.
fn flags(f: Format) -> &'static [(&'static str, bool, bool)] {
    let all = &[("", false, false), (".ftz", true, false), (".sat", false, true), (".ftz.sat", true, true)];
    if f == F16 { all } else { &all[..1] }
}

fn sums(rows: &mut Vec<Row>, half: Half, rounding: &str) {
    let (name, f, _) = half;
    let inputs = pairs(&floats(f), &floats(f));
    for (dotted, ftz, sat) in flags(f) {
        let how = How { f, ftz: *ftz, sat: *sat, relu: false };
        let mut two = |op: &str, result: &dyn Fn(Value, Value) -> Value| {
            let form = format!("{op}{rounding}{dotted}.{name}");
            rows.push(row(&form, half, inputs.clone(), |v| {
                how.bits(&result(how.value(v[0]), how.value(v[1])))
            }));
        };
        two("add", &|a, b| add(&a, &b, Mode::Nearest));
        two("sub", &|a, b| add(&a, &b.negated(), Mode::Nearest));
        two("mul", &|a, b| mul(&a, &b));
    }
}

fn fused(rows: &mut Vec<Row>, half: Half) {
    let (name, f, _) = half;
    let relu: &[(&str, bool, bool)] = if f == F16 {
        &[(".relu", false, false), (".ftz.relu", true, false)]
    } else {
        &[(".relu", false, false)]
    };
    let plain = flags(f).iter().map(|flags| (flags, false));
    for ((dotted, ftz, sat), relu) in plain.chain(relu.iter().map(|flags| (flags, true))) {
        let how = How { f, ftz: *ftz, sat: *sat, relu };
        let form = format!("fma.rn{dotted}.{name}");
        let fused = row(&form, half, triples(&floats(f), 2500), |v| {
            let [a, b, c] = [0, 1, 2].map(|n| how.value(v[n]));
            how.bits(&add(&mul(&a, &b), &c, Mode::Nearest))
        });
        // bf16 has had `fma` since sm_80.
        rows.push(Row { arch: cuda_emu::Arch::Sm80, ..fused });
    }
}

fn signs(rows: &mut Vec<Row>, half: Half) {
    let (name, f, _) = half;
    let sign = 0x8000;
    for ftz in [false, true].into_iter().filter(|ftz| !ftz || f == F16) {
        let dotted = if ftz { ".ftz" } else { "" };
        let mut push = |row: Row| rows.push(Row { arch: cuda_emu::Arch::Sm80, ..row });
        let all = || singles(&floats(f));
        push(row(&format!("neg{dotted}.{name}"), half, all(), |v| f.flush(v[0], ftz) ^ sign));
        push(row(&format!("abs{dotted}.{name}"), half, all(), |v| f.flush(v[0], ftz) & !sign));
        for nan in [false, true] {
            for (op, largest) in [("min", false), ("max", true)] {
                let form = format!("{op}{dotted}{}.{name}", if nan { ".NaN" } else { "" });
                let row = row(&form, half, pairs(&floats(f), &floats(f)), |v| {
                    extreme(f, f.flush(v[0], ftz), f.flush(v[1], ftz), largest, nan)
                });
                push(Row { check: Check::Bits, ..row });
            }
        }
    }
}

fn approximations(rows: &mut Vec<Row>, half: Half) {
    let (name, f, _) = half;
    let mut random = Random::new(4);
    let numbers: Vec<u64> = (0..128)
        .map(|_| {
            let size = (random.below(4000) as f64 + 1.0) / 1000.0 - 2.0;
            encode(&decode(size.to_bits(), F64), f, Mode::Nearest)
        })
        .collect();
    // The manual: a relative error of 2^-9.9 for f16's, 2^-7 for bf16's ex2; 2^-10.987 and 2^-8 for tanh.
    let ulp = 0.5f64.powi(f.mantissa as i32);
    let ftz = if f == BF16 { ".ftz" } else { "" };
    let functions: [(&str, &str, Function); 2] = [("ex2", ftz, f64::exp2), ("tanh", "", f64::tanh)];
    for (op, ftz, function) in functions {
        let form = format!("{op}.approx{ftz}.{name}");
        let row = row(&form, half, singles(&numbers), |v| {
            encode(&decode(function(decode(v[0], f).to_f64()).to_bits(), F64), f, Mode::Nearest)
        });
        rows.push(row.card_only(f, ulp, ulp / 64.0));
    }
}
