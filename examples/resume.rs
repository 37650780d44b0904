//! A long beginning computed once and kept in a file: `cargo run --release --example resume -- MODEL FILE`. The next
//! run, or another process, finds it there and computes only what is new.

use std::error::Error;
use std::path::Path;

use ottava::engine::Usage;
use ottava::text::Message;
use ottava::{Engine, Request};

/// Answers a question about a text; keeps what the text took in `kept`, and takes it from there if it is there.
pub fn ask(model: &Path, kept: &Path, text: &str, question: &str) -> Result<Usage, Box<dyn Error>> {
    let engine = Engine::builder(model).build()?;
    let request =
        Request::chat([Message::new("system", text), Message::new("user", question)]).max_tokens(32);
    if kept.exists() {
        engine.restore_prompt(kept)?;
    }
    let answer = engine.submit(request.clone())?.text()?;
    println!("{}", answer.text);
    // It is in the cache by now: no more than its last page is computed again.
    engine.save_prompt(&engine.prompt_ids(&request)?, kept)?;
    Ok(answer.usage)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (model, kept) =
        arguments.next().zip(arguments.next()).ok_or("expected a model's file and a file to keep")?;
    let text = "You know the harbour's rules: boats give way to ships, and ships to the ferry. ".repeat(8);
    let usage = ask(Path::new(&model), Path::new(&kept), &text, "Who gives way to the ferry?")?;
    println!("{} of {} tokens were there already", usage.cached_tokens, usage.prompt_tokens);
    Ok(())
}
