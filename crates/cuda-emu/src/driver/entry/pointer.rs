//! What a pointer points to.

use std::ffi::{c_int, c_uint};

use crate::driver::abi::{Handle, Out, entry_points};
use crate::driver::schedule::driver;
use crate::driver::status::Status;
use crate::driver::thread;

/// `CU_MEMORYTYPE_…`
const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

entry_points! {
    fn cuPointerGetAttribute(value: Out<u64>, attribute: c_uint, address: u64) {
        let state = driver().healthy()?;
        let host = state.pinned_at(address as usize).map(|(start, pinned)| (start as u64, pinned.bytes as u64));
        let owner = state.owner_of(address);
        let device = owner.and_then(|(_, shown)| shown.device.memory().allocation_at(address));
        let Some((start, bytes)) = host.or(device) else { return Err(Status::InvalidValue) };
        match attribute {
            1 => value.cast::<Handle>().set(thread::context()?),
            2 => value.cast::<c_uint>().set(if host.is_some() { HOST } else { DEVICE }),
            3 => value.set(address),
            4 if host.is_some() => value.set(address),
            7 | 11 => value.set(start),
            8 => value.cast::<u8>().set(0),
            9 => value.cast::<c_int>().set(owner.map_or(0, |(ordinal, _)| ordinal) as c_int),
            12 => value.set(bytes),
            13 => value.cast::<u8>().set(1),
            _ => Err(Status::InvalidValue),
        }
    }

    fn cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<usize>, address: u64) {
        let state = driver().healthy()?;
        let (_, shown) = state.owner_of(address).ok_or(Status::NotFound)?;
        let found = shown.device.memory().allocation_at(address).ok_or(Status::NotFound)?;
        start.set_if_wanted(found.0);
        bytes.set_if_wanted(found.1 as usize);
        Ok(())
    }
}
