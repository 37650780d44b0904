//! The service over a tiny model, asked over a socket.

#[path = "../../../tests/tiny/mod.rs"]
mod tiny;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use axum_sse::service;
use ottava::{Device, Engine};

/// What the service answers to one request.
fn ask(address: std::net::SocketAddr, path: &str, body: &str) -> std::io::Result<String> {
    let method = if body.is_empty() { "GET" } else { "POST" };
    let mut socket = TcpStream::connect(address)?;
    let head = format!("{method} {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n");
    let length = format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    socket.write_all(format!("{head}{length}{body}").as_bytes())?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn an_answer_comes_as_events() -> tiny::Outcome {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny::llama()?)?;
    let engine = Engine::builder(&path).device(Device::Cpu).build()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    let routes = service(engine.clone());
    runtime.spawn(async move { axum::serve(listener, routes).await });

    assert!(ask(address, "/ready", "")?.starts_with("HTTP/1.1 200"));
    let answer = ask(address, "/chat", r#"{"text": "sing"}"#)?;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("text/event-stream"), "{answer}");
    let ends = ["event: length", "event: eos", "event: stop"];
    assert!(answer.contains("data:") && ends.iter().any(|end| answer.contains(end)), "{answer}");
    let long = format!(r#"{{"text": "{}"}}"#, "the hero ".repeat(20_000));
    assert!(ask(address, "/chat", &long)?.starts_with("HTTP/1.1 413"), "the prompt does not fit");
    engine.drain(std::time::Instant::now());
    assert!(ask(address, "/ready", "")?.starts_with("HTTP/1.1 503"));
    assert!(ask(address, "/chat", r#"{"text": "sing"}"#)?.starts_with("HTTP/1.1 503"));
    Ok(())
}
