//! Random games against a naive model, compared by content.
//!
//! The model plays the machine as well: its memory has pages, and a write at position `p` leaves `(p,
//! digest)` there. The digest is computed from the token and from the memory at every position that `p` sees,
//! as attention would. The expected content follows from the token history alone. So a page that is shared
//! wrongly, written while shared, reused too early, dropped too early, not copied, or found under another
//! prefix shows as a wrong digest. With recurrent states, the machine folds the digests into the slots of
//! state, as recurrent layers would.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::super::*;
use crate::ir::PAGE_TOKENS;
use crate::token::TokenId;

const PAGES: usize = 14;

#[derive(Clone, Debug)]
enum Move {
    /// A prompt that shares its beginning with others of the same `family`.
    Allocate {
        family: u32,
        split: usize,
        len: usize,
        tokens_max: usize,
        window: Option<Window>,
    },
    Adopt {
        family: u32,
        len: usize,
        window: Option<Window>,
    },
    Write {
        seq: usize,
        reserve: usize,
        write: usize,
        token: u32,
    },
    Unasked {
        seq: usize,
        tokens: usize,
    },
    Fork {
        seq: usize,
    },
    Truncate {
        seq: usize,
        keep: usize,
    },
    Release {
        seq: usize,
    },
    Poison {
        seq: usize,
        tokens: usize,
    },
    Stale {
        which: usize,
    },
}

fn window() -> impl Strategy<Value = Option<Window>> {
    let some = (1u32..60, 0u32..40).prop_map(|(window, sinks)| Some(Window { window, sinks }));
    prop_oneof![2 => Just(None), 1 => some]
}

fn game() -> impl Strategy<Value = Vec<Move>> {
    let seq = 0usize..8;
    let one = prop_oneof![
        3 => (0u32..2, 0usize..100, 1usize..100, 1usize..300, window()).prop_map(
            |(family, split, len, tokens_max, window)| Move::Allocate { family, split, len, tokens_max, window }
        ),
        1 => (0u32..2, 1usize..150, window()).prop_map(|(family, len, window)| Move::Adopt { family, len, window }),
        10 => (seq.clone(), 0usize..40, 0usize..40, 0u32..2).prop_map(
            |(seq, reserve, write, token)| Move::Write { seq, reserve, write, token }
        ),
        1 => (seq.clone(), 0usize..5).prop_map(|(seq, tokens)| Move::Unasked { seq, tokens }),
        2 => seq.clone().prop_map(|seq| Move::Fork { seq }),
        2 => (seq.clone(), 0usize..100).prop_map(|(seq, keep)| Move::Truncate { seq, keep }),
        2 => seq.clone().prop_map(|seq| Move::Release { seq }),
        1 => (seq, 0usize..40).prop_map(|(seq, tokens)| Move::Poison { seq, tokens }),
        1 => (0usize..8).prop_map(|which| Move::Stale { which }),
    ];
    proptest::collection::vec(one, 1..80)
}

fn prompt(family: u32, split: usize, len: usize) -> Vec<TokenId> {
    (0..len).map(|at| TokenId(100 * family + u32::from(at >= split))).collect()
}

fn sees(window: Option<Window>, query: usize, key: usize) -> bool {
    window.is_none_or(|w| key < w.sinks as usize || key + w.window as usize > query)
}

fn digest(token: TokenId, position: usize, past: impl Iterator<Item = u64>) -> u64 {
    let mix = |state: u64, word: u64| (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    past.fold(mix(mix(1, token.0.into()), position as u64), mix)
}

/// The expected content of each position's slot, from the history alone.
fn expected(tokens: &[TokenId], window: Option<Window>) -> Vec<u64> {
    let mut digests: Vec<u64> = Vec::new();
    for (position, &token) in tokens.iter().enumerate() {
        let past = (0..position).filter(|&key| sees(window, position, key)).map(|key| digests[key]);
        digests.push(digest(token, position, past));
    }
    digests
}

/// A state after more digests.
fn folded(state: u64, digests: impl Iterator<Item = u64>) -> u64 {
    digests.fold(state, |state, digest| (state ^ digest).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31))
}

#[derive(Clone)]
struct Life {
    seq: SeqId,
    spec: SequenceSpec,
    /// Prompt tokens still to be written.
    pending: Vec<TokenId>,
    history: Vec<TokenId>,
}

