//! The driver and one device of it: finding them, with the reason where there is none; the context
//! and its one stream; errors, and that a lost device stays lost.
//!
//! cudarc's thin layer (`driver::result`) is used, not its safe one: one stream needs no events
//! for each slice, nothing is freed behind our back, and errors come from the call that had them.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use crate::backend::{BackendError, DeviceMemory};

/// CUDA 13.0: older drivers take neither machine code nor PTX of nvcc 13.
const DRIVER_MIN: i32 = 13_000;

/// Why there is no CUDA device to run on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The driver's library is not installed.
    #[error("there is no NVIDIA driver ({0})")]
    NoDriver(String),
    /// The driver does not start.
    #[error("the NVIDIA driver does not start: {0}")]
    DriverFailed(String),
    /// The driver is older than this program needs.
    #[error("the NVIDIA driver is for CUDA {found}, this program needs CUDA {needed}: update the driver")]
    DriverTooOld {
        /// The driver's CUDA version.
        found: String,
        /// The version that is needed.
        needed: String,
    },
    /// There are fewer devices than asked for.
    #[error("there is no CUDA device {ordinal}: the driver shows {count}")]
    NoDevice {
        /// The device asked for.
        ordinal: usize,
        /// Devices that there are.
        count: usize,
    },
    /// This program was built without code for the device.
    #[error("this program has no code for {name} (compute capability {major}.{minor}): {reason}")]
    NoImage {
        /// The device.
        name: String,
        /// Of its compute capability.
        major: i32,
        /// Of its compute capability.
        minor: i32,
        /// What the driver said.
        reason: String,
    },
}

impl From<Unavailable> for BackendError {
    fn from(why: Unavailable) -> BackendError {
        BackendError::Unavailable { what: "CUDA".into(), reason: why.to_string() }
    }
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its index.
    pub ordinal: usize,
    /// The maker's name.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute_capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: usize,
    /// Where it is on the bus, as NVML writes it: its index there may be another.
    pub pci_bus_id: String,
    /// Bytes of its memory.
    pub memory_bytes: usize,
    /// Bytes of shared memory that a block may ask for.
    pub(super) shared_block_max: usize,
    /// Bytes of shared memory of a multiprocessor.
    pub(super) shared_multiprocessor: usize,
}

impl DeviceInfo {
    /// Why no program of this crate runs on it.
    pub fn unusable(&self) -> Option<String> {
        let (major, minor) = self.compute_capability;
        let reason = format!("compute capability {major}.{minor}: this program needs 8.0 or later");
        (major < 8).then_some(reason)
    }
}

/// Looks for a device without taking hold of it.
///
/// # Errors
/// [`Unavailable`] says what is missing.
pub fn probe(ordinal: usize) -> Result<DeviceInfo, Unavailable> {
    find(ordinal).map(|(_, info)| info)
}

/// All devices of the driver, which may be none.
///
/// # Errors
/// [`Unavailable`] says why there is no driver.
pub fn devices() -> Result<Vec<DeviceInfo>, Unavailable> {
    (0..start()?).map(probe).collect()
}

/// Starts the driver; gives the number of its devices.
fn start() -> Result<usize, Unavailable> {
    // cudarc panics where there is no library.
    ["libcuda.so", "libcuda.so.1", "nvcuda.dll"]
        .iter()
        .map(|name| {
            // SAFETY: the driver's library may be loaded at any time.
            unsafe { libloading::Library::new(*name) }
        })
        // What was found, else the reason of the first name.
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
        // Domain, bus, device; the function of a card is 0.
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
    // `DriverError`'s own `Display` asks the driver, too, and panics where that fails.
    match error.error_name() {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(_) => format!("error {}", error.0 as u32),
    }
}

/// Whether a device takes no more work after this error, until a new process.
fn loses_the_device(error: DriverError) -> bool {
    matches!(error.0 as u32, 214 | 220 | 226 | 700 | 702 | 708..=710 | 714..=719)
}

/// A call's error as the backend's.
pub(super) fn device_error(info: &DeviceInfo, call: &'static str, error: DriverError) -> BackendError {
    let device = format!("CUDA device {} ({})", info.ordinal, info.name);
    BackendError::Device { device, call, error: name_of(error), lost: loses_the_device(error) }
}

/// A device taken hold of, with the stream that all its work goes to.
pub(super) struct Context {
    info: DeviceInfo,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    /// How often the stream was given work, and how much of that has been waited for.
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
    /// Takes hold of a device.
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

    /// The stream, to be given work.
    pub(super) fn stream(&self) -> sys::CUstream {
        self.given.fetch_add(1, Ordering::SeqCst);
        self.stream
    }

    /// Makes the context this thread's. To be called before any other call of the driver.
    ///
    /// # Errors
    /// What lost the device, if it is lost.
    pub(super) fn enter(&self) -> Result<(), BackendError> {
        if let Some(error) = self.lost.get() {
            return Err(error.clone());
        }
        // SAFETY: the context lives as long as `self`.
        self.done("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.context) })
    }

    /// Waits for all work, if there is any.
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

    /// The device's memory now, the driver's own part of it taken.
    pub(super) fn memory(&self) -> Result<DeviceMemory, BackendError> {
        self.enter()?;
        let (free, total) = self.done("cuMemGetInfo", result::mem_get_info())?;
        Ok(DeviceMemory { bytes: total as u64, free_bytes: free as u64 })
    }

    /// A call's result as the backend's.
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
        // What fails while a lost device is let go of concerns nobody any more.
        // SAFETY: all that used the stream and the context holds an `Arc` of it, so is gone.
        unsafe {
            let _ = result::ctx::set_current(self.context);
            if !self.stream.is_null() {
                let _ = result::stream::destroy(self.stream);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// A point in the stream: to wait for, or to tell the time between two.
#[derive(Debug)]
pub(super) struct Event {
    context: Arc<Context>,
    event: sys::CUevent,
}

// SAFETY: a handle of the driver, used by one thread at a time.
unsafe impl Send for Event {}

impl Event {
    /// One to wait for.
    pub(super) fn untimed(context: &Arc<Context>) -> Result<Event, BackendError> {
        Event::new(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// One that has a time.
    pub(super) fn timed(context: &Arc<Context>) -> Result<Event, BackendError> {
        Event::new(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn new(context: &Arc<Context>, flags: sys::CUevent_flags) -> Result<Event, BackendError> {
        context.enter()?;
        let event = context.done("cuEventCreate", result::event::create(flags))?;
        Ok(Event { context: Arc::clone(context), event })
    }

    /// Puts it behind all work so far.
    pub(super) fn record(&self) -> Result<(), BackendError> {
        // SAFETY: the event and the stream are the context's.
        let recorded = unsafe { result::event::record(self.event, self.context.stream()) };
        self.context.done("cuEventRecord", recorded)
    }

    /// Waits until the stream has come by.
    pub(super) fn wait(&self) -> Result<(), BackendError> {
        self.context.enter()?;
        // SAFETY: the event is the context's.
        let waited = unsafe { sys::cuEventSynchronize(self.event) }.result();
        self.context.done("cuEventSynchronize", waited)
    }

    /// Seconds to a later one, where both are timed and the stream has come by.
    pub(super) fn seconds_until(&self, later: &Event) -> Result<f64, BackendError> {
        // SAFETY: both are events of the driver.
        let milliseconds = unsafe { result::event::elapsed(self.event, later.event) };
        Ok(f64::from(self.context.done("cuEventElapsedTime", milliseconds)?) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made by `new`; the driver keeps it until the stream has come by.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}
