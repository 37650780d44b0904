//! Constrained decoding: answers that follow a JSON schema, a regular expression, a choice or a grammar.
//! Feature `constraints`.
//!
//! A [`Grammar`] is the user's description. [`Constraints`] compiles it for one vocabulary and caches recent
//! results. The resulting [`Constraint`] is a [`TokenMask`](crate::sample::TokenMask): it allows the tokens
//! that continue the grammar, forces tokens without alternative, and ends a complete answer. `llguidance`
//! does the parsing.
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
mod lark;
mod regex;
mod schema;
mod terminals;
mod vocabulary;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub use constraint::Constraint;
pub use error::ConstraintError;
pub use grammar::Grammar;
pub(crate) use {bounds::json_bytes, grammar::Source, lark::Lark, schema::Schema};

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use toktrie::InferenceCapabilities;

use crate::text::Tokenizer;

/// Grammar compiler for one vocabulary. Can be shared between threads.
pub struct Constraints {
    factory: Arc<ParserFactory>,
    cache: cache::Cache<compile::Compiled>,
}

impl Constraints {
    /// Compiler for a tokenizer's vocabulary. Construction visits every token.
    ///
    /// # Errors
    /// [`ConstraintError::Internal`] if no trie can be built from the vocabulary.
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

    /// Compiles a grammar, or returns it from the cache. Compilation can take a second: do not call it on an
    /// async executor or another latency-critical thread.
    ///
    /// # Errors
    /// [`ConstraintError`] with the reason why the grammar is invalid.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, ConstraintError> {
        self.compile_source(grammar.field(), &grammar.source()?)
    }

    /// As [`Constraints::compile`], for a grammar that is checked already; `field` is its name in errors.
    ///
    /// # Errors
    /// As [`Constraints::compile`].
    pub(crate) fn compile_source(
        &self,
        field: &'static str,
        source: &Source,
    ) -> Result<Constraint, ConstraintError> {
        let printed = source.print();
        let compiled = self.cache.get(printed.key, || compile::compile(&self.factory, field, printed))?;
        Ok(Constraint::new(compiled))
    }
}

impl std::fmt::Debug for Constraints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraints").finish_non_exhaustive()
    }
}
