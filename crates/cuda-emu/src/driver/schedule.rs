//! When work runs. Streams are deferred: work runs when the program waits for something, and then
//! in the order that is worst for a program that forgot a dependency.
//!
//! With seed 0 only what the program waits for runs, in the order of its calls: a missing event
//! wait shows, since nothing else has a reason to run. With another seed some waits run anything
//! that may run, some run everything else first, and calls that enqueue work may run some at once.
//!
//! One thread runs work at a time (`Driver::turn`), without holding the state's lock: other threads
//! can go on enqueuing while a kernel runs.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::abi::Handle;
use super::faults::{Faults, Hang, Instead};
use super::queue::Mark;
use super::report::Report;
use super::state::State;
use super::status::{Answer, Status};
use super::thread;
use super::work::{self, Outcome, Work};
use crate::device::{Device, DeviceConfig};

/// Entries that a stream holds before a call that adds to it waits, as with a real launch queue.
const QUEUE_MAX: usize = 1024;
/// How often somebody who waits for a launch that hangs looks again.
const HANG_LOOK: Duration = Duration::from_millis(2);

/// The driver: one a process.
pub(crate) struct Driver {
    state: Mutex<State>,
    turn: Mutex<()>,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

/// The driver, made with what the environment says unless [`configure`] was called before.
pub(crate) fn driver() -> &'static Driver {
    DRIVER.get_or_init(|| Driver::new(super::options::from_environment(vec![DeviceConfig::default()])))
}

/// Makes the driver with a device of each configuration; false where it was made before.
pub(crate) fn configure(configs: Vec<DeviceConfig>) -> bool {
    let mut made = false;
    DRIVER.get_or_init(|| {
        made = true;
        Driver::new(configs)
    });
    made
}

/// What a wait runs beside what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    /// Nothing.
    Needed,
    /// Whatever comes.
    Any,
    /// Everything else first.
    OthersFirst,
}

/// What a step did.
enum Step {
    /// The goal is reached.
    Reached,
    Ran,
    /// Nothing can run before a launch that hangs is stopped.
    Hangs,
}

/// Work taken for running. Its entries stay in their queue until it has run.
struct Task {
    stream: Handle,
    device: Arc<Device>,
    chain: Vec<Work>,
    /// The nodes that the chain is, where the stream's first entry is a graph.
    nodes: Option<Vec<usize>>,
}

impl Driver {
    fn new(configs: Vec<DeviceConfig>) -> Self {
        Self { state: Mutex::new(State::new(configs)), turn: Mutex::new(()) }
    }

