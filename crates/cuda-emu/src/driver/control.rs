//! The functions of the driver library beside CUDA's, for [`install`](super::install()).
//!
//! The program's copy of this crate looks these four up by name. C programs may use them too:
//!
//! - `uint32_t cuda_emu_version(void)`: of this interface.
//! - `uint32_t cuda_emu_configure(const AllSettings *)`: before the first CUDA call.
//! - `uint32_t cuda_emu_command(uint32_t number, uint64_t, uint64_t)`: see `wire::Command`.
//! - `uint32_t cuda_emu_read(uint32_t what, sink, void *)`: hands text to a function: 1 is the
//!   statistics, 2 the last failure, 3 the calls by function.
//!
//! A device's index, times 256, is added to the number of what is for one device.
//!
//! They give 0, or a `CUresult`.

use std::ffi::{c_uint, c_void};

use super::abi::{self, In, entry_points};
use super::schedule::{configure, driver};
use super::status::{Answer, Status};
use super::wire::{self, AllSettings, Command};

/// What [`cuda_emu_read`] reads.
pub(crate) const STATISTICS: c_uint = 1;
pub(crate) const LAST_FAULT: c_uint = 2;
pub(crate) const CALLS: c_uint = 3;

/// A function that takes bytes, for the one who gave it with its argument.
pub(crate) type Sink = Option<unsafe extern "C" fn(*mut c_void, *const u8, usize)>;

/// The version of this interface.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuda_emu_version() -> c_uint {
    wire::VERSION
}

fn run(command: Command, ordinal: usize) -> Answer {
    let mut state = driver().lock();
    let shown = state.devices.get_mut(ordinal).ok_or(Status::InvalidValue)?;
    let device = shown.device.clone();
    let memory = device.memory();
    match command {
        Command::SetSeed(seed) => state.set_seed(seed),
        Command::Inject(injection) => shown.faults.inject(injection),
        Command::RegisterPart(address, bytes) => {
            memory.register_part(address, bytes).map_err(|_| Status::InvalidValue)?;
        }
        Command::UnregisterPart(address) => {
            memory.unregister_part(address).map_err(|_| Status::InvalidValue)?;
        }
        Command::Reset => {
            drop(state);
            driver().reset();
        }
    }
    Ok(())
}

entry_points! {
    fn cuda_emu_configure(settings: In<AllSettings>) {
        let configs = settings.get()?.configs();
        if configs.is_empty() {
            return Err(Status::InvalidValue);
        }
        if configure(configs) { Ok(()) } else { Err(Status::IllegalState) }
    }

    fn cuda_emu_command(number: c_uint, first: u64, second: u64) {
        let (number, ordinal) = wire::split(number);
        run(Command::decode(number, first, second).ok_or(Status::InvalidValue)?, ordinal)
    }

    fn cuda_emu_read(what: c_uint, sink: Sink, argument: *mut c_void) {
        let (what, ordinal) = wire::split(what);
        let state = driver().lock();
        let shown = state.devices.get(ordinal).ok_or(Status::InvalidValue)?;
        let text = match what {
            STATISTICS => wire::encode_statistics(&state.statistics),
            LAST_FAULT => shown.faults.last.as_ref().map(wire::encode_report).unwrap_or_default(),
            CALLS => wire::encode_calls(&abi::calls()),
            _ => return Err(Status::InvalidValue),
        };
        drop(state);
        let sink = sink.ok_or(Status::InvalidValue)?;
        // SAFETY: the caller gave the function for this argument, and the bytes live until it returns.
        unsafe { sink(argument, text.as_ptr(), text.len()) };
        Ok(())
    }
}
