//! A front with scripted processes: retried requests, loading on demand, starts and ends.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ottava_server::{Config, Front, Model, ServeError};
use serde_json::{Value, json};

use super::client::{Answer, get, post, read, request};
use super::until;

const COMPLETIONS: &str = "/v1/completions";
const PATIENCE: Duration = Duration::from_secs(60);

/// A front that runs until it is dropped.
pub struct Fronted {
    pub address: SocketAddr,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Fronted {
    fn of(models: Vec<Model>, change: impl FnOnce(Front) -> Front) -> Fronted {
        Fronted::with_drain(Config::default().drain, models, change)
    }

    fn with_drain(drain: Duration, models: Vec<Model>, change: impl FnOnce(Front) -> Front) -> Fronted {
        let mut config = Config::default();
        config.port = 0;
        config.keep_alive = Duration::from_millis(50);
        config.drain = drain;
        Fronted::with(config, models, change)
    }

    /// A front of one server that runs already.
    pub fn over_server(config: Config, server: SocketAddr) -> Fronted {
        let front = Fronted::with(config, vec![model("first", &prints(server), true)], |front| front);
        front.until("it is ready", |front| get(front.address, "/ready").status == 200);
        front
    }

    fn with(config: Config, models: Vec<Model>, change: impl FnOnce(Front) -> Front) -> Fronted {
        let front = change(Front::bind(config, models).expect("it listens"));
        let (address, (stop, stopped)) = (front.address(), mpsc::channel());
        let thread = std::thread::spawn(move || front.run(until(stopped), |_| {}));
        Fronted { address, stop: Some(stop), thread: Some(thread) }
    }

    /// A front with one pinned, ready model.
    fn over(answers: impl Fn(&str, usize) -> String + Send + Sync + 'static) -> Fronted {
        let front = Fronted::of(vec![model("first", &prints(process(answers)), true)], |front| front);
        front.until("it is ready", |front| get(front.address, "/ready").status == 200);
        front
    }

    fn until(&self, what: &str, holds: impl Fn(&Fronted) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends the stop signal.
    pub fn stop(&mut self) {
        self.stop = None;
    }

    /// Stops the front and waits for its end.
    fn end(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the front has already failed the test.
            let _ = thread.join();
        }
    }
}

impl Drop for Fronted {
    fn drop(&mut self) {
        self.end();
    }
}

/// A model with a shell script as its process.
fn model(name: &str, script: &str, pinned: bool) -> Model {
    let command = ["/bin/sh", "-c", script].map(Into::into).into();
    Model { names: vec![name.to_owned()], command, pinned }
}

/// A shell script that prints an address and runs until its input closes.
fn prints(address: SocketAddr) -> String {
    format!("echo http://{address}; exec cat > /dev/null")
}

/// A scripted process: `answers` gets a path and the number of earlier requests for it, and returns the bytes
/// of the response.
fn process(answers: impl Fn(&str, usize) -> String + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut asked: HashMap<String, usize> = HashMap::new();
        for stream in listener.incoming().flatten() {
            let Ok(path) = path_of(&stream) else { continue };
            let times = asked.entry(path.clone()).or_default();
            // The client may be gone.
            let _ = (&stream).write_all(answers(&path, *times).as_bytes());
            *times += 1;
        }
    });
    address
}

