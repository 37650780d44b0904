//! Texts of contents: strings, and lists of parts or blocks. A part that carries text is its text.

use serde_json::Value;

use crate::error::{ApiError, quoted, wrong};
use crate::request::json_fields::Fields;
use crate::request::skipped::Skipped;

/// Types that need a model for images, sound or documents, with the word for them in a note.
const MEDIA: &[(&str, &str)] = &[
    ("image", "image"),
    ("image_url", "image"),
    ("input_image", "image"),
    ("computer_screenshot", "image"),
    ("document", "document"),
    ("file", "file"),
    ("input_file", "file"),
    ("audio", "audio"),
    ("input_audio", "audio"),
    ("video", "video"),
    ("video_url", "video"),
];

/// Effect of images and the like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    /// An error: the model would answer without the image that the user shows.
    Refused,
    /// A note in their place. A tool's result must not end the conversation.
    Noted,
}

/// Reader of the parts of one field.
#[derive(Debug)]
pub(crate) struct Parts<'s> {
    /// The field, for the names of skipped parts.
    pub(crate) field: &'static str,
    pub(crate) media: Media,
    pub(crate) skipped: &'s mut Skipped,
}

impl Parts<'_> {
    /// A content's text: a string, or a line for each part with a text.
    ///
    /// # Errors
    /// Another value, a malformed part, or refused media.
    pub(crate) fn text(&mut self, place: &str, content: Value) -> Result<String, ApiError> {
        match content {
            Value::String(text) => Ok(text),
            Value::Array(parts) => {
                let mut lines = Vec::with_capacity(parts.len());
                for (at, part) in parts.into_iter().enumerate() {
                    let mut part = Fields::at(&format!("{place}[{at}]"), part)?;
                    let kind = part.needed("type")?;
                    lines.extend(self.part(&kind, &mut part)?);
                }
                Ok(lines.join("\n"))
            }
            // Some clients send one part without a list, or a result as it is.
            Value::Object(part) if part.contains_key("type") => {
                self.text(place, Value::Array(vec![part.into()]))
            }
            other if self.media == Media::Noted => Ok(other.to_string()),
            other => Err(wrong(place, "a text or a list of parts", &other)),
        }
    }

    /// The text of a part; `None` for a part of another service, which is skipped.
    ///
    /// # Errors
    /// As [`Parts::text`].
    pub(crate) fn part(&mut self, kind: &str, part: &mut Fields) -> Result<Option<String>, ApiError> {
        let found = match kind {
            "text" | "input_text" | "output_text" | "reasoning_text" | "summary_text" => {
                return part.needed("text").map(Some);
            }
            "refusal" => return part.needed("refusal").map(Some),
            "document" => document(part),
            "search_result" => Some(headed(part, &["title", "source"], texts(part.get("content")))),
            "tool_reference" => string(part.get("tool_name")).map(str::to_owned),
            _ => string(part.get("text")).or(string(part.get("content"))).map(str::to_owned),
        };
        if found.is_some() {
            return Ok(found);
        }
        let is_media = MEDIA.iter().any(|&(media, _)| media == kind);
        if is_media && self.media == Media::Refused {
            return Err(unknown_type(part, kind, "a text: this model reads text"));
        }
        self.skipped.add(self.field, kind);
        Ok(Some(omitted(kind)).filter(|note| !note.is_empty()))
    }
}

/// A note in place of a part that this model cannot read; empty for other types.
pub(crate) fn omitted(kind: &str) -> String {
    let media = MEDIA.iter().find(|&&(media, _)| media == kind);
    media.map(|(_, word)| format!("[{word} omitted: this model reads text]")).unwrap_or_default()
}

/// The error of a part or an item of an unknown type.
pub(crate) fn unknown_type(of: &Fields, kind: &str, expected: &str) -> ApiError {
    let place = of.place("type");
    let message = format!("{place}: expected {expected}, found {}", quoted(kind));
    ApiError::unsupported(place, message)
}

