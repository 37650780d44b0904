//! The scheduler's decisions on plain data.

use proptest::prelude::*;

use crate::engine::scheduler::{Candidate, Room, schedule};
use crate::engine::table::SlotId;
use crate::ir::StepLimits;

fn room(tokens_max: usize, outputs_max: usize, prefill_chunk: usize, sequences_max: usize) -> Room {
    let limits = StepLimits { tokens_max, outputs_max };
    Room { limits, prefill_chunk, sequences_max, job_first: false }
}

fn decode(index: usize) -> Candidate {
    Candidate { running: true, ..prompt(index, 1) }
}

fn prompt(index: usize, pending: usize) -> Candidate {
    let slot = SlotId::new(index, 0);
    Candidate {
        slot,
        pending,
        without_output: pending.saturating_sub(1),
        cached: 0,
        priority: 0,
        running: false,
        paused: false,
        job: false,
    }
}

/// A job with outputs for its last `outputs` tokens.
fn job(index: usize, pending: usize, outputs: usize) -> Candidate {
    Candidate { job: true, without_output: pending - outputs, ..prompt(index, pending) }
}

fn plan(candidates: &[Candidate], room: Room) -> Vec<(usize, usize)> {
    let mut scheduled = Vec::new();
    schedule(candidates, &room, &mut scheduled);
    let index = |slot| candidates.iter().find(|c| c.slot == slot).map(|c| c.slot.index());
    scheduled.iter().map(|part| (index(part.slot).unwrap(), part.tokens)).collect()
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
fn short_prompts_have_half_of_a_chunk_beside_a_long_one() {
    let room = room(320, 64, 256, 8);
    let long = Candidate { running: true, ..prompt(0, 4000) };
    assert_eq!(
        plan(&[long, prompt(1, 30), prompt(2, 500), prompt(3, 90)], room),
        [(1, 30), (3, 90), (0, 136)]
    );
    // A prompt of more than half a chunk waits, and so does one of lower priority.
    assert_eq!(plan(&[long, prompt(1, 100), prompt(2, 29)], room), [(1, 100), (0, 156)]);
    assert_eq!(plan(&[long, prompt(1, 129)], room), [(0, 256)]);
    assert_eq!(plan(&[long, Candidate { priority: -1, ..prompt(1, 30) }], room), [(0, 256)]);
    // Cached tokens are no work.
    let second_turn = Candidate { cached: 2000, ..prompt(1, 2030) };
    assert_eq!(plan(&[long, second_turn], room), [(1, 30), (0, 226)]);
    let mostly_cached = Candidate { cached: 3900, ..prompt(0, 4000) };
    assert_eq!(plan(&[mostly_cached, prompt(1, 30)], room), [(0, 100), (1, 30)]);
}

/// They need slots, and a chunk of one token has no half.
#[test]
fn short_prompts_beside_a_long_one_wait_for_seats() {
    let long = Candidate { running: true, ..prompt(0, 4000) };
    assert_eq!(plan(&[long, prompt(1, 30), prompt(2, 30)], room(320, 64, 256, 2)), [(1, 30), (0, 226)]);
    // The last slot is the long one's, however many short ones come.
    assert_eq!(plan(&[prompt(0, 4000), prompt(1, 30)], room(320, 64, 256, 1)), [(0, 256)]);
    assert_eq!(plan(&[prompt(0, 4000), prompt(1, 30)], room(320, 64, 256, 2)), [(1, 30), (0, 226)]);
    assert_eq!(plan(&[long, prompt(1, 1)], room(320, 64, 1, 8)), [(0, 1)]);
    assert_eq!(
        plan(&[decode(0), prompt(1, 4000), prompt(2, 4)], room(9, 9, 256, 8)),
        [(0, 1), (2, 4), (1, 4)]
    );
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

/// Regression: the older one lost its pages while its reader slept, and the younger took the slot. Neither
/// went on when the older one woke up.
#[test]
fn a_prompt_with_a_place_goes_on_behind_an_older_one_without() {
    let halfway = Candidate { running: true, ..prompt(1, 30) };
    assert_eq!(plan(&[prompt(0, 40), halfway, prompt(2, 5)], room(64, 8, 16, 1)), [(1, 16)]);
}

/// Decodes keep at most half of a step, in tokens and in outputs, from a job at its turn.
#[test]
fn a_job_and_decodes_share_a_step_and_take_turns_at_its_room() {
    let turn = |job_first| Room { job_first, ..room(320, 64, 256, 64) };
    let crowd = |decodes: usize, job: Candidate| {
        let candidates: Vec<_> = std::iter::once(job).chain((1..=decodes).map(decode)).collect();
        let tokens = move |room| {
            let found = plan(&candidates, room);
            let of_job = found.iter().find(|part| part.0 == 0).map_or(0, |part| part.1);
            (of_job, found.len() - usize::from(of_job > 0))
        };
        [tokens(turn(true)), tokens(turn(false))]
    };
    assert_eq!(crowd(3, job(0, 500, 500)), [(61, 3), (61, 3)]);
    assert_eq!(crowd(64, job(0, 500, 500)), [(32, 32), (0, 64)]);
    assert_eq!(crowd(64, job(0, 500, 0)), [(256, 64), (256, 64)], "a prompt to save needs no outputs");
    assert_eq!(crowd(64, job(0, 500, 10)), [(256, 64), (256, 64)]);
}

#[test]
fn a_job_and_prompts_take_turns_at_the_chunk() {
    let both = [job(0, 500, 0), prompt(1, 500)];
    assert_eq!(plan(&both, Room { job_first: true, ..room(320, 64, 256, 8) }), [(0, 256)]);
    assert_eq!(plan(&both, room(320, 64, 256, 8)), [(1, 256)]);
    let short = [job(0, 100, 0), prompt(1, 500)];
    assert_eq!(plan(&short, Room { job_first: true, ..room(320, 64, 256, 8) }), [(0, 100), (1, 156)]);
}

#[test]
fn a_job_needs_no_seat_and_takes_none() {
    let running = Candidate { running: true, ..job(0, 9, 9) };
    assert_eq!(plan(&[running, prompt(1, 3)], room(8, 8, 8, 1)), [(1, 3), (0, 5)]);
    assert_eq!(plan(&[job(0, 9, 9), decode(1)], room(8, 8, 8, 1)), [(1, 1), (0, 7)]);
}

#[test]
fn in_a_step_of_one_row_a_job_and_a_decode_take_turns() {
    let both = [job(0, 9, 9), decode(1)];
    assert_eq!(plan(&both, Room { job_first: true, ..room(1, 1, 1, 8) }), [(0, 1)]);
    assert_eq!(plan(&both, room(1, 1, 1, 8)), [(1, 1)]);
}

proptest! {
    #[test]
    fn limits_hold_and_the_oldest_ready_sequence_is_served(
        raw in prop::collection::vec((0usize..40, any::<bool>(), any::<bool>(), 0usize..40), 1..30),
        wanted in prop::option::of(0usize..40),
        tokens_max in 1usize..50, outputs_max in 1usize..20, chunk in 1usize..40, sequences_max in 1usize..40,
        job_first in any::<bool>(),
    ) {
        let mut candidates: Vec<_> = raw.iter().enumerate().map(|(index, &(pending, running, paused, cached))| {
            let cached = if running { 0 } else { cached.min(pending.saturating_sub(1)) };
            Candidate { running, paused, cached, ..prompt(index, pending) }
        }).collect();
        if let Some(outputs) = wanted {
            let pending = candidates[0].pending;
            candidates[0] = Candidate { running: candidates[0].running, ..job(0, pending, outputs.min(pending)) };
        }
        let room = Room { job_first, ..room(tokens_max, outputs_max, chunk, sequences_max) };
        let parts = plan(&candidates, room);
        let outputs_of = |&(index, tokens): &(usize, usize)| tokens.saturating_sub(candidates[index].without_output);
        let outputs = parts.iter().map(outputs_of).sum::<usize>();
        prop_assert!(parts.iter().map(|part| part.1).sum::<usize>() <= tokens_max);
        prop_assert!(outputs <= outputs_max);
        let is_decode = |c: &&Candidate| !c.job && c.running && !c.paused && c.pending == 1;
        let chunked = parts.iter().filter(|part| !is_decode(&&candidates[part.0]));
        prop_assert!(chunked.map(|part| part.1).sum::<usize>() <= chunk);
        let running = |c: &&Candidate| !c.job && c.running && !c.paused;
        let new = parts.iter().filter(|part| !candidates[part.0].job && !candidates[part.0].running).count();
        prop_assert!(new <= sequences_max.saturating_sub(candidates.iter().filter(running).count()));
        for &(index, tokens) in &parts {
            let candidate = candidates[index];
            prop_assert!(!candidate.paused && tokens >= 1 && tokens <= candidate.pending);
            prop_assert_eq!(parts.iter().filter(|part| part.0 == index).count(), 1);
        }
        let first = parts.iter().find(|part| !candidates[part.0].job).map(|part| part.0);
        if let Some(decode) = candidates.iter().find(is_decode).filter(|_| !candidates[0].job) {
            prop_assert_eq!(first, Some(decode.slot.index()));
        }
        let is_prompt = |c: &&Candidate| !c.job && !c.paused && c.pending > usize::from(c.running);
        let prompts: Vec<usize> = parts.iter().map(|part| part.0).filter(|&index| is_prompt(&&candidates[index])).collect();
        let free = sequences_max > candidates.iter().filter(running).count();
        let eldest = candidates.iter().filter(is_prompt).find(|c| c.running || free);
        // One token may need an output, and decodes come before it.
        let others = parts.iter().filter(|part| !prompts.contains(&part.0));
        let has_outputs = others.map(outputs_of).sum::<usize>() < outputs_max;
        if let Some(eldest) = eldest.filter(|c| !prompts.is_empty() && (has_outputs || c.without_output > 0)) {
            prop_assert!(prompts.contains(&eldest.slot.index()), "the eldest goes on whatever else does");
        }
        let with_place = candidates.iter().any(|c| (c.job || c.running) && !c.paused && c.pending > 0);
        prop_assert!(!with_place || !parts.is_empty(), "who has a place is not blocked");
        let waiting_job = candidates[0].job && candidates[0].pending > 0;
        prop_assert!(!(waiting_job && job_first) || parts.iter().any(|part| part.0 == 0), "its turn is its turn");
    }
}
