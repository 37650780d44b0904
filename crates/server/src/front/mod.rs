//! A front: one address for several processes. Each model has an engine in a process of its own, which is
//! restarted when it dies, hangs or loses its device. A [`Front`] forwards every request.
//!
//! A request is sent a second time, and no third, if its process dies before the client has seen any of the
//! answer; any other ends in one error. `worker` keeps one `process` alive: `probe` sends health checks, and
//! `pulse` judges the missed ones. `forward` picks a process for a request, `upstream` sends it, and `relay`
//! streams the answer back.

mod forward;
mod probe;
mod process;
mod pulse;
mod relay;
mod upstream;
mod worker;

use std::collections::HashSet;
use std::ffi::OsString;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::api::meta_routes::{self, InPath};
use crate::api::openapi;
use crate::error::{ApiError, json_body, quoted};
use crate::http::auth::{Guard, Phase};
use crate::http::files;
use crate::http::listen::Listener;
use crate::http::middleware::gate;
use crate::http::threads::on_one_thread;
use crate::{Config, ServeError};
use worker::Worker;

/// Idle time of a pooled connection to a process, below the process's own ([`Config::idle_timeout`]).
const IDLE_MAX: Duration = Duration::from_secs(5);

/// Most idle connections in the pool of one process.
const POOLED_MAX: usize = 16;
/// Files of a process in the front, in addition to the connections of requests: its pipes, those of its
/// start, a probe and the pool.
const PROCESS_FILES: usize = 8 + POOLED_MAX;
/// Files of a client's connection: its own, and one to a process.
const CONNECTION_FILES: usize = 2;

/// A model with a process of its own.
#[derive(Clone, Debug)]
pub struct Model {
    /// Names of the model for clients; at least one.
    pub names: Vec<String>,
    /// The program and its arguments. It prints `http://ADDRESS` on its first line when it is ready, and
    /// exits at the end of its standard input.
    pub command: Vec<OsString>,
    /// Whether it runs from the start and for ever. Other models start on the first request and end when
    /// idle.
    pub pinned: bool,
}

/// A server of models in processes of their own.
#[derive(Debug)]
pub struct Front {
    listener: Listener,
    config: Config,
    models: Vec<Model>,
    /// Idle time after which a model that is not pinned is unloaded.
    idle: Option<Duration>,
    /// Ends of a process in ten minutes after which it is given up; 0 is no limit.
    restarts_max: usize,
}

