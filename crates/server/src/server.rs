//! A server of one engine: bound, run, and stopped by a signal or by the end of standard input.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use ottava::Engine;
use tokio::runtime::Handle;

use crate::http::files;
use crate::http::listen::Listener;
use crate::http::threads::on_threads;
use crate::state::{App, SCORES};
use crate::{Config, ServeError, api};

/// Thread held for the server's life: the reader of cache events.
const HELD: usize = 1;

/// A bound server that does not answer yet.
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
    /// [`ServeError::Open`] for a public address without a key; [`ServeError::Listen`] if the address cannot
    /// be bound.
    pub fn bind(engine: Engine, config: Config) -> Result<Server, ServeError> {
        let connections_max = files::connections_within(config.connections_max, 1, 0);
        Ok(Server { listener: Listener::bind(&config, connections_max)?, engine, config })
    }

    /// The bound address, with the port that the system chose for 0.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Most open connections: [`Config::connections_max`], or fewer under a low limit of open files.
    pub fn connections_max(&self) -> usize {
        self.listener.connections_max()
    }

    /// Answers until `stop` is ready, then refuses further requests and drains running ones for
    /// [`Config::drain`].
    ///
    /// # Errors
    /// [`ServeError::Threads`] if the system gives no threads; with the feature `kv-events`,
    /// `ServeError::Events` if cache events cannot be published.
    pub fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        // A quarter of the cores for templates and tokenising; the model uses the others.
        let workers = std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(4));
        on_threads(workers, workers + SCORES + HELD, |threads| self.serve(stop, workers, threads))
    }

    async fn serve(
        self,
        stop: impl Future<Output = ()>,
        workers: usize,
        threads: Handle,
    ) -> Result<(), ServeError> {
        #[cfg(feature = "kv-events")]
        if let Some(endpoint) = &self.config.kv_events {
            let none = || ServeError::Events(endpoint.clone(), "the engine keeps none".into());
            let events = self.engine.cache_events().ok_or_else(none)?;
            threads.spawn(crate::kv_events::publish(crate::kv_events::bind(endpoint).await?, events));
        }
        let engine = self.engine;
        self.listener
            .serve(self.config, stop, |guard| {
                api::routes(&Arc::new(App::new(engine, guard, workers, threads)))
            })
            .await
    }
}

/// Ready on SIGTERM or Ctrl-C. A second signal exits the process at once with the shell's code for it: 128
/// plus the signal's number.
pub async fn asked_to_stop() {
    signalled().await;
    tokio::spawn(async { std::process::exit(128 + signalled().await) });
}

/// Number of the next SIGTERM or SIGINT.
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

/// Ready at the end of standard input, which closes with the parent process. Signals of a terminal or a
/// service manager reach all processes; they are ignored here, and the parent decides.
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
        // A read error counts as the end.
        _ = ended => {}
    }
}
