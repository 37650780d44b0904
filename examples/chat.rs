//! A question and its answer, as it comes: `cargo run --release --example chat -- MODEL "What is gravity?"`.
//! Another thread may cancel, a deadline bounds the whole.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use ottava::engine::Received;
use ottava::text::Message;
use ottava::{Engine, Request};

/// Prints the answer and returns how many tokens it has.
pub fn chat(model: &Path, question: &str) -> Result<usize, Box<dyn Error>> {
    let engine = Engine::builder(model).build()?;
    let request = Request::chat([Message::new("system", "Be brief."), Message::new("user", question)])
        .max_tokens(64)
        .temperature(0.7)
        .top_p(0.9)
        .seed(7)
        .stop(["\n\n"])
        .deadline(Instant::now() + Duration::from_secs(60));
    let mut generation = engine.submit(request)?;
    // `for event in generation` does without the time; here it is what a server sends a sign of life after.
    loop {
        match generation.recv_timeout(Duration::from_secs(1)) {
            Received::Event(event) => print!("{}", event?.text()),
            Received::Nothing => print!("…"),
            _ => break,
        }
        std::io::stdout().flush()?;
    }
    let usage = generation.usage();
    println!("\n{} tokens of prompt, {} of answer", usage.prompt_tokens, usage.completion_tokens);
    Ok(usage.completion_tokens)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let model = arguments.next().ok_or("expected a model's file")?;
    let question = arguments.next().unwrap_or_else(|| "What is gravity?".into());
    chat(Path::new(&model), &question.to_string_lossy()).map(drop)
}
