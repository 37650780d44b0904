//! Where the time of steps goes: while a profile is on, operations are timed one by one, and the time that
//! the engine's thread works is booked on the kind of step that it works on.

use std::time::{Duration, Instant};

use crate::ir::{OpTimes, StepInput};

/// What the engine did between [`super::Handle::start_profile`] and [`super::Handle::take_profile`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Steps with several rows of a sequence: prompts, and whatever shares a step with them.
    pub prefill: StepProfile,
    /// Steps in which each sequence has one row.
    pub decode: StepProfile,
}

/// Steps of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepProfile {
    /// Their number.
    pub steps: u64,
    /// Rows of all of them.
    pub tokens: u64,
    /// Time that the engine's thread worked, from the beginning of a step to that of the next: the
    /// operations, and what the host does between them. Its sleep is left out.
    pub busy: Duration,
    /// The operations' time and work.
    pub ops: OpTimes,
}

impl StepProfile {
    /// Time that no operation took: scheduling, sampling on the host, events.
    pub fn host(&self) -> Duration {
        self.busy.saturating_sub(self.ops.iter().map(|time| time.total).sum())
    }
}

/// A profile that is being made.
#[derive(Debug)]
pub(super) struct Profiler {
    profile: Profile,
    decoding: bool,
    /// What came before is booked.
    since: Instant,
}

impl Profiler {
    pub(super) fn new() -> Profiler {
        Profiler { profile: Profile::default(), decoding: false, since: Instant::now() }
    }

    /// Adds the time up to now to the step that ends here. Returns where the times of the one that begins are added.
    pub(super) fn begin(&mut self, step: &StepInput) -> &mut OpTimes {
        self.book();
        self.decoding = step.tokens.len() == step.sequences.len();
        let steps = self.steps();
        steps.steps += 1;
        steps.tokens += step.tokens.len() as u64;
        &mut steps.ops
    }

    fn steps(&mut self) -> &mut StepProfile {
        if self.decoding { &mut self.profile.decode } else { &mut self.profile.prefill }
    }

    fn book(&mut self) {
        let busy = self.since.elapsed();
        self.since += busy;
        self.steps().busy += busy;
    }

    /// Leaves out a sleep: no step takes that time.
    pub(super) fn skip(&mut self, asleep: Duration) {
        self.since += asleep;
    }

    /// What was counted.
    pub(super) fn end(mut self) -> Profile {
        self.book();
        self.profile
    }
}
