//! The shadow of a block's shared memory: of each byte, who wrote and read it, and so whether an
//! access races with an earlier one, reads what nothing wrote, or what a copy has yet to bring.
//!
//! Bytes with the same history share its number: a byte's entry is that number with the epoch that
//! it is of. An instruction usually moves all its bytes from one history to one other, so that the
//! check is a comparison and a store of numbers. In later epochs (after a barrier of all threads)
//! the same moves come again and are remembered.

use std::ops::Range;

use super::clocks::Clocks;
pub(crate) use super::history::{Access, Conflict, Kind, Stamp};
use super::history::{CLEAN, Histories, History, Move, UNWRITTEN};

/// Bits of an entry that hold the history's number; the epoch is above.
const NUMBER_BITS: u32 = 18;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;
const EPOCH_MAX: u32 = (1 << (32 - NUMBER_BITS)) - 1;

/// The shadow of a block's shared memory.
#[derive(Debug)]
pub(crate) struct Shadow {
    entries: Vec<u32>,
    /// Of each byte, the lane that wrote it last.
    lanes: Vec<u8>,
    epoch: u32,
    histories: Histories,
    /// How often histories were given numbers anew.
    renumbered: u32,
    /// Histories that copies gave last: what was asked for, its number.
    last_started: (u32, u32),
    last_finished: (Option<Stamp>, u32),
}

