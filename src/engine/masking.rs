//! A request's mask at work. It is the caller's code: what it does wrong is its own request's failure, and none of it
//! runs on the engine's thread. It goes to the [pool](super::pool) with each choice, says first what must follow and
//! whether that is all, and looks at what may come next while the model's step runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::pool::{LOST_MAX, MaskPool, Queue, TIME_MAX};
use crate::sample::{SampleError, TokenMask, TokenSet};
use crate::token::TokenId;

const TOO_SLOW: SampleError = SampleError::MaskFailed("it took too long");

/// What comes behind an answer.
#[derive(Debug)]
pub(super) enum Next {
    /// Nothing.
    End,
    /// These tokens, at least one.
    Forced(Vec<TokenId>),
    /// One of these.
    Allowed(TokenSet),
}

/// What must follow on a choice.
#[derive(Debug, Default)]
pub(super) struct Followed {
    pub(super) forced: Vec<TokenId>,
    /// Whether the answer is complete with them.
    pub(super) finished: bool,
}

/// A mask, here or at the pool.
#[derive(Debug)]
pub(super) enum Masking {
    Here(Box<Desk>),
    Away(Away),
    /// It has failed.
    Gone,
}

/// What goes to the pool and comes back.
pub(super) struct Desk {
    /// None once it is dropped.
    mask: Option<Box<dyn TokenMask>>,
    /// All that it has seen.
    answer: Vec<TokenId>,
    /// None at the beginning.
    next: Option<Result<Next, SampleError>>,
}

/// How it is heard of.
#[derive(Debug)]
pub(super) struct Away {
    told: Receiver<Told>,
    stage: Arc<Mutex<Stage>>,
}

/// Whether a thread has it, and since when it has or has not.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stage {
    at_work: bool,
    since: Instant,
}

#[derive(Debug)]
enum Told {
    Followed(Followed),
    Back(Box<Desk>),
    Failed(SampleError),
}

impl Masking {
    pub(super) fn new(mask: Box<dyn TokenMask>) -> Masking {
        Masking::Here(Box::new(Desk { mask: Some(mask), answer: Vec::new(), next: None }))
    }

    /// Looks at the beginning of the answer, unless it has been.
    pub(super) fn start(&mut self, pool: &MaskPool, vocab: usize) {
        if matches!(self, Masking::Here(desk) if desk.next.is_none()) {
            self.follow(&[], 0, pool, vocab);
        }
    }

    /// Goes on behind tokens that were chosen; `most` forced ones fit.
    pub(super) fn follow(&mut self, tokens: &[TokenId], most: usize, pool: &MaskPool, vocab: usize) {
        let Masking::Here(mut desk) = std::mem::replace(self, Masking::Gone) else { return };
        desk.answer.extend_from_slice(tokens);
        let (tell, told) = sync_channel(2);
        let stage = Arc::new(Mutex::new(Stage { at_work: false, since: Instant::now() }));
        *self = Masking::Away(Away { told, stage: Arc::clone(&stage) });
        pool.run(Box::new(move |queue| desk.work((most, vocab), (tell, stage), queue)));
    }

    /// What must follow on the tokens that were given last; nothing if none were.
    ///
    /// # Errors
    /// What the mask did wrong, or that it takes too long.
    pub(super) fn followed(&mut self, pool: &MaskPool) -> Result<Followed, SampleError> {
        match self {
            Masking::Away(_) => match self.hear(pool)? {
                Told::Followed(followed) => Ok(followed),
                _ => Err(SampleError::MaskPanicked),
            },
            _ => Ok(Followed::default()),
        }
    }

    /// What comes next.
    ///
    /// # Errors
    /// As [`Masking::followed`].
    pub(super) fn next(&mut self, pool: &MaskPool) -> Result<&Next, SampleError> {
        while matches!(self, Masking::Away(_)) {
            match self.hear(pool)? {
                // It comes back with that.
                Told::Followed(_) => {}
                Told::Back(desk) => *self = Masking::Here(desk),
                Told::Failed(error) => return Err(error),
            }
        }
        match self {
            Masking::Here(desk) => match &desk.next {
                Some(next) => next.as_ref().map_err(Clone::clone),
                None => Ok(&Next::End),
            },
            _ => Err(SampleError::MaskPanicked),
        }
    }

