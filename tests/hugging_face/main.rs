//! Folders of Hugging Face beside the GGUF files with the same weights: the same logits, the same tokens, and one
//! clear error where a folder is broken. `folder` writes them, `logits` runs them, `settings` has what a configuration
//! may say, `broken` what it may not, `text` the tokenizers.

#![cfg(feature = "safetensors")]

mod broken;
mod folder;
mod logits;
mod settings;
#[cfg(feature = "text")]
mod text;
#[path = "../tiny/mod.rs"]
mod tiny;
