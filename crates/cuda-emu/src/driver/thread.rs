//! What the driver keeps for each thread of the program: the stack of current contexts, the capture
//! mode, and whether the thread is inside of a host function, where driver calls are forbidden.

use std::cell::{Cell, RefCell};

use super::abi::Handle;
use super::status::{Answer, Status};

thread_local! {
    static CONTEXTS: RefCell<Vec<Handle>> = const { RefCell::new(Vec::new()) };
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// The current context, or 0.
pub(crate) fn current() -> Handle {
    CONTEXTS.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// The current context, or `CUDA_ERROR_INVALID_CONTEXT`.
pub(crate) fn context() -> Answer<Handle> {
    match current() {
        0 => Err(Status::InvalidContext),
        context => Ok(context),
    }
}

/// Puts a context in the current one's place; 0 leaves the thread without.
pub(crate) fn set_current(context: Handle) {
    CONTEXTS.with_borrow_mut(|stack| {
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
}

/// Puts a context on top.
pub(crate) fn push(context: Handle) {
    CONTEXTS.with_borrow_mut(|stack| stack.push(context));
}

/// Takes the top context off.
pub(crate) fn pop() -> Answer<Handle> {
    CONTEXTS.with_borrow_mut(Vec::pop).ok_or(Status::InvalidContext)
}

/// The thread's capture mode (`CUstreamCaptureMode`).
pub(crate) fn capture_mode() -> u32 {
    CAPTURE_MODE.get()
}

/// Sets the thread's capture mode; gives the one before.
pub(crate) fn exchange_capture_mode(mode: u32) -> u32 {
    CAPTURE_MODE.replace(mode)
}

/// Runs a host function.
pub(crate) fn in_host_function(call: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    call();
    IN_HOST_FUNCTION.set(false);
}

/// `CUDA_ERROR_NOT_PERMITTED` inside of a host function.
pub(crate) fn must_not_be_in_host_function() -> Answer {
    if IN_HOST_FUNCTION.get() { Err(Status::NotPermitted) } else { Ok(()) }
}
