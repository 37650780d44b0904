//! Streams, their waits, and capture.

use std::ffi::{c_int, c_uint, c_void};

use super::context::PRIORITY_HIGHEST;
use crate::driver::abi::{Handle, HostFunction, Out, entry_points};
use crate::driver::queue::Stream;
use crate::driver::schedule::driver;
use crate::driver::status::{Answer, Status};
use crate::driver::thread;
use crate::driver::work::{HostCall, Work};

fn create(handle: &Out<Handle>, flags: c_uint, priority: c_int) -> Answer {
    let mut state = driver().healthy()?;
    if flags > 1 {
        return Err(Status::InvalidValue);
    }
    let stream = Stream::new(thread::context()?, flags, priority.clamp(PRIORITY_HIGHEST, 0));
    let state = &mut *state;
    handle.set(state.streams.add(&mut state.handles, stream))
}

/// `cuStreamGetCaptureInfo_v2`, whose graph and dependencies are not offered while capturing.
fn capture_info(
    stream: Handle,
    status: &Out<c_uint>,
    id: &Out<u64>,
    graph: &Out<Handle>,
    count: &Out<usize>,
) -> Answer {
    let mut state = driver().healthy()?;
    let stream = state.stream(stream)?;
    let (now, capture) = state.capture_status(stream)?;
    status.set(now)?;
    id.set_if_wanted(capture);
    graph.set_if_wanted(0);
    let tail = state.streams.get(stream)?.capture.as_ref().map_or(0, |branch| branch.tail.len());
    count.set_if_wanted(tail);
    Ok(())
}

entry_points! {
    fn cuStreamCreate(stream: Out<Handle>, flags: c_uint) {
        create(&stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: c_uint, priority: c_int) {
        create(&stream, flags, priority)
    }

    /// The stream's work still runs, when something needs it.
    fn cuStreamDestroy_v2(stream: Handle) {
        let mut state = driver().lock();
        let stream = state.stream(stream)?;
        let inner = state.streams.get_mut(stream)?;
        if inner.legacy {
            return Err(Status::InvalidHandle);
        }
        inner.destroyed = true;
        if let Some(branch) = inner.capture.take() {
            state.capture_spoil(branch.capture);
        }
        state.bury_streams();
        state.own().faults.check()
    }

    fn cuStreamSynchronize(stream: Handle) {
        let mut state = driver().healthy()?;
        let stream = state.stream(stream)?;
        state.capture_forbids(stream)?;
        state.capture_forbids_legacy(stream)?;
        let mut goal: Vec<_> = state.streams.end(stream).into_iter().collect();
        // Waiting for the legacy stream waits for what its next entry would wait for.
        if state.streams.get(stream)?.legacy {
            goal.extend(state.streams.implicit_dependencies(stream));
        }
        drop(state);
        driver().wait(&goal)
    }

    fn cuStreamQuery(stream: Handle) {
        let mut state = driver().healthy()?;
        let stream = state.stream(stream)?;
        state.capture_forbids(stream)?;
        let Some(end) = state.streams.end(stream) else { return Ok(()) };
        drop(state);
        driver().poll(end)
    }

    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) {
        let mut state = driver().healthy()?;
        let stream = state.stream(stream)?;
        let event = state.events.get(event)?;
        let (mark, captured) = (event.mark, event.captured.clone());
        if let Some(point) = captured {
            return state.capture_wait(stream, &point);
        }
        let Some(mark) = mark else {
            // Never recorded: there is nothing to wait for.
            return state.capture_of(stream).map(|_| ());
        };
        if let Some(capture) = state.capture_of(stream)? {
            state.capture_spoil(capture);
            return Err(Status::CaptureIsolation);
        }
        state.capture_forbids_legacy(stream)?;
        state.enqueue(stream, Work::Join, vec![mark])?;
        drop(state);
        driver().after_enqueuing(stream)
    }

    fn cuStreamGetPriority(stream: Handle, priority: Out<c_int>) {
        let mut state = driver().healthy()?;
        let stream = state.stream(stream)?;
        priority.set(state.streams.get(stream)?.priority)
    }

    fn cuStreamGetFlags(stream: Handle, flags: Out<c_uint>) {
        let mut state = driver().healthy()?;
        let stream = state.stream(stream)?;
        flags.set(state.streams.get(stream)?.flags)
    }

    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) {
        let mut state = driver().healthy()?;
        let stream = state.stream(stream)?;
        context.set(state.streams.get(stream)?.context)
    }

    /// Managed memory is always attached to everything.
    fn cuStreamAttachMemAsync(stream: Handle, _address: u64, _bytes: usize, _flags: c_uint) {
        driver().submit(stream, Work::Join)
    }

    fn cuLaunchHostFunc(stream: Handle, function: HostFunction, data: *mut c_void) {
        let function = function.ok_or(Status::InvalidValue)?;
        driver().submit(stream, Work::Call(HostCall { function, data: data as usize }))
    }

    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_uint) {
        let mut state = driver().healthy()?;
        let stream = state.stream(stream)?;
        state.capture_begin(stream, mode)
    }

    fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) {
        let mut state = driver().healthy()?;
        graph.set(0)?;
        let stream = state.stream(stream)?;
        graph.set(state.capture_end(stream)?)
    }

    fn cuStreamIsCapturing(stream: Handle, status: Out<c_uint>) {
        let mut state = driver().healthy()?;
        let stream = state.stream(stream)?;
        status.set(state.capture_status(stream)?.0)
    }

    fn cuStreamGetCaptureInfo_v2(
        stream: Handle,
        status: Out<c_uint>,
        id: Out<u64>,
        graph: Out<Handle>,
        _dependencies: Out<usize>,
        count: Out<usize>,
    ) {
        capture_info(stream, &status, &id, &graph, &count)
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: Handle,
        status: Out<c_uint>,
        id: Out<u64>,
        graph: Out<Handle>,
        _dependencies: Out<usize>,
        _edges: Out<usize>,
        count: Out<usize>,
    ) {
        capture_info(stream, &status, &id, &graph, &count)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<c_uint>) {
        let wanted = mode.get()?;
        if wanted > 2 {
            return Err(Status::InvalidValue);
        }
        mode.set(thread::exchange_capture_mode(wanted))
    }
}
