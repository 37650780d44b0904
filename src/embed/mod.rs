//! Embedding of texts: texts of all callers share the steps of one encoder, on one thread.
//!
//! A caller hands over token ids text by text through a bounded queue and waits for the pooled rows. The
//! thread fills each step with as many whole texts as fit. A row's bits do not depend on the texts next to
//! it, so neither batching nor callers change a result. `normalize` cuts and scales vectors.
//!
//! [`crate::api`] has the public interface; an encoder is a [`TextEncoder`](crate::model::TextEncoder).

#![forbid(unsafe_code)]

mod error;
mod handle;
mod normalize;
#[cfg(test)]
mod tests;
mod text;
mod worker;

pub use error::EmbedError;
pub use handle::EmbedHandle;
pub use normalize::unit_rows;
pub use text::EmbedText;
