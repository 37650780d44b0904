//! The JSON of answers with choices, in pieces. Lists of log-probabilities are kept as text, which takes a
//! tenth of the memory of their values; an echoed prompt is shared by its choices.

use std::sync::Arc;

use ottava::TokenId;
use ottava::engine::Scores;
use ottava::text::Vocab;
use serde_json::{Map, Value, json};

use crate::answer::completion_logprobs::{NAMES, Walk, listed};
use crate::answer::json::{Pieces, elements, string};

/// A prompt at the beginning of its choices.
#[derive(Debug)]
pub(crate) struct Echo {
    pub(crate) text: Arc<str>,
    pub(crate) scored: Option<Arc<Scored>>,
}

/// A prompt's tokens with their log-probabilities.
pub(crate) struct Scored {
    vocab: Arc<Vocab>,
    /// Each token with its offset in characters.
    tokens: Vec<(TokenId, usize)>,
    scores: Scores,
}

impl std::fmt::Debug for Scored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scored").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

impl Scored {
    /// The tokens of a text with their scores, which begin at the second.
    pub(crate) fn new(vocab: &Arc<Vocab>, text: &[u8], ids: &[TokenId], scores: Scores) -> Scored {
        let mut walk = Walk::new(text);
        let tokens = ids.iter().map(|&id| (id, walk.pass(vocab, id))).collect();
        Scored { vocab: Arc::clone(vocab), tokens, scores }
    }

    /// The elements of a list of [`NAMES`].
    fn elements(self: Arc<Self>, name: &'static str) -> impl Iterator<Item = String> {
        elements((0..self.tokens.len()).map(move |at| self.element(name, at).to_string()))
    }

    fn element(&self, name: &str, at: usize) -> Value {
        let Some(&token) = self.tokens.get(at) else { return Value::Null };
        // The first token has no log-probability.
        let Some(at) = at.checked_sub(1) else { return listed(name, &self.vocab, token, None) };
        let chosen = -self.scores.nll.get(at).copied().unwrap_or(f64::INFINITY);
        let log_sum = self.scores.log_sums.get(at).copied().unwrap_or_default();
        let best = self.scores.top.get(at).into_iter().flatten();
        let top: Vec<_> = best.map(|&(id, logit)| (id, f64::from(logit) - log_sum)).collect();
        listed(name, &self.vocab, token, Some((chosen, &top)))
    }
}

/// Appends a list's elements, as JSON text, to the text `name` of an object, which may be null so far.
pub(crate) fn extend_text(object: &mut Value, name: &str, more: &Value) {
    let Some(more) = more.as_array() else { return };
    if object.is_null() {
        *object = json!({});
    }
    let place = &mut object[name];
    if place.is_null() {
        *place = "".into();
    }
    let Value::String(text) = place else { return };
    for element in more {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&element.to_string());
    }
}

/// The JSON of an answer or a chunk, with lists of log-probabilities as [`extend_text`] keeps them. `echo`
/// has the echo of each choice.
pub(crate) fn pieces(
    answer: Value,
    echo: impl Fn(usize) -> Option<Arc<Echo>> + Send + Sync + 'static,
) -> Pieces {
    let echo = Arc::new(echo);
    object(answer, move |name, value| match (name, value) {
        ("choices", Value::Array(choices)) => {
            let echo = Arc::clone(&echo);
            let choices = choices.into_iter().enumerate().flat_map(move |(at, found)| {
                let index = found["index"].as_u64().and_then(|index| usize::try_from(index).ok());
                let comma = if at == 0 { "" } else { "," };
                one(comma).chain(choice(found, index.and_then(|index| echo(index))))
            });
            Box::new(one("[").chain(choices).chain(one("]")))
        }
        (_, value) => plain(value),
    })
}

/// A choice after its echo.
fn choice(choice: Value, echo: Option<Arc<Echo>>) -> Pieces {
    object(choice, move |name, value| match (name, value, &echo) {
        ("text", Value::String(text), Some(echo)) => {
            // Both have their quotes.
            let own = Value::from(text).to_string();
            let echoed = string(Arc::clone(&echo.text), own.get(1..own.len() - 1).unwrap_or_default());
            Box::new(echoed)
        }
        ("logprobs", value, echo) => logprobs(value, echo.as_ref().and_then(|echo| echo.scored.clone())),
        (_, value, _) => plain(value),
    })
}

