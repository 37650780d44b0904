//! Histories of shared bytes: who wrote and read a byte since the last barrier of all threads, what
//! an access does to that, and so whether it races with an earlier one. Histories are numbered, and
//! what was judged once is remembered.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::clocks::Clocks;

/// How a byte is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Read,
    Write,
    /// Volatile, relaxed and acquiring loads, the like stores, and atomics are strong: they race with
    /// plain accesses only.
    StrongRead,
    StrongWrite,
    Atomic,
}

impl Kind {
    pub(super) fn strong(self) -> bool {
        matches!(self, Kind::StrongRead | Kind::StrongWrite | Kind::Atomic)
    }

    fn writes(self) -> bool {
        !matches!(self, Kind::Read | Kind::StrongRead)
    }

    fn reads(self) -> bool {
        !matches!(self, Kind::Write | Kind::StrongWrite)
    }
}

/// An access that was made: who, when, at which instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    pub(crate) agent: u16,
    pub(crate) kind: Kind,
    /// Made through the asynchronous proxy.
    pub(crate) proxy: bool,
    pub(crate) time: u32,
    /// Of a strong write: who knows its agent up to this time, and has met the value, is behind it.
    pub(super) since: u32,
    pub(crate) pc: u32,
}

impl Stamp {
    fn strong_write(&self) -> bool {
        self.kind.strong() && self.kind.writes()
    }
}

/// An access by a warp instruction, and the last move between states that it made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(super) stamp: Stamp,
    /// Whose clock counts: the agent's, or for a copy engine that of the warp that started it.
    by: u16,
    /// Part of the keys of its moves: both agents, the kind, and of which sort it is. Put together as it is made,
    /// not from fields that have just been written one by one.
    who: u32,
    clock: u64,
    /// Whose histories `from` and `to` number: see [`Access::at`].
    numbering: u64,
    pub(super) from: u32,
    pub(super) to: u32,
    /// It met what its own warp wrote, whose lanes have not met since: each lane needs a look.
    pub(super) own_lanes: bool,
    /// It is made for all lanes at once, whoever gave its address.
    pub(super) for_all: bool,
    /// It starts a copy that will write the bytes later.
    pub(super) of_copy: bool,
}

impl Access {
    #[inline(always)]
    pub(crate) fn new(clocks: &Clocks, agent: u16, kind: Kind, pc: u32) -> Self {
        let mut stamp = Stamp { agent, kind, proxy: false, time: clocks.time(), since: 0, pc };
        if stamp.strong_write() {
            stamp.since = clocks.released_since(agent);
        }
        Self {
            stamp,
            by: agent,
            who: who(&stamp, agent),
            clock: clocks.id(agent),
            numbering: u64::MAX,
            from: NO_NUMBER,
            to: 0,
            own_lanes: false,
            for_all: false,
            of_copy: false,
        }
    }

    /// It goes on in a block, whose shadow has given its histories numbers anew so many times: a
    /// move that was made in another one, or with older numbers, means nothing there.
    #[inline(always)]
    pub(crate) fn at(&mut self, block: u32, renumbered: u32) {
        let numbering = u64::from(block) << 32 | u64::from(renumbered);
        if self.numbering != numbering {
            self.numbering = numbering;
            self.forget_move();
        }
    }

    /// The last move is not one that comes again.
    pub(super) fn forget_move(&mut self) {
        (self.from, self.to) = (NO_NUMBER, 0);
    }

    pub(crate) fn kind(&self) -> Kind {
        self.stamp.kind
    }

    pub(crate) fn pc(&self) -> u32 {
        self.stamp.pc
    }

    /// The same for all lanes at once: what one of them wrote is not its own.
    #[inline(always)]
    pub(crate) fn for_all(mut self) -> Self {
        self.for_all = true;
        self
    }

    /// The same for a copy that is started: until it comes, the bytes are nobody's.
    #[inline(always)]
    pub(crate) fn of_copy(mut self) -> Self {
        self.of_copy = true;
        self.who |= 1 << 26;
        self
    }

    /// The same through the asynchronous proxy, by the agent that stands for it.
    pub(crate) fn asynchronous(mut self, agent: u16) -> Self {
        self.stamp.proxy = true;
        self.stamp.agent = agent;
        self.who = who(&self.stamp, self.by);
        self
    }
}

/// Part of the keys of an access's moves.
#[inline(always)]
fn who(stamp: &Stamp, by: u16) -> u32 {
    let agents = u32::from(stamp.agent) | u32::from(by) << 11;
    agents | (stamp.kind as u32) << 22 | u32::from(stamp.proxy) << 25
}

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
    /// What came since, of each agent and kind the last. Plain reads are first. Of strong accesses those before
    /// the last two strong writes of different agents are forgotten, and reads between two strong writes are
    /// in the order of their agents.
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
            let other = |s: &Stamp| s.strong_write() && s.agent != now.agent;
            if let Some(last) = self.others.iter().rposition(other) {
                let strong = self.others.partition_point(|s| !s.kind.strong());
                self.others.drain(strong..last);
            }
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
        // The clock's name says since when its writes release.
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
            // Who has met a strong write, and what was released before it, is behind it.
            let met = |s: &Stamp| s.kind.strong() && s.kind.reads() && before(s);
            let behind = earlier.strong_write()
                && clocks.ordered(access.by, earlier.agent, earlier.since)
                && history.others[n + 1..].iter().any(met);
            if !behind {
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
