//! Any bytes as a saved prompt: restored into a tiny engine or refused with a typed error, and the cache's
//! accounting stays right. Every second input gets the checksum that its bytes ask for.

#![no_main]

#[path = "../shared/engine.rs"]
mod engine;
#[path = "../shared/files.rs"]
mod files;
#[path = "../../tests/tiny/mod.rs"]
mod tiny;

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ottava::{Engine, Request, TokenId};

static ENGINE: LazyLock<Engine> = LazyLock::new(engine::tiny);
static PATH: LazyLock<PathBuf> = LazyLock::new(|| files::path("prompt"));
const HASH_BYTES: usize = 32;

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    if bytes.len() > HASH_BYTES && bytes.len().is_multiple_of(2) {
        let end = bytes.len() - HASH_BYTES;
        let hash = blake3::hash(&bytes[..end]);
        bytes[end..].copy_from_slice(hash.as_bytes());
    }
    std::fs::write(&*PATH, &bytes).expect("a file");
    if let Ok(tokens) = ENGINE.restore_prompt(&PATH) {
        assert!(tokens > 0 && tokens <= bytes.len() / 4, "{tokens} tokens");
        // Whatever the keys and values are, a request that finds them ends.
        let request = Request::tokens((0..20).map(TokenId).collect()).max_tokens(2);
        let _ = ENGINE.submit(request).expect("a request").text();
    }
    ENGINE.check_integrity().expect("the books are right");
});
