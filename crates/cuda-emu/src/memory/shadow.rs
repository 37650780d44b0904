//! The shadow of a block's shared memory: of each byte, who wrote and read it, and so whether an
//! access races with an earlier one, reads what nothing wrote, or what a copy has yet to bring.
//!
//! Bytes with the same history share its number. The bytes of a word mostly have the same one; a word
//! of which that is not true is split. An instruction usually moves all its bytes from one history to
//! one other, so that the check is a comparison and a store of numbers. A barrier of all threads
//! orders all that was before; after it the same moves come again and are remembered.

#[cfg(test)]
mod model_tests;
mod warps;

use std::ops::Range;

pub(crate) use warps::{follow, rows_at};

pub(crate) use super::access::{Access, Kind, Stamp};
use super::clocks::Clocks;
use super::fill;
pub(crate) use super::history::Conflict;
use super::history::{CLEAN, Histories, History, Move, NO_NUMBER, PENDING, UNWRITTEN};

/// Instead of the number of a word: its bytes have numbers of their own.
const SPLIT: u32 = u32::MAX;
/// Instead of the lane that wrote a word: its bytes were written by lanes of their own.
const MIXED: u8 = u8::MAX;
/// How many histories can have numbers.
const NUMBERS_MAX: usize = 1 << 18;

/// The shadow of a block's shared memory.
#[derive(Debug)]
pub(crate) struct Shadow {
    /// Of each word, the number of its bytes' history, or [`SPLIT`].
    words: Vec<u32>,
    /// Of each byte of a split word, its number.
    bytes: Vec<[u32; 4]>,
    /// Of each word, the lane that wrote it last, or [`MIXED`]; then that of each byte.
    writers: Vec<u8>,
    byte_writers: Vec<[u8; 4]>,
    histories: Histories,
    /// How often histories were given numbers anew.
    renumbered: u32,
    /// Histories that copies gave last: what was asked for, its number. Those that have come by some bits
    /// of who, when and where.
    last_started: (u32, u32),
    last_finished: [(Option<Stamp>, u32); 128],
}

