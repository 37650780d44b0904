//! HTTP below the routes: connections, and the checks that every request passes.
//!
//! `listen` accepts connections and drains them, `threads` has the thread of connections and those of
//! requests. `middleware` checks host, origin and key of each request; `auth` has the keys and the server's
//! phase, `cors` the origins, `limits` the size and time of bodies, `intake` the memory for them, `unread` the
//! bodies of refused requests. Routes are in `api`.

pub(crate) mod auth;
pub(crate) mod cors;
pub(crate) mod intake;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod middleware;
pub(crate) mod threads;
pub(crate) mod unread;
