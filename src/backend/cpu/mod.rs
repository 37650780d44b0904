//! The CPU backend: packed weights, int8 activations, one kernel source for every instruction set.
//!
//! `lanes` is the vector abstraction, with a file for each instruction set; `dispatch` detects
//! and instantiates; `pool` runs chunks on threads. `pack` lays weights out, `activations`
//! quantises, `panel` multiplies, `matmul` puts them together. What each operation computes is
//! specified by [`crate::backend::Op`] and `backend::reference`.

mod activations;
mod arena;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dispatch;
mod lanes;
#[cfg(test)]
mod lanes_tests;
mod matmul;
#[cfg(test)]
mod matmul_tests;
mod memory;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod panel;
mod pool;
mod portable;
mod rows;

use std::num::NonZeroUsize;
use std::ops::Deref;

use crate::backend::{Backend, BackendError, Frame, KvLayout, Op, PageId, Place, Precision, StepLimits};
use crate::quant::WeightMatrix;
pub use arena::Arena;
pub use dispatch::{Isa, UnknownIsa};
use dispatch::{Kernel, entry};
pub use pack::Matrix;
use pool::{Pool, default_threads};

/// How a CPU backend is set up.
#[derive(Clone, Debug, Default)]
pub struct CpuOptions {
    /// Threads, the caller's included; by default one a physical core that the process may use.
    pub threads: Option<NonZeroUsize>,
    /// A lower instruction set than the best, for tests.
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
}

impl Cpu {
    /// The CPU with its threads started.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] if the machine lacks the instruction set asked for.
    pub fn new(options: &CpuOptions) -> Result<Cpu, BackendError> {
        let isa = options.isa.unwrap_or_else(Isa::detect);
        if !isa.is_available() {
            let available: Vec<String> = Isa::available().iter().map(Isa::to_string).collect();
            let reason = format!("this machine has {}", available.join(", "));
            return Err(BackendError::Unavailable { what: format!("instruction set {isa}"), reason });
        }
        let threads = options.threads.unwrap_or_else(default_threads);
        Ok(Cpu { pool: Pool::new(threads), isa, compute: options.compute })
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

/// Operands that do not fit.
fn shape_error(op: &'static str, expected: String, found: String) -> BackendError {
    BackendError::Shape { op, expected, found }
}

fn no_kv(what: &str) -> BackendError {
    BackendError::Unavailable { what: what.into(), reason: "not merged yet".into() }
}

impl Backend for Cpu {
    type Arena = Arena;
    type Vector = Vector;
    type Matrix = Matrix;
    type KvPool = ();

    fn describe(&self) -> String {
        let compute = match self.compute {
            Compute::Int8 => "int8",
            Compute::F32 => "f32",
        };
        format!("cpu, {}, {} threads, {compute} activations", self.isa, self.threads())
    }

    fn element_bytes(&self, _precision: Precision) -> usize {
        size_of::<f32>()
    }

    fn upload_vector(&self, values: &[f32]) -> Result<Vector, BackendError> {
        Ok(Vector(values.into()))
    }

    fn prepare(&self, matrix: WeightMatrix) -> Result<Matrix, BackendError> {
        Matrix::pack(&matrix, &self.pool)
    }

    fn matrix_bytes(&self, matrix: &Matrix) -> usize {
        matrix.bytes()
    }

    fn arena(&self, bytes: usize, ops: &[Op], limits: StepLimits) -> Result<Arena, BackendError> {
        Arena::new(bytes, ops, limits)
    }

    fn kv_pool(&self, _layout: KvLayout, _pages: usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn copy_page(&self, _pool: &mut (), _from: PageId, _to: PageId) -> Result<(), BackendError> {
        Err(no_kv("copy_page"))
    }

    fn export_page(&self, _pool: &(), _page: PageId, _out: &mut Vec<u8>) -> Result<(), BackendError> {
        Err(no_kv("export_page"))
    }

    fn import_page(&self, _pool: &mut (), _page: PageId, _bytes: &[u8]) -> Result<(), BackendError> {
        Err(no_kv("import_page"))
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

    fn execute(&self, op: &Op, frame: &mut Frame<'_, Cpu>) -> Result<(), BackendError> {
        match op {
            Op::Embed { dst, table, scale } => rows::embed(dst, *table, *scale, frame),
            Op::Matmul(matmul) => self.matmul(matmul, frame),
            Op::GatherOutputs { dst, src } => rows::gather_outputs(dst, src, frame),
            other => Err(no_kv(other.name())),
        }
    }
}
