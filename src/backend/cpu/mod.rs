//! The CPU backend: packed weights, int8 activations, one kernel source for every instruction set.
//!
//! `isa` has the vector trait, a file per instruction set, and run-time dispatch. `pack` lays out weights and
//! quantises activations; `matmul` and `attention` are where the time goes; `ops` has all other operations.
//! `memory` holds buffers and pages, `pool` runs chunks on threads, `measure` says what could be reached.
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

use std::num::NonZeroUsize;
use std::ops::Deref;

use crate::backend::{
    Backend, BackendError, DeviceMemory, Frame, MatrixSource, NoSidecar, Sidecar, Weights, shape_error,
};
use crate::ir::{
    ApplyRope, Binary, Embed, GatherOutputs, KvLayout, Matmul, Normalize, Op, PageId, Place, Precision,
    RowSampling, SampleRows, Softmax, StepLimits, Transpose, Unary, VectorId,
};
pub use arena::Arena;
pub use isa::{Isa, UnknownIsa};
use isa::{Kernel, entry};
pub use measure::{Peaks, ReadProbe};
pub use memory::KvPool;
use memory::{Shelf, cache};
use ops::{append, elementwise, experts, norm, rope, row_attention, rows};
use pack::Layout;
pub use pack::Matrix;
use pool::{Pool, default_threads};

/// Most threads of a pool: more than cores that share a memory. Each thread has a stack, and looks for chunks
/// at all others.
pub const THREADS_MAX: usize = 1024;

/// How a CPU backend is set up.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads, the caller's included, at most [`THREADS_MAX`]. The default is one per physical core that the
    /// process may use.
    pub threads: Option<NonZeroUsize>,
    /// An instruction set below the best, for tests.
    pub isa: Option<Isa>,
    /// What quantised weights are multiplied with.
    pub compute: Compute,
}

/// What quantised weights are multiplied with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compute {
    /// Activations quantised to int8 in groups of 32 columns.
    #[default]
    Int8,
    /// Activations in f32: slower, and as exact as the weights.
    F32,
}

/// An f32 vector, uploaded.
#[derive(Clone, Debug)]
pub struct Vector(Box<[f32]>);

