//! What can go wrong: loading ([`LoadError`]), launching ([`LaunchError`]), and what a running
//! kernel did wrong ([`Fault`]), with the place where it did.

use std::fmt;

use crate::memory::Space;

/// Why PTX text, or one kernel of it, could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PTX line {line}{}: {message}{}", in_kernel(.kernel), quoted(.text))]
pub struct LoadError {
    /// The kernel or function that holds the line; empty at module level.
    pub kernel: String,
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// The statement, as written, or the line of what is no PTX; empty where there is none.
    pub text: String,
    /// What was expected, or what is not supported.
    pub message: String,
}

fn in_kernel(kernel: &str) -> String {
    if kernel.is_empty() { String::new() } else { format!(" in `{kernel}`") }
}

fn quoted(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": `{text}`") }
}

/// Why a launch gave no result.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The launch itself is not valid (`CUDA_ERROR_INVALID_VALUE` on a card); nothing ran.
    #[error("launch of `{kernel}` refused: {reason}")]
    Refused {
        /// The kernel.
        kernel: String,
        /// What is wrong with the launch.
        reason: String,
    },
    /// The kernel ran and did something wrong.
    #[error(transparent)]
    Fault(Box<Fault>),
}

/// A line of the CUDA source, from the PTX's `.loc` (compile with `-lineinfo`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The file, as the compiler named it.
    pub file: String,
    /// Its line, from 1.
    pub line: u32,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A place in a kernel: one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The kernel.
    pub kernel: String,
    /// Source lines, innermost first: where code was inlined, then where from.
    pub source: Vec<SourceLine>,
    /// Line of the PTX text, from 1.
    pub ptx_line: u32,
    /// The instruction, as written.
    pub ptx_text: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.kernel)?;
        for (depth, line) in self.source.iter().enumerate() {
            write!(f, "{}{line}", if depth == 0 { " at " } else { ", inlined at " })?;
        }
        write!(f, " (PTX line {}: `{}`)", self.ptx_line, self.ptx_text)
    }
}

/// What a running kernel did wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What it did.
    pub kind: FaultKind,
    /// The instruction.
    pub place: Place,
    /// The block's index in the grid.
    pub block: [u32; 3],
    /// The warp in the block.
    pub warp: u32,
    /// The lane of the warp, where one lane did it.
    pub lane: Option<u32>,
    /// The address: of global memory, or the offset in shared or local memory.
    pub address: Option<u64>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(address) = self.address {
            write!(f, "; address {address:#x}")?;
        }
        write!(f, "\n  in {}\n  block {:?}, warp {}", self.place, self.block, self.warp)?;
        if let Some(lane) = self.lane {
            write!(f, ", lane {lane}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// What a kernel did wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access outside of every live allocation, or of the block's shared or thread's local memory.
    #[error("{bytes}-byte {access} out of bounds of {space} memory: {nearest}")]
    OutOfBounds {
        /// The memory.
        space: Space,
        /// Bytes of the access by one lane.
        bytes: u32,
        /// "read", "write" or "atomic".
        access: &'static str,
        /// The nearest allocation, in words.
        nearest: String,
    },
    /// An access to memory that was freed.
    #[error("{bytes}-byte {access} of freed memory: {allocation}")]
    UseAfterFree {
        /// Bytes of the access by one lane.
        bytes: u32,
        /// "read", "write" or "atomic".
        access: &'static str,
        /// The allocation that was freed, in words.
        allocation: String,
    },
    /// An address that is not a multiple of what the instruction demands.
    #[error("misaligned {bytes}-byte {access} of {space} memory")]
    Misaligned {
        /// The memory.
        space: Space,
        /// The alignment demanded.
        bytes: u32,
        /// "read", "write" or "atomic".
        access: &'static str,
    },
    /// A read of bytes that nothing has written.
    #[error("{bytes}-byte read of uninitialised {space} memory")]
    Uninitialised {
        /// The memory.
        space: Space,
        /// Bytes of the access by one lane.
        bytes: u32,
    },
    /// Two accesses of shared memory, one a write, that no barrier puts in order.
    #[error(
        "race in shared memory: {access} after {other_access} by {other} without a barrier between, there in {other_place}"
    )]
    Race {
        /// "read", "write", "atomic", or "exit": of the block whose memory it is.
        access: &'static str,
        /// "read", "write" or "atomic".
        other_access: &'static str,
        /// Who made the earlier access: a warp of a block, or a copy engine.
        other: String,
        /// The instruction of the earlier access.
        other_place: Box<Place>,
    },
    /// An access of global memory to what another block has handed on, by an arrival at a counter, too early: no
    /// barrier, or no fence, puts the other block's access before its arrival.
    #[error(
        "race in global memory: {access} after {other_access} by {other}, whose block had arrived at a counter without {missing} between, there in {other_place}"
    )]
    HandedTooEarly {
        /// "read" or "write".
        access: &'static str,
        /// "read" or "write".
        other_access: &'static str,
        /// Who made the other access: a warp of a block.
        other: String,
        /// What is missing: "a barrier" or "a fence".
        missing: &'static str,
        /// The instruction of the other access.
        other_place: Box<Place>,
    },
    /// An access to the destination of an asynchronous operation, or to its registers, before its wait.
    #[error("{access} of {what} before waiting for it, started in {started}")]
    NotAwaited {
        /// "read", "write", "atomic", or "exit" of the thread or block.
        access: &'static str,
        /// What was started.
        what: String,
        /// The instruction that started it.
        started: Box<Place>,
    },
    /// A `wgmma` has a register that others touched after the last `wgmma.fence`.
    #[error("wgmma has register `{register}` without wgmma.fence after its {access} in {earlier}")]
    MissingWgmmaFence {
        /// The register: an accumulator, or a fragment of A.
        register: String,
        /// "read" or "write", by an instruction that is no `wgmma` of the same shape.
        access: &'static str,
        /// That instruction.
        earlier: Box<Place>,
    },
    /// The asynchronous proxy reads what ordinary stores wrote, without a proxy fence between.
    #[error("asynchronous read of shared memory without fence.proxy.async after the write in {written}")]
    MissingProxyFence {
        /// The instruction that wrote.
        written: Box<Place>,
    },
    /// An aligned barrier or a warp-wide instruction that not all lanes of the warp reached.
    #[error("{what} without all lanes: needed {needed:#010x}, present {present:#010x}")]
    Divergent {
        /// The instruction's kind.
        what: &'static str,
        /// Lanes that must take part.
        needed: u32,
        /// Lanes that do.
        present: u32,
    },
    /// No thread of the block (or cluster, or cooperative grid) can go on.
    #[error("deadlock: {waits}")]
    Deadlock {
        /// What the warps wait for.
        waits: String,
    },
    /// The launch took more instructions than the device allows.
    #[error("launch never ends: stopped after {warp_instructions} warp instructions")]
    NeverEnds {
        /// Warp instructions run.
        warp_instructions: u64,
    },
    /// `trap` was run.
    #[error("trap")]
    Trap,
    /// `assert` failed.
    #[error("assertion `{message}` failed at {file}:{line} in {function}")]
    Assert {
        /// The condition's text.
        message: String,
        /// The file.
        file: String,
        /// The line.
        line: u32,
        /// The function.
        function: String,
    },
    /// Operands that the instruction does not allow.
    #[error("invalid use: {0}")]
    Invalid(String),
}
