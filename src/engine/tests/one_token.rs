//! Prompts of a single token: scored, saved and continued.

use super::*;

#[test]
fn one_token_is_scored_by_what_follows_it() {
    for fake in [Fake::new(40), Fake::new(40).in_step(), Fake::new(1).limits(1, 1)] {
        let handle = Handle::spawn(fake, EngineConfig::default()).unwrap();
        let scores = handle.score(&[TokenId(7)], 3).unwrap();
        assert!(scores.nll.is_empty(), "nothing follows it");
        let mut best = Vec::new();
        crate::sample::best_logits(&logits_after(&[TokenId(7)]), 3, &mut best);
        let best: Vec<_> = best.into_iter().map(|(id, logit)| (id, logit as f32)).collect();
        assert_eq!(scores.top, [best]);
        assert_eq!(handle.score(&[TokenId(7)], 0).unwrap(), Scores::default());
        settled(&handle);
    }
}

/// From the last row on, and from after it.
#[test]
fn scores_from_the_last_row_on_are_of_one_row_or_none() {
    let handle = spawn(40, EngineConfig::default());
    let ids = request(3, 20, 1).prompt;
    let last = handle.score_from(&ids, 19, 1).unwrap();
    assert_eq!((last.nll.len(), last.top.len()), (0, 1));
    let before = handle.score_from(&ids, 18, 1).unwrap();
    assert_eq!((before.nll.len(), before.top.len()), (1, 2));
    assert_eq!(before.top[1], last.top[0]);
    for first in [20, 21, usize::MAX] {
        assert_eq!(handle.score_from(&ids, first, 1).unwrap(), Scores::default());
    }
    settled(&handle);
}

#[test]
fn alternatives_are_as_many_as_the_vocabulary_at_most() {
    let handle = spawn(40, EngineConfig::default());
    // The four special tokens have a logit of negative infinity, so they are left out.
    assert_eq!(handle.score(&[TokenId(7)], VOCAB).unwrap().top[0].len(), VOCAB - 4);
    let refused = handle.score(&[TokenId(7)], VOCAB + 1);
    assert!(matches!(refused, Err(EngineError::Submit(SubmitError::Invalid { .. }))), "{refused:?}");
}

/// One token is a partial page, 16 are a full one, and 17 begin the next.
#[test]
fn short_prompts_are_saved_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    for (len, pages, cached) in [(1, 1, 0), (15, 1, 0), (16, 1, 0), (17, 2, 16), (32, 2, 16), (33, 3, 32)] {
        let path = folder.path().join(format!("{len}"));
        let asked = || request(9, len, 20);
        spawn(40, EngineConfig::default()).save(&asked().prompt, &path).unwrap();
        let handle = spawn(40, EngineConfig::default());
        assert_eq!(handle.restore(&path).unwrap(), len as usize);
        // Full pages are cached; at least one token is left to compute.
        assert_eq!(settled(&handle).pages_cached, u64::from(len) / 16);
        let (found, end) = read(handle.submit(asked()).unwrap());
        assert_eq!(found, expected(&asked()), "{len} tokens");
        assert_eq!(end.unwrap().1.cached_tokens, cached, "{len} tokens");
        assert_eq!(settled(&handle).memory.snapshots.bytes_max, 8 * 16 * pages);
    }
}

#[test]
fn one_token_is_asked_for_and_comes() {
    let config = EngineConfig { queue_max: 1, sequences_max: 1, event_buffer: 1, ..EngineConfig::default() };
    let handle = Handle::spawn(Fake::new(1).limits(1, 1), config).unwrap();
    for seed in 0..3 {
        let (found, end) = read(handle.submit(request(seed, 1, 1)).unwrap());
        assert_eq!(found, expected(&request(seed, 1, 1)));
        let (finish, usage) = end.unwrap();
        assert_eq!(finish, FinishReason::Length);
        assert_eq!(usage, Usage { prompt_tokens: 1, cached_tokens: 0, completion_tokens: 1 });
        settled(&handle);
    }
}
