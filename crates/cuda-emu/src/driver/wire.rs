//! What crosses between the program's copy of this crate and the driver library's: configurations
//! and commands as plain C structures, reports and statistics as bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use super::devices::DEVICES_MAX;
use super::faults::Injection;
use super::report::Report;
use super::state::KernelStats;
use crate::arch::Arch;
use crate::device::{Checks, DeviceConfig, Vectors};
use crate::stats::{InstructionClass, LaunchStats};

/// The version of everything here: both sides must have the same.
pub(crate) const VERSION: u32 = 5;

/// A [`DeviceConfig`] as a C structure.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    arch: u32,
    checks: u32,
    seed: u64,
    threads: u64,
    memory_bytes: u64,
    warp_instructions_max: u64,
    memory_statistics: u32,
    vectors: u32,
    reserved_is_static: u64,
}

impl From<&DeviceConfig> for Settings {
    fn from(config: &DeviceConfig) -> Self {
        Self {
            arch: match config.arch {
                Arch::Sm75 => 75,
                Arch::Sm80 => 80,
                Arch::Sm90 => 90,
            },
            checks: u32::from(config.checks == Checks::All),
            seed: config.seed,
            threads: config.threads as u64,
            memory_bytes: config.memory_bytes,
            warp_instructions_max: config.warp_instructions_max,
            memory_statistics: u32::from(config.memory_statistics),
            vectors: config.vectors as u32,
            reserved_is_static: u64::from(config.reserved_is_static),
        }
    }
}

impl From<&Settings> for DeviceConfig {
    fn from(settings: &Settings) -> Self {
        Self {
            arch: match settings.arch {
                75 => Arch::Sm75,
                90 => Arch::Sm90,
                _ => Arch::Sm80,
            },
            checks: if settings.checks == 0 { Checks::Bounds } else { Checks::All },
            seed: settings.seed,
            threads: settings.threads as usize,
            memory_bytes: settings.memory_bytes,
            warp_instructions_max: settings.warp_instructions_max,
            memory_statistics: settings.memory_statistics != 0,
            reserved_is_static: settings.reserved_is_static != 0,
            vectors: match settings.vectors {
                0 => Vectors::None,
                _ => Vectors::Avx2,
            },
        }
    }
}

/// All devices as a C structure: so many of the settings count.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllSettings {
    count: u64,
    devices: [Settings; DEVICES_MAX],
}

impl AllSettings {
    /// Of at most [`DEVICES_MAX`] devices.
    pub(crate) fn new(configs: &[DeviceConfig]) -> Self {
        let mut devices = [Settings::default(); DEVICES_MAX];
        devices.iter_mut().zip(configs).for_each(|(settings, config)| *settings = config.into());
        Self { count: configs.len() as u64, devices }
    }

    /// How many devices.
    pub(crate) fn count(&self) -> usize {
        (self.count as usize).min(DEVICES_MAX)
    }

    /// A configuration each.
    pub(crate) fn configs(&self) -> Vec<DeviceConfig> {
        self.devices[..self.count()].iter().map(DeviceConfig::from).collect()
    }
}

/// A number with the index of the device that is meant: what [`split`] takes apart.
pub(crate) fn with_device(number: u32, device: usize) -> u32 {
    number | (device as u32) << 8
}

/// The number, and the index of the device.
pub(crate) fn split(number: u32) -> (u32, usize) {
    (number & 0xff, (number >> 8) as usize)
}

/// What the program tells the driver library: a number and two arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    SetSeed(u64),
    /// Forgets the sticky error, the last report, injections, statistics and work that waits.
    Reset,
    RegisterPart(u64, u64),
    UnregisterPart(u64),
    Inject(Injection),
}

impl Command {
    /// As numbers.
    pub(crate) fn encode(self) -> (u32, u64, u64) {
        match self {
            Command::SetSeed(seed) => (1, seed, 0),
            Command::Reset => (2, 0, 0),
            Command::RegisterPart(address, bytes) => (3, address, bytes),
            Command::UnregisterPart(address) => (4, address, 0),
            Command::Inject(Injection::OutOfMemory { allocation }) => (5, allocation, 0),
            Command::Inject(Injection::Error { launch, code }) => (6, launch, u64::from(code)),
            Command::Inject(Injection::NeverEnds { launch, stopped_after }) => {
                (7, launch, stopped_after.as_nanos() as u64)
            }
        }
    }

    /// From numbers.
    pub(crate) fn decode(number: u32, first: u64, second: u64) -> Option<Self> {
        Some(match number {
            1 => Command::SetSeed(first),
            2 => Command::Reset,
            3 => Command::RegisterPart(first, second),
            4 => Command::UnregisterPart(first),
            5 => Command::Inject(Injection::OutOfMemory { allocation: first }),
            6 => Command::Inject(Injection::Error { launch: first, code: u32::try_from(second).ok()? }),
            7 => {
                let stopped_after = Duration::from_nanos(second);
                Command::Inject(Injection::NeverEnds { launch: first, stopped_after })
            }
            _ => return None,
        })
    }
}

/// What stopped the emulated device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultReport {
    /// The `CUresult` that sticks to the context.
    pub code: u32,
    /// The name of the [`FaultKind`](crate::FaultKind), `Peer` where its address is memory of
    /// another device, `Memory` for a copy whose memory is gone, `Injected` for what a test injected.
    pub kind: String,
    /// The kernel; empty where none ran.
    pub kernel: String,
    /// The whole report, as on the standard error stream.
    pub text: String,
}

/// A report as bytes: code, kind and kernel on a line each, then the text.
pub(crate) fn encode_report(report: &Report) -> String {
    format!("{}\n{}\n{}\n{}", report.status as u32, report.kind, report.kernel, report.text)
}

