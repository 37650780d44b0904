//! One process of a model: its start, its address, its processor time and its end.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// Longest time for an idle process to exit after its input is closed.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// A process. Dropping it kills it.
pub(super) struct Process {
    child: Child,
    /// The process ends with its standard input.
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts `command`, the program and its arguments, with the clients' keys.
    pub(super) fn start(command: &[OsString], keys: &str) -> std::io::Result<Process> {
        let missing = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let (program, arguments) = command.split_first().ok_or_else(missing)?;
        let mut command = Command::new(program);
        command.args(arguments).env("OTTAVA_API_KEY", keys).kill_on_drop(true);
        // Terminal signals reach the whole process group. In a group of its own, the process ends when the
        // front decides.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or_else(missing)?;
        Ok(Process { child, stdin, lines: BufReader::new(stdout).lines() })
    }

    /// The first address in the output; `None` if the output ends without one.
    pub(super) async fn address(&mut self) -> Option<SocketAddr> {
        while let Ok(Some(line)) = self.lines.next_line().await {
            if let Some(address) = line.strip_prefix("http://").and_then(|address| address.parse().ok()) {
                return Some(address);
            }
        }
        None
    }

    /// Waits for the end of the process, and returns its exit status as a text.
    pub(super) async fn ended(&mut self) -> String {
        ended(self.child.wait().await)
    }

    /// Kills the process and returns its exit status as a text: its own if it has ended before.
    pub(super) async fn kill(&mut self) -> String {
        // An error means that it has ended.
        let _ = self.child.start_kill();
        self.ended().await
    }

    /// Ends the process by closing its standard input.
    pub(super) async fn end(mut self) {
        drop(self.stdin);
        if timeout(LAST_WORDS, self.child.wait()).await.is_err() {
            // An error means that it has ended.
            let _ = self.child.kill().await;
        }
    }

    /// Processor time of all threads so far, in clock ticks. `None` where it is unknown.
    pub(super) fn ticks(&self) -> Option<u64> {
        // Linux alone has the file. Fields 14 and 15 are user and system time; the second field is a name in
        // parentheses, which may contain spaces.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()?)).ok()?;
        let mut fields = stat.rsplit(") ").next()?.split(' ').skip(11);
        let mut time = || fields.next()?.parse::<u64>().ok();
        Some(time()? + time()?)
    }
}

fn ended(status: std::io::Result<ExitStatus>) -> String {
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn script(text: &str) -> Process {
        let command = ["/bin/sh", "-c", text].map(Into::into);
        Process::start(&command, "").expect("it starts")
    }

    #[tokio::test]
    async fn the_time_of_a_process_grows_with_its_work() {
        let mut works = script("while :; do :; done");
        let before = works.ticks().expect("a time");
        while works.ticks().expect("a time") < before + 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(works.kill().await.contains('9'));
        assert_eq!(works.ticks(), None);
    }

    #[tokio::test]
    async fn a_process_ends_with_its_input() {
        let mut process = script("echo starts; echo http://127.0.0.1:7; cat; exit 3");
        assert_eq!(process.address().await, Some(([127, 0, 0, 1], 7).into()));
        process.end().await;
    }
}
