//! Results that blocks hand to each other through global memory: plain writes, then an arrival at a counter, an
//! atomic or another strong access; who sees the arrival reads them. What the arrival does not come after, by
//! barriers and a fence, is a race.
//!
//! Only that is looked for: a word of whose writer's cluster the reader's has seen an arrival. Clusters that have
//! seen nothing of each other may have ways of their own, or race unseen.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::clocks::Clocks;

/// Arrivals at one counter after which a launch is no longer watched: looking at them all takes too long.
const ARRIVALS_MAX: usize = 1 << 12;

/// The same for all counters together.
const COUNT_MAX: u64 = 1 << 16;

/// Who accessed a word, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visit {
    /// The cluster's number in the launch.
    pub(crate) cluster: u64,
    pub(crate) block: [u32; 3],
    pub(crate) warp: u32,
    pub(crate) agent: u16,
    pub(crate) pc: u32,
    epoch: u32,
    time: u32,
}

/// An arrival: what comes before it.
#[derive(Debug)]
struct Arrival {
    /// Arrivals are numbered as they come.
    number: u64,
    agent: u16,
    epoch: u32,
    /// Of each agent, up to when it is before the arrival.
    times: Vec<u32>,
    /// The same for the arriving warp's last fence, if that was since the last barrier of all threads; and
    /// of each agent, when it ran its own last fence.
    fenced: Vec<u32>,
    fences: Vec<(u32, u32)>,
    /// It is a fence by itself.
    releases: bool,
}

/// By cluster, the last arrival of each of its warps.
type Arrived = HashMap<u64, Vec<Arc<Arrival>>>;

/// What is missing between a visit and the arrival that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unordered {
    pub(crate) earlier: Visit,
    /// It was a write, which is read or written; or else a read.
    pub(crate) written: bool,
    /// Barriers order it; there is no fence.
    pub(crate) fence: bool,
}

/// What the threads of the host share in a launch.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    count: u64,
    counters: HashMap<u64, Arrived>,
    /// By cluster, the arrivals that it has seen.
    seen: HashMap<u64, Arrived>,
    /// By word: who wrote it last, and who read it last of those that had seen arrivals.
    writers: HashMap<u64, Visit>,
    readers: HashMap<u64, Visit>,
    /// Regions that were written.
    regions: HashSet<Option<usize>>,
    /// There is too much to look at.
    off: bool,
}

impl Visit {
    pub(crate) fn new(
        clocks: &Clocks,
        (cluster, block, warp): (u64, [u32; 3], u32),
        agent: u16,
        pc: u32,
    ) -> Visit {
        Visit { cluster, block, warp, agent, pc, epoch: clocks.epoch(), time: clocks.time() }
    }
}

impl Arrival {
    /// Whether a visit of this cluster's comes before the arrival, by barriers.
    fn follows(&self, visit: &Visit) -> bool {
        visit.epoch < self.epoch || self.epoch == visit.epoch && self.reaches(visit.agent, visit.time)
    }

    fn reaches(&self, agent: u16, time: u32) -> bool {
        self.times.get(usize::from(agent)).is_some_and(|until| *until >= time)
    }

    /// Whether a fence stands between: the arrival itself, one of the arriving warp, or one of the visitor that
    /// is before the arrival.
    fn is_fenced_from(&self, visit: &Visit) -> bool {
        let at = usize::from(visit.agent);
        let own = match self.fenced.get(at) {
            _ if self.fenced.is_empty() => false,
            _ if visit.epoch < self.epoch => true,
            until => until.is_some_and(|until| *until >= visit.time),
        };
        let theirs = self.fences.get(at).is_some_and(|&(epoch, time)| {
            (epoch, time) >= (visit.epoch, visit.time)
                && (epoch < self.epoch || epoch == self.epoch && self.reaches(visit.agent, time))
        });
        // A warp's fence after a barrier of all threads is after what was before that.
        let arriving = self.fences.get(usize::from(self.agent));
        let later = arriving.is_some_and(|&(epoch, _)| epoch > visit.epoch);
        self.releases || own || theirs || later
    }
}

