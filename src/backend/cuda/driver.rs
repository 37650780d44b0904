//! The driver and one of its devices: finding devices, with the reason if there is none; the context and its
//! only stream; errors, including the permanent loss of a device.
//!
//! Uses cudarc's thin layer (`driver::result`), not its safe one: a single stream needs no event per slice,
//! nothing is freed implicitly, and each error is returned by the call that failed.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use crate::backend::{BackendError, DeviceMemory};

/// CUDA 13.0: older drivers accept neither the machine code nor the PTX of nvcc 13.
const DRIVER_MIN: i32 = 13_000;

/// Reason why no CUDA device can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The driver's library is not installed.
    #[error("there is no NVIDIA driver ({0})")]
    NoDriver(String),
    /// The driver failed to initialise.
    #[error("the NVIDIA driver does not start: {0}")]
    DriverFailed(String),
    /// The driver is too old.
    #[error("the NVIDIA driver is for CUDA {found}, this program needs CUDA {needed}: update the driver")]
    DriverTooOld {
        /// The driver's CUDA version.
        found: String,
        /// The required version.
        needed: String,
    },
    /// The requested device does not exist.
    #[error("there is no CUDA device {ordinal}: the driver shows {count}")]
    NoDevice {
        /// Index of the requested device.
        ordinal: usize,
        /// Number of existing devices.
        count: usize,
    },
    /// This program was built without code for the device.
    #[error("this program has no code for {name} (compute capability {major}.{minor}): {reason}")]
    NoImage {
        /// Name of the device.
        name: String,
        /// Major number of its compute capability.
        major: i32,
        /// Minor number of its compute capability.
        minor: i32,
        /// The driver's error.
        reason: String,
    },
}

impl From<Unavailable> for BackendError {
    fn from(why: Unavailable) -> BackendError {
        BackendError::Unavailable { what: "CUDA".into(), reason: why.to_string() }
    }
}

/// Properties of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Index of the device.
    pub ordinal: usize,
    /// Vendor's name for the device.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// Number of multiprocessors.
    pub multiprocessors: usize,
    /// PCI bus id in NVML's format; the device's index there may differ.
    pub pci_bus_id: String,
    /// Bytes of device memory.
    pub memory_bytes: usize,
    /// Maximum shared memory per block, in bytes (opt-in).
    pub(super) shared_block_max: usize,
    /// Shared memory per multiprocessor, in bytes.
    pub(super) shared_multiprocessor: usize,
}

impl DeviceInfo {
    /// Reason why this crate cannot use the device, if any.
    pub fn unusable(&self) -> Option<String> {
        let (major, minor) = self.compute_capability;
        let reason = format!("compute capability {major}.{minor}: this program needs 8.0 or later");
        (major < 8).then_some(reason)
    }
}

/// Queries a device without creating a context on it.
///
/// # Errors
/// [`Unavailable`] with the reason.
pub fn probe(ordinal: usize) -> Result<DeviceInfo, Unavailable> {
    find(ordinal).map(|(_, info)| info)
}

/// All devices of the driver, possibly none.
///
/// # Errors
/// [`Unavailable`] if there is no driver.
pub fn devices() -> Result<Vec<DeviceInfo>, Unavailable> {
    (0..start()?).map(probe).collect()
}

/// Initialises the driver; returns the number of its devices.
fn start() -> Result<usize, Unavailable> {
    // cudarc panics if the library is missing.
    ["libcuda.so", "libcuda.so.1", "nvcuda.dll"]
        .iter()
        .map(|name| {
            // SAFETY: the driver's library may be loaded at any time.
            unsafe { libloading::Library::new(*name) }
        })
        // The library, or the error for the first name.
        .reduce(|first, next| if first.is_err() && next.is_ok() { next } else { first })
        .expect("a list of names")
        .map_err(|error| Unavailable::NoDriver(error.source().unwrap_or(&error).to_string()))?;
    result::init().map_err(failed)?;
    let mut version = 0;
    // SAFETY: writes the integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed)?;
    if version < DRIVER_MIN {
        let [found, needed] = [version, DRIVER_MIN].map(|v| format!("{}.{}", v / 1000, v % 1000 / 10));
        return Err(Unavailable::DriverTooOld { found, needed });
    }
    match result::device::get_count() {
        Ok(count) => Ok(usize::try_from(count).unwrap_or(0)),
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(0),
        Err(error) => Err(failed(error)),
    }
}

fn failed(error: DriverError) -> Unavailable {
    Unavailable::DriverFailed(name_of(error))
}

fn find(ordinal: usize) -> Result<(sys::CUdevice, DeviceInfo), Unavailable> {
    let count = start()?;
    if ordinal >= count {
        return Err(Unavailable::NoDevice { ordinal, count });
    }
    let device = result::device::get(ordinal as i32).map_err(failed)?;
    let attribute = |attribute| {
        // SAFETY: the device is one of the driver's.
        unsafe { result::device::get_attribute(device, attribute) }.map_err(failed)
    };
    let info = DeviceInfo {
        ordinal,
        name: result::device::get_name(device).map_err(failed)?,
        compute_capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as usize,
        // Domain, bus, device; the function number of a GPU is 0.
        pci_bus_id: format!(
            "{:08x}:{:02x}:{:02x}.0",
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?
        ),
        // SAFETY: as above.
        memory_bytes: unsafe { result::device::total_mem(device) }.map_err(failed)?,
        shared_block_max: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?
            as usize,
        shared_multiprocessor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?
            as usize,
    };
    Ok((device, info))
}

/// The driver's name of an error.
fn name_of(error: DriverError) -> String {
    // The `Display` of `DriverError` also queries the driver, and panics if that fails.
    match error.error_name() {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(_) => format!("error {}", error.0 as u32),
    }
}

