//! The shadow of a block's shared memory: of each byte, who wrote and read it, and so whether an
//! access races with an earlier one, reads what nothing wrote, or what a copy has yet to bring.
//!
//! Bytes with the same history share a state, and states are numbered: a byte's entry is a number
//! with the epoch that it is of. An instruction usually moves all its bytes from one state to one
//! other, so that the check is a comparison and a store of numbers. In later epochs (after a
//! barrier of all threads) the same moves come again and are remembered.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;

use super::clocks::Clocks;

/// How a byte is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Read,
    Write,
    /// Atomics, and volatile or otherwise strong loads and stores: they race with plain ones only.
    Atomic,
}

/// An access that was made: who, when, at which instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stamp {
    pub(crate) agent: u16,
    pub(crate) kind: Kind,
    /// Made through the asynchronous proxy.
    pub(crate) proxy: bool,
    pub(crate) time: u32,
    pub(crate) pc: u32,
}

/// An access by a warp instruction, and the last move between states that it made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    stamp: Stamp,
    /// Whose clock counts: the agent's, or for a copy engine that of the warp that started it.
    by: u16,
    clock: u64,
    from: u32,
    to: u32,
}

impl Access {
    pub(crate) fn new(clocks: &Clocks, agent: u16, kind: Kind, pc: u32) -> Self {
        let stamp = Stamp { agent, kind, proxy: false, time: clocks.time(), pc };
        Self { stamp, by: agent, clock: clocks.id(agent), from: u32::MAX, to: 0 }
    }

    pub(crate) fn kind(&self) -> Kind {
        self.stamp.kind
    }

    pub(crate) fn pc(&self) -> u32 {
        self.stamp.pc
    }

    /// The same through the asynchronous proxy, by the agent that stands for it.
    pub(crate) fn asynchronous(mut self, agent: u16) -> Self {
        self.stamp.proxy = true;
        self.stamp.agent = agent;
        self
    }
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct State {
    written: bool,
    /// The last write, and the last other access of each agent and kind since.
    writer: Option<Stamp>,
    others: Vec<Stamp>,
    pending: Option<u32>,
}

/// What an access does to a state.
#[derive(Clone, Copy, Debug)]
struct Move {
    to: u32,
    conflict: Option<Conflict>,
    /// The last writer is the same warp, whose lanes have not met since.
    own_lanes: bool,
}

/// Number of the state of bytes that nothing wrote.
const UNWRITTEN: u32 = 0;
/// Number of the state of bytes all of whose accesses are ordered before everything to come.
const CLEAN: u32 = 1;
/// Bits of an entry that hold the state's number; the epoch is above.
const STATE_BITS: u32 = 18;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;
const EPOCH_MAX: u32 = (1 << (32 - STATE_BITS)) - 1;

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

/// The shadow of a block's shared memory.
#[derive(Debug)]
pub(crate) struct Shadow {
    entries: Vec<u32>,
    /// Of each byte, the lane that wrote it last.
    lanes: Vec<u8>,
    epoch: u32,
    states: Vec<State>,
    numbers: HashMap<State, u32, Words>,
    /// States that copies gave last: what was asked for, its number.
    last_started: (u32, u32),
    last_finished: (Option<Stamp>, u32),
    moves: HashMap<(u32, u32, u32, u32, u64), Move, Words>,
}

impl Shadow {
    pub(crate) fn new(bytes: usize) -> Self {
        let mut shadow = Self {
            entries: vec![0; bytes],
            lanes: vec![0; bytes],
            epoch: 0,
            states: Vec::new(),
            numbers: HashMap::default(),
            last_started: (0, UNWRITTEN),
            last_finished: (None, UNWRITTEN),
            moves: HashMap::default(),
        };
        shadow.forget_states();
        shadow
    }

    fn forget_states(&mut self) {
        let clean = State { written: true, ..State::default() };
        self.states = vec![State::default(), clean.clone()];
        self.numbers = [(State::default(), UNWRITTEN), (clean, CLEAN)].into_iter().collect();
        (self.last_started, self.last_finished) = ((0, UNWRITTEN), (None, UNWRITTEN));
        self.moves.clear();
    }

    /// A new block: nothing is written. What was learnt about moves stays.
    pub(crate) fn restart(&mut self) {
        self.epoch = 0;
        self.entries.fill(UNWRITTEN);
    }

    /// A barrier of all threads.
    pub(crate) fn next_epoch(&mut self) {
        if self.epoch == EPOCH_MAX {
            let settled: Vec<u32> = self.entries.iter().map(|entry| self.number(*entry)).collect();
            self.entries = settled;
            self.epoch = 0;
        }
        self.epoch += 1;
    }