fn add(to: &mut Arrived, cluster: u64, arrival: &Arc<Arrival>) {
    let arrivals = to.entry(cluster).or_default();
    match arrivals.iter_mut().find(|other| other.agent == arrival.agent) {
        Some(other) if other.number < arrival.number => *other = Arc::clone(arrival),
        Some(_) => {}
        None => arrivals.push(Arc::clone(arrival)),
    }
}

fn add_all(to: &mut Arrived, from: &Arrived) {
    for (cluster, arrivals) in from {
        arrivals.iter().for_each(|arrival| add(to, *cluster, arrival));
    }
}

impl Arrivals {
    /// A warp has read a counter: its cluster has seen what arrived there.
    pub(crate) fn see(&mut self, cluster: u64, counter: u64) {
        if let Some(arrived) = self.counters.get(&counter) {
            add_all(self.seen.entry(cluster).or_default(), arrived);
        }
    }

    /// A warp arrives at a counter, with all that its cluster has seen.
    pub(crate) fn arrive(
        &mut self,
        clocks: &mut Clocks,
        cluster: u64,
        agent: u16,
        counter: u64,
        releases: bool,
    ) {
        if self.off {
            return;
        }
        self.count += 1;
        if self.count > COUNT_MAX {
            *self = Arrivals { off: true, ..Arrivals::default() };
            return;
        }
        let (times, fenced, fences) = clocks.until_now(agent);
        let arrival = Arc::new(Arrival {
            number: self.count,
            agent,
            epoch: clocks.epoch(),
            times,
            fenced,
            fences,
            releases,
        });
        clocks.tick();
        let arrived = self.counters.entry(counter).or_default();
        if let Some(seen) = self.seen.get(&cluster) {
            add_all(arrived, seen);
        }
        add(arrived, cluster, &arrival);
        if arrived.len() > ARRIVALS_MAX {
            *self = Arrivals { off: true, ..Arrivals::default() };
        }
    }

    /// A plain read of a word by someone.
    pub(crate) fn read(&mut self, region: Option<usize>, word: u64, by: &Visit) -> Result<(), Unordered> {
        // Of memory that this launch does not write nothing can be wrong.
        if !self.regions.contains(&region) || !self.seen.contains_key(&by.cluster) {
            return Ok(());
        }
        self.check(self.writers.get(&word), by, true)?;
        self.readers.insert(word, *by);
        Ok(())
    }

    /// A plain write of a word by someone.
    pub(crate) fn write(&mut self, region: Option<usize>, word: u64, by: &Visit) -> Result<(), Unordered> {
        if self.off {
            return Ok(());
        }
        self.regions.insert(region);
        self.check(self.writers.get(&word), by, true)?;
        self.check_reader(word, by)?;
        self.writers.insert(word, *by);
        Ok(())
    }

    fn check(&self, earlier: Option<&Visit>, by: &Visit, written: bool) -> Result<(), Unordered> {
        let Some(&earlier) = earlier.filter(|earlier| earlier.cluster != by.cluster) else { return Ok(()) };
        let arrivals = self.seen.get(&by.cluster).and_then(|seen| seen.get(&earlier.cluster));
        let Some(arrivals) = arrivals else { return Ok(()) };
        let ordered = |arrival: &&Arc<Arrival>| arrival.follows(&earlier);
        let fence = arrivals.iter().any(|arrival| ordered(&arrival));
        if arrivals.iter().filter(ordered).any(|arrival| arrival.is_fenced_from(&earlier)) {
            return Ok(());
        }
        Err(Unordered { earlier, written, fence })
    }

    /// Who has read the word had seen an arrival of the writer's cluster already: the write comes too late,
    /// unless the writer has seen an arrival that comes after the read.
    fn check_reader(&self, word: u64, by: &Visit) -> Result<(), Unordered> {
        let Some(&reader) = self.readers.get(&word).filter(|reader| reader.cluster != by.cluster) else {
            return Ok(());
        };
        let seen = |by: u64, of: u64| self.seen.get(&by).and_then(|seen| seen.get(&of));
        let told = seen(by.cluster, reader.cluster)
            .is_some_and(|arrivals| arrivals.iter().any(|arrival| arrival.follows(&reader)));
        if told || seen(reader.cluster, by.cluster).is_none() {
            return Ok(());
        }
        Err(Unordered { earlier: reader, written: false, fence: false })
    }
}
