//! A client on a bare socket, which can send bytes that no HTTP library sends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("JSON, found {self:?}"))
    }

    /// The objects of a stream, and whether it ended with `[DONE]`.
    pub fn events(&self) -> (Vec<Value>, bool) {
        let data: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let done = data.last() == Some(&"[DONE]");
        let objects = data.iter().filter(|line| **line != "[DONE]");
        (objects.map(|line| serde_json::from_str(line).expect("JSON")).collect(), done)
    }
}

impl Answer {
    /// The objects of a stream with named events, where each name is the object's type.
    pub fn named_events(&self) -> Vec<Value> {
        let event = |text: &str| {
            let (name, data) = text.split_once('\n').expect("two lines");
            let (name, data) = (name.strip_prefix("event: "), data.strip_prefix("data: "));
            let data: Value = serde_json::from_str(data.expect("data")).expect("JSON");
            assert_eq!(data["type"].as_str(), name);
            data
        };
        let events = self.body.split("\n\n").filter(|text| !text.is_empty() && !text.starts_with(':'));
        events.map(event).filter(|event| event["type"] != "ping").collect()
    }
}

/// Sends bytes, and reads the whole response.
pub fn raw(address: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
    // The server may stop reading before the request's end.
    let _ = stream.write_all(request);
    read(stream)
}

/// Reads the response to a request already sent on the socket.
pub fn read(stream: TcpStream) -> Answer {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status line");
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).expect("a header");
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_lowercase(), value.to_owned())),
            None => break,
        }
    }
    let mut body = Vec::new();
    // A truncated body is the result, too.
    let _ = reader.read_to_end(&mut body);
    let mut answer = Answer { status, headers, body: String::new() };
    let chunked = answer.header("transfer-encoding") == Some("chunked");
    answer.body = String::from_utf8(if chunked { unchunked(&body) } else { body }).expect("UTF-8");
    answer
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(end) = body.windows(2).position(|two| two == b"\r\n") {
        let size =
            std::str::from_utf8(&body[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let size = size.expect("a chunk's size");
        let from = end + 2;
        if size == 0 || body.len() < from + size {
            break;
        }
        whole.extend_from_slice(&body[from..from + size]);
        body = body.get(from + size + 2..).unwrap_or_default();
    }
    whole
}

/// The bytes of a request.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text =
        format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "host") {
        text += "host: localhost\r\n";
    }
    headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    (text + "\r\n" + body).into_bytes()
}

pub fn get(address: SocketAddr, path: &str) -> Answer {
    raw(address, &request("GET", path, &[], ""))
}

/// The base object with some fields replaced.
pub fn with(mut base: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("an object") };
    more.into_iter().for_each(|(name, value)| base[name] = value);
    base
}

pub fn post(address: SocketAddr, path: &str, body: &Value) -> Answer {
    let headers = [("content-type", "application/json")];
    raw(address, &request("POST", path, &headers, &body.to_string()))
}