    /// The number of an entry's state as it is in this epoch.
    fn number(&self, entry: u32) -> u32 {
        let number = entry & STATE_MASK;
        if entry >> STATE_BITS == self.epoch
            || number <= CLEAN
            || self.states[number as usize].pending.is_some()
        {
            return number;
        }
        CLEAN
    }

    fn entry(&self, number: u32) -> u32 {
        self.epoch << STATE_BITS | number
    }

    fn intern(&mut self, state: State) -> u32 {
        if let Some(number) = self.numbers.get(&state) {
            return *number;
        }
        if self.states.len() > STATE_MASK as usize {
            // More histories than numbers: forget them. Races with what was before go unseen,
            // nothing is reported that is none; bytes under way keep their state by a second copy.
            let kept: Vec<Option<u32>> =
                self.entries.iter().map(|entry| self.states[self.number(*entry) as usize].pending).collect();
            let unwritten: Vec<bool> =
                self.entries.iter().map(|entry| self.number(*entry) == UNWRITTEN).collect();
            self.forget_states();
            for at in 0..kept.len() {
                let number = match (kept[at], unwritten[at]) {
                    (None, true) => UNWRITTEN,
                    (None, false) => CLEAN,
                    (pending, _) => self.intern(State { written: true, pending, ..State::default() }),
                };
                self.entries[at] = self.entry(number);
            }
        }
        let number = self.states.len() as u32;
        self.states.push(state.clone());
        self.numbers.insert(state, number);
        number
    }

    /// Whether another lane of the same instruction has just written a byte.
    #[inline(always)]
    pub(crate) fn just_written(&self, offset: usize, lane: u8, pc: u32) -> bool {
        let entry = self.entries[offset];
        let own = || self.states[(entry & STATE_MASK) as usize].writer.is_some_and(|w| w.pc == pc);
        entry >> STATE_BITS == self.epoch && entry & STATE_MASK > CLEAN && self.lanes[offset] != lane && own()
    }

    /// Notes an access by a lane to `bytes` at `offset`, which must lie inside.
    ///
    /// # Errors
    /// What is wrong with it; bytes before the one that is wrong are noted.
    #[inline(always)]
    pub(crate) fn access(
        &mut self,
        access: &mut Access,
        clocks: &Clocks,
        offset: u32,
        bytes: u32,
        lane: u8,
    ) -> Result<(), Conflict> {
        let range = offset as usize..(offset + bytes) as usize;
        let different = match bytes {
            4 => differs::<4>(&self.entries, offset, access.from),
            16 => differs::<16>(&self.entries, offset, access.from),
            8 => differs::<8>(&self.entries, offset, access.from),
            2 => differs::<2>(&self.entries, offset, access.from),
            _ => self.entries[range.clone()].iter().any(|e| *e != access.from),
        };
        if different {
            self.access_slowly(access, clocks, offset, bytes, lane)?;
        } else {
            match bytes {
                4 => fill::<4>(&mut self.entries, offset, access.to),
                16 => fill::<16>(&mut self.entries, offset, access.to),
                _ => self.entries[range.clone()].fill(access.to),
            }
        }
        if access.stamp.kind == Kind::Write {
            self.lanes[range].fill(lane);
        }
        Ok(())
    }

    #[cold]
    fn access_slowly(
        &mut self,
        access: &mut Access,
        clocks: &Clocks,
        offset: u32,
        bytes: u32,
        lane: u8,
    ) -> Result<(), Conflict> {
        for at in offset as usize..(offset + bytes) as usize {
            let entry = self.entries[at];
            if entry == access.from {
                self.entries[at] = access.to;
                continue;
            }
            let step = self.step(self.number(entry), access, clocks);
            if let Some(conflict) = step.conflict {
                return Err(conflict);
            }
            if step.own_lanes && self.lanes[at] != lane {
                let writer = self.states[self.number(entry) as usize].writer;
                return writer.map_or(Ok(()), |writer| Err(Conflict::Race(writer)));
            }
            self.entries[at] = self.entry(step.to);
            // Lanes that need a look at the writer's lane may not take the short way.
            (access.from, access.to) =
                if step.own_lanes { (u32::MAX, 0) } else { (entry, self.entry(step.to)) };
        }
        Ok(())
    }

