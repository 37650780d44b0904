//! The shadow against a model of it: each byte has a list of what happened to it, and warps know up to
//! which step others' accesses come before their own. No numbers of histories, no words, nothing is
//! remembered of what was judged.

use super::{Access, Clocks, Conflict, Kind, Shadow};
use crate::memory::clocks::Flag;
use crate::random::Random;

const BYTES: usize = 512;
const AGENTS: usize = 4;
/// Few, as in a loop: histories come again.
const PCS: usize = 5;

#[derive(Clone, Copy, Debug)]
struct Event {
    agent: u16,
    lane: u8,
    kind: Kind,
    pc: u32,
    step: u32,
}

impl Event {
    fn strong(&self) -> bool {
        matches!(self.kind, Kind::StrongRead | Kind::StrongWrite | Kind::Atomic)
    }

    fn reads(&self) -> bool {
        !matches!(self.kind, Kind::Write | Kind::StrongWrite)
    }

    fn writes(&self) -> bool {
        !matches!(self.kind, Kind::Read | Kind::StrongRead)
    }
}

#[derive(Clone, Debug, Default)]
struct Byte {
    written: bool,
    pending: Option<u32>,
    /// The last plain write and all that came after it, in that order, but for what [`Model::note`] forgets.
    events: Vec<Event>,
}

/// What must be reported: of a race, any of these earlier accesses.
#[derive(Debug)]
enum Wrong {
    Uninitialised,
    Pending(u32),
    Race(Vec<Event>),
}

impl Wrong {
    fn is(&self, found: Conflict) -> bool {
        match (self, found) {
            (Wrong::Uninitialised, Conflict::Uninitialised) => true,
            (Wrong::Pending(pc), Conflict::Pending(found)) => *pc == found,
            (Wrong::Race(earlier), Conflict::Race(s)) => {
                earlier.iter().any(|e| (e.agent, e.kind, e.pc) == (s.agent, s.kind, s.pc))
            }
            _ => false,
        }
    }
}

#[derive(Clone)]
struct Model {
    bytes: Vec<Byte>,
    step: u32,
    /// Of each warp, up to which step each other's accesses come before what it does now; of itself,
    /// those of all of its lanes.
    known: [[u32; AGENTS]; AGENTS],
    /// Of each warp, what its last fence found, and what it has met since.
    fences: [([u32; AGENTS], [u32; AGENTS]); AGENTS],
    /// Of the flag, what who reads its value may learn, and what each warp released into it last.
    flag: ([u32; AGENTS], [[u32; AGENTS]; AGENTS]),
}

fn raise(known: &mut [u32; AGENTS], to: [u32; AGENTS]) {
    known.iter_mut().zip(to).for_each(|(known, to)| *known = (*known).max(to));
}

/// An instruction: who, how, and what its lanes access.
#[derive(Clone, Debug)]
struct Instruction {
    agent: u16,
    kind: Kind,
    pc: u32,
    /// It is made for all lanes together; it starts a copy.
    for_all: bool,
    of_copy: bool,
    form: Form,
    bytes: usize,
    mask: u32,
    offsets: [u64; 32],
}

/// By which of the shadow's functions.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// `access_lanes`
    Lanes,
    /// `access` and `repeat`
    Run,
    /// `access` by each lane
    Each,
}

impl Instruction {
    fn lanes(&self) -> impl Iterator<Item = (usize, usize)> {
        let lanes = (0..32).filter(|lane| self.mask >> lane & 1 != 0);
        lanes.map(|lane| (lane, self.offsets[lane] as usize))
    }
}

impl Model {
    fn new() -> Self {
        Self {
            bytes: vec![Byte::default(); BYTES],
            step: 0,
            known: [[0; AGENTS]; AGENTS],
            fences: Default::default(),
            flag: Default::default(),
        }
    }