struct Machine {
    kv: KvCacheManager,
    memory: Vec<[Option<(usize, u64)>; PAGE_TOKENS]>,
    /// By slot of state.
    states: Vec<Option<u64>>,
    lives: Vec<Life>,
    dead: Vec<SeqId>,
    /// The findable pages, by the events read so far.
    heard: HashMap<[u8; 32], StoredPage>,
}

impl Machine {
    fn new(prefix: PrefixSharing, states: usize) -> Machine {
        let kv = KvCacheManager::new(KvConfig { pages: PAGES, prefix }).unwrap();
        let mut kv = kv.with_states(states).unwrap();
        kv.keep_events();
        let (memory, states) = (vec![[None; PAGE_TOKENS]; PAGES], vec![None; states]);
        Machine { kv, memory, states, lives: Vec::new(), dead: Vec::new(), heard: HashMap::new() }
    }

    /// The content of the slot of a sequence's state, if it has one.
    fn state(&self, seq: SeqId) -> Option<u64> {
        let slot = self.kv.sequences.get(seq).unwrap().state?;
        Some(self.states[slot.index()].expect("a state was never written"))
    }

    fn slots(&self, seq: SeqId) -> HashMap<usize, (usize, usize)> {
        let pages = self.kv.pages(seq).unwrap();
        let slots = pages.iter().flat_map(|entry| {
            (0..PAGE_TOKENS).map(|slot| (entry.start as usize + slot, (entry.page.index(), slot)))
        });
        slots.collect()
    }

    /// The backend's step: attends over the memory's content, and writes.
    fn compute(&mut self, life: &Life, tokens: &[TokenId], poison: u64) {
        let slots = self.slots(life.seq);
        let mut digests = Vec::new();
        for (offset, &token) in tokens.iter().enumerate() {
            let position = life.history.len() + offset;
            let visible = (0..position).filter(|&key| sees(life.spec.window, position, key));
            let past = visible.map(|key| {
                let (page, slot) = slots[&key];
                let (held, value) = self.memory[page][slot].expect("a visible slot was never written");
                assert_eq!(held, key, "a slot of another position");
                value
            });
            let value = digest(token, position, past) ^ poison;
            let (page, slot) = slots[&position];
            self.memory[page][slot] = Some((position, value));
            digests.push(value);
        }
        if self.kv.has_states() && !tokens.is_empty() {
            let slots = self.kv.states(life.seq).unwrap().expect("reserved");
            let read =
                slots.read.map_or(0, |slot| self.states[slot.index()].expect("a state was never written"));
            self.states[slots.write.index()] = Some(folded(read, digests.into_iter()));
        }
    }

    fn reserve(&mut self, life: &Life, tokens: usize) -> Result<(), KvError> {
        let pages = self.kv.pages(life.seq).unwrap().to_vec();
        let before = (self.kv.stats(), pages.clone());
        let len = life.history.len();
        let end = pages.last().map_or(0, |entry| entry.start as usize + PAGE_TOKENS).max(len);
        match self.kv.reserve(life.seq, tokens) {
            Ok(copies) => {
                assert!(copies.len() <= 1);
                for copy in copies {
                    self.memory[copy.to.index()] = self.memory[copy.from.index()];
                }
                Ok(())
            }
            Err(error) => {
                match error {
                    KvError::TooLong { .. } => assert!(len + tokens > life.spec.tokens_max),
                    KvError::OutOfPages { needed, free } => {
                        assert_eq!(free, self.kv.free_pages());
                        let new = (len + tokens).saturating_sub(end).div_ceil(PAGE_TOKENS);
                        assert!(needed > free && (needed == new || needed == new + 1));
                    }
                    KvError::OutOfStates { slots } => {
                        assert_eq!((slots, slots), (self.states.len(), self.kv.stats().states));
                    }
                    ref other => panic!("{other}"),
                }
                assert_eq!((self.kv.stats(), self.kv.pages(life.seq).unwrap().to_vec()), before);
                Err(error)
            }
        }
    }

