//! What all requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ottava::Engine;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::error::{ApiError, shown};
use crate::http::auth::Guard;
use crate::ids::now;
use crate::metrics::Metrics;

/// Scores that may wait for the engine, a thread each: as many as it takes by default, the one at work, and one that
/// hears that it takes no more.
pub(crate) const SCORES: usize = 18;

/// The engine, who may use it, and what the server counts.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) guard: Arc<Guard>,
    pub(crate) metrics: Metrics,
    /// Unix time of the start: when the model was "created".
    pub(crate) started: u64,
    names: Vec<String>,
    /// Bounds templates and tokenising, which take the processor.
    workers: Arc<Semaphore>,
    /// Bounds scores, which hold a thread while they wait for the engine.
    scores: Arc<Semaphore>,
}

/// Set when whoever waits for work has gone.
#[derive(Debug, Default)]
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl App {
    pub(crate) fn new(engine: Engine, guard: Arc<Guard>, workers: usize) -> App {
        let mut names = guard.config.names.clone();
        if names.is_empty() {
            names.push(model_id(&engine));
        }
        let [workers, scores] = [workers, SCORES].map(|permits| Arc::new(Semaphore::new(permits)));
        let started = now();
        let metrics = Metrics::new(&names[0]);
        App { engine, guard, metrics, started, names, workers, scores }
    }

    /// What the model is called, the first name in answers.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// The name in answers.
    pub(crate) fn name(&self) -> &str {
        &self.names[0]
    }

    /// Checks the model that a request names, if it names one.
    ///
    /// # Errors
    /// Another model's name.
    pub(crate) fn check_model(&self, named: Option<Value>) -> Result<(), ApiError> {
        match named {
            None => Ok(()),
            Some(Value::String(name)) if name.is_empty() || self.names.contains(&name) => Ok(()),
            Some(other) => {
                let message = format!(
                    "the model {} is not served here: expected {}",
                    shown(&other),
                    self.names.join(" or ")
                );
                Err(ApiError::invalid("model", message).unknown_model())
            }
        }
    }

    /// Runs work that takes the processor for long on one of a few threads.
    ///
    /// # Errors
    /// The work's own; one of the server if the work panicked.
    pub(crate) async fn work<T: Send + 'static>(
        self: &Arc<App>,
        work: impl FnOnce(&Engine) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        // It is never closed. The work has its permit to its end, though nobody wait for it any more.
        let permit = Arc::clone(&self.workers).acquire_owned().await;
        self.on_thread(move |engine| {
            let _permit = permit;
            work(engine)
        })
        .await
    }

    /// Runs what waits for the engine's thread: as many at once as the engine takes. The flag is set when nobody waits
    /// for it any more.
    ///
    /// # Errors
    /// As [`App::work`].
    pub(crate) async fn wait<T: Send + 'static>(
        self: &Arc<App>,
        work: impl FnOnce(&Engine, &Arc<AtomicBool>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = Arc::clone(&self.scores).acquire_owned().await;
        let waiting = Gone::default();
        let gone = Arc::clone(&waiting.0);
        self.on_thread(move |engine| {
            let _permit = permit;
            work(engine, &gone)
        })
        .await
    }

    async fn on_thread<T: Send + 'static>(
        self: &Arc<App>,
        work: impl FnOnce(&Engine) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let app = Arc::clone(self);
        let failed = |_| {
            let status = axum::http::StatusCode::INTERNAL_SERVER_ERROR;
            ApiError::new(status, "server_error", "the request's text could not be worked on")
        };
        tokio::task::spawn_blocking(move || work(&app.engine)).await.map_err(failed)?
    }
}

/// The model's own name as an id: without what a URL or a metric's label could trip over.
fn model_id(engine: &Engine) -> String {
    let name = &engine.info().name;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let id: String = name.chars().take(64).map(plain).collect();
    if id.is_empty() { "model".to_owned() } else { id }
}
