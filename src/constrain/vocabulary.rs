//! A vocabulary as the parser below takes it: a trie of what the tokens spell.

use std::sync::Arc;

use toktrie::{INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use crate::text::{AddBos, Special, TokenKind, Tokenizer, Vocab};
use crate::token::TokenId;

/// Most bytes of a token that a trie holds; longer ones are never allowed.
const TOKEN_BYTES_MAX: usize = 1000;
/// What every tokenizer whose tokens may be forced brings back as it was.
const PROBES: [&str; 3] = ["{\"a\": [1, true]}", "a", "\n<b>"];

/// The trie, and what makes tokens of bytes that have to come.
struct Words {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
    /// Whether a text behind an answer becomes the tokens that the model would write it with.
    exact: bool,
}

/// The vocabulary of a tokenizer. Control tokens have names there and spell nothing; those that end a turn are the
/// ends of answers.
pub(super) fn read(tokenizer: Arc<Tokenizer>) -> TokEnv {
    let vocab = tokenizer.vocab();
    let words: Vec<Vec<u8>> = vocab.ids().map(|id| word(vocab, id)).collect();
    let ends: Vec<u32> =
        vocab.stop_ids().iter().filter(|id| id.index() < words.len()).map(|id| id.0).collect();
    let first = ends.first().copied().unwrap_or(INVALID_TOKEN);
    let mut trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, first), &words);
    if !ends.is_empty() {
        trie = trie.with_eos_tokens(&ends);
    }
    let exact = PROBES.iter().all(|probe| encode(&tokenizer, probe).is_some());
    Arc::new(Words { trie, tokenizer, exact })
}

/// What a token is in the trie; nothing where it must not come.
fn word(vocab: &Vocab, id: TokenId) -> Vec<u8> {
    let spelled = vocab.bytes(id).unwrap_or_default();
    match vocab.kind(id) {
        Some(TokenKind::Control | TokenKind::Unknown) => {
            let name = vocab.piece(id).unwrap_or_default();
            [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
        }
        Some(TokenKind::Unused) | None => Vec::new(),
        // This byte marks names; no UTF-8 has it.
        _ if spelled.contains(&TokTrie::SPECIAL_TOKEN_MARKER) || spelled.len() > TOKEN_BYTES_MAX => {
            Vec::new()
        }
        _ => spelled.to_vec(),
    }
}

/// The tokens of a text, if they spell it: a tokenizer may put a space before it or leave bytes out.
fn encode(tokenizer: &Tokenizer, text: &str) -> Option<Vec<u32>> {
    let ids = tokenizer.encode(text, Special::Text, AddBos::No).ok()?;
    let spelled: Vec<u8> =
        ids.iter().flat_map(|&id| tokenizer.vocab().bytes(id).unwrap_or_default()).copied().collect();
    (spelled == text.as_bytes()).then(|| ids.into_iter().map(|id| id.0).collect())
}

impl TokenizerEnv for Words {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        let own = std::str::from_utf8(bytes).ok().and_then(|text| encode(&self.tokenizer, text));
        own.unwrap_or_else(|| self.trie.greedy_tokenize(bytes))
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.exact
    }
}
