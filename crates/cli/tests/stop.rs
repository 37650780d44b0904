//! `ottava serve` and Ctrl-C: the first lets answers end, the second does not wait for them.

#![cfg(unix)]

#[path = "../../../tests/tiny/mod.rs"]
mod tiny;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    fn signal(&self, signal: &str) {
        let sent = Command::new("/bin/sh").args(["-c", &format!("kill -{signal} {}", self.0.id())]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{signal}");
    }
}

/// A request whose body does not come: the server has begun to wait for it.
fn begun(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let head = format!(
        "POST /tokenize HTTP/1.1\r\nhost: {address}\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 100");
    stream
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, tiny::llama().expect("a model")).expect("a file");
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ottava"));
        command.args(["serve", "--port", "0", "--device", "cpu", "--threads", "1", "--model"]);
        command.arg(&model).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = Server(command.spawn().expect("starts"));
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("http://").expect("an address");
        let _request = begun(address);
        server.signal(signal);
        std::thread::sleep(Duration::from_millis(500));
        assert!(server.0.try_wait().expect("a state").is_none(), "the first waits for who has begun");
        server.signal(signal);
        let start = Instant::now();
        let status = loop {
            match server.0.try_wait().expect("a state") {
                Some(status) => break status,
                None => assert!(start.elapsed() < PATIENCE, "the second does not wait"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(code));
    }
}
