//! Tests of the accounting's contract: one per rule, and one per refusal. `states.rs` covers recurrent
//! states, and `model.rs` plays long random games.

mod model;
mod states;

use super::*;
use crate::ir::{KvDtype, PAGE_TOKENS, PageRef};
use crate::token::TokenId;

const SHARING: PrefixSharing = PrefixSharing::On { salt: [7; 32] };

fn manager(pages: usize) -> KvCacheManager {
    KvCacheManager::new(KvConfig { pages, prefix: SHARING }).unwrap()
}

fn spec(tokens_max: usize) -> SequenceSpec {
    SequenceSpec { tokens_max, window: None, salt: None }
}

fn windowed(tokens_max: usize, window: u32, sinks: u32) -> SequenceSpec {
    SequenceSpec { tokens_max, window: Some(Window { window, sinks }), salt: None }
}

fn ids(range: std::ops::Range<u32>) -> Vec<TokenId> {
    range.map(TokenId).collect()
}

fn write(kv: &mut KvCacheManager, seq: SeqId, tokens: &[TokenId]) {
    kv.reserve(seq, tokens.len()).unwrap();
    kv.advance(seq, tokens).unwrap();
    kv.check_integrity().unwrap();
}

/// A sequence that has written all of `tokens`.
fn written(kv: &mut KvCacheManager, tokens: &[TokenId], spec: SequenceSpec) -> Allocation {
    let allocation = kv.allocate(tokens, spec).unwrap();
    write(kv, allocation.seq, &tokens[allocation.cached_tokens..]);
    allocation
}

fn starts(kv: &KvCacheManager, seq: SeqId) -> Vec<u32> {
    kv.pages(seq).unwrap().iter().map(|entry| entry.start).collect()
}

/// Asserts that `call` is refused with `error` and changes nothing visible.
fn refused<T: std::fmt::Debug>(
    kv: &mut KvCacheManager,
    seq: SeqId,
    error: KvError,
    call: impl FnOnce(&mut KvCacheManager) -> Result<T, KvError>,
) {
    let see = |kv: &KvCacheManager| {
        (
            kv.stats(),
            kv.len(seq),
            kv.pages(seq).map(<[PageRef]>::to_vec),
            kv.tokens(seq).map(<[TokenId]>::to_vec),
        )
    };
    let before = see(kv);
    assert_eq!(call(kv).unwrap_err(), error);
    assert_eq!(see(kv), before);
    kv.check_integrity().unwrap();
}

#[test]
fn a_budget_in_bytes_is_met_to_the_byte() {
    let layout = KvLayout { layers: 3, kv_heads: 2, head_dim: 48, dtype: KvDtype::Int8 };
    let page = layout.page_bytes();
    assert_eq!(page, 3 * 2 * 2 * 16 * (48 + 2 * 2));
    for (bytes, pages) in [(0, 0), (page - 1, 0), (page, 1), (10 * page - 1, 9), (10 * page, 10)] {
        assert_eq!(KvConfig::within(bytes, &layout, SHARING).pages, pages);
    }
}

#[test]
fn a_prefix_is_found_in_whole_pages_and_leaves_a_token_to_compute() {
    let mut kv = manager(16);
    let prompt = ids(0..48);
    let first = written(&mut kv, &prompt, spec(64));
    assert_eq!(first.cached_tokens, 0);
    // Its pages are found, whether it is live or released.
    for alive in [true, false] {
        let second = kv.allocate(&prompt, spec(64)).unwrap();
        assert_eq!(second.cached_tokens, 32, "48 would leave nothing to compute");
        assert_eq!(kv.pages(second.seq).unwrap().len(), 2);
        kv.release(second.seq).unwrap();
        if alive {
            kv.release(first.seq).unwrap();
        }
        kv.check_integrity().unwrap();
    }
    assert_eq!(kv.stats(), KvStats { pages: 16, cached: 3, free: 13, prefix_tokens: 64, ..kv.stats() });
    let longer = kv.allocate(&ids(0..49), spec(64)).unwrap();
    assert_eq!(longer.cached_tokens, 48);
    let other = kv.allocate(&[ids(0..31), ids(99..130)].concat(), spec(64)).unwrap();
    assert_eq!(other.cached_tokens, 16);
    let none = kv.allocate(&ids(1..49), spec(64)).unwrap();
    assert_eq!(none.cached_tokens, 0);
    kv.check_integrity().unwrap();
}

