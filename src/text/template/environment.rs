//! Template environment: the functions and filters that `transformers` provides to chat templates.

use super::bounds::{self, Budget};
use super::origin::{Marks, Text};
use super::{collections, filters, flexible, items, methods, operators, predicates, repr, strftime};
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use std::time::SystemTime;

/// Environment for one rendering.
pub(super) fn new(now: Option<SystemTime>, marks: Marks) -> Environment<'static> {
    let mut env = Environment::new();
    bounds::install(&mut env, marks);
    operators::install(&mut env);
    filters::install(&mut env);
    collections::install(&mut env);
    predicates::install(&mut env);
    flexible::install(&mut env);
    env.set_formatter(|out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value| {
        let budget = Budget::of(state)?;
        let text = repr::display(budget, value)?;
        out.write_str(&budget.marks.write(&text)).map_err(Error::from)
    });
    env.set_unknown_method_callback(methods::call);
    env.remove_global("debug");
    env.add_function("dict", dict);
    env.add_function(
        "raise_exception",
        |state: &mut State<'_, '_>, message: Value| -> Result<Value, Error> {
            let message = repr::display(Budget::of(state)?, &message)?;
            Err(Error::new(ErrorKind::InvalidOperation, message.as_str().to_owned()))
        },
    );
    env.add_function(
        "strftime_now",
        move |state: &mut State<'_, '_>, format: Value| -> Result<Value, Error> {
            let budget = Budget::of(state)?;
            let format = repr::display(budget, &format)?;
            let date = strftime::format(now.unwrap_or_else(SystemTime::now), format.as_str());
            budget.spend_bytes(date.len())?;
            Ok(budget.marks.value(Text::like(&format, date)))
        },
    );
    env
}

/// Python's `dict`: from a dictionary or a list of pairs, and from named arguments.
fn dict(state: &mut State<'_, '_>, from: Option<Value>, named: Kwargs) -> Result<Value, Error> {
    let mut pairs = Vec::new();
    if let Some(from) = from {
        let is_dict = super::types::is_dict(&from);
        for item in items::items(state, &from)? {
            let (key, value) = if is_dict {
                (item.clone(), from.get_item(&item)?)
            } else {
                (item.get_item_by_index(0)?, item.get_item_by_index(1)?)
            };
            pairs.push((key, value));
        }
    }
    for name in named.args() {
        pairs.push((Value::from(name), named.peek(name)?));
    }
    Ok(Value::from_pairs(pairs))
}
