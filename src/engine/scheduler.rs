//! Which sequences a step works on, and on how many of their tokens: a decision from plain data.
//!
//! Decodes come first, one token each, so that a long prompt never stalls a running answer; what
//! room is left goes to prompts, oldest first, at most one prefill chunk in all. Pages are the
//! worker's matter.

use crate::ir::StepLimits;

/// What the scheduler sees of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its place in the worker's list.
    pub(super) index: usize,
    /// Tokens not computed yet: 1 for a running decode.
    pub(super) pending: usize,
    /// Whether it has pages.
    pub(super) running: bool,
    /// Whether its reader has no room for another token.
    pub(super) paused: bool,
}

/// A sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Place in the worker's list.
    pub(super) index: usize,
    /// Tokens to compute.
    pub(super) tokens: usize,
}

/// What a step may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) limits: StepLimits,
    /// Most prompt tokens of a step.
    pub(super) prefill_chunk: usize,
    /// Most sequences at work: with pages, and a reader that reads.
    pub(super) sequences_max: usize,
}

/// Shares for the next step, oldest first among decodes, then among prompts.
/// `candidates` are in order of arrival.
pub(super) fn schedule(candidates: &[Candidate], room: &Room, shares: &mut Vec<Share>) {
    shares.clear();
    let mut tokens_left = room.limits.tokens_max;
    let mut outputs_left = room.limits.outputs_max;
    let ready = || candidates.iter().filter(|candidate| !candidate.paused && candidate.pending > 0);
    for candidate in ready().filter(|candidate| candidate.running && candidate.pending == 1) {
        if tokens_left == 0 || outputs_left == 0 {
            break;
        }
        shares.push(Share { index: candidate.index, tokens: 1 });
        tokens_left -= 1;
        outputs_left -= 1;
    }
    let mut prefill_left = room.prefill_chunk.min(tokens_left);
    // A reader that does not read keeps its pages while nobody needs them, but no place.
    let seated = candidates.iter().filter(|candidate| candidate.running && !candidate.paused).count();
    let mut places_left = room.sequences_max.saturating_sub(seated);
    for candidate in ready().filter(|candidate| !candidate.running || candidate.pending > 1) {
        if prefill_left == 0 {
            break;
        }
        let mut tokens = candidate.pending.min(prefill_left);
        if tokens == candidate.pending && outputs_left == 0 {
            // Its last token would need an output: leave that one for the next step.
            tokens -= 1;
        }
        if tokens == 0 || (!candidate.running && places_left == 0) {
            // Younger ones that have a place go on: the place is free when they have ended.
            continue;
        }
        shares.push(Share { index: candidate.index, tokens });
        prefill_left -= tokens;
        outputs_left -= usize::from(tokens == candidate.pending);
        places_left -= usize::from(!candidate.running);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn room(tokens_max: usize, outputs_max: usize, prefill_chunk: usize, sequences_max: usize) -> Room {
        Room { limits: StepLimits { tokens_max, outputs_max }, prefill_chunk, sequences_max }
    }

    fn decode(index: usize) -> Candidate {
        Candidate { index, pending: 1, running: true, paused: false }
    }

    fn prompt(index: usize, pending: usize) -> Candidate {
        Candidate { index, pending, running: false, paused: false }
    }

    fn plan(candidates: &[Candidate], room: Room) -> Vec<(usize, usize)> {
        let mut shares = Vec::new();
        schedule(candidates, &room, &mut shares);
        shares.iter().map(|share| (share.index, share.tokens)).collect()
    }

    #[test]
    fn decodes_go_before_older_prompts() {
        let found = plan(&[prompt(0, 1000), decode(1), decode(2)], room(320, 64, 256, 8));
        assert_eq!(found, [(1, 1), (2, 1), (0, 256)]);
    }

    #[test]
    fn prompts_share_one_chunk_oldest_first() {
        let found = plan(&[prompt(0, 100), prompt(1, 200), prompt(2, 5)], room(320, 64, 256, 8));
        assert_eq!(found, [(0, 100), (1, 156)]);
    }

    #[test]
    fn paused_sequences_and_those_without_a_place_are_left_out() {
        let paused = Candidate { paused: true, ..decode(0) };
        assert_eq!(plan(&[paused, decode(1), prompt(2, 3)], room(8, 8, 8, 1)), [(1, 1)]);
        assert_eq!(plan(&[paused, decode(1), prompt(2, 3)], room(8, 8, 8, 2)), [(1, 1), (2, 3)]);
    }

    #[test]
    fn a_prompt_without_an_output_stops_before_its_last_token() {
        assert_eq!(plan(&[decode(0), prompt(1, 4)], room(8, 1, 8, 8)), [(0, 1), (1, 3)]);
    }

    /// The older one lost its pages while its reader slept; the younger took the place. Neither
    /// worked when the older one woke up.
    #[test]
    fn a_prompt_with_a_place_goes_on_behind_an_older_one_without() {
        let halfway = Candidate { running: true, ..prompt(1, 30) };
        assert_eq!(plan(&[prompt(0, 40), halfway, prompt(2, 5)], room(64, 8, 16, 1)), [(1, 16)]);
    }

    proptest! {
        #[test]
        fn limits_hold_and_the_oldest_ready_sequence_is_served(
            raw in prop::collection::vec((0usize..40, any::<bool>(), any::<bool>()), 1..30),
            tokens_max in 1usize..50, outputs_max in 1usize..20, chunk in 1usize..40, sequences_max in 1usize..40,
        ) {
            let candidates: Vec<_> = raw.iter().enumerate().map(|(index, &(pending, running, paused))| {
                Candidate { index, pending, running, paused }
            }).collect();
            let room = room(tokens_max, outputs_max, chunk, sequences_max);
            let mut shares = Vec::new();
            schedule(&candidates, &room, &mut shares);
            let outputs = shares.iter().filter(|s| s.tokens == candidates[s.index].pending).count();
            prop_assert!(shares.iter().map(|s| s.tokens).sum::<usize>() <= tokens_max);
            prop_assert!(outputs <= outputs_max);
            let new = shares.iter().filter(|s| !candidates[s.index].running).count();
            let running = candidates.iter().filter(|c| c.running && !c.paused).count();
            prop_assert!(new <= sequences_max.saturating_sub(running));
            for share in &shares {
                let candidate = candidates[share.index];
                prop_assert!(!candidate.paused && share.tokens >= 1 && share.tokens <= candidate.pending);
            }
            let decode = candidates.iter().find(|c| c.running && !c.paused && c.pending == 1);
            if let Some(decode) = decode {
                prop_assert_eq!(shares.first().map(|s| s.index), Some(decode.index));
            }
            let with_place = candidates.iter().any(|c| c.running && !c.paused && c.pending > 0);
            prop_assert!(!with_place || !shares.is_empty(), "who has a place is not blocked");
        }
    }
}
