//! Configuration of a server: address, keys, limits.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::ServeError;
use crate::error::quoted;
use crate::http::{cors, host};

/// Settings of a server. [`Config::default`] serves this machine only, without a key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Address to listen on. Any but a loopback address needs a key.
    pub host: IpAddr,
    /// Port; 0 lets the system choose.
    pub port: u16,
    /// Names of the model for clients. The first is the one in answers; an empty list means the model's own
    /// name.
    pub names: Vec<String>,
    /// API keys of clients; an empty list needs no key.
    pub keys: Vec<String>,
    /// Accepted values of the `Host` header in addition to loopback names and [`Config::host`]; a name
    /// without a port accepts every port. The check stops DNS rebinding: scripts of other web sites cannot
    /// reach a server on this machine by a name of their own.
    pub allowed_hosts: Vec<String>,
    /// Origins (`https://example.org`) allowed by CORS; `*` allows all. A pattern has `*` as the host
    /// (`moz-extension://*`), as its subdomains (`https://*.example.org`) or as the port
    /// (`http://localhost:*`). The server's own page is always allowed.
    pub allowed_origins: Vec<String>,
    /// Largest body of a request, in bytes.
    pub body_max: usize,
    /// Most open connections, within the limit of open files. Beyond it, a new connection closes the one that
    /// has been idle the longest, or waits.
    pub connections_max: usize,
    /// Timeout for a connection's first byte, for a client's headers from their first byte, and then for its
    /// body.
    pub read_timeout: Duration,
    /// Time after an answer in which a connection may be reused.
    pub idle_timeout: Duration,
    /// Longest time that a client may leave an answer unread before its connection is cut.
    pub write_timeout: Duration,
    /// Time limit of an answer, queue included; `None` is no limit.
    pub request_timeout: Option<Duration>,
    /// Idle time of a stream after which a comment line is sent.
    pub keep_alive: Duration,
    /// Longest time for running answers to end after the stop signal.
    pub drain: Duration,
    /// Whether a stream marks the beginning of its answer, for a [`Front`](crate::Front) that may retry until
    /// then.
    #[doc(hidden)]
    pub marks_answers: bool,
    /// Duration of an engine step after which the server is not ready.
    pub step_timeout: Duration,
    /// Endpoint for cache events, such as `tcp://127.0.0.1:5557`. It publishes the token ids of all prompts
    /// and answers, unencrypted and without a key. Requires
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
            // Longer than load balancers keep their connections, most of them for 60 s, some for 600.
            idle_timeout: Duration::from_secs(620),
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

    /// Refuses a public address without a key, and keys, names, origins and hosts that no request can carry.
    pub(crate) fn check(&self) -> Result<(), ServeError> {
        if !self.host.is_loopback() && self.keys.is_empty() {
            return Err(ServeError::Open { host: self.host });
        }
        if self.keys.iter().any(|key| key.trim().is_empty()) {
            return Err(ServeError::EmptyKey);
        }
        // Header values are ASCII. The message leaves the key out: it is a secret.
        if self.keys.iter().any(|key| !key.trim().bytes().all(|byte| byte.is_ascii_graphic())) {
            let message = "expected ASCII characters without white space; a comment has a line of its own";
            return Err(ServeError::Setting("a key", message.into()));
        }
        if self.names.iter().any(|name| name.trim().is_empty()) {
            return Err(ServeError::Setting("a model's name", "expected a text, found none".into()));
        }
        if let Some(origin) = self.allowed_origins.iter().find(|origin| !cors::is_origin(origin)) {
            let message = format!("expected a site like https://example.org or *, found {}", quoted(origin));
            return Err(ServeError::Setting("an allowed origin", message));
        }
        if let Some(host) = self.allowed_hosts.iter().find(|host| !host::is_host(host)) {
            let message =
                format!("expected a name like box.example or box.example:8080, found {}", quoted(host));
            return Err(ServeError::Setting("an allowed host", message));
        }
        Ok(())
    }
}