    fn wrong(&self, at: usize, now: Event, for_all: bool) -> Option<Wrong> {
        let byte = &self.bytes[at];
        if let Some(pc) = byte.pending {
            return Some(Wrong::Pending(pc));
        }
        if now.reads() && !byte.written {
            return Some(Wrong::Uninitialised);
        }
        let known = self.known[now.agent as usize];
        let after = |e: &&Event| known[e.agent as usize] >= e.step;
        // By a strong read of its value, or of one that atomics made of it.
        let met = |n: usize| {
            let mut later = byte.events[n..].iter().skip(1).take_while(|e| e.kind != Kind::StrongWrite);
            later.any(|e| e.strong() && e.reads() && (e.agent == now.agent || after(&e)))
        };
        let others = byte.events.iter().enumerate().filter(|(_, e)| e.agent != now.agent && !after(e));
        let others = others.filter(|(_, e)| e.writes() || now.writes());
        let others = others.filter(|(_, e)| !(e.strong() && now.strong()));
        let others = others.filter(|(n, e)| !(e.strong() && e.writes() && met(*n)));
        let mut earlier: Vec<Event> = others.map(|(_, e)| *e).collect();
        // Lanes of one warp: what another of them wrote.
        if now.kind != Kind::Atomic && earlier.is_empty() {
            let own = |e: &&Event| e.agent == now.agent && e.kind == Kind::Write;
            let another = |e: &&Event| for_all || e.lane != now.lane;
            earlier.extend(byte.events.iter().filter(own).filter(|e| !after(e)).filter(another));
        }
        (!earlier.is_empty()).then_some(Wrong::Race(earlier))
    }

    /// An atomic takes the place of earlier strong writes, a strong store that of all but the last one by another
    /// warp, a strong read that of its warp's.
    fn note(&mut self, at: usize, now: Event, of_copy: bool) {
        let byte = &mut self.bytes[at];
        if now.kind == Kind::Write {
            byte.events.clear();
        } else if now.kind == Kind::StrongRead {
            byte.events.retain(|e| (e.agent, e.kind) != (now.agent, now.kind));
        } else if now.strong() {
            let other = |e: &Event| e.strong() && e.writes() && e.agent != now.agent;
            let keep = byte.events.iter().rposition(other).filter(|_| now.kind == Kind::StrongWrite);
            let mut n = 0;
            byte.events.retain(|e| {
                n += 1;
                !(e.strong() && e.writes()) || Some(n - 1) == keep
            });
        }
        byte.written = true;
        if of_copy {
            byte.pending = Some(now.pc);
        } else {
            byte.events.push(now);
        }
    }

    fn event(&self, i: &Instruction, lane: usize) -> Event {
        Event { agent: i.agent, lane: lane as u8, kind: i.kind, pc: i.pc, step: self.step }
    }

    fn run(&mut self, i: &Instruction) -> Result<(), (usize, Wrong)> {
        self.step += 1;
        for (lane, offset) in i.lanes() {
            let now = self.event(i, lane);
            for at in offset..offset + i.bytes {
                match self.wrong(at, now, i.for_all) {
                    Some(wrong) => return Err((lane, wrong)),
                    None => self.note(at, now, i.of_copy),
                }
            }
        }
        Ok(())
    }

    fn finish(&mut self, i: &Instruction) {
        self.step += 1;
        for (lane, offset) in i.lanes() {
            for at in offset..offset + i.bytes {
                self.bytes[at].pending = None;
                let now = self.event(i, lane);
                self.note(at, now, false);
            }
        }
    }

    fn forget(&mut self) {
        self.bytes.iter_mut().for_each(|byte| byte.events.clear());
    }

    fn barrier(&mut self) {
        self.forget();
        (self.fences, self.flag) = Default::default();
    }

    /// What a warp knows, with all that it has done.
    fn all_of(&self, agent: usize) -> [u32; AGENTS] {
        let mut known = self.known[agent];
        known[agent] = self.step;
        known
    }

    fn fence(&mut self, agent: usize, acquires: bool, releases: bool) {
        if acquires {
            raise(&mut self.known[agent], std::mem::take(&mut self.fences[agent].1));
        }
        if releases {
            self.fences[agent].0 = self.all_of(agent);
        }
    }

    fn write_flag(&mut self, agent: usize, releases: bool, atomic: bool) {
        let all = self.all_of(agent);
        let (value, last) = &mut self.flag;
        if !atomic {
            *value = [0; AGENTS];
        }
        if releases {
            last[agent] = all;
        } else {
            raise(value, self.fences[agent].0);
        }
        raise(value, last[agent]);
    }

    fn read_flag(&mut self, agent: usize, acquires: bool) {
        let known = if acquires { &mut self.known[agent] } else { &mut self.fences[agent].1 };
        raise(known, self.flag.0);
    }
}

