//! End-of-turn detection from the chat template. Fine-tuned models often keep the base model's
//! end-of-sequence token in their file although they end turns with another token.

use super::template::{ChatTemplate, Message, RenderOptions};
use super::tokenizer::{AddBos, Special, Tokenizer};
use crate::TokenId;

/// Sample answer that no template contains by itself.
const ANSWER: &str = "Quokkas";

impl Tokenizer {
    /// Adds the control token that the template writes after an answer to the stop tokens. No effect if the
    /// template writes none or fails; its error appears when messages are rendered.
    pub(crate) fn end_turns_as(&mut self, template: &ChatTemplate) {
        let Some(end) = self.turn_end(template) else { return };
        if self.vocab().stop_ids().contains(&end) {
            return;
        }
        let Some(vocab) = self.vocab_mut() else { return };
        let piece = vocab.piece(end).unwrap_or_default().to_owned();
        vocab.stop_at(end);
        vocab.warn(format_args!(
            "the chat template ends answers with {piece:?}, token {}, which no key names: generation ends there, too",
            end.0
        ));
    }

    fn turn_end(&self, template: &ChatTemplate) -> Option<TokenId> {
        let messages = [Message::new("user", "Which animals?"), Message::new("assistant", ANSWER)];
        let options = RenderOptions { add_generation_prompt: false, ..RenderOptions::default() };
        let text = template.render(&messages, &options).ok()?;
        let (_, rest) = text.rsplit_once(ANSWER)?;
        let ids = self.encode(rest.trim_start(), Special::Parse, AddBos::No).ok()?;
        ids.first().copied().filter(|&id| self.vocab().is_control(id) && Some(id) != self.vocab().bos())
    }
}

#[cfg(test)]
mod tests;
