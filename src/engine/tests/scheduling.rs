//! The scheduler alone: a game with a pool of pages that are only counted, and its promises after
//! each step.

use proptest::prelude::*;

use super::scheduler::{Budget, Outputs, Share, View, next_start, share_out, victim};

/// A sequence in the game: it prefills `prompt` tokens, then decodes until it has `total`.
#[derive(Clone, Debug)]
struct Player {
    view: View,
    total: usize,
    /// Steps in which it does not read, at most.
    sleeps: usize,
}

fn player() -> impl Strategy<Value = Player> {
    let outputs = prop_oneof![4 => Just(Outputs::Last), 1 => Just(Outputs::Each), 1 => Just(Outputs::None)];
    (1..150usize, 0..60usize, prop_oneof![3 => Just(0usize), 1 => 1..50usize], outputs).prop_map(
        |(prompt, generated, sleeps, outputs)| {
            let generated = if outputs == Outputs::Last { generated } else { 0 };
            let view = View { ready: true, started: false, computed: 0, pending: prompt, pages: 0, outputs };
            Player { view, total: prompt + generated, sleeps }
        },
    )
}

/// Gets the pages of a share as the worker does. False if the share is void.
fn reserve(views: &mut [View], share: Share, pages: usize) -> bool {
    loop {
        let view = views[share.index];
        if !view.started {
            return false;
        }
        let needed = (view.computed + share.tokens).div_ceil(16);
        let others: usize = views.iter().map(|view| view.pages).sum::<usize>() - view.pages;
        if needed + others <= pages {
            views[share.index].pages = needed.max(view.pages);
            return true;
        }
        let Some(index) = victim(views, share.index) else { return false };
        assert!(index > share.index || !views[index].ready, "an older one that runs is no victim");
        assert!(views[index].pages > 0);
        let tokens = views[index].computed + views[index].pending;
        views[index] = View { started: false, computed: 0, pending: tokens, pages: 0, ..views[index] };
    }
}

/// Plays until all are done; panics when a promise is broken.
fn play(mut players: Vec<Player>, limits: Budget, pages: usize) {
    let work: usize = players.iter().map(|player| player.total + player.sleeps + 2).sum();
    let mut steps = 0;
    while !players.is_empty() {
        steps += 1;
        assert!(steps <= 3 * work * players.len().max(4), "no end: {players:?}");
        for player in &mut players {
            let asleep = player.sleeps > 0 && player.view.pending == 1 && steps % 3 != 0;
            player.sleeps -= usize::from(asleep);
            player.view.ready = !asleep;
        }
        let mut views: Vec<View> = players.iter().map(|player| player.view).collect();
        let budget = |views: &[View]| Budget {
            pages_free: pages - views.iter().map(|view| view.pages).sum::<usize>(),
            ..limits
        };
        while let Some(index) = next_start(&views, &budget(&views)) {
            let older_waits = views[..index].iter().any(|view| view.ready && !view.started);
            assert!(views[index].ready && !views[index].started && !older_waits);
            views[index].started = true;
        }
        let mut shares = Vec::new();
        share_out(&views, &budget(&views), &mut shares);
        check_limits(&views, &shares, &limits);
        shares.retain(|share| reserve(&mut views, *share, pages));
        if let Some(oldest) = views.iter().position(|view| view.ready) {
            assert!(
                shares.iter().any(|share| share.index == oldest),
                "the oldest goes on: {views:?} {shares:?}"
            );
        }
        for share in &shares {
            let view = &mut views[share.index];
            view.computed += share.tokens;
            view.pending -= share.tokens;
            let grows = view.pending == 0 && view.computed < players[share.index].total;
            view.pending += usize::from(grows);
        }
        players.iter_mut().zip(views).for_each(|(player, view)| player.view = view);
        players.retain(|player| player.view.pending > 0);
    }
}

fn check_limits(views: &[View], shares: &[Share], limits: &Budget) {
    let tokens: usize = shares.iter().map(|share| share.tokens).sum();
    let decodes = shares.iter().filter(|share| views[share.index].pending == 1).count();
    let outputs: usize =
        shares.iter().map(|s| views[s.index].outputs.count(s.tokens, views[s.index].pending)).sum();
    assert!(tokens <= limits.tokens && tokens - decodes <= limits.prefill && outputs <= limits.outputs);
    assert!(shares.windows(2).all(|pair| pair[0].index < pair[1].index));
    for share in shares {
        let view = views[share.index];
        assert!(view.ready && view.started && (1..=view.pending).contains(&share.tokens));
    }
}

proptest! {
    #[test]
    fn limits_are_kept_and_everyone_finishes(
        players in proptest::collection::vec(player(), 1..12),
        tokens in 1..80usize,
        outputs in 1..10usize,
        prefill in 1..64usize,
        spare in 0..20usize,
    ) {
        let largest = players.iter().map(|player| player.total.div_ceil(16)).max().unwrap_or(0);
        let limits = Budget { tokens, outputs, prefill: prefill.min(tokens), pages_free: 0 };
        play(players, limits, largest + spare);
    }
}

fn view(computed: usize, pending: usize) -> View {
    let pages = computed.div_ceil(16);
    View { ready: true, started: true, computed, pending, pages, outputs: Outputs::Last }
}

fn shares_of(views: &[View], budget: &Budget) -> Vec<(usize, usize)> {
    let mut shares = Vec::new();
    share_out(views, budget, &mut shares);
    shares.iter().map(|share| (share.index, share.tokens)).collect()
}

#[test]
fn decodes_come_before_prefill_and_prefill_takes_a_chunk() {
    let budget = Budget { tokens: 300, outputs: 64, prefill: 256, pages_free: 99 };
    let views = [view(50, 1), view(0, 1000), view(20, 1), view(0, 10)];
    assert_eq!(shares_of(&views, &budget), [(0, 1), (1, 256), (2, 1)]);
    let views = [view(50, 1), view(900, 100), view(20, 1), view(0, 10)];
    assert_eq!(shares_of(&views, &budget), [(0, 1), (1, 100), (2, 1), (3, 10)]);
}

#[test]
fn the_oldest_has_a_token_however_many_decode() {
    let budget = Budget { tokens: 4, outputs: 4, prefill: 4, pages_free: 99 };
    let views = [view(0, 100), view(9, 1), view(9, 1), view(9, 1), view(9, 1)];
    assert_eq!(shares_of(&views, &budget), [(0, 1), (1, 1), (2, 1), (3, 1)]);
}

#[test]
fn a_prompt_does_not_end_where_no_output_is_left() {
    let budget = Budget { tokens: 40, outputs: 1, prefill: 40, pages_free: 99 };
    assert_eq!(shares_of(&[view(9, 1), view(0, 10)], &budget), [(0, 1), (1, 9)]);
    let score = View { outputs: Outputs::Each, ..view(0, 10) };
    assert_eq!(shares_of(&[score, view(9, 1)], &Budget { outputs: 3, ..budget }), [(0, 2), (1, 1)]);
}

#[test]
fn the_idle_give_up_their_pages_first_then_the_youngest() {
    let idle = |view: View| View { ready: false, ..view };
    assert_eq!(victim(&[idle(view(9, 1)), view(9, 1), view(9, 1)], 1), Some(0));
    assert_eq!(victim(&[view(9, 1), view(9, 1), view(9, 1)], 0), Some(2));
    assert_eq!(victim(&[view(9, 1), view(9, 1), view(9, 1)], 2), None);
    assert_eq!(victim(&[view(9, 1), view(0, 9)], 0), None, "who has no pages has none to give");
}
