//! JSON answers. A large one is written on a worker thread, in pieces, as the client reads it.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde_json::Value;

use crate::error::{ApiError, json_body};
use crate::http::intake::SMALL;
use crate::state::App;

/// Pieces of a JSON text, in order.
pub(crate) type Pieces = Box<dyn Iterator<Item = String> + Send>;

/// A JSON text before it is written.
pub(crate) enum Json {
    Value(Value),
    Pieces(Pieces),
}

/// Consecutive pieces, joined to about [`SMALL`] bytes, with the pieces after them.
pub(crate) struct Slice {
    pub(crate) bytes: Bytes,
    pub(crate) rest: Option<Pieces>,
}

impl Slice {
    /// The first slice of the pieces. Worker threads call it.
    pub(crate) fn of(mut pieces: Pieces) -> Slice {
        let mut text = String::new();
        for piece in &mut pieces {
            text += &piece;
            if text.len() >= SMALL {
                return Slice { bytes: text.into(), rest: Some(pieces) };
            }
        }
        Slice { bytes: text.into(), rest: None }
    }

    /// The first slice of the pieces, written on a worker thread.
    pub(crate) async fn written(app: &Arc<App>, pieces: Pieces) -> Result<Slice, ApiError> {
        app.work(move |_| Ok(Slice::of(pieces))).await
    }

    /// An answer that begins with this slice. Each further slice is written when the client has taken those
    /// before it.
    pub(crate) fn into_response(self, app: &Arc<App>) -> Response {
        let kind = [(header::CONTENT_TYPE, "application/json")];
        let Some(rest) = self.rest else { return (kind, self.bytes).into_response() };
        let first = stream::iter([Ok::<_, std::io::Error>(self.bytes)]);
        let app = Arc::clone(app);
        let further = stream::try_unfold(Some(rest), move |rest| {
            let app = Arc::clone(&app);
            async move {
                let Some(pieces) = rest else { return Ok(None) };
                let broken = |error: ApiError| std::io::Error::other(error.message().to_owned());
                let slice = Slice::written(&app, pieces).await.map_err(broken)?;
                Ok(Some((slice.bytes, slice.rest)))
            }
        });
        (kind, Body::from_stream(futures_util::StreamExt::chain(first, further))).into_response()
    }
}

/// A JSON answer.
pub(crate) async fn answer(app: &Arc<App>, json: Json) -> Result<Response, ApiError> {
    let pieces: Pieces = match json {
        Json::Value(value) if !is_large(&value) => return Ok(json_body(&value).into_response()),
        Json::Value(value) => Box::new(std::iter::once_with(move || value.to_string())),
        Json::Pieces(pieces) => pieces,
    };
    Ok(Slice::written(app, pieces).await?.into_response(app))
}

/// Elements of a JSON list with their commas, without its brackets.
pub(crate) fn elements(texts: impl Iterator<Item = String>) -> impl Iterator<Item = String> {
    texts.enumerate().map(|(at, text)| if at == 0 { text } else { format!(",{text}") })
}

/// A JSON string in pieces: a text, then escaped text.
pub(crate) fn string(text: Arc<str>, escaped: &str) -> impl Iterator<Item = String> + use<> {
    let end = std::iter::once(format!("{escaped}\""));
    let mut at = 0;
    let pieces = std::iter::from_fn(move || {
        let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
        let piece = rest.get(..rest.floor_char_boundary(SMALL)).unwrap_or(rest);
        at += piece.len();
        let quoted = Value::from(piece).to_string();
        Some(quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned())
    });
    std::iter::once("\"".to_owned()).chain(pieces).chain(end)
}

/// Whether a value's text has more than [`SMALL`] bytes, or nearly so. The check ends at that length.
pub(crate) fn is_large(value: &Value) -> bool {
    rest(value, SMALL).is_none()
}

/// The rest of `most` bytes after a value's text; `None` if there is no rest.
fn rest(value: &Value, most: usize) -> Option<usize> {
    // Braces, or a short number or word, with a comma.
    let most = most.checked_sub(4)?;
    match value {
        Value::String(text) => most.checked_sub(text.len()),
        Value::Array(list) => list.iter().try_fold(most, |most, value| rest(value, most)),
        Value::Object(map) => {
            map.iter().try_fold(most, |most, (name, value)| rest(value, most.checked_sub(name.len() + 4)?))
        }
        _ => Some(most),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn joined(pieces: impl Iterator<Item = String>) -> String {
        pieces.collect()
    }

    #[test]
    fn a_string_in_pieces_is_the_string() {
        for text in ["", "a\"b\\c\n\u{1}", &"é😀\"".repeat(SMALL)] {
            let pieces: Vec<String> = string(text.into(), "\\n").collect();
            assert!(pieces.iter().all(|piece| piece.len() <= 6 * SMALL), "{}", pieces.len());
            assert_eq!(pieces.concat(), Value::from(format!("{text}\n")).to_string());
        }
    }

    #[test]
    fn elements_are_separated_by_commas() {
        let of = |count: usize| joined(elements((0..count).map(|at| at.to_string())));
        assert_eq!([of(0), of(1), of(3)], ["", "0", "0,1,2"]);
    }

    #[test]
    fn slices_are_bounded_and_joined_the_whole() {
        let piece = "x".repeat(1000);
        let mut rest: Option<Pieces> = Some(Box::new(std::iter::repeat_n(piece, 200)));
        let mut lengths = Vec::new();
        while let Some(pieces) = rest {
            let slice = Slice::of(pieces);
            lengths.push(slice.bytes.len());
            rest = slice.rest;
        }
        assert_eq!(lengths.iter().sum::<usize>(), 200_000);
        assert!(lengths.len() == 4 && lengths.iter().all(|length| *length < SMALL + 1000), "{lengths:?}");
    }

    #[test]
    fn large_values_are_told_from_small_ones() {
        for small in [json!(null), json!({"a": [1, 2, {"b": "x"}]}), json!("x".repeat(SMALL / 2))] {
            assert!(!is_large(&small));
        }
        for large in [json!("x".repeat(SMALL)), json!(vec![1; SMALL]), json!({"a": {"b": vec!["x"; SMALL]}})]
        {
            assert!(is_large(&large));
        }
    }
}