impl Shadow {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            words: vec![0; bytes.div_ceil(4)],
            bytes: vec![[0; 4]; bytes.div_ceil(4)],
            writers: vec![0; bytes.div_ceil(4)],
            byte_writers: vec![[0; 4]; bytes.div_ceil(4)],
            histories: Histories::new(),
            renumbered: 0,
            last_started: (0, UNWRITTEN),
            last_finished: [(None, UNWRITTEN); 128],
        }
    }

    /// How often histories were given numbers anew, for [`Access::at`].
    #[inline(always)]
    pub(crate) fn renumbered(&self) -> u32 {
        self.renumbered
    }

    /// A new block: nothing is written. What was learnt about moves stays.
    pub(crate) fn restart(&mut self) {
        fill(&mut self.words, UNWRITTEN);
    }

    /// A barrier of all threads: what was before is ordered before all to come.
    #[inline(always)]
    pub(crate) fn next_epoch(&mut self) {
        let mut split = false;
        for word in &mut self.words {
            split |= *word == SPLIT;
            *word = settled(*word);
        }
        if split {
            self.renew_split(|_, number| settled(number));
        }
    }

    /// Gives the bytes of split words other numbers.
    fn renew_split(&mut self, mut renew: impl FnMut(&mut Self, u32) -> u32) {
        for word in 0..self.words.len() {
            if self.words[word] == SPLIT {
                let bytes = self.bytes[word].map(|number| renew(self, number));
                self.bytes[word] = bytes;
                self.words[word] = if bytes == [bytes[0]; 4] { bytes[0] } else { SPLIT };
            }
        }
    }

    /// The number of a byte's history.
    #[inline(always)]
    fn number_at(&self, at: usize) -> u32 {
        match self.words[at / 4] {
            SPLIT => self.bytes[at / 4][at % 4],
            number => number,
        }
    }

    /// Sets the numbers of some bytes.
    #[inline(always)]
    fn set(&mut self, range: Range<usize>, number: u32) {
        if range.start.is_multiple_of(4) && range.end.is_multiple_of(4) {
            self.words[range.start / 4..range.end / 4].fill(number);
        } else {
            range.for_each(|at| self.set_one(at, number));
        }
    }

    /// Sets the number of a byte: its word is split, or is no longer.
    fn set_one(&mut self, at: usize, number: u32) {
        let (word, bytes) = (&mut self.words[at / 4], &mut self.bytes[at / 4]);
        if *word != SPLIT {
            *bytes = [*word; 4];
        }
        bytes[at % 4] = number;
        *word = if *bytes == [number; 4] { number } else { SPLIT };
    }

    /// The lane that wrote a byte last.
    #[inline(always)]
    fn writer_at(&self, at: usize) -> u8 {
        match self.writers[at / 4] {
            MIXED => self.byte_writers[at / 4][at % 4],
            lane => lane,
        }
    }

    /// A lane has written some bytes.
    fn set_writer(&mut self, range: Range<usize>, lane: u8) {
        if range.start.is_multiple_of(4) && range.end.is_multiple_of(4) {
            return self.writers[range.start / 4..range.end / 4].fill(lane);
        }
        for at in range {
            let (word, bytes) = (&mut self.writers[at / 4], &mut self.byte_writers[at / 4]);
            if *word != MIXED {
                *bytes = [*word; 4];
            }
            bytes[at % 4] = lane;
            *word = if *bytes == [lane; 4] { lane } else { MIXED };
        }
    }

    fn intern(&mut self, history: &History) -> u32 {
        if let Some(number) = self.histories.number(history, NUMBERS_MAX) {
            return number;
        }
        self.forget_histories();
        self.intern(history)
    }

    /// More histories than numbers: forgets them. Races with what was before go unseen, nothing is
    /// reported that is none; bytes in flight keep their history by a second copy.
    fn forget_histories(&mut self) {
        let old = std::mem::replace(&mut self.histories, Histories::new());
        self.renumbered = self.renumbered.wrapping_add(1);
        (self.last_started, self.last_finished) = ((0, UNWRITTEN), [(None, UNWRITTEN); 128]);
        let renew = |shadow: &mut Self, number: u32| match old.get(number).pending {
            Some(pc) => shadow.intern(&History::pending(pc)),
            None => number.min(CLEAN),
        };
        for word in 0..self.words.len() {
            if self.words[word] != SPLIT {
                self.words[word] = renew(self, self.words[word]);
            }
        }
        self.renew_split(renew);
    }

    /// Whether another lane of the warp has written a byte by the same instruction: the lanes have not
    /// met since, and nobody has read it.
    #[inline(always)]
    pub(crate) fn just_written(&self, access: &Access, clocks: &Clocks, offset: usize, lane: u8) -> bool {
        let number = self.number_at(offset);
        let Stamp { agent, pc, .. } = access.stamp;
        let own = |w: &Stamp| (w.agent, w.pc) == (agent, pc) && !clocks.lanes_ordered(agent, w.time);
        number > CLEAN
            && self.writer_at(offset) != lane
            && self.histories.get(number).only_written().is_some_and(own)
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
        match bytes {
            4 if offset.is_multiple_of(4) => self.access_words::<1>(access, clocks, offset, lane),
            8 if offset.is_multiple_of(4) => self.access_words::<2>(access, clocks, offset, lane),
            16 if offset.is_multiple_of(4) => self.access_words::<4>(access, clocks, offset, lane),
            _ => {
                let range = offset as usize..(offset + bytes) as usize;
                self.access_slowly(access, clocks, range.clone(), lane)?;
                if access.stamp.kind == Kind::Write {
                    self.set_writer(range, lane);
                }
                Ok(())
            }
        }
    }

    #[inline(always)]
    fn access_words<const N: usize>(
        &mut self,
        access: &mut Access,
        clocks: &Clocks,
        offset: u32,
        lane: u8,
    ) -> Result<(), Conflict> {
        let words = self.words[offset as usize / 4..].first_chunk_mut::<N>();
        let words = words.expect("the access was checked to lie inside");
        if words.iter().fold(0, |different, word| different | (word ^ access.from)) != 0 {
            self.access_anew::<N>(access, clocks, offset, lane)?;
        } else {
            *words = [access.to; N];
        }
        if access.stamp.kind == Kind::Write
            && let Some(writers) = self.writers[offset as usize / 4..].first_chunk_mut::<N>()
        {
            *writers = [lane; N];
        }
        Ok(())
    }

    /// As `access_slowly`, for words that mostly have one history: what is true of the first is then
    /// true of all.
    #[inline(never)]
    fn access_anew<const N: usize>(
        &mut self,
        access: &mut Access,
        clocks: &Clocks,
        offset: u32,
        lane: u8,
    ) -> Result<(), Conflict> {
        let range = offset as usize..offset as usize + 4 * N;
        let words = &self.words[range.start / 4..range.end / 4];
        let first = words[0];
        if first == SPLIT || words.iter().any(|word| *word != first) {
            return self.access_slowly(access, clocks, range, lane);
        }
        self.look(access, offset);
        if access.from == first {
            self.set(range, access.to);
            return Ok(());
        }
        self.access_slowly(access, clocks, range.start..range.start + 4, lane)?;
        if access.from == first {
            self.set(range, access.to);
            return Ok(());
        }
        self.access_slowly(access, clocks, range.start + 4..range.end, lane)
    }

    #[cold]
    fn access_slowly(
        &mut self,
        access: &mut Access,
        clocks: &Clocks,
        range: Range<usize>,
        lane: u8,
    ) -> Result<(), Conflict> {
        let mut next = range.start;
        while next < range.end {
            let at = next;
            let whole = at.is_multiple_of(4) && range.end - at >= 4 && self.words[at / 4] != SPLIT;
            next += if whole { 4 } else { 1 };
            let (number, renumbered) = (self.number_at(at), self.renumbered);
            if number == access.from {
                self.set(at..next, access.to);
                continue;
            }
            // What another lane of the same instruction has read, or reached with an atomic, is as it
            // will be, unless a look at the writer's lane is needed each time.
            if number == access.to && access.from != NO_NUMBER && access.stamp.kind != Kind::Write {
                continue;
            }
            let writer = self.histories.get(number).writer;
            let step = self.step(number, access, clocks);
            if let Some(conflict) = step.conflict {
                return Err(conflict);
            }
            let other_lane = || access.for_all || (at..next).any(|at| self.writer_at(at) != lane);
            if step.own_lanes && other_lane() {
                return writer.map_or(Ok(()), |writer| Err(Conflict::Race(writer)));
            }
            self.set(at..next, step.to);
            // Lanes that need a look at the writer's lane may not take the short way, nor does it
            // lead anywhere when the number is of before.
            access.own_lanes |= step.own_lanes;
            if !step.own_lanes && renumbered == self.renumbered {
                (access.from, access.to) = (number, step.to);
            } else {
                access.forget_move();
            }
        }
        Ok(())
    }

    fn step(&mut self, number: u32, access: &Access, clocks: &Clocks) -> Move {
        if let Some(step) = self.histories.recall(number, access) {
            return step;
        }
        let step = match self.histories.judge(number, access, clocks) {
            Err(conflict) => Move { to: number, conflict: Some(conflict), own_lanes: false },
            Ok((next, own_lanes)) => {
                let to = match self.histories.number(&next, NUMBERS_MAX) {
                    Some(to) => to,
                    None => {
                        // Numbers are given anew: this one means something else from now on.
                        self.forget_histories();
                        return Move { to: self.intern(&next), conflict: None, own_lanes };
                    }
                };
                Move { to, conflict: None, own_lanes }
            }
        };
        self.histories.learn(number, access, step);
        step
    }

    /// An access of others than a block's own agents that none of those knows to be over.
    pub(crate) fn unordered_from_outside(&self, clocks: &Clocks, own: Range<u16>) -> Option<Stamp> {
        let mut numbers: Vec<u32> = (0..4 * self.words.len()).map(|at| self.number_at(at)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let known = |s: &Stamp| own.clone().any(|agent| clocks.ordered(agent, s.agent, s.time));
        let mut stamps = numbers.iter().flat_map(|number| self.histories.stamps(*number));
        stamps.find(|s| !own.contains(&s.agent) && !known(s)).copied()
    }
}

