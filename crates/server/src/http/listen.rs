//! Connections: accepted, with timeouts, and drained at the end.

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::http::auth::{Guard, Phase};
use crate::http::connection;
use crate::http::idle::{Activity, IdleQueue, Timeouts};
use crate::{Config, ServeError};

/// Pause after a failed accept, when the system lacks files or memory.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// Pause before another idle connection is closed for a client that still waits.
const CLOSE_AGAIN: Duration = Duration::from_millis(50);
/// Most connections, a bound of the semaphore's type.
const CONNECTIONS_MAX: usize = 1 << 24;
/// Longest time for aborted answers to send their error.
const LAST_WORDS: Duration = Duration::from_secs(2);

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
        let connections_max = connections_max.clamp(1, CONNECTIONS_MAX);
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
        let guard = Arc::new(Guard::new(config, watched.clone()));
        let connections = Connections {
            routes: routes(Arc::clone(&guard)),
            most: self.connections_max,
            room: Arc::new(Semaphore::new(self.connections_max)),
            idle: Arc::new(IdleQueue::default()),
            timeouts: Timeouts { head: guard.config.read_timeout, idle: guard.config.idle_timeout },
            write_timeout: guard.config.write_timeout,
            phase: watched,
        };
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                () = connections.accept(&listener) => {}
                () = &mut stop => break,
            }
        }
        drop(listener);
        // A send without receivers fails, which is harmless.
        let _ = phase.send(Phase::Draining);
        let mut ended = std::pin::pin!(connections.ended());
        if timeout(guard.config.drain, &mut ended).await.is_err() {
            let _ = phase.send(Phase::Ending);
            let _ = timeout(LAST_WORDS, ended).await;
        }
        Ok(())
    }
}

struct Connections {
    routes: Router,
    /// Permits of `room`.
    most: usize,
    room: Arc<Semaphore>,
    idle: Arc<IdleQueue>,
    timeouts: Timeouts,
    write_timeout: Duration,
    phase: watch::Receiver<Phase>,
}

impl Connections {
    async fn accept(&self, listener: &tokio::net::TcpListener) {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Some(room) = self.room().await {
                    self.serve(stream, room);
                }
            }
            Err(_) => sleep(ACCEPT_AGAIN).await,
        }
    }

    /// Room for a connection. If there is none, the connections that have been idle the longest are closed,
    /// one by one, because a request may come on one that is to be closed.
    async fn room(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(room) = Arc::clone(&self.room).try_acquire_owned() {
            return Some(room);
        }
        let mut room = std::pin::pin!(Arc::clone(&self.room).acquire_owned());
        loop {
            self.idle.end_oldest();
            if let Ok(room) = timeout(CLOSE_AGAIN, &mut room).await {
                // The semaphore is never closed.
                return room.ok();
            }
        }
    }

    /// Ready when all connections have ended.
    async fn ended(&self) {
        let _ = self.room.acquire_many(self.most as u32).await;
    }

    fn serve(&self, stream: TcpStream, room: OwnedSemaphorePermit) {
        let activity = Activity::new(Arc::clone(&self.idle), self.timeouts);
        let (routes, phase) = (self.routes.clone(), self.phase.clone());
        let connection = connection::serve(stream, routes, activity, self.write_timeout, phase);
        tokio::spawn(async move {
            connection.await;
            drop(room);
        });
    }
}
