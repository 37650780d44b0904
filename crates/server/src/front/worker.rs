//! A model's process: started on demand, watched, and restarted after its end.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, sleep_until, timeout};

use super::Model;
use super::probe::{get, unready};
use crate::ServeError;
use crate::api::meta_routes::aliases;
use crate::http::auth::Phase;
use crate::ids::now;

/// Interval of health checks, and shortest time between two starts.
const LOOK: Duration = Duration::from_secs(1);
/// Timeout of a health check, and failed checks in a row that are tolerated.
const ANSWER: Duration = Duration::from_secs(5);
const SILENCES_MAX: usize = 3;
/// Period in which ends are counted.
const PERIOD: Duration = Duration::from_secs(600);
/// Longest time for an idle process to exit after its input is closed.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// Longest wait of a request for its model to load.
const LOAD_MAX: Duration = Duration::from_secs(600);
/// Longest wait for the end of a process that has broken a connection.
const END_MAX: Duration = Duration::from_secs(2);
/// Error text once the server is stopping.
const STOPPING: &str = "the server is stopping";

/// State of a model's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// No process, or one that is loading.
    Down,
    /// Ready at an address, in the given run.
    Up { address: SocketAddr, run: u64 },
    /// Ended too often.
    GivenUp(String),
}

/// Reason of a process's end.
enum End {
    /// The front's end.
    Stopped,
    /// No request for the idle time.
    Idle,
    Died(String),
}

/// A model and its process.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) names: Vec<String>,
    pub(super) pinned: bool,
    command: Vec<std::ffi::OsString>,
    keys: String,
    idle: Option<Duration>,
    restarts_max: usize,
    status: watch::Sender<Status>,
    called: Notify,
    at_work: AtomicUsize,
    last_used: Mutex<Instant>,
    /// Unrequested ends of the process.
    deaths: AtomicU64,
    /// Unix time of the model's "creation" in the model list.
    created: u64,
    /// The model's entry in the process's `/v1/models`.
    about: Mutex<Value>,
}

/// A request at work: its model is not unloaded.
#[derive(Debug)]
pub(super) struct AtWork(Arc<Worker>);