    /// The state.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets work that waits, faults and statistics, when no work runs.
    pub(crate) fn reset(&self) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        state.streams.iter_mut().for_each(|(_, stream)| stream.clear());
        state.bury_streams();
        state.devices.iter_mut().for_each(|shown| shown.faults = Faults::default());
        state.statistics.clear();
    }

    /// The state, for calls that fail once the context is broken.
    pub(crate) fn healthy(&self) -> Answer<MutexGuard<'_, State>> {
        thread::must_not_be_in_host_function()?;
        let state = self.lock();
        if !state.initialised {
            return Err(Status::NotInitialized);
        }
        thread::context()?;
        state.own().faults.check()?;
        Ok(state)
    }

    /// Puts work into a stream of the program, or into the graph that the stream is capturing.
    pub(crate) fn submit(&self, stream: Handle, work: Work) -> Answer {
        let mut state = self.healthy()?;
        let stream = state.stream(stream)?;
        if let Some(capture) = state.capture_of(stream)? {
            return state.capture_work(stream, capture, work);
        }
        state.capture_forbids_legacy(stream)?;
        state.enqueue(stream, work, Vec::new())?;
        drop(state);
        self.after_enqueuing(stream)
    }

    /// Puts work into a stream of the program and waits until it has run.
    pub(crate) fn submit_and_wait(&self, stream: Handle, work: Work) -> Answer {
        let mut state = self.healthy()?;
        let stream = state.stream(stream)?;
        state.capture_forbids(stream)?;
        state.capture_forbids_legacy(stream)?;
        let mark = state.enqueue(stream, work, Vec::new())?;
        drop(state);
        self.wait(&[mark])
    }

    /// Runs some work already, now and then, and some where a queue is full.
    pub(crate) fn after_enqueuing(&self, stream: Handle) -> Answer {
        let mut state = self.lock();
        let own = state.streams.get(stream)?;
        if own.queue.len() > QUEUE_MAX {
            let mark = own.queue.front().map(|entry| Mark { stream, ticket: entry.ticket });
            drop(state);
            return self.wait(&mark.into_iter().collect::<Vec<_>>());
        }
        if state.is_shuffled() && state.random.below(8) == 0 {
            let steps = 1 + state.random.below(4);
            drop(state);
            for _ in 0..steps {
                // A failure sticks: the next call gives it.
                let _ = self.step(None, Policy::Any);
            }
        }
        Ok(())
    }

    /// Runs work until all points are reached.
    pub(crate) fn wait(&self, goal: &[Mark]) -> Answer {
        thread::must_not_be_in_host_function()?;
        let policy = {
            let mut state = self.lock();
            let choice = if state.is_shuffled() { state.random.below(3) } else { 0 };
            [Policy::Needed, Policy::Any, Policy::OthersFirst][choice]
        };
        loop {
            match self.step(Some(goal), policy)? {
                Step::Reached => return Ok(()),
                Step::Ran => {}
                Step::Hangs => std::thread::sleep(HANG_LOOK),
            }
        }
    }

    /// Waits for all work of a context.
    pub(crate) fn wait_for_context(&self, context: Handle) -> Answer {
        let goal = self.lock().streams.ends(context);
        self.wait(&goal)
    }

    /// Runs one piece of what a point needs, and says whether it is reached.
    pub(crate) fn poll(&self, mark: Mark) -> Answer {
        thread::must_not_be_in_host_function()?;
        self.step(Some(&[mark]), Policy::Needed)?;
        let state = self.lock();
        state.own().faults.check()?;
        if state.streams.is_done(mark) { Ok(()) } else { Err(Status::NotReady) }
    }

    /// Runs one piece of work, unless the goal is reached.
    fn step(&self, goal: Option<&[Mark]>, policy: Policy) -> Answer<Step> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        state.stop_hanging();
        state.own().faults.check()?;
        if goal.is_some_and(|goal| goal.iter().all(|mark| state.streams.is_done(*mark))) {
            return Ok(Step::Reached);
        }
        let Some(stream) = state.choose(goal.unwrap_or(&[]), policy) else {
            return Ok(if state.hanging().next().is_some() { Step::Hangs } else { Step::Reached });
        };
        let Some(task) = state.take(stream) else { return Ok(Step::Ran) };
        drop(state);
        let outcome = work::run(&task.device, &task.chain);
        self.lock().finish(&task, outcome);
        Ok(Step::Ran)
    }
}

impl State {
    /// Stops a launch that has hung for as long as it should.
    fn stop_hanging(&mut self) {
        for ordinal in 0..self.devices.len() {
            let hang = &mut self.devices[ordinal].faults.hang;
            if let Some(hang) = hang.take_if(|hang| hang.until <= Instant::now()) {
                self.fail(ordinal, Report::injected(Status::LaunchTimeout, &hang.kernel));
            }
        }
    }

    /// Streams whose launch hangs.
    fn hanging(&self) -> impl Iterator<Item = Handle> {
        self.devices.iter().filter_map(|shown| shown.faults.hang.as_ref().map(|hang| hang.stream))
    }

    /// The stream whose first entry runs next.
    fn choose(&mut self, goal: &[Mark], policy: Policy) -> Option<Handle> {
        let hanging: Vec<Handle> = self.hanging().collect();
        let mut needed = self.streams.needed(goal);
        needed.retain(|stream| !hanging.contains(stream));
        if policy == Policy::Needed {
            return needed.first().copied();
        }
        let runnable = self.streams.iter().map(|(handle, _)| handle);
        let mut runnable: Vec<Handle> =
            runnable.filter(|s| !hanging.contains(s) && self.streams.is_runnable(*s)).collect();
        if policy == Policy::OthersFirst && runnable.iter().any(|stream| !needed.contains(stream)) {
            runnable.retain(|stream| !needed.contains(stream));
        }
        let choice = self.random.below(runnable.len());
        runnable.get(choice).copied()
    }

