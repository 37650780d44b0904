//! Numbers of a schema. llguidance holds bounds as `f64` and integers as `i64`: a number that it would round
//! is replaced by an equal bound that it holds, or refused.

use serde_json::{Map, Number, Value};

use super::types::is_integer;

/// Magnitude up to which every integer is a `f64`.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
/// First integer above the range of `i64`, a `f64`.
const ABOVE: f64 = 9_223_372_036_854_775_808.0;
/// Least integer that llguidance takes as a bound: the second `f64` in the range of `i64`.
const LEAST: f64 = -9_223_372_036_854_774_784.0;
/// Maximum coefficient and exponent of `multipleOf`; remainders have 32 bits.
const DIGITS_MAX: usize = 8;

const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];

/// Checks the numeric keywords of a schema, and replaces the limits of `i64` by bounds that llguidance holds.
///
/// # Errors
/// A number that would be rounded, by its keyword.
pub(super) fn bounds(schema: &mut Map<String, Value>) -> Result<(), String> {
    let is_integer = is_integer(schema);
    for keyword in BOUNDS {
        let Some(Value::Number(number)) = schema.get(keyword) else { continue };
        let (number, value) = (number.clone(), number.as_f64().unwrap_or_default());
        if is_integer && value.abs() > EXACT_MAX {
            schema.shift_remove(keyword);
            if let Some((keyword, bound)) = of_integer(keyword, &number, value)? {
                schema.entry(keyword).or_insert(bound.into());
            }
        } else if value.abs() > EXACT_MAX || rounded(&number) {
            return Err(format!(
                "{keyword}: expected a number of at most 9007199254740992 in magnitude, found {number}"
            ));
        }
    }
    if !is_integer && shares_unit(schema) {
        return Err(
            "exclusiveMinimum, exclusiveMaximum: an integer is not supported next to a fraction of it".into(),
        );
    }
    match schema.get("multipleOf") {
        Some(Value::Number(number)) if !is_short(number) => {
            Err(format!("multipleOf: expected at most {DIGITS_MAX} digits, found {number}"))
        }
        _ => Ok(()),
    }
}

/// Whether an exclusive bound is an integer and the other bound has the same integer part. llguidance accepts
/// the exclusive bound itself then.
fn shares_unit(schema: &Map<String, Value>) -> bool {
    let bound = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
    let (low, high) = (bound("exclusiveMinimum"), bound("exclusiveMaximum"));
    let shares = |exclusive: f64, others: [Option<f64>; 2]| {
        let others = others.into_iter().flatten();
        exclusive >= 0.0
            && exclusive.fract() == 0.0
            && others.into_iter().any(|other| other > exclusive && other.trunc() == exclusive)
    };
    let mirrored = |number: Option<f64>| number.map(|number| -number);
    low.is_some_and(|low| shares(low, [bound("maximum"), high]))
        || high.is_some_and(|high| shares(-high, [mirrored(bound("minimum")), mirrored(low)]))
}

/// A large bound of an integer as llguidance holds it; `None` if no integer of 64 bits is beyond it.
fn of_integer(
    keyword: &'static str,
    number: &Number,
    value: f64,
) -> Result<Option<(&'static str, f64)>, String> {
    match keyword {
        // The largest integer in the grammar is that of `i64`.
        "maximum" | "exclusiveMaximum" if value >= ABOVE => Ok(Some(("exclusiveMaximum", ABOVE))),
        "minimum" if value <= LEAST => Ok(Some((keyword, LEAST))),
        "exclusiveMinimum" if value < LEAST => Ok(Some(("minimum", LEAST))),
        "minimum" | "maximum" if value.abs() < ABOVE && !rounded(number) => Ok(Some((keyword, value))),
        _ => Err(format!(
            "{keyword}: expected an integer of at most 9007199254740992 in magnitude, or a limit of 64 bits, \
             found {number}"
        )),
    }
}

/// Whether a number is an integer that `f64` cannot represent.
pub(super) fn rounded(number: &Number) -> bool {
    let held = |whole: i128| whole as f64 as i128 == whole;
    let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    whole.is_some_and(|whole| !held(whole))
}

/// Whether llguidance computes remainders by a number without overflow.
fn is_short(number: &Number) -> bool {
    let text = number.as_f64().unwrap_or_default().abs().to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    whole.trim_start_matches('0').len() + fraction.len() <= DIGITS_MAX
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn made(schema: &Value) -> Result<Value, String> {
        let mut schema = schema.as_object().cloned().unwrap();
        bounds(&mut schema).map(|()| schema.into())
    }

    #[test]
    fn the_limits_of_64_bits_are_bounds_and_what_would_be_rounded_is_refused() {
        let integer = |keyword: &str, number: Value| json!({"type": "integer", keyword: number});
        for (schema, expected) in [
            (integer("maximum", i64::MAX.into()), integer("exclusiveMaximum", ABOVE.into())),
            (integer("maximum", u64::MAX.into()), integer("exclusiveMaximum", ABOVE.into())),
            (integer("minimum", i64::MIN.into()), integer("minimum", LEAST.into())),
            (integer("exclusiveMinimum", i64::MIN.into()), integer("minimum", LEAST.into())),
            (integer("maximum", 5.into()), integer("maximum", 5.into())),
            (
                integer("minimum", json!(9_007_199_254_740_994_u64)),
                integer("minimum", json!(9_007_199_254_740_994.0)),
            ),
            (json!({"minimum": 0.5}), json!({"minimum": 0.5})),
            (json!({"exclusiveMinimum": 0, "maximum": 1}), json!({"exclusiveMinimum": 0, "maximum": 1})),
            (json!({"multipleOf": 0.0001}), json!({"multipleOf": 0.0001})),
        ] {
            assert_eq!(made(&schema), Ok(expected), "{schema}");
        }
        for schema in [
            integer("maximum", json!(9_007_199_254_740_993_u64)),
            integer("exclusiveMaximum", json!(9_007_199_254_740_994_u64)),
            integer("minimum", u64::MAX.into()),
            integer("maximum", i64::MIN.into()),
            json!({"maximum": i64::MAX}),
            json!({"exclusiveMinimum": 1e300}),
            json!({"exclusiveMinimum": 0, "maximum": 0.5}),
            json!({"exclusiveMaximum": -1, "exclusiveMinimum": -1.5}),
            json!({"multipleOf": 1e-9}),
            json!({"multipleOf": 1_000_000_007}),
        ] {
            let error = made(&schema).unwrap_err();
            assert!(schema.as_object().unwrap().keys().any(|keyword| error.starts_with(keyword)), "{error}");
        }
    }
}
