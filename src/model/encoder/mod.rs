//! Text encoders: from a checkpoint to a model that turns texts into vectors.
//!
//! `config` has the pooling and the tensors that only encoders have, on top of a
//! [`ModelConfig`](super::ModelConfig), and `read` reads it from a file. `graph` builds the graph, `load`
//! compiles and runs it. A step holds whole texts, each a sequence of its own. There is no KV cache, so
//! decoders that embed texts run here, too.
//!
//! [`TextEncoder`] is the interface of [`crate::embed`] to an encoder.

mod config;
mod graph;
mod load;
mod read;

use crate::ir::StepLimits;
use crate::token::TokenId;

use super::{DecoderMemory, ModelError};
pub use config::{EncoderConfig, Pooling};
pub use load::{Encoder, EncoderOptions};

/// Token ids of one text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextTokens<'t> {
    /// At least one token, at most [`TextEncoder::context_max`].
    pub ids: &'t [TokenId],
    /// Number of tokens in the first segment. The others have token type 1, in encoders with token types.
    pub first_segment: usize,
}

/// A loaded encoder: texts in, one pooled row per text out.
pub trait TextEncoder: Send {
    /// Maximum tokens and texts of a step.
    fn limits(&self) -> StepLimits;

    /// Maximum length of a text, in tokens.
    fn context_max(&self) -> usize;

    /// Elements of a pooled row.
    fn width(&self) -> usize;

    /// Allocated memory.
    fn memory(&self) -> DecoderMemory;

    /// Encodes texts in one step. `out` is `[texts, width]`. A row depends on its own text alone, bit for
    /// bit.
    ///
    /// # Errors
    /// A step beyond the limits, an empty text or an unknown token changes nothing. After a backend error
    /// `out` is undefined.
    fn encode(&mut self, texts: &[TextTokens<'_>], out: &mut [f32]) -> Result<(), ModelError>;
}
