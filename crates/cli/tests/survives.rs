//! Faults that a server survives, plain and isolated: each test runs for both.

#![cfg(target_os = "linux")]

mod serving;
#[path = "../../../tests/tiny/mod.rs"]
mod tiny;

use std::io::{PipeWriter, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::process::Stdio;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};
use serving::{KINDS, LONG, PATIENCE, Serving, text};
use tiny::Outcome;

/// Starts a server of a kind and waits until it can answer.
fn ready(kind: &[&str]) -> Outcome<Serving> {
    let server = Serving::start(kind)?;
    server.until("it is ready", || server.is_ready());
    Ok(server)
}

/// Sends a request and returns the connection.
fn begun(server: &Serving, path: &str, body: &Value) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(&server.address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        server.address,
        body.len()
    );
    stream.write_all((head + &body).as_bytes())?;
    Ok(stream)
}

/// A long stream, with its first bytes read.
fn streams(server: &Serving) -> std::io::Result<TcpStream> {
    let body = json!({"prompt": "abc", "max_tokens": LONG, "ignore_eos": true, "stream": true});
    let mut stream = begun(server, "/v1/completions", &body)?;
    let mut first = [0; 64];
    stream.read_exact(&mut first)?;
    Ok(stream)
}

#[test]
fn more_idle_connections_than_files() -> Outcome {
    for kind in KINDS {
        let server = Serving::within("ulimit -n 128 &&", kind, Stdio::null())?;
        server.until("it is ready", || server.is_ready());
        let engines = server.engines();
        let mut stream = streams(&server)?;
        let mut idle = Vec::new();
        for _ in 0..160 {
            let mut connection = TcpStream::connect(&server.address)?;
            // A third has had an answer, and a third breaks off within a head. The server may close them.
            let sent: [&[u8]; 3] = [b"", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET /hea"];
            let _ = connection.write_all(sent[idle.len() % 3]);
            idle.push(connection);
        }
        for _ in 0..3 {
            assert_eq!(server.complete(None, 3, false).0, 200, "{kind:?}");
        }
        assert_eq!(server.engines(), engines, "{kind:?}: no engine has ended");
        let mut rest = String::new();
        stream.read_to_string(&mut rest)?;
        assert!(rest.contains("[DONE]"), "{kind:?}: the stream was at work: {rest}");
    }
    Ok(())
}

/// Fills a pipe, and keeps it full for as long as it has readers.
fn keep_full(mut pipe: PipeWriter) -> Outcome {
    let other = pipe.try_clone()?;
    std::thread::spawn(move || while pipe.write_all(&[b'x'; 4096]).is_ok() {});
    let has_room = || poll(&mut [PollFd::new(other.as_fd(), PollFlags::POLLOUT)], PollTimeout::ZERO);
    while has_room()? > 0 {
        std::thread::yield_now();
    }
    Ok(())
}

#[test]
fn a_log_that_is_not_read() -> Outcome {
    for kind in KINDS {
        let (_reader, writer) = std::io::pipe()?;
        keep_full(writer.try_clone()?)?;
        let mut server = Serving::within("", kind, writer.into())?;
        server.until("it is ready", || server.is_ready());
        assert_eq!(server.complete(None, 3, false).0, 200, "{kind:?}");
        if !kind.is_empty() {
            server.kill_engines();
            assert_eq!(server.complete(None, 3, false).0, 200, "{kind:?}");
        }
        server.until_it_handles(15);
        server.signal("TERM")?;
        assert_eq!(server.end()?.0, Some(0), "{kind:?}");
    }
    Ok(())
}

#[test]
fn clients_that_break_off_or_send_anything() -> Outcome {
    for kind in KINDS {
        let server = ready(kind)?;
        let engines = server.engines();
        let beginnings: [&[u8]; 6] = [
            b"",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"GET /health HT",
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{",
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999999999999999\r\n\r\n",
            b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        ];
        for beginning in beginnings {
            TcpStream::connect(&server.address)?.write_all(beginning)?;
        }
        for _ in 0..8 {
            drop(streams(&server)?);
            let body = json!({"prompt": "abc", "max_tokens": LONG, "ignore_eos": true});
            drop(begun(&server, "/v1/completions", &body)?);
        }
        server.until("nothing runs any more", || {
            serving::has(&server.metrics(), "vllm:num_requests_running", 0.0)
        });
        assert_eq!((server.complete(None, 3, false).0, server.engines()), (200, engines), "{kind:?}");
    }
    Ok(())
}

#[test]
fn a_signal_during_an_answer() -> Outcome {
    for kind in KINDS {
        let mut server = Serving::start(&[kind, &["--drain", "100"]].concat())?;
        server.until("it is ready", || server.is_ready());
        server.until_it_handles(15);
        let body = json!({"prompt": "abc", "max_tokens": LONG, "ignore_eos": true});
        let mut answer = begun(&server, "/v1/completions", &body)?;
        server
            .until("it is at work", || !serving::has(&server.metrics(), "vllm:generation_tokens_total", 0.0));
        server.signal("TERM")?;
        let mut found = String::new();
        answer.read_to_string(&mut found)?;
        let (head, body) = found.split_once("\r\n\r\n").unwrap_or_default();
        assert!(head.starts_with("HTTP/1.1 200") && !text(body).is_empty(), "{kind:?}: {found}");
        assert_eq!(server.end()?.0, Some(0), "{kind:?}");
        assert!(TcpStream::connect(&server.address).is_err(), "{kind:?}");
    }
    Ok(())
}
