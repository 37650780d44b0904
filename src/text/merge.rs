//! Byte-pair merging, which both kinds of tokenizer do: of all neighbours that may become one symbol those of
//! the highest rank do, the leftmost of equals, until no neighbours may.
//!
//! A queue of pairs and a chain of symbols, so that a long text takes no more than `n log n` steps.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Which neighbours may become one.
pub(crate) trait Rules {
    /// A stretch of text on its way to a token. One that has grown is another.
    type Symbol: Copy + PartialEq;
    /// The greatest goes first.
    type Rank: Ord;

    /// What two neighbours would be together, and how early.
    fn join(&self, left: Self::Symbol, right: Self::Symbol) -> Option<(Self::Rank, Self::Symbol)>;
}

/// What is left of the symbols once no neighbours may become one.
pub(crate) fn merge<R: Rules>(
    rules: &R,
    symbols: impl Iterator<Item = R::Symbol>,
) -> impl Iterator<Item = R::Symbol> {
    let mut chain = Chain { rules, links: Vec::new(), pairs: BinaryHeap::new() };
    for (index, symbol) in symbols.enumerate() {
        chain.links.push(Link { symbol: Some(symbol), before: index.checked_sub(1), after: index + 1 });
        chain.propose(index.checked_sub(1), index);
    }
    while let Some(pair) = chain.pairs.pop() {
        chain.join(&pair);
    }
    chain.links.into_iter().filter_map(|link| link.symbol)
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
