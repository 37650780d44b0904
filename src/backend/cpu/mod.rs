//! The CPU backend: packed weights, int8 activations, one kernel source for every instruction set.
//!
//! `isa` has the vector trait, a file per instruction set, and run-time dispatch. `pack` lays out weights and
//! quantises activations; `matmul` and `attention` take most of the time; `ops` has all other operations.
//! `memory` holds buffers and pages, `pool` runs chunks on threads, `measure` measures the machine's limits.
//! `README.md` explains layouts and loops. [`crate::ir::Op`] and `backend::reference` specify each
//! operation.

mod arena;
mod attention;
mod isa;
mod matmul;
mod measure;
mod memory;
mod ops;
mod pack;
mod pool;
mod sidecar;
mod tuning;

use std::num::NonZeroUsize;
use std::ops::Deref;

use crate::backend::{
    Backend, BackendError, DeviceMemory, Frame, MatrixSource, NoSidecar, PackedFiles, Sidecar, Weights,
    shape_error,
};
use crate::ir::{KvLayout, Op, Precision, RowSampling, StepLimits, VectorId};
pub use arena::Arena;
pub use isa::{Isa, UnknownIsa};
use isa::{Kernel, entry};
pub use measure::{Peaks, ReadProbe};
pub use memory::KvPool;
use memory::{WeightArena, cache};
use ops::rows;
pub use pack::Matrix;
use pool::{Pool, default_threads};
pub use tuning::{PrefetchHint, UnknownHint};

/// Maximum threads of a pool: more than the cores of any machine with shared memory. Each thread has a stack,
/// and searches all other threads for chunks.
pub const THREADS_MAX: usize = 1024;

/// Options of a CPU backend.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads, including the caller's, at most [`THREADS_MAX`]. Default: one per physical core that the
    /// process may use.
    pub threads: Option<NonZeroUsize>,
    /// Instruction set. Default: the best one available. For tests.
    pub isa: Option<Isa>,
    /// Data type of activations in products with quantised weights.
    pub compute: Compute,
    /// Cache that a single token's products prefetch weights into. Default: the processor's row of the tuning
    /// table. For measurements.
    pub prefetch: Option<PrefetchHint>,
}

/// Data type of activations in products with quantised weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compute {
    /// int8, quantised in groups of 32 columns.
    #[default]
    Int8,
    /// f32: slower, and as exact as the weights.
    F32,
}

/// An uploaded f32 vector.
#[derive(Clone, Debug)]
pub struct Vector(Box<[f32]>);

impl Deref for Vector {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

/// The CPU backend: its threads, instruction set and options.
#[derive(Debug)]
pub struct Cpu {
    pool: Pool,
    isa: Isa,
    compute: Compute,
    hint: PrefetchHint,
    /// Bytes of a core's L1 data cache.
    cache: usize,
    /// Memory for weights.
    weights: WeightArena,
}

impl Cpu {
    /// Creates the backend and starts its threads.
    ///
    /// # Errors
    /// [`BackendError::Count`] for more than [`THREADS_MAX`] threads, [`BackendError::Thread`] if the system
    /// refuses one, [`BackendError::Unavailable`] if the machine lacks the instruction set of `options`.
    pub fn new(options: &CpuOptions) -> Result<Cpu, BackendError> {
        let isa = options.isa.unwrap_or_else(Isa::detect);
        if !isa.is_available() {
            let available: Vec<String> = Isa::available().iter().map(Isa::to_string).collect();
            let reason = format!("this machine has {}", available.join(", "));
            return Err(BackendError::Unavailable { what: format!("instruction set {isa}"), reason });
        }
        let threads = options.threads.unwrap_or_else(default_threads);
        if threads.get() > THREADS_MAX {
            return Err(BackendError::Count { what: "threads", most: THREADS_MAX, found: threads.get() });
        }
        Ok(Cpu {
            pool: Pool::new(threads)?,
            isa,
            compute: options.compute,
            hint: options.prefetch.unwrap_or_else(PrefetchHint::detect),
            cache: cache::first_level_bytes(),
            weights: WeightArena::default(),
        })
    }

