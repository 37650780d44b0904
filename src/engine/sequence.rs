//! A request on the engine's thread: its tokens, where it stands, and what it is for.

use std::time::Instant;

use super::channel::Reader;
use super::generate::Generate;
use super::generation::{FinishReason, GenerationError, Timings, Usage};
use super::scheduler::{Outputs, View};
use super::score::ScoreTask;
use super::store::SaveTask;
use crate::backend::Window;
use crate::kv::{SeqId, SequenceSpec};
use crate::token::TokenId;

/// What a sequence is computed for.
#[derive(Debug)]
pub(super) enum Task {
    Generate(Box<Generate>),
    Score(ScoreTask),
    Save(SaveTask),
}

/// How a sequence came to its end.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Finished(FinishReason),
    Failed(GenerationError),
}

/// When things happened to a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) submitted: Instant,
    pub(super) scheduled: Option<Instant>,
    pub(super) first_token: Option<Instant>,
}

/// A request that has been accepted.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Prompt and output so far.
    pub(super) tokens: Vec<TokenId>,
    pub(super) prompt_len: usize,
    pub(super) spec: SequenceSpec,
    /// Its place in the KV cache. None before the start and after a preemption.
    pub(super) kv: Option<SeqId>,
    /// Tokens whose keys and values are in the cache.
    pub(super) computed: usize,
    /// Prompt tokens that the first start has found in the cache.
    pub(super) cached_tokens: Option<usize>,
    pub(super) task: Task,
    pub(super) outcome: Option<Outcome>,
    pub(super) clock: Clock,
}

impl Sequence {
    /// A sequence of `prompt` that will have at most `tokens_max` tokens.
    pub(super) fn new(
        prompt: Vec<TokenId>,
        tokens_max: usize,
        window: Option<Window>,
        task: Task,
    ) -> Sequence {
        let mut tokens = prompt;
        let prompt_len = tokens.len();
        tokens.reserve_exact(tokens_max.saturating_sub(prompt_len));
        Sequence {
            tokens,
            prompt_len,
            spec: SequenceSpec { tokens_max, window },
            kv: None,
            computed: 0,
            cached_tokens: None,
            task,
            outcome: None,
            clock: Clock { submitted: Instant::now(), scheduled: None, first_token: None },
        }
    }

    /// Tokens known but not computed.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Which rows' logits it wants.
    pub(super) fn outputs(&self) -> Outputs {
        match &self.task {
            Task::Generate(_) => Outputs::Last,
            Task::Score(_) => Outputs::Each,
            Task::Save(_) => Outputs::None,
        }
    }

    /// Tokens at the beginning whose logits are not needed (any more), so that they may come
    /// from the cache.
    pub(super) fn skippable(&self) -> usize {
        match &self.task {
            Task::Generate(_) | Task::Save(_) => usize::MAX,
            Task::Score(score) => score.rows_done(),
        }
    }

    /// How its reader is doing.
    pub(super) fn reader(&self) -> Reader {
        match &self.task {
            Task::Generate(generate) => generate.sender.reader(),
            Task::Score(_) | Task::Save(_) => Reader::Ready,
        }
    }

    /// Whether its reader wants no more.
    pub(super) fn is_given_up(&self) -> bool {
        self.reader() == Reader::Cancelled
    }

    /// What the scheduler sees, given the pages that it has.
    pub(super) fn view(&self, pages: usize) -> View {
        View {
            ready: self.outcome.is_none() && self.reader() == Reader::Ready,
            started: self.kv.is_some(),
            computed: self.computed,
            pending: self.pending(),
            pages,
            outputs: self.outputs(),
        }
    }

    /// What it took so far.
    pub(super) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_len,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            completion_tokens: self.tokens.len() - self.prompt_len,
        }
    }

    /// How long it took so far.
    pub(super) fn timings(&self) -> Timings {
        let until = |moment: Option<Instant>| moment.unwrap_or_else(Instant::now) - self.clock.submitted;
        Timings {
            queued: until(self.clock.scheduled),
            first_token: until(self.clock.first_token),
            total: until(None),
        }
    }

    /// Tells the reader of the end.
    pub(super) fn conclude(self) {
        let (usage, timings) = (self.usage(), self.timings());
        let outcome = self.outcome.unwrap_or(Outcome::Failed(GenerationError::Stopped));
        match self.task {
            Task::Generate(generate) => generate.conclude(outcome, usage, timings),
            Task::Score(score) => score.conclude(outcome),
            Task::Save(save) => save.conclude(outcome),
        }
    }
}