#[test]
fn a_page_is_found_behind_its_own_past_only() {
    let mut kv = manager(16);
    written(&mut kv, &ids(0..32), spec(64));
    // The second page's tokens, but as a first page.
    assert_eq!(kv.allocate(&ids(16..48), spec(64)).unwrap().cached_tokens, 0);
}

#[test]
fn another_salt_finds_nothing_and_without_sharing_nobody_does() {
    let hash = |salt| {
        let sharing = PrefixSharing::On { salt: [salt; 32] };
        prefix::PrefixIndex::new(sharing, 1).unwrap().hash(None, None, &ids(0..16)).unwrap()
    };
    assert_ne!(hash(1), hash(2));
    assert_eq!(hash(1), hash(1));
    let mut kv = KvCacheManager::new(KvConfig { pages: 8, prefix: PrefixSharing::Off }).unwrap();
    let seq = written(&mut kv, &ids(0..40), spec(64)).seq;
    assert_eq!(kv.allocate(&ids(0..40), spec(64)).unwrap().cached_tokens, 0);
    kv.release(seq).unwrap();
    assert_eq!((kv.stats().cached, kv.stats().free), (0, 8));
}

#[test]
fn the_least_recently_used_prefix_goes_first_and_its_end_before_its_beginning() {
    let mut kv = manager(4);
    for prompt in [ids(0..32), ids(100..132)] {
        let seq = written(&mut kv, &prompt, spec(64)).seq;
        kv.release(seq).unwrap();
    }
    assert_eq!((kv.stats().cached, kv.stats().free, kv.free_pages()), (4, 0, 4));
    let seq = kv.allocate(&ids(200..210), spec(64)).unwrap().seq;
    write(&mut kv, seq, &ids(200..210));
    assert_eq!(kv.stats().evictions, 1);
    let cached = |kv: &mut KvCacheManager, prompt: &[TokenId]| {
        let found = kv.allocate(prompt, spec(64)).unwrap();
        kv.release(found.seq).unwrap();
        found.cached_tokens
    };
    assert_eq!(cached(&mut kv, &ids(100..140)), 32);
    assert_eq!(cached(&mut kv, &ids(0..40)), 16, "the end of the oldest prefix is gone");
    // A use makes a prefix young: now the second prefix is the older one.
    write(&mut kv, seq, &ids(0..16));
    assert_eq!(cached(&mut kv, &ids(100..140)), 16);
    assert_eq!(cached(&mut kv, &ids(0..40)), 16);
}

#[test]
fn a_fork_shares_until_one_writes() {
    let mut kv = manager(8);
    let seq = written(&mut kv, &ids(0..20), spec(64)).seq;
    let fork = kv.fork(seq).unwrap();
    assert_eq!((kv.used_pages(), kv.len(fork).unwrap()), (2, 20));
    let shared = kv.pages(seq).unwrap()[1].page;
    let copies = kv.reserve(fork, 1).unwrap().to_vec();
    let own = kv.pages(fork).unwrap()[1].page;
    assert_eq!(copies, [CopyPage { from: shared, to: own }]);
    assert_ne!(shared, own);
    assert_eq!(kv.reserve(seq, 1).unwrap(), [], "the last one that has a page writes it in place");
    assert_eq!(kv.pages(seq).unwrap()[0], kv.pages(fork).unwrap()[0]);
    assert_eq!((kv.stats().copies, kv.used_pages()), (1, 3));
    kv.check_integrity().unwrap();
}

