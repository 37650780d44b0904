//! A model and its process, as requests see them. `life` starts, watches and restarts the process.

mod life;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::Model;
use crate::api::meta_routes::aliases;
use crate::ids::now;

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
    /// Whether the process has missed its last health check.
    is_silent: AtomicBool,
    /// One more than the run that was ended because it computed without an end; 0 for none.
    spun: AtomicU64,
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
            is_silent: AtomicBool::new(false),
            spun: AtomicU64::new(0),
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

    /// The reason why the model cannot answer, if it cannot.
    pub(super) fn unready(&self) -> Option<String> {
        match self.status() {
            Status::Up { .. } if self.is_silent.load(Ordering::Relaxed) => {
                Some(format!("{} does not answer", self.name()))
            }
            Status::Up { .. } => None,
            Status::Down | Status::GivenUp(_) => Some(format!("{} is being loaded", self.name())),
        }
    }

    /// Whether requests that were at work at the end of `run` may be sent to the next process. Those of a
    /// process that computed without an end may not: one of them was the reason.
    pub(super) fn repeats(&self, run: u64) -> bool {
        self.spun.load(Ordering::Acquire) != run + 1
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

    fn is_at_work(&self) -> bool {
        self.at_work.load(Ordering::Acquire) > 0
    }

    fn is_idle(&self) -> bool {
        let unused = || self.last_used.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        let idle = self.idle.filter(|_| !self.pinned && !self.is_at_work());
        idle.is_some_and(|idle| unused() > idle)
    }
}
