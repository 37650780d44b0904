//! A card's health from NVIDIA's management library (NVML), loaded at run time. Its types are used in this
//! file only.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{MemoryInfo, Utilization};
use nvml_wrapper::{Device, EventSet, Nvml};

use crate::backend::{DeviceHealth, Monitor, NoHealth, Throttle};

/// Containers have the versioned name only.
const NAMES: [&str; 3] = ["libnvidia-ml.so.1", "libnvidia-ml.so", "nvml.dll"];
/// Maximum number of events taken from the queue at a time.
const EVENTS_MAX: usize = 256;

/// The library, initialised once per process: that is slow, and event sets must not outlive the library.
fn library() -> Result<&'static Nvml, NoHealth> {
    static LIBRARY: OnceLock<Result<Nvml, NoHealth>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Nvml, NoHealth> {
    let mut reason = String::new();
    for name in NAMES {
        match Nvml::builder().lib_path(name.as_ref()).init() {
            Ok(nvml) => return Ok(nvml),
            Err(NvmlError::LibloadingError(error)) if reason.is_empty() => {
                reason = std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
            }
            Err(NvmlError::LibloadingError(_)) => {}
            Err(error) => return Err(NoHealth::LibraryFailed(error.to_string())),
        }
    }
    Err(NoHealth::NoLibrary(reason))
}

/// A monitor for the card with this PCI bus id, which CUDA and NVML agree on; their device indices may
/// differ.
pub(super) fn monitor(pci_bus_id: &str) -> Result<Arc<dyn Monitor>, NoHealth> {
    let device = library()?.device_by_pci_bus_id(pci_bus_id).map_err(|error| match error {
        NvmlError::GpuLost => NoHealth::Lost { pci_bus_id: pci_bus_id.into() },
        error => NoHealth::NoDevice { pci_bus_id: pci_bus_id.into(), reason: error.to_string() },
    })?;
    let xids = Xids { events: xid_events(&device), count: 0, last: None };
    Ok(Arc::new(Card { pci_bus_id: pci_bus_id.into(), device, xids: Mutex::new(xids) }))
}

#[derive(Debug)]
struct Card {
    pci_bus_id: String,
    device: Device<'static>,
    xids: Mutex<Xids>,
}

/// Critical errors since the event set was registered.
#[derive(Debug)]
struct Xids {
    events: Option<EventSet<'static>>,
    count: u64,
    last: Option<u64>,
}

/// Events are available on Linux only.
fn xid_events(device: &Device<'static>) -> Option<EventSet<'static>> {
    #[cfg(target_os = "linux")]
    {
        let events = library().ok()?.create_event_set().ok()?;
        device.register_events(EventTypes::CRITICAL_XID_ERROR, events).ok()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = device;
        None
    }
}

impl Xids {
    /// Reads new events. Returns the count, if available, and the last number.
    fn read(&mut self) -> (Option<u64>, Option<u64>) {
        let Some(events) = &self.events else { return (None, None) };
        for _ in 0..EVENTS_MAX {
            let Ok(event) = events.wait(0) else { break };
            if event.event_type.contains(EventTypes::CRITICAL_XID_ERROR) {
                self.count += 1;
                if let Some(XidError::Value(number)) = event.event_data {
                    self.last = Some(number);
                }
            }
        }
        (Some(self.count), self.last)
    }
}

impl Monitor for Card {
    fn health(&self) -> Result<DeviceHealth, NoHealth> {
        let device = &self.device;
        let answers = Answers {
            name: device.name(),
            memory: device.memory_info(),
            power_mw: device.power_usage(),
            power_limit_mw: device.enforced_power_limit(),
            temperature_c: device.temperature(TemperatureSensor::Gpu),
            utilisation: device.utilization_rates(),
            clock_sm_mhz: device.clock_info(Clock::SM),
            clock_memory_mhz: device.clock_info(Clock::Memory),
            throttle: device.current_throttle_reasons(),
            ecc_uncorrected: device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile),
            xids: self.xids.lock().unwrap_or_else(PoisonError::into_inner).read(),
        };
        answers.health().ok_or_else(|| NoHealth::Lost { pci_bus_id: self.pci_bus_id.clone() })
    }
}

/// The library's results, one per query.
struct Answers {
    name: Result<String, NvmlError>,
    memory: Result<MemoryInfo, NvmlError>,
    power_mw: Result<u32, NvmlError>,
    power_limit_mw: Result<u32, NvmlError>,
    temperature_c: Result<u32, NvmlError>,
    utilisation: Result<Utilization, NvmlError>,
    clock_sm_mhz: Result<u32, NvmlError>,
    clock_memory_mhz: Result<u32, NvmlError>,
    throttle: Result<ThrottleReasons, NvmlError>,
    ecc_uncorrected: Result<u64, NvmlError>,
    xids: (Option<u64>, Option<u64>),
}