#[test]
fn a_fork_spoils_an_open_reservation() {
    let mut kv = manager(8);
    let seq = written(&mut kv, &ids(0..20), spec(64)).seq;
    kv.reserve(seq, 1).unwrap();
    let fork = kv.fork(seq).unwrap();
    let error = KvError::NotReserved { len: 20, tokens: 1, reserved: 0 };
    refused(&mut kv, seq, error.clone(), |kv| kv.advance(seq, &ids(0..1)));
    refused(&mut kv, fork, error, |kv| kv.advance(fork, &ids(0..1)));
}

#[test]
fn a_window_drops_whole_pages_and_keeps_the_sinks() {
    let mut kv = manager(6);
    let seq = kv.allocate(&ids(0..1), windowed(100_000, 32, 4)).unwrap().seq;
    let mut seen = Vec::new();
    for position in 0..1000 {
        write(&mut kv, seq, &[TokenId(position)]);
        seen.push(kv.pages(seq).unwrap().len());
    }
    // A query at 1000 sees 0..4 and 969..=1000; the pages are 0 and 960 to 1008.
    assert_eq!(starts(&kv, seq), [0, 960, 976, 992]);
    assert_eq!(seen.iter().max(), Some(&4));
    assert_eq!(kv.used_pages(), 4);
}

#[test]
fn pages_that_a_window_has_clipped_are_never_shared() {
    let mut kv = manager(32);
    let prompt = ids(0..97);
    // Positions below 24 + 10 = 34 see everything: two whole pages.
    let seq = written(&mut kv, &prompt, windowed(128, 24, 10)).seq;
    kv.release(seq).unwrap();
    let plain = written(&mut kv, &prompt, spec(128));
    assert_eq!(plain.cached_tokens, 32);
    // A sequence with a window takes no more than that from one without.
    assert_eq!(kv.allocate(&prompt, windowed(128, 24, 10)).unwrap().cached_tokens, 32);
    assert_eq!(kv.allocate(&prompt, windowed(128, 64, 0)).unwrap().cached_tokens, 64);
    assert_eq!(kv.allocate(&prompt, spec(128)).unwrap().cached_tokens, 96);
    kv.check_integrity().unwrap();
}

#[test]
fn truncate_gives_back_pages_and_protects_shared_ones() {
    let mut kv = manager(8);
    let seq = written(&mut kv, &ids(0..60), spec(64)).seq;
    kv.truncate(seq, 20).unwrap();
    kv.check_integrity().unwrap();
    assert_eq!((kv.len(seq).unwrap(), kv.used_pages(), kv.stats().cached), (20, 2, 1));
    // The second page is full of the old content and can be found: writing it ends that.
    write(&mut kv, seq, &ids(500..512));
    assert_eq!(kv.allocate(&ids(0..60), spec(64)).unwrap().cached_tokens, 16);
    // With another user of the page, writing it copies.
    let other = kv.allocate(&[ids(0..20), ids(500..520)].concat(), spec(64)).unwrap();
    assert_eq!(other.cached_tokens, 32);
    kv.truncate(seq, 25).unwrap();
    assert_eq!(kv.reserve(seq, 1).unwrap().len(), 1);
    kv.check_integrity().unwrap();
}

#[test]
fn truncate_to_the_same_length_gives_back_what_was_reserved() {
    let mut kv = manager(8);
    let seq = written(&mut kv, &ids(0..16), spec(64)).seq;
    kv.reserve(seq, 40).unwrap();
    assert_eq!(kv.used_pages(), 4);
    kv.truncate(seq, 16).unwrap();
    assert_eq!(kv.used_pages(), 1);
    let error = KvError::NotReserved { len: 16, tokens: 1, reserved: 0 };
    refused(&mut kv, seq, error, |kv| kv.advance(seq, &ids(0..1)));
}

