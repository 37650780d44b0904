//! Allocation: device memory, stream-ordered memory with its pools, managed and pinned memory.

use std::ffi::{c_int, c_uint, c_void};

use crate::driver::abi::{Handle, In, MemoryLocation, Out, entry_points};
use crate::driver::pool::Pool;
use crate::driver::schedule::driver;
use crate::driver::status::{Answer, Status};
use crate::driver::thread;
use crate::driver::work::Work;

/// Allocates at once, in no stream's order. A capture forbids that.
fn allocate(address: &Out<u64>, bytes: usize) -> Answer {
    let mut state = driver().healthy()?;
    if bytes == 0 {
        return Err(Status::InvalidValue);
    }
    state.capture_forbids_unsafe_call()?;
    state.count_allocation(bytes)?;
    address.set(state.allocate(bytes as u64)?)
}

/// Allocates in a stream's order. The address is known at once, and other streams may not be kept
/// from using it too early. In a capture the memory becomes the graph's.
fn allocate_in_order(address: &Out<u64>, bytes: usize, stream: Handle) -> Answer {
    let mut state = driver().healthy()?;
    let stream = state.stream(stream)?;
    if bytes == 0 {
        return address.set(0);
    }
    state.count_allocation(bytes)?;
    if let Some(capture) = state.capture_of(stream)? {
        let allocated = state.allocate(bytes as u64)?;
        state.captures.get(capture)?.memory.add(allocated);
        state.capture_work(stream, capture, Work::Join)?;
        return address.set(allocated);
    }
    let first = state.allocate(bytes as u64);
    drop(state);
    let allocated = match first {
        Err(Status::OutOfMemory) => {
            // Frees that wait in streams may make room, as in a card's pool.
            driver().wait_for_context(thread::context()?)?;
            driver().lock().allocate(bytes as u64)
        }
        other => other,
    };
    address.set(allocated?)
}

/// Waits until no work can use memory that is about to go, as the driver does.
fn quiesce() -> Answer {
    driver().healthy()?.capture_forbids_unsafe_call()?;
    driver().wait_for_context(thread::context()?)
}

