//! Syntax tree to a compact instruction form ([`Program`]): registers are numbered, constants and
//! special registers become registers that are filled before the kernel starts, branch targets
//! become indexes, calls of device functions are copied in.
//!
//! A kernel is decoded twice: the first pass notes where each register is written and read, from
//! which `liveness` finds registers that can share a slot; the second pass uses those slots. A
//! warp's registers then stay in the processor's caches.

mod asynchronous;
mod body;
mod convert;
mod decoded;
mod flow;
mod forms;
mod kinds;
mod liveness;
mod math;
mod matrix;
mod memory;
mod names;
mod op;
mod operand;
mod simple;
mod touched;
mod variables;

use std::ops::Range;

use crate::error::{LoadError, SourceLine};
use crate::module::{GlobalSet, Param};
use crate::ptx::{Function, Unit};

pub(crate) use kinds::*;
pub(crate) use op::*;
pub(crate) use touched::Touched;
pub(crate) use variables::place_variables;

/// A kernel, decoded.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) param_bytes: u32,
    /// Statically declared.
    pub(crate) shared_bytes: u32,
    /// Per thread.
    pub(crate) local_bytes: u32,
    pub(crate) block_max: Option<[u32; 3]>,
    pub(crate) block_required: Option<[u32; 3]>,
    pub(crate) cluster_required: Option<[u32; 3]>,
    pub(crate) registers_estimate: u32,
    pub(crate) code: Vec<Inst>,
    /// Of each instruction, where it comes from.
    pub(crate) origins: Vec<Origin>,
    pub(crate) lists: Vec<Slot>,
    /// Sizes of the register files.
    pub(crate) files: Files,
    /// Registers filled before the kernel starts: slot (with [`WIDE`] if of the 64-bit file), value.
    pub(crate) broadcasts: Vec<(Slot, Broadcast)>,
    pub(crate) touched: Touched,
    /// The kernel uses the asynchronous proxy (bulk copies, wgmma).
    pub(crate) async_proxy: bool,
    /// Strong accesses may order warps: something releases.
    pub(crate) flags: bool,
    /// Blocks may hand results to each other: there are atomics on global memory.
    pub(crate) arrivals: bool,
    /// Where the module's constants lie in global memory.
    pub(crate) constants: Vec<Range<u64>>,
}

/// How many registers of each kind a warp has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Files {
    pub(crate) narrow: u32,
    pub(crate) wide: u32,
    pub(crate) preds: u32,
}

/// Where an instruction comes from.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) line: u32,
    pub(crate) text: String,
    pub(crate) source: Vec<SourceLine>,
}

/// A value that is known before the kernel starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broadcast {
    Const(u64),
    /// Bytes of the parameter block: offset, size, whether sign-extended.
    Param(u32, u8, bool),
    /// Address of a byte of the parameter block.
    ParamAddress(u32),
    Special(Special),
}

/// Decodes a kernel.
///
/// # Errors
/// The first instruction or declaration that is not supported.
pub(crate) fn program(
    unit: &Unit,
    function: &Function,
    text: &str,
    globals: &GlobalSet,
) -> Result<Program, LoadError> {
    let layout = variables::layout(unit, function, globals)?;
    let first = body::decode(unit, function, text, &layout, None)?;
    let slots = liveness::assign(&first);
    let second = body::decode(unit, function, text, &layout, Some(&slots))?;
    Ok(second.into_program(function, &layout, &slots))
}