#[test]
fn pages_of_a_poisoned_sequence_are_never_found() {
    let mut kv = manager(8);
    let seq = written(&mut kv, &ids(0..40), spec(64)).seq;
    let sharer = kv.allocate(&ids(0..40), spec(64)).unwrap();
    assert_eq!(sharer.cached_tokens, 32);
    kv.release_unshared(seq).unwrap();
    kv.check_integrity().unwrap();
    assert_eq!(kv.allocate(&ids(0..40), spec(64)).unwrap().cached_tokens, 0);
    kv.release(sharer.seq).unwrap();
    assert_eq!((kv.stats().cached, kv.used_pages()), (0, 0));
}

#[test]
fn a_page_of_the_same_past_that_another_sequence_made_stays_where_one_is_poisoned() {
    let mut kv = manager(8);
    let [healthy, poisoned] = [0, 1].map(|_| kv.allocate(&ids(0..40), spec(64)).unwrap().seq);
    write(&mut kv, healthy, &ids(0..40));
    write(&mut kv, poisoned, &ids(0..40));
    kv.release_unshared(poisoned).unwrap();
    kv.check_integrity().unwrap();
    assert_eq!(kv.allocate(&ids(0..40), spec(64)).unwrap().cached_tokens, 32);
}

#[test]
fn pages_that_a_window_took_from_a_poisoned_sequence_are_never_found() {
    let mut kv = manager(8);
    let seq = written(&mut kv, &ids(0..40), windowed(64, 16, 0)).seq;
    assert_eq!((starts(&kv, seq), kv.stats().cached), (vec![16, 32], 1));
    kv.release_unshared(seq).unwrap();
    kv.check_integrity().unwrap();
    assert_eq!((kv.stats().cached, kv.used_pages(), kv.free_pages()), (0, 0, 8));
    assert_eq!(kv.allocate(&ids(0..40), spec(64)).unwrap().cached_tokens, 0);
}

#[test]
fn an_adopted_sequence_has_the_pages_that_the_saved_one_had() {
    for (len, spec) in [
        (1, spec(64)),
        (50, spec(64)),
        (64, spec(64)),
        (500, windowed(4096, 40, 4)),
        (512, windowed(4096, 1, 0)),
        (512, windowed(4096, 1, 17)),
        (30, windowed(4096, 100, 200)),
    ] {
        let mut kv = manager(40);
        let tokens = ids(0..len);
        let saved = kv.allocate(&tokens[..1], spec).unwrap().seq;
        for chunk in tokens.chunks(7) {
            write(&mut kv, saved, chunk);
        }
        let mut fresh = manager(40);
        let adopted = fresh.adopt(&tokens, spec).unwrap();
        fresh.check_integrity().unwrap();
        assert_eq!(starts(&fresh, adopted), starts(&kv, saved), "{len} {spec:?}");
        assert_eq!(fresh.tokens(adopted).unwrap(), tokens);
        assert_eq!(fresh.stats().cached, 0);
        fresh.release(adopted).unwrap();
        assert_eq!(fresh.free_pages(), 40);
        assert_eq!(fresh.allocate(&tokens, spec).unwrap().cached_tokens, 0, "adopted pages stay private");
    }
    let mut kv = manager(3);
    let error = KvError::OutOfPages { needed: 4, free: 3 };
    let seq = kv.allocate(&ids(0..1), spec(64)).unwrap().seq;
    refused(&mut kv, seq, error, |kv| kv.adopt(&ids(0..49), spec(64)));
}

