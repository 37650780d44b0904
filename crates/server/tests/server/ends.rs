//! Gone readers, timeouts, overload, and the server's own end, for a plain server and for a front.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ottava::engine::Generation;
use ottava::sample::TokenSet;
use ottava::{EngineConfig, Request, TokenId};
use serde_json::{Value, json};

use super::Running;
use super::client::{post, read, request};
#[cfg(feature = "kv-events")]
use ottava_server::{Config, ServeError, Server};

const COMPLETIONS: &str = "/v1/completions";

/// A long stream, with its first bytes read.
pub fn begun(server: &Running) -> TcpStream {
    let body = json!({"prompt": "a b c", "max_tokens": 400, "ignore_eos": true, "stream": true}).to_string();
    let mut stream = TcpStream::connect(server.address).expect("connects");
    stream.write_all(&request("POST", COMPLETIONS, &[], &body)).expect("sent");
    let mut first = [0; 64];
    assert!(stream.read(&mut first).expect("a beginning") > 0);
    stream
}

/// An answer with 20 ms for each token, on any machine. Later requests wait if there is one sequence slot.
pub fn slow_answer(server: &Running, tokens: usize) -> Generation {
    let slowly = |_: &[TokenId], allowed: &mut TokenSet| {
        std::thread::sleep(Duration::from_millis(20));
        allowed.extend([TokenId(4)]);
    };
    let request = Request::text("a b c").max_tokens(tokens).mask(slowly);
    server.engine.submit(request).expect("there is room")
}

/// Waits until a condition holds, up to the test's timeout.
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_reader_that_goes_gives_its_pages_back() {
    for server in Running::both(EngineConfig::default(), |_| {}) {
        for _ in 0..5 {
            drop(begun(&server));
        }
        eventually("all pages are free", || {
            let stats = server.engine.stats();
            stats.running + stats.waiting + stats.pages_used == 0
        });
        let stats = server.engine.stats();
        assert_eq!(stats.admitted, stats.finished + stats.failed + stats.cancelled, "none is lost");
        assert!(stats.failed == 0, "{stats:?}");
    }
}

#[test]
fn requests_beyond_the_queue_are_told_to_come_back() {
    let scheduling = EngineConfig { queue_max: 1, ..EngineConfig::default() };
    for server in Running::both(scheduling, |_| {}) {
        let holding = slow_answer(&server, 400);
        let answer = post(server.address, COMPLETIONS, &json!({"prompt": "a", "max_tokens": 1}));
        assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")), "{answer:?}");
        drop(holding);
        eventually("the next one is answered", || {
            post(server.address, COMPLETIONS, &json!({"prompt": "a", "max_tokens": 1})).status == 200
        });
    }
}

#[test]
fn slow_senders_are_cut() {
    for server in
        Running::both(EngineConfig::default(), |config| config.read_timeout = Duration::from_millis(300))
    {
        for beginning in [
            "",
            "GET /health HT",
            "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{",
        ] {
            let mut stream = TcpStream::connect(server.address).expect("connects");
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
            stream.write_all(beginning.as_bytes()).expect("sent");
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).expect("the server ends the connection");
        }
        assert_eq!(super::client::get(server.address, "/health").status, 200);
    }
}

