//! What a device says of itself beside its work: temperature, power, clocks, errors. A backend that can
//! be asked gives a [`Monitor`], which needs neither the backend nor its thread.

use std::fmt;

use crate::kind::ErrorKind;

/// A device's state at one moment. A field is `None` where the card, its driver or the container does not
/// tell.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct DeviceHealth {
    /// The maker's name.
    pub name: Option<String>,
    /// Bytes of memory in use, by all programs and the driver.
    pub memory_used_bytes: Option<u64>,
    /// Bytes of memory that can be allocated.
    pub memory_free_bytes: Option<u64>,
    /// Power drawn, in watts; on many cards the mean of the last second.
    pub power_w: Option<f64>,
    /// Power that the card may draw before its clocks are lowered, in watts.
    pub power_limit_w: Option<f64>,
    /// Temperature of the chip, in degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Per cent of the last moments (up to a second) in which a kernel ran.
    pub utilisation_percent: Option<u32>,
    /// Per cent of the last moments in which memory was read or written.
    pub memory_utilisation_percent: Option<u32>,
    /// Clock of the multiprocessors, in MHz.
    pub clock_sm_mhz: Option<u32>,
    /// Clock of the memory, in MHz.
    pub clock_memory_mhz: Option<u32>,
    /// What holds the clocks down now; empty where nothing does.
    pub throttle: Option<Vec<Throttle>>,
    /// Memory errors since the driver was loaded that could not be corrected.
    pub ecc_uncorrected: Option<u64>,
    /// Critical errors (Xid) that the driver reported since the model was loaded.
    pub xid_count: Option<u64>,
    /// Number of the last of them, as NVIDIA lists them.
    pub xid_last: Option<u64>,
}

/// What holds a device's clocks down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Throttle {
    /// A setting of the applications' clocks.
    ApplicationClocks,
    /// A setting of the display's clocks.
    DisplayClocks,
    /// The power limit.
    PowerCap,
    /// The hardware halves the clocks or more: heat, power, or a brake from outside.
    Hardware,
    /// Another card of its group, whose clocks it keeps to.
    SyncBoost,
    /// Heat of the chip or the memory, by the driver.
    Heat,
    /// Heat, by the hardware.
    HardwareHeat,
    /// The power supply's brake.
    PowerBrake,
}

impl fmt::Display for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Throttle::ApplicationClocks => "application clocks",
            Throttle::DisplayClocks => "display clocks",
            Throttle::PowerCap => "power cap",
            Throttle::Hardware => "hardware slowdown",
            Throttle::SyncBoost => "sync boost",
            Throttle::Heat => "heat",
            Throttle::HardwareHeat => "heat (hardware)",
            Throttle::PowerBrake => "power brake",
        })
    }
}

/// Why a device's health is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoHealth {
    /// The backend runs on the CPU.
    #[error("a CPU is not asked for its health")]
    Cpu,
    /// The program was built without what asks.
    #[error("this build does not ask GPUs for their health (feature `nvml`)")]
    NotBuilt,
    /// NVIDIA's management library is not installed, or a container does not show it.
    #[error("there is no NVIDIA management library ({0})")]
    NoLibrary(String),
    /// The library does not start.
    #[error("the NVIDIA management library does not start: {0}")]
    LibraryFailed(String),
    /// The library does not show the device.
    #[error("the NVIDIA management library does not show the device at {pci_bus_id}: {reason}")]
    NoDevice {
        /// Where the device is.
        pci_bus_id: String,
        /// What the library said.
        reason: String,
    },
    /// The device was there and can no longer be reached.
    #[error("the device at {pci_bus_id} is lost: it must be reset, or has fallen off the bus")]
    Lost {
        /// Where the device was.
        pci_bus_id: String,
    },
}

impl NoHealth {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            NoHealth::Lost { .. } => ErrorKind::DeviceLost,
            NoHealth::NoDevice { .. } => ErrorKind::NoDevice,
            _ => ErrorKind::Unsupported,
        }
    }
}

/// Asks a device for its health, from any thread, while it works.
pub trait Monitor: fmt::Debug + Send + Sync {
    /// The state now. It takes the driver's locks for milliseconds: not for every token.
    ///
    /// # Errors
    /// [`NoHealth::Lost`], [`NoHealth::NoDevice`].
    fn health(&self) -> Result<DeviceHealth, NoHealth>;
}
