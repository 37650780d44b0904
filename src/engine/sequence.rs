//! One sequence of the engine: its tokens, its pages, and its goal (an answer, scores, or a saved prompt).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use super::answer::{Answer, PendingMask};
use super::event::{FinishReason, Logprobs};
use super::failure::Failure;
use super::generation::Channel;
use super::mask_task::MaskTask;
use super::request::TokenRequest;
use super::store::Exported;
use super::{EngineError, Scores};
use crate::ir::Window;
use crate::kv::{KvCacheManager, SeqId, SequenceSpec};
use crate::sample::History;
use crate::token::TokenId;

/// Reply channel of a job. If it is dropped without a reply, the caller gets [`EngineError::Stopped`].
pub(super) type Reply<T> = mpsc::SyncSender<Result<T, EngineError>>;

/// A sequence of the [table](super::table).
#[derive(Debug)]
pub(super) struct Sequence {
    /// Prompt and generated tokens. Those from `computed` on have no keys and values yet.
    pub(super) tokens: Vec<TokenId>,
    /// Pages, if it has any, and the number of tokens in them.
    pub(super) pages: Option<SeqId>,
    pub(super) computed: usize,
    /// Tokens that the cache had on arrival; 0 once it has pages or has given them up. Tokens that other
    /// sequences compute meanwhile are found when it starts.
    pub(super) cached: usize,
    pub(super) goal: Goal,
    tokens_max: usize,
    window: Option<Window>,
    /// Prefix-cache salt: pages are shared only between sequences with equal salts.
    salt: Option<[u8; 32]>,
}

/// The purpose of a sequence. Scores and saved prompts are jobs: they get one reply, at their end.
#[derive(Debug)]
pub(super) enum Goal {
    Generate(Box<Answer>),
    /// Scores the rows from `first` on.
    Score {
        first: usize,
        top: usize,
        scores: Scores,
        /// Set when the caller no longer wants the scores.
        cancelled: Option<Arc<AtomicBool>>,
        reply: Reply<Scores>,
    },
    /// The pages are copied out when all of them are computed.
    Save {
        exported: Option<Exported>,
        reply: Reply<Exported>,
    },
}

/// A sequence's result of a step.
#[derive(Debug)]
pub(super) enum StepOutput {
    /// Nothing yet: more of its tokens must be computed first.
    Nothing,
    /// Nothing: its mask is late. Its last row does not count.
    Late,
    Token(TokenId, Option<Logprobs>),
    /// Result of a mask: tokens, the first of which may be a sampled one, and whether the answer is complete.
    Masked {
        ids: Vec<TokenId>,
        logprobs: Option<Logprobs>,
        finished: bool,
    },
    /// Scores of some rows.
    Scores(Scores),
    Pages(Exported),
}

impl Sequence {
    /// A checked request. Its `tokens` are empty if the host is out of memory for them.
    pub(super) fn generate(request: TokenRequest, channel: Arc<Channel>, context_max: usize) -> Sequence {
        let answer = Box::new(Answer::new(request, channel));
        let request = &answer.request;
        let tokens_max = request.prompt.len().saturating_add(request.max_tokens).min(context_max);
        let (mut tokens, window, salt) = (Vec::new(), request.window, request.cache_salt);
        if tokens.try_reserve_exact(tokens_max).is_ok() {
            tokens.extend_from_slice(&request.prompt);
        }
        let goal = Goal::Generate(answer);
        Sequence { tokens, pages: None, computed: 0, cached: 0, goal, tokens_max, window, salt }
    }

    /// A job; `goal` holds its reply channel.
    pub(super) fn job(tokens: Vec<TokenId>, salt: Option<[u8; 32]>, goal: Goal) -> Sequence {
        let tokens_max = tokens.len();
        Sequence { tokens, pages: None, computed: 0, cached: 0, goal, tokens_max, window: None, salt }
    }

    pub(super) fn answer(&self) -> Option<&Answer> {
        if let Goal::Generate(answer) = &self.goal { Some(answer) } else { None }
    }

    /// The reason to end it early, if it was cancelled or is past its deadline.
    pub(super) fn given_up(&self, now: Instant) -> Option<FinishReason> {
        match &self.goal {
            Goal::Generate(answer) => answer.given_up(now),
            Goal::Score { cancelled, .. } => {
                let is_set = |cancelled: &Arc<AtomicBool>| cancelled.load(Ordering::Relaxed);
                cancelled.as_ref().is_some_and(is_set).then_some(FinishReason::Cancelled)
            }
            Goal::Save { .. } => None,
        }
    }

    /// The mask of its answer, if it has one.
    pub(super) fn mask(&mut self) -> Option<&mut MaskTask> {
        if let Goal::Generate(answer) = &mut self.goal { answer.mask.as_mut() } else { None }
    }

    pub(super) fn is_job(&self) -> bool {
        self.answer().is_none()
    }

    /// Most tokens that it can reach.
    pub(super) fn tokens_max(&self) -> usize {
        self.tokens_max
    }

    /// Number of tokens to compute.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Pending tokens before the first that needs logits.
    pub(super) fn without_output(&self) -> usize {
        match &self.goal {
            Goal::Generate(_) => self.pending().saturating_sub(1),
            Goal::Score { first, .. } => first.saturating_sub(self.computed),
            Goal::Save { .. } => self.pending(),
        }
    }