impl Answers {
    /// Converts to the backend's type; `None` if the card is lost. A query with any other error gives a
    /// `None` field.
    fn health(self) -> Option<DeviceHealth> {
        let lost = [
            self.name.as_ref().err(),
            self.memory.as_ref().err(),
            self.power_mw.as_ref().err(),
            self.temperature_c.as_ref().err(),
        ];
        if lost
            .into_iter()
            .flatten()
            .any(|error| matches!(error, NvmlError::GpuLost | NvmlError::ResetRequired))
        {
            return None;
        }
        let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
        let (memory, utilisation) = (self.memory.ok(), self.utilisation.ok());
        let (xid_count, xid_last) = self.xids;
        Some(DeviceHealth {
            name: self.name.ok(),
            memory_used_bytes: memory.as_ref().map(|memory| memory.used),
            memory_free_bytes: memory.map(|memory| memory.free),
            power_w: self.power_mw.ok().map(watts),
            power_limit_w: self.power_limit_mw.ok().map(watts),
            temperature_c: self.temperature_c.ok(),
            utilisation_percent: utilisation.as_ref().map(|utilisation| utilisation.gpu),
            memory_utilisation_percent: utilisation.map(|utilisation| utilisation.memory),
            clock_sm_mhz: self.clock_sm_mhz.ok(),
            clock_memory_mhz: self.clock_memory_mhz.ok(),
            throttle: self.throttle.ok().map(throttle),
            ecc_uncorrected: self.ecc_uncorrected.ok(),
            xid_count,
            xid_last,
        })
    }
}

/// Idleness is among NVML's throttle reasons, but is not throttling.
fn throttle(reasons: ThrottleReasons) -> Vec<Throttle> {
    let named = [
        (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, Throttle::ApplicationClocks),
        (ThrottleReasons::DISPLAY_CLOCK_SETTING, Throttle::DisplayClocks),
        (ThrottleReasons::SW_POWER_CAP, Throttle::PowerCap),
        (ThrottleReasons::HW_SLOWDOWN, Throttle::Hardware),
        (ThrottleReasons::SYNC_BOOST, Throttle::SyncBoost),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, Throttle::Heat),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, Throttle::HardwareHeat),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, Throttle::PowerBrake),
    ];
    named.into_iter().filter(|(reason, _)| reasons.contains(*reason)).map(|(_, ours)| ours).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of a card that reports nothing.
    fn silent() -> Answers {
        Answers {
            name: Err(NvmlError::NotSupported),
            memory: Err(NvmlError::NotSupported),
            power_mw: Err(NvmlError::NoPermission),
            power_limit_mw: Err(NvmlError::NotSupported),
            temperature_c: Err(NvmlError::NotSupported),
            utilisation: Err(NvmlError::NotSupported),
            clock_sm_mhz: Err(NvmlError::NotSupported),
            clock_memory_mhz: Err(NvmlError::NotSupported),
            throttle: Err(NvmlError::NotSupported),
            ecc_uncorrected: Err(NvmlError::NotSupported),
            xids: (None, None),
        }
    }

    #[test]
    fn what_a_card_does_not_tell_is_not_known() {
        assert_eq!(silent().health(), Some(DeviceHealth::default()));
        let one = Answers { temperature_c: Ok(64), ..silent() };
        assert_eq!(one.health(), Some(DeviceHealth { temperature_c: Some(64), ..DeviceHealth::default() }));
    }

    #[test]
    fn answers_are_converted_to_the_units_that_names_say() {
        let answers = Answers {
            memory: Ok(MemoryInfo { free: 3, reserved: 1, total: 9, used: 5, version: 2 }),
            power_mw: Ok(512_250),
            power_limit_mw: Ok(700_000),
            utilisation: Ok(Utilization { gpu: 98, memory: 71 }),
            clock_sm_mhz: Ok(1980),
            clock_memory_mhz: Ok(3201),
            ecc_uncorrected: Ok(0),
            xids: (Some(2), Some(79)),
            ..silent()
        };
        let health = answers.health().unwrap();
        assert_eq!((health.memory_used_bytes, health.memory_free_bytes), (Some(5), Some(3)));
        assert_eq!((health.power_w, health.power_limit_w), (Some(512.25), Some(700.0)));
        assert_eq!((health.utilisation_percent, health.memory_utilisation_percent), (Some(98), Some(71)));
        assert_eq!((health.clock_sm_mhz, health.clock_memory_mhz), (Some(1980), Some(3201)));
        assert_eq!((health.ecc_uncorrected, health.xid_count, health.xid_last), (Some(0), Some(2), Some(79)));
    }

    #[test]
    fn idleness_is_no_throttling() {
        assert_eq!(throttle(ThrottleReasons::GPU_IDLE), []);
        let reasons = ThrottleReasons::GPU_IDLE
            | ThrottleReasons::HW_THERMAL_SLOWDOWN
            | ThrottleReasons::HW_SLOWDOWN
            | ThrottleReasons::SW_POWER_CAP;
        assert_eq!(throttle(reasons), [Throttle::PowerCap, Throttle::Hardware, Throttle::HardwareHeat]);
    }

    #[test]
    fn a_lost_card_is_not_taken_for_a_silent_one() {
        for error in [NvmlError::GpuLost, NvmlError::ResetRequired] {
            assert_eq!(Answers { power_mw: Err(error), ..silent() }.health(), None);
        }
    }
}
