//! Arithmetic on f32 and f64: what IEEE 754 rounds, and the approximations that only a card knows.

use super::compare::flushing;
use crate::number::{F32, F64, Format, MODES, Mode, Value, add, decode, div, encode, mul, sqrt};
use crate::row::{Check, Row, Size, W, X};
use crate::values::{Random, floats, pairs, singles, triples};

/// Flags of an operation on f32: text, whether subnormal numbers are zero, whether results are clamped.
const FLAGS: [(&str, bool, bool); 4] =
    [("", false, false), (".ftz", true, false), (".sat", false, true), (".ftz.sat", true, true)];

/// What an approximation approximates.
type Function = fn(f64) -> f64;

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, mode) in [("", Mode::Nearest)].into_iter().chain(MODES) {
        let dotted = if name.is_empty() { String::new() } else { format!(".{name}") };
        for (flags, ftz, sat) in FLAGS {
            let how = How { f: F32, mode, ftz, sat };
            arithmetic(&mut rows, &format!("{dotted}{flags}.f32"), how, !name.is_empty());
        }
        if mode == Mode::Nearest {
            let how = How { f: F64, mode, ftz: false, sat: false };
            arithmetic(&mut rows, &format!("{dotted}.f64"), how, !name.is_empty());
        }
    }
    for (f, ty) in [(F32, "f32"), (F64, "f64")] {
        quotients(&mut rows, f, ty);
        signs(&mut rows, f, ty);
        for ftz in flushing(f) {
            extremes(&mut rows, f, ty, ftz);
        }
    }
    approximations(&mut rows);
    rows
}

/// How a result becomes bits.
#[derive(Clone, Copy)]
struct How {
    f: Format,
    mode: Mode,
    ftz: bool,
    sat: bool,
}

impl How {
    fn value(self, bits: u64) -> Value {
        decode(self.f.flush(bits, self.ftz), self.f)
    }

    fn bits(self, value: &Value) -> u64 {
        let f = self.f;
        let bits = f.flush(encode(value, f, self.mode), self.ftz);
        match decode(bits, f) {
            // Clamped to [0, 1]; NaN becomes +0.
            Value::Nan if self.sat => 0,
            value if self.sat && value.negative() => 0,
            _ if self.sat => bits.min(f.one()),
            _ => bits,
        }
    }

    fn row(self, form: &str, operands: usize) -> Row {
        let (size, values) = (Size::of(self.f.bits()), floats(self.f));
        let inputs = match operands {
            1 => singles(&values),
            2 => pairs(&values, &values),
            _ => triples(&values, 2500),
        };
        Row::new(form, &[size], &vec![size; operands], inputs).float(self.f)
    }
}

fn arithmetic(rows: &mut Vec<Row>, tail: &str, how: How, named: bool) {
    let How { mode, .. } = how;
    let mut two = |op: &str, f: &dyn Fn(Value, Value) -> Value| {
        let row = how.row(&format!("{op}{tail}"), 2);
        rows.push(row.gives(|v| how.bits(&f(how.value(v[0]), how.value(v[1])))));
    };
    two("add", &|a, b| add(&a, &b, mode));
    two("sub", &|a, b| add(&a, &b.negated(), mode));
    two("mul", &|a, b| mul(&a, &b));
    // `fma` needs its rounding; so does `mad` on floats.
    for op in ["fma", "mad"].iter().filter(|_| named) {
        let row = how.row(&format!("{op}{tail}"), 3);
        rows.push(row.gives(|v| {
            let [a, b, c] = [0, 1, 2].map(|n| how.value(v[n]));
            how.bits(&add(&mul(&a, &b), &c, mode))
        }));
    }
}

