//! The system's loader of shared libraries.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A loaded library. It stays loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Loaded(*mut c_void);

impl Loaded {
    /// Loads a library.
    ///
    /// # Errors
    /// The loader's reason.
    pub(super) fn load(path: &Path) -> Result<Self, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        Self::open(&name, libc::RTLD_NOW | libc::RTLD_LOCAL).ok_or_else(loader_message)
    }

    /// The library that goes by a name already.
    pub(super) fn known_as(name: &CStr) -> Option<Self> {
        Self::open(name, libc::RTLD_NOW | libc::RTLD_NOLOAD)
    }

    fn open(name: &CStr, flags: i32) -> Option<Self> {
        // SAFETY: the name ends with zero; the library's constructors are Rust's own, or the CUDA
        // driver's, which any program may run.
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
        (!handle.is_null()).then_some(Self(handle))
    }

    pub(super) fn symbol(self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the handle is of a loaded library.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!symbol.is_null()).then_some(symbol)
    }
}

fn loader_message() -> String {
    // SAFETY: `dlerror` gives null or a string that lives until this thread's next loader call.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "no reason given".to_string();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}
