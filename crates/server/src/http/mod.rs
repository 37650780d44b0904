//! HTTP below the routes: connections, and the checks that every request passes.
//!
//! `listen` accepts connections and drains them. `middleware` checks host, origin and key of each request;
//! `auth` has the keys and the server's phase, `cors` the origins, `limits` the size and time of bodies,
//! `encoding` their coding. Routes are in `api`.

pub(crate) mod auth;
pub(crate) mod cors;
pub(crate) mod encoding;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod middleware;