    fn step(&mut self, number: u32, access: &Access, clocks: &Clocks) -> Move {
        let Stamp { agent, kind, proxy, time, pc } = access.stamp;
        let who =
            u32::from(agent) | u32::from(access.by) << 11 | (kind as u32) << 22 | u32::from(proxy) << 24;
        let key = (number, who, time, pc, access.clock);
        if let Some(step) = self.moves.get(&key) {
            return *step;
        }
        let before = self.states.len();
        let step = self.judge(number, access, clocks);
        // Numbers may have been given anew: then what was learnt before is gone, this included.
        if self.states.len() >= before {
            self.moves.insert(key, step);
        }
        step
    }

    fn judge(&mut self, number: u32, access: &Access, clocks: &Clocks) -> Move {
        let state = self.states[number as usize].clone();
        let now = access.stamp;
        let reads = now.kind != Kind::Write;
        let wrong = |conflict| Move { to: number, conflict: Some(conflict), own_lanes: false };
        if let Some(pc) = state.pending {
            return wrong(Conflict::Pending(pc));
        }
        if reads && !state.written {
            return wrong(Conflict::Uninitialised);
        }
        let conflicts = |earlier: &Stamp| {
            let kinds = earlier.kind != now.kind || now.kind == Kind::Write;
            kinds && !clocks.ordered(access.by, earlier.agent, earlier.time)
        };
        if let Some(earlier) = state.writer.iter().chain(&state.others).find(|earlier| conflicts(earlier)) {
            return wrong(Conflict::Race(*earlier));
        }
        if let Some(writer) = state.writer.filter(|w| now.proxy && !w.proxy)
            && !clocks.fenced(access.by, writer.agent, writer.time)
        {
            return wrong(Conflict::Proxy(writer));
        }
        let own = |w: &Stamp| w.agent == access.by && !clocks.lanes_ordered(access.by, w.time);
        let own_lanes = now.kind != Kind::Atomic && state.writer.as_ref().is_some_and(own);
        let mut next = state;
        next.written = true;
        if now.kind == Kind::Write {
            next.writer = Some(now);
            next.others.clear();
        } else {
            next.others.retain(|s| s.agent != now.agent || s.kind != now.kind);
            next.others.push(now);
            next.others.sort_by_key(|s| (s.agent, s.kind));
        }
        Move { to: self.intern(next), conflict: None, own_lanes }
    }

