//! Profile of steps. While it is on, operations are timed one by one, and the busy time of the engine's
//! thread is added to the step's kind.

use std::time::{Duration, Instant};

use crate::ir::{OpTimes, StepInput};

/// The engine's work between [`super::Handle::start_profile`] and [`super::Handle::take_profile`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Steps with several rows of a sequence: prompts, and the decodes that share a step with them.
    pub prefill: StepProfile,
    /// Steps in which each sequence has one row.
    pub decode: StepProfile,
}

/// Steps of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepProfile {
    /// Number of steps.
    pub steps: u64,
    /// Number of rows in all steps.
    pub tokens: u64,
    /// Busy time of the engine's thread, from the beginning of a step to that of the next: the operations,
    /// and the host's work between them. Sleep is excluded.
    pub busy: Duration,
    /// Time and work of the operations.
    pub ops: OpTimes,
}

impl StepProfile {
    /// Time outside operations: scheduling, sampling on the host, events.
    pub fn host(&self) -> Duration {
        self.busy.saturating_sub(self.ops.iter().map(|time| time.total).sum())
    }
}

/// A profile in progress.
#[derive(Debug)]
pub(super) struct Profiler {
    profile: Profile,
    decoding: bool,
    /// Time before this instant is already counted.
    since: Instant,
}

impl Profiler {
    pub(super) fn new() -> Profiler {
        Profiler { profile: Profile::default(), decoding: false, since: Instant::now() }
    }

    /// Adds the time up to now to the step that ends here. Returns the operation times of the step that
    /// begins.
    pub(super) fn begin(&mut self, step: &StepInput) -> &mut OpTimes {
        self.add_busy();
        self.decoding = step.tokens.len() == step.sequences.len();
        let steps = self.steps();
        steps.steps += 1;
        steps.tokens += step.tokens.len() as u64;
        &mut steps.ops
    }

    fn steps(&mut self) -> &mut StepProfile {
        if self.decoding { &mut self.profile.decode } else { &mut self.profile.prefill }
    }

    fn add_busy(&mut self) {
        let busy = self.since.elapsed();
        self.since += busy;
        self.steps().busy += busy;
    }

    /// Excludes a sleep from the busy time.
    pub(super) fn skip(&mut self, asleep: Duration) {
        self.since += asleep;
    }

    /// Ends the profile and returns it.
    pub(super) fn end(mut self) -> Profile {
        self.add_busy();
        self.profile
    }
}
