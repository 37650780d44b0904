//! What constraints cost: 64 answers at once that follow a JSON schema, beside 64 that are free. A model's file may be
//! given (`cargo bench --features constraints --bench constraints -- MODEL`); else it is a tiny one.
//!
//! Before anything is timed, answers to a schema are read as JSON.

#[path = "../tests/tiny/mod.rs"]
mod tiny;

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use ottava::constrain::{Constraint, Grammar};
use ottava::engine::FinishReason;
use ottava::sample::{TokenMask as _, TokenSet};
use ottava::{Engine, KvBudget, Request};
use serde_json::{Value, json};

const STREAMS: usize = 64;
const TOKENS: usize = 64;
const ROUNDS: usize = 5;

/// A call of a tool, as agents have them.
fn order(least: usize) -> Value {
    let item = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "count": {"type": "integer", "minimum": 1, "maximum": 999},
            "unit": {"enum": ["kg", "g", "pieces", "litres"]},
            "price": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}},
            "due": {"type": "string", "format": "date"},
        },
        "required": ["name", "count", "unit", "price", "tags", "due"],
        "additionalProperties": false,
    });
    json!({"type": "array", "items": item, "minItems": least, "maxItems": least + 1})
}

fn request(seed: u64, constraint: Option<&Constraint>) -> Request {
    let request = Request::text(format!("Order {seed}: ")).temperature(1.0).seed(seed).max_tokens(TOKENS);
    match constraint {
        Some(constraint) => request.mask(constraint.clone()),
        None => request.ignore_eos(),
    }
}

/// Milliseconds of wall time and of the model's time for each step, and tokens per second.
fn round(engine: &Engine, constraint: Option<&Constraint>) -> Result<[f64; 3], Box<dyn Error>> {
    let (before, started) = (engine.stats(), Instant::now());
    let running: Vec<_> =
        (0..STREAMS as u64).map(|seed| engine.submit(request(seed, constraint))).collect::<Result<_, _>>()?;
    let mut tokens = 0;
    for generation in running {
        tokens += generation.text()?.tokens.len();
    }
    let (wall, after) = (started.elapsed().as_secs_f64(), engine.stats());
    let steps = (after.steps - before.steps) as f64;
    Ok([1e3 * wall / steps, 1e3 * (after.step_s - before.step_s) / steps, tokens as f64 / wall])
}

/// Microseconds of a token of an answer that follows the schema, without a model: what must follow, and what may.
fn alone(engine: &Engine, constraint: &Constraint) -> f64 {
    let mut allowed = TokenSet::new(engine.vocab().len());
    let (started, mut tokens, mut number) = (Instant::now(), 0, 1_usize);
    for _ in 0..STREAMS {
        let (mut mask, mut answer) = (constraint.clone(), Vec::new());
        while answer.len() < TOKENS {
            let forced = mask.forced(&answer).to_vec();
            if forced.is_empty() {
                allowed.clear();
                mask.allowed(&answer, &mut allowed);
                // Any of them, not twice the same.
                number = number.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let at = (number >> 33) % allowed.len().max(1);
                answer.extend(engine.vocab().ids().filter(|&id| allowed.contains(id)).nth(at));
            }
            answer.extend(forced);
        }
        tokens += answer.len();
    }
    started.elapsed().as_secs_f64() * 1e6 / tokens as f64
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let given = std::env::args().skip(1).find(|argument| !argument.starts_with("--")).map(PathBuf::from);
    let model = given.unwrap_or_else(|| folder.path().join("tiny.gguf"));
    if !model.exists() {
        std::fs::write(&model, tiny::llama_of(512)?)?;
    }
    let engine = Engine::builder(&model).context_max(256).kv(KvBudget::Contexts(STREAMS)).build()?;
    let started = Instant::now();
    let short = engine.constrain(&Grammar::json_schema(
        json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 3}),
    ))?;
    println!("first grammar, with the vocabulary's trie: {:?}", started.elapsed());
    let answer = engine.submit(request(1, Some(&short)))?.text()?;
    assert!(answer.finish == FinishReason::Length || serde_json::from_str::<Value>(&answer.text)?.is_array());
    let started = Instant::now();
    let long = engine.constrain(&Grammar::json_schema(order(100)))?;
    println!("the schema of orders: {:?}", started.elapsed());
    println!(
        "a token of it without a model: {:.0} us of {} tokens",
        alone(&engine, &long),
        engine.vocab().len()
    );
    for _ in 0..ROUNDS {
        for (name, constraint) in [("free", None), ("constrained", Some(&long))] {
            let [wall, step, rate] = round(&engine, constraint)?;
            println!("{name:>11}: {wall:7.2} ms a step, {step:7.2} of them the model's, {rate:8.0} tokens/s");
        }
    }
    Ok(())
}
