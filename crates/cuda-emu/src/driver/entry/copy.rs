//! Copies and memsets.
//!
//! An asynchronous copy from pageable memory takes the bytes at the call, one from pinned memory
//! when it runs. A copy to pageable memory waits until it is done, one to pinned memory does not.

use std::ffi::{c_uchar, c_uint, c_ushort};
use std::sync::Arc;

use crate::driver::abi::{Handle, entry_points};
use crate::driver::schedule::driver;
use crate::driver::status::{Answer, Status};
use crate::driver::work::{HostBytes, HostRange, Work};

/// The legacy default stream, in whose order synchronous calls run.
const LEGACY: Handle = 0;

/// Whether a call returns before its work has run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// It waits, and a capture forbids it.
    Synchronous,
    Stream(Handle),
}

fn submit(order: Order, work: Work) -> Answer {
    if work.is_empty() {
        return Ok(());
    }
    match order {
        Order::Stream(stream) => driver().submit(stream, work),
        Order::Synchronous => {
            driver().healthy()?.capture_forbids_unsafe_call()?;
            driver().submit_and_wait(LEGACY, work)
        }
    }
}

fn is_capturing(stream: Handle) -> Answer<bool> {
    let mut state = driver().healthy()?;
    let stream = state.stream(stream)?;
    Ok(state.capture_of(stream)?.is_some())
}

fn upload(to: u64, from: usize, bytes: usize, order: Order) -> Answer {
    let range = HostRange { address: from, bytes };
    let state = driver().healthy()?;
    check_host(range)?;
    state.check_range(to, bytes as u64)?;
    let pinned = state.is_pinned(from, bytes);
    drop(state);
    let source = match order {
        Order::Stream(stream) if !pinned && !is_capturing(stream)? => {
            // SAFETY: the program vouches that the source is readable during the call.
            HostBytes::Staged(Arc::from(unsafe { range.read() }))
        }
        _ => HostBytes::Range(range),
    };
    submit(order, Work::Upload { to, from: source })
}

fn download(to: usize, from: u64, bytes: usize, order: Order) -> Answer {
    let range = HostRange { address: to, bytes };
    let state = driver().healthy()?;
    check_host(range)?;
    state.check_range(from, bytes as u64)?;
    let pinned = state.is_pinned(to, bytes);
    drop(state);
    let work = Work::Download { to: range, from };
    match order {
        Order::Stream(stream) if !pinned && bytes > 0 && !is_capturing(stream)? => {
            driver().submit_and_wait(stream, work)
        }
        _ => submit(order, work),
    }
}

fn check_host(range: HostRange) -> Answer {
    if range.address == 0 && range.bytes > 0 { Err(Status::InvalidValue) } else { Ok(()) }
}

fn copy(to: u64, from: u64, bytes: usize, order: Order) -> Answer {
    let state = driver().healthy()?;
    state.check_range(to, bytes as u64)?;
    state.check_range(from, bytes as u64)?;
    drop(state);
    submit(order, Work::Copy { to, from, bytes: bytes as u64 })
}

/// A copy whose direction the addresses tell.
fn copy_any(to: u64, from: u64, bytes: usize, order: Order) -> Answer {
    let known = |address: u64| {
        let state = driver().healthy()?;
        Ok(state.own().device.memory().allocation_at(address).is_some())
    };
    match (known(to)?, known(from)?) {
        (true, true) => copy(to, from, bytes, order),
        (true, false) => upload(to, from as usize, bytes, order),
        (false, true) => download(to as usize, from, bytes, order),
        (false, false) => Err(Status::InvalidValue),
    }
}

fn fill(to: u64, pattern: u32, width: usize, count: usize, order: Order) -> Answer {
    if !to.is_multiple_of(width as u64) {
        return Err(Status::InvalidValue);
    }
    let bytes = (count as u64).checked_mul(width as u64).ok_or(Status::InvalidValue)?;
    driver().healthy()?.check_range(to, bytes)?;
    submit(order, Work::Fill { to, pattern: pattern.to_le_bytes(), width, count: count as u64 })
}

entry_points! {
    fn cuMemcpyHtoD_v2(to: u64, from: usize, bytes: usize) {
        upload(to, from, bytes, Order::Synchronous)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, stream: Handle) {
        upload(to, from, bytes, Order::Stream(stream))
    }

    fn cuMemcpyDtoH_v2(to: usize, from: u64, bytes: usize) {
        download(to, from, bytes, Order::Synchronous)
    }

    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, stream: Handle) {
        download(to, from, bytes, Order::Stream(stream))
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        copy(to, from, bytes, Order::Synchronous)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) {
        copy(to, from, bytes, Order::Stream(stream))
    }

    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        copy_any(to, from, bytes, Order::Synchronous)
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) {
        copy_any(to, from, bytes, Order::Stream(stream))
    }

    /// Between contexts of one device only.
    fn cuMemcpyPeerAsync(to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle) {
        let state = driver().healthy()?;
        let [target, source] = [to_context, from_context].map(|context| state.ordinal_of_context(context));
        drop(state);
        if target != source {
            eprintln!("[cuda-emu] CUDA_ERROR_NOT_SUPPORTED: a copy from device {source} to device {target}");
            return Err(Status::NotSupported);
        }
        copy(to, from, bytes, Order::Stream(stream))
    }

    fn cuMemsetD8_v2(to: u64, value: c_uchar, count: usize) {
        fill(to, u32::from(value), 1, count, Order::Synchronous)
    }

    fn cuMemsetD16_v2(to: u64, value: c_ushort, count: usize) {
        fill(to, u32::from(value), 2, count, Order::Synchronous)
    }

    fn cuMemsetD32_v2(to: u64, value: c_uint, count: usize) {
        fill(to, value, 4, count, Order::Synchronous)
    }

    fn cuMemsetD8Async(to: u64, value: c_uchar, count: usize, stream: Handle) {
        fill(to, u32::from(value), 1, count, Order::Stream(stream))
    }

    fn cuMemsetD16Async(to: u64, value: c_ushort, count: usize, stream: Handle) {
        fill(to, u32::from(value), 2, count, Order::Stream(stream))
    }

    fn cuMemsetD32Async(to: u64, value: c_uint, count: usize, stream: Handle) {
        fill(to, value, 4, count, Order::Stream(stream))
    }
}