/// Sends a request without closing the connection, and reads the answer of `/health`.
fn health(stream: &mut TcpStream) -> std::io::Result<String> {
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut block = [0; 512];
    while !answer.ends_with(b"}") {
        match stream.read(&mut block)? {
            0 => break,
            n => answer.extend_from_slice(&block[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Connections may be reused for longer than a head may take.
#[test]
fn an_idle_connection_is_kept_and_ends_in_time() {
    let server = Running::with(|config| config.read_timeout = Duration::from_millis(200));
    let mut stream = TcpStream::connect(server.address).expect("connects");
    for _ in 0..2 {
        assert!(health(&mut stream).expect("an answer").starts_with("HTTP/1.1 200"));
        std::thread::sleep(Duration::from_millis(600));
    }
    assert!(health(&mut stream).expect("an answer").starts_with("HTTP/1.1 200"));
    // The beginning of a head has the head's timeout again.
    stream.write_all(b"GET /he").expect("sent");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the server ends the connection");
    assert!(rest.is_empty());

    let server = Running::with(|config| config.idle_timeout = Duration::from_millis(200));
    let mut stream = TcpStream::connect(server.address).expect("connects");
    assert!(health(&mut stream).expect("an answer").starts_with("HTTP/1.1 200"));
    stream.read_to_end(&mut rest).expect("the server ends the connection");
}

#[test]
fn the_connection_that_is_idle_the_longest_makes_room() {
    let server = Running::with(|config| config.connections_max = 3);
    // One is at work, and is not ended for others.
    let working = begun(&server);
    let mut idle: Vec<TcpStream> = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(server.address).expect("connects");
        assert!(health(&mut stream).expect("an answer").starts_with("HTTP/1.1 200"));
        idle.push(stream);
    }
    let mut third = TcpStream::connect(server.address).expect("connects");
    assert!(health(&mut third).expect("an answer").starts_with("HTTP/1.1 200"));
    let mut rest = Vec::new();
    idle[0].read_to_end(&mut rest).expect("the server ends the first");
    assert!(health(&mut idle[1]).expect("an answer").starts_with("HTTP/1.1 200"), "the second is kept");
    assert!(read_rest(working).contains("[DONE]"));
    // Connections without a byte make room, too.
    let silent: Vec<TcpStream> =
        (0..8).map(|_| TcpStream::connect(server.address).expect("connects")).collect();
    assert_eq!(super::client::get(server.address, "/health").status, 200);
    drop(silent);
}

#[test]
fn readers_that_take_nothing_are_cut() {
    for server in Running::both(EngineConfig::default(), |config| {
        config.connections_max = 1;
        config.write_timeout = Duration::from_millis(300);
    }) {
        let mut stream = TcpStream::connect(server.address).expect("connects");
        stream.set_write_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        // More pages than the socket buffers hold. The server may stop reading or cut the connection.
        let asked = request("GET", "/", &[], "").repeat(10_000);
        let _ = stream.write_all(&asked);
        // It gets the only place.
        assert_eq!(super::client::get(server.address, "/health").status, 200);
        drop(stream);
    }
}

/// A new connection gets the place of the one that has been idle for longest, also if a first head has begun
/// on it. Connections with a request keep theirs.
#[test]
fn idle_connections_make_room() {
    for server in Running::both(EngineConfig::default(), |config| {
        config.connections_max = 3;
        config.read_timeout = Duration::from_secs(3600);
    }) {
        let mut stream = begun(&server);
        let mut idle = Vec::new();
        for _ in 0..10 {
            let fresh = TcpStream::connect(server.address).expect("connects");
            fresh.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
            let mut used = fresh.try_clone().expect("a clone");
            idle.push(fresh);
            if idle.len() % 2 == 0 {
                used.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("sent");
                let mut status = [0; 12];
                used.read_exact(&mut status).expect("an answer");
                assert_eq!(&status, b"HTTP/1.1 200");
            } else if idle.len() % 3 == 0 {
                used.write_all(b"GET /hea").expect("sent");
            }
        }
        assert_eq!(super::client::get(server.address, "/health").status, 200);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("the rest");
        assert!(String::from_utf8_lossy(&rest).contains("[DONE]"), "a stream keeps its place");
    }
}

#[test]
fn scores_that_take_too_long_are_given_up() {
    for server in
        Running::both(EngineConfig::default(), |config| config.request_timeout = Some(Duration::ZERO))
    {
        let prompts = vec!["a b c"; 64];
        let body = json!({"prompt": prompts, "max_tokens": 0, "echo": true, "logprobs": 1});
        let answer = post(server.address, COMPLETIONS, &body);
        assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (408, "timeout".into()));
    }
}

#[test]
fn an_answer_that_takes_too_long_ends_with_an_error() {
    for server in
        Running::both(EngineConfig::default(), |config| config.request_timeout = Some(Duration::ZERO))
    {
        let body = json!({"prompt": "a b c", "max_tokens": 400, "ignore_eos": true});
        let answer = post(server.address, COMPLETIONS, &body);
        assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (408, "timeout".into()));
    }
}

#[test]
fn a_server_that_stops_finishes_what_it_has_begun() {
    for mut server in Running::both(EngineConfig::default(), |_| {}) {
        let stream = begun(&server);
        server.stop();
        let (rest, address) = (read_rest(stream), server.address);
        assert!(rest.contains("[DONE]"), "the stream ends in order: {rest}");
        server.join();
        assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
    }
}

#[test]
fn what_is_not_finished_in_time_gets_an_error() {
    for mut server in Running::both(EngineConfig::default(), |config| config.drain = Duration::ZERO) {
        let stream = begun(&server);
        server.stop();
        let rest = read_rest(stream);
        // On a fast machine it may have finished.
        assert!(rest.contains("\"unavailable\"") || rest.contains("[DONE]"), "{rest}");
        server.join();
    }
}

/// A stream that waits for the only sequence slot.
fn waiting(server: &Running) -> TcpStream {
    let body = json!({"prompt": "a", "max_tokens": 1, "stream": true}).to_string();
    let mut stream = TcpStream::connect(server.address).expect("connects");
    stream.write_all(&request("POST", COMPLETIONS, &[], &body)).expect("sent");
    stream
}

/// Marked by a header, for a front to retry with another process.
#[test]
fn an_engine_that_has_ended_says_so() {
    let server = Running::with(|_| {});
    server.engine.drain(Instant::now());
    let answer = post(server.address, COMPLETIONS, &json!({"prompt": "a"}));
    assert_eq!((answer.status, answer.header("x-ottava-engine-lost")), (503, Some("1")), "{answer:?}");
    assert_eq!(answer.json()["error"]["code"], "engine_lost");
}

#[test]
fn an_error_in_place_of_an_answer_is_no_beginning_of_one() {
    let server = Running::with(|config| {
        config.marks_answers = true;
        config.request_timeout = Some(Duration::ZERO);
    });
    let body = read(waiting(&server)).body;
    assert!(body.contains("\"timeout\"") && !body.contains(": answer") && !body.contains(": lost"), "{body}");
}

#[cfg(feature = "kv-events")]
#[test]
fn changes_that_nobody_keeps_are_not_published() {
    let engine = Running::with(|_| {}).engine.clone();
    let mut config = Config::default();
    config.port = 0;
    config.kv_events = Some("tcp://127.0.0.1:0".into());
    let server = Server::bind(engine, config).expect("it listens");
    let error = server.run(async {}).expect_err("refused");
    assert!(matches!(&error, ServeError::Events(_, why) if why.contains("keeps none")), "{error}");
}

fn read_rest(mut stream: TcpStream) -> String {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the rest");
    String::from_utf8_lossy(&rest).into_owned()
}

#[test]
fn quiet_streams_are_kept_alive() {
    let scheduling = EngineConfig { sequences_max: 1, ..EngineConfig::default() };
    for server in Running::both(scheduling, |config| config.keep_alive = Duration::from_millis(1)) {
        let holding = slow_answer(&server, 10);
        let answer = read(waiting(&server));
        assert!(answer.body.contains(": keep-alive"), "{answer:?}");
        assert!(answer.events().1);
        drop(holding);
    }
}

#[test]
fn streams_side_by_side_are_what_they_are_alone() {
    for server in Running::both(EngineConfig::default(), |_| {}) {
        let body = |n: usize| json!({"prompt": format!("nonce {n} a b"), "max_tokens": 20, "seed": n, "temperature": 1});
        let text = |answer: Value| answer["choices"][0]["text"].as_str().expect("text").to_owned();
        let together: Vec<String> = std::thread::scope(|scope| {
            let address = server.address;
            let all: Vec<_> =
                (0..32).map(|n| scope.spawn(move || post(address, COMPLETIONS, &body(n)).json())).collect();
            all.into_iter().map(|one| text(one.join().expect("answered"))).collect()
        });
        for (n, found) in together.into_iter().enumerate() {
            assert_eq!(found, text(post(server.address, COMPLETIONS, &body(n)).json()), "request {n}");
        }
    }
}
