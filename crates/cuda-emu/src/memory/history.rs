//! Histories of shared bytes: who wrote and read a byte since the last barrier of all threads, what
//! an access does to that, and so whether it races with an earlier one. Histories are numbered, and
//! what was judged once is remembered.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::access::{Access, Kind, Stamp};
use super::clocks::Clocks;

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// It is not ordered after an earlier one.
    Race(Stamp),
    /// Nothing wrote the byte.
    Uninitialised,
    /// A copy started at this instruction has not been waited for.
    Pending(u32),
    /// A write through the other proxy, without a fence.
    Proxy(Stamp),
}

/// What happened to a byte.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub(super) struct History {
    pub(super) written: bool,
    /// The last plain write.
    pub(super) writer: Option<Stamp>,
    /// What came since, of each agent and kind the last. Of strong writes there are the last, and the one before
    /// if it is of another agent and the last is no atomic. Plain reads are first, and reads between two strong
    /// writes are in the order of their agents.
    others: Vec<Stamp>,
    /// The instruction that started a copy that has yet to come.
    pub(super) pending: Option<u32>,
}

impl History {
    /// Of bytes that a copy, started at `pc`, will write.
    pub(super) fn pending(pc: u32) -> Self {
        Self { written: true, pending: Some(pc), ..Self::default() }
    }

    /// The last write, if nothing came after it.
    pub(super) fn only_written(&self) -> Option<&Stamp> {
        self.writer.as_ref().filter(|_| self.others.is_empty())
    }

    /// Something other than a plain write comes.
    fn add(&mut self, now: Stamp) {
        if now.strong_write() {
            // Who is behind an atomic is behind the write whose value that has read.
            let other = |s: &&Stamp| s.strong_write() && s.agent != now.agent && now.kind != Kind::Atomic;
            let before = self.others.iter().rfind(other).copied();
            self.others.retain(|s| !s.strong_write() || Some(*s) == before);
        }
        self.others.retain(|s| s.agent != now.agent || s.kind != now.kind);
        self.others.insert(if now.kind.strong() { self.others.len() } else { 0 }, now);
        for reads in self.others.split_mut(Stamp::strong_write) {
            reads.sort_by_key(|s| (s.kind, s.agent));
        }
    }

    /// Of bytes that were just written.
    pub(super) fn written(writer: Stamp) -> Self {
        Self { written: true, writer: Some(writer), ..Self::default() }
    }
}

/// What an access does to a byte of some history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Move {
    pub(super) to: u32,
    pub(super) conflict: Option<Conflict>,
    /// The last writer is the same warp, whose lanes have not met since.
    pub(super) own_lanes: bool,
}

/// A move that led on to a number, without a conflict. Small, so that many fit into the processor's caches,
/// and none lies in two of their lines.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Recent {
    key: Key,
    to: u32,
    own_lanes: bool,
}

/// How many of the last moves are at hand: a block that goes through a few dozen barriers has thousands.
const RECENT: usize = 1 << 11;
/// How many moves are remembered at all.
const MOVES_MAX: usize = 1 << 20;
/// Number of the history of bytes that nothing wrote.
pub(super) const UNWRITTEN: u32 = 0;
/// Number of the history of bytes all of whose accesses are ordered before everything to come.
pub(super) const CLEAN: u32 = 1;

/// Part of the numbers of histories with a copy that has yet to come.
pub(super) const PENDING: u32 = 1 << 31;
/// What is no history's number.
pub(super) const NO_NUMBER: u32 = PENDING - 1;

/// Mixes the few words of a key; keys are not chosen by an adversary.
#[derive(Default)]
struct WordHasher(u64);

impl Hasher for WordHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Words = BuildHasherDefault<WordHasher>;

/// A number of a history, and all that the judgement of an access to it depends on.
type Key = (u32, u32, u32, u32, u64);

/// The histories that have come up.
#[derive(Debug)]
pub(super) struct Histories {
    list: Vec<History>,
    numbers: HashMap<History, u32, Words>,
    moves: HashMap<Key, Move, Words>,
    /// Some of the last moves, by a few bits of their keys: most come again at once.
    recent: Box<[Recent]>,
}

impl Histories {
    pub(super) fn new() -> Self {
        let clean = History { written: true, ..History::default() };
        // No history has the number of this key.
        let nothing = Recent { key: (u32::MAX, 0, 0, 0, 0), to: CLEAN, own_lanes: false };
        Self {
            list: vec![History::default(), clean.clone()],
            numbers: [(History::default(), UNWRITTEN), (clean, CLEAN)].into_iter().collect(),
            moves: HashMap::default(),
            recent: vec![nothing; RECENT].into(),
        }
    }

