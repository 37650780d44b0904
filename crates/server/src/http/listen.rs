//! Connections: accepted, with timeouts, and drained at the end.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

use crate::http::auth::{Guard, Phase};
use crate::http::places::{Place, Places};
use crate::{Config, ServeError};

/// Pause after a failed accept, when the system lacks files or memory.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Longest time for the first head on a connection that a new one is to replace.
const HEAD_MAX: Duration = Duration::from_secs(1);
/// Longest time for aborted answers to send their error.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Runs a server to its end on `workers` threads, and up to `blocking` threads for blocking work.
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

/// A bound socket that accepts no connections yet.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    connections_max: usize,
}

impl Listener {
    /// Binds the address of `config`, for at most `connections_max` open connections.
    pub(crate) fn bind(config: &Config, connections_max: usize) -> Result<Listener, ServeError> {
        config.check()?;
        let address = config.address();
        let refused = |source| ServeError::Listen { address, source };
        let socket = TcpListener::bind(address).map_err(refused)?;
        socket.set_nonblocking(true).map_err(refused)?;
        let address = socket.local_addr().map_err(refused)?;
        Ok(Listener { socket, address, connections_max })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn connections_max(&self) -> usize {
        self.connections_max
    }

    /// Serves the routes made for a guard until `stop` is ready and running requests have ended.
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
            places: Places::new(self.connections_max),
            phase: guard.phase.clone(),
            read_timeout: guard.config.read_timeout,
            write_timeout: guard.config.write_timeout,
        };
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                () = connections.accept(&listener) => {}
                () = &mut stop => break,
            }
        }
        drop(listener);
        // A send without receivers fails, which is harmless.
        let _ = phase.send(Phase::Draining);
        let mut ended = pin!(connections.places.all_free());
        if timeout(guard.config.drain, &mut ended).await.is_err() {
            let _ = phase.send(Phase::Ending);
            let _ = timeout(LAST_WORDS, ended).await;
        }
        Ok(())
    }
}

struct Connections {
    routes: Router,
    places: Arc<Places>,
    phase: watch::Receiver<Phase>,
    read_timeout: Duration,
    write_timeout: Duration,
}

impl Connections {
    async fn accept(&self, listener: &tokio::net::TcpListener) {
        match listener.accept().await {
            Ok((stream, _)) => self.serve(stream, self.places.take().await),
            Err(_) => sleep(ACCEPT_AGAIN).await,
        }
    }

    fn serve(&self, stream: TcpStream, place: Arc<Place>) {
        // Tokens are sent one by one, so Nagle's algorithm would delay them.
        let _ = stream.set_nodelay(true);
        // Readers that never read must not hold a connection for ever.
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.write_timeout));
        let routes = TowerToHyperService::new(self.routes.clone());
        let service = {
            let place = Arc::clone(&place);
            service_fn(move |request| {
                let (at_work, response) = (place.begin(), routes.call(request));
                async move { response.await.map(|response| response.map(|body: Body| at_work.until_end_of(body))) }
            })
        };
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.read_timeout)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let mut phase = self.phase.clone();
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            let is_needed = tokio::select! {
                // Connection errors are visible to the client alone.
                _ = connection.as_mut() => return,
                () = place.needed() => true,
                _ = phase.wait_for(|phase| *phase != Phase::Serving) => false,
            };
            // An idle connection closes at once, any other after its request.
            connection.as_mut().graceful_shutdown();
            if is_needed && !place.has_begun() {
                match timeout(HEAD_MAX, connection.as_mut()).await {
                    Err(_) if place.has_begun() => {}
                    _ => return,
                }
            }
            let _ = connection.await;
        });
    }
}