#[test]
fn a_stale_id_is_refused_by_every_call_even_when_its_place_is_taken() {
    let mut kv = manager(4);
    let old = written(&mut kv, &ids(0..4), spec(64)).seq;
    kv.release(old).unwrap();
    let new = kv.allocate(&ids(0..4), spec(64)).unwrap().seq;
    assert_eq!(old.index, new.index);
    let error = KvError::StaleSequence { index: 0, generation: 0 };
    refused(&mut kv, new, error.clone(), |kv| kv.reserve(old, 1).map(<[CopyPage]>::to_vec));
    refused(&mut kv, new, error.clone(), |kv| kv.advance(old, &[]));
    refused(&mut kv, new, error.clone(), |kv| kv.truncate(old, 0));
    refused(&mut kv, new, error.clone(), |kv| kv.fork(old));
    refused(&mut kv, new, error.clone(), |kv| kv.release(old));
    refused(&mut kv, new, error.clone(), |kv| kv.release_unshared(old));
    refused(&mut kv, new, error.clone(), |kv| kv.len(old));
    refused(&mut kv, new, error.clone(), |kv| kv.tokens_max(old));
    refused(&mut kv, new, error.clone(), |kv| kv.window(old));
    refused(&mut kv, new, error.clone(), |kv| kv.tokens(old).map(<[TokenId]>::to_vec));
    refused(&mut kv, new, error, |kv| kv.pages(old).map(<[PageRef]>::to_vec));
}

#[test]
fn out_of_pages_says_how_many_and_changes_nothing() {
    let mut kv = manager(4);
    let seq = written(&mut kv, &ids(0..20), spec(1000)).seq;
    let fork = kv.fork(seq).unwrap();
    refused(&mut kv, seq, KvError::OutOfPages { needed: 3, free: 2 }, |kv| {
        kv.reserve(fork, 29).map(<[CopyPage]>::to_vec)
    });
    assert_eq!(kv.reserve(fork, 28).unwrap().len(), 1);
    refused(&mut kv, seq, KvError::OutOfPages { needed: 1, free: 0 }, |kv| {
        kv.reserve(seq, 13).map(<[CopyPage]>::to_vec)
    });
    kv.release(fork).unwrap();
    kv.reserve(seq, 13).unwrap();
}

#[test]
fn too_long_is_refused_at_allocate_reserve_and_advance() {
    let mut kv = manager(4);
    let seq = written(&mut kv, &ids(0..20), spec(24)).seq;
    let error = |len, tokens| KvError::TooLong { len, tokens, tokens_max: 24 };
    refused(&mut kv, seq, error(20, 5), |kv| kv.reserve(seq, 5).map(<[CopyPage]>::to_vec));
    refused(&mut kv, seq, error(20, usize::MAX), |kv| kv.reserve(seq, usize::MAX).map(<[CopyPage]>::to_vec));
    refused(&mut kv, seq, error(20, 5), |kv| kv.advance(seq, &ids(0..5)));
    refused(&mut kv, seq, error(0, 25), |kv| kv.allocate(&ids(0..25), spec(24)));
    write(&mut kv, seq, &ids(0..4));
}

#[test]
fn advance_needs_a_reservation_of_its_own() {
    let mut kv = manager(4);
    let seq = kv.allocate(&ids(0..4), spec(64)).unwrap().seq;
    let not_reserved = |len, tokens, reserved| KvError::NotReserved { len, tokens, reserved };
    refused(&mut kv, seq, not_reserved(0, 1, 0), |kv| kv.advance(seq, &ids(0..1)));
    kv.reserve(seq, 4).unwrap();
    refused(&mut kv, seq, not_reserved(0, 5, 4), |kv| kv.advance(seq, &ids(0..5)));
    kv.advance(seq, &ids(0..3)).unwrap();
    let twice = KvError::AdvancedTwice { len: 3, tokens: 1 };
    refused(&mut kv, seq, twice, |kv| kv.advance(seq, &ids(0..1)));
    write(&mut kv, seq, &ids(3..4));
}

#[test]
fn what_no_sequence_can_be_is_refused() {
    let mut kv = manager(4);
    let seq = kv.allocate(&ids(0..4), spec(64)).unwrap().seq;
    refused(&mut kv, seq, KvError::EmptyPrompt, |kv| kv.allocate(&[], spec(64)));
    refused(&mut kv, seq, KvError::EmptyWindow, |kv| kv.allocate(&ids(0..4), windowed(64, 0, 4)));
    let tokens_max = u32::MAX as usize + 1;
    refused(&mut kv, seq, KvError::PositionRange { tokens_max }, |kv| {
        kv.allocate(&ids(0..4), spec(tokens_max))
    });
    // Without a window the pool bounds the accounting, however large `tokens_max` is.
    kv.allocate(&ids(0..4), spec(u32::MAX as usize)).unwrap();
}