    fn allocate(&mut self, prompt: Vec<TokenId>, spec: SequenceSpec) {
        let expected = self.kv.cached_tokens(&prompt, &spec);
        match self.kv.allocate(&prompt, spec) {
            Ok(Allocation { seq, cached_tokens }) => {
                // With recurrent states, pages after the last kept state are of no use.
                let agree = if self.kv.has_states() { usize::ge } else { usize::eq };
                assert!(agree(&expected, &cached_tokens), "{expected} expected, {cached_tokens} found");
                assert!(cached_tokens < prompt.len() && cached_tokens.is_multiple_of(PAGE_TOKENS));
                let (history, pending) = prompt.split_at(cached_tokens);
                self.lives.push(Life { seq, spec, pending: pending.to_vec(), history: history.to_vec() });
            }
            Err(KvError::TooLong { .. }) => assert!(prompt.len() > spec.tokens_max),
            Err(other) => panic!("{other}"),
        }
    }

    fn adopt(&mut self, tokens: Vec<TokenId>, window: Option<Window>) {
        let spec = SequenceSpec { tokens_max: 300, window, salt: None };
        match self.kv.adopt(&tokens, spec) {
            Ok(seq) => {
                let digests = expected(&tokens, window);
                for (position, (page, slot)) in self.slots(seq) {
                    self.memory[page][slot] = digests.get(position).map(|&digest| (position, digest));
                }
                if let Some(slot) = self.kv.sequences.get(seq).unwrap().state {
                    self.states[slot.index()] = Some(folded(0, digests.into_iter()));
                }
                self.lives.push(Life { seq, spec, pending: Vec::new(), history: tokens });
            }
            Err(KvError::OutOfPages { needed, free }) => {
                assert!(needed > free && free == self.kv.free_pages())
            }
            Err(KvError::OutOfStates { .. }) => assert_eq!(self.kv.stats().states, self.states.len()),
            Err(other) => panic!("{other}"),
        }
    }

    fn write(&mut self, index: usize, reserve: usize, write: usize, token: u32) {
        let mut life = self.lives[index].clone();
        if self.reserve(&life, reserve).is_err() {
            return;
        }
        let mut tokens: Vec<TokenId> = life.pending.iter().copied().take(write).collect();
        tokens.resize(write, TokenId(token));
        if write > reserve {
            let refused = self.kv.advance(life.seq, &tokens);
            assert!(
                matches!(refused, Err(KvError::NotReserved { .. } | KvError::TooLong { .. })),
                "{refused:?}"
            );
            return;
        }
        self.compute(&life, &tokens, 0);
        self.kv.advance(life.seq, &tokens).unwrap();
        life.pending.drain(..write.min(life.pending.len()));
        life.history.extend(tokens);
        self.lives[index] = life;
    }

    fn truncate(&mut self, index: usize, keep: usize) {
        let life = &mut self.lives[index];
        let target = life.history.len() * keep / 99;
        let oldest =
            |kv: &KvCacheManager, at| kv.pages(life.seq).unwrap().iter().any(|entry| entry.start == at);
        let needs = (0..=target).filter(|&key| sees(life.spec.window, target, key));
        let whole = needs.map(|key| (key / PAGE_TOKENS * PAGE_TOKENS) as u32).all(|at| oldest(&self.kv, at));
        match self.kv.truncate(life.seq, target) {
            Ok(()) => {
                life.history.truncate(target);
                life.pending.clear();
            }
            Err(KvError::WindowGone { .. }) => assert!(!whole, "it could have been done"),
            Err(KvError::StateGone { .. }) => assert!(self.kv.has_states() && target > 0),
            Err(KvError::TruncateBeyond { len, target }) => assert!(target > len),
            Err(other) => panic!("{other}"),
        }
    }

    fn poison(&mut self, index: usize, tokens: usize) {
        let life = self.lives.swap_remove(index);
        self.dead.push(life.seq);
        if self.reserve(&life, tokens).is_ok() {
            let tokens = prompt(0, 50, life.history.len() + tokens).split_off(life.history.len());
            self.compute(&life, &tokens, 0xbad);
            self.kv.advance(life.seq, &tokens).unwrap();
        }
        self.kv.release_unshared(life.seq).unwrap();
    }

