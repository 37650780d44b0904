//! HTTP below the routes: connections, and the checks that every request passes.
//!
//! `listen` accepts connections and drains them; `places` bounds their number, within the limit of open
//! `files`. `middleware` checks host, origin and key of each request; `auth` has the keys and the server's
//! phase, `cors` the origins, `limits` the size and time of bodies. Routes are in `api`.

pub(crate) mod auth;
pub(crate) mod cors;
pub(crate) mod files;
pub(crate) mod limits;
pub(crate) mod listen;
pub(crate) mod middleware;
pub(crate) mod places;
