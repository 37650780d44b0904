//! Which label is the likeliest answer, with how much certainty: `cargo run --release --example classify -- MODEL`.
//! Whole pages of the prompt are computed once for all labels, and for all texts as far as they begin alike.

use std::error::Error;
use std::path::Path;

use ottava::text::Message;
use ottava::{Engine, Request};

/// The likeliest label of each text, and its share of the probability of all labels.
pub fn classify(model: &Path, texts: &[&str], labels: &[&str]) -> Result<Vec<(String, f64)>, Box<dyn Error>> {
    let engine = Engine::builder(model).build()?;
    let likeliest = |text: &&str| {
        let question = format!("Answer with one word, {}. {text}", labels.join(" or "));
        let found = engine.choose(&Request::chat([Message::new("user", question)]), labels)?;
        let all: f64 = found.iter().map(|logprob| logprob.exp()).sum();
        let best = labels.iter().zip(found).max_by(|(_, a), (_, b)| a.total_cmp(b));
        let (label, logprob) = best.ok_or("expected at least one label")?;
        Ok(((*label).to_owned(), logprob.exp() / all))
    };
    texts.iter().map(likeliest).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args_os().nth(1).ok_or("expected a model's file")?;
    let texts = ["The bridge is open again.", "The harvest is lost."];
    for (text, (label, share)) in texts.iter().zip(classify(Path::new(&model), &texts, &["good", "bad"])?) {
        println!("{text} {label} ({:.0} %)", 100.0 * share);
    }
    Ok(())
}
