//! Text in and out: vocabularies, tokenizers, detokenisation, stop strings and chat templates.
//!
//! The core part needs no dependency. [`Vocab`] has the bytes of each token, [`Detokenizer`] turns a stream
//! of ids into valid UTF-8, and [`StopMatcher`] finds stop strings across tokens. The feature `text` adds the
//! `Tokenizer` (text to ids) and the `ChatTemplate` (messages to text). Sampling is in `crate::sample`.
//! Metadata come from `crate::checkpoint`, or from the `tokenizer.json` of a model folder (`folder`).
//!
//! ```no_run
//! # #[cfg(feature = "text")]
//! # fn main() -> ottava::Result<()> {
//! use ottava::Engine;
//! use ottava::text::{AddBos, Detokenizer, Special};
//!
//! let engine = Engine::builder("model.gguf").build()?;
//! let ids = engine.tokenizer().encode("What users type", Special::Text, AddBos::No)?;
//! let mut text = Detokenizer::new(engine.vocab());
//! for id in ids {
//!     print!("{}", text.push(id));
//! }
//! println!("{}", text.finish());
//! # Ok(()) }
//! # #[cfg(not(feature = "text"))]
//! # fn main() {}
//! ```

#![forbid(unsafe_code)]

mod byte_level;
mod detokenize;
mod encoder_parts;
mod error;
#[cfg(feature = "safetensors")]
mod folder;
mod frames;
mod kind;
mod known;
mod parts;
mod spaces;
mod stop;
mod stop_scope;
mod vocab;
mod vocab_data;
mod warnings;
mod word_marks;

#[cfg(feature = "text")]
mod added_tokens;
#[cfg(feature = "text")]
mod bpe;
#[cfg(feature = "text")]
mod characters;
#[cfg(feature = "text")]
mod charsmap;
#[cfg(feature = "text")]
mod encoder;
#[cfg(feature = "text")]
mod encoding;
#[cfg(feature = "text")]
mod index;
#[cfg(feature = "text")]
mod limit;
#[cfg(feature = "text")]
mod merge;
#[cfg(feature = "text")]
mod normalize;
#[cfg(feature = "text")]
mod normalizer;
#[cfg(feature = "text")]
mod pairs;
#[cfg(feature = "text")]
mod pipeline;
#[cfg(feature = "text")]
mod pretokenize;
#[cfg(feature = "text")]
mod rules;
#[cfg(feature = "text")]
mod spm;
#[cfg(feature = "text")]
mod template;
#[cfg(feature = "text")]
mod tokenizer;
#[cfg(feature = "text")]
mod trie;
#[cfg(feature = "text")]
mod turn;
#[cfg(feature = "text")]
mod unigram;
#[cfg(feature = "text")]
mod wordpiece;

pub use detokenize::Detokenizer;
pub use error::TextError;
pub use kind::TokenKind;
pub use stop::{StopMatcher, StopOutcome};
pub use stop_scope::{ScopedStops, StopScope, Stretch};
pub use vocab::Vocab;

#[cfg(feature = "text")]
pub use encoding::{Encoding, Texts, TokensMax};
#[cfg(feature = "text")]
pub use template::{ChatPrompt, ChatTemplate, Content, ContentPart, Message, RenderOptions, ToolCall};
#[cfg(feature = "text")]
pub use tokenizer::{AddBos, Special, Tokenizer};
