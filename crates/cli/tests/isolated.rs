//! `ottava serve --isolated`: worker processes that are killed and restarted.

#![cfg(target_os = "linux")]

mod serving;
#[path = "../../../tests/tiny/mod.rs"]
mod tiny;

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use serving::{LONG, PATIENCE, Serving, has, text};
use tiny::Outcome;

/// Starts an isolated server with more options.
fn isolated(more: &[&str]) -> Outcome<Serving> {
    Serving::start(&[&["--isolated"], more].concat())
}

/// Kills the worker during an answer and returns the answer. `None` if the answer ended before the kill.
fn killed_at_work(front: &Serving) -> Option<(u16, String)> {
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| front.complete(None, LONG, false));
        front.until("the answer is at work or done", || {
            has(&front.metrics(), "vllm:num_requests_running", 1.0) || answer.is_finished()
        });
        front.signal_engines("STOP");
        // Time for bytes that are already sent to arrive.
        std::thread::sleep(Duration::from_millis(200));
        let is_done = answer.is_finished();
        front.signal_engines(if is_done { "CONT" } else { "KILL" });
        let answer = answer.join().expect("no panic");
        (!is_done).then_some(answer)
    })
}

/// An answer that is not streamed is computed again by a second worker.
#[test]
fn an_answer_that_nobody_has_seen_is_asked_for_again() -> Outcome {
    let front = isolated(&[])?;
    let (status, body) = front.complete(None, LONG, false);
    assert_eq!(status, 200, "{body}");
    let start = Instant::now();
    let mut tries =
        std::iter::repeat_with(|| killed_at_work(&front)).take_while(|_| start.elapsed() < PATIENCE);
    let (again, whole) = tries.find_map(|caught| caught).expect("an answer is caught at work");
    assert_eq!((again, text(&whole)), (200, text(&body)));
    let metrics = front.metrics();
    assert!(has(&metrics, "ottava:engine_restarts_total{model_name=\"tiny\"}", 1.0), "{metrics}");
    // The counters are the second worker's, which has given one answer.
    assert!(has(&metrics, "vllm:request_success_total", 1.0), "{metrics}");
    assert!(metrics.ends_with("# EOF\n"));
    Ok(())
}

#[test]
fn a_further_model_by_a_name_that_is_taken_is_refused() -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ottava"));
    let options = "serve --port 0 --model first.gguf --add other=a.gguf --add first=b.gguf";
    let output = command.args(options.split(' ')).output()?;
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), told.contains("two models have the name first")),
        (Some(2), true),
        "{told}"
    );
    Ok(())
}

/// Thirty kills at any moment: every request ends in an answer or one typed error, and the front survives.
#[test]
fn whatever_is_killed_every_request_ends() -> Outcome {
    let front = isolated(&["--restarts", "0"])?;
    front.until_ready();
    let done = AtomicBool::new(false);
    let ends = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3)
            .map(|client| {
                let (front, done) = (&front, &done);
                scope.spawn(move || {
                    let mut ends = Vec::new();
                    while !done.load(Ordering::Relaxed) {
                        let stream = client != 0;
                        ends.push((stream, front.complete(None, 30 * client + 20, stream)));
                    }
                    ends
                })
            })
            .collect();
        for kill in 0..30u64 {
            // Every third kill can hit the load.
            if kill % 3 > 0 {
                front.until_ready();
            }
            std::thread::sleep(Duration::from_millis(kill * 37 % 150));
            front.kill_engines();
        }
        front.until_ready();
        done.store(true, Ordering::Relaxed);
        clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect::<Vec<_>>()
    });
    assert!(ends.len() >= 3);
    for (stream, (status, body)) in &ends {
        match (stream, status) {
            (false, 200) => _ = text(body),
            (true, 200) => {
                let last = body.trim_end().lines().last().unwrap_or_default();
                let error =
                    || last.strip_prefix("data: ").and_then(|data| serde_json::from_str::<Value>(data).ok());
                let typed = last == "data: [DONE]"
                    || error().is_some_and(|error| error["error"]["code"] == "engine_lost");
                assert!(typed, "{body}");
            }
            (_, 503) => {
                let error: Value = serde_json::from_str(body).expect("JSON");
                let code = &error["error"]["code"];
                assert!(code == "engine_lost" || code == "unavailable", "{body}");
            }
            _ => panic!("{status}: {body}"),
        }
    }
    assert_eq!(front.complete(None, 4, false).0, 200);
    Ok(())
}

