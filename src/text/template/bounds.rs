//! What a template may use: a budget of bytes, items, depth and time, and the functions that ask it.
//!
//! The engine counts steps by itself, but a step may double a string, so that a few hundred steps exhaust
//! any memory. The functions here stand in for the operators that make larger values, and measure every
//! other value as soon as it exists; `program.rs` puts their calls into the compiled template. Lists and
//! maps are also held to a depth, because they are dropped and printed recursively.

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use std::fmt::{self, Write};
use std::time::{Duration, Instant};

/// Steps of the engine in one rendering.
pub(super) const STEPS_MAX: u64 = 4_000_000;
/// Bytes of strings that one rendering may make, all together.
const BYTES_MAX: usize = 128 << 20;
/// The longest string, in bytes.
const STRING_BYTES_MAX: usize = 16 << 20;
/// Items looked at when values are measured.
const VISITS_MAX: usize = 8_000_000;
/// Deepest nesting of lists and maps.
const DEPTH_MAX: usize = 64;
/// Longest time.
const TIME_MAX: Duration = Duration::from_secs(5);
/// The functions that the rewritten program calls; no template can spell these names.
pub(super) const ADD: &str = "a + b";
pub(super) const MULTIPLY: &str = "a * b";
pub(super) const CONCAT: &str = "a ~ b";
pub(super) const MEASURE: &str = "measure value";
pub(super) const STORE: &str = "measure and store";
pub(super) const SPEND: &str = "spend bytes";
pub(super) const ONE: &str = "__one";

/// What a rendering may still use.
pub(super) struct Budget {
    bytes: usize,
    visits: usize,
    ticks: u32,
    started: Instant,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { bytes: BYTES_MAX, visits: VISITS_MAX, ticks: 0, started: Instant::now() }
    }
}

impl Budget {
    /// The budget of this rendering.
    pub(super) fn of<'s>(state: &'s mut State<'_, '_>) -> Result<&'s mut Budget, Error> {
        let budget = state.get_or_insert_extension_with(Budget::default);
        budget.ticks = budget.ticks.wrapping_add(1);
        if budget.ticks.is_multiple_of(8) && budget.started.elapsed() > TIME_MAX {
            return Err(limit(format!("more than {} s", TIME_MAX.as_secs())));
        }
        Ok(budget)
    }

    /// Pays for a string of this length.
    pub(super) fn spend_bytes(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes > STRING_BYTES_MAX {
            return Err(limit(format!("a string longer than {STRING_BYTES_MAX} bytes")));
        }
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.ok_or_else(|| limit(format!("more than {BYTES_MAX} bytes of strings")))?;
        Ok(())
    }

    /// Pays for looking at this many items.
    pub(super) fn spend_visits(&mut self, visits: usize) -> Result<(), Error> {
        let left = self.visits.checked_sub(visits);
        self.visits = left.ok_or_else(|| limit(format!("more than {VISITS_MAX} items in lists")))?;
        Ok(())
    }

    /// The value as text, paid for while it is written.
    pub(super) fn display(&mut self, value: &Value) -> Result<String, Error> {
        if let Some(text) = value.as_str() {
            self.spend_bytes(text.len())?;
            return Ok(text.to_owned());
        }
        self.measure(value, 0, Namespaces::Allowed)?;
        let mut bounded = Bounded { text: String::new(), left: self.bytes.min(STRING_BYTES_MAX) };
        let written = write!(bounded, "{value}");
        self.spend_bytes(bounded.text.len())?;
        written.map_err(|_| limit(format!("a string longer than {STRING_BYTES_MAX} bytes")))?;
        Ok(bounded.text)
    }

    /// Looks at everything inside a value: pays for the items, refuses what is nested too deep.
    fn measure(&mut self, value: &Value, depth: usize, namespaces: Namespaces) -> Result<(), Error> {
        self.spend_visits(1)?;
        if depth > DEPTH_MAX {
            return Err(limit(format!("lists nested deeper than {DEPTH_MAX} levels")));
        }
        match value.kind() {
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {}
            _ => return Ok(()),
        }
        if namespaces == Namespaces::Refused && is_namespace(value) {
            return Err(limit("a namespace within a namespace".to_owned()));
        }
        if let Some(pairs) = value.as_object().and_then(|object| object.try_iter_pairs()) {
            for (key, item) in pairs {
                self.measure(&key, depth + 1, namespaces)?;
                self.measure(&item, depth + 1, namespaces)?;
            }
        } else if let Some(items) = value.as_object().and_then(|object| object.try_iter()) {
            for item in items {
                self.measure(&item, depth + 1, namespaces)?;
            }
        }
        Ok(())
    }
}