    pub(super) fn get(&self, number: u32) -> &History {
        &self.list[(number & !PENDING) as usize]
    }

    /// The accesses of a history.
    pub(super) fn stamps(&self, number: u32) -> impl Iterator<Item = &Stamp> {
        let history = self.get(number);
        history.writer.iter().chain(&history.others)
    }

    /// Number of a history; none if it is new and there are `max` already.
    pub(super) fn number(&mut self, history: &History, max: usize) -> Option<u32> {
        if let Some(number) = self.numbers.get(history) {
            return Some(*number);
        }
        if self.list.len() >= max {
            return None;
        }
        let pending = if history.pending.is_some() { PENDING } else { 0 };
        let number = self.list.len() as u32 | pending;
        self.list.push(history.clone());
        self.numbers.insert(history.clone(), number);
        Some(number)
    }

    /// What was learnt of an access like this one.
    #[inline(always)]
    pub(super) fn recall(&mut self, number: u32, access: &Access) -> Option<Move> {
        let key = Self::key(number, access);
        let recent = &self.recent[Self::place(&key)];
        if recent.key != key {
            return self.recall_old(key);
        }
        Some(Move { to: recent.to, conflict: None, own_lanes: recent.own_lanes })
    }

    #[inline(never)]
    fn recall_old(&mut self, key: Key) -> Option<Move> {
        let step = *self.moves.get(&key)?;
        if step.conflict.is_none() {
            self.recent[Self::place(&key)] = Recent { key, to: step.to, own_lanes: step.own_lanes };
        }
        Some(step)
    }

    pub(super) fn learn(&mut self, number: u32, access: &Access, step: Move) {
        // What was forgotten is judged anew.
        if self.moves.len() >= MOVES_MAX {
            self.moves.clear();
        }
        self.moves.insert(Self::key(number, access), step);
    }

    /// Where among the recent moves one of this key may be.
    #[inline(always)]
    fn place((number, who, time, pc, _): &Key) -> usize {
        let words = number ^ who.rotate_left(8) ^ time.rotate_left(24) ^ pc.rotate_left(16);
        (words.wrapping_mul(0x9e37_79b9) >> (u32::BITS - RECENT.ilog2())) as usize
    }

    #[inline(always)]
    fn key(number: u32, access: &Access) -> Key {
        let Stamp { time, pc, .. } = access.stamp;
        (number, access.who, time, pc, access.clock)
    }

    /// What a byte's history is after an access, and whether its writer was the same warp, whose
    /// lanes have not met since.
    ///
    /// # Errors
    /// What is wrong with the access.
    pub(super) fn judge(
        &self,
        number: u32,
        access: &Access,
        clocks: &Clocks,
    ) -> Result<(History, bool), Conflict> {
        let history = self.get(number);
        let now = access.stamp;
        if let Some(pc) = history.pending {
            return Err(Conflict::Pending(pc));
        }
        if now.kind.reads() && !history.written {
            return Err(Conflict::Uninitialised);
        }
        let before = |earlier: &Stamp| clocks.ordered(access.by, earlier.agent, earlier.time);
        let conflicts = |earlier: &Stamp| {
            let kinds = earlier.kind.writes() || now.kind.writes();
            let strong = earlier.kind.strong() && now.kind.strong();
            kinds && !strong && !before(earlier)
        };
        if let Some(writer) = history.writer.filter(conflicts) {
            return Err(Conflict::Race(writer));
        }
        for (n, earlier) in history.others.iter().enumerate().filter(|(_, earlier)| conflicts(earlier)) {
            // Who has read a strong write's value, or one that atomics made of it, is behind that.
            let mut later = history.others[n + 1..].iter().take_while(|s| s.kind != Kind::StrongWrite);
            let read = |s: &Stamp| s.kind.strong() && s.kind.reads() && before(s);
            if !(earlier.strong_write() && later.any(read)) {
                return Err(Conflict::Race(*earlier));
            }
        }
        let unfenced = |w: &&Stamp| {
            now.proxy && w.kind.writes() && !w.proxy && !clocks.fenced(access.by, w.agent, w.time)
        };
        if let Some(writer) = history.writer.iter().chain(&history.others).find(unfenced) {
            return Err(Conflict::Proxy(*writer));
        }
        let own = |w: &Stamp| w.agent == access.by && !clocks.lanes_ordered(access.by, w.time);
        let own_lanes = now.kind != Kind::Atomic && history.writer.as_ref().is_some_and(own);
        if now.kind == Kind::Write {
            let next = if access.of_copy { History::pending(now.pc) } else { History::written(now) };
            return Ok((next, own_lanes));
        }
        let mut next = History { written: true, ..history.clone() };
        next.add(now);
        Ok((next, own_lanes))
    }
}
