//! Signs of life of a process: its answers to health checks, and its use of the processor between them.

/// Missed checks in a row of a process that computes nothing meanwhile, after which it hangs.
const STILL_MAX: u32 = 4;
/// Missed checks in a row of a process that computes, after which it hangs: ten minutes, at six seconds each.
const MISSED_MAX: u32 = 100;
/// Clock ticks of a process that computes, from one check to the next: 50 ms. An idle one takes none.
const WORK: u64 = 5;

/// Missed checks of a process.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    missed: u32,
    /// Those without work of the process.
    still: u32,
    ticks: Option<u64>,
}

/// State of a process that has missed a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    /// It may answer again.
    Waits,
    /// It neither answers nor computes.
    Hangs,
    /// It computes without an end.
    Spins,
}

impl Pulse {
    /// Notes an answer, at a processor time in clock ticks.
    pub(super) fn answered(&mut self, ticks: Option<u64>) {
        *self = Pulse { ticks, ..Pulse::default() };
    }

    /// Notes a missed check.
    pub(super) fn missed(&mut self, ticks: Option<u64>) -> Silence {
        let works = ticks.zip(self.ticks).is_some_and(|(now, before)| now >= before + WORK);
        self.ticks = ticks;
        self.missed += 1;
        self.still = if works { 0 } else { self.still + 1 };
        match () {
            () if self.still >= STILL_MAX => Silence::Hangs,
            () if self.missed >= MISSED_MAX => Silence::Spins,
            () => Silence::Waits,
        }
    }

    /// Whether the last check was missed.
    pub(super) fn is_silent(&self) -> bool {
        self.missed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checks that a process may miss until it is taken for dead, and its state then.
    fn end(pulse: &mut Pulse, ticks: impl Fn(u64) -> Option<u64>) -> (usize, Silence) {
        let states = (1..).map(|check| pulse.missed(ticks(check)));
        states.enumerate().find(|(_, state)| *state != Silence::Waits).expect("an end")
    }

    #[test]
    fn a_process_that_computes_is_busy_and_one_that_does_not_hangs() {
        let mut pulse = Pulse::default();
        pulse.answered(Some(100));
        assert!(!pulse.is_silent());
        assert_eq!(end(&mut pulse, |_| Some(100)), (3, Silence::Hangs));
        assert!(pulse.is_silent());
        for unknown in [None, Some(7)] {
            pulse.answered(unknown);
            assert_eq!(end(&mut pulse, |_| None), (3, Silence::Hangs));
        }
        pulse.answered(Some(100));
        assert_eq!(end(&mut pulse, |check| Some(100 + 600 * check)), (99, Silence::Spins));
        // Work for ten checks, and then none.
        pulse.answered(Some(100));
        assert_eq!(end(&mut pulse, |check| Some(100 + 50 * check.min(10))), (13, Silence::Hangs));
        // An idle process takes a tick now and then.
        pulse.answered(Some(100));
        assert_eq!(end(&mut pulse, |check| Some(100 + check)), (3, Silence::Hangs));
    }

    #[test]
    fn an_answer_ends_a_silence() {
        let mut pulse = Pulse::default();
        for _ in 0..1000 {
            assert_eq!(pulse.missed(None), Silence::Waits);
            pulse.answered(None);
        }
    }
}
