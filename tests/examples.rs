//! The examples that embedders read run, on a tiny model.

#![cfg(feature = "text")]

#[path = "../examples/chat.rs"]
#[allow(dead_code, reason = "an example has a main of its own")]
mod chat;
#[path = "../examples/classify.rs"]
#[allow(dead_code, reason = "an example has a main of its own")]
mod classify;
#[path = "../examples/concurrent.rs"]
#[allow(dead_code, reason = "an example has a main of its own")]
mod concurrent;
#[cfg(feature = "constraints")]
#[path = "../examples/constraint.rs"]
#[allow(dead_code, reason = "an example has a main of its own")]
mod constraint;
#[path = "../examples/own_model.rs"]
#[allow(dead_code, reason = "an example has a main of its own")]
mod own_model;
#[path = "../examples/resume.rs"]
#[allow(dead_code, reason = "an example has a main of its own")]
mod resume;
mod tiny;

use tiny::Outcome;

#[test]
fn the_examples_run() -> Outcome {
    let folder = tempfile::tempdir()?;
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, tiny::llama()?)?;
    assert!(chat::chat(&model, "sing")? > 0);
    let found = classify::classify(&model, &["The den is warm.", "The den is lost."], &["good", "bad"])?;
    assert!(found.iter().all(|(_, share)| (0.5..=1.0).contains(share)), "{found:?}");
    let kept = folder.path().join("kept");
    let (text, question) = ("the den ".repeat(12), "sing");
    let cached =
        |_| Ok::<_, Box<dyn std::error::Error>>(resume::ask(&model, &kept, &text, question)?.cached_tokens);
    let [first, second] = [cached(0)?, cached(1)?];
    assert!(first == 0 && second > 16, "{first}, then {second} tokens were there");
    let answers = own_model::run()?;
    assert!(answers.iter().all(|answer| !answer.is_empty()), "{answers:?}");
    let stats = concurrent::ask_all(&model, &["sing", "ring", "in the den"])?;
    assert_eq!((stats.finished, stats.failed), (3, 0));
    assert!(stats.cached_tokens > 0, "the beginning is shared: {stats:?}");
    Ok(())
}

/// The model is random: only the constraints make its answers what they are.
#[cfg(feature = "constraints")]
#[test]
fn the_example_of_constraints_runs() -> Outcome {
    let folder = tempfile::tempdir()?;
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, tiny::llama_of(512)?)?;
    let (label, found) = constraint::read(&model, "The den is warm.", &["good", "bad"])?;
    assert!(["good", "bad"].contains(&&*label), "{label}");
    let subject = found["subject"].as_str().ok_or("no subject")?;
    assert!(subject.chars().count() <= 20, "{subject}");
    assert!(["building", "person", "event"].contains(&found["kind"].as_str().ok_or("no kind")?), "{found}");
    Ok(())
}