fn quotients(rows: &mut Vec<Row>, f: Format, ty: &str) {
    for ftz in flushing(f) {
        let how = How { f, mode: Mode::Nearest, ftz, sat: false };
        let tail = format!("rn{}.{ty}", if ftz { ".ftz" } else { "" });
        let one = Value::from_integer(1);
        rows.push(
            how.row(&format!("div.{tail}"), 2).gives(|v| how.bits(&div(&how.value(v[0]), &how.value(v[1])))),
        );
        rows.push(how.row(&format!("rcp.{tail}"), 1).gives(|v| how.bits(&div(&one, &how.value(v[0])))));
        rows.push(how.row(&format!("sqrt.{tail}"), 1).gives(|v| how.bits(&sqrt(&how.value(v[0])))));
    }
}

fn signs(rows: &mut Vec<Row>, f: Format, ty: &str) {
    let sign = 1u64 << (f.bits() - 1);
    for ftz in flushing(f) {
        let how = How { f, mode: Mode::Nearest, ftz, sat: false };
        let dotted = if ftz { ".ftz" } else { "" };
        rows.push(how.row(&format!("neg{dotted}.{ty}"), 1).gives(|v| f.flush(v[0], ftz) ^ sign));
        rows.push(how.row(&format!("abs{dotted}.{ty}"), 1).gives(|v| f.flush(v[0], ftz) & !sign));
    }
    let how = How { f, mode: Mode::Nearest, ftz: false, sat: false };
    // "Copies the sign bit of a into the value of b."
    let row = how.row(&format!("copysign.{ty}"), 2);
    rows.push(row.gives(|v| v[0] & sign | v[1] & !sign));
}

fn extremes(rows: &mut Vec<Row>, f: Format, ty: &str, ftz: bool) {
    let how = How { f, mode: Mode::Nearest, ftz, sat: false };
    for nan in [false, true].into_iter().filter(|nan| !nan || f == F32) {
        let tail = format!("{}{}.{ty}", if ftz { ".ftz" } else { "" }, if nan { ".NaN" } else { "" });
        for (op, largest) in [("min", false), ("max", true)] {
            let mut row = how.row(&format!("{op}{tail}"), 2);
            if f == F32 {
                // "If both inputs are NaN, the result is canonical NaN."
                row.check = Check::Bits;
            }
            rows.push(row.gives(|v| extreme(f, f.flush(v[0], ftz), f.flush(v[1], ftz), largest, nan)));
        }
    }
}

/// The smaller or larger of two numbers, −0 below +0; of a number and NaN, the number.
pub fn extreme(f: Format, a: u64, b: u64, largest: bool, nan: bool) -> u64 {
    let sign = 1u64 << (f.bits() - 1);
    // The order of bits as signed magnitudes is that of numbers.
    let order = |v: u64| if v & sign != 0 { -i128::from(v & !sign) - 1 } else { i128::from(v) };
    match (f.is_nan(a), f.is_nan(b)) {
        (true, true) => f.nan(),
        (true, false) | (false, true) if nan => f.nan(),
        (true, false) => b,
        (false, true) => a,
        _ if (order(a) > order(b)) == largest => a,
        _ => b,
    }
}

/// Inputs where approximations are defined to a tolerance: moderate numbers of one sign or both.
fn moderate(f: Format, negative: bool) -> Vec<u64> {
    let mut random = Random::new(9);
    let number = |random: &mut Random| {
        let size = (random.below(4000) as f64 + 1.0) / 512.0;
        if negative && random.below(2) == 0 { -size } else { size }
    };
    (0..128).map(|_| encode(&decode(number(&mut random).to_bits(), F64), f, Mode::Nearest)).collect()
}