    /// Total memory of the machine, and the memory available without swapping; `None` except on Linux. A
    /// container's limit is not considered.
    pub fn memory() -> Option<DeviceMemory> {
        let (bytes, free_bytes) = crate::headroom::machine()?;
        Some(DeviceMemory { bytes, free_bytes })
    }

    /// Threads that work on an operation, including the caller's.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The cache that a single token's products prefetch weights into.
    pub fn prefetch(&self) -> PrefetchHint {
        self.hint
    }

    /// Runs all chunks of a kernel, on all threads, with the instruction set in use.
    ///
    /// # Safety
    /// [`Kernel::run`]'s contract holds for every chunk below `chunks`.
    unsafe fn parallel<K: Kernel>(&self, kernel: &K, chunks: usize) {
        // SAFETY: `new` checked for the instruction set; the rest is the caller's promise.
        unsafe { self.pool.run(entry::<K>(self.isa), kernel, chunks) }
    }
}

/// The vector `id`, which must have `len` elements.
fn check_vector<'a>(
    op: &'static str,
    weights: &'a Weights<Cpu>,
    id: VectorId,
    len: usize,
) -> Result<&'a Vector, BackendError> {
    match weights.vectors.get(id.0 as usize) {
        Some(vector) if vector.len() == len => Ok(vector),
        Some(vector) => {
            Err(shape_error(op, format!("a vector of {len}"), format!("one of {}", vector.len())))
        }
        None => {
            let expected = format!("a vector id below {}", weights.vectors.len());
            Err(shape_error(op, expected, format!("{}", id.0)))
        }
    }
}

impl Backend for Cpu {
    type Arena = Arena;
    type Vector = Vector;
    type Matrix = Matrix;
    type KvPool = KvPool;

    fn describe(&self) -> String {
        let compute = self.arithmetic();
        format!("cpu, {}, {} threads, {compute} activations", self.isa, self.threads())
    }

    fn arithmetic(&self) -> &'static str {
        match self.compute {
            Compute::Int8 => "int8",
            Compute::F32 => "f32",
        }
    }

    fn memory(&self) -> Option<DeviceMemory> {
        Cpu::memory()
    }

    fn element_bytes(&self, _precision: Precision) -> usize {
        size_of::<f32>()
    }

    fn upload_vector(&self, values: &[f32]) -> Result<Vector, BackendError> {
        Ok(Vector(values.into()))
    }

    fn prepare<S: MatrixSource>(&self, matrix: &S) -> Result<Matrix, S::Error> {
        let packed = Matrix::pack(matrix, self.isa.order(), &self.pool, &self.weights)?;
        Ok(packed.for_compute(self.compute))
    }

    fn arena(&self, bytes: usize, ops: &[Op], limits: StepLimits) -> Result<Arena, BackendError> {
        Arena::new(bytes, ops, limits)
    }

    fn kv_pool(&self, layout: KvLayout, pages: usize) -> Result<KvPool, BackendError> {
        KvPool::new(layout, pages)
    }

    fn samples(&self, sampling: &RowSampling, _vocab: usize) -> bool {
        rows::is_greedy(sampling)
    }

    fn execute(&self, op: &Op, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
        ops::execute(self, op, frame)
    }

    fn packed_files(&self) -> Option<&dyn PackedFiles<Matrix>> {
        Some(self)
    }
}

impl PackedFiles<Matrix> for Cpu {
    fn load(&self, sidecar: &Sidecar<'_>) -> Result<Vec<Matrix>, NoSidecar> {
        let matrices = sidecar::load(sidecar, self.isa.order(), &self.pool)?;
        Ok(matrices.into_iter().map(|matrix| matrix.for_compute(self.compute)).collect())
    }

    fn store(&self, sidecar: &Sidecar<'_>, matrices: &[Matrix]) -> Result<(), NoSidecar> {
        sidecar::store(sidecar, self.isa.order(), matrices, &self.pool)
    }
}
