//! API keys, and the phase of the server's life.

use subtle::{Choice, ConstantTimeEq};
use tokio::sync::watch;

use crate::Config;
use crate::http::intake::Intake;
use crate::ids::sha256;

/// Phase of the server's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Requests are answered.
    Serving,
    /// Further requests are refused; running ones go on.
    Draining,
    /// Running requests are aborted.
    Ending,
}

/// Configuration, keys, phase and room for bodies, as the middleware reads them.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) config: Config,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) intake: Intake,
    /// SHA-256 of each key.
    keys: Vec<[u8; 32]>,
}

impl Guard {
    pub(crate) fn new(config: Config, phase: watch::Receiver<Phase>) -> Guard {
        let keys = config.keys.iter().map(|key| sha256(&[key.trim().as_bytes()])).collect();
        Guard { intake: Intake::new(config.body_max), config, phase, keys }
    }

    /// The reason why requests are refused, if they are.
    pub(crate) fn not_serving(&self) -> Option<String> {
        (*self.phase.borrow() != Phase::Serving).then(|| "the server is stopping".to_owned())
    }

    /// Whether clients need a key.
    pub(crate) fn asks_for_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Whether `key` is one of the keys. All are compared, each in constant time, so that response times leak
    /// nothing about a guess.
    pub(crate) fn knows(&self, key: &str) -> bool {
        let guess = sha256(&[key.as_bytes()]);
        let known = self.keys.iter().fold(Choice::from(0), |known, key| known | key.ct_eq(&guess));
        known.into()
    }
}
