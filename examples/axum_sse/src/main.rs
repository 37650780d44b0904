//! `cargo run --release -- MODEL`, then
//! `curl -N localhost:3000/chat -H 'content-type: application/json' -d '{"text": "What is gravity?"}'`.

use std::time::{Duration, Instant};

use axum_sse::service;
use ottava::Engine;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = std::env::args().nth(1).ok_or("usage: axum_sse MODEL")?;
    let engine = tokio::task::spawn_blocking(|| Engine::builder(model).build()).await??;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("http://{}", listener.local_addr()?);
    let interrupted = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    axum::serve(listener, service(engine.clone())).with_graceful_shutdown(interrupted).await?;
    // What still runs may end.
    let until = Instant::now() + Duration::from_secs(10);
    tokio::task::spawn_blocking(move || engine.drain(until)).await?;
    Ok(())
}
