//! Stream capture: work becomes nodes of a graph instead of running, forks and joins follow events,
//! and what is not allowed meanwhile gives the error that the manual names and spoils the capture.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::ThreadId;

use super::abi::Handle;
use super::graph::{Graph, GraphMemory, Node};
use super::state::State;
use super::status::{Answer, Status};
use super::thread;
use super::work::Work;

/// `CU_STREAM_CAPTURE_MODE_…`
const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;

/// A capture that goes on.
#[derive(Debug)]
pub(crate) struct Capture {
    origin: Handle,
    mode: u32,
    thread: ThreadId,
    pub(crate) nodes: Vec<Node>,
    pub(crate) memory: Arc<GraphMemory>,
    /// Something was done that is not allowed: the end will give no graph.
    spoiled: bool,
}

/// A stream's part in a capture: its next node comes after these.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    pub(crate) capture: Handle,
    pub(crate) tail: Vec<usize>,
}

impl State {
    /// Starts a capture.
    pub(crate) fn capture_begin(&mut self, stream: Handle, mode: u32) -> Answer {
        if mode > RELAXED {
            return Err(Status::InvalidValue);
        }
        let own = self.streams.get(stream)?;
        if own.legacy {
            return Err(Status::CaptureUnsupported);
        }
        if own.capture.is_some() {
            return Err(Status::IllegalState);
        }
        let memory = Arc::new(GraphMemory::new(self.own().device.memory().clone()));
        let thread = std::thread::current().id();
        let capture = Capture { origin: stream, mode, thread, nodes: Vec::new(), memory, spoiled: false };
        let capture = self.captures.add(&mut self.handles, capture);
        self.streams.get_mut(stream)?.capture = Some(Branch { capture, tail: Vec::new() });
        Ok(())
    }

    /// The capture that a stream takes part in, if any.
    ///
    /// # Errors
    /// The capture is spoiled.
    pub(crate) fn capture_of(&self, stream: Handle) -> Answer<Option<Handle>> {
        let Some(branch) = &self.streams.get(stream)?.capture else { return Ok(None) };
        if self.captures.get(branch.capture)?.spoiled {
            return Err(Status::CaptureInvalidated);
        }
        Ok(Some(branch.capture))
    }

    /// `CUstreamCaptureStatus`, and the capture's identity.
    pub(crate) fn capture_status(&self, stream: Handle) -> Answer<(u32, u64)> {
        let capture = self.streams.get(stream)?.capture.as_ref().map(|branch| branch.capture as u64);
        Ok(match self.capture_of(stream) {
            Ok(None) => (0, 0),
            Ok(Some(capture)) => (1, capture as u64),
            Err(_) => (2, capture.unwrap_or(0)),
        })
    }

    /// Adds a node after the stream's last ones.
    pub(crate) fn capture_work(&mut self, stream: Handle, capture: Handle, work: Work) -> Answer {
        let branch = self.streams.get_mut(stream)?.capture.as_mut().ok_or(Status::IllegalState)?;
        let capture = self.captures.get_mut(capture)?;
        let after = std::mem::replace(&mut branch.tail, vec![capture.nodes.len()]);
        capture.nodes.push(Node { handle: self.handles.fresh(), work, after });
        Ok(())
    }

    /// Adds a graph's nodes after the stream's last ones.
    pub(crate) fn capture_graph(&mut self, stream: Handle, capture: Handle, graph: &Graph) -> Answer {
        let branch = self.streams.get_mut(stream)?.capture.as_mut().ok_or(Status::IllegalState)?;
        let capture = self.captures.get_mut(capture)?;
        let first = capture.nodes.len();
        for node in &graph.nodes {
            let mut after: Vec<usize> = node.after.iter().map(|index| index + first).collect();
            if after.is_empty() {
                after.clone_from(&branch.tail);
            }
            capture.nodes.push(Node { handle: self.handles.fresh(), work: node.work.clone(), after });
        }
        if !graph.nodes.is_empty() {
            branch.tail = Graph::leaves(&graph.nodes).iter().map(|index| index + first).collect();
        }
        Ok(())
    }

