//! [`Constraint`]: a compiled grammar as the mask of a request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use llguidance::Matcher;

use super::compile::Compiled;
use crate::sample::{TokenMask, TokenSet};
use crate::token::TokenId;

/// A compiled grammar as the token mask of a [`Request`](crate::Request). A clone starts from the beginning.
/// Valid only for the vocabulary that it was compiled for: an engine with another model does not detect the
/// mismatch.
pub struct Constraint {
    grammar: Arc<Compiled>,
    /// Mutex, because [`TokenMask::is_finished`] takes `&self` and advances the parser.
    state: Mutex<ParserState>,
}

/// Parser state after a part of the answer.
#[derive(Default)]
struct ParserState {
    /// `None` at the start and after a failure.
    parser: Option<Matcher>,
    /// Tokens that the parser has consumed.
    taken: Vec<TokenId>,
    /// Forced tokens, and their start position in the answer. The remainder stays the same if a caller takes
    /// only a part of them.
    run: Vec<TokenId>,
    run_start: usize,
}

impl Constraint {
    pub(super) fn new(grammar: Arc<Compiled>) -> Constraint {
        Constraint { grammar, state: Mutex::default() }
    }

    /// Advances the parser to the end of `answer`. No parser is left if the grammar rejects it.
    fn follow(&self, answer: &[TokenId]) -> MutexGuard<'_, ParserState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.follow(answer, &self.grammar);
        state
    }
}

impl ParserState {
    fn follow(&mut self, answer: &[TokenId], grammar: &Compiled) {
        let known = self.taken.len();
        if self.parser.is_none() || answer.get(..known) != Some(&self.taken) {
            *self = ParserState { parser: grammar.start(), ..ParserState::default() };
        }
        let Some(parser) = &mut self.parser else { return };
        let more = answer.get(self.taken.len()..).unwrap_or_default();
        if more.is_empty() {
            return;
        }
        let ids: Vec<u32> = more.iter().map(|id| id.0).collect();
        self.taken.extend_from_slice(more);
        if parser.consume_tokens(&ids).is_err() {
            self.parser = None;
        }
    }

    /// Offset of the answer's end within the forced run, if it is inside.
    fn rest(&self, answer: &[TokenId]) -> Option<usize> {
        let within = answer.get(self.run_start..)?;
        (within.len() < self.run.len() && self.run.starts_with(within)).then_some(within.len())
    }
}

impl TokenMask for Constraint {
    fn allowed(&mut self, answer: &[TokenId], allowed: &mut TokenSet) {
        let mut state = self.follow(answer);
        let mask = state.parser.as_mut().and_then(|parser| parser.compute_mask_or_eos().ok());
        match mask {
            Some(mask) => allowed.fill(mask.as_slice()),
            None => allowed.fail("the grammar takes too much work here, or no token goes on"),
        }
    }

    fn forced(&mut self, answer: &[TokenId]) -> &[TokenId] {
        let Constraint { grammar, state } = self;
        let state = state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.follow(answer, grammar);
        if let Some(within) = state.rest(answer) {
            return state.run.get(within..).unwrap_or_default();
        }
        let going = state.parser.as_mut().filter(|parser| !parser.is_stopped());
        let run = going.map(Matcher::compute_ff_tokens).unwrap_or_default();
        (state.run, state.run_start) = (run.into_iter().map(TokenId).collect(), answer.len());
        &state.run
    }

    fn is_finished(&self, answer: &[TokenId]) -> bool {
        let state = self.follow(answer);
        state.parser.as_ref().is_some_and(|parser| parser.is_stopped() && !parser.is_error())
    }
}

impl Clone for Constraint {
    fn clone(&self) -> Constraint {
        Constraint::new(Arc::clone(&self.grammar))
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}
