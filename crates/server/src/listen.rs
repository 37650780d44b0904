//! Connections: accepted, timed, and ended in order.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use ottava::Engine;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

use crate::app::{App, SCORES};
use crate::gate::{count, gate};
use crate::guard::{Guard, Phase};
use crate::{Config, ServeError, about, chat, completions, messages, responses, tokens};

/// Threads that are held for a server's whole life: standard input's, and that which waits for the cache's changes.
const HELD: usize = 2;
/// How long a failed accept waits: the system is out of files or memory.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// How long answers that were cut short may take to say so.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A server that listens already and does not answer yet.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    engine: Engine,
    config: Config,
}

impl Server {
    /// Listens on the address of `config`.
    ///
    /// # Errors
    /// [`ServeError::Open`] if others could reach it and there is no key; [`ServeError::Listen`] if the address cannot be
    /// listened on.
    pub fn bind(engine: Engine, config: Config) -> Result<Server, ServeError> {
        Ok(Server { listener: Listener::bind(&config)?, engine, config })
    }

    /// Where it listens: with the port that the system chose for 0.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Answers until `stop` is ready. Then it takes no further requests, and waits for those at work as long as the
    /// configuration says.
    ///
    /// # Errors
    /// [`ServeError::Threads`] if the system gives no threads; with the feature `kv-events`, `ServeError::Events` if
    /// changes of the cache cannot be published.
    pub fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        // Templates and tokenising take a core; the model takes the others.
        let workers = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(4));
        on_threads(workers, workers + SCORES + HELD, self.serve(stop, workers))
    }

    async fn serve(self, stop: impl Future<Output = ()>, workers: usize) -> Result<(), ServeError> {
        #[cfg(feature = "kv-events")]
        if let Some(endpoint) = &self.config.kv_events {
            let none = || ServeError::Events(endpoint.clone(), "the engine keeps none".into());
            let events = self.engine.cache_events().ok_or_else(none)?;
            tokio::spawn(crate::kv_events::publish(crate::kv_events::bind(endpoint).await?, events));
        }
        let engine = self.engine;
        self.listener
            .serve(self.config, stop, |guard| routes(&Arc::new(App::new(engine, guard, workers))))
            .await
    }
}

/// Runs a server to its end on so many threads, and as many more as may block.
pub(crate) fn on_threads(
    workers: usize,
    blocking: usize,
    server: impl Future<Output = Result<(), ServeError>>,
) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(blocking)
        .thread_name("ottava-http")
        .enable_all()
        .build()
        .map_err(ServeError::Threads)?;
    let result = runtime.block_on(server);
    runtime.shutdown_timeout(LAST_WORDS);
    result
}

/// A socket that listens already; nobody is accepted yet.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Listens on the address of `config`.
    pub(crate) fn bind(config: &Config) -> Result<Listener, ServeError> {
        config.check()?;
        let address = config.address();
        let refused = |source| ServeError::Listen { address, source };
        let socket = TcpListener::bind(address).map_err(refused)?;
        socket.set_nonblocking(true).map_err(refused)?;
        let address = socket.local_addr().map_err(refused)?;
        Ok(Listener { socket, address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers with the routes that are made for a guard, until `stop` is ready and those at work have ended.
    pub(crate) async fn serve(
        self,
        config: Config,
        stop: impl Future<Output = ()>,
        routes: impl FnOnce(Arc<Guard>) -> Router,
    ) -> Result<(), ServeError> {
        let address = self.address;
        let listener = tokio::net::TcpListener::from_std(self.socket)
            .map_err(|source| ServeError::Listen { address, source })?;
        let (phase, watched) = watch::channel(Phase::Serving);
        let guard = Arc::new(Guard::new(config, watched));
        let connections = Connections {
            routes: routes(Arc::clone(&guard)),
            graceful: GracefulShutdown::new(),
            room: Arc::new(Semaphore::new(guard.config.connections_max.max(1))),
            read_timeout: guard.config.read_timeout,
            write_timeout: guard.config.write_timeout,
        };
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                () = connections.accept(&listener) => {}
                () = &mut stop => break,
            }
        }
        drop(listener);
        // Nobody may be watching any more.
        let _ = phase.send(Phase::Draining);
        let mut ended = std::pin::pin!(connections.graceful.shutdown());
        if timeout(guard.config.drain, &mut ended).await.is_err() {
            let _ = phase.send(Phase::Ending);
            let _ = timeout(LAST_WORDS, ended).await;
        }
        Ok(())
    }
}

