//! What went wrong on the emulated device, and which result code a card would give for it.

use super::status::Status;
use crate::error::{Fault, FaultKind, LaunchError};
use crate::memory::{MemoryError, Space};

/// A failure that the context does not recover from.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) status: Status,
    /// The variant of [`FaultKind`], or what else failed.
    pub(crate) kind: &'static str,
    /// The kernel; empty where none ran.
    pub(crate) kernel: String,
    /// The whole report.
    pub(crate) text: String,
    /// The address of global memory that it is about.
    pub(crate) address: Option<u64>,
}

impl Report {
    /// Of a launch.
    pub(crate) fn launch(error: &LaunchError) -> Self {
        match error {
            LaunchError::Fault(fault) => Self::fault(fault),
            LaunchError::Refused { kernel, .. } => Self {
                status: Status::InvalidValue,
                kind: "Refused",
                kernel: kernel.clone(),
                text: error.to_string(),
                address: None,
            },
        }
    }

    fn fault(fault: &Fault) -> Self {
        let (status, kind) = classify(&fault.kind);
        Self {
            status,
            kind,
            kernel: fault.place.kernel.clone(),
            text: fault.to_string(),
            address: fault.address,
        }
    }

    /// Of a copy, memset or free whose memory is gone.
    pub(crate) fn memory(what: &'static str, error: &MemoryError) -> Self {
        Self {
            status: Status::IllegalAddress,
            kind: "Memory",
            kernel: String::new(),
            text: format!("{what}: {error}"),
            address: None,
        }
    }

    /// Of pinned memory that is freed while a copy waits that needs it.
    pub(crate) fn freed_early(what: &'static str, address: usize) -> Self {
        Self {
            status: Status::IllegalAddress,
            kind: "Memory",
            kernel: String::new(),
            text: format!("cuMemFreeHost of {address:#x} before its {what} has run"),
            address: None,
        }
    }

    /// Of a failure that a test injected.
    pub(crate) fn injected(status: Status, kernel: &str) -> Self {
        let text = format!("injected at a launch of `{kernel}`");
        Self { status, kind: "Injected", kernel: kernel.to_string(), text, address: None }
    }
}

/// The code that a card would give, and the variant's name.
///
/// What only the emulator notices (races, uninitialised reads …) is `CUDA_ERROR_LAUNCH_FAILED`. A
/// deadlock, which would hang a card, is `CUDA_ERROR_LAUNCH_TIMEOUT`.
fn classify(kind: &FaultKind) -> (Status, &'static str) {
    match kind {
        FaultKind::OutOfBounds { space: Space::Shared | Space::Local, .. } => {
            (Status::LaunchFailed, "OutOfBounds")
        }
        FaultKind::OutOfBounds { .. } => (Status::IllegalAddress, "OutOfBounds"),
        FaultKind::UseAfterFree { .. } => (Status::IllegalAddress, "UseAfterFree"),
        FaultKind::Misaligned { .. } => (Status::MisalignedAddress, "Misaligned"),
        FaultKind::Uninitialised { .. } => (Status::LaunchFailed, "Uninitialised"),
        FaultKind::Race { .. } => (Status::LaunchFailed, "Race"),
        FaultKind::HandedTooEarly { .. } => (Status::LaunchFailed, "HandedTooEarly"),
        FaultKind::NotAwaited { .. } => (Status::LaunchFailed, "NotAwaited"),
        FaultKind::MissingWgmmaFence { .. } => (Status::LaunchFailed, "MissingWgmmaFence"),
        FaultKind::MissingProxyFence { .. } => (Status::LaunchFailed, "MissingProxyFence"),
        FaultKind::Divergent { .. } => (Status::LaunchFailed, "Divergent"),
        FaultKind::Deadlock { .. } => (Status::LaunchTimeout, "Deadlock"),
        FaultKind::NeverEnds { .. } => (Status::LaunchTimeout, "NeverEnds"),
        FaultKind::Trap => (Status::LaunchFailed, "Trap"),
        FaultKind::Assert { .. } => (Status::Assert, "Assert"),
        FaultKind::Invalid(_) => (Status::IllegalInstruction, "Invalid"),
    }
}
