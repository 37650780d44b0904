//! Resource limits for templates: a budget of bytes, items, depth and time, with the functions that enforce
//! it.
//!
//! The engine counts steps itself, but one step may double a string, so a few hundred steps can exhaust
//! memory. Functions that create larger values (`operators.rs`, `filters.rs`, `strings.rs`) charge the budget
//! first. Every other value is measured when it is created; `program.rs` inserts those calls into the
//! compiled template. Lists and maps have a depth limit, because dropping them is recursive.

use super::origin::Marks;
use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use std::time::{Duration, Instant};

/// Maximum number of engine steps in one rendering.
pub(super) const STEPS_MAX: u64 = 4_000_000;
/// Maximum total size in bytes of the strings created in one rendering.
const BYTES_MAX: usize = 128 << 20;
/// Maximum length of a string in bytes.
const STRING_BYTES_MAX: usize = 16 << 20;
/// Maximum number of items visited when values are measured.
const VISITS_MAX: usize = 8_000_000;
/// Maximum nesting of lists and maps.
const DEPTH_MAX: usize = 64;
/// Maximum duration of one rendering.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Functions called by the rewritten program. Most names are not identifiers, so templates cannot call them.
pub(super) const MEASURE: &str = "measure value";
pub(super) const STORE: &str = "measure and store";
pub(super) const SPEND: &str = "spend bytes";
pub(super) const START: &str = "start";
pub(super) const ONE: &str = "__one";

/// Remaining resources of a rendering.
pub(super) struct Budget {
    /// Marks around user text. Not a resource, but needed wherever strings are created.
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
    /// The budget of this rendering. Checks the time limit.
    pub(super) fn of<'s>(state: &'s mut State<'_, '_>) -> Result<&'s mut Budget, Error> {
        let budget = state.get_or_insert_extension_with(Budget::default);
        budget.ticks = budget.ticks.wrapping_add(1);
        if budget.ticks.is_multiple_of(8) && budget.started.elapsed() > TIME_MAX {
            return Err(limit(format!("more than {} s", TIME_MAX.as_secs())));
        }
        Ok(budget)
    }

    /// Charges a string of this length.
    pub(super) fn spend_bytes(&mut self, bytes: usize) -> Result<(), Error> {
        if bytes > STRING_BYTES_MAX {
            return Err(limit(format!("a string longer than {STRING_BYTES_MAX} bytes")));
        }
        let left = self.bytes.checked_sub(bytes);
        self.bytes = left.ok_or_else(|| limit(format!("more than {BYTES_MAX} bytes of strings")))?;
        Ok(())
    }

    /// Checks a string under construction against the limits without charging it.
    pub(super) fn fits(&self, bytes: usize) -> Result<(), Error> {
        if bytes > STRING_BYTES_MAX.min(self.bytes) {
            return Err(limit(format!("a string longer than {STRING_BYTES_MAX} bytes")));
        }
        Ok(())
    }

    /// Charges a number of visited items.
    pub(super) fn spend_visits(&mut self, visits: usize) -> Result<(), Error> {
        let left = self.visits.checked_sub(visits);
        self.visits = left.ok_or_else(|| limit(format!("more than {VISITS_MAX} items in lists")))?;
        Ok(())
    }

    /// Charges the items in a value.
    pub(super) fn measure(&mut self, value: &Value) -> Result<(), Error> {
        self.visit(value, 0, Namespaces::Allowed)
    }

    /// Visits everything in a value: charges the items and rejects too deep nesting.
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

/// Whether a measured value may contain namespaces. A value stored in a namespace may not: namespaces are the
/// only mutable values, so a value could otherwise contain itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespaces {
    Allowed,
    Refused,
}

fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// Source of limit errors, to identify them.
#[derive(Debug, thiserror::Error)]
#[error("limit")]
struct Limit;

/// Error for an exceeded limit.
pub(super) fn limit(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, what).with_source(Limit)
}

/// Whether an error was created by [`limit`].
pub(super) fn is_limit(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|source| source.is::<Limit>())
}

/// Adds the limiting functions to an environment.
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
        // Captured text that is entirely a user's becomes a plain string again.
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
