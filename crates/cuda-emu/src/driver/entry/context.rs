//! Contexts. A failure sticks to all contexts of its device.

use std::ffi::{c_int, c_uint, c_void};

use crate::driver::abi::{Handle, In, Out, entry_points};
use crate::driver::schedule::driver;
use crate::driver::status::{Answer, Status};
use crate::driver::thread;

/// The highest priority that a stream can have; the lowest is 0.
pub(crate) const PRIORITY_HIGHEST: c_int = -5;

fn create(context: &Out<Handle>, flags: c_uint, device: c_int) -> Answer {
    let mut state = driver().lock();
    state.shown(device)?;
    let made = state.add_context(device as usize, flags);
    thread::push(made);
    context.set(made)
}

fn check(context: Handle) -> Answer {
    driver().lock().contexts.get(context).map(|_| ()).map_err(|_| Status::InvalidContext)
}

entry_points! {
    fn cuCtxCreate_v2(context: Out<Handle>, flags: c_uint, device: c_int) {
        create(&context, flags, device)
    }

    fn cuCtxCreate_v3(context: Out<Handle>, _affinity: In<c_void>, count: c_int, flags: c_uint, device: c_int) {
        if count != 0 {
            return Err(Status::NotSupported);
        }
        create(&context, flags, device)
    }

    fn cuCtxCreate_v4(context: Out<Handle>, params: In<c_void>, flags: c_uint, device: c_int) {
        if !params.is_null() {
            return Err(Status::NotSupported);
        }
        create(&context, flags, device)
    }

    fn cuCtxDestroy_v2(context: Handle) {
        check(context)?;
        let finished = driver().wait_for_context(context);
        let mut state = driver().lock();
        state.contexts.remove(context)?;
        state.streams.retain(|stream| stream.context != context);
        state.events.retain(|event| event.context != context);
        state.modules.retain(|module| module.context != context);
        drop(state);
        if thread::current() == context {
            thread::pop()?;
        }
        finished
    }

    fn cuCtxGetCurrent(context: Out<Handle>) {
        context.set(thread::current())
    }

    fn cuCtxSetCurrent(context: Handle) {
        if context != 0 {
            check(context)?;
        }
        thread::set_current(context);
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        check(context)?;
        thread::push(context);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<Handle>) {
        context.set_if_wanted(thread::pop()?);
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<c_int>) {
        let context = thread::context()?;
        device.set(driver().lock().ordinal_of_context(context) as c_int)
    }

    fn cuCtxGetApiVersion(_context: Handle, version: Out<c_uint>) {
        version.set(3020)
    }

    fn cuCtxSynchronize() {
        let mut state = driver().healthy()?;
        let context = thread::context()?;
        state.capture_forbids_context(context)?;
        drop(state);
        driver().wait_for_context(context)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        least.set_if_wanted(0);
        greatest.set_if_wanted(PRIORITY_HIGHEST);
        Ok(())
    }

    fn cuCtxGetFlags(flags: Out<c_uint>) {
        let state = driver().healthy()?;
        flags.set(state.contexts.get(thread::context()?)?.flags)
    }

    fn cuCtxSetFlags(flags: c_uint) {
        driver().healthy()?.contexts.get_mut(thread::context()?)?.flags = flags;
        Ok(())
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: c_uint) {
        let state = driver().healthy()?;
        let limits = &state.contexts.get(thread::context()?)?.limits;
        value.set(*limits.get(&limit).ok_or(Status::UnsupportedLimit)?)
    }

    /// Kept and given back, without effect.
    fn cuCtxSetLimit(limit: c_uint, value: usize) {
        let mut state = driver().healthy()?;
        let limits = &mut state.contexts.get_mut(thread::context()?)?.limits;
        *limits.get_mut(&limit).ok_or(Status::UnsupportedLimit)? = value;
        Ok(())
    }

    fn cuCtxGetCacheConfig(config: Out<c_uint>) {
        let state = driver().healthy()?;
        config.set(state.contexts.get(thread::context()?)?.cache_config)
    }

    /// Kept and given back, without effect.
    fn cuCtxSetCacheConfig(config: c_uint) {
        driver().healthy()?.contexts.get_mut(thread::context()?)?.cache_config = config;
        Ok(())
    }

    /// There is no profiler to start.
    fn cuProfilerStart() {
        Ok(())
    }

    /// There is no profiler to stop.
    fn cuProfilerStop() {
        Ok(())
    }
}
