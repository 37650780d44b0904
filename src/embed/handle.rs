//! [`EmbedHandle`]: the callers' side of an encoder's thread.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, channel, sync_channel};

use crate::headroom;
use crate::model::TextEncoder;

use super::worker::{Job, run};
use super::{EmbedError, EmbedText};

/// Texts in the queue at most. A caller waits while the queue is full.
const QUEUE_TEXTS: usize = 64;

/// Handle to an encoder on its own thread: cheap to clone, shared between threads. Dropping the last clone
/// ends the thread.
#[derive(Clone, Debug)]
pub struct EmbedHandle {
    jobs: SyncSender<Job>,
    context_max: usize,
    vocab_size: usize,
}

impl EmbedHandle {
    /// Moves an encoder to a new thread.
    ///
    /// # Errors
    /// [`EmbedError::Thread`].
    pub(crate) fn spawn(
        encoder: impl TextEncoder + 'static,
        vocab_size: usize,
    ) -> Result<EmbedHandle, EmbedError> {
        let (jobs, received) = sync_channel(QUEUE_TEXTS);
        let context_max = encoder.context_max();
        let spawned = headroom::spawn("ottava-embed".into(), move || run(encoder, &received));
        spawned.map_err(|error| EmbedError::Thread(Arc::new(error)))?;
        Ok(EmbedHandle { jobs, context_max, vocab_size })
    }

    /// Maximum length of a text, in tokens.
    pub fn context_max(&self) -> usize {
        self.context_max
    }

    /// Pooled rows of texts, in their order, as the model computes them. Texts are taken from the iterator as
    /// the queue has room, so their number is not limited.
    ///
    /// # Errors
    /// The error of the first failing text; the rest is not computed. `E` is the error of the iterator.
    pub fn encode<E: From<EmbedError>>(
        &self,
        texts: impl IntoIterator<Item = Result<EmbedText, E>>,
    ) -> Result<Vec<Vec<f32>>, E> {
        let (reply, replies) = channel();
        let mut rows = Vec::new();
        let mut store = |(index, row): (usize, Result<Vec<f32>, EmbedError>)| -> Result<(), E> {
            let row = row?;
            if row.iter().any(|value| !value.is_finite()) {
                return Err(EmbedError::NotFinite { index }.into());
            }
            // The thread replies in the order of the queue.
            debug_assert_eq!(rows.len(), index);
            rows.push(row);
            Ok(())
        };
        for (index, text) in texts.into_iter().enumerate() {
            let text = text?;
            self.check(index, &text)?;
            let job = Job { text, index, reply: reply.clone() };
            self.jobs.send(job).map_err(|_| EmbedError::Stopped)?;
            replies.try_iter().try_for_each(&mut store)?;
        }
        drop(reply);
        replies.iter().try_for_each(store)?;
        Ok(rows)
    }

    fn check(&self, index: usize, text: &EmbedText) -> Result<(), EmbedError> {
        let (tokens, context_max, vocab_size) = (text.ids.len(), self.context_max, self.vocab_size);
        if tokens == 0 {
            return Err(EmbedError::Empty { index });
        }
        if tokens > context_max {
            return Err(EmbedError::TooLong { index, tokens, context_max });
        }
        match text.ids.iter().find(|id| id.index() >= vocab_size) {
            Some(id) => Err(EmbedError::Token { index, token: id.0, vocab_size }),
            None => Ok(()),
        }
    }
}
