//! The devices that the driver shows: each with its memory, its card, its primary context and its own
//! failures. Which one a call is for is decided by the thread's context, which one runs work by the
//! stream's.

use std::sync::Arc;

use super::abi::Handle;
use super::card::Card;
use super::faults::Faults;
use super::report::Report;
use super::state::State;
use super::status::{Answer, Status};
use super::thread;
use crate::device::{Device, DeviceConfig};

/// Most devices of a process.
pub(crate) const DEVICES_MAX: usize = 8;

/// One of the devices.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) device: Arc<Device>,
    pub(crate) card: Card,
    /// The primary context, once it was retained, and how often it is.
    pub(crate) primary: (Handle, u32),
    pub(crate) default_pool: Handle,
    pub(crate) faults: Faults,
}

impl Shown {
    /// A device that nobody has used.
    pub(crate) fn new(ordinal: usize, config: DeviceConfig, default_pool: Handle) -> Self {
        Self {
            card: Card::new(&config, ordinal),
            device: Arc::new(Device::new(config)),
            primary: (0, 0),
            default_pool,
            faults: Faults::default(),
        }
    }

    fn has(&self, address: u64) -> bool {
        self.device.memory().allocation_at(address).is_some()
    }
}

impl State {
    /// The index of the current context's device; the first's without a context.
    fn ordinal(&self) -> usize {
        self.ordinal_of_context(thread::current())
    }

    pub(crate) fn ordinal_of_context(&self, context: Handle) -> usize {
        self.contexts.get(context).map_or(0, |context| context.device)
    }

    /// The index of the device that runs a stream's work.
    pub(crate) fn ordinal_of_stream(&self, stream: Handle) -> usize {
        self.streams.get(stream).map_or(0, |stream| self.ordinal_of_context(stream.context))
    }

    /// The current context's device.
    pub(crate) fn own(&self) -> &Shown {
        &self.devices[self.ordinal()]
    }

    /// The current context's device.
    pub(crate) fn own_mut(&mut self) -> &mut Shown {
        let ordinal = self.ordinal();
        &mut self.devices[ordinal]
    }

    /// The device of an index that the program gives.
    pub(crate) fn shown(&mut self, ordinal: i32) -> Answer<&mut Shown> {
        if !self.initialised {
            return Err(Status::NotInitialized);
        }
        let ordinal = usize::try_from(ordinal).map_err(|_| Status::InvalidDevice)?;
        self.devices.get_mut(ordinal).ok_or(Status::InvalidDevice)
    }

    /// The device whose memory an address is, and its index. Host memory is every device's.
    pub(crate) fn owner_of(&self, address: u64) -> Option<(usize, &Shown)> {
        self.devices.iter().enumerate().find(|(_, shown)| shown.has(address))
    }

    /// `None` where an address is no other device's memory, else what is wrong with using it.
    fn wrong_device(&self, ordinal: usize, address: u64) -> Option<String> {
        if self.devices[ordinal].has(address) {
            return None;
        }
        let (owner, _) = self.owner_of(address)?;
        Some(format!(
            "{address:#x} is memory of device {owner}, used in a context of device {ordinal} without peer access"
        ))
    }

    /// The answer for memory that the current context's device does not have; another device's is named.
    pub(crate) fn not_own_memory(&self, address: u64) -> Status {
        if let Some(reason) = self.wrong_device(self.ordinal(), address) {
            eprintln!("[cuda-emu] CUDA_ERROR_INVALID_VALUE: {reason}");
        }
        Status::InvalidValue
    }

    /// A report of work that ran on a device, which names the owner of memory that is another's.
    pub(crate) fn name_owner(&self, ordinal: usize, report: Report) -> Report {
        match report.address.and_then(|address| self.wrong_device(ordinal, address)) {
            Some(reason) => Report { kind: "Peer", text: format!("{}\n  {reason}", report.text), ..report },
            None => report,
        }
    }
}
