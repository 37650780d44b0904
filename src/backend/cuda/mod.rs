//! The CUDA backend: our own kernels on NVIDIA GPUs, through the driver API.
//!
//! `driver` finds a device and holds its context, `memory` owns allocations. `arena` holds a plan's values,
//! `step` a step's tables, `kv` the pages, `weights` the matrices in the layout of `pack`. `kernels` loads
//! and launches `kernels-cu/`; `params` mirrors its structs. `matmul`, `attention`, `sample` and
//! `elementwise` check an operation once, on the host, and launch it; `few`, `many` and `sm90_matmul` choose
//! launch shapes of products. `graph` records the launches of decode steps and replays them; `bandwidth`
//! measures the memory, `nvml` (feature `nvml`) monitors the card.
//!
//! All work goes to one stream, in order. Only reads wait for it, and waiting for sampled tokens does not
//! include later work. Asynchronous errors of the device are returned by the next wait, and a lost device
//! refuses all further work.

mod arena;
mod attention;
mod bandwidth;
mod driver;
mod elementwise;
mod few;
mod graph;
mod header;
mod kernels;
mod kv;
mod many;
mod matmul;
mod memory;
#[cfg(feature = "nvml")]
mod nvml;
mod pack;
mod params;
mod sample;
mod sm90_matmul;
mod step;
#[cfg(feature = "_bench")]
mod switches;
mod view;
mod weights;

use std::sync::Arc;

use crate::backend::{
    Backend, BackendError, DeviceMemory, Frame, MatrixShape, MatrixSource, Monitor, NoHealth, StepQueue,
    overlap_error, shape_error,
};
use crate::ir::{
    ApplyRope, Binary, BinaryFn, Embed, Epilogue, GatherOutputs, KvLayout, Normalize, Op, Precision,
    RowSampling, SampleRows, Softmax, StepLimits, Transpose, Unary, UnaryFn,
};
use crate::token::TokenId;
pub use arena::Arena;
pub use bandwidth::Bandwidth;
use driver::Context;
pub use driver::{DeviceInfo, Unavailable, devices, probe};
use kernels::Kernels;
pub use kv::KvPool;
#[cfg(feature = "_bench")]
#[doc(hidden)]
pub use switches::Switches;
pub use weights::{Matrix, Vector};

/// A monitor for a device, whether or not a backend uses it.
///
/// # Errors
/// [`NoHealth`] with the missing part.
pub fn monitor(info: &DeviceInfo) -> Result<Arc<dyn Monitor>, NoHealth> {
    #[cfg(feature = "nvml")]
    return nvml::monitor(&info.pci_bus_id);
    #[cfg(not(feature = "nvml"))]
    {
        let _ = info;
        Err(NoHealth::NotBuilt)
    }
}

/// Options of a CUDA backend.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Index of the device in the driver's order.
    pub ordinal: usize,
    /// Whether a token's results have the same bits whatever else is in its steps and however its prompt is
    /// divided into chunks. Decodes cost the same. Prompts cost more: each of their tokens attends
    /// separately, and Hopper's own products are not used.
    pub batch_invariant: bool,
}

/// One NVIDIA GPU. Only one thread at a time may submit work: another thread's work could end up in a
/// recording, and a wait waits for all of it.
#[derive(Debug)]
pub struct Cuda {
    kernels: Kernels,
    context: Arc<Context>,
    batch_invariant: bool,
}

impl Cuda {
    /// Opens a device and loads the kernels.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] with the reason ([`Unavailable`]), [`BackendError::Device`].
    pub fn new(options: &CudaOptions) -> Result<Cuda, BackendError> {
        let context = Context::new(options.ordinal)?;
        let (kernels, batch_invariant) = (Kernels::load(&context)?, options.batch_invariant);
        Ok(Cuda { kernels, context, batch_invariant })
    }

    /// [`Cuda::new`] with switches, for benches that compare with and without an optimisation.
    #[cfg(feature = "_bench")]
    #[doc(hidden)]
    pub fn with_switches(options: &CudaOptions, switches: Switches) -> Result<Cuda, BackendError> {
        let mut cuda = Cuda::new(options)?;
        cuda.kernels.set_switches(switches)?;
        Ok(cuda)
    }

    /// Properties of the device.
    pub fn device(&self) -> &DeviceInfo {
        self.context.info()
    }

    /// Refuses memory of another backend, because its stream is not ordered with this one's. All weights come
    /// from one backend, so checking the first matrix suffices.
    fn check_owner(&self, frame: &Frame<'_, Cuda>) -> Result<(), BackendError> {
        let (Frame { weights, arena, kv, .. }, own) = (frame, &self.context);
        let is_own = arena.is_of(own)
            && kv.is_of(own)
            && weights.matrices.first().is_none_or(|matrix| matrix.is_of(own));
        if is_own {
            return Ok(());
        }
        Err(shape_error("step", "weights, arena and pages of this backend".into(), "another's".into()))
    }
}

const NO_DIFFERENCE: &str = "a difference of values";
const NO_LAYER_NORM: &str = "a layer norm, or a norm with a bias";

/// The error for operations without a CUDA kernel.
fn no_kernel(what: &str) -> BackendError {
    BackendError::Unavailable { what: what.into(), reason: "the CUDA backend has no kernel for it".into() }
}

impl Backend for Cuda {
    type Arena = Arena;
    type Vector = Vector;
    type Matrix = Matrix;
    type KvPool = KvPool;

