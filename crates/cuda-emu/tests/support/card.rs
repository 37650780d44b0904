//! What the tests of the driver share: the emulated card, which one test at a time has.
#![allow(dead_code, reason = "each test program uses a part")]

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_emu::{Arch, DeviceConfig, Emulator, InstallOptions};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, sys};
use cudarc::nvrtc::Ptx;

/// What the emulated card is.
pub const ARCH: Arch = Arch::Sm90;
/// Its memory: small, so that tests can use it up.
pub const MEMORY_BYTES: u64 = 64 << 20;

/// The card of this process, for one test.
pub struct Card {
    pub emulator: Emulator,
    pub context: Arc<CudaContext>,
    _turn: MutexGuard<'static, ()>,
}

/// Waits for this test's turn; gives a card without faults. Cudarc's own event tracking is off, so
/// that a test has just the dependencies that it writes.
pub fn card() -> Card {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let device = DeviceConfig {
        arch: ARCH,
        threads: 2,
        memory_bytes: MEMORY_BYTES,
        memory_statistics: true,
        ..InstallOptions::default().device
    };
    let options = InstallOptions { device, ..InstallOptions::skipped_by("CUDA_EMU_TEST_GPU") };
    let emulator = cuda_emu::install(&options).unwrap();
    if emulator.is_emulated() {
        emulator.reset().unwrap();
        emulator.set_seed(0).unwrap();
    }
    let context = CudaContext::new(0).unwrap();
    // SAFETY: the tests order their streams themselves.
    unsafe { context.disable_event_tracking() };
    Card { emulator, context, _turn: turn }
}

/// The result code of a failed call.
pub fn code<T>(result: Result<T, DriverError>) -> u32 {
    result.map_or_else(|error| error.0 as u32, |_| 0)
}

/// A stream's capture, thread-local.
pub fn begin_capture(stream: &CudaStream) {
    stream.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
}

/// No graph flags.
pub fn no_flags() -> sys::CUgraphInstantiate_flags {
    sys::CUgraphInstantiate_flags(0)
}

/// One block.
pub fn block_of(threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// A kernel `add(u32 *target, u32 value)`: every thread adds the value to its element.
pub const ADD: &str = "
    .version 8.0
    .target sm_80
    .address_size 64
    .visible .entry add(.param .u64 target, .param .u32 value) {
        .reg .b32 %r<5>; .reg .b64 %rd<4>;
        ld.param.u64 %rd1, [target];
        ld.param.u32 %r1, [value];
        mov.u32 %r2, %tid.x;
        mul.wide.u32 %rd2, %r2, 4;
        add.s64 %rd3, %rd1, %rd2;
        ld.global.u32 %r3, [%rd3];
        add.u32 %r4, %r3, %r1;
        st.global.u32 [%rd3], %r4;
        ret;
    }";

/// A function of PTX text.
pub fn function(context: &Arc<CudaContext>, ptx: &str, name: &str) -> CudaFunction {
    context.load_module(Ptx::from_src(ptx)).unwrap().load_function(name).unwrap()
}

/// Launches one block with programmatic stream serialization.
pub fn launch_programmatic(
    stream: &CudaStream,
    kernel: &CudaFunction,
    threads: u32,
    params: &mut [*mut c_void],
) {
    // SAFETY: the union is plain numbers.
    let mut value: sys::CUlaunchAttributeValue = unsafe { std::mem::zeroed() };
    value.programmaticStreamSerializationAllowed = 1;
    let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    let mut attribute = sys::CUlaunchAttribute { id, pad: [0; 4], value };
    let config = sys::CUlaunchConfig {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        hStream: stream.cu_stream(),
        attrs: &mut attribute,
        numAttrs: 1,
    };
    // SAFETY: the parameters are those of the kernel.
    let result = unsafe {
        sys::cuLaunchKernelEx(&config, kernel.cu_function(), params.as_mut_ptr(), std::ptr::null_mut())
    };
    result.result().unwrap();
}
