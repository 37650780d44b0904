//! An access to shared memory: who makes it, how, and what it did to the bytes that it met last.

use super::clocks::Clocks;
use super::history::NO_NUMBER;

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

    pub(super) fn writes(self) -> bool {
        !matches!(self, Kind::Read | Kind::StrongRead)
    }

    pub(super) fn reads(self) -> bool {
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
    pub(crate) pc: u32,
}

impl Stamp {
    pub(super) fn strong_write(&self) -> bool {
        self.kind.strong() && self.kind.writes()
    }
}

/// An access by a warp instruction, and the last move between states that it made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(super) stamp: Stamp,
    /// Whose clock counts: the agent's, or for a copy engine that of the warp that started it.
    pub(super) by: u16,
    /// Part of the keys of its moves: both agents, the kind, and of which sort it is. Put together as it is made,
    /// not from fields that have just been written one by one.
    pub(super) who: u32,
    pub(super) clock: u64,
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
        let stamp = Stamp { agent, kind, proxy: false, time: clocks.time(), pc };
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
