//! Devices: the choice for an engine, and a list of those present.

use std::fmt;

use crate::backend::cpu::{Cpu, Isa};

/// Why only the CPU is available.
#[cfg(not(feature = "cuda"))]
pub(super) const NO_CUDA: &str = "this build has no CUDA backend (feature `cuda`)";

/// The device an engine runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The first GPU if there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU by its index; an error if it is missing.
    Cuda(usize),
}

/// A device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The value for [`EngineBuilder::device`](crate::EngineBuilder::device).
    pub device: Device,
    /// The GPU's product name, or the CPU's instruction set.
    pub name: String,
    /// Bytes of its memory, if the system reports them.
    pub memory_bytes: Option<u64>,
    /// Bytes of free memory; for a GPU only with the feature `nvml`.
    pub memory_free_bytes: Option<u64>,
    /// Why no engine can run on it; `None` if one can.
    pub unusable: Option<String>,
}

impl Device {
    /// The devices of this machine, the CPU first. If GPUs are unavailable, one entry gives the reason.
    pub fn list() -> Vec<DeviceInfo> {
        let memory = Cpu::memory();
        let cpu = DeviceInfo {
            device: Device::Cpu,
            name: Isa::detect().to_string(),
            memory_bytes: memory.map(|memory| memory.bytes),
            memory_free_bytes: memory.map(|memory| memory.free_bytes),
            unusable: None,
        };
        let gpus = gpus().unwrap_or_else(|why| {
            let (device, name) = (Device::Cuda(0), "CUDA".into());
            vec![DeviceInfo {
                device,
                name,
                memory_bytes: None,
                memory_free_bytes: None,
                unusable: Some(why),
            }]
        });
        std::iter::once(cpu).chain(gpus).collect()
    }
}

#[cfg(feature = "cuda")]
fn gpus() -> Result<Vec<DeviceInfo>, String> {
    use crate::backend::cuda;
    let devices = cuda::devices().map_err(|why| why.to_string())?;
    let entry = |info: cuda::DeviceInfo| {
        let health = cuda::monitor(&info).and_then(|monitor| monitor.health()).ok();
        DeviceInfo {
            device: Device::Cuda(info.ordinal),
            memory_bytes: Some(info.memory_bytes as u64),
            memory_free_bytes: health.and_then(|health| health.memory_free_bytes),
            unusable: info.unusable(),
            name: info.name,
        }
    };
    Ok(devices.into_iter().map(entry).collect())
}

#[cfg(not(feature = "cuda"))]
fn gpus() -> Result<Vec<DeviceInfo>, String> {
    Err(NO_CUDA.to_owned())
}

/// Serialised in its `Display` form.
#[cfg(feature = "serde")]
impl serde::Serialize for Device {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => f.write_str("auto"),
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl std::str::FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':').unwrap_or((text, "0")) {
            ("auto", "0") => Ok(Device::Auto),
            ("cpu", "0") => Ok(Device::Cpu),
            ("cuda", index) => index.parse().map(Device::Cuda).map_err(|_| format!("no GPU index: {index}")),
            _ => Err(format!("expected auto, cpu, cuda or cuda:N, found {text}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_parse_as_they_print_and_nonsense_is_refused() {
        for device in [Device::Cuda(1), Device::Cuda(0), Device::Auto, Device::Cpu] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
        assert!("cpu:1".parse::<Device>().is_err());
        assert!("cuda:x".parse::<Device>().is_err());
        assert!("metal".parse::<Device>().is_err());
    }

    #[test]
    fn the_cpu_is_listed_with_its_memory_and_gpus_with_theirs_or_a_reason() {
        let devices = Device::list();
        let cpu = &devices[0];
        assert_eq!((cpu.device, &cpu.unusable), (Device::Cpu, &None));
        assert_eq!(cpu.memory_bytes.is_some(), cfg!(target_os = "linux"));
        assert!(cpu.memory_free_bytes <= cpu.memory_bytes);
        for gpu in &devices[1..] {
            assert!(gpu.unusable.is_some() || gpu.memory_bytes > Some(0), "{gpu:?}");
        }
        assert!(cfg!(feature = "cuda") || devices[1].unusable.is_some(), "{devices:?}");
    }
}
