//! What stops a warp: a fault that does not yet know its kernel and place.

use crate::decode::Program;
use crate::error::{Fault, FaultKind, Place};

/// What went wrong, and in which lane and at which address, where there is one.
#[derive(Debug)]
pub(super) struct Trap {
    pub(super) kind: FaultKind,
    pub(super) lane: Option<u32>,
    pub(super) address: Option<u64>,
}

/// Something that can stop the warp.
pub(super) type Step<T> = Result<T, Box<Trap>>;

/// A trap without lane and address.
#[cold]
pub(super) fn trap<T>(kind: FaultKind) -> Step<T> {
    Err(Box::new(Trap { kind, lane: None, address: None }))
}

/// A trap of one lane.
#[cold]
pub(super) fn trap_at<T>(kind: FaultKind, lane: usize, address: u64) -> Step<T> {
    Err(Box::new(Trap { kind, lane: Some(lane as u32), address: Some(address) }))
}

/// A trap for operands that the instruction does not allow.
#[cold]
pub(super) fn invalid<T>(message: impl Into<String>) -> Step<T> {
    trap(FaultKind::Invalid(message.into()))
}

/// The place of an instruction.
pub(super) fn place(program: &Program, pc: u32) -> Place {
    let origin = &program.origins[(pc as usize).min(program.origins.len() - 1)];
    Place {
        kernel: program.name.clone(),
        source: origin.source.clone(),
        ptx_line: origin.line,
        ptx_text: origin.text.clone(),
    }
}

impl Trap {
    pub(super) fn into_fault(self, program: &Program, pc: u32, block: [u32; 3], warp: u32) -> Fault {
        let place = place(program, pc);
        Fault { kind: self.kind, place, block, warp, lane: self.lane, address: self.address }
    }
}
