//! Initialisation and the one device.

use std::ffi::{c_char, c_int, c_uint};

use crate::driver::abi::{Handle, Out, Uuid, entry_points};
use crate::driver::schedule::driver;
use crate::driver::status::{Answer, Status};

/// The version of the driver API that is spoken: 13.0.
const VERSION: c_int = 13000;
/// Reads "cuda-emu device".
const UUID: [u8; 16] = *b"cuda-emu device\0";

fn check(device: c_int) -> Answer {
    match device {
        _ if !driver().lock().initialised => Err(Status::NotInitialized),
        0 => Ok(()),
        _ => Err(Status::InvalidDevice),
    }
}

entry_points! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Status::InvalidValue);
        }
        driver().lock().initialised = true;
        Ok(())
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(VERSION)
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        check(0)?;
        count.set(1)
    }

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        check(ordinal)?;
        device.set(0)
    }

    fn cuDeviceGetName(name: Out<c_char>, length: c_int, device: c_int) {
        check(device)?;
        let room = usize::try_from(length).ok().and_then(|n| n.checked_sub(1)).ok_or(Status::InvalidValue)?;
        if name.pointer().is_null() {
            return Err(Status::InvalidValue);
        }
        let text = driver().lock().card.name.as_bytes();
        let text = &text[..text.len().min(room)];
        // SAFETY: the caller vouches for `length` bytes, of which at most all are written.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name.pointer(), text.len());
            *name.pointer().add(text.len()) = 0;
        }
        Ok(())
    }

    fn cuDeviceGetUuid(uuid: Out<Uuid>, device: c_int) {
        check(device)?;
        uuid.set(Uuid(UUID))
    }

    fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: c_int) {
        check(device)?;
        uuid.set(Uuid(UUID))
    }

    /// The configured size: see `DeviceConfig::memory_bytes`.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        check(device)?;
        bytes.set(driver().lock().device.memory().info().1 as usize)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_uint, device: c_int) {
        check(device)?;
        value.set(driver().lock().card.attribute(attribute).ok_or(Status::InvalidValue)?)
    }

    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) {
        check(device)?;
        let mut state = driver().lock();
        if state.primary.0 == 0 {
            state.primary.0 = state.add_context(0);
        }
        state.primary.1 += 1;
        context.set(state.primary.0)
    }

    /// The last release waits for the context's work; its objects stay, for whoever still has them.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        check(device)?;
        let mut state = driver().lock();
        let (primary, count) = state.primary;
        state.primary.1 = count.checked_sub(1).ok_or(Status::InvalidContext)?;
        drop(state);
        if count == 1 { driver().wait_for_context(primary) } else { Ok(()) }
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) {
        check(device)?;
        let mut state = driver().lock();
        let primary = state.primary.0;
        if let Ok(context) = state.contexts.get_mut(primary) {
            context.flags = flags;
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        check(device)?;
        let state = driver().lock();
        flags.set(state.contexts.get(state.primary.0).map_or(0, |context| context.flags))?;
        active.set(c_int::from(state.primary.1 > 0))
    }
}
