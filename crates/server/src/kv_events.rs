//! Cache events over ZeroMQ in vLLM's format. `vllm-router` and others send a request to the worker with the
//! longest cached prefix. A message has an empty topic, a sequence number (8 bytes, big endian), and
//! MessagePack of time, events and rank 0.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ottava::engine::{CacheEvent, CacheEvents, StoredPage};
use serde::Serialize;
use zeromq::{PubSocket, Socket as _, SocketSend as _, ZmqMessage};

use crate::ServeError;

/// Longest wait for events before the thread checks for the server's end.
const LOOK: Duration = Duration::from_millis(200);

/// vLLM's event. Routers depend on its field names and its tag.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
enum Event<'p> {
    BlockStored {
        block_hashes: [u64; 1],
        parent_block_hash: Option<u64>,
        token_ids: Vec<u32>,
        block_size: usize,
        lora_id: Option<u64>,
        medium: &'p str,
        lora_name: Option<&'p str>,
    },
    BlockRemoved {
        block_hashes: [u64; 1],
        medium: &'p str,
    },
    AllBlocksCleared {},
}

impl From<&CacheEvent> for Event<'_> {
    fn from(event: &CacheEvent) -> Self {
        match event {
            CacheEvent::Stored(page) => stored(page),
            CacheEvent::Removed { hash } => {
                Event::BlockRemoved { block_hashes: [short(hash)], medium: "GPU" }
            }
            _ => Event::AllBlocksCleared {},
        }
    }
}

fn stored(page: &StoredPage) -> Event<'static> {
    Event::BlockStored {
        block_hashes: [short(&page.hash)],
        parent_block_hash: page.parent.as_ref().map(short),
        token_ids: page.tokens.iter().map(|token| token.0).collect(),
        block_size: page.tokens.len(),
        lora_id: None,
        // Routers expect "GPU" as the medium of pages in memory.
        medium: "GPU",
        lora_name: None,
    }
}

/// A 63-bit id, within the integers of all readers.
fn short(hash: &[u8; 32]) -> u64 {
    let bytes = hash.first_chunk().copied().unwrap_or_default();
    u64::from_be_bytes(bytes) >> 1
}

/// The MessagePack part of a message.
fn payload(events: &[CacheEvent]) -> Vec<u8> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    let events: Vec<Event<'_>> = events.iter().map(Event::from).collect();
    let mut bytes = Vec::new();
    let mut serializer = rmp_serde::Serializer::new(&mut bytes).with_struct_map();
    // Writing to memory does not fail, and MessagePack can encode all of these values.
    let written = (time, events, 0).serialize(&mut serializer);
    debug_assert!(written.is_ok(), "{written:?}");
    bytes
}

/// A socket that publishes on `endpoint`.
pub(crate) async fn bind(endpoint: &str) -> Result<PubSocket, ServeError> {
    // `bind` panics on transports that are not compiled in.
    if !endpoint.starts_with("tcp://") {
        return Err(ServeError::Events(endpoint.to_owned(), "expected tcp://ADDRESS:PORT".into()));
    }
    let mut socket = PubSocket::new();
    let refused = |error: zeromq::ZmqError| ServeError::Events(endpoint.to_owned(), error.to_string());
    socket.bind(endpoint).await.map_err(refused)?;
    Ok(socket)
}

/// Publishes until the engine has ended or the server stops.
pub(crate) async fn publish(mut socket: PubSocket, events: CacheEvents) {
    for number in 0u64.. {
        let Some(changes) = next(&events).await else { return };
        let mut message = ZmqMessage::from("");
        message.push_back(number.to_be_bytes().to_vec().into());
        message.push_back(payload(&changes).into());
        // Subscribers that are not connected miss the message, as with any ZeroMQ publisher.
        let _ = socket.send(message).await;
    }
}

/// The next events, at least one; `None` after the engine's end.
async fn next(events: &CacheEvents) -> Option<Vec<CacheEvent>> {
    loop {
        let events = events.clone();
        let found = tokio::task::spawn_blocking(move || events.recv_timeout(LOOK)).await.ok()??;
        if !found.is_empty() {
            return Some(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_map_with_vllm_s_names() {
        let value: (f64, Vec<serde_json::Value>, u8) =
            rmp_serde::from_slice(&payload(&[CacheEvent::Removed { hash: [255; 32] }, CacheEvent::Cleared]))
                .unwrap();
        assert!(value.0 > 1.7e9);
        let removed =
            serde_json::json!({"type": "BlockRemoved", "block_hashes": [i64::MAX], "medium": "GPU"});
        assert_eq!(value.1, [removed, serde_json::json!({"type": "AllBlocksCleared"})]);
        assert_eq!(value.2, 0);
    }
    #[test]
    fn other_transports_than_tcp_are_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for endpoint in ["ipc:///tmp/x", "inproc://x", "127.0.0.1:5557", ""] {
            let refused = runtime.block_on(bind(endpoint)).err().map(|error| error.to_string());
            let expected =
                format!("{endpoint}: cannot publish the cache's changes: expected tcp://ADDRESS:PORT");
            assert_eq!(refused, Some(expected));
        }
    }
}
