//! Initialisation and the devices.

use std::ffi::{c_char, c_int, c_uint};

use crate::driver::abi::{Handle, Out, Uuid, entry_points};
use crate::driver::options::{DRIVER_VERSION, driver_version};
use crate::driver::schedule::driver;
use crate::driver::status::{Answer, Status};

/// Reads "cuda-emu device", with the index behind it.
fn uuid_of(device: c_int) -> Answer<Uuid> {
    driver().lock().shown(device)?;
    let mut uuid = *b"cuda-emu device\0";
    uuid[15] = device as u8;
    Ok(Uuid(uuid))
}

entry_points! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(Status::InvalidValue);
        }
        // What cannot be understood was said where the devices were made.
        if driver_version() == Ok(None) {
            return Err(Status::SystemDriverMismatch);
        }
        driver().lock().initialised = true;
        Ok(())
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(driver_version().ok().flatten().unwrap_or(DRIVER_VERSION))
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        let mut state = driver().lock();
        state.shown(0)?;
        count.set(state.devices.len() as c_int)
    }

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        driver().lock().shown(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName(name: Out<c_char>, length: c_int, device: c_int) {
        let text = driver().lock().shown(device)?.card.full_name();
        let room = usize::try_from(length).ok().and_then(|n| n.checked_sub(1)).ok_or(Status::InvalidValue)?;
        if name.pointer().is_null() {
            return Err(Status::InvalidValue);
        }
        let text = &text.as_bytes()[..text.len().min(room)];
        // SAFETY: the caller vouches for `length` bytes, of which at most all are written.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name.pointer(), text.len());
            *name.pointer().add(text.len()) = 0;
        }
        Ok(())
    }

    fn cuDeviceGetUuid(uuid: Out<Uuid>, device: c_int) {
        uuid.set(uuid_of(device)?)
    }

    fn cuDeviceGetUuid_v2(uuid: Out<Uuid>, device: c_int) {
        uuid.set(uuid_of(device)?)
    }

    /// The configured size: see `DeviceConfig::memory_bytes`.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        bytes.set(driver().lock().shown(device)?.device.memory().info().1 as usize)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_uint, device: c_int) {
        value.set(driver().lock().shown(device)?.card.attribute(attribute).ok_or(Status::InvalidValue)?)
    }

    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) {
        let mut state = driver().lock();
        if state.shown(device)?.primary.0 == 0 {
            let made = state.add_context(device as usize, 0);
            state.shown(device)?.primary.0 = made;
        }
        let primary = &mut state.shown(device)?.primary;
        primary.1 += 1;
        context.set(primary.0)
    }

    /// The last release waits for the context's work; its objects stay, for whoever still has them.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let mut state = driver().lock();
        let shown = state.shown(device)?;
        let (primary, count) = shown.primary;
        shown.primary.1 = count.checked_sub(1).ok_or(Status::InvalidContext)?;
        drop(state);
        if count == 1 { driver().wait_for_context(primary) } else { Ok(()) }
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) {
        let mut state = driver().lock();
        let primary = state.shown(device)?.primary.0;
        if let Ok(context) = state.contexts.get_mut(primary) {
            context.flags = flags;
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<c_uint>, active: Out<c_int>) {
        let mut state = driver().lock();
        let (primary, count) = state.shown(device)?.primary;
        flags.set(state.contexts.get(primary).map_or(0, |context| context.flags))?;
        active.set(c_int::from(count > 0))
    }
}
