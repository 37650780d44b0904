//! Grammar compilation on a separate thread with a deep stack and bounded work.

use std::io;
use std::sync::{Arc, Mutex};

use llguidance::api::{GrammarInit, ParserLimits, StopReason};
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, Matcher, ParserFactory};

use super::error::{ConstraintError, TOO_COMPLEX, explain};
use super::grammar::Printed;
use crate::headroom;

/// Stack size of the compiler thread in bytes. Only touched pages become resident.
const STACK_BYTES: usize = 64 << 20;

/// Work limits of the parser. A grammar that exceeds one is rejected, or fails its own request during
/// decoding.
fn limits(has_schema: bool) -> ParserLimits {
    ParserLimits {
        max_items_in_row: match has_schema {
            // An object needs three items for each optional property. JSON's brackets are unambiguous, so the
            // number of items does not grow with the answer.
            true => 4000,
            // With ambiguous grammars, the time per token grows with the square of the answer's length.
            false => 1000,
        },
        // Each request has its own lexer states, about 2 kB each.
        max_lexer_states: 25_000,
        // Parser dumps are neither shown nor kept.
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Compiled grammar in its start state, cloned for each request.
pub(super) struct Compiled {
    start: Mutex<Matcher>,
}

impl Compiled {
    /// Clones the parser, so that lexer state and errors stay with one request.
    pub(super) fn start(&self) -> Option<Matcher> {
        self.start.lock().ok().map(|start| start.deep_clone())
    }
}

/// Compiles a grammar and computes the first token mask in advance.
///
/// # Errors
/// Any [`ConstraintError`].
pub(super) fn compile(
    factory: &Arc<ParserFactory>,
    field: &'static str,
    printed: Printed,
) -> Result<Compiled, ConstraintError> {
    let factory = Arc::clone(factory);
    let compiler =
        headroom::spawn_deep("ottava-grammar".into(), STACK_BYTES, move || build(&factory, field, printed));
    let compiler = compiler.map_err(|error: io::Error| ConstraintError::Thread(error.to_string()))?;
    compiler.join().unwrap_or(Err(ConstraintError::Internal("the compiler panicked")))
}

fn build(
    factory: &ParserFactory,
    field: &'static str,
    printed: Printed,
) -> Result<Compiled, ConstraintError> {
    let (grammar, limits) = (GrammarInit::Serialized(printed.grammar), limits(printed.has_schema));
    let (quiet, capabilities) = (Logger::new(0, 0), InferenceCapabilities::default());
    let parser = factory
        .create_parser_from_init_ext(grammar, quiet, capabilities, limits)
        .map_err(|error| explain(field, &format!("{error:#}")))?;
    let mut start = Matcher::new(Ok(parser));
    // Consuming zero tokens lets the parser detect a grammar that accepts only the empty answer.
    let begun = start.consume_tokens(&[]).and_then(|()| start.compute_mask_or_eos());
    match (begun, start.stop_reason()) {
        (Ok(_), _) => Ok(Compiled { start: Mutex::new(start) }),
        (Err(_), StopReason::NoExtensionBias) => {
            Err(ConstraintError::invalid(field, "no answer of this vocabulary satisfies it"))
        }
        (Err(_), StopReason::ParserTooComplex | StopReason::LexerTooComplex) => {
            Err(ConstraintError::invalid(field, TOO_COMPLEX))
        }
        (Err(error), _) => Err(explain(field, &error.to_string())),
    }
}