    /// Bytes of a request's token ids; 0 for a job.
    pub(super) fn bytes(&self) -> usize {
        self.answer().map_or(0, |answer| {
            (self.tokens.capacity() + answer.request.prompt.capacity()) * size_of::<TokenId>()
        })
    }

    /// Whether its reader's buffer is full or its mask is late.
    pub(super) fn is_paused(&self) -> bool {
        self.answer().is_some_and(|answer| answer.pending_mask.is_some() || answer.room() == 0)
    }

    /// Marks its mask's result as overdue.
    pub(super) fn set_pending(&mut self, pending: PendingMask) {
        if let Goal::Generate(answer) = &mut self.goal {
            answer.pending_mask = Some(pending);
        }
    }

    /// Whether another token may follow the next one. The length and the reader's buffer must have room for
    /// both, and the answer must be neither cancelled nor past its deadline.
    pub(super) fn may_continue(&self) -> bool {
        let has_room = |answer: &Answer| answer.room() >= 2 && answer.given_up(Instant::now()).is_none();
        self.tokens.len() + 1 < self.tokens_max && self.answer().is_some_and(has_room)
    }

    /// Scheduling priority, highest first, ties by arrival. A job precedes all requests.
    pub(super) fn priority(&self) -> i16 {
        self.answer().map_or(i16::MAX, |answer| answer.request.priority.into())
    }

    pub(super) fn history(&self) -> History<'_> {
        let prompt = self.answer().map_or(self.tokens.len(), |answer| answer.request.prompt.len());
        History { tokens: &self.tokens, prompt }
    }

    /// The tokens to look up in the cache, and the page table's limits. The last of them is always computed.
    /// For scores the lookup ends with the first scored row.
    pub(super) fn spec(&self) -> (&[TokenId], SequenceSpec) {
        let findable = match &self.goal {
            Goal::Score { first, .. } => first.saturating_add(1).min(self.tokens.len()),
            Goal::Generate(_) | Goal::Save { .. } => self.tokens.len(),
        };
        let spec = SequenceSpec { tokens_max: self.tokens_max, window: self.window, salt: self.salt };
        (self.tokens.get(..findable).unwrap_or_default(), spec)
    }

    /// Looks up how many tokens of a sequence without pages are in the cache.
    pub(super) fn look_up(&mut self, kv: &KvCacheManager) {
        let (findable, spec) = self.spec();
        self.cached = kv.cached_tokens(findable, &spec);
    }

    /// Takes pages that already hold its first `cached` tokens. Returns the number to count as cache hits.
    pub(super) fn start(&mut self, pages: SeqId, cached: usize) -> usize {
        (self.pages, self.computed, self.cached) = (Some(pages), cached, 0);
        if let Goal::Generate(answer) = &mut self.goal { answer.start(cached) } else { 0 }
    }

    /// Prompt tokens that are computed and were not counted before. A preempted sequence computes its prompt
    /// again; it counts once.
    pub(super) fn count_prompt(&mut self) -> usize {
        let Goal::Generate(answer) = &mut self.goal else { return 0 };
        answer.count_prompt(self.computed)
    }

    /// Takes the result of a step. Returns the finish reason if the sequence ends with it; a job ends by its
    /// length.
    pub(super) fn accept(&mut self, output: StepOutput) -> Option<FinishReason> {
        match (&mut self.goal, output) {
            (Goal::Generate(_), StepOutput::Token(id, logprobs)) => return self.accept_token(id, logprobs),
            (Goal::Generate(_), StepOutput::Masked { ids, mut logprobs, finished }) => {
                let end = ids.into_iter().find_map(|id| self.accept_token(id, logprobs.take()));
                return end.or(finished.then_some(FinishReason::Mask));
            }
            (Goal::Score { scores, .. }, StepOutput::Scores(more)) => {
                scores.nll.extend(more.nll);
                scores.top.extend(more.top);
                scores.log_sums.extend(more.log_sums);
            }
            (Goal::Save { exported, .. }, StepOutput::Pages(pages)) => *exported = Some(pages),
            (Goal::Generate(_), _) => return None,
            _ => {}
        }
        (self.pending() == 0).then_some(FinishReason::Length)
    }

    fn accept_token(&mut self, id: TokenId, logprobs: Option<Logprobs>) -> Option<FinishReason> {
        let Goal::Generate(answer) = &mut self.goal else { return None };
        let finish = answer.accept(&mut self.tokens, id, logprobs);
        finish.or((self.tokens.len() >= self.tokens_max).then_some(FinishReason::Length))
    }

    /// Sends its end to the reader. A caller that no longer listens is ignored.
    pub(super) fn tell(mut self, end: Result<FinishReason, Failure>) {
        match (self.goal, end) {
            (Goal::Generate(answer), Ok(finish)) => {
                let prompt = answer.request.prompt.len().min(self.tokens.len());
                answer.finish(finish, self.tokens.split_off(prompt));
            }
            (Goal::Generate(answer), Err(failure)) => answer.fail(failure.into()),
            (Goal::Score { reply, .. }, Ok(FinishReason::Cancelled)) => {
                drop(reply.send(Err(EngineError::Cancelled)));
            }
            (Goal::Score { scores, reply, .. }, end) => {
                drop(reply.send(end.map(|_| scores).map_err(EngineError::from)));
            }
            (Goal::Save { exported, reply }, end) => {
                let end = end.map_err(EngineError::from);
                drop(reply.send(end.and_then(|_| exported.ok_or(EngineError::Stopped))));
            }
        }
    }
}
