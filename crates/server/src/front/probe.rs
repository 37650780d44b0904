//! Probes of a model's process: GET requests over a bare socket.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The reason why a process is permanently not ready: a lost engine or a hanging step. `None` if it is ready.
pub(super) async fn unready(address: SocketAddr) -> std::io::Result<Option<String>> {
    match get(address, "/ready", "").await? {
        (true, _) => Ok(None),
        (false, body) => match body["reason"].as_str() {
            Some(reason) => Ok(Some(reason.to_owned())),
            None => Err(std::io::ErrorKind::InvalidData.into()),
        },
    }
}

/// GET over a bare socket: whether the status is 200, and the body's JSON.
pub(super) async fn get(address: SocketAddr, path: &str, key: &str) -> std::io::Result<(bool, Value)> {
    let mut stream = TcpStream::connect(address).await?;
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nx-api-key: {key}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(1 << 16).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let body = answer.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok());
    Ok((answer.starts_with("HTTP/1.1 200"), body.unwrap_or_default()))
}