    /// An access of others than a block's own agents that none of those knows to be over.
    pub(crate) fn unordered_from_outside(&self, clocks: &Clocks, own: Range<u16>) -> Option<Stamp> {
        let mut numbers: Vec<u32> = self.entries.iter().map(|entry| self.number(*entry)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let states = numbers.iter().map(|number| &self.states[*number as usize]);
        let known = |s: &Stamp| own.clone().any(|agent| clocks.ordered(agent, s.agent, s.time));
        let mut stamps = states.flat_map(|state| state.writer.iter().chain(&state.others));
        stamps.find(|s| !own.contains(&s.agent) && !known(s)).copied()
    }

    /// Bytes that an asynchronous copy, started at `pc`, will write: until then they are nobody's.
    pub(crate) fn start_copy(&mut self, offset: u32, bytes: u32, pc: u32) {
        if self.last_started.0 != pc || self.last_started.1 == UNWRITTEN {
            let number = self.intern(State { written: true, pending: Some(pc), ..State::default() });
            self.last_started = (pc, number);
        }
        let entry = self.entry(self.last_started.1);
        self.entries[offset as usize..(offset + bytes) as usize].fill(entry);
    }

    /// A copy has written its bytes: they count as written by that access.
    pub(crate) fn finish_copy(&mut self, offset: u32, bytes: u32, by: &Access, lane: u8) {
        let writer = Stamp { kind: Kind::Write, ..by.stamp };
        if self.last_finished.0 != Some(writer) {
            let number = self.intern(State { written: true, writer: Some(writer), ..State::default() });
            self.last_finished = (Some(writer), number);
        }
        let entry = self.entry(self.last_finished.1);
        let range = offset as usize..(offset + bytes) as usize;
        self.lanes[range.clone()].fill(lane);
        self.entries[range].fill(entry);
    }
}

#[inline(always)]
fn differs<const N: usize>(entries: &[u32], offset: u32, from: u32) -> bool {
    let found: &[u32; N] =
        entries[offset as usize..].first_chunk().expect("the access was checked to lie inside");
    found.iter().fold(0, |difference, entry| difference | (entry ^ from)) != 0
}

#[inline(always)]
fn fill<const N: usize>(entries: &mut [u32], offset: u32, to: u32) {
    if let Some(found) = entries[offset as usize..].first_chunk_mut::<N>() {
        *found = [to; N];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::clocks::Released;

    struct Scene {
        shadow: Shadow,
        clocks: Clocks,
    }

    impl Scene {
        fn new() -> Self {
            Self { shadow: Shadow::new(64), clocks: Clocks::new(4) }
        }

        fn go(&mut self, agent: u16, kind: Kind, offset: u32, bytes: u32, lane: u8) -> Result<(), Conflict> {
            let mut access = Access::new(&self.clocks, agent, kind, 7);
            self.shadow.access(&mut access, &self.clocks, offset, bytes, lane)
        }

        fn barrier(&mut self) {
            self.clocks.restart();
            self.shadow.next_epoch();
        }
    }

    #[test]
    fn a_barrier_orders_and_its_absence_is_a_race() {
        let mut scene = Scene::new();
        assert_eq!(scene.go(0, Kind::Read, 0, 4, 0), Err(Conflict::Uninitialised));
        scene.go(0, Kind::Write, 0, 4, 0).unwrap();
        assert!(matches!(scene.go(1, Kind::Read, 3, 1, 0), Err(Conflict::Race(s)) if s.agent == 0));
        scene.barrier();
        scene.go(1, Kind::Read, 3, 1, 0).unwrap();
        scene.go(2, Kind::Read, 3, 1, 0).unwrap();
        assert!(
            matches!(scene.go(1, Kind::Write, 0, 4, 0), Err(Conflict::Race(s)) if s.agent == 2 && s.kind == Kind::Read)
        );
        scene.go(0, Kind::Write, 8, 2, 0).unwrap();
        scene.barrier();
        scene.go(1, Kind::Write, 0, 4, 0).unwrap();
    }

    #[test]
    fn lanes_of_a_warp_race_until_they_meet() {
        let mut scene = Scene::new();
        scene.go(0, Kind::Write, 0, 4, 5).unwrap();
        scene.go(0, Kind::Read, 0, 4, 5).unwrap();
        assert!(matches!(scene.go(0, Kind::Read, 0, 4, 6), Err(Conflict::Race(_))));
        scene.clocks.sync_lanes(0);
        scene.go(0, Kind::Read, 0, 4, 6).unwrap();
    }

    #[test]
    fn releases_order_only_those_who_acquire() {
        let mut scene = Scene::new();
        scene.go(0, Kind::Write, 0, 4, 0).unwrap();
        let mut object = Released::default();
        scene.clocks.release(0, &mut object);
        scene.go(0, Kind::Write, 8, 4, 0).unwrap();
        scene.clocks.acquire(1, &object);
        scene.go(1, Kind::Read, 0, 4, 0).unwrap();
        assert!(scene.go(1, Kind::Read, 8, 4, 0).is_err());
        assert!(scene.go(2, Kind::Read, 0, 4, 0).is_err());
    }

    #[test]
    fn atomics_race_with_plain_accesses_only() {
        let mut scene = Scene::new();
        scene.go(0, Kind::Write, 0, 4, 0).unwrap();
        scene.barrier();
        scene.go(0, Kind::Atomic, 0, 4, 0).unwrap();
        scene.go(1, Kind::Atomic, 0, 4, 0).unwrap();
        assert!(scene.go(2, Kind::Read, 0, 4, 0).is_err());
        scene.barrier();
        scene.go(2, Kind::Read, 0, 4, 0).unwrap();
    }

    #[test]
    fn bytes_under_way_are_nobodys() {
        let mut scene = Scene::new();
        scene.shadow.start_copy(0, 16, 3);
        scene.barrier();
        assert_eq!(scene.go(0, Kind::Read, 4, 4, 0), Err(Conflict::Pending(3)));
        let by = Access::new(&scene.clocks, 0, Kind::Write, 3);
        scene.shadow.finish_copy(0, 16, &by, 2);
        scene.go(0, Kind::Read, 4, 4, 2).unwrap();
        assert!(scene.go(1, Kind::Read, 4, 4, 2).is_err());
    }

    #[test]
    fn epochs_and_states_without_end() {
        let mut scene = Scene::new();
        for round in 0..40_000u32 {
            scene.go((round % 3) as u16, Kind::Write, 0, 4, 0).unwrap();
            scene.barrier();
        }
        for _ in 0..300_000 {
            scene.go(0, Kind::Write, 0, 4, 0).unwrap();
            scene.clocks.sync_lanes(0);
        }
        assert_eq!(scene.go(0, Kind::Read, 32, 4, 0), Err(Conflict::Uninitialised));
    }
}