#[test]
fn truncate_refuses_what_it_cannot_bring_back() {
    let mut kv = manager(8);
    let seq = kv.allocate(&ids(0..1), windowed(4096, 32, 4)).unwrap().seq;
    refused(&mut kv, seq, KvError::TruncateBeyond { len: 0, target: 1 }, |kv| kv.truncate(seq, 1));
    for chunk in ids(0..200).chunks(10) {
        write(&mut kv, seq, chunk);
    }
    // A query at 200 sees 169..=200, so pages from 160 are alive; a query at 191 sees 160..=191.
    assert_eq!(starts(&kv, seq), [0, 160, 176, 192]);
    let gone = KvError::WindowGone { target: 190, dropped: 160 };
    refused(&mut kv, seq, gone, |kv| kv.truncate(seq, 190));
    kv.truncate(seq, 191).unwrap();
    kv.check_integrity().unwrap();
    assert_eq!(starts(&kv, seq), [0, 160, 176]);
    // Within the sinks nothing is missing.
    kv.truncate(seq, 3).unwrap();
    kv.check_integrity().unwrap();
    assert_eq!((starts(&kv, seq), kv.used_pages()), (vec![0], 1));
    write(&mut kv, seq, &ids(3..40));
    assert_eq!(starts(&kv, seq), [0, 16, 32]);
}

#[test]
fn an_empty_pool_serves_nobody_and_breaks_nothing() {
    let mut kv = manager(0);
    let seq = kv.allocate(&ids(0..4), spec(64)).unwrap().seq;
    refused(&mut kv, seq, KvError::OutOfPages { needed: 1, free: 0 }, |kv| {
        kv.reserve(seq, 1).map(<[CopyPage]>::to_vec)
    });
    kv.release(seq).unwrap();
}

#[test]
fn check_integrity_sees_a_lost_reference_a_twice_used_page_and_a_wrong_hash() {
    let ruin = |ruin: &dyn Fn(&mut KvCacheManager, SeqId)| {
        let mut kv = manager(8);
        let seq = written(&mut kv, &ids(0..40), spec(64)).seq;
        ruin(&mut kv, seq);
        kv.check_integrity().unwrap_err().0
    };
    let message = ruin(&|kv, seq| {
        let page = kv.pages(seq).unwrap()[2].page;
        kv.pool.release(page);
    });
    assert_eq!(message, "page 2: 0 references booked, 1 found");
    let message = ruin(&|kv, seq| {
        let [first, second] = [0, 1].map(|index| kv.pages(seq).unwrap()[index].page);
        let table = &mut kv.sequences.get_mut(seq).unwrap().table;
        (table.entry_mut(0).page, table.entry_mut(1).page) = (second, first);
    });
    assert_eq!(message, "sequence 0: page 1 is found under another past");
    let message = ruin(&|kv, seq| {
        let first = kv.pages(seq).unwrap()[0].page;
        kv.sequences.get_mut(seq).unwrap().table.entry_mut(2).page = first;
    });
    assert_eq!(message, "sequence 0: page 0 appears twice");
    let message = ruin(&|kv, seq| kv.sequences.get_mut(seq).unwrap().tokens[3] = TokenId(99));
    assert_eq!(message, "sequence 0: hash 0 is not that of its tokens");
    let message = ruin(&|kv, seq| kv.sequences.get_mut(seq).unwrap().table.end += PAGE_TOKENS);
    assert!(message.contains("pages end at 48, 64 booked"), "{message}");
    let message = ruin(&|kv, seq| {
        kv.sequences.remove(seq).unwrap();
    });
    assert_eq!(message, "page 0: 1 references booked, 0 found");
}
