//! What an installed emulator is like: options in code, and the environment over them. All
//! variables are read here.
//!
//! - `CUDA_EMU_DEVICE`: `sm_75`, `sm_80` or `sm_90`, the card that all devices pose as; or a list,
//!   `sm_80,sm_90`: a device of each.
//! - `CUDA_EMU_DRIVER`: the version of CUDA that the driver is for, such as `12080`, or `mismatch`: a driver
//!   that does not start, as after an update without a restart.
//! - `CUDA_EMU_SHUFFLE`: the seed of the order of streams, warps and copies; 0 keeps them in order.
//! - `CUDA_EMU_RESERVED`: `static` or `apart`: whether the shared memory that the system takes from every block
//!   counts as the kernel's own.
//! - `CUDA_EMU_LIBRARY`: the path of `libcuda_emu.so`, where it is not found beside the test.
//! - the variable named by [`InstallOptions::skip_variable`].

use super::devices::DEVICES_MAX;
use crate::arch::Arch;
use crate::device::DeviceConfig;

const DEVICE: &str = "CUDA_EMU_DEVICE";
const DRIVER: &str = "CUDA_EMU_DRIVER";
const SHUFFLE: &str = "CUDA_EMU_SHUFFLE";
const RESERVED: &str = "CUDA_EMU_RESERVED";
const LIBRARY: &str = "CUDA_EMU_LIBRARY";
/// Instructions after which a launch counts as one that never ends: minutes of run time.
const WARP_INSTRUCTIONS_MAX: u64 = 1 << 34;
/// The version of the driver API that is spoken: 13.0.
pub(crate) const DRIVER_VERSION: i32 = 13_000;

/// How to install the emulator.
#[derive(Clone, Debug)]
pub struct InstallOptions {
    /// An environment variable that makes [`install`](crate::install) do nothing when it is set, and
    /// neither empty nor `0`: then the same tests run on the machine's own card.
    pub skip_variable: Option<&'static str>,
    /// The card, its memory, the checks and the seed. `CUDA_EMU_DEVICE`, `CUDA_EMU_SHUFFLE` and
    /// `CUDA_EMU_RESERVED` go before its `arch`, `seed` and `reserved_is_static`.
    pub device: DeviceConfig,
    /// Devices behind the first, at most 7: none at first. The environment goes before the same of theirs.
    pub others: Vec<DeviceConfig>,
}

impl Default for InstallOptions {
    fn default() -> Self {
        let device = DeviceConfig { warp_instructions_max: WARP_INSTRUCTIONS_MAX, ..DeviceConfig::default() };
        Self { skip_variable: None, device, others: Vec::new() }
    }
}

impl InstallOptions {
    /// The default options with a variable that skips the emulator.
    pub fn skipped_by(variable: &'static str) -> Self {
        Self { skip_variable: Some(variable), ..Self::default() }
    }

    /// Whether the environment asks for the machine's own card.
    pub(crate) fn is_skipped(&self) -> bool {
        self.skip_variable.and_then(std::env::var_os).is_some_and(|value| !value.is_empty() && value != "0")
    }
}

/// The path that the environment gives for the shared library.
pub(crate) fn library_path() -> Option<std::path::PathBuf> {
    std::env::var_os(LIBRARY).map(Into::into)
}

/// The version that the driver says it has; `None` where it does not start.
///
/// # Errors
/// The environment says what cannot be understood.
pub(crate) fn driver_version() -> Result<Option<i32>, String> {
    match std::env::var(DRIVER).as_deref() {
        Err(_) | Ok("") => Ok(Some(DRIVER_VERSION)),
        Ok("mismatch") => Ok(None),
        Ok(text) => match text.parse() {
            Ok(version) => Ok(Some(version)),
            Err(_) => Err(format!("{DRIVER} is `{text}`, must be a number such as 12080, or mismatch")),
        },
    }
}

/// Configurations with what the environment says. Devices that only the environment asks for are as the
/// first.
///
/// # Errors
/// The environment says what cannot be understood, or there are too many devices.
pub(crate) fn with_environment(mut configs: Vec<DeviceConfig>) -> Result<Vec<DeviceConfig>, String> {
    driver_version()?;
    let archs = match std::env::var(DEVICE).as_deref() {
        Err(_) | Ok("") => Vec::new(),
        Ok(names) => names.split(',').map(arch).collect::<Result<Vec<Arch>, String>>()?,
    };
    let seed: Option<u64> = match std::env::var(SHUFFLE).as_deref() {
        Err(_) | Ok("") => None,
        Ok(text) => Some(text.parse().map_err(|_| format!("{SHUFFLE} is `{text}`, must be a whole number"))?),
    };
    let reserved_is_static = match std::env::var(RESERVED).as_deref() {
        Err(_) | Ok("") => None,
        Ok("static") => Some(true),
        Ok("apart") => Some(false),
        Ok(text) => return Err(format!("{RESERVED} is `{text}`, must be static or apart")),
    };
    if let (2.., Some(first)) = (archs.len(), configs.first().cloned()) {
        configs.resize(archs.len(), first);
    }
    if configs.len() > DEVICES_MAX {
        return Err(format!("{} devices, may be at most {DEVICES_MAX}", configs.len()));
    }
    for (config, arch) in configs.iter_mut().zip(archs.iter().cycle()) {
        config.arch = *arch;
    }
    for config in &mut configs {
        config.seed = seed.unwrap_or(config.seed);
        config.reserved_is_static = reserved_is_static.unwrap_or(config.reserved_is_static);
    }
    Ok(configs)
}

fn arch(name: &str) -> Result<Arch, String> {
    match name.trim() {
        "sm_75" => Ok(Arch::Sm75),
        "sm_80" => Ok(Arch::Sm80),
        "sm_90" | "sm_90a" => Ok(Arch::Sm90),
        other => Err(format!("{DEVICE} has `{other}`, may be sm_75, sm_80 or sm_90, or a list of them")),
    }
}

/// As [`with_environment`], for a library that nobody configured: what cannot be understood is said
/// and left out.
pub(crate) fn from_environment(configs: Vec<DeviceConfig>) -> Vec<DeviceConfig> {
    with_environment(configs.clone()).unwrap_or_else(|message| {
        eprintln!("[cuda-emu] {message}");
        configs
    })
}
