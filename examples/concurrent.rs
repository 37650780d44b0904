//! Many requests at once over one beginning, which is computed once:
//! `cargo run --release --example concurrent -- MODEL`.

use std::error::Error;
use std::path::Path;

use ottava::engine::{Generation, Stats};
use ottava::text::Message;
use ottava::{Engine, Request};

const RULES: &str =
    "You are the clerk of a small library. Answer in one sentence, name the shelf, and stay calm.";

/// Answers all questions and returns what the engine has counted.
pub fn ask_all(model: &Path, questions: &[&str]) -> Result<Stats, Box<dyn Error>> {
    let engine = Engine::builder(model).build()?;
    let request = |question: &str| {
        // A tenant's own salt keeps what its prompts share from all others.
        let messages = [Message::new("system", RULES), Message::new("user", question)];
        Request::chat(messages).max_tokens(24).cache_salt([1; 32])
    };
    // The first one fills the cache; the others run together.
    if let Some(question) = questions.first() {
        println!("{question} {}", engine.submit(request(question))?.text()?.text);
    }
    let rest = questions.iter().skip(1);
    let running: Vec<Generation> =
        rest.clone().map(|question| engine.submit(request(question))).collect::<Result<_, _>>()?;
    for (question, generation) in rest.zip(running) {
        let answer = generation.text()?;
        println!("{question} {} ({} tokens were cached)", answer.text, answer.usage.cached_tokens);
    }
    Ok(engine.stats())
}

fn main() -> Result<(), Box<dyn Error>> {
    let model = std::env::args_os().nth(1).ok_or("expected a model's file")?;
    let questions =
        ["Where is Darwin?", "Where are the maps?", "Who was Ada Lovelace?", "When do you close?"];
    let stats = ask_all(Path::new(&model), &questions)?;
    println!("{} prompt tokens computed, {} found in the cache", stats.prefill_tokens, stats.cached_tokens);
    Ok(())
}
