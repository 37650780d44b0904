//! Everything that the driver knows, behind one lock: the devices, the tables of objects, the work
//! that waits. What runs work is `schedule`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Instant;

use super::abi::Handle;
use super::capture::{Branch, Capture};
use super::devices::Shown;
use super::function::Function;
use super::graph::{Graph, GraphExec};
use super::handles::{Handles, Table};
use super::host::Pinned;
use super::image::LoadedModule;
use super::pool::Pool;
use super::queue::{Mark, Queued, Stream};
use super::status::{Answer, Status};
use super::work::Work;
use crate::arch::Arch;
use crate::device::DeviceConfig;
use crate::memory::MemoryError;
use crate::module::Module;
use crate::random::Random;
use crate::stats::LaunchStats;

/// The handle that C gives for the legacy default stream, and its other name.
const LEGACY: [Handle; 2] = [0, 1];
/// The handle that C gives for the default stream of the calling thread.
const PER_THREAD: Handle = 2;

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    /// The index of its device.
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) cache_config: u32,
    pub(crate) limits: BTreeMap<u32, usize>,
    legacy: Handle,
    per_thread: HashMap<ThreadId, Handle>,
}

/// An event.
#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) context: Handle,
    /// `CU_EVENT_DISABLE_TIMING` is not set.
    pub(crate) timed: bool,
    /// What it was recorded after, outside of captures.
    pub(crate) mark: Option<Mark>,
    /// When the mark was reached.
    pub(crate) at: Option<Instant>,
    /// What it was recorded after, inside of a capture.
    pub(crate) captured: Option<Branch>,
}

/// What a kernel's launches did together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelStats {
    /// Launches that ran to their end.
    pub launches: u64,
    /// Their sum.
    pub sum: LaunchStats,
}

/// The driver's state.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) initialised: bool,
    /// At least one.
    pub(crate) devices: Vec<Shown>,
    pub(crate) handles: Handles,
    pub(crate) contexts: Table<Context>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) modules: Table<LoadedModule>,
    pub(crate) functions: Table<Function>,
    /// The last module without variables, its architecture and text: programs load the same one again and
    /// again, one context after the other.
    pub(crate) decoded: Option<(Arch, String, Module)>,
    pub(crate) captures: Table<Capture>,
    pub(crate) graphs: Table<Graph>,
    pub(crate) graph_execs: Table<GraphExec>,
    pub(crate) pools: Table<Pool>,
    pub(crate) pinned: BTreeMap<usize, Pinned>,
    pub(crate) statistics: BTreeMap<String, KernelStats>,
    pub(crate) random: Random,
    ticket: u64,
}

impl State {
    /// A driver that nobody has called, with a device of each configuration.
    pub(crate) fn new(configs: Vec<DeviceConfig>) -> Self {
        let random = Random::new(configs.first().map_or(0, |config| config.seed));
        let mut handles = Handles::new();
        let mut pools = Table::default();
        let mut show =
            |(ordinal, config)| Shown::new(ordinal, config, pools.add(&mut handles, Pool::default()));
        let devices = configs.into_iter().enumerate().map(&mut show).collect();
        Self {
            initialised: false,
            devices,
            handles,
            contexts: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            decoded: None,
            captures: Table::default(),
            graphs: Table::default(),
            graph_execs: Table::default(),
            pools,
            pinned: BTreeMap::new(),
            statistics: BTreeMap::new(),
            random,
            ticket: 0,
        }
    }

    /// Starts the adversary's choices, and the order of warps, anew from a seed.
    pub(crate) fn set_seed(&mut self, seed: u64) {
        for shown in &mut self.devices {
            let config = DeviceConfig { seed, ..shown.device.config().clone() };
            shown.device = Arc::new(shown.device.with_config(config));
        }
        self.random = Random::new(seed);
    }