    /// Waits for the pool.
    fn hear(&mut self, pool: &MaskPool) -> Result<Told, SampleError> {
        let Masking::Away(away) = self else { return Err(SampleError::MaskPanicked) };
        let told = away.hear(pool);
        let failed = match told {
            Ok(Told::Failed(error)) | Err(error) => error,
            told => return told,
        };
        *self = Masking::Gone;
        Err(failed)
    }
}

impl Away {
    fn hear(&self, pool: &MaskPool) -> Result<Told, SampleError> {
        let asked = Instant::now();
        loop {
            let stage = stage_of(&self.stage);
            let since = if stage.at_work { stage.since } else { Instant::now() };
            match self.told.recv_timeout((since + TIME_MAX).saturating_duration_since(Instant::now())) {
                Ok(told) => return Ok(told),
                Err(RecvTimeoutError::Disconnected) => return Err(SampleError::MaskPanicked),
                Err(RecvTimeoutError::Timeout) => pool.replace_lost(),
            }
            // Those before it in the queue may take as long each.
            let given_up = stage.at_work || asked.elapsed() > LOST_MAX * TIME_MAX;
            if given_up && stage_of(&self.stage) == stage {
                return Err(TOO_SLOW);
            }
        }
    }
}

fn stage_of(stage: &Mutex<Stage>) -> Stage {
    *stage.lock().unwrap_or_else(PoisonError::into_inner)
}

fn enter(stage: &Mutex<Stage>, at_work: bool) {
    *stage.lock().unwrap_or_else(PoisonError::into_inner) = Stage { at_work, since: Instant::now() };
}

/// How the engine hears of a mask, and sees what it is at.
type Line = (SyncSender<Told>, Arc<Mutex<Stage>>);

impl Desk {
    /// Tells what must follow. What comes next is looked at later: no other answer waits for it. A reader that has gone,
    /// and the request with it, needs to hear nothing.
    fn work(mut self: Box<Self>, (most, vocab): (usize, usize), (tell, stage): Line, queue: &Queue) {
        enter(&stage, true);
        let followed = match guard(|| self.follow(most, vocab)).and_then(|followed| followed) {
            Ok(followed) => followed,
            Err(error) => return drop(tell.send(Told::Failed(error))),
        };
        let finished = followed.finished;
        let heard = tell.send(Told::Followed(followed)).is_ok();
        if finished {
            self.next = Some(Ok(Next::End));
            drop(tell.send(Told::Back(self)));
        } else if heard {
            enter(&stage, false);
            queue.later(Box::new(move |_| {
                enter(&stage, true);
                self.next = Some(guard(|| self.look(vocab)).and_then(|next| next));
                drop(tell.send(Told::Back(self)));
            }));
        }
    }

    fn follow(&mut self, most: usize, vocab: usize) -> Result<Followed, SampleError> {
        let mut followed = Followed::default();
        if most > 0 {
            followed.forced = self.forced(most, vocab)?;
            self.answer.extend_from_slice(&followed.forced);
        }
        followed.finished = self.mask.as_ref().is_some_and(|mask| mask.is_finished(&self.answer));
        Ok(followed)
    }

    fn look(&mut self, vocab: usize) -> Result<Next, SampleError> {
        let forced = self.forced(usize::MAX, vocab)?;
        if !forced.is_empty() {
            return Ok(Next::Forced(forced));
        }
        let mut allowed = match self.next.take() {
            Some(Ok(Next::Allowed(mut allowed))) if allowed.vocab() == vocab => {
                allowed.clear();
                allowed
            }
            _ => TokenSet::new(vocab),
        };
        if let Some(mask) = &mut self.mask {
            mask.allowed(&self.answer, &mut allowed);
        }
        allowed.check()?;
        Ok(Next::Allowed(allowed))
    }

    /// The first of the tokens that must come.
    fn forced(&mut self, most: usize, vocab: usize) -> Result<Vec<TokenId>, SampleError> {
        let forced = self.mask.as_mut().map_or(&[][..], |mask| mask.forced(&self.answer));
        let forced = forced.get(..most).unwrap_or(forced);
        match forced.iter().find(|token| token.index() >= vocab) {
            Some(&token) => Err(SampleError::MaskToken { token, vocab }),
            None => Ok(forced.to_vec()),
        }
    }
}

/// Makes an error of a panic; a mask that has panicked is not called again.
fn guard<T>(call: impl FnOnce() -> T) -> Result<T, SampleError> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| SampleError::MaskPanicked)
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let mask = self.mask.take();
        // Its request has ended already, so nobody is left to tell.
        let _ = guard(|| drop(mask));
    }
}
