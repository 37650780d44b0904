//! Recurrent states: prefixes are found up to a snapshot, snapshots are bounded, and a full table refuses.

use super::*;

fn with_states(pages: usize, slots: usize) -> KvCacheManager {
    manager(pages).with_states(slots).unwrap()
}

/// Writes in an engine's order: whole pages first.
fn written_in_pages(kv: &mut KvCacheManager, tokens: &[TokenId]) -> Allocation {
    let allocation = kv.allocate(tokens, spec(200)).unwrap();
    let mut rest = &tokens[allocation.cached_tokens..];
    while !rest.is_empty() {
        let (part, after) = rest.split_at(kv.to_a_whole_page(allocation.seq, rest.len()).unwrap());
        write(kv, allocation.seq, part);
        rest = after;
    }
    allocation
}

#[test]
fn a_prefix_is_found_up_to_a_page_whose_state_is_kept() {
    let mut kv = with_states(16, 6);
    // 40 tokens end within a page, so their state cannot be kept.
    let first = written(&mut kv, &ids(0..40), spec(64));
    let again = kv.allocate(&ids(0..40), spec(64)).unwrap();
    assert_eq!((again.cached_tokens, kv.stats().snapshots), (0, 0));
    let slots = |kv: &KvCacheManager, seq| kv.states(seq).unwrap();
    assert_eq!(slots(&kv, again.seq), None, "nothing is reserved");
    kv.reserve(again.seq, 32).unwrap();
    assert_eq!(slots(&kv, again.seq).unwrap().read, None, "it starts from zeros");
    kv.advance(again.seq, &ids(0..32)).unwrap();
    let kept = kv.sequences.get(again.seq).unwrap().state;
    write(&mut kv, again.seq, &ids(32..40));
    kv.release(first.seq).unwrap();
    kv.release(again.seq).unwrap();

    let found = kv.allocate(&ids(0..60), spec(64)).unwrap();
    assert_eq!(found.cached_tokens, 32);
    kv.reserve(found.seq, 1).unwrap();
    assert_eq!(slots(&kv, found.seq).unwrap().read, kept);
    kv.check_integrity().unwrap();
    assert_eq!(kv.to_a_whole_page(found.seq, 28), Ok(16), "up to 48");
    assert_eq!(kv.to_a_whole_page(found.seq, 15), Ok(15), "no page is full before 48");
}

#[test]
fn an_answer_leaves_its_newest_snapshot_and_the_prompt_s() {
    let mut kv = with_states(16, 8);
    let first = written_in_pages(&mut kv, &ids(0..40));
    for token in 40..100 {
        write(&mut kv, first.seq, &[TokenId(token)]);
    }
    assert_eq!(kv.stats().snapshots, 2, "of 32 and of 96 tokens");
    kv.release(first.seq).unwrap();
    assert_eq!(kv.stats().states, 0);
    let found = kv.allocate(&ids(0..120), spec(200)).unwrap();
    assert_eq!(found.cached_tokens, 96);
    let other: Vec<TokenId> = ids(0..80).into_iter().chain(ids(500..510)).collect();
    assert_eq!(kv.allocate(&other, spec(200)).unwrap().cached_tokens, 32);
}

#[test]
fn the_snapshot_that_was_used_longest_ago_goes_first_and_a_failed_sequence_s_at_once() {
    let mut kv = with_states(40, 3);
    let prompt = |family: u32| ids(1000 * family..1000 * family + 17);
    let cached = |kv: &mut KvCacheManager, family| {
        let allocation = kv.allocate(&prompt(family), spec(64)).unwrap();
        kv.release(allocation.seq).unwrap();
        allocation.cached_tokens
    };
    for family in 0..2 {
        let seq = written_in_pages(&mut kv, &prompt(family)).seq;
        kv.release(seq).unwrap();
    }
    assert_eq!([cached(&mut kv, 1), cached(&mut kv, 0)], [16, 16]);
    // It takes the free slot and another one.
    let third = written_in_pages(&mut kv, &prompt(2)).seq;
    assert_eq!([cached(&mut kv, 1), cached(&mut kv, 2)], [0, 16]);
    kv.release_unshared(third).unwrap();
    assert_eq!(cached(&mut kv, 2), 0);
    kv.check_integrity().unwrap();
}

#[test]
fn a_full_book_refuses_and_a_cut_needs_a_snapshot() {
    assert_eq!(manager(1).with_states(1).unwrap_err(), KvError::StateSlots { found: 1 });
    let mut kv = with_states(16, 3);
    let first = written_in_pages(&mut kv, &ids(0..40)).seq;
    kv.reserve(first, 1).unwrap();
    let second = kv.allocate(&ids(100..104), spec(64)).unwrap().seq;
    kv.reserve(second, 1).unwrap();
    assert_eq!((kv.stats().states, kv.stats().snapshots), (3, 0), "the snapshot's slot was needed");
    let third = kv.allocate(&ids(100..104), spec(64)).unwrap().seq;
    refused(&mut kv, third, KvError::OutOfStates { slots: 3 }, |kv| {
        kv.reserve(third, 1).map(<[CopyPage]>::to_vec)
    });
    let none = SequenceSpec { tokens_max: 64, window: None, salt: None };
    refused(&mut kv, third, KvError::OutOfStates { slots: 3 }, |kv| kv.adopt(&ids(0..3), none));
    refused(&mut kv, first, KvError::StateGone { target: 32 }, |kv| kv.truncate(first, 32));
    kv.truncate(first, 0).unwrap();
    kv.check_integrity().unwrap();
    kv.reserve(third, 1).unwrap();
}

#[test]
fn check_integrity_sees_a_lost_and_a_borrowed_state() {
    let ruined = |ruin: &dyn Fn(&mut KvCacheManager, SeqId)| {
        let mut kv = with_states(8, 4);
        let seq = written(&mut kv, &ids(0..20), spec(64)).seq;
        ruin(&mut kv, seq);
        kv.check_integrity().unwrap_err().0
    };
    let lost = ruined(&|kv, seq| kv.sequences.get_mut(seq).unwrap().state = None);
    assert_eq!(lost, "state slot 0: 1 references booked, 0 found, free 0 times");
    let state = |kv: &mut KvCacheManager, seq| kv.sequences.get_mut(seq).unwrap().state;
    let borrowed = ruined(&|kv, seq| kv.sequences.get_mut(seq).unwrap().next_state = state(kv, seq));
    assert_eq!(borrowed, "state slot 0: 1 references booked, 2 found, free 0 times");
    let released = ruined(&|kv, seq| {
        let slot = kv.sequences.get_mut(seq).unwrap().state.take();
        kv.states.release(slot);
    });
    assert_eq!(released, "sequence 0: 20 tokens, state None");
}