impl Shadow {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            entries: vec![0; bytes],
            lanes: vec![0; bytes],
            epoch: 0,
            histories: Histories::new(),
            renumbered: 0,
            last_started: (0, UNWRITTEN),
            last_finished: (None, UNWRITTEN),
        }
    }

    /// How often histories were given numbers anew, for [`Access::at`].
    #[inline(always)]
    pub(crate) fn renumbered(&self) -> u32 {
        self.renumbered
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

    /// The number of an entry's history as it is in this epoch.
    fn number(&self, entry: u32) -> u32 {
        let number = entry & NUMBER_MASK;
        if entry >> NUMBER_BITS == self.epoch
            || number <= CLEAN
            || self.histories.get(number).pending.is_some()
        {
            return number;
        }
        CLEAN
    }

    fn entry(&self, number: u32) -> u32 {
        self.epoch << NUMBER_BITS | number
    }

    fn intern(&mut self, history: &History) -> u32 {
        if let Some(number) = self.histories.number(history, NUMBER_MASK as usize + 1) {
            return number;
        }
        self.forget_histories();
        self.intern(history)
    }

    /// More histories than numbers: forgets them. Races with what was before go unseen, nothing is
    /// reported that is none; bytes under way keep their history by a second copy.
    fn forget_histories(&mut self) {
        let numbers = self.entries.iter().map(|entry| self.number(*entry));
        let kept: Vec<_> =
            numbers.map(|number| (number.min(CLEAN), self.histories.get(number).pending)).collect();
        self.histories = Histories::new();
        self.renumbered = self.renumbered.wrapping_add(1);
        (self.last_started, self.last_finished) = ((0, UNWRITTEN), (None, UNWRITTEN));
        for (at, (number, pending)) in kept.into_iter().enumerate() {
            let number = pending.map_or(number, |pc| self.intern(&History::pending(pc)));
            self.entries[at] = self.entry(number);
        }
    }

    /// Whether another lane of the same instruction has just written a byte.
    #[inline(always)]
    pub(crate) fn just_written(&self, offset: usize, lane: u8, pc: u32) -> bool {
        let entry = self.entries[offset];
        let own = || self.histories.get(entry & NUMBER_MASK).writer.is_some_and(|w| w.pc == pc);
        entry >> NUMBER_BITS == self.epoch
            && entry & NUMBER_MASK > CLEAN
            && self.lanes[offset] != lane
            && own()
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
            4 => self.access_of::<4>(access, clocks, offset, lane),
            16 => self.access_of::<16>(access, clocks, offset, lane),
            8 => self.access_of::<8>(access, clocks, offset, lane),
            2 => self.access_of::<2>(access, clocks, offset, lane),
            1 => self.access_of::<1>(access, clocks, offset, lane),
            _ => {
                self.access_slowly(access, clocks, offset, bytes, lane)?;
                if access.stamp.kind == Kind::Write {
                    self.lanes[offset as usize..(offset + bytes) as usize].fill(lane);
                }
                Ok(())
            }
        }
    }

    #[inline(always)]
    fn access_of<const N: usize>(
        &mut self,
        access: &mut Access,
        clocks: &Clocks,
        offset: u32,
        lane: u8,
    ) -> Result<(), Conflict> {
        if differs::<N>(&self.entries, offset, access.from) {
            self.access_slowly(access, clocks, offset, N as u32, lane)?;
        } else {
            fill::<N, _>(&mut self.entries, offset, access.to);
        }
        if access.stamp.kind == Kind::Write {
            fill::<N, _>(&mut self.lanes, offset, lane);
        }
        Ok(())
    }

    /// Notes the same access as before to the bytes that follow, `each` by the next lanes after
    /// lane 0, if they have the history that it met last; gives false, and notes nothing, if not.
    #[inline(always)]
    pub(crate) fn repeat(&mut self, access: &Access, offset: u32, bytes: u32, each: u32) -> bool {
        let range = offset as usize..(offset + bytes) as usize;
        let entries = &mut self.entries[range.clone()];
        let mut different = 0;
        for entry in entries.iter() {
            different |= entry ^ access.from;
        }
        if different != 0 {
            return false;
        }
        entries.fill(access.to);
        if access.stamp.kind == Kind::Write {
            for (lane, bytes) in (1..).zip(self.lanes[range].chunks_exact_mut(each as usize)) {
                bytes.fill(lane);
            }
        }
        true
    }

    /// Whether the same access by other lanes to the same bytes is as it was by the first.
    pub(crate) fn is_for_all_lanes(access: &Access) -> bool {
        access.stamp.kind == Kind::Read && !access.own_lanes
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
            // What another lane of the same instruction has read, or reached with an atomic, is as it
            // will be, unless a look at the writer's lane is needed each time.
            if entry == access.to && access.from != u32::MAX && access.stamp.kind != Kind::Write {
                continue;
            }
            let (number, renumbered) = (self.number(entry), self.renumbered);
            let writer = self.histories.get(number).writer;
            let step = self.step(number, access, clocks);
            if let Some(conflict) = step.conflict {
                return Err(conflict);
            }
            if step.own_lanes && (self.lanes[at] != lane || access.for_all) {
                return writer.map_or(Ok(()), |writer| Err(Conflict::Race(writer)));
            }
            self.entries[at] = self.entry(step.to);
            // Lanes that need a look at the writer's lane may not take the short way, nor does it
            // lead anywhere when the entry's number is of before.
            access.own_lanes |= step.own_lanes;
            let again = !step.own_lanes && renumbered == self.renumbered;
            (access.from, access.to) = if again { (entry, self.entry(step.to)) } else { (u32::MAX, 0) };
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
                let to = match self.histories.number(&next, NUMBER_MASK as usize + 1) {
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
        let mut numbers: Vec<u32> = self.entries.iter().map(|entry| self.number(*entry)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let known = |s: &Stamp| own.clone().any(|agent| clocks.ordered(agent, s.agent, s.time));
        let mut stamps = numbers.iter().flat_map(|number| self.histories.stamps(*number));
        stamps.find(|s| !own.contains(&s.agent) && !known(s)).copied()
    }

    /// Bytes that an asynchronous copy, started at `pc`, will write: until then they are nobody's.
    #[inline(always)]
    pub(crate) fn start_copy(&mut self, offset: u32, bytes: u32, pc: u32) {
        if self.last_started.0 != pc || self.last_started.1 == UNWRITTEN {
            let number = self.intern(&History::pending(pc));
            self.last_started = (pc, number);
        }
        let entry = self.entry(self.last_started.1);
        self.entries[offset as usize..(offset + bytes) as usize].fill(entry);
    }

    /// A copy has written its bytes: they count as written by that access.
    #[inline(always)]
    pub(crate) fn finish_copy(&mut self, offset: u32, bytes: u32, by: &Access, lane: u8) {
        let writer = Stamp { kind: Kind::Write, ..by.stamp };
        if self.last_finished.0 != Some(writer) {
            let number = self.intern(&History::written(writer));
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
fn fill<const N: usize, T: Copy>(entries: &mut [T], offset: u32, to: T) {
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
            for _ in 0..=NUMBER_MASK - 2 {
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