    /// With 2048 tokens, the narrowest product of Llama-3.2-1B has 256 tiles of 128 by 128, enough for 132
    /// multiprocessors; with 256 tokens it has 32. By calculation, a step takes 122 MB of memory. A step of
    /// Llama-3.1-8B takes 219 MB and 33 Tflop, about 60 ms on an H200, which concurrent decodes wait for.
    const PREFILL_CHUNK: usize = 2048;

    fn describe(&self) -> String {
        let info = self.context.info();
        let (major, minor) = info.compute_capability;
        format!("cuda:{}, {}, compute capability {major}.{minor}", info.ordinal, info.name)
    }

    fn memory(&self) -> Option<DeviceMemory> {
        self.context.memory().ok()
    }

    fn element_bytes(&self, _precision: Precision) -> usize {
        size_of::<f32>()
    }

    fn upload_vector(&self, values: &[f32]) -> Result<Vector, BackendError> {
        Vector::upload(&self.context, values)
    }

    fn prepare<S: MatrixSource>(&self, matrix: &S) -> Result<Matrix, S::Error> {
        Ok(Matrix::upload(&self.context, &*matrix.whole()?)?)
    }

    fn matrix_bytes(&self, shape: MatrixShape) -> usize {
        pack::stored(shape.form).bytes(shape.rows, shape.cols)
    }

    fn arena(&self, bytes: usize, ops: &[Op], limits: StepLimits) -> Result<Arena, BackendError> {
        Arena::new(self, bytes, ops, limits)
    }

    fn kv_pool(&self, layout: KvLayout, pages: usize) -> Result<KvPool, BackendError> {
        KvPool::new(&self.context, layout, pages)
    }

    fn samples(&self, sampling: &RowSampling, vocab: usize) -> bool {
        Cuda::takes(sampling, vocab)
    }

    fn execute(&self, op: &Op, frame: &mut Frame<'_, Cuda>) -> Result<(), BackendError> {
        self.context.enter()?;
        match op {
            Op::Embed(Embed { dst, table, scale }) => self.embed(dst, *table, *scale, frame),
            Op::Norm(Normalize { dst, src, norm, write }) => self.norm([dst, src], norm, *write, frame),
            Op::Matmul(matmul) => self.matmul(matmul, frame),
            Op::RopeAngles(op) => self.rope_angles(op, frame),
            Op::Rope(ApplyRope { x, head_dim, rope }) => self.rope(x, *head_dim, rope, frame),
            Op::KvAppend(op) => self.kv_append(op, frame),
            Op::Attention(op) => self.attention(op, frame),
            Op::GatherOutputs(GatherOutputs { dst, src }) => self.gather_outputs(dst, src, frame),
            Op::Unary(Unary { dst, src, f }) => self.unary([dst, src], *f, frame),
            Op::Binary(Binary { dst, a, b, f }) => self.binary([dst, a, b], *f, frame),
            Op::Softmax(Softmax { dst, src }) => self.softmax([dst, src], frame),
            Op::Sample(SampleRows { dst, src }) => self.sample([dst, src], frame),
            Op::Transpose(Transpose { dst, src }) => self.transpose([dst, src], frame),
            _ => Err(no_kernel(op.name())),
        }
    }

    fn check_kernel(&self, op: &Op) -> Result<(), BackendError> {
        match op {
            Op::RowAttention(_)
            | Op::MeanRows(_)
            | Op::Route(_)
            | Op::ExpertMatmul(_)
            | Op::Combine(_)
            | Op::ShortConv(_)
            | Op::GatedDelta(_)
            | Op::HeadNorm(_) => Err(no_kernel(op.name())),
            Op::Norm(Normalize { norm, .. }) if norm.as_rms().is_none() => Err(no_kernel(NO_LAYER_NORM)),
            Op::Binary(Binary { f: BinaryFn::Sub, .. }) => Err(no_kernel(NO_DIFFERENCE)),
            Op::Unary(Unary { f: UnaryFn::Activation(activation), .. }) => {
                params::activation_code(*activation).map(drop)
            }
            Op::Matmul(matmul) => matmul.products.iter().try_for_each(|product| match product.epilogue {
                Epilogue::Gated { activation, .. } => params::activation_code(activation).map(drop),
                Epilogue::Write(_) => Ok(()),
            }),
            Op::Embed(_)
            | Op::Norm(_)
            | Op::RopeAngles(_)
            | Op::Rope(_)
            | Op::KvAppend(_)
            | Op::Attention(_)
            | Op::GatherOutputs(_)
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Softmax(_)
            | Op::Sample(_)
            | Op::Transpose(_) => Ok(()),
        }
    }

    fn monitor(&self) -> Result<Arc<dyn Monitor>, NoHealth> {
        monitor(self.context.info())
    }

    fn queue(&self) -> Option<&dyn StepQueue<Cuda>> {
        Some(self)
    }
}

impl StepQueue<Cuda> for Cuda {
    fn begin(&self, frame: &mut Frame<'_, Cuda>) -> Result<(), BackendError> {
        self.check_owner(frame)?;
        frame.arena.begin(frame.step)
    }

    fn run(&self, ops: &[Op], frame: &mut Frame<'_, Cuda>) -> Result<(), (usize, BackendError)> {
        self.run_plan(ops, frame)
    }

    fn wait(&self) -> Result<(), BackendError> {
        self.context.wait()
    }

    fn sampled(
        &self,
        arena: &mut Arena,
        steps_back: usize,
        out: &mut [Option<TokenId>],
    ) -> Result<(), BackendError> {
        arena.sampled.tokens(steps_back, out)
    }
}