/// Reads a request and returns its path.
fn path_of(stream: &TcpStream) -> std::io::Result<String> {
    let (mut lines, mut line, mut length) = (BufReader::new(stream), String::new(), 0);
    lines.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    while line != "\r\n" && !line.is_empty() {
        line.clear();
        lines.read_line(&mut line)?;
        if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    lines.read_exact(&mut vec![0; length])?;
    Ok(path)
}

/// An answer with more headers than its length.
fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

fn whole(body: &Value) -> String {
    answer("200 OK", "content-type: application/json\r\n", &body.to_string())
}

fn streamed(body: &str) -> String {
    answer("200 OK", "content-type: text/event-stream\r\n", body)
}

/// A stream that breaks before its length.
fn broken(body: &str) -> String {
    streamed(&format!("{body}{}", " ".repeat(9))).trim_end_matches(' ').to_owned()
}

fn list() -> Value {
    json!({"data": [{"id": "x", "created": 1, "max_model_len": 512, "meta": {"n_vocab": 7}}]})
}

/// The answers of a process about itself.
fn of_itself(path: &str) -> Option<String> {
    match path {
        "/ready" => Some(whole(&json!({"status": "ready"}))),
        "/v1/models" => Some(whole(&list())),
        _ => None,
    }
}

fn complete(front: &Fronted, model: &str) -> Answer {
    post(front.address, COMPLETIONS, &json!({"model": model, "prompt": "a"}))
}

/// The device is lost once for a whole answer and once for a stream.
#[test]
fn a_lost_device_is_answered_for_by_the_next_process() {
    let dead = AtomicBool::new(false);
    let lost = json!({"error": {"message": "the device is lost", "code": "engine_lost"}});
    let front = Fronted::over(move |path, times| match (path, times) {
        ("/ready", _) if dead.swap(false, Ordering::SeqCst) => {
            answer("503 Unavailable", "", &json!({"reason": "the engine is dead"}).to_string())
        }
        (COMPLETIONS, 0) => {
            dead.store(true, Ordering::SeqCst);
            answer("503 Unavailable", "x-ottava-engine-lost: 1\r\n", &lost.to_string())
        }
        (COMPLETIONS, 2) => {
            dead.store(true, Ordering::SeqCst);
            streamed(&format!("data: 1\n\n: lost\n\ndata: {lost}\n\n"))
        }
        (COMPLETIONS, 3) => streamed("data: 2\n\n: answer\n\ndata: 3\n\ndata: [DONE]\n\n"),
        _ => of_itself(path).unwrap_or_else(|| whole(&json!({"text": "b"}))),
    });
    let found = complete(&front, "first");
    assert_eq!((found.status, found.json()), (200, json!({"text": "b"})), "{found:?}");
    let found = complete(&front, "first");
    let seen = found.body.replace(": keep-alive\n\n", "");
    assert_eq!((found.status, seen.as_str()), (200, "data: 2\n\ndata: 3\n\ndata: [DONE]\n\n"));
    assert_ne!(seen, found.body, "a client hears something while the model is loaded again");
    let metrics = get(front.address, "/metrics").body;
    assert!(metrics.contains("ottava:engine_restarts_total{model_name=\"first\"} 2\n"), "{metrics}");
}

/// The first process ends before its answer begins, the second within it.
#[test]
fn a_request_that_was_at_work_at_two_ends_is_not_sent_again() {
    type Answers = fn(usize) -> String;
    let ends: [(&str, Answers); 3] = [
        ("/v1/completions", |times| match times {
            0 => String::new(),
            1 => whole(&json!({})).trim_end_matches('}').to_owned(),
            _ => whole(&json!({"text": "a third answer"})),
        }),
        ("/v1/chat/completions", |times| match times {
            0 => String::new(),
            1 => broken(": keep-alive\n\n"),
            _ => streamed("data: 1\n\ndata: [DONE]\n\n"),
        }),
        ("/v1/messages", |times| match times {
            0 | 1 => answer("503 Unavailable", "x-ottava-engine-lost: 1\r\n", "{}"),
            _ => whole(&json!({"text": "a third answer"})),
        }),
    ];
    for (path, answers) in ends {
        let sent = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&sent);
        let front = Fronted::over(move |asked, times| {
            of_itself(asked).unwrap_or_else(|| {
                counted.fetch_add(1, Ordering::SeqCst);
                answers(times)
            })
        });
        let found = post(front.address, path, &json!({"prompt": "a"}));
        assert!(found.body.contains("ended twice"), "{path}: {found:?}");
        assert_eq!(sent.load(Ordering::SeqCst), 2, "{path}");
        // The head of a stream has been sent before.
        let retry = (found.status == 503).then_some("false");
        assert_eq!(found.header("x-should-retry"), retry, "{path}: {found:?}");
    }
}

