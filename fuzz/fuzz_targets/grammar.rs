//! Any text as a schema, a regular expression, texts to choose from or a grammar: compiled within its time and memory, or
//! refused with an error of one line; a walk through what it allows finds no token that it then refuses.

#![no_main]

#[path = "../shared/grammars.rs"]
mod grammars;
#[path = "../../tests/tiny/mod.rs"]
mod tiny;

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use ottava::TokenId;
use ottava::checkpoint::{Checkpoint, ModelFile};
use ottava::constrain::Constraints;
use ottava::sample::{TokenMask, TokenSet};
use ottava::text::Tokenizer;

/// Tokens of a walk.
const TOKENS_MAX: usize = 24;

static CONSTRAINTS: LazyLock<(Constraints, usize)> = LazyLock::new(|| {
    let file = ModelFile::from_bytes("tiny.gguf", tiny::llama().expect("a model")).expect("a model");
    let tokenizer = Arc::new(Tokenizer::from_metadata(file.metadata()).expect("a tokenizer"));
    // A panic of the library below is an error of its request, so it does not end this process either.
    let _ = std::panic::take_hook();
    let vocab = tokenizer.vocab().len();
    (Constraints::new(tokenizer).expect("a trie"), vocab)
});

fuzz_target!(|bytes: &[u8]| {
    let (constraints, vocab) = &*CONSTRAINTS;
    let Some((grammar, mut choice)) = grammars::read(bytes) else { return };
    let mut constraint = match constraints.compile(&grammar) {
        Ok(constraint) => constraint,
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
            return;
        }
    };
    let mut answer = Vec::new();
    while answer.len() < TOKENS_MAX {
        let mut allowed = TokenSet::new(*vocab);
        constraint.allowed(&answer, &mut allowed);
        // Too much work is a failure of the request.
        if allowed.check().is_err() {
            return;
        }
        let ids: Vec<TokenId> = (0..*vocab as u32).map(TokenId).filter(|&id| allowed.contains(id)).collect();
        assert!(!ids.is_empty(), "something goes on, or the mask says that it failed");
        choice = choice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        answer.push(ids[(choice >> 33) as usize % ids.len()]);
        if constraint.is_finished(&answer) {
            return;
        }
    }
});
