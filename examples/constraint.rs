//! Answers that can only be what they should: one of a few labels, or JSON of a schema.
//! `cargo run --release --features constraints --example constraint -- MODEL`. A rule of one's own is a
//! `ottava::sample::TokenMask`.

use std::error::Error;
use std::path::Path;

use ottava::constrain::Grammar;
use ottava::text::Message;
use ottava::{Engine, Request};
use serde_json::{Value, json};

/// What the model makes of a text: which of the labels it finds, and what the text is about.
pub fn read(model: &Path, text: &str, labels: &[&str]) -> Result<(String, Value), Box<dyn Error>> {
    let engine = Engine::builder(model).build()?;
    let ask = |question: &str, grammar: Grammar| -> Result<String, Box<dyn Error>> {
        let request = Request::chat([Message::new("user", format!("{question} {text}"))]).temperature(0.2);
        Ok(engine.submit(request.mask(engine.constrain(&grammar)?))?.text()?.text)
    };
    let label = ask("Is this good or bad news?", Grammar::choice(labels.iter().copied()))?;
    let subject = json!({
        "type": "object",
        "properties": {
            "subject": {"type": "string", "maxLength": 20},
            "kind": {"enum": ["building", "person", "event"]},
        },
        "required": ["subject", "kind"],
        "additionalProperties": false,
    });
    let found = ask("What is this about?", Grammar::json_schema(subject).whitespace(" ?"))?;
    Ok((label, serde_json::from_str(&found)?))
}

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args_os().nth(1).ok_or("expected a model's file")?;
    let (label, found) = read(Path::new(&model), "The bridge is open again.", &["good", "bad"])?;
    println!("{label}: {found}");
    Ok(())
}
