//! Callable values: macros with variadic arguments (`varargs`, `kwargs`), `cycler` and `joiner`.

use super::arguments::split;
use super::types::invalid;
use minijinja::value::{Kwargs, Object, ObjectRepr, Rest, Tuple, Value};
use minijinja::{Environment, Error, ErrorKind, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Function that makes a macro variadic. Not an identifier, so templates cannot call it.
pub(super) const FLEXIBLE: &str = "flexible macro";
/// Names of the variadic arguments in a macro's body; `program.rs` adds them to its parameters.
pub(super) const EXTRA: [&str; 2] = ["varargs", "kwargs"];

pub(super) fn install(env: &mut Environment<'_>) {
    env.add_function(FLEXIBLE, |inner: Value| -> Result<Value, Error> {
        let names: Vec<String> = inner
            .get_attr("arguments")?
            .try_iter()?
            .filter_map(|name| Some(name.as_str()?.to_owned()))
            .collect();
        let parameters = names.into_iter().filter(|name| !EXTRA.contains(&name.as_str())).collect();
        Ok(Value::from_object(FlexibleMacro { inner, parameters }))
    });
    env.add_function("cycler", |items: Rest<Value>| -> Result<Value, Error> {
        if items.is_empty() {
            return Err(invalid("cycler() expected at least one item"));
        }
        Ok(Value::from_object(Cycler { items: items.to_vec(), next: AtomicUsize::new(0) }))
    });
    env.add_function("joiner", |separator: Option<Value>| {
        let separator = separator.unwrap_or_else(|| Value::from_safe_string(", ".to_owned()));
        Value::from_object(Joiner { separator, calls: AtomicUsize::new(0) })
    });
}

/// A macro with `varargs` or `kwargs` in its body.
#[derive(Debug)]
struct FlexibleMacro {
    inner: Value,
    parameters: Vec<String>,
}

impl Object for FlexibleMacro {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "arguments" => Some(self.parameters.iter().cloned().collect()),
            "catch_varargs" | "catch_kwargs" => Some(Value::from(true)),
            name => self.inner.get_attr(name).ok(),
        }
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let (mut positional, named) = split(args)?;
        let further = positional.split_off(self.parameters.len().min(positional.len()));
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for name in named.args() {
            let pair = (name.to_owned(), named.peek::<Value>(name)?);
            let place = if name == "caller" || self.parameters.iter().any(|parameter| parameter == name) {
                &mut known
            } else {
                &mut unknown
            };
            place.push(pair);
        }
        known.push(("varargs".to_owned(), Value::from(Tuple::from(further))));
        known.push(("kwargs".to_owned(), Value::from_pairs(unknown)));
        positional.push(Value::from(Kwargs::from_iter(known)));
        self.inner.call(state, &positional)
    }
}

/// Jinja's `cycler`: returns the items in rotation.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    next: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        self.items
            .get(self.next.load(Ordering::Relaxed) % self.items.len().max(1))
            .cloned()
            .unwrap_or_default()
    }
}

impl Object for Cycler {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        (key.as_str() == Some("current")).then(|| self.current())
    }

    fn call_method(
        self: &Arc<Self>,
        _state: &mut State<'_, '_>,
        method: &str,
        _args: &[Value],
    ) -> Result<Value, Error> {
        match method {
            "next" => {
                let current = self.current();
                self.next.fetch_add(1, Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.next.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// Jinja's `joiner`: empty at the first call, then the separator.
#[derive(Debug)]
struct Joiner {
    separator: Value,
    calls: AtomicUsize,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &mut State<'_, '_>, _args: &[Value]) -> Result<Value, Error> {
        let first = self.calls.fetch_add(1, Ordering::Relaxed) == 0;
        Ok(if first { Value::from_safe_string(String::new()) } else { self.separator.clone() })
    }
}
