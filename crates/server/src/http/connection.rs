//! One connection: its requests in turn, until the client leaves, it must make room, or the server stops.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tower_service::Service as _;

use crate::http::auth::Phase;
use crate::http::idle::{Activity, TimedReads};
use crate::http::path;

/// Longest time for a request on a connection that has to make room.
const HEAD_MAX: Duration = Duration::from_secs(1);

/// Serves a connection to its end. Connection errors are visible to the client alone.
pub(crate) async fn serve(
    stream: TcpStream,
    routes: Router,
    activity: Arc<Activity>,
    write_timeout: Duration,
    mut phase: watch::Receiver<Phase>,
) {
    // Tokens are sent one by one, so Nagle's algorithm would delay them.
    let _ = stream.set_nodelay(true);
    // Readers that never read must not hold a connection for ever.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(write_timeout));
    let stream = TimedReads::new(Box::pin(stream), Arc::clone(&activity));
    let of_request = Arc::clone(&activity);
    let service = service_fn(move |request| answer(routes.clone(), request, Arc::clone(&of_request)));
    let connection = http1::Builder::new()
        // The stream has timeouts that distinguish an idle connection from a slow head.
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let makes_room = tokio::select! {
        _ = connection.as_mut() => return,
        () = activity.ended() => true,
        // An error means that the server is gone.
        _ = phase.wait_for(|phase| *phase != Phase::Serving) => false,
    };
    connection.as_mut().graceful_shutdown();
    // A request may have come at the same time; a head that has only begun does not keep its place.
    if makes_room {
        let ended = timeout(HEAD_MAX, connection.as_mut()).await.is_ok();
        if ended || !activity.is_working() {
            return;
        }
    }
    let _ = connection.await;
}

async fn answer(
    mut routes: Router,
    mut request: hyper::Request<Incoming>,
    activity: Arc<Activity>,
) -> Result<Response, std::convert::Infallible> {
    let working = activity.begin();
    path::rewrite(request.uri_mut());
    let response = routes.call(request).await?;
    // The closure holds the guard until the body is dropped. Unlike `map_frame`, it keeps the body's length.
    let until_sent = move |error| {
        let _held = &working;
        error
    };
    Ok(response.map(|body| Body::new(body.map_err(until_sent))))
}
