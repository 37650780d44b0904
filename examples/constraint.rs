//! An answer that can only be one of a few labels: `cargo run --release --example constraint -- MODEL`. A grammar
//! works the same way: it says which tokens may come next, which must, and when the answer is complete.

use std::error::Error;
use std::path::Path;

use ottava::sample::{TokenMask, TokenSet};
use ottava::text::{AddBos, Message, Special};
use ottava::{Engine, Request, TokenId};

/// One of these token sequences, none of which begins another.
#[derive(Clone)]
struct OneOf(Vec<Vec<TokenId>>);

impl OneOf {
    /// The rests of the labels that an answer may still become.
    fn left<'s>(&'s self, answer: &[TokenId]) -> impl Iterator<Item = &'s [TokenId]> {
        self.0.iter().filter_map(|label| label.strip_prefix(answer))
    }
}

impl TokenMask for OneOf {
    fn allowed(&mut self, answer: &[TokenId], allowed: &mut TokenSet) {
        allowed.extend(self.left(answer).filter_map(<[TokenId]>::first).copied());
    }

    /// Where one label is left there is no choice: the rest of it comes in one step.
    fn forced(&mut self, answer: &[TokenId]) -> &[TokenId] {
        let mut left = self.left(answer);
        match (left.next(), left.next()) {
            (Some(rest), None) => rest,
            _ => &[],
        }
    }

    fn is_finished(&self, answer: &[TokenId]) -> bool {
        self.0.iter().any(|label| label == answer)
    }
}

/// Which of the labels the model finds.
pub fn classify(model: &Path, text: &str, labels: &[&str]) -> Result<String, Box<dyn Error>> {
    let engine = Engine::builder(model).build()?;
    let encode = |label: &&str| engine.tokenizer().encode(label, Special::Text, AddBos::No);
    let labels = labels.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
    let question = format!("Is this good or bad news? {text}");
    let request = Request::chat([Message::new("user", question)]).mask(OneOf(labels));
    Ok(engine.submit(request)?.text()?.text)
}

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args_os().nth(1).ok_or("expected a model's file")?;
    println!("{}", classify(Path::new(&model), "The bridge is open again.", &["good", "bad"])?);
    Ok(())
}
