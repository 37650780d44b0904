//! Ctrl-C and SIGTERM: the first drains a server or stops an answer of `chat`; the second ends the program.

#![cfg(unix)]

#[path = "../../../tests/tiny/mod.rs"]
mod tiny;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A child process, killed on drop.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    fn signal(&self, signal: &str) {
        let sent = Command::new("/bin/sh").args(["-c", &format!("kill -{signal} {}", self.0.id())]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{signal}");
    }

    fn code(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            match self.0.try_wait().expect("a state") {
                Some(status) => return status.code(),
                None => assert!(start.elapsed() < PATIENCE, "the second does not wait"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Starts a request and never sends its body. Returns once the server waits for the body.
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
    let signals = [("INT", 130), ("TERM", 143)];
    let plain = signals.map(|(signal, code)| (None, signal, code));
    let isolated = signals.map(|(signal, code)| (Some("--isolated"), signal, code));
    for (kind, signal, code) in plain.into_iter().chain(isolated) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ottava"));
        command.args(["serve", "--port", "0", "--device", "cpu", "--threads", "1", "--model"]);
        command.arg(&model).args(kind).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = Program(command.spawn().expect("starts"));
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("http://").expect("an address");
        let _request = begun(address);
        server.signal(signal);
        std::thread::sleep(Duration::from_millis(500));
        assert!(server.0.try_wait().expect("a state").is_none(), "the first waits for who has begun");
        server.signal(signal);
        assert_eq!(server.code(), Some(code), "{kind:?}");
    }
}

#[cfg(target_os = "linux")]
mod chat {
    use super::*;

    /// Bytes, and tokens, of a prompt that takes more than a second on any machine.
    const LONG: usize = 30_000;

    struct Chat {
        program: Program,
        stdin: std::process::ChildStdin,
        /// Stdout and stderr, in order.
        printed: BufReader<std::io::PipeReader>,
        folder: tempfile::TempDir,
    }

    impl Chat {
        /// Starts a conversation and waits for its first answer.
        fn start() -> Chat {
            let folder = tempfile::tempdir().expect("a folder");
            let model = folder.path().join("tiny.gguf");
            std::fs::write(&model, tiny::llama_of(1 << 15).expect("a model")).expect("a file");
            let mut command = Command::new(env!("CARGO_BIN_EXE_ottava"));
            command.args([
                "chat",
                "--device",
                "cpu",
                "--threads",
                "1",
                "--temp",
                "0",
                "-n",
                "2",
                "-c",
                "32768",
            ]);
            let (printed, prints) = std::io::pipe().expect("a pipe");
            command.arg("--model").arg(&model).stdin(Stdio::piped());
            command.stdout(prints.try_clone().expect("a pipe")).stderr(prints);
            let mut child = command.spawn().expect("starts");
            // Closes this process's write ends of the pipe.
            drop(command);
            let stdin = child.stdin.take().expect("a pipe");
            let mut chat = Chat { program: Program(child), stdin, printed: BufReader::new(printed), folder };
            chat.say("a\n/first");
            chat.printed_before("/first");
            chat
        }

        fn say(&mut self, lines: &str) {
            self.stdin.write_all(format!("{lines}\n").as_bytes()).expect("sent");
        }

        /// Output before the error about the unknown `command`.
        fn printed_before(&mut self, command: &str) -> String {
            let (mut printed, mut line) = (String::new(), Vec::new());
            while self.printed.read_until(b'\n', &mut line).expect("a line") > 0 {
                let text = String::from_utf8_lossy(&line);
                if text.starts_with(&format!("error: unknown command {command};")) {
                    return printed;
                }
                printed += &text;
                line.clear();
            }
            panic!("the program ended before {command}: {printed}");
        }

        /// User CPU time of the engine thread, in clock ticks: hundredths of a second.
        fn worked(&self) -> u64 {
            let tasks = format!("/proc/{}/task", self.program.0.id());
            let tasks = std::fs::read_dir(tasks).into_iter().flatten().flatten();
            let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
            let engine = |stat: String| -> Option<u64> {
                let (_, rest) = stat.split_once("(ottava-engine) ")?;
                rest.split(' ').nth(11)?.parse().ok()
            };
            stats.filter_map(engine).sum()
        }

        /// Sends a long prompt and waits until the engine works on it: no token comes for a second.
        fn is_long_at_work(&mut self) {
            let before = self.worked();
            self.say(&"z ".repeat(LONG / 2));
            let start = Instant::now();
            while self.worked() < before + 3 {
                assert!(start.elapsed() < PATIENCE, "the engine works");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn an_answer_is_stopped_before_its_first_token_and_leaves_no_trace() {
        let mut chat = Chat::start();
        chat.is_long_at_work();
        chat.program.signal("INT");
        let path = chat.folder.path().join("saved.json");
        chat.say(&format!("/stopped\n/save {}\n/saved", path.display()));
        assert_eq!(chat.printed_before("/stopped"), "\n");
        chat.printed_before("/saved");
        let saved = std::fs::read(path).expect("a file");
        let saved: serde_json::Value = serde_json::from_slice(&saved).expect("JSON");
        let roles: Vec<_> = saved.as_array().into_iter().flatten().map(|message| &message["role"]).collect();
        assert_eq!(roles, ["user", "assistant"]);
    }

    #[test]
    fn a_second_signal_ends_the_program() {
        let mut chat = Chat::start();
        chat.is_long_at_work();
        chat.program.signal("INT");
        chat.program.signal("INT");
        assert_eq!(chat.program.code(), Some(130));
    }
}
