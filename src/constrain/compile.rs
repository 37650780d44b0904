//! Compiling a grammar: on a thread of its own, with a stack for what is nested, and within bounds of work.

use std::io;
use std::sync::{Arc, Mutex};

use llguidance::api::{GrammarInit, ParserLimits, StopReason, TopLevelGrammar};
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, Matcher, ParserFactory};

use super::bounds::SCHEMA;
use super::error::{ConstraintError, TOO_COMPLEX, explain};
use super::grammar::Source;
use crate::room;

/// Bytes of a compiler's stack. Only what is used becomes resident.
const STACK_BYTES: usize = 64 << 20;

/// Bounds of a parser's work. A grammar that goes over one is refused, or fails its own request later.
fn limits(source: &Source) -> ParserLimits {
    ParserLimits {
        max_items_in_row: match source {
            // An object has three for each property that may be left out. What stands between JSON's brackets says
            // which of them is meant, so that they do not become more with the answer.
            Source::Schema(_) => 4000,
            // Chat answers have their schema beside the calls that may come instead.
            Source::Lark(text) if text.contains(SCHEMA) => 4000,
            // Of grammars that say the same in many ways, each token takes time by the square of the answer.
            Source::Lark(_) => 1000,
        },
        // Each request has states of its own, of about 2 kB.
        max_lexer_states: 25_000,
        // Dumps are neither shown nor kept.
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// A grammar at its beginning, for requests to go on from.
pub(super) struct Compiled {
    start: Mutex<Matcher>,
}

impl Compiled {
    /// A parser of a request's own: what it finds out of the grammar, and how it fails, is no other's.
    pub(super) fn start(&self) -> Option<Matcher> {
        self.start.lock().ok().map(|start| start.deep_clone())
    }
}

/// Compiles a grammar and looks at its first tokens, so that the first step need not.
///
/// # Errors
/// Every [`ConstraintError`].
pub(super) fn compile(
    factory: &Arc<ParserFactory>,
    field: &'static str,
    source: Source,
) -> Result<Compiled, ConstraintError> {
    let factory = Arc::clone(factory);
    let compiler =
        room::spawn_deep("ottava-grammar".into(), STACK_BYTES, move || build(&factory, field, source));
    let compiler = compiler.map_err(|error: io::Error| ConstraintError::Thread(error.to_string()))?;
    compiler.join().unwrap_or(Err(ConstraintError::Internal("the compiler panicked")))
}

fn build(factory: &ParserFactory, field: &'static str, source: Source) -> Result<Compiled, ConstraintError> {
    let limits = limits(&source);
    let grammar = match source {
        Source::Schema(schema) => TopLevelGrammar::from_json_schema(schema),
        Source::Lark(text) => TopLevelGrammar::from_lark(text),
    };
    let (quiet, capabilities) = (Logger::new(0, 0), InferenceCapabilities::default());
    let parser = factory
        .create_parser_from_init_ext(GrammarInit::Serialized(grammar), quiet, capabilities, limits)
        .map_err(|error| explain(field, &format!("{error:#}")))?;
    let mut start = Matcher::new(Ok(parser));
    // The end of an empty answer is noticed where tokens are taken, though there be none.
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
