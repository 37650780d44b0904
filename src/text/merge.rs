//! Pairwise merging, which both kinds of tokenizer are made of: always the best pair of neighbours becomes
//! one, of equals the leftmost, until no pair of neighbours can.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::ops::Range;

/// A stretch of the text, linked to its neighbours.
#[derive(Clone, Copy, Debug)]
struct Symbol {
    start: usize,
    /// 0 once it has been merged into the one before it.
    len: usize,
    before: Option<usize>,
    after: Option<usize>,
}

/// Two neighbours that could become one.
struct Pair<R> {
    rank: R,
    left: usize,
    right: usize,
    /// Length of both when the pair was found: another length means that the pair is out of date.
    len: usize,
}

/// Merges the characters of `text`. `rank` is given two neighbours as one string and the length of the left
/// one; of all ranks the greatest goes first, and neighbours without one stay apart. Gives what is left, in
/// order; together it is the text.
pub(crate) fn merged<R: Ord>(
    text: &str,
    rank: impl Fn(&str, usize) -> Option<R>,
) -> impl Iterator<Item = Range<usize>> {
    let mut symbols = characters(text);
    let mut pairs = BinaryHeap::new();
    let propose = |symbols: &[Symbol], left: Option<usize>, right: Option<usize>| {
        let (left, right) = (left?, right?);
        let (first, second) = (symbols.get(left)?, symbols.get(right)?);
        let len = first.len + second.len;
        let rank = rank(text.get(first.start..first.start + len)?, first.len)?;
        Some(Pair { rank, left, right, len })
    };
    pairs.extend((1..symbols.len()).filter_map(|right| propose(&symbols, Some(right - 1), Some(right))));
    while let Some(pair) = pairs.pop() {
        if merge(&mut symbols, &pair) {
            let Some(&Symbol { before, after, .. }) = symbols.get(pair.left) else { continue };
            pairs.extend(propose(&symbols, before, Some(pair.left)));
            pairs.extend(propose(&symbols, Some(pair.left), after));
        }
    }
    symbols.into_iter().filter(|symbol| symbol.len > 0).map(|symbol| symbol.start..symbol.start + symbol.len)
}

fn characters(text: &str) -> Vec<Symbol> {
    let mut symbols: Vec<Symbol> = text
        .char_indices()
        .enumerate()
        .map(|(index, (start, c))| Symbol {
            start,
            len: c.len_utf8(),
            before: index.checked_sub(1),
            after: Some(index + 1),
        })
        .collect();
    if let Some(last) = symbols.last_mut() {
        last.after = None;
    }
    symbols
}

/// Joins the pair if it is still as it was when it was queued.
fn merge<R>(symbols: &mut [Symbol], pair: &Pair<R>) -> bool {
    let Ok([left, right]) = symbols.get_disjoint_mut([pair.left, pair.right]) else { return false };
    if left.len == 0 || right.len == 0 || left.len + right.len != pair.len {
        return false;
    }
    left.len = pair.len;
    left.after = right.after;
    right.len = 0;
    if let Some(next) = right.after.and_then(|after| symbols.get_mut(after)) {
        next.before = Some(pair.left);
    }
    true
}

impl<R: Ord> Ord for Pair<R> {
    /// The best pair is the greatest: highest rank, then leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.cmp(&other.rank).then_with(|| other.left.cmp(&self.left))
    }
}

impl<R: Ord> PartialOrd for Pair<R> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<R: Ord> PartialEq for Pair<R> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<R: Ord> Eq for Pair<R> {}
