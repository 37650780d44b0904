//! A server in a child process, and the cost of one request to it.

use std::fmt;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ottava::{Device, Engine};
use ottava_server::{Config, Server, input_ended};

use super::cases::Case;
use super::tiny::Outcome;

/// First argument of the child.
pub const SERVE: &str = "--serve";

/// Most CPU time of a request. Dependencies are not optimised in builds of tests.
const CPU_S_MAX: f64 = if cfg!(debug_assertions) { 3.0 } else { 2.0 };
/// Most CPU time of the thread that answers probes, which waits for it in turn.
const PROBE_CPU_S_MAX: f64 = 0.5;
/// Most memory of a request: this, and 16 times its body.
const MIB_MAX: f64 = 64.0;
const BODIES_MAX: f64 = 16.0;

/// The cost of a request.
pub struct Cost {
    status: u16,
    body: usize,
    answer: usize,
    cpu_s: f64,
    probe_cpu_s: f64,
    mib: f64,
}

impl Cost {
    pub fn holds(&self, case: &Case) -> bool {
        let fits = self.mib <= MIB_MAX + BODIES_MAX * mib(self.body);
        self.status == case.status && fits && self.cpu_s <= CPU_S_MAX && self.probe_cpu_s <= PROBE_CPU_S_MAX
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (body, answer) = (mib(self.body), mib(self.answer));
        write!(
            f,
            "{} body {body:4.1} MiB, answer {answer:5.1} MiB, CPU {:5.2} s (probes' thread {:4.2} s), +{:4.0} MiB",
            self.status, self.cpu_s, self.probe_cpu_s, self.mib
        )
    }
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Serves a model until standard input ends.
pub fn serve(model: &Path) -> Outcome {
    let engine = Engine::builder(model).device(Device::Cpu).build()?;
    let mut config = Config::default();
    config.port = 0;
    let server = Server::bind(engine, config)?;
    println!("{}", server.address());
    Ok(server.run(input_ended())?)
}

/// The cost of a case's request.
pub fn cost(model: &Path, case: &Case) -> Outcome<Cost> {
    let body =
        if case.shrinks { Running::start(model)?.largest(case)? } else { (case.body)(1.0).into_bytes() };
    // Memory that a request has left to the process would be free for the next.
    let server = Running::start(model)?;
    // Memory and threads of a first request are the server's, not the case's.
    server.send(b"POST", "/tokenize", br#"{"content": "a"}"#)?;
    let (cpu, probe_cpu) = server.cpu_s()?;
    std::fs::write(format!("/proc/{}/clear_refs", server.child.id()), "5")?;
    let before = server.status("VmRSS:")?;
    let (status, answer) = server.send(case.method.as_bytes(), case.path, &body)?;
    let (cpu_after, probe_cpu_after) = server.cpu_s()?;
    let kib = server.status("VmHWM:")?.saturating_sub(before);
    let (cpu_s, probe_cpu_s) = (cpu_after - cpu, probe_cpu_after - probe_cpu);
    Ok(Cost { status, body: body.len(), answer, cpu_s, probe_cpu_s, mib: kib as f64 / 1024.0 })
}

struct Running {
    child: Child,
    address: SocketAddr,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(model: &Path) -> Outcome<Running> {
        let mut command = Command::new(std::env::current_exe()?);
        let command = command.arg(SERVE).arg(model).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Threads share one heap: others keep freed memory of their own.
        let mut child = command.env("MALLOC_ARENA_MAX", "1").spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().ok_or("no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let address = line.trim().parse();
        let server = Running { child, address: address.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0))) };
        if server.address.port() == 0 { Err(format!("no address in {line:?}").into()) } else { Ok(server) }
    }

    /// The largest body of a case that has not too many values.
    fn largest(&self, case: &Case) -> Outcome<Vec<u8>> {
        let mut share = 1.0;
        loop {
            let body = (case.body)(share).into_bytes();
            if self.send(case.method.as_bytes(), case.path, &body)?.0 != 413 {
                return Ok(body);
            }
            share *= 0.9;
        }
    }

    /// Sends a request; returns the status and the answer's length.
    fn send(&self, method: &[u8], path: &str, body: &[u8]) -> Outcome<(u16, usize)> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(300)))?;
        let head = format!(
            " {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[method, head.as_bytes()].concat())?;
        stream.write_all(body)?;
        let mut answer = vec![0; 1 << 16];
        let (mut length, mut status) = (0, 0);
        loop {
            let read = stream.read(&mut answer)?;
            if read == 0 {
                return Ok((status, length));
            }
            if length == 0 {
                let code = answer.get(9..12).and_then(|code| std::str::from_utf8(code).ok());
                status = code.and_then(|code| code.parse().ok()).unwrap_or_default();
            }
            length += read;
        }
    }

    /// CPU seconds of the process, and of its first thread, which answers probes.
    fn cpu_s(&self) -> Outcome<(f64, f64)> {
        let pid = self.child.id();
        let of = |path: String| -> Outcome<f64> {
            let text = std::fs::read_to_string(path)?;
            let fields = text.rsplit_once(')').ok_or("no name")?.1;
            let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u32>);
            let ticks: u32 = ticks.sum::<Result<u32, _>>()?;
            // A tick is 10 ms on every Linux that has been built for a server.
            Ok(f64::from(ticks) / 100.0)
        };
        Ok((of(format!("/proc/{pid}/stat"))?, of(format!("/proc/{pid}/task/{pid}/stat"))?))
    }

    /// A line of the process's status, in KiB.
    fn status(&self, name: &str) -> Outcome<usize> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such line")?;
        Ok(line.split_whitespace().next().ok_or("no number")?.parse()?)
    }
}
