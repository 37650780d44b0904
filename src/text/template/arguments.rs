//! Binding of call arguments by position or name, as in Python.

use super::origin::{Marks, Text};
use super::types::{as_integer, invalid, type_name};
use minijinja::value::{Kwargs, Value, ValueOrKwargs};
use minijinja::{Error, ErrorKind};

/// Arguments of a variadic function, as values.
pub(super) fn plain(args: &[ValueOrKwargs]) -> Vec<Value> {
    args.iter().map(|arg| arg.clone().into_value()).collect()
}

/// Separates positional and named arguments.
pub(super) fn split(args: &[Value]) -> Result<(Vec<Value>, Kwargs), Error> {
    match args.split_last() {
        Some((last, before)) if last.is_kwargs() => Ok((before.to_vec(), Kwargs::try_from(last.clone())?)),
        _ => Ok((args.to_vec(), Kwargs::from_iter(Vec::<(String, Value)>::new()))),
    }
}

/// Binds arguments to parameters; absent ones are `None`.
pub(super) fn bind<const N: usize>(
    function: &str,
    args: &[Value],
    parameters: [&str; N],
) -> Result<Bound<N>, Error> {
    let (positional, named) = split(args)?;
    if positional.len() > N {
        let found = positional.len();
        let message = format!("{function}() expected at most {N} arguments, found {found}");
        return Err(Error::new(ErrorKind::TooManyArguments, message));
    }
    let mut values: [Option<Value>; N] = std::array::from_fn(|_| None);
    for (value, given) in values.iter_mut().zip(positional) {
        *value = Some(given);
    }
    for name in named.args() {
        let at = parameters.iter().position(|parameter| *parameter == name);
        match at.and_then(|at| values.get_mut(at)) {
            Some(value @ None) => *value = Some(named.peek(name)?),
            Some(Some(_)) => return Err(invalid(format!("{function}() has two values for `{name}`"))),
            None => return Err(invalid(format!("{function}() has no argument `{name}`"))),
        }
    }
    Ok(Bound { function: function.to_owned(), values, parameters: parameters.map(str::to_owned) })
}

/// Bound arguments.
pub(super) struct Bound<const N: usize> {
    function: String,
    parameters: [String; N],
    values: [Option<Value>; N],
}

impl<const N: usize> Bound<N> {
    /// The argument; `None` if absent.
    pub(super) fn value(&self, at: usize) -> Option<&Value> {
        self.values.get(at).and_then(Option::as_ref)
    }

    /// The argument; `None` if absent or Python's `None`.
    pub(super) fn some(&self, at: usize) -> Option<&Value> {
        self.value(at).filter(|value| !value.is_none())
    }

    /// A required argument.
    pub(super) fn required(&self, at: usize) -> Result<&Value, Error> {
        self.value(at).ok_or_else(|| self.wrong(at, "a value", "none"))
    }

    /// A string; `None` if absent.
    pub(super) fn text(&self, marks: Marks, at: usize) -> Result<Option<Text>, Error> {
        let text =
            |value: &Value| marks.text(value).ok_or_else(|| self.wrong(at, "a string", type_name(value)));
        self.some(at).map(text).transpose()
    }

    /// A required string.
    pub(super) fn required_text(&self, marks: Marks, at: usize) -> Result<Text, Error> {
        self.text(marks, at)?.ok_or_else(|| self.wrong(at, "a string", "none"))
    }

    /// An integer; `None` if absent.
    pub(super) fn integer(&self, at: usize) -> Result<Option<i128>, Error> {
        let integer =
            |value: &Value| as_integer(value).ok_or_else(|| self.wrong(at, "an integer", type_name(value)));
        self.some(at).map(integer).transpose()
    }

    /// A required integer.
    pub(super) fn required_integer(&self, at: usize) -> Result<i128, Error> {
        self.integer(at)?.ok_or_else(|| self.wrong(at, "an integer", "none"))
    }

    /// Whether the argument is present and true.
    pub(super) fn is_true(&self, at: usize) -> bool {
        self.value(at).is_some_and(Value::is_true)
    }

    fn wrong(&self, at: usize, expected: &str, found: &str) -> Error {
        let (function, name) = (&self.function, self.parameters.get(at).map_or("", String::as_str));
        invalid(format!("{function}() expected {expected} for `{name}`, found {found}"))
    }
}
