//! Byte-pair merging, which both kinds of tokenizer do: of all neighbours that may become one symbol those of
//! the highest rank do, the leftmost of equals, until no neighbours may.
//!
//! A queue of pairs and a chain of symbols hold a window of the text, so that a text without a place to cut
//! it takes no more memory than any other, and time in proportion to its length. The windows overlap. Symbols
//! are a text's encoding exactly if each two neighbours are that of their own stretch: whatever stands around
//! them, two stretches take the same steps in the same order until one joins them. So two windows fit
//! together where the second begins with a symbol that the first has in that place.
//!
//! What stands behind a place may change the symbols before it: each rule reaches back by its own piece at most. A
//! window is given out up to its last quarter. So the result is that of the whole text if no chain of rules reaches
//! back over a quarter of a window, 1024 symbols; pieces of real vocabularies have a few dozen.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Which neighbours may become one.
pub(crate) trait Rules {
    /// A stretch of text on its way to a token. One that has grown is another: equal symbols are equally long.
    type Symbol: Copy + PartialEq;
    /// The greatest goes first.
    type Rank: Ord;

    /// What two neighbours would be together, and how early.
    fn join(&self, left: Self::Symbol, right: Self::Symbol) -> Option<(Self::Rank, Self::Symbol)>;
}

/// Symbols that are merged at once: four times as many as any chain of rules should reach back.
const WINDOW: usize = 4096;

/// What is left of the symbols once no neighbours may become one, one by one. An error of `each` ends it.
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
        // The next window begins at a part of this one's last quarter. Where there is none, this one grows.
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

/// A symbol of a window's result, and the place of the first symbol that it is made of.
#[derive(Clone, Copy)]
struct Part<S> {
    symbol: S,
    start: usize,
}

fn merge_window<R: Rules>(rules: &R, symbols: &[R::Symbol]) -> Vec<Part<R::Symbol>> {
    let mut chain = Chain { rules, links: Vec::with_capacity(symbols.len()), pairs: BinaryHeap::new() };
    for (index, &symbol) in symbols.iter().enumerate() {
        chain.links.push(Link { symbol: Some(symbol), before: index.checked_sub(1), after: index + 1 });
        chain.propose(index.checked_sub(1), index);
    }
    while let Some(pair) = chain.pairs.pop() {
        chain.join(&pair);
    }
    let links = chain.links.into_iter().enumerate();
    links.filter_map(|(start, link)| Some(Part { symbol: link.symbol?, start })).collect()
}

/// The symbols in their order, and the neighbours that may become one.
struct Chain<'r, R: Rules> {
    rules: &'r R,
    links: Vec<Link<R::Symbol>>,
    pairs: BinaryHeap<Pair<R>>,
}

struct Link<S> {
    /// None once it is part of the one before it.
    symbol: Option<S>,
    before: Option<usize>,
    /// Beyond the last there is none.
    after: usize,
}

/// Two neighbours that may become one.
struct Pair<R: Rules> {
    rank: R::Rank,
    left: usize,
    right: usize,
    /// What they were when the pair was found: if they are something else, it is out of date.
    symbols: [R::Symbol; 2],
    joint: R::Symbol,
}

impl<R: Rules> Chain<'_, R> {
    fn symbol(&self, index: usize) -> Option<R::Symbol> {
        self.links.get(index)?.symbol
    }

    /// Queues two neighbours if they may become one.
    fn propose(&mut self, left: Option<usize>, right: usize) {
        let Some(left) = left else { return };
        let (Some(first), Some(second)) = (self.symbol(left), self.symbol(right)) else { return };
        if let Some((rank, joint)) = self.rules.join(first, second) {
            self.pairs.push(Pair { rank, left, right, symbols: [first, second], joint });
        }
    }

    /// Makes the pair one symbol if it is still what it was.
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