    fn play(&mut self, next: Move) {
        let lives = self.lives.len();
        match next {
            Move::Allocate { family, split, len, tokens_max, window } => {
                self.allocate(prompt(family, split, len), SequenceSpec { tokens_max, window, salt: None });
            }
            Move::Adopt { family, len, window } => self.adopt(prompt(family, 50, len), window),
            Move::Stale { which } => {
                if let Some(&seq) = self.dead.get(which) {
                    let stale = KvError::StaleSequence { index: seq.index, generation: seq.generation };
                    assert_eq!(self.kv.reserve(seq, 1).unwrap_err(), stale);
                    assert_eq!(self.kv.release(seq).unwrap_err(), stale);
                }
            }
            _ if lives == 0 => {}
            Move::Write { seq, reserve, write, token } => self.write(seq % lives, reserve, write, token),
            Move::Unasked { seq, tokens } => {
                let life = &self.lives[seq % lives];
                let tokens = vec![TokenId(0); tokens];
                let _spoilt = self.kv.truncate(life.seq, life.history.len());
                let refused = self.kv.advance(life.seq, &tokens);
                assert!(matches!(refused, Err(KvError::NotReserved { .. } | KvError::TooLong { .. })));
            }
            Move::Fork { seq } => {
                let mut fork = self.lives[seq % lives].clone();
                fork.seq = self.kv.fork(fork.seq).unwrap();
                self.lives.push(fork);
            }
            Move::Truncate { seq, keep } => self.truncate(seq % lives, keep),
            Move::Release { seq } => {
                let life = self.lives.swap_remove(seq % lives);
                self.kv.release(life.seq).unwrap();
                self.dead.push(life.seq);
            }
            Move::Poison { seq, tokens } => self.poison(seq % lives, tokens),
        }
    }

    /// Checks that the events so far give exactly the findable pages.
    fn hear(&mut self) {
        for event in self.kv.take_events() {
            let news = match event {
                CacheEvent::Stored(page) => self.heard.insert(page.hash, page).is_none(),
                CacheEvent::Removed { hash } => self.heard.remove(&hash).is_some(),
                CacheEvent::Cleared => panic!("the books lose no change"),
            };
            assert!(news);
        }
        let stored = self.kv.stored();
        assert_eq!((stored.len(), self.kv.pool.prefix.registered()), (self.heard.len(), self.heard.len()));
        let mut before = HashSet::new();
        for event in stored {
            let CacheEvent::Stored(page) = event else { panic!("{event:?}") };
            assert_eq!(self.heard.get(&page.hash), Some(&page));
            assert_eq!(self.kv.pool.prefix.hash(page.parent.as_ref(), None, &page.tokens), Some(page.hash));
            let parent = page.parent.filter(|parent| self.heard.contains_key(parent));
            assert!(parent.is_none_or(|parent| before.contains(&parent)), "a page before its parent");
            before.insert(page.hash);
        }
    }

    /// Checks that every sequence reads back its history in every page it still has, and has every position
    /// that its next query sees.
    fn judge(&mut self) {
        self.hear();
        self.kv.check_integrity().unwrap();
        assert_eq!(self.kv.used_pages() + self.kv.free_pages(), PAGES);
        assert_eq!(self.kv.stats().sequences, self.lives.len());
        for life in &self.lives {
            assert_eq!(self.kv.tokens(life.seq).unwrap(), life.history);
            let (slots, len) = (self.slots(life.seq), life.history.len());
            let expected = expected(&life.history, life.spec.window);
            let state = Some(folded(0, expected.iter().copied())).filter(|_| self.kv.has_states() && len > 0);
            assert_eq!(self.state(life.seq), state);
            for (position, &digest) in expected.iter().enumerate() {
                match slots.get(&position) {
                    Some(&(page, slot)) => assert_eq!(self.memory[page][slot], Some((position, digest))),
                    None => assert!(!sees(life.spec.window, len, position), "position {position} is gone"),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_sequence_reads_back_its_own_history(
        game in game(),
        shares in prop::bool::weighted(0.85),
        states in prop_oneof![Just(0usize), 2usize..20],
    ) {
        let prefix = if shares { PrefixSharing::On { salt: [3; 32] } } else { PrefixSharing::Off };
        let mut machine = Machine::new(prefix, states);
        for next in game {
            machine.play(next);
            machine.judge();
        }
        while let Some(life) = machine.lives.pop() {
            machine.kv.release(life.seq).unwrap();
            machine.judge();
        }
        prop_assert_eq!(machine.kv.free_pages(), PAGES);
        prop_assert_eq!(machine.kv.stats().states, 0);
    }
}