/// The process computes, so its silence is no hang.
#[test]
#[cfg(target_os = "linux")]
fn a_busy_process_is_not_ready_and_is_kept() {
    let (hangs, folder) = (Arc::new(AtomicBool::new(false)), tempfile::tempdir().expect("a folder"));
    let address = process({
        let hangs = Arc::clone(&hangs);
        move |path, _| {
            while path == "/ready" && hangs.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            of_itself(path).unwrap_or_default()
        }
    });
    let starts = folder.path().join("starts");
    // It computes a tenth of the time, until its input ends.
    let script = format!(
        "echo x >> '{}'; echo http://{address}; exec 3<&0; (cat <&3 > /dev/null; kill $$) & \
         while :; do i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; sleep 0.2; done",
        starts.display()
    );
    let front = Fronted::of(vec![model("first", &script, true)], |front| front);
    front.until("it is ready", |front| get(front.address, "/ready").status == 200);
    hangs.store(true, Ordering::SeqCst);
    front.until("it is not ready", |front| {
        let found = get(front.address, "/ready");
        found.status == 503 && found.json()["reason"] == "first does not answer"
    });
    // Four checks more: a process that does not compute is ended by then.
    std::thread::sleep(Duration::from_secs(26));
    hangs.store(false, Ordering::SeqCst);
    front.until("it is ready again", |front| get(front.address, "/ready").status == 200);
    assert_eq!(std::fs::read_to_string(&starts).expect("starts"), "x\n", "the same process");
}

/// A permanently lost engine gives one error, without the marks for the front.
#[test]
fn a_device_that_is_lost_twice_is_an_error() {
    let front = Fronted::over(|path, _| {
        let lost = || answer("503 Unavailable", "x-ottava-engine-lost: 1\r\n", "{}");
        of_itself(path).unwrap_or_else(lost)
    });
    let found = complete(&front, "first");
    assert_eq!((found.status, &found.json()["error"]["code"]), (503, &json!("engine_lost")));
}

#[test]
fn a_second_question_that_is_refused_is_an_event_of_its_api() {
    let error = json!({"type": "rate_limit_error", "message": "the queue is full", "code": "overloaded", "param": null});
    let body = json!({"type": "error", "error": error});
    let front = Fronted::over(move |path, times| match of_itself(path) {
        Some(own) => own,
        None if times == 0 => broken(": keep-alive\n\n"),
        None => answer("429 Busy", "content-type: application/json\r\n", &body.to_string()),
    });
    for path in [COMPLETIONS, "/v1/messages", "/v1/responses"] {
        let found = post(front.address, path, &json!({}));
        assert_eq!(found.status, 200, "{found:?}");
        let lines = found.body.lines().filter(|line| !line.is_empty() && !line.starts_with(':'));
        let (names, data): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.starts_with("event: "));
        let [data] = data[..] else { panic!("{path}: {found:?}") };
        let event: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        let (name, error) = match path {
            COMPLETIONS => (None, &event["error"]),
            "/v1/messages" => (Some("event: error"), &event["error"]),
            _ => (Some("event: error"), &event),
        };
        assert_eq!(names.first().copied(), name, "{path}");
        assert_eq!(error["message"], "the queue is full", "{path}: {event}");
        if path != "/v1/messages" {
            assert_eq!(error["code"], "overloaded", "{path}: {event}");
        }
    }
}

