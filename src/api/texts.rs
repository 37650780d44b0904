//! What turns text into tokens and back, as far as this build has it: read beside the weights, shared by all
//! clones of an engine.

use std::sync::Arc;

use super::{EngineInfo, Shared};
use crate::{
    Result, TokenId,
    backend::{Monitor, NoHealth},
    checkpoint::Checkpoint,
    model::ModelConfig,
    text::Vocab,
};

/// A model file's vocabulary, and with the feature `text` its tokenizer and chat template.
pub(super) struct Texts {
    vocab: Arc<Vocab>,
    #[cfg(feature = "text")]
    tokenizer: crate::text::Tokenizer,
    #[cfg(feature = "text")]
    template: Option<crate::text::ChatTemplate>,
}

impl Texts {
    #[cfg(feature = "text")]
    pub(super) fn read(file: &dyn Checkpoint) -> Result<Texts> {
        let mut tokenizer = crate::text::Tokenizer::from_checkpoint(file)?;
        let template = crate::text::ChatTemplate::from_checkpoint(file, tokenizer.vocab())?;
        if let Some(template) = &template {
            tokenizer.end_turns_as(template);
        }
        let vocab = Arc::clone(tokenizer.vocab());
        Ok(Texts { vocab, tokenizer, template })
    }

    #[cfg(not(feature = "text"))]
    pub(super) fn read(file: &dyn Checkpoint) -> Result<Texts> {
        Ok(Texts { vocab: Arc::new(Vocab::from_checkpoint(file)?) })
    }

    /// Of a model that no file describes, whose tokens are numbers.
    #[cfg(feature = "text")]
    pub(super) fn of_numbers(model: &str, count: usize, ends: &[TokenId]) -> Result<Texts> {
        let tokenizer = crate::text::Tokenizer::of_numbers(model, count, ends)?;
        Ok(Texts { vocab: Arc::clone(tokenizer.vocab()), tokenizer, template: None })
    }

    #[cfg(not(feature = "text"))]
    pub(super) fn of_numbers(_model: &str, count: usize, ends: &[TokenId]) -> Result<Texts> {
        Ok(Texts { vocab: Arc::new(Vocab::of_numbers(count, ends)?) })
    }

    /// What the file says badly of its tokens, a line each.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.vocab.warnings().to_vec()
    }

    pub(super) fn into_shared(
        self,
        info: EngineInfo,
        config: Option<ModelConfig>,
        monitor: Result<Arc<dyn Monitor>, NoHealth>,
    ) -> Shared {
        Shared {
            info,
            config,
            monitor,
            vocab: self.vocab,
            #[cfg(feature = "text")]
            tokenizer: Arc::new(self.tokenizer),
            #[cfg(feature = "constraints")]
            constraints: std::sync::OnceLock::new(),
            #[cfg(feature = "text")]
            format: super::chat::format_of(self.template.as_ref()),
            #[cfg(feature = "text")]
            markers: std::sync::OnceLock::new(),
            #[cfg(feature = "text")]
            template: self.template,
        }
    }
}