/// The shadow and its model.
struct Pair {
    random: Random,
    shadow: Shadow,
    clocks: Clocks,
    model: Model,
    /// Copies in flight.
    copies: Vec<Instruction>,
    flag: Flag,
    /// Where the last instruction was, and by whom: the next is often there too.
    last: (u16, usize),
}

impl Pair {
    fn new(seed: u64) -> Self {
        let (shadow, clocks) = (Shadow::new(BYTES), Clocks::new(AGENTS));
        Self {
            random: Random::new(seed),
            shadow,
            clocks,
            model: Model::new(),
            copies: Vec::new(),
            flag: Flag::default(),
            last: (0, 0),
        }
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.random.below(one_in) == 0
    }

    /// One of so many slots, often where the last instruction was.
    fn slot(&mut self, slots: usize, bytes: usize) -> usize {
        if self.chance(2) { self.last.1 / bytes } else { self.random.below(slots) }
    }

    /// Of lanes that follow each other, at some distance, or all at one place.
    fn offsets(&mut self, bytes: usize) -> [u64; 32] {
        let slots = BYTES / bytes;
        let start = self.slot(slots, bytes);
        let stride = [1, 1, 3, 2 * self.random.below(slots) + 1, 0][self.random.below(5)];
        std::array::from_fn(|lane| ((start + lane * stride) % slots * bytes) as u64)
    }

    fn mask(&mut self) -> u32 {
        let bits = self.random.below(1 << 32) as u32;
        match self.random.below(4) {
            0 => u32::MAX,
            1 => u32::MAX >> (bits % 32),
            2 => 1 << (bits % 32),
            _ => bits.max(1),
        }
    }

    fn instruction(&mut self) -> Instruction {
        let strong = [Kind::StrongRead, Kind::StrongWrite, Kind::Atomic][self.random.below(3)];
        let kinds = [Kind::Read, Kind::Read, Kind::Write, Kind::Write, strong, strong];
        let kind = kinds[self.random.below(kinds.len())];
        let form = [Form::Lanes, Form::Lanes, Form::Each, Form::Run][self.random.below(4)];
        let mut i = Instruction {
            agent: if self.chance(2) { self.last.0 } else { self.random.below(AGENTS) as u16 },
            kind,
            pc: self.random.below(PCS) as u32,
            for_all: false,
            of_copy: false,
            form,
            bytes: 1 << self.random.below(5),
            mask: self.mask(),
            offsets: [0; 32],
        };
        match form {
            Form::Lanes => {
                i.kind = [Kind::Read, Kind::Write][self.random.below(2)];
                i.bytes = 4 << self.random.below(3);
                i.of_copy = i.kind == Kind::Write;
                i.for_all = !i.of_copy && self.chance(2);
                i.offsets = self.offsets(i.bytes);
            }
            Form::Run => {
                (i.mask, i.bytes) = (u32::MAX, i.bytes.min(8));
                let first = self.slot(BYTES / i.bytes, i.bytes).min(BYTES / i.bytes - 32);
                i.offsets = std::array::from_fn(|lane| ((first + lane) * i.bytes) as u64);
            }
            Form::Each => i.offsets = self.offsets(i.bytes),
        }
        self.last = (i.agent, i.offsets[0] as usize);
        i
    }

    fn access(&self, i: &Instruction) -> Access {
        let access = Access::new(&self.clocks, i.agent, i.kind, i.pc);
        let access = if i.for_all { access.for_all() } else { access };
        if i.of_copy { access.of_copy() } else { access }
    }