entry_points! {
    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        allocate(&address, bytes)
    }

    /// Host and device have one address space here: managed memory is device memory.
    fn cuMemAllocManaged(address: Out<u64>, bytes: usize, flags: c_uint) {
        if !matches!(flags, 1 | 2) {
            return Err(Status::InvalidValue);
        }
        allocate(&address, bytes)
    }

    /// A hint, without effect.
    fn cuMemAdvise_v2(address: u64, bytes: usize, _advice: c_uint, _location: MemoryLocation) {
        driver().healthy()?.check_range(address, bytes as u64)
    }

    /// There is nowhere to move memory to.
    fn cuMemPrefetchAsync_v2(address: u64, bytes: usize, _location: MemoryLocation, _flags: c_uint, stream: Handle) {
        driver().healthy()?.check_range(address, bytes as u64)?;
        driver().submit(stream, Work::Join)
    }

    fn cuMemFree_v2(address: u64) {
        if address == 0 {
            return Ok(());
        }
        quiesce()?;
        let state = driver().lock();
        if state.pinned_at(address as usize).is_some() {
            return Err(Status::InvalidValue);
        }
        state.own().device.memory().free(address).map_err(|_| state.not_own_memory(address))
    }

    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: Handle) {
        allocate_in_order(&address, bytes, stream)
    }

    fn cuMemAllocFromPoolAsync(address: Out<u64>, bytes: usize, pool: Handle, stream: Handle) {
        driver().healthy()?.pools.get(pool)?;
        allocate_in_order(&address, bytes, stream)
    }

    fn cuMemFreeAsync(address: u64, stream: Handle) {
        let mut state = driver().healthy()?;
        let inner = state.stream(stream)?;
        if address == 0 {
            return Ok(());
        }
        if let Some(capture) = state.capture_of(inner)? {
            if !state.captures.get(capture)?.memory.owns(address) {
                return Err(Status::InvalidValue);
            }
            return state.capture_work(inner, capture, Work::Join);
        }
        if state.own().device.memory().allocation_at(address).is_none_or(|(base, _)| base != address) {
            return Err(state.not_own_memory(address));
        }
        drop(state);
        driver().submit(stream, Work::Free(address))
    }

    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        let (bytes_free, bytes_total) = driver().healthy()?.own().device.memory().info();
        free.set(bytes_free as usize)?;
        total.set(bytes_total as usize)
    }

    fn cuMemHostAlloc(address: Out<usize>, bytes: usize, flags: c_uint) {
        let mut state = driver().healthy()?;
        state.capture_forbids_unsafe_call()?;
        state.count_allocation(bytes)?;
        address.set(state.allocate_host(bytes, flags)?)
    }

    fn cuMemAllocHost_v2(address: Out<usize>, bytes: usize) {
        let mut state = driver().healthy()?;
        state.capture_forbids_unsafe_call()?;
        state.count_allocation(bytes)?;
        address.set(state.allocate_host(bytes, 0)?)
    }

    /// The manual does not say that it waits.
    fn cuMemFreeHost(address: usize) {
        driver().healthy()?.no_copy_needs(address)?;
        quiesce()?;
        driver().lock().free_host(address)
    }

    fn cuMemHostRegister_v2(address: usize, bytes: usize, flags: c_uint) {
        let mut state = driver().healthy()?;
        // SAFETY: the program vouches for the range until it unregisters it.
        unsafe { state.pin(address, bytes, flags) }
    }

    fn cuMemHostUnregister(address: usize) {
        quiesce()?;
        driver().lock().unpin(address)
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, address: usize, flags: c_uint) {
        let state = driver().healthy()?;
        if flags != 0 || state.pinned_at(address).is_none() {
            return Err(Status::InvalidValue);
        }
        device.set(address as u64)
    }

    fn cuMemHostGetFlags(flags: Out<c_uint>, address: usize) {
        let state = driver().healthy()?;
        flags.set(state.pinned_at(address).ok_or(Status::InvalidValue)?.1.flags)
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: c_int) {
        pool.set(driver().lock().shown(device)?.default_pool)
    }

    fn cuDeviceGetMemPool(pool: Out<Handle>, device: c_int) {
        pool.set(driver().lock().shown(device)?.default_pool)
    }

    fn cuDeviceSetMemPool(_device: c_int, pool: Handle) {
        driver().lock().pools.get(pool).map(|_| ())
    }

    fn cuMemPoolCreate(pool: Out<Handle>, _properties: In<c_void>) {
        let mut state = driver().healthy()?;
        let state = &mut *state;
        pool.set(state.pools.add(&mut state.handles, Pool::default()))
    }

    fn cuMemPoolDestroy(pool: Handle) {
        driver().healthy()?.pools.remove(pool).map(|_| ())
    }

    fn cuMemPoolTrimTo(pool: Handle, _bytes: usize) {
        driver().healthy()?.pools.get(pool).map(|_| ())
    }

    fn cuMemPoolSetAttribute(pool: Handle, attribute: c_uint, value: In<c_void>) {
        let address = value.pointer() as usize;
        let number = if Pool::is_wide(attribute)? {
            In::<u64>::from_address(address).get()?
        } else {
            u64::from(In::<u32>::from_address(address).get()?)
        };
        driver().healthy()?.pools.get_mut(pool)?.set(attribute, number);
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: Handle, attribute: c_uint, value: Out<u64>) {
        let wide = Pool::is_wide(attribute)?;
        let state = driver().healthy()?;
        let (free, total) = state.own().device.memory().info();
        let number = state.pools.get(pool)?.get(attribute, total - free);
        if wide { value.set(number) } else { value.cast::<u32>().set(number as u32) }
    }
}