/// From bytes.
pub(crate) fn decode_report(text: &str) -> Option<FaultReport> {
    let mut parts = text.splitn(4, '\n');
    let mut next = || parts.next().map(str::to_string);
    Some(FaultReport { code: next()?.parse().ok()?, kind: next()?, kernel: next()?, text: next()? })
}

/// The classes, in the order of their numbers here.
const CLASSES: [InstructionClass; 13] = [
    InstructionClass::Integer,
    InstructionClass::Float,
    InstructionClass::Half,
    InstructionClass::Convert,
    InstructionClass::Global,
    InstructionClass::Shared,
    InstructionClass::Local,
    InstructionClass::Atomic,
    InstructionClass::Flow,
    InstructionClass::Sync,
    InstructionClass::Collective,
    InstructionClass::Matrix,
    InstructionClass::AsyncCopy,
];

/// All counts, but for those by class.
fn counts(stats: &mut LaunchStats) -> [&mut u64; 12] {
    let LaunchStats {
        warp_instructions,
        thread_instructions,
        by_class: _,
        global_bytes_read,
        global_bytes_written,
        shared_bytes_read,
        shared_bytes_written,
        global_requests,
        global_sectors,
        global_footprint_bytes,
        shared_requests,
        shared_bank_conflicts,
        tensor_multiply_adds,
    } = stats;
    [
        warp_instructions,
        thread_instructions,
        global_bytes_read,
        global_bytes_written,
        shared_bytes_read,
        shared_bytes_written,
        global_requests,
        global_sectors,
        global_footprint_bytes,
        shared_requests,
        shared_bank_conflicts,
        tensor_multiply_adds,
    ]
}

/// Statistics as bytes: a line per kernel, numbers separated by tabs: launches, counts, classes.
pub(crate) fn encode_statistics(statistics: &BTreeMap<String, KernelStats>) -> String {
    let mut text = String::new();
    for (kernel, stats) in statistics {
        let mut sum = stats.sum.clone();
        let classes = CLASSES.map(|class| sum.by_class.get(&class).copied().unwrap_or(0));
        let fields =
            std::iter::once(stats.launches).chain(counts(&mut sum).map(|count| *count)).chain(classes);
        text.push_str(kernel);
        fields.for_each(|field| text.push_str(&format!("\t{field}")));
        text.push('\n');
    }
    text
}

/// Calls by entry point, a line each.
pub(crate) fn encode_calls(calls: &BTreeMap<&'static str, u64>) -> String {
    calls.iter().map(|(name, count)| format!("{name}\t{count}\n")).collect()
}

/// From bytes.
pub(crate) fn decode_calls(text: &str) -> BTreeMap<String, u64> {
    let call =
        |line: &str| line.split_once('\t').and_then(|(name, n)| Some((name.to_string(), n.parse().ok()?)));
    text.lines().filter_map(call).collect()
}

/// From bytes. Lines that are no statistics are left out.
pub(crate) fn decode_statistics(text: &str) -> BTreeMap<String, KernelStats> {
    text.lines().filter_map(decode_kernel).collect()
}

fn decode_kernel(line: &str) -> Option<(String, KernelStats)> {
    let mut fields = line.split('\t');
    let kernel = fields.next()?.to_string();
    let mut numbers = fields.map_while(|field| field.parse().ok());
    let launches = numbers.next()?;
    let mut sum = LaunchStats::default();
    for count in counts(&mut sum) {
        *count = numbers.next()?;
    }
    for (class, count) in CLASSES.into_iter().zip(numbers).filter(|(_, count)| *count > 0) {
        sum.by_class.insert(class, count);
    }
    Some((kernel, KernelStats { launches, sum }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_come_back() {
        let mut sum =
            LaunchStats { tensor_multiply_adds: 7, warp_instructions: u64::MAX, ..LaunchStats::default() };
        sum.by_class.insert(InstructionClass::AsyncCopy, 3);
        let statistics = BTreeMap::from([
            ("a".to_string(), KernelStats { launches: 2, sum }),
            ("b".to_string(), KernelStats::default()),
        ]);
        assert_eq!(decode_statistics(&encode_statistics(&statistics)), statistics);
    }

    #[test]
    fn commands_come_back() {
        let second = Duration::from_secs(1);
        let commands = [
            Command::SetSeed(u64::MAX),
            Command::Reset,
            Command::RegisterPart(1, 2),
            Command::UnregisterPart(3),
            Command::Inject(Injection::OutOfMemory { allocation: 4 }),
            Command::Inject(Injection::Error { launch: 5, code: 700 }),
            Command::Inject(Injection::NeverEnds { launch: 6, stopped_after: second }),
        ];
        for command in commands {
            let (number, first, second) = command.encode();
            assert_eq!(Command::decode(number, first, second), Some(command));
        }
        assert_eq!(Command::decode(99, 0, 0), None);
    }

    #[test]
    fn configurations_come_back() {
        let config =
            DeviceConfig { arch: Arch::Sm90, seed: 9, checks: Checks::Bounds, ..DeviceConfig::default() };
        let other = DeviceConfig {
            arch: Arch::Sm75,
            memory_bytes: 7,
            reserved_is_static: true,
            ..DeviceConfig::default()
        };
        let settings = AllSettings::new(&[config, other]);
        assert_eq!(settings.configs().len(), 2);
        assert_eq!(
            settings.configs().iter().map(|c| c.reserved_is_static).collect::<Vec<_>>(),
            [false, true]
        );
        assert_eq!(AllSettings::new(&settings.configs()), settings);
        assert_eq!(split(with_device(3, 5)), (3, 5));
    }
}
