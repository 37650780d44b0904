//! Bodies of refused requests and of routes that take none. Clients in JavaScript write all of a request
//! before they read the answer: a connection that breaks meanwhile hides it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use super::Running;
use super::client::{post, raw};

/// Bytes of a body after its first part.
const REST: usize = 5 << 20;

/// Sends a request with the first byte of a body of [`REST`] more, and reads the answer.
fn refused(server: &Running, first: (&str, &str)) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let length = REST + 1;
    let (line, headers) = first;
    let head = format!("{line} HTTP/1.1\r\n{headers}content-length: {length}\r\n\r\na");
    stream.write_all(head.as_bytes()).expect("sent");
    let answer = answer(&mut stream);
    (stream, answer)
}

/// The head and the body of the next answer on a connection.
fn answer(stream: &mut TcpStream) -> String {
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut buffer).expect("an answer");
        assert!(read > 0, "the connection ended after {text:?}");
        text += std::str::from_utf8(&buffer[..read]).expect("UTF-8");
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if length.is_some_and(|length| length.parse() == Ok(body.len())) {
            return text;
        }
    }
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn a_refused_client_may_send_the_rest_and_ask_again() {
    let server = Running::with(|config| config.keys = vec!["secret".into()]);
    let (own, key) = ("host: localhost\r\n", "host: localhost\r\nauthorization: Bearer secret\r\n");
    let cases = [
        ("POST /v1/chat/completions", key, "413"),
        ("POST /v1/chat/completions", own, "401"),
        ("GET /health", own, "200"),
        ("POST /health", own, "405"),
        ("GET /v1/models", key, "200"),
        ("GET /", "host: evil.example\r\n", "403"),
    ];
    for (line, headers, expected) in cases {
        let (mut stream, found) = refused(&server, (line, headers));
        assert_eq!(status(&found), expected, "{line}");
        stream.write_all(&vec![b'a'; REST]).unwrap_or_else(|error| panic!("{line}: {error}"));
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("sent");
        assert_eq!(status(&answer(&mut stream)), "200", "{line}");
    }
}

#[test]
fn a_body_is_not_waited_for_where_the_client_waits_for_leave_or_it_is_too_long() {
    let server = Running::with(|_| {});
    for head in ["expect: 100-continue\r\ncontent-length: 5000000", "content-length: 99999999999"] {
        let request = format!("POST /tokenize HTTP/1.1\r\nhost: localhost\r\n{head}\r\n\r\n");
        assert_eq!(raw(server.address, request.as_bytes()).status, 413, "{head}");
    }
}

#[test]
fn large_answers_come_in_pieces_and_are_whole() {
    let server = Running::with(|_| {});
    let text = "the cat, the hat and the é ".repeat(4000);
    let both = json!({"content": text, "with_pieces": true, "return_token_strs": true});
    let (plain, found) = (
        post(server.address, "/tokenize", &json!({"content": text})),
        post(server.address, "/tokenize", &both),
    );
    assert_eq!(found.header("transfer-encoding"), Some("chunked"));
    let (plain, found) = (plain.json(), found.json());
    let ids = plain["tokens"].as_array().expect("ids");
    let pieces = found["tokens"].as_array().expect("pieces");
    assert_eq!(
        (found["count"].as_u64(), &found["max_model_len"]),
        (Some(ids.len() as u64), &plain["max_model_len"])
    );
    assert!(ids.len() > 1000 && pieces.iter().map(|piece| &piece["id"]).eq(ids), "{}", ids.len());
    assert_eq!(found["token_strs"].as_array().map(Vec::len), Some(ids.len()));
    let back = post(server.address, "/detokenize", &json!({"tokens": ids})).json();
    assert_eq!((&back["content"], &back["prompt"]), (&text.as_str().into(), &text.as_str().into()));
    let pieces = post(server.address, "/tokenize", &json!({"content": "a", "with_pieces": true}));
    assert_eq!(pieces.header("transfer-encoding"), None);
}