    /// Takes what runs next in a stream; `None` where an injected failure took its place.
    fn take(&mut self, stream: Handle) -> Option<Task> {
        let shuffled = self.is_shuffled();
        let head = &self.streams.get(stream).ok()?.queue.front()?.work;
        let (chain, nodes) = match head {
            Work::Graph(run) => {
                let nodes = run.next(shuffled.then_some(&mut self.random));
                (run.work(&nodes), Some(nodes))
            }
            _ => (self.programmatic_chain(stream), None),
        };
        let launches = chain.iter().filter_map(Work::launch);
        let kernel = launches.clone().next_back().map(|launch| launch.kernel.name().to_string());
        let ordinal = self.ordinal_of_stream(stream);
        let shown = &mut self.devices[ordinal];
        let Some((kernel, instead)) = kernel.zip(shown.faults.instead_of_launches(launches.count() as u64))
        else {
            return Some(Task { stream, device: shown.device.clone(), chain, nodes });
        };
        match instead {
            Instead::Fail(status) => self.fail(ordinal, Report::injected(status, &kernel)),
            Instead::Hang(duration) => {
                shown.faults.hang = Some(Hang { stream, kernel, until: Instant::now() + duration });
            }
        }
        None
    }

    /// The first entry's work, and the kernels behind it that may start before it has ended.
    fn programmatic_chain(&self, stream: Handle) -> Vec<Work> {
        let mut chain: Vec<Work> = Vec::new();
        let Ok(stream) = self.streams.get(stream) else { return chain };
        for entry in stream.queue.iter().take(work::CHAIN_MAX) {
            let follows = match chain.last() {
                None => true,
                Some(last) => last.launch().is_some() && entry.work.is_programmatic(),
            };
            if !follows || !entry.after.iter().all(|mark| self.streams.is_done(*mark)) {
                break;
            }
            chain.push(entry.work.clone());
        }
        chain
    }

    /// Notes what running a task gave.
    fn finish(&mut self, task: &Task, outcome: Outcome) {
        for (kernel, stats) in outcome.launches {
            let entry = self.statistics.entry(kernel).or_default();
            entry.launches += 1;
            entry.sum.add(&stats);
        }
        if let Some(report) = outcome.failure {
            let ordinal = self.ordinal_of_stream(task.stream);
            return self.fail(ordinal, self.name_owner(ordinal, report));
        }
        let Ok(stream) = self.streams.get_mut(task.stream) else { return };
        let entries = match (&task.nodes, stream.queue.front_mut().map(|entry| &mut entry.work)) {
            (Some(nodes), Some(Work::Graph(run))) => {
                run.finish(nodes);
                usize::from(run.is_done())
            }
            _ => task.chain.len(),
        };
        for _ in 0..entries {
            let Some(entry) = stream.queue.pop_front() else { break };
            stream.completed = entry.ticket;
            if let Work::Record(event) = entry.work
                && let Ok(event) = self.events.get_mut(event)
                && event.mark.is_some_and(|mark| mark.ticket == entry.ticket)
            {
                event.at = Some(Instant::now());
            }
        }
        self.bury_streams();
    }

    /// Breaks the contexts of a device: the error sticks, and no work runs there any more.
    pub(crate) fn fail(&mut self, ordinal: usize, report: Report) {
        self.devices[ordinal].faults.fail(ordinal, report);
        let contexts = &self.contexts;
        let is_there = |context| contexts.get(context).is_ok_and(|context| context.device == ordinal);
        for (_, stream) in self.streams.iter_mut().filter(|(_, stream)| is_there(stream.context)) {
            stream.clear();
        }
        self.bury_streams();
    }
}