impl Deref for Vector {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

/// The CPU.
#[derive(Debug)]
pub struct Cpu {
    pool: Pool,
    isa: Isa,
    compute: Compute,
    /// Bytes of a core's L1 data cache.
    cache: usize,
    /// Memory for weights.
    shelf: Shelf,
}

impl Cpu {
    /// The CPU with its threads started.
    ///
    /// # Errors
    /// [`BackendError::Count`] for more than [`THREADS_MAX`] threads, [`BackendError::Thread`] if the system refuses
    /// one, [`BackendError::Unavailable`] if the machine lacks the instruction set asked for.
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
            cache: cache::first_level_bytes(),
            shelf: Shelf::default(),
        })
    }

    /// The machine's memory, on Linux: in all, and what can be had before it swaps. A container's own limit is not
    /// looked at.
    pub fn memory() -> Option<DeviceMemory> {
        let (bytes, free_bytes) = crate::room::machine()?;
        Some(DeviceMemory { bytes, free_bytes })
    }

    /// Threads that work on an operation, the caller's included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Runs all chunks of a kernel, on all threads, with the instruction set in use.
    ///
    /// # Safety
    /// [`Kernel::run`]'s contract holds for every chunk below `chunks`.
    unsafe fn parallel<K: Kernel>(&self, kernel: &K, chunks: usize) {
        // SAFETY: `new` found the instruction set; the rest is the caller's promise.
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
        let compute = match self.compute {
            Compute::Int8 => "int8",
            Compute::F32 => "f32",
        };
        format!("cpu, {}, {} threads, {compute} activations", self.isa, self.threads())
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
        Matrix::pack(matrix, self.isa.order(), &self.pool, &self.shelf)
    }

    fn restore(&self, sidecar: &Sidecar<'_>) -> Result<Vec<Matrix>, NoSidecar> {
        sidecar::restore(sidecar, self.isa.order(), &self.pool)
    }

    fn keep(&self, sidecar: &Sidecar<'_>, matrices: &[Matrix]) -> Result<(), NoSidecar> {
        sidecar::keep(sidecar, self.isa.order(), matrices, &self.pool)
    }

    fn matrix_bytes(&self, matrix: &Matrix) -> usize {
        matrix.bytes()
    }

    fn multiplies_int8(&self, matrix: &Matrix) -> bool {
        self.compute == Compute::Int8 && matches!(matrix.layout(), Layout::Quant { .. })
    }

    fn arena(&self, bytes: usize, ops: &[Op], limits: StepLimits) -> Result<Arena, BackendError> {
        Arena::new(bytes, ops, limits)
    }

    fn kv_pool(&self, layout: KvLayout, pages: usize) -> Result<KvPool, BackendError> {
        KvPool::new(layout, pages)
    }

    fn copy_page(&self, pool: &mut KvPool, from: PageId, to: PageId) -> Result<(), BackendError> {
        pool.copy_page(from, to)
    }

    fn export_page(&self, pool: &KvPool, page: PageId, out: &mut Vec<u8>) -> Result<(), BackendError> {
        pool.export_page(page, out)
    }

    fn import_page(&self, pool: &mut KvPool, page: PageId, bytes: &[u8]) -> Result<(), BackendError> {
        pool.import_page(page, bytes)
    }

    fn write(&self, arena: &mut Arena, place: &Place, values: &[f32]) -> Result<(), BackendError> {
        rows::write(arena, place, values)
    }

    fn read(
        &self,
        arena: &Arena,
        place: &Place,
        first_row: usize,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        rows::read(arena, place, first_row, out)
    }

    fn samples(&self, sampling: &RowSampling, _vocab: usize) -> bool {
        rows::is_greedy(sampling)
    }

    fn run(&self, ops: &[Op], frame: &mut Frame<'_, Cpu>) -> Result<(), (usize, BackendError)> {
        for (index, op) in ops.iter().enumerate() {
            let ran = match op {
                // Behind the last operation comes the next step's first.
                Op::Matmul(op) => {
                    self.matmul(op, ops[index + 1..].iter().chain(ops).find_map(as_matmul), frame)
                }
                op => self.execute(op, frame),
            };
            ran.map_err(|error| (index, error))?;
        }
        Ok(())
    }

    fn execute(&self, op: &Op, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
        match op {
            Op::Embed(Embed { dst, table, scale }) => rows::embed(dst, *table, *scale, frame),
            Op::Norm(Normalize { dst, src, norm, write }) => {
                norm::norm(self, [dst, src], norm, *write, frame)
            }
            Op::Matmul(matmul) => self.matmul(matmul, None, frame),
            Op::RopeAngles(op) => rope::angles(op, frame),
            Op::Rope(ApplyRope { x, head_dim, rope }) => rope::rope(self, x, *head_dim, rope, frame),
            Op::KvAppend(op) => append::append(self, op, frame),
            Op::Attention(op) => attention::attention(self, op, frame),
            Op::GatherOutputs(GatherOutputs { dst, src }) => rows::gather_outputs(dst, src, frame),
            Op::Unary(Unary { dst, src, f }) => elementwise::unary(self, [dst, src], *f, frame),
            Op::Binary(Binary { dst, a, b, f }) => elementwise::binary(self, [dst, a, b], *f, frame),
            Op::Softmax(Softmax { dst, src }) => elementwise::softmax(self, [dst, src], frame),
            Op::Sample(SampleRows { dst, src }) => rows::sample(self, [dst, src], frame),
            Op::Transpose(Transpose { dst, src }) => elementwise::transpose([dst, src], frame),
            Op::RowAttention(op) => row_attention::row_attention(self, op, frame),
            Op::Route(op) => experts::route(op, frame),
            Op::ExpertMatmul(op) => self.expert_matmul(op, frame),
            Op::Combine(op) => experts::combine(op, frame),
        }
    }
}

fn as_matmul(op: &Op) -> Option<&Matmul> {
    if let Op::Matmul(matmul) = op { Some(matmul) } else { None }
}
