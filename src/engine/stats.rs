//! Counts and times of an engine since its start.

use std::time::Duration;

use crate::kv::KvStats;

/// What an engine has done and is doing; one consistent picture, renewed after each step.
///
/// `admitted = finished + failed + cancelled + queued + active` at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Requests accepted by `submit`, `score` and `save`.
    pub admitted: u64,
    /// Requests refused because the queue was full.
    pub overloaded: u64,
    /// Requests that came to their end.
    pub finished: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Requests that their readers ended.
    pub cancelled: u64,
    /// Requests that wait to be taken in.
    pub queued: usize,
    /// Requests taken in, whether they hold pages or not.
    pub active: usize,
    /// Of those, requests that wait for their readers.
    pub paused: usize,
    /// Steps run.
    pub steps: u64,
    /// Sequences that gave up their pages and were computed again.
    pub preemptions: u64,
    /// Prompt tokens found in the cache.
    pub cached_tokens: u64,
    /// Tokens computed in chunks: prompts, and sequences computed again.
    pub prefill_tokens: u64,
    /// Time spent on them.
    pub prefill_time: Duration,
    /// Tokens computed one at a time.
    pub decode_tokens: u64,
    /// Time spent on them.
    pub decode_time: Duration,
    /// Generations that have had their first token.
    pub first_tokens: u64,
    /// The sum of their times from submission to first token.
    pub first_token_time: Duration,
    /// The longest such time.
    pub first_token_time_max: Duration,
    /// The pages.
    pub kv: KvStats,
}

impl Stats {
    /// Prefill tokens a second of step time; 0 before the first.
    pub fn prefill_rate(&self) -> f64 {
        rate(self.prefill_tokens, self.prefill_time)
    }

    /// Decode tokens a second of step time, all sequences together; 0 before the first.
    pub fn decode_rate(&self) -> f64 {
        rate(self.decode_tokens, self.decode_time)
    }

    /// Mean time from submission to first token.
    pub fn first_token_time_mean(&self) -> Duration {
        match u32::try_from(self.first_tokens) {
            Ok(0) => Duration::ZERO,
            Ok(count) => self.first_token_time / count,
            Err(_) => Duration::from_secs_f64(self.first_token_time.as_secs_f64() / self.first_tokens as f64),
        }
    }

    /// Accounts for a step of `elapsed`; what is mixed in it shares the time by tokens.
    pub(super) fn count_step(&mut self, prefill: usize, decode: usize, elapsed: Duration) {
        let share = prefill as f64 / (prefill + decode).max(1) as f64;
        let prefill_time = elapsed.mul_f64(share);
        self.steps += 1;
        self.prefill_tokens += prefill as u64;
        self.decode_tokens += decode as u64;
        self.prefill_time += prefill_time;
        self.decode_time += elapsed.saturating_sub(prefill_time);
    }

    pub(super) fn count_first_token(&mut self, waited: Duration) {
        self.first_tokens += 1;
        self.first_token_time += waited;
        self.first_token_time_max = self.first_token_time_max.max(waited);
    }
}

/// Tokens a second; 0 if there were none.
pub(super) fn rate(tokens: u64, time: Duration) -> f64 {
    if tokens == 0 || time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixed_step_shares_its_time_by_tokens() {
        let mut stats = Stats::default();
        stats.count_step(30, 10, Duration::from_secs(4));
        stats.count_step(0, 5, Duration::from_secs(1));
        assert_eq!((stats.prefill_time, stats.decode_time), (Duration::from_secs(3), Duration::from_secs(2)));
        assert_eq!((stats.prefill_rate(), stats.decode_rate()), (10.0, 7.5));
    }

    #[test]
    fn nothing_done_is_no_division_by_zero() {
        let stats = Stats::default();
        assert_eq!((stats.prefill_rate(), stats.decode_rate()), (0.0, 0.0));
        assert_eq!(stats.first_token_time_mean(), Duration::ZERO);
    }
}
