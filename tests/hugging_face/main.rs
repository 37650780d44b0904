//! Hugging Face folders beside the GGUF files with the same weights: the same logits, the same tokens, and one
//! clear error where a folder is broken. `folder` writes them, `logits` runs them, `families` has a model of every type,
//! `settings` what a configuration may say, `broken` what it may not, `fp8` weights of 8-bit floats, `nvfp4` those of
//! 4-bit floats, `text` the tokenizers, `pieces` those whose pieces are written as text, `encoders` those of
//! encoder models.

#![cfg(feature = "safetensors")]

mod broken;
#[cfg(feature = "text")]
mod encoders;
mod families;
mod folder;
mod fp8;
mod logits;
mod nvfp4;
#[cfg(feature = "text")]
mod pieces;
mod settings;
#[cfg(feature = "text")]
mod text;
#[path = "../tiny/mod.rs"]
mod tiny;
