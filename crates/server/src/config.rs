//! What a server is told: address, keys, limits.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::ServeError;
use crate::error::quoted;
use crate::http::cors;

/// How to serve. [`Config::default`] serves this machine only, without a key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The address to listen on. Any but a loopback address needs a key.
    pub host: IpAddr,
    /// The port; 0 lets the system choose.
    pub port: u16,
    /// What clients call the model. The first name is the one in answers; none stands for the model's own name.
    pub names: Vec<String>,
    /// Keys that clients may use; none asks for no key.
    pub keys: Vec<String>,
    /// Names of hosts that requests may be for, beside loopback ones and [`Config::host`]. Keeps other web sites'
    /// scripts from reaching a server on this machine by a name of their own.
    pub allowed_hosts: Vec<String>,
    /// Web sites (`https://example.org`) whose scripts may use the server; `*` is all. Its own page always may.
    pub allowed_origins: Vec<String>,
    /// Most bytes of a request.
    pub body_max: usize,
    /// Most connections at once; further ones wait to be accepted.
    pub connections_max: usize,
    /// How long a client may take to send its headers, and then its body.
    pub read_timeout: Duration,
    /// How long a client may leave an answer unread before its connection is cut.
    pub write_timeout: Duration,
    /// How long an answer may take, queue included; none is no limit.
    pub request_timeout: Option<Duration>,
    /// A stream in which nothing came for so long gets a comment line.
    pub keep_alive: Duration,
    /// How long running answers may go on after the server is asked to stop.
    pub drain: Duration,
    /// Whether a stream says where its answer begins, for a [`Front`](crate::Front) that may ask again until then.
    #[doc(hidden)]
    pub marks_answers: bool,
    /// How long a step may take before the server says that it is not ready.
    pub step_timeout: Duration,
    /// Where changes of the cache are published, such as `tcp://127.0.0.1:5557`: the token ids of all prompts and
    /// answers, in clear, to whoever connects. The engine must keep them:
    /// [`EngineConfig::cache_events`](ottava::EngineConfig::cache_events).
    #[cfg(feature = "kv-events")]
    pub kv_events: Option<String>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8080,
            names: Vec::new(),
            keys: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            body_max: 4 << 20,
            connections_max: 1024,
            read_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            request_timeout: None,
            keep_alive: Duration::from_secs(15),
            drain: Duration::from_secs(30),
            marks_answers: false,
            step_timeout: Duration::from_secs(60),
            #[cfg(feature = "kv-events")]
            kv_events: None,
        }
    }
}

impl Config {
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }

    /// Refuses what would let strangers in, and names that no request could carry.
    pub(crate) fn check(&self) -> Result<(), ServeError> {
        if !self.host.is_loopback() && self.keys.is_empty() {
            return Err(ServeError::Open { host: self.host });
        }
        if self.keys.iter().any(|key| key.trim().is_empty()) {
            return Err(ServeError::EmptyKey);
        }
        // A header has no other characters; the key itself is told to nobody.
        if self.keys.iter().any(|key| !key.bytes().all(|byte| (b' '..=b'~').contains(&byte))) {
            return Err(ServeError::Setting("a key", "expected ASCII characters".into()));
        }
        if self.names.iter().any(|name| name.trim().is_empty()) {
            return Err(ServeError::Setting("a model's name", "expected a text, found none".into()));
        }
        if let Some(origin) = self.allowed_origins.iter().find(|origin| !cors::is_origin(origin)) {
            let message = format!("expected a site like https://example.org or *, found {}", quoted(origin));
            return Err(ServeError::Setting("an allowed origin", message));
        }
        Ok(())
    }
}
