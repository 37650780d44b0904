//! Vocabulary, tokenizer and chat template of an engine, as far as this build has them. They are read in
//! parallel with the weights, and shared by all clones of an engine.

use std::sync::Arc;

use super::{EngineInfo, Shared};
#[cfg(feature = "text")]
use crate::text::{ChatTemplate, Tokenizer};
use crate::{
    Result, TokenId,
    backend::{Monitor, NoHealth},
    checkpoint::Checkpoint,
    model::ModelConfig,
    text::Vocab,
};

/// A model file's vocabulary, and with the feature `text` its tokenizer and chat template.
pub(super) struct TextPipeline {
    vocab: Arc<Vocab>,
    #[cfg(feature = "text")]
    tokenizer: Tokenizer,
    #[cfg(feature = "text")]
    template: Option<ChatTemplate>,
}

impl TextPipeline {
    /// Reads them from a file; `template` replaces the file's own chat template.
    #[cfg(feature = "text")]
    pub(super) fn read(file: &dyn Checkpoint, template: Option<&str>) -> Result<TextPipeline> {
        let tokenizer = Tokenizer::from_checkpoint(file)?;
        let template = match template {
            None => ChatTemplate::from_checkpoint(file, tokenizer.vocab())?,
            Some(source) => Some(ChatTemplate::from_source(source, tokenizer.vocab())?),
        };
        Ok(TextPipeline::new(tokenizer, template))
    }

    #[cfg(not(feature = "text"))]
    pub(super) fn read(file: &dyn Checkpoint, _template: Option<&str>) -> Result<TextPipeline> {
        Ok(TextPipeline { vocab: Arc::new(Vocab::from_checkpoint(file)?) })
    }

    /// Those of a custom graph without a file: tokens are plain numbers and spell nothing.
    #[cfg(feature = "text")]
    pub(super) fn of_numbers(
        model: &str,
        count: usize,
        ends: &[TokenId],
        template: Option<&str>,
    ) -> Result<TextPipeline> {
        let tokenizer = Tokenizer::of_numbers(model, count, ends)?;
        let template = template.map(|source| ChatTemplate::from_source(source, tokenizer.vocab()));
        Ok(TextPipeline::new(tokenizer, template.transpose()?))
    }

    #[cfg(not(feature = "text"))]
    pub(super) fn of_numbers(
        _model: &str,
        count: usize,
        ends: &[TokenId],
        _template: Option<&str>,
    ) -> Result<TextPipeline> {
        Ok(TextPipeline { vocab: Arc::new(Vocab::of_numbers(count, ends)?) })
    }

    #[cfg(feature = "text")]
    fn new(mut tokenizer: Tokenizer, template: Option<ChatTemplate>) -> TextPipeline {
        if let Some(template) = &template {
            tokenizer.end_turns_as(template);
        }
        TextPipeline { vocab: Arc::clone(tokenizer.vocab()), tokenizer, template }
    }

    /// Defects of the file's vocabulary, one line each.
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
