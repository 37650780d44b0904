//! Numeric filters of Jinja, with Python's rules for parsing and rounding.

use super::arguments::bind;
use super::bounds::Budget;
use super::cuts::stripped;
use super::operators::arithmetic;
use super::origin::Text;
use super::types::{as_integer, invalid, type_name};
use minijinja::value::Value;
use minijinja::{Error, ErrorKind, State};

type Outcome = Result<Value, Error>;

/// Parses an integer like Python's `int`.
pub(super) fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = stripped(text, "strip", None);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        2 => ["0b", "0B"],
        8 => ["0o", "0O"],
        16 => ["0x", "0X"],
        _ => ["", ""],
    };
    let digits = prefix.iter().find_map(|prefix| digits.strip_prefix(prefix)).unwrap_or(digits);
    let spaced = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    if spaced || digits.starts_with(['+', '-']) {
        return None;
    }
    i128::from_str_radix(&digits.replace('_', ""), base).ok().map(|value| sign * value)
}

/// Parses a number like Python's `float`.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    let text = stripped(text, "strip", None);
    let is_digit = |character: Option<&u8>| character.is_some_and(u8::is_ascii_digit);
    let between_digits = |(at, _): (usize, &str)| {
        let bytes = text.as_bytes();
        is_digit(at.checked_sub(1).and_then(|before| bytes.get(before))) && is_digit(bytes.get(at + 1))
    };
    if !text.match_indices('_').all(between_digits) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// Jinja's `int(default=0, base=10)`.
pub(super) fn int(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("int", args, ["value", "default", "base"])?;
    let value = bound.required(0)?;
    let marks = Budget::of(state)?.marks;
    let default = || bound.value(1).cloned().unwrap_or_else(|| Value::from(0));
    let whole = |float: f64| {
        let fits = float.is_finite() && float.abs() < 1e38;
        fits.then(|| Value::from(float.trunc() as i128))
    };
    let base =
        bound.integer(2)?.and_then(|base| u32::try_from(base).ok()).filter(|base| (2..=36).contains(base));
    let base = base
        .or(bound.some(2).is_none().then_some(10))
        .ok_or_else(|| invalid("int() expected a base from 2 to 36"))?;
    let found = match marks.plain(value) {
        Some(text) => match parse_int(&text, base) {
            Some(integer) => Some(Value::from(integer)),
            None => parse_float(&text).and_then(whole),
        },
        None => match as_integer(value) {
            Some(integer) => Some(Value::from(integer)),
            None if value.is_number() => f64::try_from(value.clone()).ok().and_then(whole),
            None if value.is_undefined() => return Err(ErrorKind::UndefinedError.into()),
            None => None,
        },
    };
    Ok(found.unwrap_or_else(default))
}

/// Jinja's `float(default=0.0)`.
pub(super) fn float(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("float", args, ["value", "default"])?;
    let value = bound.required(0)?;
    let found = match Budget::of(state)?.marks.plain(value) {
        Some(text) => parse_float(&text),
        None if value.is_undefined() => return Err(ErrorKind::UndefinedError.into()),
        None => as_integer(value).map(|integer| integer as f64).or_else(|| f64::try_from(value.clone()).ok()),
    };
    Ok(found.map_or_else(|| bound.value(1).cloned().unwrap_or_else(|| Value::from(0.0)), Value::from))
}

pub(super) fn abs(_state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("abs", args, ["value"])?;
    let value = bound.required(0)?;
    let negative = as_integer(value)
        .map_or_else(|| f64::try_from(value.clone()).is_ok_and(f64::is_sign_negative), |value| value < 0);
    let sign = Value::from(if negative { -1 } else { 1 });
    arithmetic("abs", (value, &sign), i128::checked_mul, |a, b| a * b)
}

/// Jinja's `round(precision=0, method='common')`, which returns a float.
pub(super) fn round(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("round", args, ["value", "precision", "method"])?;
    let value = bound.required(0)?;
    let marks = Budget::of(state)?.marks;
    let precision = bound.integer(1)?.unwrap_or(0).clamp(-400, 400) as i32;
    let number =
        as_integer(value).map(|integer| integer as f64).or_else(|| f64::try_from(value.clone()).ok());
    let number =
        number.ok_or_else(|| invalid(format!("round() expected a number, found {}", type_name(value))))?;
    let scale = 10f64.powi(precision);
    let method = bound.text(marks, 2)?;
    Ok(match method.as_ref().map(Text::as_str) {
        Some("ceil") => Value::from((number * scale).ceil() / scale),
        Some("floor") => Value::from((number * scale).floor() / scale),
        None | Some("common") => match as_integer(value) {
            Some(integer) => Value::from(rounded_integer(integer, precision)),
            None => Value::from(rounded(number, precision)),
        },
        Some(other) => {
            return Err(invalid(format!("round() expected common, ceil or floor, found `{other}`")));
        }
    })
}

/// Rounds to a multiple of a power of ten for a negative precision, halves to even.
pub(super) fn rounded_integer(integer: i128, precision: i32) -> i128 {
    let Some(scale) = 10i128.checked_pow(precision.min(0).unsigned_abs()) else { return 0 };
    let (quotient, rest) = (integer.div_euclid(scale), integer.rem_euclid(scale));
    let up = rest * 2 > scale || (rest * 2 == scale && quotient % 2 != 0);
    (quotient + i128::from(up)).saturating_mul(scale)
}

/// Rounds to nearest by the exact binary value, halves to even, like Python's `round`.
pub(super) fn rounded(number: f64, precision: i32) -> f64 {
    match usize::try_from(precision) {
        Ok(digits) => format!("{number:.digits$}").parse().unwrap_or(number),
        Err(_) => {
            let scale = 10f64.powi(-precision);
            (number / scale).round_ties_even() * scale
        }
    }
}

/// Jinja's `filesizeformat(binary=false)`.
pub(super) fn file_size(state: &mut State<'_, '_>, args: &[Value]) -> Outcome {
    let bound = bind("filesizeformat", args, ["value", "binary"])?;
    let bytes = float(state, args.get(..1).unwrap_or_default())?;
    let bytes = f64::try_from(bytes).unwrap_or(0.0);
    let (base, units) = if bound.is_true(1) {
        (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"])
    } else {
        (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"])
    };
    let text = if bytes == 1.0 {
        "1 Byte".to_owned()
    } else if bytes < base {
        format!("{} Bytes", bytes.trunc())
    } else {
        let power = units.iter().enumerate().find(|(index, _)| bytes < f64::powi(base, *index as i32 + 2));
        let (index, unit) = power.map_or((units.len() - 1, "YB"), |(index, unit)| (index, *unit));
        format!("{:.1} {unit}", bytes / f64::powi(base, index as i32 + 1))
    };
    Ok(Value::from_safe_string(text))
}