#[test]
fn a_model_that_ends_again_and_again_is_given_up() -> Outcome {
    let mut front = isolated(&["--restarts", "3"])?;
    for _ in 0..3 {
        front.until_ready();
        let engines = front.engines();
        front.kill_engines();
        front.until("the engine has ended", || engines.iter().all(|id| !front.engines().contains(id)));
    }
    let (status, told) = front.end()?;
    assert_eq!(status, Some(1), "{told}");
    assert!(
        told.contains("the engine of tiny ended 3 times in ten minutes, the last time with: signal: 9"),
        "{told}"
    );
    Ok(())
}

#[test]
fn further_models_come_when_they_are_asked_for_and_go_when_they_are_idle() -> Outcome {
    let folder = tempfile::tempdir()?;
    let other = folder.path().join("other.gguf");
    let front = isolated(&["--idle-unload", "1", "--add", &format!("other={}", other.display())])?;
    fs::copy(&front.model, &other)?;
    front.until_ready();
    let (_, body) = front.ask("GET", "/v1/models", &Value::Null)?;
    let list: Value = serde_json::from_str(&body)?;
    let names: Vec<_> = list["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
    assert_eq!(names, ["tiny", "other"]);
    assert!(front.is_loaded("tiny") && !front.is_loaded("other"));
    let (status, body) = front.complete(Some("other"), 5, false);
    assert_eq!(status, 200, "{body}");
    assert_eq!(serde_json::from_str::<Value>(&body)?["model"], "other");
    front.until("the idle one is unloaded", || !front.is_loaded("other") && front.engines().len() == 1);
    // Several requests do not load the model again once they are done.
    let (status, again) = front.complete(Some("other"), 5, false);
    assert_eq!(front.complete(Some("other"), 5, false).0, 200);
    assert_eq!((front.is_loaded("tiny"), status, text(&again)), (true, 200, text(&body)), "and back");
    front.until("it is unloaded once more", || !front.is_loaded("other") && front.engines().len() == 1);
    for _ in 0..30 {
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(front.engines().len(), 1, "nobody has asked for it");
    }
    let (status, body) = front.complete(Some("third"), 5, false);
    assert!(status == 404 && body.contains("model_not_found"), "{body}");
    Ok(())
}

/// Ctrl-C during a load or an answer is not a crash of the worker, and a running answer is completed.
#[test]
fn ctrl_c_is_the_front_s_alone() -> Outcome {
    for at_work in [false, true] {
        let mut front = isolated(&["--restarts", "1", "--drain", "100"])?;
        front.until("the engine starts", || !front.engines().is_empty());
        let begun = || has(&front.metrics(), "vllm:num_requests_running", 1.0);
        let answer = std::thread::scope(|scope| -> Outcome<_> {
            if at_work {
                front.until_ready();
            }
            let answer = at_work.then(|| scope.spawn(|| front.complete(None, LONG, false)));
            if let Some(answer) = &answer {
                front.until("it is at work or done", || begun() || answer.is_finished());
            }
            front.interrupt()?;
            Ok(answer.map(|answer| answer.join().expect("no panic")))
        })?;
        if let Some((status, body)) = answer {
            assert_eq!((status, text(&body).is_empty()), (200, false), "{body}");
        }
        let (status, told) = front.end()?;
        assert!(status == Some(0) && !told.contains("ended"), "{status:?}: {told}");
    }
    Ok(())
}

/// A killed front leaves no orphaned worker.
#[test]
fn an_engine_ends_with_its_front() -> Outcome {
    let mut front = isolated(&[])?;
    front.until_ready();
    let engines = front.engines();
    assert_eq!(engines.len(), 1);
    front.process.kill()?;
    front.process.wait()?;
    front.until("the engine ends", || {
        engines.iter().all(|id| {
            fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| stat.contains(") Z"))
                || !fs::exists(format!("/proc/{id}")).unwrap_or(true)
        })
    });
    Ok(())
}

/// A stopped process computes nothing and answers nothing. The next one answers its requests.
#[test]
fn an_engine_that_hangs_is_not_ready_and_is_replaced() -> Outcome {
    let front = isolated(&[])?;
    front.until_ready();
    let engines = front.engines();
    front.signal_engines("STOP");
    let (status, body) = std::thread::scope(|scope| {
        let answer = scope.spawn(|| front.complete(None, 5, false));
        front.until("it is not ready", || {
            let found = front.ask("GET", "/ready", &Value::Null);
            found.is_ok_and(|(status, body)| status == 503 && body.contains("tiny does not answer"))
        });
        answer.join().expect("no panic")
    });
    assert_eq!((status, text(&body).is_empty()), (200, false), "{body}");
    front.until_ready();
    assert!(front.engines().iter().all(|id| !engines.contains(id)));
    Ok(())
}
