//! The driver's result codes (`CUresult`), with the names and texts that it gives for them.

use std::ffi::CStr;

/// What an entry point gives, less `CUDA_SUCCESS`.
pub(crate) type Answer<T = ()> = Result<T, Status>;

macro_rules! statuses {
    ($($name:ident = $code:literal, $symbol:literal, $text:literal;)*) => {
        /// A `CUresult` other than success.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum Status { $($name = $code,)* }

        impl Status {
            /// The status of that code, where the emulator knows one.
            pub(crate) fn from_code(code: u32) -> Option<Status> {
                match code { $($code => Some(Status::$name),)* _ => None }
            }

            /// `CUDA_ERROR_…`
            pub(crate) fn symbol(self) -> &'static CStr {
                match self { $(Status::$name => $symbol,)* }
            }

            /// The driver's text.
            pub(crate) fn text(self) -> &'static CStr {
                match self { $(Status::$name => $text,)* }
            }
        }
    };
}

statuses! {
    InvalidValue = 1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    OutOfMemory = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    NotInitialized = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error";
    NoDevice = 100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected";
    InvalidDevice = 101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    InvalidImage = 200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid";
    InvalidContext = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    NoBinaryForGpu = 209, c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no kernel image is available for execution on the device";
    EccUncorrectable = 214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered";
    UnsupportedLimit = 215, c"CUDA_ERROR_UNSUPPORTED_LIMIT", c"limit is not supported on this architecture";
    InvalidPtx = 218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed";
    FileNotFound = 301, c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found";
    InvalidHandle = 400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle";
    IllegalState = 401, c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state";
    NotFound = 500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    NotReady = 600, c"CUDA_ERROR_NOT_READY", c"device not ready";
    IllegalAddress = 700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered";
    LaunchOutOfResources = 701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch";
    LaunchTimeout = 702, c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated";
    ContextIsDestroyed = 709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed";
    Assert = 710, c"CUDA_ERROR_ASSERT", c"device-side assert triggered";
    HostMemoryAlreadyRegistered = 712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", c"part or all of the requested memory range is already mapped";
    HostMemoryNotRegistered = 713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", c"pointer does not correspond to a registered memory region";
    HardwareStackError = 714, c"CUDA_ERROR_HARDWARE_STACK_ERROR", c"hardware stack error";
    IllegalInstruction = 715, c"CUDA_ERROR_ILLEGAL_INSTRUCTION", c"an illegal instruction was encountered";
    MisalignedAddress = 716, c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address";
    InvalidAddressSpace = 717, c"CUDA_ERROR_INVALID_ADDRESS_SPACE", c"operation not supported on global/shared address space";
    InvalidPc = 718, c"CUDA_ERROR_INVALID_PC", c"invalid program counter";
    LaunchFailed = 719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure";
    CooperativeLaunchTooLarge = 720, c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", c"too many blocks in cooperative launch";
    NotPermitted = 800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted";
    NotSupported = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported";
    SystemDriverMismatch = 803, c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", c"system has unsupported display driver / cuda driver combination";
    CaptureUnsupported = 900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing";
    CaptureInvalidated = 901, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"operation failed due to a previous error during capture";
    CaptureMerge = 902, c"CUDA_ERROR_STREAM_CAPTURE_MERGE", c"operation would result in a merge of separate capture sequences";
    CaptureUnmatched = 903, c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", c"capture was not ended in the same stream as it began";
    CaptureUnjoined = 904, c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", c"capturing stream has unjoined work";
    CaptureIsolation = 905, c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", c"dependency created on uncaptured work in another stream";
    CaptureImplicit = 906, c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", c"operation would make the legacy stream depend on a capturing blocking stream";
    CapturedEvent = 907, c"CUDA_ERROR_CAPTURED_EVENT", c"operation not permitted on an event last recorded in a capturing stream";
    CaptureWrongThread = 908, c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", c"attempt to terminate a thread-local capture sequence from another thread";
    GraphExecUpdateFailure = 910, c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", c"the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    Unknown = 999, c"CUDA_ERROR_UNKNOWN", c"unknown error";
}
