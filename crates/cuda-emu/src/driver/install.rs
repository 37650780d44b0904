//! Puts the emulator in the CUDA driver's place, and controls it from then on.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::control::{CALLS, LAST_FAULT, STATISTICS};
use super::faults::Injection;
use super::library::Library;
use super::options::{self, InstallOptions};
use super::state::KernelStats;
use super::wire::{self, AllSettings, Command, FaultReport};

/// Why the emulator could not be installed. `Debug` shows the message too, for tests that unwrap.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// The system is not Linux, or the C library is not one that loads libraries at run time.
    #[error(
        "cuda-emu can take the driver's place on Linux with a C library that loads shared libraries (glibc) only"
    )]
    Unsupported,
    /// A CUDA driver library is loaded: programs would go on using it.
    #[error(
        "a real CUDA driver library is loaded already: call `cuda_emu::install` before anything that loads libcuda.so"
    )]
    RealDriver,
    /// The shared library is not where it is looked for.
    #[error(
        "libcuda_emu.so was not found; cargo builds it for a dependency on `cuda-emu`; \
         set CUDA_EMU_LIBRARY to its path where it lies elsewhere; tried\n  {tried}"
    )]
    NotFound {
        /// What was tried, with the loader's reasons.
        tried: String,
    },
    /// The shared library is of another version of this crate.
    #[error("libcuda_emu.so is of another version of cuda-emu: build again")]
    OtherVersion,
    /// The shared library was linked without the driver's name.
    #[error(
        "libcuda_emu.so does not go by the name libcuda.so: was it linked without cuda-emu's build script?"
    )]
    WrongName,
    /// An environment variable cannot be understood.
    #[error("{0}")]
    Environment(String),
    /// It is installed with other options. One process has one driver.
    #[error("cuda-emu is installed in this process already, with other options")]
    OtherOptions,
}

impl fmt::Debug for InstallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// There is no emulator: the tests run on the machine's own card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cuda-emu is not installed: the tests run on this machine's own card")]
pub struct NotEmulated;

/// An installed emulator, or the note that there is none because the environment says so.
///
/// All handles of a process control the same devices; what is for one of them is for the first, unless
/// [`Emulator::device`] names another. A device's failure sticks to it, and tests of one process share it: tests that inject failures belong into a test program of their own, or
/// must exclude each other and call [`Emulator::reset`].
#[derive(Clone, Copy, Debug)]
pub struct Emulator {
    library: Option<Library>,
    /// How many devices there are.
    devices: usize,
    /// Which of them is spoken of.
    device: usize,
}

/// What is installed in this process, and how.
static INSTALLED: Mutex<Option<(Library, AllSettings)>> = Mutex::new(None);

/// Makes programs of this process that look for the CUDA driver (`dlopen("libcuda.so")`, as cudarc
/// with `dynamic-loading` does) find the emulator. Call it before the first CUDA call. Calling it
/// again with the same options gives the same emulator.
///
/// It loads `libcuda_emu.so`, which cargo builds and puts beside the test, under the name
/// `libcuda.so`. Processes that do not call it are not changed. Programs that link `libcuda.so` when
/// they are built (cudarc with `dynamic-linking`) have the driver before, and cannot use it.
///
/// # Errors
/// See [`InstallError`].
pub fn install(options: &InstallOptions) -> Result<Emulator, InstallError> {
    if options.is_skipped() {
        return Ok(Emulator { library: None, devices: 0, device: 0 });
    }
    let configs = [std::slice::from_ref(&options.device), &options.others].concat();
    let configs = options::with_environment(configs).map_err(InstallError::Environment)?;
    let settings = AllSettings::new(&configs);
    let emulator = |library| Emulator { library: Some(library), devices: settings.count(), device: 0 };
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((library, before)) = *installed {
        let same = before == settings;
        return if same { Ok(emulator(library)) } else { Err(InstallError::OtherOptions) };
    }
    let library = Library::load()?;
    if !library.configure(&settings) {
        return Err(InstallError::OtherOptions);
    }
    *installed = Some((library, settings));
    Ok(emulator(library))
}

/// What stopped the first emulated device that was stopped, if something did and the emulator is installed.
pub fn last_fault() -> Option<FaultReport> {
    let installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    let (library, settings) = (*installed)?;
    drop(installed);
    let devices = settings.count();
    let on = |device| Emulator { library: Some(library), devices, device }.last_fault();
    (0..devices).find_map(on)
}

impl Emulator {
    /// Whether there is an emulator; if not, the tests run on the machine's own card.
    pub fn is_emulated(&self) -> bool {
        self.library.is_some()
    }

    /// The same emulator, for what concerns one device: failures and parts of memory. `None` where there is
    /// no such emulated device.
    pub fn device(&self, ordinal: usize) -> Option<Emulator> {
        (ordinal < self.devices).then_some(Emulator { device: ordinal, ..*self })
    }

    fn command(&self, command: Command) -> Result<u32, NotEmulated> {
        self.library.map(|library| library.command(command, self.device)).ok_or(NotEmulated)
    }

    /// Starts the order of streams, warps and copies anew from a seed; 0 keeps them in order.
    ///
    /// # Errors
    /// There is no emulator.
    pub fn set_seed(&self, seed: u64) -> Result<(), NotEmulated> {
        self.command(Command::SetSeed(seed)).map(drop)
    }

    /// Lets something fail later on the device.
    ///
    /// # Errors
    /// There is no emulator.
    pub fn inject(&self, injection: Injection) -> Result<(), NotEmulated> {
        self.command(Command::Inject(injection)).map(drop)
    }

    /// Forgets sticky errors, the last reports, injections, statistics, and work that has not run.
    /// A card cannot do that: its process must end.
    ///
    /// # Errors
    /// There is no emulator.
    pub fn reset(&self) -> Result<(), NotEmulated> {
        self.command(Command::Reset).map(drop)
    }

    /// Registers a part of an allocation as a unit of its own: as soon as an allocation has parts,
    /// kernels may use only those. So bounds are checked inside of pools. Gives false where the range
    /// is not inside of one allocation.
    ///
    /// # Errors
    /// There is no emulator.
    pub fn register_part(&self, address: u64, bytes: u64) -> Result<bool, NotEmulated> {
        self.command(Command::RegisterPart(address, bytes)).map(|code| code == 0)
    }

    /// Takes a part's registration back. Gives false where no part starts there.
    ///
    /// # Errors
    /// There is no emulator.
    pub fn unregister_part(&self, address: u64) -> Result<bool, NotEmulated> {
        self.command(Command::UnregisterPart(address)).map(|code| code == 0)
    }

    /// What each kernel did since the start or the last [`Emulator::reset`], by name. Work that waits
    /// is not in it: synchronize first. Empty without an emulator.
    pub fn statistics(&self) -> BTreeMap<String, KernelStats> {
        self.library.map(|library| wire::decode_statistics(&library.read(STATISTICS))).unwrap_or_default()
    }

    /// How often each of the driver's functions was called in this process: what a program allocates
    /// and waits for shows in the difference of two. Empty without an emulator.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        self.library.map(|library| wire::decode_calls(&library.read(CALLS))).unwrap_or_default()
    }

    /// What stopped the device, if something did.
    pub fn last_fault(&self) -> Option<FaultReport> {
        wire::decode_report(&self.library?.read(wire::with_device(LAST_FAULT, self.device)))
    }
}
