//! Monitoring of a device: temperature, power, clocks, errors. A backend that supports it provides a
//! [`Monitor`], which needs neither the backend nor its thread.

use std::fmt;

use crate::kind::ErrorKind;

/// State of a device at one moment. A field is `None` if the card, its driver or the container does not
/// report it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct DeviceHealth {
    /// Vendor's name for the device.
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
    /// Active causes of throttling; empty if there are none.
    pub throttle: Option<Vec<Throttle>>,
    /// Memory errors since the driver was loaded that could not be corrected.
    pub ecc_uncorrected: Option<u64>,
    /// Critical errors (Xid) that the driver reported since the model was loaded.
    pub xid_count: Option<u64>,
    /// Number of the last Xid error, as listed by NVIDIA.
    pub xid_last: Option<u64>,
}

/// A cause of throttled clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Throttle {
    /// An application clock setting.
    ApplicationClocks,
    /// A display clock setting.
    DisplayClocks,
    /// The power limit.
    PowerCap,
    /// The hardware halves the clocks or more because of heat, power, or an external brake signal.
    Hardware,
    /// Sync boost: the clocks follow another card of the group.
    SyncBoost,
    /// Heat of the chip or the memory, handled by the driver.
    Heat,
    /// Heat, handled by the hardware.
    HardwareHeat,
    /// The power supply's brake signal.
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

/// Reason why a device's health is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoHealth {
    /// The backend runs on the CPU.
    #[error("a CPU is not asked for its health")]
    Cpu,
    /// The program was built without the feature `nvml`.
    #[error("this build does not ask GPUs for their health (feature `nvml`)")]
    NotBuilt,
    /// NVIDIA's management library (NVML) is not installed, or not visible in the container.
    #[error("there is no NVIDIA management library ({0})")]
    NoLibrary(String),
    /// The library failed to initialise.
    #[error("the NVIDIA management library does not start: {0}")]
    LibraryFailed(String),
    /// The library does not list the device.
    #[error("the NVIDIA management library does not show the device at {pci_bus_id}: {reason}")]
    NoDevice {
        /// PCI bus id of the device.
        pci_bus_id: String,
        /// The library's error.
        reason: String,
    },
    /// The device has become unreachable.
    #[error("the device at {pci_bus_id} is lost: it must be reset, or has fallen off the bus")]
    Lost {
        /// PCI bus id of the device.
        pci_bus_id: String,
    },
}

impl NoHealth {
    /// The kind of error, which decides how a caller should react.
    pub fn kind(&self) -> ErrorKind {
        match self {
            NoHealth::Lost { .. } => ErrorKind::DeviceLost,
            NoHealth::NoDevice { .. } => ErrorKind::NoDevice,
            _ => ErrorKind::Unsupported,
        }
    }
}

/// A source of health readings, usable from any thread while the device works.
pub trait Monitor: fmt::Debug + Send + Sync {
    /// The current state. A reading holds driver locks for milliseconds, so do not take one per token.
    ///
    /// # Errors
    /// [`NoHealth::Lost`], [`NoHealth::NoDevice`].
    fn health(&self) -> Result<DeviceHealth, NoHealth>;
}