/// State shared by all forwarded requests.
#[derive(Debug)]
struct Shared {
    guard: Arc<Guard>,
    workers: Vec<Arc<Worker>>,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Front {
    /// Listens on the address of `config`. Requests without a model go to the first.
    ///
    /// # Errors
    /// As [`Server::bind`](crate::Server::bind), and [`ServeError::Name`] if two models have one name.
    pub fn bind(config: Config, models: Vec<Model>) -> Result<Front, ServeError> {
        let mut names = HashSet::new();
        for model in &models {
            // One model may repeat a name.
            let own: HashSet<_> = model.names.iter().collect();
            if let Some(taken) = own.into_iter().find(|name| !names.insert(*name)) {
                return Err(ServeError::Name(taken.clone()));
            }
        }
        let reserve = PROCESS_FILES * models.len();
        let connections_max = files::connections_within(config.connections_max, CONNECTION_FILES, reserve);
        let listener = Listener::bind(&config, connections_max)?;
        Ok(Front { listener, config, models, idle: None, restarts_max: 3 })
    }

    /// Idle time after which a model that is not pinned is unloaded.
    pub fn unload_after(mut self, idle: Duration) -> Front {
        self.idle = Some(idle);
        self
    }

    /// Ends of a process in ten minutes after which its model is given up; 0 is no limit. Default: 3.
    pub fn restarts_max(mut self, times: usize) -> Front {
        self.restarts_max = times;
        self
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Most open connections of clients: [`Config::connections_max`], or fewer under a low limit of open
    /// files.
    pub fn connections_max(&self) -> usize {
        self.listener.connections_max()
    }

    /// Forwards until `stop` is ready, then drains running requests and ends the processes. `note` gets a
    /// line for each event of a process; it runs on the thread of all requests, so it must not wait.
    ///
    /// # Errors
    /// [`ServeError::Restarts`] if a pinned model's process ends too often; [`ServeError::Threads`].
    pub fn run(
        self,
        stop: impl Future<Output = ()>,
        note: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<(), ServeError> {
        on_one_thread(self.serve(stop, Arc::new(note)))
    }

    async fn serve(
        self,
        stop: impl Future<Output = ()>,
        note: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> Result<(), ServeError> {
        let keys = self.config.keys.join("\n");
        let worker = |model| Arc::new(Worker::new(model, keys.clone(), self.idle, self.restarts_max));
        let workers: Vec<_> = self.models.into_iter().map(worker).collect();
        let (stopping, stopped) = watch::channel(Phase::Serving);
        let mut running = tokio::task::JoinSet::new();
        for worker in &workers {
            running.spawn(Arc::clone(worker).run(stopped.clone(), Arc::clone(&note)));
        }
        // A pinned model that is given up ends the front.
        let mut given_up = None;
        let stop = async {
            tokio::select! {
                () = stop => {}
                error = lost(&mut running) => given_up = Some(error),
            }
            stopping.send_replace(Phase::Draining);
        };
        let routed = |guard: Arc<Guard>| {
            let mut client = Client::builder(TokioExecutor::new());
            client.pool_idle_timeout(IDLE_MAX).pool_max_idle_per_host(POOLED_MAX);
            let client = client.pool_timer(TokioTimer::new()).build_http();
            routes(&Arc::new(Shared { guard, workers, client }))
        };
        let served = self.listener.serve(self.config, stop, routed).await;
        stopping.send_replace(Phase::Ending);
        while running.join_next().await.is_some() {}
        given_up.map_or(served, Err)
    }
}

/// The error of the first worker that is given up.
async fn lost(running: &mut tokio::task::JoinSet<Result<(), ServeError>>) -> ServeError {
    loop {
        match running.join_next().await {
            Some(Ok(Err(error))) => return error,
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}

impl Shared {
    /// The worker with a model's name; without a name the first.
    fn worker(&self, name: Option<&str>) -> Result<&Arc<Worker>, ApiError> {
        let named =
            |worker: &&Arc<Worker>| name.is_none_or(|name| worker.names.iter().any(|own| own == name));
        self.workers.iter().find(named).ok_or_else(|| {
            let message = format!("the model {} is not served here", quoted(name.unwrap_or_default()));
            ApiError::invalid("model", message).unknown_model()
        })
    }
}

/// The front's own routes; all others are forwarded.
fn routes(shared: &Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(meta_routes::page))
        .route("/health", get(meta_routes::health))
        .route("/v1/health", get(meta_routes::health))
        .route("/ready", get(ready))
        .route("/version", get(meta_routes::version))
        .route("/openapi.json", get(openapi::openapi))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .fallback(forward::forward)
        .method_not_allowed_fallback(meta_routes::no_method)
        .layer(from_fn_with_state(Arc::clone(&shared.guard), gate))
        .with_state(Arc::clone(shared))
}

/// `/ready`: readiness of the pinned models.
async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    meta_routes::readiness(
        shared.guard.not_serving().or_else(|| {
            shared.workers.iter().filter(|worker| worker.pinned).find_map(|worker| worker.unready())
        }),
    )
}

async fn models(State(shared): State<Arc<Shared>>) -> Response {
    let data: Vec<Value> = shared.workers.iter().map(|worker| worker.to_json(worker.name())).collect();
    json_body(&json!({"object": "list", "data": data})).into_response()
}

async fn model(State(shared): State<Arc<Shared>>, InPath(id): InPath) -> Result<Response, ApiError> {
    Ok(json_body(&shared.worker(Some(&id))?.to_json(&id)).into_response())
}
