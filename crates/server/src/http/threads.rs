//! Threads of a server and of a front. A server's calling thread moves bytes between sockets and requests,
//! and answers probes; all other requests run on threads of their own, so that no work of theirs delays a
//! probe. A front only forwards, on one thread.

use std::future::Future;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

use crate::ServeError;
use crate::error::stopping;
use crate::http::path::OPEN;

/// Longest time for threads to end after the server.
const END_MAX: Duration = Duration::from_secs(2);

/// Runs a server to its end on the calling thread. It gets `workers` threads for requests, with up to
/// `blocking` threads for blocking work.
pub(crate) fn on_threads<F: Future<Output = Result<(), ServeError>>>(
    workers: usize,
    blocking: usize,
    server: impl FnOnce(Handle) -> F,
) -> Result<(), ServeError> {
    let threads = pool(workers, blocking)?;
    // The reader of standard input is its only blocking thread.
    let calling = Builder::new_current_thread()
        .max_blocking_threads(1)
        .thread_name("ottava-stdin")
        .enable_all()
        .build()
        .map_err(ServeError::Threads)?;
    let result = calling.block_on(server(threads.handle().clone()));
    calling.shutdown_background();
    threads.shutdown_timeout(END_MAX);
    result
}

/// Runs a front to its end on a thread of its own.
pub(crate) fn on_one_thread(front: impl Future<Output = Result<(), ServeError>>) -> Result<(), ServeError> {
    // The reader of standard input is its only blocking thread.
    let thread = pool(1, 1)?;
    let result = thread.block_on(front);
    thread.shutdown_timeout(END_MAX);
    result
}

fn pool(workers: usize, blocking: usize) -> Result<Runtime, ServeError> {
    Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(blocking)
        .thread_name("ottava-http")
        .enable_all()
        .build()
        .map_err(ServeError::Threads)
}

/// Aborts its task when dropped.
struct Aborts(AbortHandle);

impl Drop for Aborts {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Answers a probe on the calling thread, and any other request on the threads of requests. A request
/// is aborted when its connection ends.
pub(crate) async fn pass_on(State(threads): State<Handle>, request: Request, next: Next) -> Response {
    if OPEN.contains(&request.uri().path()) {
        return next.run(request).await;
    }
    let task = threads.spawn(next.run(request));
    let _aborts = Aborts(task.abort_handle());
    task.await.unwrap_or_else(|error| match error.is_panic() {
        true => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        false => stopping().into_response(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use tower_service::Service as _;

    use super::*;

    #[test]
    fn probes_are_answered_while_every_thread_of_requests_is_at_work() {
        let (begun, begins) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let ends = std::sync::Arc::new(std::sync::Mutex::new(ends));
        let blocks = move || {
            // The only thread of requests waits here.
            let _ = begun.send(());
            let _ = ends.lock().map(|ends| ends.recv());
            std::future::ready("done")
        };
        let served = on_threads(1, 1, |threads| async move {
            let router = Router::new()
                .route("/health", get(|| async { "ok" }))
                .route("/blocks", get(|| async move { blocks().await }))
                .layer(from_fn_with_state(threads, pass_on));
            let ask = |path: &str| {
                let request = Request::get(path).body(Body::empty()).expect("a request");
                router.clone().call(request)
            };
            let blocked = tokio::spawn(ask("/blocks"));
            tokio::task::yield_now().await;
            begins.recv().expect("the request begins");
            let Ok(answer) = ask("/health").await;
            assert_eq!(answer.status(), StatusCode::OK);
            assert!(!blocked.is_finished());
            end.send(()).expect("the request waits");
            let Ok(answer) = blocked.await.expect("no panic");
            assert_eq!(answer.status(), StatusCode::OK);
            Ok(())
        });
        assert!(served.is_ok());
    }

    #[test]
    fn a_request_without_a_connection_is_aborted() {
        struct Gone(mpsc::Sender<()>);
        impl Drop for Gone {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let (gone, goes) = mpsc::channel();
        let served = on_threads(1, 1, |threads| async move {
            let begun = std::sync::Arc::new(tokio::sync::Notify::new());
            let begins = std::sync::Arc::clone(&begun);
            let waits = move || {
                let (gone, begun) = (Gone(gone.clone()), std::sync::Arc::clone(&begun));
                async move {
                    begun.notify_one();
                    std::future::pending::<()>().await;
                    drop(gone);
                }
            };
            let mut router =
                Router::new().route("/waits", get(waits)).layer(from_fn_with_state(threads, pass_on));
            let request = Request::get("/waits").body(Body::empty()).expect("a request");
            let connection = tokio::spawn(router.call(request));
            begins.notified().await;
            connection.abort();
            assert!(connection.await.is_err_and(|error| error.is_cancelled()));
            goes.recv().expect("the handler is dropped");
            Ok(())
        });
        assert!(served.is_ok());
    }
}