/// Whether a measured value may hold namespaces. One that is put into a namespace may not: namespaces are
/// the only values that can be changed, so this is how a value could come to contain itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespaces {
    Allowed,
    Refused,
}

fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// A string that takes no more than it may.
struct Bounded {
    text: String,
    left: usize,
}

impl Write for Bounded {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        self.left = self.left.checked_sub(piece.len()).ok_or(fmt::Error)?;
        self.text.push_str(piece);
        Ok(())
    }
}

/// What marks the errors made here.
#[derive(Debug, thiserror::Error)]
#[error("limit")]
struct Limit;

/// An error that says which limit was met.
pub(super) fn limit(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, what).with_source(Limit)
}

/// Whether an error came from [`limit`].
pub(super) fn is_limit(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<Limit>())
}

/// Puts the guarding functions into an environment.
pub(super) fn install(env: &mut Environment<'_>) {
    env.set_fuel(Some(STEPS_MAX));
    env.add_global(ONE, 1);
    env.add_function(ADD, add);
    env.add_function(MULTIPLY, multiply);
    env.add_function(CONCAT, concat);
    env.add_function(MEASURE, |state: &mut State<'_, '_>, value: Value| -> Result<Value, Error> {
        let budget = Budget::of(state)?;
        match value.as_str() {
            Some(text) => budget.spend_bytes(text.len())?,
            None => budget.measure(&value, 0, Namespaces::Allowed)?,
        }
        Ok(value)
    });
    env.add_function(STORE, |state: &mut State<'_, '_>, value: Value| -> Result<Value, Error> {
        Budget::of(state)?.measure(&value, 0, Namespaces::Refused)?;
        Ok(value)
    });
    env.add_function(SPEND, |state: &mut State<'_, '_>, bytes: usize| Budget::of(state)?.spend_bytes(bytes));
}

fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn add(state: &mut State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    if let (Some(first), Some(second)) = (left.as_str(), right.as_str()) {
        Budget::of(state)?.spend_bytes(first.len() + second.len())?;
        return Ok(Value::from([first, second].concat()));
    }
    if is_sequence(&left) && is_sequence(&right) {
        let items: Vec<Value> =
            left.try_iter()?.checked().chain(right.try_iter()?.checked()).collect::<Result<_, _>>()?;
        let sum = Value::from(items);
        Budget::of(state)?.measure(&sum, 0, Namespaces::Allowed)?;
        return Ok(sum);
    }
    arithmetic("+", (&left, &right), i64::checked_add, |a, b| a + b)
}

fn multiply(state: &mut State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    let (value, times) = if right.is_number() { (&left, &right) } else { (&right, &left) };
    let times_or_none = || times.as_i64().map(|times| usize::try_from(times).unwrap_or(0));
    match (value.as_str(), times_or_none()) {
        (Some(text), Some(times)) => {
            Budget::of(state)?.spend_bytes(text.len().saturating_mul(times))?;
            Ok(Value::from(text.repeat(times)))
        }
        (None, Some(times)) if is_sequence(value) => {
            let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
            Budget::of(state)?.spend_visits(items.len().saturating_mul(times))?;
            let all = std::iter::repeat_n(&items, times).flatten().cloned();
            Ok(Value::from(all.collect::<Vec<_>>()))
        }
        _ => arithmetic("*", (&left, &right), i64::checked_mul, |a, b| a * b),
    }
}

fn concat(state: &mut State<'_, '_>, left: Value, right: Value) -> Result<Value, Error> {
    let budget = Budget::of(state)?;
    let text = budget.display(&left)? + &budget.display(&right)?;
    budget.spend_bytes(text.len())?;
    Ok(Value::from(text))
}

/// Numbers as in Python: booleans count as 0 and 1, and one float makes the result a float.
fn arithmetic(
    operator: &str,
    (left, right): (&Value, &Value),
    integers: fn(i64, i64) -> Option<i64>,
    floats: fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let refused = || {
        let (left, right) = (left.kind(), right.kind());
        let message =
            format!("`{operator}` expected numbers, strings or lists of a kind, found {left} and {right}");
        Error::new(ErrorKind::InvalidOperation, message)
    };
    if let (Ok(first), Ok(second)) = (i64::try_from(left.clone()), i64::try_from(right.clone()))
        && left.is_integer()
        && right.is_integer()
    {
        return integers(first, second).map(Value::from).ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, format!("`{operator}`: the result has more than 64 bits"))
        });
    }
    match (f64::try_from(left.clone()), f64::try_from(right.clone())) {
        (Ok(first), Ok(second)) => Ok(Value::from(floats(first, second))),
        _ => Err(refused()),
    }
}