/// A number after a barrier: copies stay in flight, and split words split.
#[inline(always)]
fn settled(number: u32) -> u32 {
    const { assert!(PENDING as i32 == i32::MIN, "as signed numbers they are less than all others") };
    (number as i32).min(CLEAN as i32) as u32
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
    fn what_was_just_written_is_of_the_same_warp_and_unseen() {
        let written = |scene: &Scene, agent: u16, pc: u32, lane: u8| {
            let access = Access::new(&scene.clocks, agent, Kind::Write, pc);
            scene.shadow.just_written(&access, &scene.clocks, 0, lane)
        };
        let mut scene = Scene::new();
        assert!(!written(&scene, 0, 7, 6), "nothing is");
        scene.go(0, Kind::Write, 0, 4, 5).unwrap();
        assert!(written(&scene, 0, 7, 6));
        assert!(!written(&scene, 0, 7, 5), "by the lane itself");
        assert!(!written(&scene, 0, 8, 6), "by another instruction");
        assert!(!written(&scene, 1, 7, 6), "by another warp");
        let mut object = Released::default();
        scene.clocks.release(0, &mut object);
        assert!(written(&scene, 0, 7, 6), "at another time");
        scene.clocks.acquire(1, &object);
        scene.go(1, Kind::Read, 0, 4, 0).unwrap();
        assert!(!written(&scene, 0, 7, 6), "and read");
        let mut scene = Scene::new();
        scene.go(0, Kind::Write, 0, 4, 5).unwrap();
        scene.clocks.sync_lanes(0);
        assert!(!written(&scene, 0, 7, 6), "before the lanes met");
    }

    #[test]
    fn a_run_is_noted_like_its_lanes() {
        let mut scene = Scene::new();
        let run = |scene: &mut Scene, agent: u16, kind: Kind| {
            let mut access = Access::new(&scene.clocks, agent, kind, 7);
            scene.shadow.access(&mut access, &scene.clocks, 0, 4, 0).unwrap();
            scene.shadow.repeat(&access, 4, 60, 4)
        };
        assert!(run(&mut scene, 0, Kind::Write));
        scene.go(0, Kind::Read, 12, 4, 3).unwrap();
        assert!(matches!(scene.go(0, Kind::Read, 12, 4, 2), Err(Conflict::Race(_))), "of another lane");
        assert!(matches!(scene.go(1, Kind::Read, 60, 4, 15), Err(Conflict::Race(s)) if s.agent == 0));
        let mut scene = Scene::new();
        assert!(run(&mut scene, 0, Kind::Write));
        scene.barrier();
        assert!(run(&mut scene, 1, Kind::Read));
        assert!(matches!(scene.go(0, Kind::Write, 60, 4, 0), Err(Conflict::Race(s)) if s.agent == 1));
        scene.barrier();
        scene.go(2, Kind::Write, 32, 4, 0).unwrap();
        assert!(!run(&mut scene, 1, Kind::Read), "not all have one history");
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
    fn a_conflict_as_numbers_run_out() {
        let full = || {
            let mut scene = Scene::new();
            for _ in 0..NUMBERS_MAX - 2 {
                scene.clocks.sync_lanes(0);
                scene.go(0, Kind::Write, 0, 4, 0).unwrap();
            }
            assert_eq!(scene.shadow.renumbered(), 0);
            scene
        };
        let mut scene = full();
        assert!(matches!(scene.go(0, Kind::Read, 0, 4, 1), Err(Conflict::Race(s)) if s.agent == 0));
        assert_eq!(scene.shadow.renumbered(), 1);
        // One access that goes on with new numbers.
        let mut scene = full();
        let mut access = Access::new(&scene.clocks, 0, Kind::Write, 8);
        for offset in (0..64).step_by(4) {
            access.at(0, scene.shadow.renumbered());
            scene.shadow.access(&mut access, &scene.clocks, offset, 4, 0).unwrap();
            scene.shadow.start_copy(offset, 2, offset + 1);
        }
        assert_eq!(scene.go(0, Kind::Read, 0, 4, 0), Err(Conflict::Pending(1)));
        assert!(matches!(scene.go(1, Kind::Read, 62, 2, 0), Err(Conflict::Race(s)) if s.pc == 8));
    }

    #[test]
    fn bytes_of_a_word_have_their_own_histories() {
        let mut scene = Scene::new();
        scene.go(0, Kind::Write, 0, 4, 0).unwrap();
        scene.go(0, Kind::Write, 4, 2, 0).unwrap();
        assert_eq!(scene.go(0, Kind::Read, 4, 4, 0), Err(Conflict::Uninitialised));
        scene.barrier();
        scene.go(1, Kind::Write, 2, 1, 0).unwrap();
        scene.go(2, Kind::Read, 0, 2, 0).unwrap();
        assert!(matches!(scene.go(2, Kind::Read, 0, 4, 0), Err(Conflict::Race(s)) if s.agent == 1));
        scene.shadow.start_copy(3, 1, 9);
        scene.barrier();
        scene.go(2, Kind::Read, 0, 2, 0).unwrap();
        assert_eq!(scene.go(2, Kind::Read, 0, 4, 0), Err(Conflict::Pending(9)));
        // Numbers that are given anew mean other histories than before, of words and of parts of them.
        scene.shadow.start_copy(8, 4, 10);
        scene.shadow.start_copy(12, 2, 11);
        scene.shadow.start_copy(14, 2, 11);
        scene.shadow.forget_histories();
        assert_eq!(scene.go(2, Kind::Read, 3, 1, 0), Err(Conflict::Pending(9)));
        assert_eq!(scene.go(2, Kind::Read, 8, 4, 0), Err(Conflict::Pending(10)));
        assert_eq!(scene.go(2, Kind::Read, 12, 4, 0), Err(Conflict::Pending(11)));
        scene.go(2, Kind::Read, 0, 2, 0).unwrap();
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
