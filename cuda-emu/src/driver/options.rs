//! What an installed emulator is like: options in code, and the environment over them. All
//! variables are read here.
//!
//! - `CUDA_EMU_DEVICE`: `sm_80` or `sm_90`, the card that it poses as.
//! - `CUDA_EMU_SHUFFLE`: the seed of the order of streams, warps and copies; 0 keeps them in order.
//! - `CUDA_EMU_LIBRARY`: the path of `libcuda_emu.so`, where it is not found beside the test.
//! - the variable named by [`InstallOptions::skip_variable`].

use crate::arch::Arch;
use crate::device::DeviceConfig;

const DEVICE: &str = "CUDA_EMU_DEVICE";
const SHUFFLE: &str = "CUDA_EMU_SHUFFLE";
const LIBRARY: &str = "CUDA_EMU_LIBRARY";
/// Instructions after which a launch counts as one that never ends: minutes of run time.
const WARP_INSTRUCTIONS_MAX: u64 = 1 << 34;

/// How to install the emulator.
#[derive(Clone, Debug)]
pub struct InstallOptions {
    /// An environment variable that makes [`install`](crate::install) do nothing when it is set, and
    /// neither empty nor `0`: then the same tests run on the machine's own card.
    pub skip_variable: Option<&'static str>,
    /// The card, its memory, the checks and the seed. `CUDA_EMU_DEVICE` and `CUDA_EMU_SHUFFLE` go
    /// before its `arch` and `seed`.
    pub device: DeviceConfig,
}

impl Default for InstallOptions {
    fn default() -> Self {
        let device = DeviceConfig { warp_instructions_max: WARP_INSTRUCTIONS_MAX, ..DeviceConfig::default() };
        Self { skip_variable: None, device }
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

/// A configuration with what the environment says.
///
/// # Errors
/// The environment says what cannot be understood.
pub(crate) fn with_environment(config: DeviceConfig) -> Result<DeviceConfig, String> {
    let arch = match std::env::var(DEVICE).as_deref() {
        Err(_) | Ok("") => config.arch,
        Ok("sm_80") => Arch::Sm80,
        Ok("sm_90" | "sm_90a") => Arch::Sm90,
        Ok(other) => return Err(format!("{DEVICE} is `{other}`, may be sm_80 or sm_90")),
    };
    let seed = match std::env::var(SHUFFLE).as_deref() {
        Err(_) | Ok("") => config.seed,
        Ok(text) => text.parse().map_err(|_| format!("{SHUFFLE} is `{text}`, must be a whole number"))?,
    };
    Ok(DeviceConfig { arch, seed, ..config })
}

/// As [`with_environment`], for a library that nobody configured: what cannot be understood is said
/// and left out.
pub(crate) fn from_environment(config: DeviceConfig) -> DeviceConfig {
    with_environment(config.clone()).unwrap_or_else(|message| {
        eprintln!("[cuda-emu] {message}");
        config
    })
}