    /// Runs an instruction in the shadow.
    fn shadow_run(&mut self, i: &Instruction) -> Result<(), (usize, Conflict)> {
        let mut access = self.access(i);
        let Self { shadow, clocks, .. } = self;
        let offsets = i.offsets.map(|offset| offset as u32);
        match (i.form, i.bytes) {
            (Form::Lanes, 4) => return shadow.access_lanes::<1>(&mut access, clocks, &offsets, i.mask),
            (Form::Lanes, 8) => return shadow.access_lanes::<2>(&mut access, clocks, &offsets, i.mask),
            (Form::Lanes, _) => return shadow.access_lanes::<4>(&mut access, clocks, &offsets, i.mask),
            _ => {}
        }
        let bytes = i.bytes as u32;
        for (lane, offset) in i.lanes() {
            shadow
                .access(&mut access, clocks, offset as u32, bytes, lane as u8)
                .map_err(|conflict| (lane, conflict))?;
            let (next, left) = (offset as u32 + bytes, 31 * bytes);
            if i.form == Form::Run && lane == 0 && shadow.repeat(&access, next, left, bytes) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Runs an instruction in both; whether it went well.
    fn run(&mut self, i: &Instruction) -> bool {
        let expected = self.model.run(i);
        let found = self.shadow_run(i);
        match (&expected, found) {
            (Ok(()), Ok(())) => true,
            (Err((lane, wrong)), Err((found_lane, found))) if *lane == found_lane && wrong.is(found) => false,
            _ => panic!("{i:?}: {found:?} instead of {expected:?}"),
        }
    }

    /// Some lanes' copies come.
    fn finish(&mut self) {
        if self.copies.is_empty() {
            return;
        }
        let n = self.random.below(self.copies.len());
        let lanes = if self.chance(2) { u32::MAX } else { self.mask() };
        let copy = &mut self.copies[n];
        let coming = Instruction { mask: copy.mask & lanes, ..copy.clone() };
        copy.mask &= !lanes;
        if copy.mask == 0 {
            self.copies.remove(n);
        }
        let by = Access::new(&self.clocks, coming.agent, Kind::Write, coming.pc);
        let offsets = coming.offsets.map(|offset| offset as u32);
        match coming.bytes {
            4 => self.shadow.finish_copies::<1>(&offsets, coming.mask, &by),
            8 => self.shadow.finish_copies::<2>(&offsets, coming.mask, &by),
            _ => self.shadow.finish_copies::<4>(&offsets, coming.mask, &by),
        }
        self.model.finish(&coming);
    }

    /// Warps meet, alone or together, or hand over what they know.
    fn synchronise(&mut self) {
        let agent = self.random.below(AGENTS);
        let one_of_two = self.chance(2);
        let Self { model, clocks, flag, .. } = self;
        match self.random.below(10) {
            0 => {
                clocks.restart();
                self.shadow.next_epoch();
                model.barrier();
                *flag = Flag::default();
            }
            1 => {
                clocks.sync_lanes(agent as u16);
                model.known[agent][agent] = model.step;
            }
            2..=5 => {
                let (releases, atomic) = (self.random.below(2) == 0, one_of_two);
                clocks.write_flag(agent as u16, releases, atomic, flag);
                model.write_flag(agent, releases, atomic);
            }
            6 | 7 => {
                clocks.read_flag(agent as u16, one_of_two, flag);
                model.read_flag(agent, one_of_two);
            }
            8 => {
                let (acquires, releases) = [(true, false), (false, true), (true, true)][self.random.below(3)];
                clocks.fence(agent as u16, acquires, releases);
                model.fence(agent, acquires, releases);
            }
            _ if self.chance(4) => {
                // Races with what was before go unseen.
                self.shadow.forget_histories();
                self.model.forget();
            }
            _ => {}
        }
    }

    /// A byte by one lane of some warp: that changes nothing where it is wrong, so that all goes on.
    fn touch(&mut self, at: usize) {
        let mut i = self.instruction();
        (i.form, i.bytes, i.mask) = (Form::Each, 1, 1 << self.random.below(32));
        (i.for_all, i.of_copy, i.offsets) = (false, false, [at as u64; 32]);
        self.run(&i);
    }

    /// A new block, by the same warps.
    fn restart(&mut self) {
        self.shadow.restart();
        self.clocks.restart();
        self.model = Model::new();
        self.copies.clear();
        self.flag = Flag::default();
    }

    /// Blocks one after another: a wrong instruction ends one, most of those are left out.
    fn scene(&mut self) {
        for _ in 0..200 {
            match self.random.below(12) {
                0 | 1 => self.synchronise(),
                2 => self.finish(),
                3 | 4 => {
                    let at = self.slot(BYTES, 1) + self.random.below(4);
                    self.touch(at % BYTES);
                }
                5 if self.chance(8) => self.restart(),
                _ => {
                    let i = self.instruction();
                    if self.model.clone().run(&i).is_err() && !self.chance(6) {
                        continue;
                    }
                    if !self.run(&i) {
                        self.restart();
                    } else if i.of_copy {
                        self.copies.push(i);
                    }
                }
            }
        }
        (0..BYTES).for_each(|at| self.touch(at));
    }
}

#[test]
fn reports_are_those_of_a_model() {
    let scenes = if cfg!(miri) { 4 } else { 3000 };
    for seed in 0..scenes {
        Pair::new(seed).scene();
    }
}
