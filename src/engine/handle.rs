//! [`Handle`]: the way in for any number of threads. It checks requests on the caller's thread
//! and passes them on; when the last handle goes, the engine's thread ends.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::channel::channel;
use super::core::Core;
use super::generate::Generate;
use super::generation::{Generation, GenerationError};
use super::inbox::{Inbox, Restore};
use super::request::{Facts, InvalidRequest, SubmitError, TokenRequest, at_most};
use super::score::{ScoreTask, Scores};
use super::sequence::{Sequence, Task};
use super::stats::Stats;
use super::store::{self, SaveTask};
use super::worker::Worker;
use super::{EngineConfig, EngineError, PrefixReuse};
use crate::kv::{KvCacheManager, KvConfig, PrefixSharing, snapshot};
use crate::model::Decoder;
use crate::token::TokenId;

/// Ends the thread when the last handle is dropped.
#[derive(Debug)]
struct Owner {
    inbox: Arc<Inbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.inbox.stop();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // A handle inside a token mask may be dropped by the thread itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            // Panics are caught on the thread; there is nothing more to learn here.
            let _ = thread.join();
        }
    }
}

/// A running engine. Clones are the same engine.
#[derive(Clone, Debug)]
pub struct Handle {
    owner: Arc<Owner>,
    facts: Facts,
    config: EngineConfig,
}