    /// Whether the adversary makes choices: seed 0 keeps to the order of the program's calls.
    pub(crate) fn is_shuffled(&self) -> bool {
        self.devices[0].device.config().seed != 0
    }

    /// A context of a device, with its default stream.
    pub(crate) fn add_context(&mut self, device: usize, flags: u32) -> Handle {
        let context = Context {
            device,
            flags,
            cache_config: 0,
            limits: BTreeMap::from([(0, 1024), (1, 1 << 20), (2, 8 << 20), (5, 128)]),
            legacy: 0,
            per_thread: HashMap::new(),
        };
        let handle = self.contexts.add(&mut self.handles, context);
        let stream = Stream { legacy: true, ..Stream::new(handle, 0, 0) };
        let legacy = self.streams.add(&mut self.handles, stream);
        if let Ok(context) = self.contexts.get_mut(handle) {
            context.legacy = legacy;
        }
        handle
    }

    /// The stream that a handle of the program means.
    pub(crate) fn stream(&mut self, handle: Handle) -> Answer<Handle> {
        let context = super::thread::context()?;
        if LEGACY.contains(&handle) {
            return Ok(self.contexts.get(context).map_err(|_| Status::InvalidContext)?.legacy);
        }
        if handle == PER_THREAD {
            let thread = std::thread::current().id();
            let known = self.contexts.get(context)?.per_thread.get(&thread).copied();
            return match known {
                Some(stream) => Ok(stream),
                None => {
                    let stream = self.streams.add(&mut self.handles, Stream::new(context, 0, 0));
                    self.contexts.get_mut(context)?.per_thread.insert(thread, stream);
                    Ok(stream)
                }
            };
        }
        // A context's own default stream has no handle that the program may use.
        match self.streams.get(handle)? {
            stream if stream.legacy || stream.destroyed => Err(Status::InvalidHandle),
            _ => Ok(handle),
        }
    }

    /// Puts work at a stream's end; it runs after everything that stream rules and `after` demand.
    pub(crate) fn enqueue(&mut self, stream: Handle, work: Work, after: Vec<Mark>) -> Answer<Mark> {
        let mut after: Vec<Mark> = after.into_iter().filter(|mark| !self.streams.is_done(*mark)).collect();
        after.extend(self.streams.implicit_dependencies(stream));
        self.ticket += 1;
        let ticket = self.ticket;
        let own = self.streams.get_mut(stream)?;
        own.last = ticket;
        own.queue.push_back(Queued { ticket, after, work });
        Ok(Mark { stream, ticket })
    }

    /// Removes destroyed streams that have run everything.
    pub(crate) fn bury_streams(&mut self) {
        self.streams.retain(|stream| !(stream.destroyed && stream.is_idle()));
    }

    /// Counts an allocation that the program asks for.
    ///
    /// # Errors
    /// A test wants it to fail.
    pub(crate) fn count_allocation(&mut self, bytes: usize) -> Answer {
        if self.own_mut().faults.allocation_fails() {
            eprintln!("[cuda-emu] CUDA_ERROR_OUT_OF_MEMORY: injected at an allocation of {bytes} bytes");
            return Err(Status::OutOfMemory);
        }
        Ok(())
    }

    /// Allocates device memory.
    pub(crate) fn allocate(&self, bytes: u64) -> Answer<u64> {
        self.own().device.memory().alloc(bytes).map_err(|error| match error {
            MemoryError::OutOfMemory { .. } => Status::OutOfMemory,
            _ => Status::InvalidValue,
        })
    }

    /// Whether so many bytes at an address lie in one live allocation.
    pub(crate) fn check_range(&self, address: u64, bytes: u64) -> Answer {
        let inside =
            self.own().device.memory().allocation_at(address).is_some_and(|(base, length)| {
                address.checked_add(bytes).is_some_and(|end| end <= base + length)
            });
        if inside || bytes == 0 { Ok(()) } else { Err(self.not_own_memory(address)) }
    }
}
