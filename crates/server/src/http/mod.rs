//! HTTP below the routes: connections, and the checks that every request passes.
//!
//! `listen` accepts connections and drains them; `connection` serves one, and `idle` closes those that wait
//! for a request. `path` maps other spellings of paths to routes. `middleware` checks host, origin and key of
//! each request; `auth` has the keys and the server's phase, `host` and `cors` the hosts and origins,
//! `limits` and `encoding` the size, time and coding of bodies. Routes are in `api`.

pub(crate) mod auth;
pub(crate) mod connection;
pub(crate) mod cors;
pub(crate) mod encoding;
pub(crate) mod host;
pub(crate) mod idle;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod middleware;
pub(crate) mod path;