#[test]
fn what_only_looks_loads_no_model_and_keeps_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let starts = folder.path().join("starts");
    let address = process(|path, _| of_itself(path).unwrap_or_else(|| whole(&json!({"text": "b"}))));
    let further = format!("echo x >> '{}'; {}", starts.display(), prints(address));
    let models = vec![model("first", &prints(address), true), model("other", &further, false)];
    let front = Fronted::of(models, |front| front.unload_after(Duration::from_millis(500)));
    front.until("it is ready", |front| get(front.address, "/ready").status == 200);
    for path in ["/metrics?model=other", "/nothing?model=other"] {
        let found = get(front.address, path);
        assert_eq!((found.status, &found.json()["error"]["code"]), (503, &json!("unavailable")), "{path}");
    }
    assert!(!starts.exists(), "nobody needs it");
    assert_eq!(complete(&front, "other").status, 200);
    assert_eq!(std::fs::read_to_string(&starts).expect("starts"), "x\n");
    front.until("it is unloaded though it is looked at", |front| {
        get(front.address, "/metrics?model=other");
        get(front.address, "/v1/models/other").json()["meta"]["loaded"] == false
    });
}

#[test]
fn starts_are_a_second_apart_and_a_process_that_loads_ends_with_its_front() {
    let folder = tempfile::tempdir().expect("a folder");
    let starts = folder.path().join("starts");
    let ends = format!("echo x >> '{}'; exit 3", starts.display());
    // The process reads no input and prints nothing.
    let models = vec![model("ends", &ends, true), model("loads", "exec sleep 600", true)];
    let mut front = Fronted::of(models, |front| front.restarts_max(0));
    std::thread::sleep(Duration::from_millis(2500));
    let begun = Instant::now();
    front.end();
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    let starts = std::fs::read_to_string(&starts).expect("starts").lines().count();
    assert!((1..=4).contains(&starts), "{starts}");
}

#[test]
fn the_list_of_models_has_what_their_processes_say() {
    let front = Fronted::over(|path, _| of_itself(path).unwrap_or_default());
    let listed = || get(front.address, "/v1/models").json()["data"][0].clone();
    let found = listed();
    assert_eq!((&found["id"], &found["max_model_len"]), (&json!("first"), &json!(512)), "{found}");
    assert_eq!(found["meta"], json!({"n_vocab": 7, "loaded": true, "pinned": true}));
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(listed()["created"], found["created"], "when a model was made does not change");
}

#[test]
fn a_model_of_several_names_is_one_entry() {
    let other = Model { names: ["a", "b"].map(String::from).into(), ..model("a", "exec sleep 600", false) };
    let front = Fronted::of(vec![model("first", "exec sleep 600", false), other], |front| front);
    let models = get(front.address, "/v1/models").json()["data"].clone();
    let found = |at: usize| (models[at]["id"].clone(), models[at]["aliases"].clone());
    assert_eq!((found(0), found(1)), (("first".into(), json!([])), ("a".into(), json!(["b"]))), "{models}");
    assert_eq!(models.as_array().map(Vec::len), Some(2));
    let found = get(front.address, "/v1/models/b").json();
    assert_eq!((&found["id"], &found["aliases"]), (&"b".into(), &json!(["a"])));
}

#[test]
fn a_name_that_is_taken_is_refused() {
    let mut config = Config::default();
    config.port = 0;
    let models = ["a", "b", "a"].map(|name| model(name, "exit 0", true)).into();
    let error = Front::bind(config, models).expect_err("refused");
    assert!(matches!(&error, ServeError::Name(name) if name == "a"), "{error}");
}

#[test]
fn a_method_that_a_route_has_not_is_an_error_in_json() {
    let front = Fronted::over(|path, _| of_itself(path).unwrap_or_default());
    let found = post(front.address, "/v1/models", &json!({}));
    assert_eq!((found.status, &found.json()["error"]["type"]), (405, &json!("invalid_request_error")));
}

#[test]
fn a_front_that_stops_says_that_it_is_not_ready() {
    let mut front = Fronted::over(|path, _| of_itself(path).unwrap_or_default());
    let request = request("GET", "/ready", &[], "");
    let (beginning, rest) = request.split_at(9);
    let mut stream = TcpStream::connect(front.address).expect("connects");
    stream.write_all(beginning).expect("sent");
    // A request is in progress, so the connection is not closed at once.
    std::thread::sleep(Duration::from_millis(300));
    front.stop = None;
    front.until("it listens no more", |front| TcpStream::connect(front.address).is_err());
    stream.write_all(rest).expect("sent");
    let found = read(stream);
    assert_eq!((found.status, &found.json()["reason"]), (503, &json!("the server is stopping")));
}

