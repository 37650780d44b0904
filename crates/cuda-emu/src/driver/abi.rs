//! The C side of the entry points: their declaration ([`entry_points`]), the pointers that they
//! are given, and the structures that those point to. The layouts are those of `cuda.h`.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use super::status::{Answer, Status};

/// A handle (`CUstream`, `CUevent`, …): never a pointer here, but a number that tables know.
pub(crate) type Handle = usize;

/// A pointer that an entry point writes one value to; null where the caller wants none.
///
/// Entry points are `unsafe`, and the CUDA manual is their contract: whoever calls one vouches that
/// each such pointer is null or may be written.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value.
    pub(crate) fn set(&self, value: T) -> Answer {
        self.set_if_wanted(value).then_some(()).ok_or(Status::InvalidValue)
    }

    /// Writes the value where the pointer is not null; whether it did.
    pub(crate) fn set_if_wanted(&self, value: T) -> bool {
        if !self.0.is_null() {
            // SAFETY: not null, so writable by the type's contract.
            unsafe { self.0.write_unaligned(value) };
        }
        !self.0.is_null()
    }

    /// Writes the value of that index, where the pointer is to several.
    pub(crate) fn set_at(&self, index: usize, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: not null, so by the type's contract writable as far as the manual says is written.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// The pointer itself.
    pub(crate) fn pointer(&self) -> *mut T {
        self.0
    }

    /// The pointer as one to another type, where an argument's type depends on another argument.
    pub(crate) fn cast<U>(&self) -> Out<U> {
        Out(self.0.cast())
    }
}

impl<T: Copy> Out<T> {
    /// Reads the value that the caller put there, where the manual says that it is read first.
    pub(crate) fn get(&self) -> Answer<T> {
        In(self.0.cast_const()).get()
    }
}

/// A pointer to one or more values that an entry point reads, or null. The contract is [`Out`]'s.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> In<T> {
    /// Whether the pointer is null.
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The pointer itself.
    pub(crate) fn pointer(self) -> *const T {
        self.0
    }

    /// A pointer that an entry point found as a number, in something that it was given.
    pub(crate) fn from_address(address: usize) -> Self {
        Self(address as *const T)
    }
}

impl<T: Copy> In<T> {
    /// Reads the value.
    pub(crate) fn get(self) -> Answer<T> {
        self.at(0)
    }

    /// Reads the value of that index.
    pub(crate) fn at(self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: not null, so by the type's contract readable up to what the manual says is read.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// Reads so many values.
    pub(crate) fn list(self, count: usize) -> Answer<Vec<T>> {
        (0..count).map(|index| self.at(index)).collect()
    }
}

impl<T> Default for In<T> {
    fn default() -> Self {
        Self(std::ptr::null())
    }
}

impl In<u8> {
    /// Fills a slice from the bytes.
    pub(crate) fn copy_to(self, target: &mut [u8]) -> Answer {
        if self.0.is_null() && !target.is_empty() {
            return Err(Status::InvalidValue);
        }
        if !target.is_empty() {
            // SAFETY: not null, so by the type's contract readable for as long as the manual says.
            unsafe { std::ptr::copy(self.0, target.as_mut_ptr(), target.len()) };
        }
        Ok(())
    }
}

/// A C string that an entry point reads. The contract is [`Out`]'s.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text.
    pub(crate) fn get(&self) -> Answer<&str> {
        if self.0.is_null() {
            return Err(Status::InvalidValue);
        }
        // SAFETY: not null, so by the type's contract a string that ends with zero.
        unsafe { CStr::from_ptr(self.0) }.to_str().map_err(|_| Status::InvalidValue)
    }
}

/// How often each entry point was called.
static CALLS: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// How often each of CUDA's entry points was called since the library was loaded.
pub(crate) fn calls() -> BTreeMap<&'static str, u64> {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    calls.retain(|name, _| !name.starts_with("cuda_emu"));
    calls
}

/// Counts a call of an entry point and runs its body; a panic must not reach C.
pub(crate) fn guarded(name: &'static str, body: impl FnOnce() -> Answer) -> c_uint {
    *CALLS.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(status)) => status as c_uint,
        Err(_) => {
            eprintln!(
                "[cuda-emu] {name}: the emulator itself failed (see the panic above); please report it"
            );
            Status::Unknown as c_uint
        }
    }
}

/// Declares entry points: exported under their name, guarded, giving a `CUresult`. Each is `unsafe`
/// for the same reason: the pointers and handles must be as the CUDA driver's manual says.
macro_rules! entry_points {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the name and signature are the driver's")]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_uint {
            $crate::driver::abi::guarded(stringify!($name), move || $body)
        }
    )*};
}
pub(crate) use entry_points;

/// `CUuuid`
#[repr(C)]
pub(crate) struct Uuid(pub(crate) [u8; 16]);

/// `CUmemLocation`
#[repr(C)]
pub(crate) struct MemoryLocation {
    kind: c_int,
    id: c_int,
}

/// `CUlaunchAttribute`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: c_uint,
    pad: c_uint,
    /// A union of 64 bytes, 8-byte aligned: every attribute read here starts with 32-bit words.
    pub(crate) words: [u32; 16],
}

/// `CUlaunchConfig`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) dynamic_shared_bytes: c_uint,
    pub(crate) stream: Handle,
    pub(crate) attributes: In<LaunchAttribute>,
    pub(crate) attributes_count: c_uint,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelNodeParams {
    pub(crate) function: Handle,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) dynamic_shared_bytes: c_uint,
    pub(crate) params: In<In<u8>>,
    pub(crate) extra: In<usize>,
    pub(crate) kernel: Handle,
    pub(crate) context: Handle,
}

/// `CUgraphExecUpdateResultInfo`
#[repr(C)]
pub(crate) struct UpdateResult {
    pub(crate) result: c_uint,
    pub(crate) error_node: Handle,
    pub(crate) error_from_node: Handle,
}

/// `CUhostFn`
pub(crate) type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;
/// `CUoccupancyB2DSize`
pub(crate) type SharedBytesOfBlock = Option<unsafe extern "C" fn(c_int) -> usize>;

/// The sizes that `cuda.h` gives on 64-bit Linux.
const _: () = {
    assert!(size_of::<LaunchAttribute>() == 72);
    assert!(size_of::<LaunchConfig>() == 56);
    assert!(size_of::<KernelNodeParams>() == 72);
};