    /// Lets a stream wait for a point of a capture: it joins the capture, if it was not in it.
    pub(crate) fn capture_wait(&mut self, stream: Handle, point: &Branch) -> Answer {
        let own = self.capture_of(stream)?;
        if self.captures.get(point.capture).is_err() {
            // The capture has ended: there is nothing to wait for, and the driver calls that invalid.
            return Err(Status::InvalidValue);
        }
        match own {
            Some(own) if own != point.capture => {
                self.capture_spoil(own);
                self.capture_spoil(point.capture);
                return Err(Status::CaptureMerge);
            }
            None if self.streams.get(stream)?.legacy => {
                self.capture_spoil(point.capture);
                return Err(Status::CaptureImplicit);
            }
            _ => {}
        }
        let fork = Branch { capture: point.capture, tail: Vec::new() };
        let branch = self.streams.get_mut(stream)?.capture.get_or_insert(fork);
        let joined: BTreeSet<usize> = branch.tail.iter().chain(&point.tail).copied().collect();
        branch.tail = joined.into_iter().collect();
        Ok(())
    }

    /// Notes that something was done in a capture that is not allowed.
    pub(crate) fn capture_spoil(&mut self, capture: Handle) {
        if let Ok(capture) = self.captures.get_mut(capture) {
            capture.spoiled = true;
        }
    }

    /// Fails, and spoils the capture, if the stream takes part in one: its work cannot be waited for.
    pub(crate) fn capture_forbids(&mut self, stream: Handle) -> Answer {
        match self.capture_of(stream)? {
            None => Ok(()),
            Some(capture) => {
                self.capture_spoil(capture);
                Err(Status::CaptureUnsupported)
            }
        }
    }

    /// Fails for waits on a whole context while one of its streams is capturing.
    pub(crate) fn capture_forbids_context(&mut self, context: Handle) -> Answer {
        let streams = self.streams.iter().filter(|(_, s)| s.context == context && s.capture.is_some());
        let streams: Vec<Handle> = streams.map(|(handle, _)| handle).collect();
        let mut result = Ok(());
        for stream in streams {
            result = result.and(self.capture_forbids(stream));
        }
        result
    }

    /// Fails for work in the legacy stream while a stream that it waits for is capturing.
    pub(crate) fn capture_forbids_legacy(&mut self, stream: Handle) -> Answer {
        let own = self.streams.get(stream)?;
        if !own.legacy {
            return Ok(());
        }
        let context = own.context;
        let branches = self.streams.iter().filter(|(_, s)| s.context == context && s.blocking);
        let captures: Vec<Handle> = branches.filter_map(|(_, s)| Some(s.capture.as_ref()?.capture)).collect();
        captures.iter().for_each(|capture| self.capture_spoil(*capture));
        if captures.is_empty() { Ok(()) } else { Err(Status::CaptureImplicit) }
    }

    /// Fails for a call that the manual names potentially unsafe while capturing, such as a
    /// synchronous allocation: by the modes of the captures and of the calling thread.
    pub(crate) fn capture_forbids_unsafe_call(&mut self) -> Answer {
        let (own_mode, own_thread) = (thread::capture_mode(), std::thread::current().id());
        if own_mode == RELAXED {
            return Ok(());
        }
        let mut result = Ok(());
        for (_, capture) in self.captures.iter_mut() {
            let here = capture.thread == own_thread && capture.mode != RELAXED;
            let anywhere = capture.mode == GLOBAL && own_mode == GLOBAL;
            if here || anywhere {
                capture.spoiled = true;
                result = Err(Status::CaptureUnsupported);
            }
        }
        result
    }

    /// Ends a capture; gives the graph's handle.
    pub(crate) fn capture_end(&mut self, stream: Handle) -> Answer<Handle> {
        let branch = self.streams.get(stream)?.capture.clone().ok_or(Status::IllegalState)?;
        let capture = self.captures.get(branch.capture)?;
        if capture.origin != stream {
            self.capture_spoil(branch.capture);
            return Err(Status::CaptureUnmatched);
        }
        if capture.mode != RELAXED && capture.thread != std::thread::current().id() {
            return Err(Status::CaptureWrongThread);
        }
        let capture = self.captures.remove(branch.capture)?;
        for (_, stream) in self.streams.iter_mut() {
            stream.capture.take_if(|other| other.capture == branch.capture);
        }
        if capture.spoiled {
            return Err(Status::CaptureInvalidated);
        }
        if !Graph::all_lead_to(&capture.nodes, &branch.tail) {
            return Err(Status::CaptureUnjoined);
        }
        let graph = Graph { nodes: capture.nodes, memory: capture.memory };
        Ok(self.graphs.add(&mut self.handles, graph))
    }
}