/// The lists of a choice, after those of its echo.
fn logprobs(mut own: Value, echo: Option<Arc<Scored>>) -> Pieces {
    if echo.is_some() {
        let own = own.as_object().cloned().unwrap_or_default();
        let list = |name: &str| own.get(name).cloned().unwrap_or_else(|| "".into());
        let lists: Map<String, Value> = NAMES.iter().map(|name| ((*name).to_owned(), list(name))).collect();
        return lists_of(lists.into(), echo);
    }
    match own.take() {
        Value::Object(lists) => lists_of(lists.into(), None),
        other => plain(other),
    }
}

fn lists_of(lists: Value, echo: Option<Arc<Scored>>) -> Pieces {
    object(lists, move |name, value| match (value, &echo) {
        (Value::String(own), echo) => {
            let name = NAMES.iter().copied().find(|known| *known == name);
            let echoed = echo.clone().zip(name).map(|(echo, name)| echo.elements(name));
            let comma = if echoed.is_some() && !own.is_empty() { "," } else { "" };
            let echoed = echoed.into_iter().flatten();
            Box::new(one("[").chain(echoed).chain(one(comma)).chain(one(&own)).chain(one("]")))
        }
        (value, _) => plain(value),
    })
}

/// An object with values that are written by their names; another value as it is.
fn object(value: Value, write: impl Fn(&str, Value) -> Pieces + Send + 'static) -> Pieces {
    let Value::Object(fields) = value else { return plain(value) };
    let fields = fields.into_iter().enumerate().flat_map(move |(at, (name, value))| {
        let comma = if at == 0 { "" } else { "," };
        let pieces = write(&name, value);
        std::iter::once(format!("{comma}{}:", Value::from(name))).chain(pieces)
    });
    Box::new(one("{").chain(fields).chain(one("}")))
}

fn plain(value: Value) -> Pieces {
    Box::new(std::iter::once_with(move || value.to_string()))
}

fn one(piece: &str) -> std::iter::Once<String> {
    std::iter::once(piece.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(answer: Value, echo: Option<&Arc<Echo>>) -> Value {
        let echo = echo.cloned();
        let text: String = pieces(answer, move |_| echo.clone()).collect();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[test]
    fn lists_kept_as_text_are_lists_again() {
        let mut logprobs = Value::Null;
        extend_text(&mut logprobs, "content", &json!([{"token": "a\"", "logprob": -1.5}]));
        extend_text(&mut logprobs, "content", &json!([1, null]));
        extend_text(&mut logprobs, "absent", &Value::Null);
        let answer = json!({
            "id": "x", "choices": [{"index": 0, "message": {"content": "é"}, "logprobs": logprobs},
            {"index": 1, "logprobs": null}], "usage": {"n": 1},
        });
        let found = joined(answer, None);
        let content = json!([{"token": "a\"", "logprob": -1.5}, 1, null]);
        assert_eq!(found["choices"][0]["logprobs"], json!({"content": content}));
        assert_eq!(found["choices"][0]["message"], json!({"content": "é"}));
        assert_eq!((&found["choices"][1]["logprobs"], &found["usage"]["n"]), (&Value::Null, &1.into()));
        assert_eq!(joined(json!({"choices": []}), None), json!({"choices": []}));
    }

    #[test]
    fn an_echo_comes_before_the_text_of_each_choice() {
        let echo = Arc::new(Echo { text: "say \"é\"".into(), scored: None });
        let choices = json!([{"index": 0, "text": " so\n", "logprobs": null}, {"index": 1, "text": ""}]);
        let found = joined(json!({"choices": choices}), Some(&echo));
        assert_eq!(found["choices"][0], json!({"index": 0, "text": "say \"é\" so\n", "logprobs": null}));
        assert_eq!(found["choices"][1]["text"], "say \"é\"");
    }
}
