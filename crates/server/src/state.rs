//! State shared by all requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ottava::Engine;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::error::{ApiError, shown};
use crate::http::auth::Guard;
use crate::ids::{now, sha256};
use crate::metrics::Metrics;
use crate::request::template_demands::TemplateDemands;

/// Score requests that may wait for the engine, a thread each: the engine's default queue of 16, one running,
/// and one more that gets the refusal.
pub(crate) const SCORES: usize = 18;

/// The engine, the keys and the metrics.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) guard: Arc<Guard>,
    pub(crate) metrics: Metrics,
    /// Unix time of the start, the model's `created`.
    pub(crate) started: u64,
    /// The threads of requests.
    pub(crate) threads: Handle,
    names: Vec<String>,
    /// Demands of the chat template.
    pub(crate) demands: Arc<TemplateDemands>,
    fingerprint: String,
    /// Bounds CPU-heavy work: templates and tokenising.
    workers: Arc<Semaphore>,
    /// Bounds scores, which block a thread while they wait for the engine.
    scores: Arc<Semaphore>,
}

/// Sets its flag when the waiting request is dropped.
#[derive(Debug, Default)]
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl App {
    pub(crate) fn new(engine: Engine, guard: Arc<Guard>, workers: usize, threads: Handle) -> App {
        let mut names = guard.config.names.clone();
        if names.is_empty() {
            names.push(model_id(&engine));
        }
        let [workers, scores] = [workers, SCORES].map(|permits| Arc::new(Semaphore::new(permits)));
        let started = now();
        let metrics = Metrics::new(&names[0]);
        let (fingerprint, demands) = (fingerprint(&engine), Arc::default());
        App { engine, guard, metrics, started, threads, names, demands, fingerprint, workers, scores }
    }

    /// Names of the model; the first is the one in answers.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// The name in answers.
    pub(crate) fn name(&self) -> &str {
        &self.names[0]
    }

    /// `system_fingerprint` of answers: equal for equal model files, settings and versions.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Checks the request's field `model`.
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

    /// Runs CPU-heavy work on a thread for blocking work.
    ///
    /// # Errors
    /// The work's own; an internal error if the work panicked.
    pub(crate) async fn work<T: Send + 'static>(
        self: &Arc<App>,
        work: impl FnOnce(&Engine) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        // The semaphore is never closed. The work holds its permit to its end, even if its request is
        // dropped.
        let permit = Arc::clone(&self.workers).acquire_owned().await;
        self.on_thread(move |engine| {
            let _permit = permit;
            work(engine)
        })
        .await
    }

    /// Runs work that blocks on the engine's thread, in as many threads as the engine's queue has places. The
    /// flag is set when the request is dropped.
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
        self.threads.spawn_blocking(move || work(&app.engine)).await.map_err(failed)?
    }
}

/// Fingerprint of the engine and of this version, in OpenAI's form.
fn fingerprint(engine: &Engine) -> String {
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let hash = sha256(&[engine.info().fingerprint.as_bytes(), version]);
    hash.iter().take(5).fold("fp_".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// The model's own name as an id, safe in URLs and metric labels.
fn model_id(engine: &Engine) -> String {
    let name = &engine.info().name;
    let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let id: String = name.chars().take(64).map(plain).collect();
    if id.is_empty() { "model".to_owned() } else { id }
}