impl Drop for AtWork {
    fn drop(&mut self) {
        *self.0.last_used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.at_work.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Worker {
    pub(super) fn new(model: Model, keys: String, idle: Option<Duration>, restarts_max: usize) -> Worker {
        Worker {
            names: model.names,
            pinned: model.pinned,
            command: model.command,
            keys,
            idle,
            restarts_max,
            status: watch::Sender::new(Status::Down),
            called: Notify::new(),
            at_work: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
            deaths: AtomicU64::new(0),
            created: now(),
            about: Mutex::new(json!({})),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    pub(super) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Unrequested ends of the process.
    pub(super) fn deaths(&self) -> u64 {
        self.deaths.load(Ordering::Relaxed)
    }

    /// The model's entry in `/v1/models`: its process's own, once there was one, with the front's fields.
    pub(super) fn to_json(&self, name: &str) -> Value {
        let mut model = self.about.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let own = json!({
            "id": name, "object": "model", "created": self.created, "owned_by": "ottava", "root": self.name(),
            "aliases": aliases(&self.names, name),
        });
        if let (Value::Object(model), Value::Object(own)) = (&mut model, own) {
            model.extend(own);
        }
        model["meta"]["loaded"] = matches!(self.status(), Status::Up { .. }).into();
        model["meta"]["pinned"] = self.pinned.into();
        model
    }

    /// Registers a request at work.
    pub(super) fn begin(self: &Arc<Worker>) -> AtWork {
        self.at_work.fetch_add(1, Ordering::AcqRel);
        AtWork(Arc::clone(self))
    }

    /// Address of the running process, without waiting for one.
    ///
    /// # Errors
    /// The model is not loaded, or given up.
    pub(super) fn now(&self) -> Result<(SocketAddr, u64), String> {
        match self.status() {
            Status::Up { address, run } => Ok((address, run)),
            Status::Down => Err(format!("the model {} is not loaded", self.name())),
            Status::GivenUp(reason) => Err(reason),
        }
    }

    /// Address of the process, once it is loaded; [`Worker::begin`] has registered the demand. After a
    /// failure in run `broken` it waits for another run, unless that run turns out to live.
    ///
    /// # Errors
    /// The reason why there is no process.
    pub(super) async fn up(&self, broken: Option<u64>) -> Result<(SocketAddr, u64), String> {
        let mut status = self.status.subscribe();
        self.called.notify_one();
        if let Some(broken) = broken {
            let ended = status.wait_for(|status| !matches!(status, Status::Up { run, .. } if *run == broken));
            // It lives: only the connection was lost.
            let _ = timeout(END_MAX, ended).await;
        }
        let known = async {
            status.wait_for(|status| *status != Status::Down).await.ok().map(|status| status.clone())
        };
        match timeout(LOAD_MAX, known).await {
            Ok(Some(Status::Up { address, run })) => Ok((address, run)),
            Ok(Some(Status::GivenUp(reason))) => Err(reason),
            Ok(_) => Err(STOPPING.into()),
            Err(_) => Err(format!("the model did not load in {} s", LOAD_MAX.as_secs())),
        }
    }

    /// Keeps the process alive until `stop` is [`Phase::Ending`]. In [`Phase::Draining`] an ended process is
    /// not restarted: the same signal may have ended it.
    ///
    /// # Errors
    /// [`ServeError::Restarts`] for a pinned model that is given up.
    pub(super) async fn run(
        self: Arc<Worker>,
        mut stop: watch::Receiver<Phase>,
        note: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> Result<(), ServeError> {
        self.keep(&mut stop, &*note).await?;
        // No other process will start, so requests must not wait for one.
        self.status.send_replace(Status::GivenUp(STOPPING.into()));
        Ok(())
    }

    async fn keep(
        &self,
        stop: &mut watch::Receiver<Phase>,
        note: &(dyn Fn(&str) + Send + Sync),
    ) -> Result<(), ServeError> {
        let mut deaths = VecDeque::new();
        for run in 0.. {
            tokio::select! {
                biased;
                () = reached(stop, Phase::Ending) => return Ok(()),
                () = self.wanted() => {}
            }
            let next = Instant::now() + LOOK;
            let end = self.live(run, stop).await;
            self.status.send_replace(Status::Down);
            let reason = match end {
                End::Stopped => return Ok(()),
                End::Idle => {
                    note(&format!("{} is unloaded: it had nothing to do", self.name()));
                    continue;
                }
                End::Died(reason) => reason,
            };
            let stopping = *stop.borrow() >= Phase::Draining;
            // An idle process that ends with its front is no event.
            if !stopping || self.is_at_work() {
                note(&format!("the engine of {} ended: {reason}", self.name()));
            }
            if stopping {
                return Ok(());
            }
            self.deaths.fetch_add(1, Ordering::Relaxed);
            deaths.push_back(Instant::now());
            deaths.retain(|death| death.elapsed() < PERIOD);
            if self.restarts_max > 0 && deaths.len() >= self.restarts_max {
                let message = format!("its engine ended {} times in ten minutes: {reason}", deaths.len());
                self.status.send_replace(Status::GivenUp(message));
                if self.pinned {
                    return Err(ServeError::Restarts(self.name().to_owned(), deaths.len(), reason));
                }
                let oldest = deaths.front().map_or(Duration::ZERO, Instant::elapsed);
                tokio::select! {
                    () = sleep(PERIOD.saturating_sub(oldest)) => {}
                    () = reached(stop, Phase::Draining) => return Ok(()),
                }
                self.status.send_replace(Status::Down);
            }
            tokio::select! {
                () = sleep_until(next.into()) => {}
                () = reached(stop, Phase::Draining) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Ready when the process should run: always if pinned, otherwise while a request is at work.
    /// Notifications from before an unload do not count.
    async fn wanted(&self) {
        while !self.pinned && !self.is_at_work() {
            self.called.notified().await;
        }
    }

    /// One process, from its start to its end.
    async fn live(&self, run: u64, stop: &mut watch::Receiver<Phase>) -> End {
        let (mut child, stdin, mut lines) = match self.start() {
            Ok(started) => started,
            Err(error) => return End::Died(format!("it cannot be started: {error}")),
        };
        let address = tokio::select! {
            address = address(&mut lines) => address,
            () = reached(stop, Phase::Ending) => None,
        };
        let Some(address) = address else {
            // A loading process does not read its input, and a closed output does not mean that it has ended.
            // One that has ended keeps its exit status.
            let _ = child.start_kill();
            let status = child.wait().await;
            return if *stop.borrow() == Phase::Ending { End::Stopped } else { End::Died(ended(status)) };
        };
        self.learn(address).await;
        self.status.send_replace(Status::Up { address, run });
        let mut silences = 0;
        loop {
            tokio::select! {
                status = child.wait() => return End::Died(ended(status)),
                () = reached(stop, Phase::Ending) => return self.end(child, stdin, End::Stopped).await,
                () = sleep(LOOK) => {}
            }
            if self.is_idle() {
                self.status.send_replace(Status::Down);
                return self.end(child, stdin, End::Idle).await;
            }
            let reason = match timeout(ANSWER, unready(address)).await {
                Ok(Ok(None)) => {
                    silences = 0;
                    continue;
                }
                // It reports a fatal state itself.
                Ok(Ok(Some(reason))) => reason,
                _ if silences < SILENCES_MAX => {
                    silences += 1;
                    continue;
                }
                _ => "it does not answer".to_owned(),
            };
            self.kill(&mut child).await;
            return End::Died(reason);
        }
    }

    /// Kills the process. The status changes first, so that requests wait for the next process: with much
    /// memory, or a device, this one takes seconds to go.
    async fn kill(&self, child: &mut Child) {
        self.status.send_replace(Status::Down);
        // An error means that it has ended.
        let _ = child.kill().await;
    }

    /// Stores the process's entry in `/v1/models`.
    async fn learn(&self, address: SocketAddr) {
        let key = self.keys.lines().next().unwrap_or_default();
        // On failure the model list has fewer fields.
        let Ok(Ok((_, mut list))) = timeout(ANSWER, get(address, "/v1/models", key)).await else { return };
        if let Some(model @ Value::Object(_)) = list["data"].get_mut(0) {
            *self.about.lock().unwrap_or_else(PoisonError::into_inner) = model.take();
        }
    }

    fn start(&self) -> std::io::Result<(Child, ChildStdin, Lines<BufReader<ChildStdout>>)> {
        let missing = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let (program, arguments) = self.command.split_first().ok_or_else(missing)?;
        let mut command = Command::new(program);
        command.args(arguments).env("OTTAVA_API_KEY", &self.keys).kill_on_drop(true);
        // Terminal signals reach the whole process group. In a group of its own, the process ends when the
        // front decides.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or_else(missing)?;
        Ok((child, stdin, BufReader::new(stdout).lines()))
    }

    /// Ends a process by closing its standard input.
    async fn end(&self, mut child: Child, stdin: ChildStdin, end: End) -> End {
        drop(stdin);
        if timeout(LAST_WORDS, child.wait()).await.is_err() {
            self.kill(&mut child).await;
        }
        end
    }

    fn is_at_work(&self) -> bool {
        self.at_work.load(Ordering::Acquire) > 0
    }

    fn is_idle(&self) -> bool {
        let unused = || self.last_used.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        let idle = self.idle.filter(|_| !self.pinned && !self.is_at_work());
        idle.is_some_and(|idle| unused() > idle)
    }
}

/// Ready when the front has reached a phase.
async fn reached(stop: &mut watch::Receiver<Phase>, phase: Phase) {
    // Without a sender the front has gone.
    let _ = stop.wait_for(|now| *now >= phase).await;
}

/// The first address in the output; `None` if the output ends without one.
async fn address(lines: &mut Lines<BufReader<ChildStdout>>) -> Option<SocketAddr> {
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(address) = line.strip_prefix("http://").and_then(|address| address.parse().ok()) {
            return Some(address);
        }
    }
    None
}

fn ended(status: std::io::Result<ExitStatus>) -> String {
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// A process takes seconds to go if it has much memory, or a device.
    #[tokio::test]
    async fn requests_do_not_wait_for_a_process_that_is_killed() {
        let command = ["/bin/sh", "-c", "exec sleep 600"].map(Into::into).into();
        let model = Model { names: vec!["a".into()], command, pinned: true };
        let worker = Worker::new(model, String::new(), None, 0);
        let (mut child, ..) = worker.start().expect("it starts");
        worker.status.send_replace(Status::Up { address: ([127, 0, 0, 1], 1).into(), run: 0 });
        tokio::select! {
            biased;
            () = worker.kill(&mut child) => {}
            // The kill has begun and not finished.
            () = std::future::ready(()) => {}
        }
        assert_eq!(worker.status(), Status::Down);
    }
}
