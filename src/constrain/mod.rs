//! Answers that follow a JSON schema, a regular expression, a choice or a grammar. Feature `constraints`.
//!
//! A [`Grammar`] is what people write. [`Constraints`] compiles it for one vocabulary and keeps what was used last. The
//! [`Constraint`] that comes of it is a [`TokenMask`](crate::sample::TokenMask): it allows the tokens that the grammar
//! goes on with, forces those that have no choice, and ends an answer that is complete. `llguidance` does the parsing.
//!
//! ```no_run
//! use ottava::{Engine, Request, constrain::Grammar};
//!
//! # fn main() -> ottava::Result<()> {
//! let engine = Engine::builder("model.gguf").build()?;
//! let mood = engine.constrain(&Grammar::choice(["good", "bad"]))?;
//! let answer = engine.submit(Request::text("The bridge is open again: ").mask(mood))?.text()?;
//! assert!(answer.text == "good" || answer.text == "bad");
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

mod bounds;
mod cache;
mod compile;
mod constraint;
mod error;
mod grammar;
mod normalise;
mod vocabulary;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub use constraint::Constraint;
pub use error::ConstraintError;
pub use grammar::Grammar;

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use toktrie::InferenceCapabilities;

use crate::text::Tokenizer;

/// The compiler of grammars for one vocabulary. It may be shared between threads.
pub struct Constraints {
    factory: Arc<ParserFactory>,
    cache: cache::Cache<compile::Compiled>,
}

impl Constraints {
    /// The compiler for a tokenizer's vocabulary. It takes a moment: every token is looked at.
    ///
    /// # Errors
    /// [`ConstraintError::Internal`] if the vocabulary cannot be used.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Result<Constraints, ConstraintError> {
        let build = || {
            let words = vocabulary::read(tokenizer);
            let slices = SlicedBiasComputer::general_slices();
            ParserFactory::new(&words, InferenceCapabilities::default(), &slices).ok()
        };
        let built = catch_unwind(AssertUnwindSafe(build)).ok().flatten();
        let factory = built.ok_or(ConstraintError::Internal("the vocabulary makes no trie"))?;
        Ok(Constraints { factory: Arc::new(factory), cache: cache::Cache::default() })
    }

    /// Compiles a grammar, or finds it among those used last. A grammar may take a second, so this belongs on no
    /// thread that others wait for.
    ///
    /// # Errors
    /// [`ConstraintError`], which says what is wrong with the grammar.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, ConstraintError> {
        let (field, source) = (grammar.field(), grammar.source()?);
        let compiled = self.cache.get(source.key(), || compile::compile(&self.factory, field, source))?;
        Ok(Constraint::new(compiled))
    }
}

impl std::fmt::Debug for Constraints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraints").finish_non_exhaustive()
    }
}
