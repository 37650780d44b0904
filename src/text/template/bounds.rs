//! What a template may use: a budget of bytes, items, depth and time, and the functions that ask it.
//!
//! The engine counts steps by itself, but a step may double a string, so that a few hundred steps exhaust
//! any memory. What makes larger values (`operators.rs`, `filters.rs`, `strings.rs`) pays here before it
//! makes them, and every other value is measured as soon as it exists; `program.rs` puts those calls into
//! the compiled template. Lists and maps are also held to a depth, because they are dropped recursively.

use super::origin::Marks;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
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
pub(super) const MEASURE: &str = "measure value";
pub(super) const STORE: &str = "measure and store";
pub(super) const SPEND: &str = "spend bytes";
pub(super) const START: &str = "start";
pub(super) const ONE: &str = "__one";

/// What a rendering may still use.
pub(super) struct Budget {
    /// What stands around the words of users; not spent, but at hand wherever strings are made.
    pub(super) marks: Marks,
    bytes: usize,
    visits: usize,
    ticks: u32,
    started: Instant,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            marks: Marks::default(),
            bytes: BYTES_MAX,
            visits: VISITS_MAX,
            ticks: 0,
            started: Instant::now(),
        }
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

    /// Refuses a string that has grown to this length, before it is paid for.
    pub(super) fn fits(&self, bytes: usize) -> Result<(), Error> {
        if bytes > STRING_BYTES_MAX.min(self.bytes) {
            return Err(limit(format!("a string longer than {STRING_BYTES_MAX} bytes")));
        }
        Ok(())
    }

    /// Pays for looking at this many items.
    pub(super) fn spend_visits(&mut self, visits: usize) -> Result<(), Error> {
        let left = self.visits.checked_sub(visits);
        self.visits = left.ok_or_else(|| limit(format!("more than {VISITS_MAX} items in lists")))?;
        Ok(())
    }

    /// Pays for what a value holds.
    pub(super) fn measure(&mut self, value: &Value) -> Result<(), Error> {
        self.visit(value, 0, Namespaces::Allowed)
    }

    /// Looks at everything inside a value: pays for the items, refuses what is nested too deep.
    fn visit(&mut self, value: &Value, depth: usize, namespaces: Namespaces) -> Result<(), Error> {
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
                self.visit(&key, depth + 1, namespaces)?;
                self.visit(&item, depth + 1, namespaces)?;
            }
        } else if let Some(items) = value.as_object().and_then(|object| object.try_iter()) {
            for item in items {
                self.visit(&item, depth + 1, namespaces)?;
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
pub(super) fn install(env: &mut Environment<'_>, marks: Marks) {
    env.set_fuel(Some(STEPS_MAX));
    env.add_global(ONE, 1);
    env.add_function(START, move |state: &mut State<'_, '_>| {
        state.get_or_insert_extension_with(|| Budget { marks, ..Budget::default() });
    });
    env.add_function(MEASURE, |state: &mut State<'_, '_>, value: Value| -> Result<Value, Error> {
        let budget = Budget::of(state)?;
        match value.as_str() {
            Some(text) => budget.spend_bytes(text.len())?,
            None => budget.measure(&value)?,
        }
        // A captured text that is all a user's is a plain string again.
        if budget.marks.stand_in(&value)
            && let Some(text) = budget.marks.text(&value)
        {
            return Ok(budget.marks.value(text));
        }
        Ok(value)
    });
    env.add_function(STORE, |state: &mut State<'_, '_>, value: Value| -> Result<Value, Error> {
        Budget::of(state)?.visit(&value, 0, Namespaces::Refused)?;
        Ok(value)
    });
    env.add_function(SPEND, |state: &mut State<'_, '_>, bytes: usize| Budget::of(state)?.spend_bytes(bytes));
}
