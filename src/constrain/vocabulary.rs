//! Token trie of a tokenizer's vocabulary, in the form that llguidance takes.

use std::sync::Arc;

use toktrie::{INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use crate::text::{AddBos, Special, TokenKind, Tokenizer, Vocab};
use crate::token::TokenId;

/// Maximum token length in bytes that the trie holds; longer tokens are never allowed.
const TOKEN_BYTES_MAX: usize = 1000;
/// Round-trip probes. Tokens are forced only for tokenizers that reproduce all of them exactly.
const PROBES: [&str; 3] = ["{\"a\": [1, true]}", "a", "\n<b>"];

/// The token trie, and the tokenizer for forced bytes.
struct Words {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
    /// Whether forced bytes are tokenised as the model would write them (canonical tokenisation).
    exact: bool,
}

/// Builds the trie of a tokenizer. Control tokens appear by name and match no text; end-of-turn tokens are
/// the EOS tokens.
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

/// The trie's entry for a token; empty for a token that is never allowed.
fn word(vocab: &Vocab, id: TokenId) -> Vec<u8> {
    let spelled = vocab.bytes(id).unwrap_or_default();
    match vocab.kind(id) {
        Some(TokenKind::Control | TokenKind::Unknown) => {
            let name = vocab.piece(id).unwrap_or_default();
            [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
        }
        Some(TokenKind::Unused) | None => Vec::new(),
        // This byte marks names of control tokens; it never occurs in UTF-8.
        _ if spelled.contains(&TokTrie::SPECIAL_TOKEN_MARKER) || spelled.len() > TOKEN_BYTES_MAX => {
            Vec::new()
        }
        _ => spelled.to_vec(),
    }
}

/// Tokenises text; `None` if the tokens decode to different bytes, e.g. with a leading space.
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
