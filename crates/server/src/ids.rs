//! Request ids, hashes and Unix time.

use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

/// SHA-256 of the concatenation of parts.
pub(crate) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

/// Unix time in seconds.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// `N` random bytes as hexadecimal digits.
pub(crate) fn random_hex<const N: usize>() -> String {
    random::<N>().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Random bytes of the system, or of a hash of the clock if the system has none.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if getrandom::fill(&mut bytes).is_err() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
        let digest = sha256(&[&now.to_le_bytes()]);
        bytes.iter_mut().zip(digest.into_iter().cycle()).for_each(|(to, byte)| *to = byte);
    }
    bytes
}