fn approximations(rows: &mut Vec<Row>) {
    // Relative and absolute error bounds, from the manual's table or wider.
    let functions: [(&str, bool, f64, f64, Function); 8] = [
        ("rcp", true, 2.5e-7, 0.0, |x| 1.0 / x),
        ("sqrt", false, 2.5e-7, 0.0, f64::sqrt),
        ("rsqrt", false, 4e-7, 0.0, |x| 1.0 / x.sqrt()),
        ("ex2", true, 4e-7, 0.0, f64::exp2),
        ("lg2", false, 4e-7, 1e-6, f64::log2),
        ("sin", true, 0.0, 2e-6, f64::sin),
        ("cos", true, 0.0, 2e-6, f64::cos),
        ("tanh", true, 5e-4, 0.0, f64::tanh),
    ];
    let number = |v: u64| decode(v, F32).to_f64();
    let bits = |value: f64, f: Format| encode(&decode(value.to_bits(), F64), f, Mode::Nearest);
    for (op, negative, relative, absolute, f) in functions {
        for ftz in ["", ".ftz"].into_iter().filter(|ftz| op != "tanh" || ftz.is_empty()) {
            let form = format!("{op}.approx{ftz}.f32");
            let row = Row::new(&form, &[W], &[W], singles(&moderate(F32, negative)));
            let row = row.card_only(F32, relative, absolute);
            rows.push(row.gives(|v| bits(f(number(v[0])), F32)));
        }
    }
    for form in ["div.approx.f32", "div.approx.ftz.f32", "div.full.f32", "div.full.ftz.f32"] {
        let values = moderate(F32, true);
        let inputs = pairs(&values[..24], &values[24..48]);
        let row = Row::new(form, &[W], &[W; 2], inputs).card_only(F32, 2.5e-7, 0.0);
        rows.push(row.gives(|v| bits(number(v[0]) / number(v[1]), F32)));
    }
    let double: [(&str, bool, Function); 3] = [
        ("rcp.approx.ftz.f64", true, |x| 1.0 / x),
        ("rsqrt.approx.ftz.f64", false, |x| 1.0 / x.sqrt()),
        ("rsqrt.approx.f64", false, |x| 1.0 / x.sqrt()),
    ];
    for (form, negative, f) in double {
        let row = Row::new(form, &[X], &[X], singles(&moderate(F64, negative)));
        rows.push(row.card_only(F64, 1e-6, 0.0).gives(|v| f(f64::from_bits(v[0])).to_bits()));
    }
    special_values(rows);
}

/// What the manual's tables say of zeros, infinities and NaN: exact even for approximations.
fn special_values(rows: &mut Vec<Row>) {
    let (inf, nan, sign, one) = (F32.infinity(), F32.nan(), 1u64 << 31, F32.one());
    let tables: [(&str, Vec<(u64, u64)>); 8] = [
        ("rcp", vec![(0, inf), (sign, inf | sign), (inf, 0), (inf | sign, sign), (nan, nan)]),
        ("sqrt", vec![(0, 0), (sign, sign), (inf, inf), (inf | sign, nan), (one | sign, nan), (nan, nan)]),
        (
            "rsqrt",
            vec![(0, inf), (sign, inf | sign), (inf, 0), (inf | sign, nan), (one | sign, nan), (nan, nan)],
        ),
        ("ex2", vec![(0, one), (sign, one), (inf, inf), (inf | sign, 0), (nan, nan)]),
        (
            "lg2",
            vec![
                (0, inf | sign),
                (sign, inf | sign),
                (inf, inf),
                (one | sign, nan),
                (inf | sign, nan),
                (nan, nan),
            ],
        ),
        ("sin", vec![(0, 0), (sign, sign), (inf, nan), (inf | sign, nan), (nan, nan)]),
        ("cos", vec![(0, one), (sign, one), (inf, nan), (inf | sign, nan), (nan, nan)]),
        ("tanh", vec![(0, 0), (sign, sign), (inf, one), (inf | sign, one | sign), (nan, nan)]),
    ];
    for (op, table) in tables {
        let form = format!("{op}.approx.f32");
        let inputs = table.iter().map(|(input, _)| vec![*input]).collect();
        let row = Row::new(&form, &[W], &[W], inputs).float(F32);
        rows.push(row.gives(|v| table.iter().find(|(input, _)| *input == v[0]).unwrap().1));
        // `.ftz` takes subnormal inputs for zeros.
        if op != "tanh" {
            let row = Row::new(&format!("{op}.approx.ftz.f32"), &[W], &[W], vec![vec![1], vec![sign | 1]]);
            rows.push(row.gives(|v| table.iter().find(|(input, _)| *input == v[0] & sign).unwrap().1));
        }
    }
}