/// Whether a device refuses all work after this error, until the process is restarted.
fn loses_the_device(error: DriverError) -> bool {
    matches!(error.0 as u32, 214 | 220 | 226 | 700 | 702 | 708..=710 | 714..=719)
}

/// A call's error as a [`BackendError`].
pub(super) fn device_error(info: &DeviceInfo, call: &'static str, error: DriverError) -> BackendError {
    let device = format!("CUDA device {} ({})", info.ordinal, info.name);
    BackendError::Device { device, call, error: name_of(error), lost: loses_the_device(error) }
}

/// A device's primary context, with the only stream for its work.
pub(super) struct Context {
    info: DeviceInfo,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// Number of times that the stream was handed out for work, and that number at the last wait.
    given: AtomicU64,
    waited: AtomicU64,
    /// The error that lost the device.
    lost: OnceLock<BackendError>,
}

// SAFETY: the driver's calls may be made from any thread; `enter` makes the context the thread's.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Context {
    /// Retains the primary context of a device.
    pub(super) fn new(ordinal: usize) -> Result<Arc<Context>, BackendError> {
        let (device, info) = find(ordinal)?;
        // SAFETY: the device is one of the driver's; the context is released by `Drop`.
        let context = unsafe { result::primary_ctx::retain(device) }
            .map_err(|error| device_error(&info, "cuDevicePrimaryCtxRetain", error))?;
        let mut this = Context {
            info,
            device,
            context,
            stream: std::ptr::null_mut(),
            given: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            lost: OnceLock::new(),
        };
        // SAFETY: the context was just made.
        this.done("cuCtxSetCurrent", unsafe { result::ctx::set_current(context) })?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        this.stream = this.done("cuStreamCreate", stream)?;
        Ok(Arc::new(this))
    }

    pub(super) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The stream, for submitting work.
    pub(super) fn stream(&self) -> sys::CUstream {
        self.given.fetch_add(1, Ordering::SeqCst);
        self.stream
    }

    /// Makes the context current on this thread. Must precede all other driver calls.
    ///
    /// # Errors
    /// The error that lost the device, if it is lost.
    pub(super) fn enter(&self) -> Result<(), BackendError> {
        if let Some(error) = self.lost.get() {
            return Err(error.clone());
        }
        // SAFETY: the context lives as long as `self`.
        self.done("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context) })
    }

    /// Waits for all submitted work, if any.
    pub(super) fn wait(&self) -> Result<(), BackendError> {
        self.enter()?;
        let given = self.given.load(Ordering::SeqCst);
        if self.waited.load(Ordering::SeqCst) < given {
            // SAFETY: the stream lives as long as `self`.
            self.done("cuStreamSynchronize", unsafe { result::stream::synchronize(self.stream) })?;
            self.waited.fetch_max(given, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Memory of the device now; the driver's own part is not free.
    pub(super) fn memory(&self) -> Result<DeviceMemory, BackendError> {
        self.enter()?;
        let (free, total) = self.done("cuMemGetInfo", result::mem_get_info())?;
        Ok(DeviceMemory { bytes: total as u64, free_bytes: free as u64 })
    }

    /// A call's result with the error of [`device_error`]. An error that loses the device is recorded.
    pub(super) fn done<T>(
        &self,
        call: &'static str,
        result: Result<T, DriverError>,
    ) -> Result<T, BackendError> {
        result.map_err(|error| match device_error(&self.info, call, error) {
            error @ BackendError::Device { lost: true, .. } => self.lost.get_or_init(|| error).clone(),
            error => error,
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Errors while releasing a lost device are ignored.
        // SAFETY: all users of the stream and the context hold an `Arc` of this, so none is left.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            if !self.stream.is_null() {
                let _ = result::stream::destroy(self.stream);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// A marker in the stream: to wait for, or to measure the time between two.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<Context>,
    event: sys::CUevent,
}

// SAFETY: a handle of the driver, used by one thread at a time.
unsafe impl Send for Event {}

impl Event {
    /// An event for waiting only.
    pub(super) fn untimed(context: &Arc<Context>) -> Result<Event, BackendError> {
        Event::new(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event that records its time.
    pub(super) fn timed(context: &Arc<Context>) -> Result<Event, BackendError> {
        Event::new(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn new(context: &Arc<Context>, flags: sys::CUevent_flags) -> Result<Event, BackendError> {
        context.enter()?;
        let event = context.done("cuEventCreate", result::event::create(flags))?;
        Ok(Event { context: Arc::clone(context), event })
    }

    /// Records the event after all work so far.
    pub(super) fn record(&self) -> Result<(), BackendError> {
        // SAFETY: the event and the stream are the context's.
        let recorded = unsafe { result::event::record(self.event, self.context.stream()) };
        self.context.done("cuEventRecord", recorded)
    }

    /// Waits until the stream has reached the event.
    pub(super) fn wait(&self) -> Result<(), BackendError> {
        self.context.enter()?;
        // SAFETY: the event is the context's.
        let waited = unsafe { sys::cuEventSynchronize(self.event) }.result();
        self.context.done("cuEventSynchronize", waited)
    }

    /// Seconds until a later event. Both must be timed, and the stream must have reached them.
    pub(super) fn seconds_until(&self, later: &Event) -> Result<f64, BackendError> {
        // SAFETY: both are events of the driver.
        let milliseconds = unsafe { result::event::elapsed(self.event, later.event) };
        Ok(f64::from(self.context.done("cuEventElapsedTime", milliseconds)?) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made by `new`; the driver keeps it until the stream has reached it.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}
