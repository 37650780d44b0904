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
    /// Global requests: loads, stores, atomics and `cp.async` of a warp with at least one lane.
    pub global_requests: u64,
    /// Sectors of 32 bytes that the global requests and bulk copies touched, each counted once a request or
    /// copy: what the second-level cache moves if the first never has it. 0 unless
    /// [`DeviceConfig::memory_statistics`](crate::DeviceConfig) is set.
    pub global_sectors: u64,
    /// Bytes of the sectors that the global requests and bulk copies of a launch touched, each once a launch:
    /// what a cache that holds them all moves. 0 as above.
    pub global_footprint_bytes: u64,
    /// Shared requests: loads, stores, atomics, `cp.async`, `ldmatrix` and `stmatrix` of a warp with
    /// at least one lane. Bulk copies and `wgmma` make none.
    pub shared_requests: u64,
    /// Cycles that bank conflicts add to the shared requests: of 32 banks of four bytes, each serves
    /// one word a cycle, to all lanes that read it; requests of 64 and 128 bits a lane are served in
    /// halves and quarters of the warp; atomics on one word go one after another. 0 unless
    /// [`DeviceConfig::memory_statistics`](crate::DeviceConfig) is set.
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
        self.global_footprint_bytes += other.global_footprint_bytes;
        self.shared_requests += other.shared_requests;
        self.shared_bank_conflicts += other.shared_bank_conflicts;
        self.tensor_multiply_adds += other.tensor_multiply_adds;
    }
}
