//! Which warp's accesses are ordered before which other's: vector clocks of a cluster's warps.
//!
//! Time is one counter for all warps, and it moves at synchronisation only. A warp's clock says, of
//! each agent (a warp, or a block's copy engine), up to which time its accesses come before all
//! that the warp does now. A barrier of all threads starts a new epoch instead: everything before
//! it is ordered, so that clocks and time begin anew.

use std::collections::HashMap;

/// A synchronisation object's clock: what was released into it. The object is a barrier, an mbarrier,
/// or the value of a flag.
#[derive(Clone, Debug, Default)]
pub(crate) struct Released {
    times: Vec<u32>,
    /// As the agents' own; empty without proxy fences.
    fenced: Vec<u32>,
    id: u64,
}

#[derive(Clone, Debug, Default)]
struct AgentClock {
    times: Vec<u32>,
    /// Up to when the warp's own lanes are ordered among themselves.
    lanes: u32,
    /// Of each agent, up to when its writes are before a proxy fence that is before all that the warp
    /// does now, whoever ran it. Empty without proxy fences.
    fenced: Vec<u32>,
    /// Names the content of this clock: equal ids are equal clocks, also in different epochs.
    id: u64,
}

/// Bytes that strong accesses reach.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flag {
    /// What who reads the value that it has may learn.
    value: Released,
    /// What agents released into it last: what they write there later hands it on too.
    last: HashMap<u16, Released>,
}

/// What flags and fences do together, of a warp.
#[derive(Clone, Debug, Default)]
struct Fences {
    /// What was before the last fence: relaxed writes release it.
    before: Released,
    /// What relaxed reads have met since: the next fence acquires it.
    met: Released,
}

/// The clocks of a cluster.
#[derive(Debug)]
pub(crate) struct Clocks {
    agents: Vec<AgentClock>,
    /// Of each agent; empty until a warp needs its own.
    fences: Vec<Fences>,
    time: u32,
    /// How often all threads have met, of all blocks that had these clocks.
    epoch: u32,
    /// Of each agent, when it ran its last fence that releases: epoch and time. Empty until one did.
    last_fences: Vec<(u32, u32)>,
}

impl Released {
    /// Nothing is released any more.
    pub(crate) fn clear(&mut self) {
        self.times.clear();
        self.fenced.clear();
        self.id = 0;
    }

    /// What was released into another object is released into this one too.
    fn add(&mut self, other: &Self) {
        let more = raise(&mut self.times, &other.times) | raise(&mut self.fenced, &other.fenced);
        self.id = if more { mix(self.id, other.id) } else { self.id };
    }
}

