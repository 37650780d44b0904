//! Tests of the windows: the result does not depend on them, and no text needs more than a few at once.

use std::cell::Cell;
use std::cmp::Reverse;
use std::convert::Infallible;

use super::*;
use proptest::prelude::*;

/// Rules over strings of letters. The rank is the position in the list.
struct List {
    rules: Vec<[String; 2]>,
    joins: Cell<usize>,
}

/// A symbol is the number of a string: letters first, then results of rules.
impl List {
    fn new(rules: Vec<[String; 2]>) -> List {
        List { rules, joins: Cell::new(0) }
    }

    fn text(&self, symbol: usize) -> String {
        match symbol.checked_sub(26) {
            None => char::from(b'a' + symbol as u8).to_string(),
            Some(rule) => self.rules[rule].concat(),
        }
    }

    fn encode(&self, window: usize, letters: impl Iterator<Item = usize>) -> Vec<String> {
        let mut out = Vec::new();
        let Ok(()) = merge_in(window, self, letters, |symbol| {
            out.push(self.text(symbol));
            Ok::<(), Infallible>(())
        });
        out
    }
}

impl Rules for List {
    type Symbol = usize;
    type Rank = Reverse<usize>;

    fn join(&self, left: usize, right: usize) -> Option<(Reverse<usize>, usize)> {
        self.joins.set(self.joins.get() + 1);
        let pair = [self.text(left), self.text(right)];
        let rule = self.rules.iter().position(|rule| *rule == pair)?;
        let made = self.rules.iter().position(|rule| rule.concat() == pair.concat())?;
        Some((Reverse(rule), 26 + made))
    }
}

fn rules(pairs: &[[&str; 2]]) -> List {
    List::new(pairs.iter().map(|pair| pair.map(str::to_owned)).collect())
}

/// Rules for long runs of one letter: pieces of 2, 4, 8, up to 64.
fn doubling() -> List {
    List::new((0..6).map(|power| ["a".repeat(1 << power), "a".repeat(1 << power)]).collect())
}

/// Work for a text of `letters`: the maximum number of symbols read ahead of the output, and the pairs
/// examined.
fn work(list: &List, letters: usize) -> (usize, usize) {
    let (read, ahead) = (Cell::new(0), Cell::new(0));
    let mut given = 0;
    list.joins.set(0);
    let source = std::iter::repeat_n(0, letters).inspect(|_| {
        read.set(read.get() + 1);
    });
    let Ok(()) = merge(list, source, |symbol| {
        ahead.set(ahead.get().max(read.get() - given));
        given += list.text(symbol).len();
        Ok::<(), Infallible>(())
    });
    assert_eq!(given, letters);
    (ahead.get(), list.joins.get())
}

#[test]
fn a_text_of_any_length_takes_a_few_windows_and_linear_work() {
    for list in [doubling(), rules(&[["a", "a"]]), rules(&[["a", "aa"], ["a", "a"]]), rules(&[])] {
        let (_, once) = work(&list, WINDOW);
        let (ahead, joins) = work(&list, 16 * WINDOW);
        assert!(ahead <= 2 * WINDOW, "{ahead} symbols were held at once");
        // Windows overlap by at most a quarter, hence 4/3 plus a margin.
        assert!(joins <= 16 * once * 3 / 2, "{joins} pairs for 16 times the text that takes {once}");
    }
}

#[test]
fn an_error_ends_the_work() {
    let list = doubling();
    let read = Cell::new(0);
    let source = std::iter::repeat_n(0, 100 * WINDOW).inspect(|_| read.set(read.get() + 1));
    let mut room = 3;
    let ended = merge(&list, source, |_| {
        room -= 1;
        if room > 0 { Ok(()) } else { Err("full") }
    });
    assert_eq!(ended, Err("full"));
    assert!(read.get() <= 2 * WINDOW, "{} symbols were read", read.get());
}

proptest! {
    /// Any window size from four times the total reach of all rules.
    #[test]
    fn windows_of_any_size_give_the_same(
        picks in prop::collection::vec(any::<[prop::sample::Index; 2]>(), 0..14),
        turn in any::<prop::sample::Index>(),
        more in 0usize..24,
        letters in prop::collection::vec(0usize..3, 0..1500),
    ) {
        let mut made: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
        let mut rules: Vec<[String; 2]> = Vec::new();
        for [left, right] in &picks {
            let rule = [left.get(&made).clone(), right.get(&made).clone()];
            made.push(rule.concat());
            rules.push(rule);
        }
        let turn = turn.index(rules.len() + 1);
        rules.rotate_left(turn);
        let reach: usize = rules.iter().map(|rule| rule.concat().len()).sum();
        let list = List::new(rules);
        let whole = list.encode(usize::MAX, letters.iter().copied());
        prop_assert_eq!(list.encode(4 * reach + more, letters.iter().copied()), whole);
    }
}
