//! `ottava serve` in a process of its own, plain or isolated, with a tiny model.

#![allow(dead_code, reason = "not every test that includes this module uses all of it")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::tiny::{self, Outcome, Tiny};

/// Options of a plain server and of an isolated one.
pub const KINDS: [&[&str]; 2] = [&[], &["--isolated"]];
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Tokens of the model's context, and of an answer that runs long enough to be killed in the middle.
const CONTEXT: u32 = 4096;
pub const LONG: usize = 3000;

/// A server and its folder. Dropping it kills the server.
pub struct Serving {
    pub process: Child,
    pub address: String,
    pub model: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Serving {
    /// Starts a server with more options.
    pub fn start(more: &[&str]) -> Outcome<Serving> {
        Serving::within("", more, Stdio::piped())
    }

    /// Starts a server after a shell's command (`ulimit -n 99 &&`), with a standard error.
    pub fn within(before: &str, more: &[&str], stderr: Stdio) -> Outcome<Serving> {
        let folder = tempfile::tempdir()?;
        let model = folder.path().join("tiny.gguf");
        let mut vocabulary = tiny::vocabulary::byte_level();
        let shape = Tiny::narrow(1000);
        vocabulary.pad(shape.vocab);
        fs::write(
            &model,
            tiny::file_with(&shape, &[("context_length", CONTEXT)], |writer| {
                vocabulary.describe(writer);
                Ok(())
            })?,
        )?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("{before} exec \"$0\" \"$@\"")]).arg(env!("CARGO_BIN_EXE_ottava"));
        command.args(["serve", "--port", "0", "--device", "cpu", "--threads", "1", "--model"]);
        command.arg(&model).args(more).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        // Its own process group, as from a shell: Ctrl-C goes to the group.
        command.process_group(0);
        let mut process = command.spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut line)?;
        let address = line.trim().strip_prefix("http://").expect("an address").to_owned();
        Ok(Serving { process, address, model, _folder: folder })
    }

    /// Sends a request and returns status and body.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> std::io::Result<(u16, String)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let head = format!(
            "{method} {path} HTTP/1.0\r\nhost: {}\r\ncontent-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all((head + &body).as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.unwrap_or_else(|| panic!("{answer:?}")), body.to_owned()))
    }

    pub fn complete(&self, model: Option<&str>, tokens: usize, stream: bool) -> (u16, String) {
        let body = json!({"model": model, "prompt": "abc", "max_tokens": tokens, "seed": 5, "ignore_eos": true, "stream": stream});
        self.ask("POST", "/v1/completions", &body).expect("an answer")
    }

    /// Ids of the server's live child processes.
    pub fn engines(&self) -> Vec<u32> {
        let parent_is_front = |id: &u32| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
            fields.next().is_some_and(|state| state != "Z")
                && fields.next().and_then(|parent| parent.parse().ok()) == Some(self.process.id())
        };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        ids.filter(parent_is_front).collect()
    }

    pub fn kill_engines(&self) {
        self.signal_engines("KILL");
    }

    pub fn signal_engines(&self, signal: &str) {
        for id in self.engines() {
            let _ = Command::new("/bin/sh")
                .args(["-c", &format!("kill -{signal} {id}")])
                .stderr(Stdio::null())
                .status();
        }
    }

    /// Sends a signal to the server alone.
    pub fn signal(&self, signal: &str) -> std::io::Result<()> {
        let kill = format!("kill -{signal} {}", self.process.id());
        Command::new("/bin/sh").args(["-c", &kill]).status().map(|_| ())
    }

    pub fn metrics(&self) -> String {
        self.ask("GET", "/metrics", &Value::Null).expect("an answer").1
    }

    /// Sends SIGINT to the server's process group, as Ctrl-C does, once the server handles the signal.
    pub fn interrupt(&self) -> std::io::Result<()> {
        self.until_it_handles(2);
        let kill = format!("kill -INT -{}", self.process.id());
        Command::new("/bin/sh").args(["-c", &kill]).status().map(|_| ())
    }

    /// Waits until the server handles the signal of this number.
    pub fn until_it_handles(&self, signal: u32) {
        let status = || fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap_or_default();
        let caught = |status: &str| {
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
            mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
        };
        self.until("it handles the signal", || caught(&status()) & (1 << (signal - 1)) != 0);
    }

    /// Waits for the end of the server and returns its exit code and stderr.
    pub fn end(&mut self) -> Outcome<(Option<i32>, String)> {
        let start = Instant::now();
        while self.process.try_wait()?.is_none() {
            assert!(start.elapsed() < PATIENCE, "the server goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut told = String::new();
        if let Some(mut stderr) = self.process.stderr.take() {
            stderr.read_to_string(&mut told)?;
        }
        Ok((self.process.wait()?.code(), told))
    }

    pub fn until(&self, what: &str, is: impl Fn() -> bool) {
        let start = Instant::now();
        while !is() {
            assert!(start.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn is_ready(&self) -> bool {
        self.ask("GET", "/ready", &Value::Null).is_ok_and(|(status, _)| status == 200)
    }

    /// Waits for `/ready` and a live worker of a front, which may not have noticed a kill yet.
    pub fn until_ready(&self) {
        self.until("it is ready", || self.is_ready() && !self.engines().is_empty());
    }

    pub fn is_loaded(&self, name: &str) -> bool {
        let (_, body) = self.ask("GET", &format!("/v1/models/{name}"), &Value::Null).expect("an answer");
        serde_json::from_str::<Value>(&body).expect("JSON")["meta"]["loaded"] == true
    }
}

pub fn text(body: &str) -> String {
    let value: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
    value["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned()
}

/// Whether the metrics have a line that begins with `name` and has this value.
pub fn has(metrics: &str, name: &str, value: f64) -> bool {
    let found = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse().ok());
    metrics.lines().any(|line| line.starts_with(name) && found(line) == Some(value))
}