/// A document's text after its title and context; `None` if its source is no text.
fn document(part: &Fields) -> Option<String> {
    let source = part.get("source")?;
    let text = match source["type"].as_str()? {
        "text" => source["data"].as_str()?.to_owned(),
        "content" => texts(source.get("content"))?,
        _ => return None,
    };
    Some(headed(part, &["title", "context"], Some(text)))
}

/// A text after lines of these fields.
fn headed(part: &Fields, names: &[&str], text: Option<String>) -> String {
    let head = names.iter().filter_map(|name| string(part.get(name)));
    head.chain(text.as_deref()).collect::<Vec<_>>().join("\n")
}

/// The texts of a string or of text blocks; `None` if there are none.
fn texts(content: Option<&Value>) -> Option<String> {
    match content? {
        Value::String(text) => Some(text.clone()),
        Value::Array(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            (!texts.is_empty()).then(|| texts.join("\n"))
        }
        _ => None,
    }
}

fn string(value: Option<&Value>) -> Option<&str> {
    value.and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(content: Value, media: Media) -> (Result<String, String>, Vec<String>) {
        let mut skipped = Skipped::default();
        let text = Parts { field: "messages", media, skipped: &mut skipped }.text("content", content);
        let text =
            text.map_err(|error| error.to_json()["error"]["param"].as_str().unwrap_or_default().to_owned());
        (text, skipped.names().collect())
    }

    #[test]
    fn parts_with_text_are_their_text() {
        let block = |text: &str| json!({"type": "text", "text": text});
        let source = json!({"type": "text", "media_type": "text/plain", "data": "Otters swim."});
        let blocks = json!({"type": "content", "content": [block("b"), block("c")]});
        let cases = [
            (json!("a"), "a"),
            (json!([block("a"), {"type": "refusal", "refusal": "b"}]), "a\nb"),
            (
                json!([{"type": "document", "title": "Notes", "context": "June", "source": source}]),
                "Notes\nJune\nOtters swim.",
            ),
            (json!([{"type": "document", "source": blocks}]), "b\nc"),
            (
                json!([{"type": "search_result", "title": "T", "source": "s", "content": [block("a")]}]),
                "T\ns\na",
            ),
            (json!([{"type": "tool_reference", "tool_name": "f"}]), "f"),
            (json!([{"type": "compaction", "content": "so far"}]), "so far"),
            (json!({"type": "text", "text": "a"}), "a"),
        ];
        for (content, expected) in cases {
            assert_eq!(read(content, Media::Refused), (Ok(expected.to_owned()), Vec::new()));
        }
    }

    #[test]
    fn media_are_refused_or_noted_and_unknown_parts_skipped() {
        let pdf = json!({"type": "base64", "media_type": "application/pdf", "data": "x"});
        for part in
            [json!({"type": "input_image", "image_url": "x"}), json!({"type": "document", "source": pdf})]
        {
            let kind = part["type"].as_str().expect("a type").to_owned();
            assert_eq!(read(json!([part]), Media::Refused).0, Err("content[0].type".into()));
            let (text, skipped) = read(json!([part, {"type": "text", "text": "a"}]), Media::Noted);
            assert!(text.is_ok_and(|text| text.ends_with("omitted: this model reads text]\na")));
            assert_eq!(skipped, [format!("messages.{kind}")]);
        }
        let unknown = json!([{"type": "container_upload", "file_id": "x"}]);
        assert_eq!(
            read(unknown, Media::Refused),
            (Ok(String::new()), vec!["messages.container_upload".into()])
        );
        assert_eq!(read(json!([{"type": "text"}]), Media::Noted).0, Err("content[0].text".into()));
        // A tool's result may be any value.
        for value in [json!(5), json!({"a": 1})] {
            assert_eq!(read(value.clone(), Media::Noted).0, Ok(value.to_string()));
            assert_eq!(read(value, Media::Refused).0, Err("content".into()));
        }
    }
}
