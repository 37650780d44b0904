//! HTTP below the routes: connections, and the checks that every request passes.
//!
//! `listen` accepts connections and drains them, and `files` fits their number into the limit of open
//! files. `threads` has the thread of connections and those of requests. `connection` serves one
//! connection, and `idle` closes those that wait for a request. `path` maps other spellings of paths to
//! routes. `middleware` checks host, origin and key of each request; `auth` has the keys and the server's
//! phase, `host` and `cors` the hosts and origins, `limits` and `encoding` the size, time and coding of
//! bodies, `intake` the memory for them, `unread` the bodies of refused requests. Routes are in `api`.

pub(crate) mod auth;
pub(crate) mod connection;
pub(crate) mod cors;
pub(crate) mod encoding;
pub(crate) mod files;
pub(crate) mod host;
pub(crate) mod idle;
pub(crate) mod intake;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod middleware;
pub(crate) mod path;
pub(crate) mod threads;
pub(crate) mod unread;