/// A stream waiting for a process that never comes ends with the front, by an event.
#[test]
fn a_stream_that_waits_for_its_model_is_told_that_the_server_stops() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, died) = (folder.path().join("first"), folder.path().join("died"));
    let address = process({
        let died = died.clone();
        move |path, _| {
            of_itself(path).unwrap_or_else(|| {
                std::fs::write(&died, "").expect("a file");
                broken(": keep-alive\n\n")
            })
        }
    });
    // The second process never finishes loading.
    let script = format!(
        "cd '{}'; if [ -e first ]; then echo > second; exec sleep 600; fi; echo > first; echo http://{address}; \
         until [ -e died ]; do sleep 0.02; done",
        folder.path().display()
    );
    let mut front =
        Fronted::with_drain(Duration::from_millis(100), vec![model("first", &script, true)], |front| front);
    front.until("it is ready", |front| get(front.address, "/ready").status == 200);
    let address = front.address;
    let asked = std::thread::spawn(move || post(address, COMPLETIONS, &json!({"prompt": "a"})));
    front.until("the second process loads", |_| folder.path().join("second").exists());
    assert!(first.exists() && died.exists());
    front.end();
    let found = asked.join().expect("no panic");
    let last = found.body.trim_end().lines().last().expect("an event");
    let event: Value = serde_json::from_str(last.strip_prefix("data: ").expect("data")).expect("JSON");
    assert_eq!(event["error"]["message"], "the server is stopping", "{found:?}");
}

/// The signal that stops the front may also have ended the process, as a service manager does.
#[test]
fn a_process_that_ends_while_the_front_drains_is_not_started_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (asked, died) = (at("asked"), at("died"));
    let address = process({
        let (asked, died) = (asked.clone(), died.clone());
        move |path, times| {
            of_itself(path).unwrap_or_else(|| {
                std::fs::write(&asked, "").expect("a file");
                while !died.exists() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // The connection breaks.
                if times == 0 {
                    whole(&json!({})).trim_end_matches('}').to_owned()
                } else {
                    whole(&json!({}))
                }
            })
        }
    });
    let script = format!(
        "cd '{}'; echo x >> starts; echo http://{address}; until [ -e stop ]; do sleep 0.02; done; echo > died; exit 3",
        folder.path().display()
    );
    let mut front = Fronted::of(vec![model("first", &script, true)], |front| front);
    front.until("it is ready", |front| get(front.address, "/ready").status == 200);
    let address = front.address;
    let answer = std::thread::spawn(move || post(address, COMPLETIONS, &json!({"prompt": "a"})));
    front.until("the request is at work", |_| asked.exists());
    front.stop = None;
    front.until("it listens no more", |front| TcpStream::connect(front.address).is_err());
    std::fs::write(at("stop"), "").expect("a file");
    let found = answer.join().expect("no panic");
    assert_eq!((found.status, &found.json()["error"]["code"]), (503, &json!("unavailable")), "{found:?}");
    front.end();
    assert_eq!(std::fs::read_to_string(at("starts")).expect("starts"), "x\n");
}

/// Ctrl-C at a terminal reaches the process group of the front, which drains answers.
#[test]
#[cfg(target_os = "linux")]
fn a_process_has_a_group_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("stat");
    let script = format!("cat /proc/$$/stat > '{0}.new'; mv '{0}.new' '{0}'; exec sleep 600", path.display());
    let front = Fronted::of(vec![model("first", &script, true)], |front| front);
    front.until("it has started", |_| path.exists());
    let stat = std::fs::read_to_string(&path).expect("a file");
    let id = stat.split(' ').next();
    let group = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(2));
    assert_eq!(id, group, "{stat}");
}
