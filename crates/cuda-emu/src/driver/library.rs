//! The driver library as the program sees it: found, loaded, and called through `control`.

use std::ffi::{CStr, c_uint, c_void};
use std::path::PathBuf;

use super::control::Sink;
use super::install::InstallError;
use super::loader::Loaded;
use super::options;
use super::wire::{self, AllSettings, Command};

/// The file's name. The name that the loader knows it by is [`DRIVER`], see `build.rs`.
const FILE: &str = "libcuda_emu.so";
/// The name that CUDA programs ask the loader for, and the real library's own.
const DRIVER: &CStr = c"libcuda.so";
const REAL_DRIVER: &CStr = c"libcuda.so.1";

/// The loaded library. It stays loaded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    configure: unsafe extern "C" fn(*const AllSettings) -> c_uint,
    command: unsafe extern "C" fn(c_uint, u64, u64) -> c_uint,
    read: unsafe extern "C" fn(c_uint, Sink, *mut c_void) -> c_uint,
}

/// Where the shared library can lie: named by the environment, or beside the program. Cargo puts
/// test programs and the libraries that they depend on into `deps`, examples and binaries beside it.
fn candidates() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = options::library_path().into_iter().collect();
    let program = std::env::current_exe().ok();
    for folder in program.iter().flat_map(|program| program.ancestors().skip(1).take(3)) {
        found.push(folder.join(FILE));
        found.push(folder.join("deps").join(FILE));
    }
    found.retain(|path| path.exists());
    // Last, wherever the loader looks: cargo sets LD_LIBRARY_PATH for what it runs.
    found.push(PathBuf::from(FILE));
    found
}

impl Library {
    /// Finds and loads the library, and makes sure that later loads of the driver mean this one.
    pub(crate) fn load() -> Result<Self, InstallError> {
        if cfg!(any(not(target_os = "linux"), target_env = "musl")) {
            return Err(InstallError::Unsupported);
        }
        let is_real = |library: Loaded| library.symbol(c"cuda_emu_version").is_none();
        if Loaded::known_as(REAL_DRIVER).is_some() || Loaded::known_as(DRIVER).is_some_and(is_real) {
            return Err(InstallError::RealDriver);
        }
        let mut tried = Vec::new();
        for path in candidates() {
            match Loaded::load(&path) {
                Ok(library) => return Self::take_over(library),
                Err(reason) => tried.push(format!("{}: {reason}", path.display())),
            }
        }
        Err(InstallError::NotFound { tried: tried.join("\n  ") })
    }

    /// Makes sure that a program that asks for the driver will get this library.
    fn take_over(loaded: Loaded) -> Result<Self, InstallError> {
        let library = Self::functions(loaded).ok_or(InstallError::OtherVersion)?;
        if Loaded::known_as(DRIVER) == Some(loaded) { Ok(library) } else { Err(InstallError::WrongName) }
    }

    fn functions(library: Loaded) -> Option<Self> {
        let version = library.symbol(c"cuda_emu_version")?;
        // SAFETY: the library's function of that name has this type in every version.
        let version = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> c_uint>(version) };
        if version() != wire::VERSION {
            return None;
        }
        let configure = library.symbol(c"cuda_emu_configure")?;
        let command = library.symbol(c"cuda_emu_command")?;
        let read = library.symbol(c"cuda_emu_read")?;
        // SAFETY: the functions of these names have these types in this version, which is checked.
        unsafe {
            Some(Self {
                configure: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const AllSettings) -> c_uint,
                >(configure),
                command: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_uint, u64, u64) -> c_uint>(
                    command,
                ),
                read: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(c_uint, Sink, *mut c_void) -> c_uint,
                >(read),
            })
        }
    }

    /// Configures the library; gives false where it has been, by another copy of this crate.
    pub(crate) fn configure(&self, settings: &AllSettings) -> bool {
        // SAFETY: the structure is of this version and lives during the call.
        unsafe { (self.configure)(settings) == 0 }
    }

    /// Runs a command for a device; gives the `CUresult`.
    pub(crate) fn command(&self, command: Command, device: usize) -> u32 {
        let (number, first, second) = command.encode();
        let number = wire::with_device(number, device);
        // SAFETY: takes numbers only.
        unsafe { (self.command)(number, first, second) }
    }

    /// Reads text.
    pub(crate) fn read(&self, what: c_uint) -> String {
        unsafe extern "C" fn append(target: *mut c_void, bytes: *const u8, length: usize) {
            // SAFETY: `target` is the vector below, and the library vouches for the bytes.
            unsafe {
                (*target.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(bytes, length))
            };
        }
        let mut bytes: Vec<u8> = Vec::new();
        // SAFETY: `append` is called with the vector, which lives during the call.
        unsafe { (self.read)(what, Some(append), (&raw mut bytes).cast()) };
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