struct Connections {
    routes: Router,
    graceful: GracefulShutdown,
    room: Arc<Semaphore>,
    read_timeout: Duration,
    write_timeout: Duration,
}

impl Connections {
    async fn accept(&self, listener: &tokio::net::TcpListener) {
        // It is never closed.
        let Ok(room) = Arc::clone(&self.room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => self.serve(stream, room),
            Err(_) => sleep(ACCEPT_AGAIN).await,
        }
    }

    fn serve(&self, stream: TcpStream, room: tokio::sync::OwnedSemaphorePermit) {
        // An answer's tokens go out one by one.
        let _ = stream.set_nodelay(true);
        // Whoever reads nothing must not keep a connection for ever.
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.write_timeout));
        let service = TowerToHyperService::new(self.routes.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.read_timeout)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let connection = self.graceful.watch(connection);
        tokio::spawn(async move {
            // What went wrong is the client's to see.
            let _ = connection.await;
            drop(room);
        });
    }
}

/// All routes, behind the gate.
fn routes(app: &Arc<App>) -> Router {
    Router::new()
        .route("/", get(about::page))
        .route("/health", get(about::health))
        .route("/v1/health", get(about::health))
        .route("/ready", get(about::ready))
        .route("/version", get(about::version))
        .route("/openapi.json", get(about::openapi))
        .route("/metrics", get(about::metrics))
        .route("/v1/models", get(about::models))
        .route("/v1/models/{*id}", get(about::model))
        .route("/v1/chat/completions", post(chat::completions))
        .route("/v1/chat/completions/input_tokens", post(tokens::input_tokens))
        .route("/v1/chat/completions/render", post(tokens::render))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/input_tokens", post(responses::input_tokens))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/embeddings", post(about::embeddings))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .fallback(about::nothing)
        .method_not_allowed_fallback(about::no_method)
        // The gate has bounded the body; axum's own limit is lower.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn_with_state(Arc::clone(&app.guard), gate))
        .layer(from_fn_with_state(Arc::clone(app), count))
        .with_state(Arc::clone(app))
}

/// Ready when the process is asked to end: SIGTERM, or Ctrl-C. Asked a second time, the process ends at once, with the
/// code that shells know: 128 and the signal's number.
pub async fn asked_to_stop() {
    signalled().await;
    tokio::spawn(async { std::process::exit(128 + signalled().await) });
}

/// The number of the signal that asks the process to end.
async fn signalled() -> i32 {
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        2
    };
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut terminated) = signal(SignalKind::terminate()) else { return interrupted.await };
        tokio::select! {
            number = interrupted => number,
            _ = terminated.recv() => SignalKind::terminate().as_raw_value(),
        }
    }
    #[cfg(not(unix))]
    interrupted.await
}

/// Ready when standard input ends, as it does with the process that started this one. That one decides: signals of a
/// terminal or a service manager, which all processes get, are left to it.
pub async fn input_ended() {
    let ignored = async {
        loop {
            signalled().await;
        }
    };
    let (mut input, mut nowhere) = (tokio::io::stdin(), tokio::io::sink());
    let ended = tokio::io::copy(&mut input, &mut nowhere);
    tokio::select! {
        () = ignored => {}
        // Broken is as good as ended.
        _ = ended => {}
    }
}