impl Handle {
    /// Starts an engine on a thread of its own, named `ottava-engine`, which owns `decoder`.
    ///
    /// # Errors
    /// [`EngineError::Config`] if decoder or configuration leave room for nothing,
    /// [`EngineError::Thread`].
    pub fn spawn<D: Decoder + 'static>(decoder: D, config: EngineConfig) -> Result<Handle, EngineError> {
        let facts = facts(&decoder, &config)?;
        let prefix = match config.prefix {
            PrefixReuse::On => PrefixSharing::On { salt: facts.fingerprint },
            PrefixReuse::Off => PrefixSharing::Off,
        };
        let kv = KvCacheManager::new(KvConfig { pages: facts.pages, prefix });
        let inbox = Arc::new(Inbox::new(config.queue_max));
        let mut worker = Worker::new(Core::new(decoder, kv, &facts), Arc::clone(&inbox), facts, config);
        let closing = Closing(Arc::clone(&inbox));
        let serve = move || {
            let _closing = closing;
            // What a panic leaves behind is not used again: closing ends all that waits.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| worker.serve()));
        };
        let thread = thread::Builder::new().name("ottava-engine".into()).spawn(serve);
        let thread = Mutex::new(Some(thread.map_err(EngineError::Thread)?));
        Ok(Handle { owner: Arc::new(Owner { inbox, thread }), facts, config })
    }

    /// Hands a request over. It runs at once or waits in the queue.
    ///
    /// # Errors
    /// [`SubmitError`]: an accepted request has nothing wrong with it and fits.
    pub fn submit(&self, request: TokenRequest) -> Result<Generation, SubmitError> {
        self.facts.check(&request)?;
        let mut request = request;
        let prompt = std::mem::take(&mut request.prompt);
        let (window, tokens_max) = (request.window, prompt.len() + request.max_tokens);
        let (sender, receiver) = channel(self.config.event_buffer, Arc::clone(&self.owner.inbox.bell));
        let task = Task::Generate(Box::new(Generate::new(request, sender)));
        self.owner.inbox.submit(Sequence::new(prompt, tokens_max, window, task))?;
        Ok(Generation { receiver })
    }

    /// Scores a text: the negative log likelihood of each token after the first, and the `top`
    /// highest logits after each prefix. Waits for the result, beside whatever else runs.
    ///
    /// # Errors
    /// [`EngineError::Refused`], [`EngineError::Failed`].
    pub fn score(&self, ids: &[TokenId], top: usize) -> Result<Scores, EngineError> {
        at_most("top", top, self.facts.vocab_size).map_err(SubmitError::from)?;
        self.compute(ids, |reply| Task::Score(ScoreTask::new(top, reply)))
    }

    /// Computes the keys and values of a prompt and writes them to a file, whole or not at all.
    /// Waits until it is done.
    ///
    /// # Errors
    /// [`EngineError::Refused`], [`EngineError::Failed`], [`EngineError::Snapshot`].
    pub fn save(&self, ids: &[TokenId], path: &Path) -> Result<(), EngineError> {
        let saved = self.compute(ids, |reply| Task::Save(SaveTask::new(reply)))?;
        let page_bytes = self.facts.layout.page_bytes();
        snapshot::save(path, &saved.header, |page, out| {
            let start = page * page_bytes;
            out.extend_from_slice(saved.bytes.get(start..start + page_bytes).unwrap_or_default());
            Ok(())
        })?;
        Ok(())
    }

    /// Reads what [`Handle::save`] has written and puts its full pages into the cache, for the
    /// next request with the same beginning. Returns how many tokens the cache now holds of it;
    /// they may be evicted like any others. After an error the cache is as it was.
    ///
    /// # Errors
    /// [`EngineError::Snapshot`] if the file is damaged or another model's,
    /// [`EngineError::Restore`], [`EngineError::Refused`].
    pub fn restore(&self, path: &Path) -> Result<usize, EngineError> {
        let snapshot = snapshot::load(path, &self.facts.fingerprint, &self.facts.layout)?;
        store::check(&snapshot, self.facts.vocab_size)?;
        let (reply, answer) = sync_channel(1);
        self.owner.inbox.restore(Restore { snapshot, reply })?;
        Ok(answer.recv().map_err(|_| GenerationError::Stopped)??)
    }

    /// What the engine has done and is doing, as of its last step.
    pub fn stats(&self) -> Stats {
        self.owner.inbox.stats()
    }

    /// Most tokens that one request without a window may have, prompt and output together: the
    /// model's context, or the whole KV cache if that is less.
    pub fn tokens_max(&self) -> usize {
        self.facts.tokens_max()
    }

    /// Tokens of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.facts.vocab_size
    }

    /// Submits a task that has one answer, and waits for it.
    fn compute<T>(&self, ids: &[TokenId], task: impl FnOnce(Answering<T>) -> Task) -> Result<T, EngineError> {
        if ids.is_empty() {
            return Err(SubmitError::from(InvalidRequest::EmptyPrompt).into());
        }
        self.facts.check_fit(ids.len(), None)?;
        self.facts.check_ids("ids", ids).map_err(SubmitError::from)?;
        let (reply, answer): (Answering<T>, Receiver<_>) = sync_channel(1);
        self.owner.inbox.submit(Sequence::new(ids.to_vec(), ids.len(), None, task(reply)))?;
        Ok(answer.recv().map_err(|_| GenerationError::Stopped)??)
    }
}

type Answering<T> = SyncSender<Result<T, GenerationError>>;

/// Closes the inbox when the thread ends, however it ends.
struct Closing(Arc<Inbox>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn facts(decoder: &impl Decoder, config: &EngineConfig) -> Result<Facts, EngineError> {
    let limits = decoder.limits();
    let facts = Facts {
        vocab_size: decoder.vocab_size(),
        context_max: decoder.context_max(),
        pages: decoder.pages().min(u32::MAX as usize),
        layout: decoder.kv_layout(),
        fingerprint: decoder.fingerprint(),
        limits,
        prefill_chunk: config.prefill_chunk.min(limits.tokens_max),
    };
    let counts = [
        ("the decoder's tokens_max", limits.tokens_max),
        ("the decoder's outputs_max", limits.outputs_max),
        ("the decoder's vocab_size", facts.vocab_size),
        ("the decoder's context_max", facts.context_max),
        ("the decoder's pages", facts.pages),
        ("queue_max", config.queue_max),
        ("sequences_max", config.sequences_max),
        ("prefill_chunk", config.prefill_chunk),
        ("event_buffer", config.event_buffer),
    ];
    match counts.into_iter().find(|(_, count)| *count == 0) {
        Some((what, _)) => Err(EngineError::Config { what }),
        None => Ok(facts),
    }
}
