//! Events.

use std::ffi::c_uint;

use crate::driver::abi::{Handle, Out, entry_points};
use crate::driver::queue::Mark;
use crate::driver::schedule::driver;
use crate::driver::state::Event;
use crate::driver::status::{Answer, Status};
use crate::driver::thread;
use crate::driver::work::Work;

/// `CU_EVENT_DISABLE_TIMING`
const DISABLE_TIMING: c_uint = 2;

fn record(event: Handle, stream: Handle) -> Answer {
    let mut state = driver().healthy()?;
    let stream = state.stream(stream)?;
    let context = state.streams.get(stream)?.context;
    if state.events.get(event)?.context != context {
        return Err(Status::InvalidHandle);
    }
    if state.capture_of(stream)?.is_some() {
        let branch = state.streams.get(stream)?.capture.clone();
        state.events.get_mut(event)?.captured = branch;
        return Ok(());
    }
    state.capture_forbids_legacy(stream)?;
    let mark = state.enqueue(stream, Work::Record(event), Vec::new())?;
    let inner = state.events.get_mut(event)?;
    (inner.mark, inner.at, inner.captured) = (Some(mark), None, None);
    drop(state);
    driver().after_enqueuing(stream)
}

/// The point that a wait for an event waits for, if it was recorded.
fn point(event: Handle) -> Answer<Option<Mark>> {
    let state = driver().healthy()?;
    let event = state.events.get(event)?;
    if event.captured.is_some() { Err(Status::CapturedEvent) } else { Ok(event.mark) }
}

fn elapsed(milliseconds: &Out<f32>, start: Handle, end: Handle) -> Answer {
    let state = driver().healthy()?;
    let (start, end) = (state.events.get(start)?, state.events.get(end)?);
    if start.captured.is_some() || end.captured.is_some() {
        return Err(Status::CapturedEvent);
    }
    if !start.timed || !end.timed || start.mark.is_none() || end.mark.is_none() {
        return Err(Status::InvalidHandle);
    }
    let (Some(from), Some(to)) = (start.at, end.at) else { return Err(Status::NotReady) };
    let backwards = from.saturating_duration_since(to).as_secs_f32();
    milliseconds.set((to.saturating_duration_since(from).as_secs_f32() - backwards) * 1e3)
}

entry_points! {
    fn cuEventCreate(event: Out<Handle>, flags: c_uint) {
        let mut state = driver().healthy()?;
        if flags > 7 {
            return Err(Status::InvalidValue);
        }
        let made = Event { context: thread::context()?, timed: flags & DISABLE_TIMING == 0, ..Event::default() };
        let state = &mut *state;
        event.set(state.events.add(&mut state.handles, made))
    }

    fn cuEventRecord(event: Handle, stream: Handle) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: Handle, stream: Handle, flags: c_uint) {
        if flags != 0 {
            return Err(Status::NotSupported);
        }
        record(event, stream)
    }

    fn cuEventQuery(event: Handle) {
        driver().healthy()?.capture_forbids_unsafe_call()?;
        point(event)?.map_or(Ok(()), |mark| driver().poll(mark))
    }

    fn cuEventSynchronize(event: Handle) {
        driver().healthy()?.capture_forbids_unsafe_call()?;
        let mark = point(event)?;
        driver().wait(&mark.into_iter().collect::<Vec<_>>())
    }

    /// The host's time between the runs of what was recorded: no card's time.
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(&milliseconds, start, end)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) {
        elapsed(&milliseconds, start, end)
    }

    fn cuEventDestroy_v2(event: Handle) {
        let mut state = driver().lock();
        state.events.remove(event)?;
        state.own().faults.check()
    }
}
