//! Byte-pair merging, shared by all kinds of tokenizer. Of all adjacent pairs with a rule, the one with the
//! highest rank is merged, the leftmost of equals, until none is left.
//!
//! A priority queue of pairs and a linked list of symbols cover a window of the text. So a text without a
//! place to split needs no more memory than any other, and time linear in its length.
//!
//! Windows overlap. Whether symbols encode a text can be checked pair by pair: every two adjacent symbols
//! must be the encoding of their own text. Independent of the context, both sides take the same steps in the
//! same order until a rule joins them. So two windows fit together where the second starts with the symbol
//! that the first has at that position.
//!
//! Text after a position can change the symbols before it: each rule reaches back by at most its own piece.
//! The last quarter of a window is not emitted. So the result equals that of the whole text if no chain of
//! rules reaches back more than a quarter of a window, 1024 symbols. Pieces of real vocabularies have a few
//! dozen.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Merge rules.
pub(crate) trait Rules {
    /// A stretch of text that becomes a token. A longer stretch is another symbol: equal symbols have equal
    /// lengths.
    type Symbol: Copy + PartialEq;
    /// Priority of a merge; the greatest is applied first.
    type Rank: Ord;

    /// Rank and result of merging two adjacent symbols; `None` without a rule.
    fn join(&self, left: Self::Symbol, right: Self::Symbol) -> Option<(Self::Rank, Self::Symbol)>;
}

/// Symbols per window: at least four times the reach of any chain of rules.
const WINDOW: usize = 4096;

/// Merges symbols and passes the final ones to `each`. Stops at an error of `each`.
pub(crate) fn merge<R: Rules, E>(
    rules: &R,
    symbols: impl Iterator<Item = R::Symbol>,
    each: impl FnMut(R::Symbol) -> Result<(), E>,
) -> Result<(), E> {
    merge_in(WINDOW, rules, symbols, each)
}

fn merge_in<R: Rules, E>(
    window: usize,
    rules: &R,
    mut symbols: impl Iterator<Item = R::Symbol>,
    mut each: impl FnMut(R::Symbol) -> Result<(), E>,
) -> Result<(), E> {
    let mut room = window;
    let mut given: Vec<R::Symbol> = symbols.by_ref().take(room).collect();
    let mut parts = merge_window(rules, &given);
    let mut ended = given.len() < room;
    while !ended {
        // The next window starts at a symbol in this one's last quarter. Without such a symbol, this window
        // grows.
        let at = parts.partition_point(|part| part.start < room - room / 4);
        let next = parts.get(at).copied();
        let start = next.map_or(0, |part| part.start);
        let wanted = if start > 0 { start } else { room.max(1) };
        let before = given.len();
        given.extend(symbols.by_ref().take(wanted));
        ended = given.len() < before + wanted;
        let found = merge_window(rules, given.get(start..).unwrap_or_default());
        if start > 0 && found.first().map(|part| part.symbol) == next.map(|part| part.symbol) {
            parts.drain(..at).try_for_each(|part| each(part.symbol))?;
            given.drain(..start);
            parts = found;
        } else {
            room = given.len();
            parts = if start > 0 { merge_window(rules, &given) } else { found };
        }
    }
    parts.into_iter().try_for_each(|part| each(part.symbol))
}

/// A symbol in a window's result, with the position of the first symbol that it covers.
#[derive(Clone, Copy)]
struct MergedSymbol<S> {
    symbol: S,
    start: usize,
}

fn merge_window<R: Rules>(rules: &R, symbols: &[R::Symbol]) -> Vec<MergedSymbol<R::Symbol>> {
    let mut chain = Chain { rules, links: Vec::with_capacity(symbols.len()), pairs: BinaryHeap::new() };
    for (index, &symbol) in symbols.iter().enumerate() {
        chain.links.push(Link { symbol: Some(symbol), before: index.checked_sub(1), after: index + 1 });
        chain.propose(index.checked_sub(1), index);
    }
    while let Some(pair) = chain.pairs.pop() {
        chain.join(&pair);
    }
    let links = chain.links.into_iter().enumerate();
    links.filter_map(|(start, link)| Some(MergedSymbol { symbol: link.symbol?, start })).collect()
}

/// Symbols in a linked list, and the queue of mergeable pairs.
struct Chain<'r, R: Rules> {
    rules: &'r R,
    links: Vec<Link<R::Symbol>>,
    pairs: BinaryHeap<Pair<R>>,
}

struct Link<S> {
    /// `None` after it was merged into the previous symbol.
    symbol: Option<S>,
    before: Option<usize>,
    /// Index of the next symbol; out of range for the last one.
    after: usize,
}

/// Two adjacent symbols that may merge.
struct Pair<R: Rules> {
    rank: R::Rank,
    left: usize,
    right: usize,
    /// The symbols when the pair was queued. If they have changed, the pair is stale.
    symbols: [R::Symbol; 2],
    joint: R::Symbol,
}

impl<R: Rules> Chain<'_, R> {
    fn symbol(&self, index: usize) -> Option<R::Symbol> {
        self.links.get(index)?.symbol
    }

    /// Queues two adjacent symbols if a rule applies.
    fn propose(&mut self, left: Option<usize>, right: usize) {
        let Some(left) = left else { return };
        let (Some(first), Some(second)) = (self.symbol(left), self.symbol(right)) else { return };
        if let Some((rank, joint)) = self.rules.join(first, second) {
            self.pairs.push(Pair { rank, left, right, symbols: [first, second], joint });
        }
    }

    /// Merges a pair unless it is stale.
    fn join(&mut self, pair: &Pair<R>) {
        let Ok([left, right]) = self.links.get_disjoint_mut([pair.left, pair.right]) else { return };
        if [left.symbol, right.symbol] != pair.symbols.map(Some) {
            return;
        }
        left.symbol = Some(pair.joint);
        right.symbol = None;
        left.after = right.after;
        let (before, after) = (left.before, left.after);
        if let Some(next) = self.links.get_mut(after) {
            next.before = Some(pair.left);
        }
        self.propose(before, pair.left);
        self.propose(Some(pair.left), after);
    }
}

impl<R: Rules> Ord for Pair<R> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.cmp(&other.rank).then_with(|| other.left.cmp(&self.left))
    }
}

impl<R: Rules> PartialOrd for Pair<R> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<R: Rules> PartialEq for Pair<R> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<R: Rules> Eq for Pair<R> {}

#[cfg(test)]
mod tests;