fn mix(id: u64, with: u64) -> u64 {
    let x = (id ^ with.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^ x >> 29
}

/// Raises times to others, and says whether any was less; there may be none yet.
fn raise(times: &mut Vec<u32>, to: &[u32]) -> bool {
    times.resize(times.len().max(to.len()), 0);
    times.iter_mut().zip(to).fold(false, |raised, (time, to)| {
        let less = *time < *to;
        *time = (*time).max(*to);
        raised | less
    })
}

impl Clocks {
    pub(crate) fn new(agents: usize) -> Self {
        let clock = AgentClock { times: vec![0; agents], ..AgentClock::default() };
        Self { agents: vec![clock; agents], fences: Vec::new(), time: 1, epoch: 1, last_fences: Vec::new() }
    }

    pub(crate) fn time(&self) -> u32 {
        self.time
    }

    /// How often all threads have met.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Of each agent, up to when its accesses come before what `agent` does now; up to when they come before
    /// its last fence since all threads met; and when each ran its own last fence.
    pub(crate) fn until_now(&self, agent: u16) -> (Vec<u32>, Vec<u32>, Vec<(u32, u32)>) {
        let mut times = self.agents[usize::from(agent)].times.clone();
        times[usize::from(agent)] = self.time;
        let fenced = self.fences.get(usize::from(agent)).map(|fences| fences.before.times.clone());
        (times, fenced.unwrap_or_default(), self.last_fences.clone())
    }

    /// Name of an agent's clock.
    pub(crate) fn id(&self, agent: u16) -> u64 {
        self.agents[agent as usize].id
    }

    /// Whether what `earlier` did at `time` comes before what `agent` does now. An agent's own
    /// accesses do; those of its other lanes are another question ([`Clocks::lanes_ordered`]).
    pub(crate) fn ordered(&self, agent: u16, earlier: u16, time: u32) -> bool {
        agent == earlier || self.agents[agent as usize].times[earlier as usize] >= time
    }

    /// Whether accesses of all lanes of a warp at `time` come before what the warp does now.
    pub(crate) fn lanes_ordered(&self, agent: u16, time: u32) -> bool {
        self.agents[agent as usize].lanes >= time
    }

    /// Whether a proxy fence stands between a write and what `agent` does now.
    pub(crate) fn fenced(&self, agent: u16, writer: u16, time: u32) -> bool {
        self.agents[agent as usize].fenced.get(writer as usize).is_some_and(|until| *until >= time)
    }

    /// All threads have met: a new epoch.
    pub(crate) fn restart(&mut self) {
        self.time = 1;
        self.epoch = self.epoch.wrapping_add(1);
        self.fences.clear();
        for agent in &mut self.agents {
            agent.times.fill(0);
            agent.fenced.clear();
            (agent.lanes, agent.id) = (0, 0);
        }
    }

    /// `agent`'s accesses until now go into an object.
    pub(crate) fn release(&mut self, agent: u16, into: &mut Released) {
        let clock = &self.agents[agent as usize];
        into.times.resize(self.agents.len(), 0);
        raise(&mut into.times, &clock.times);
        raise(&mut into.fenced, &clock.fenced);
        into.times[agent as usize] = self.time;
        into.id = mix(mix(into.id, clock.id), u64::from(agent) << 32 | u64::from(self.time));
        self.time += 1;
    }

    /// What was released into an object comes before what `agent` does from now on.
    pub(crate) fn acquire(&mut self, agent: u16, from: &Released) {
        if from.times.is_empty() {
            return;
        }
        let clock = &mut self.agents[agent as usize];
        let more = raise(&mut clock.times, &from.times) | raise(&mut clock.fenced, &from.fenced);
        // A warp that polls learns the same again and again.
        if !more && clock.lanes >= from.times[agent as usize] {
            return;
        }
        // A barrier that the warp took part in orders its lanes too.
        clock.lanes = clock.lanes.max(from.times[agent as usize]);
        clock.id = mix(clock.id, from.id);
    }

    fn fences(&mut self, agent: u16) -> &mut Fences {
        if self.fences.is_empty() {
            self.fences.resize_with(self.agents.len(), Fences::default);
        }
        &mut self.fences[agent as usize]
    }

    /// A warp has run a fence: relaxed reads before one that acquires do so, and relaxed writes after one that
    /// releases.
    pub(crate) fn fence(&mut self, agent: u16, acquires: bool, releases: bool) {
        if acquires {
            let met = std::mem::take(&mut self.fences(agent).met);
            self.acquire(agent, &met);
        }
        if releases {
            let mut before = std::mem::take(&mut self.fences(agent).before);
            before.clear();
            self.last_fences.resize(self.agents.len(), (0, 0));
            self.last_fences[usize::from(agent)] = (self.epoch, self.time);
            self.release(agent, &mut before);
            self.fences(agent).before = before;
        }
    }

    /// A warp has written a flag: all that it did until now, or until its last fence, or its last release
    /// into this flag, goes into it. What it held before stays only if an atomic made its value of that.
    pub(crate) fn write_flag(&mut self, agent: u16, releases: bool, atomic: bool, flag: &mut Flag) {
        // Who reads this value learns nothing of the one before, unless an atomic made the one of the other.
        if !atomic {
            flag.value.clear();
        }
        if releases {
            self.release(agent, flag.last.entry(agent).or_default());
        } else {
            flag.value.add(&self.fences(agent).before);
        }
        if let Some(last) = flag.last.get(&agent) {
            flag.value.add(last);
        }
    }

    /// A warp has read a flag: what went into it comes before what it does now, or from its next fence on.
    pub(crate) fn read_flag(&mut self, agent: u16, acquires: bool, flag: &Flag) {
        if acquires {
            self.acquire(agent, &flag.value);
        } else {
            self.fences(agent).met.add(&flag.value);
        }
    }

    /// What comes later is of a later time; gives the time until now.
    pub(crate) fn tick(&mut self) -> u32 {
        self.time += 1;
        self.time - 1
    }

    /// What `other` did up to a time comes before what `agent` does from now on.
    pub(crate) fn wait_for(&mut self, agent: u16, other: u16, time: u32) {
        let clock = &mut self.agents[agent as usize];
        let known = &mut clock.times[other as usize];
        *known = time.max(*known);
        clock.id = mix(clock.id, u64::from(other) << 32 | u64::from(time) | 1 << 42);
    }

    /// A warp's lanes have met.
    pub(crate) fn sync_lanes(&mut self, agent: u16) {
        let time = self.time;
        let clock = &mut self.agents[agent as usize];
        clock.lanes = time;
        clock.id = mix(clock.id, u64::from(time) | 1 << 40);
        self.time += 1;
    }

    /// A warp has run a proxy fence.
    pub(crate) fn fence_proxy(&mut self, agent: u16) {
        let time = self.time;
        let clock = &mut self.agents[agent as usize];
        clock.fenced.clone_from(&clock.times);
        clock.fenced[agent as usize] = time;
        self.time += 1;
        clock.id = mix(clock.id, u64::from(time) | 1 << 41);
    }
}
