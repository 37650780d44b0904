//! What a launch did, counted: for checking a kernel's byte and operation counts without a card.

use std::collections::BTreeMap;

/// Kinds of instructions that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InstructionClass {
    /// Moves, selects, conversions between integers, integer arithmetic, comparisons.
    Integer,
    /// Arithmetic on f32 and f64.
    Float,
    /// Arithmetic on f16 and bf16.
    Half,
    /// Conversions from or to a floating type.
    Convert,
    /// Global loads and stores.
    Global,
    /// Shared loads and stores, ldmatrix and stmatrix.
    Shared,
    /// Local loads and stores (spills and arrays indexed at run time).
    Local,
    /// Atomics and reductions.
    Atomic,
    /// Branches, returns, traps.
    Flow,
    /// Barriers, fences, mbarriers, waits.
    Sync,
    /// Shuffles, votes, matches, warp reductions.
    Collective,
    /// Tensor-core instructions.
    Matrix,
    /// Starts of asynchronous copies.
    AsyncCopy,
}

/// What a launch did. Instructions are counted per warp, bytes and operations per lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchStats {
    /// Warp instructions run.
    pub warp_instructions: u64,
    /// Thread instructions run: warp instructions times the lanes that took part.
    pub thread_instructions: u64,
    /// Warp instructions by class.
    pub by_class: BTreeMap<InstructionClass, u64>,
    /// Bytes read from global memory by loads, atomics and asynchronous copies.
    pub global_bytes_read: u64,
    /// Bytes written to global memory by stores, atomics and asynchronous copies.
    pub global_bytes_written: u64,
    /// Bytes read from shared memory.
    pub shared_bytes_read: u64,
    /// Bytes written to shared memory.
    pub shared_bytes_written: u64,
    /// Global requests: warp-wide loads and stores with at least one lane.
    pub global_requests: u64,
    /// 32-byte sectors that the global requests touched (0 unless memory statistics are on).
    pub global_sectors: u64,
    /// Shared requests: warp-wide loads and stores with at least one lane.
    pub shared_requests: u64,
    /// Cycles beyond the least possible that bank conflicts cost (0 unless memory statistics are on).
    pub shared_bank_conflicts: u64,
    /// Multiply-adds of tensor-core instructions.
    pub tensor_multiply_adds: u64,
}

impl LaunchStats {
    /// Adds another part of the same launch.
    pub fn add(&mut self, other: &LaunchStats) {
        self.warp_instructions += other.warp_instructions;
        self.thread_instructions += other.thread_instructions;
        for (class, count) in &other.by_class {
            *self.by_class.entry(*class).or_default() += count;
        }
        self.global_bytes_read += other.global_bytes_read;
        self.global_bytes_written += other.global_bytes_written;
        self.shared_bytes_read += other.shared_bytes_read;
        self.shared_bytes_written += other.shared_bytes_written;
        self.global_requests += other.global_requests;
        self.global_sectors += other.global_sectors;
        self.shared_requests += other.shared_requests;
        self.shared_bank_conflicts += other.shared_bank_conflicts;
        self.tensor_multiply_adds += other.tensor_multiply_adds;
    }
}
