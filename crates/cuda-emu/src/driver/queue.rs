//! Streams as queues of work that has not run, and what each entry waits for.

use std::collections::VecDeque;

use super::abi::Handle;
use super::capture::Branch;
use super::handles::Table;
use super::work::Work;

/// A point in a stream: reached when the stream has run its work up to that ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) stream: Handle,
    pub(crate) ticket: u64,
}

/// An entry of a stream's queue. Tickets grow in the order of the program's calls.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) ticket: u64,
    /// Points of other streams that come before.
    pub(crate) after: Vec<Mark>,
    pub(crate) work: Work,
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) context: Handle,
    /// Ordered with the legacy default stream: not made with `CU_STREAM_NON_BLOCKING`.
    pub(crate) blocking: bool,
    /// It is a context's legacy default stream.
    pub(crate) legacy: bool,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) queue: VecDeque<Queued>,
    /// The ticket of the last entry that ran.
    pub(crate) completed: u64,
    /// The ticket of the last entry.
    pub(crate) last: u64,
    /// Its part in a capture.
    pub(crate) capture: Option<Branch>,
    /// The program destroyed it; it lives until its queue is empty.
    pub(crate) destroyed: bool,
}

impl Stream {
    /// An empty stream.
    pub(crate) fn new(context: Handle, flags: u32, priority: i32) -> Self {
        Self {
            context,
            blocking: flags & 1 == 0,
            legacy: false,
            flags,
            priority,
            queue: VecDeque::new(),
            completed: 0,
            last: 0,
            capture: None,
            destroyed: false,
        }
    }

    /// Whether all its work has run.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Forgets work that did not run.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.completed = self.last;
    }
}

impl Table<Stream> {
    /// Whether the point is reached. Streams that are gone have run everything.
    pub(crate) fn is_done(&self, mark: Mark) -> bool {
        !self.get(mark.stream).is_ok_and(|stream| stream.completed < mark.ticket)
    }

    /// The end of a stream's work as it is now.
    pub(crate) fn end(&self, stream: Handle) -> Option<Mark> {
        let ticket = self.get(stream).ok()?.last;
        Some(Mark { stream, ticket }).filter(|mark| !self.is_done(*mark))
    }

    /// The ends of all streams of a context.
    pub(crate) fn ends(&self, context: Handle) -> Vec<Mark> {
        self.ends_where(|_, stream| stream.context == context)
    }

    fn ends_where(&self, wanted: impl Fn(Handle, &Stream) -> bool) -> Vec<Mark> {
        let streams = self.iter().filter(|(handle, stream)| wanted(*handle, stream));
        streams.filter_map(|(handle, _)| self.end(handle)).collect()
    }

    /// What the legacy default stream's rules put before new work in a stream: in the legacy stream
    /// the work of all blocking streams, in a blocking stream the work of the legacy one.
    pub(crate) fn implicit_dependencies(&self, stream: Handle) -> Vec<Mark> {
        let Ok(own) = self.get(stream) else { return Vec::new() };
        if !own.blocking {
            return Vec::new();
        }
        self.ends_where(|handle, other| {
            handle != stream && other.context == own.context && other.blocking && (own.legacy || other.legacy)
        })
    }

    /// Whether a stream's first entry may run: everything that it waits for has.
    pub(crate) fn is_runnable(&self, stream: Handle) -> bool {
        let head = self.get(stream).ok().and_then(|stream| stream.queue.front());
        head.is_some_and(|entry| entry.after.iter().all(|mark| self.is_done(*mark)))
    }

    /// Streams whose work these points need, as far as it can run now; the oldest work first.
    pub(crate) fn needed(&self, goal: &[Mark]) -> Vec<Handle> {
        let mut open: Vec<Mark> = goal.iter().copied().filter(|mark| !self.is_done(*mark)).collect();
        let mut seen = Vec::new();
        let mut runnable = Vec::new();
        while let Some(mark) = open.pop() {
            if seen.contains(&mark.stream) {
                continue;
            }
            seen.push(mark.stream);
            let Some(head) = self.get(mark.stream).ok().and_then(|stream| stream.queue.front()) else {
                continue;
            };
            let before = head.after.iter().copied().filter(|mark| !self.is_done(*mark));
            let waits = open.len();
            open.extend(before);
            if open.len() == waits {
                runnable.push((head.ticket, mark.stream));
            }
        }
        runnable.sort_unstable();
        runnable.into_iter().map(|(_, stream)| stream).collect()
    }
}
