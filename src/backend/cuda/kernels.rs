//! The table of kernels and their launch.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUfunction_attribute as Attribute, CUresult};

use super::driver::{Context, Unavailable, device_error};
use crate::backend::BackendError;

macro_rules! kernels {
    ($($kernel:ident = $name:literal,)*) => {
        /// A kernel of `kernels-cu/`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Kernel { $(#[doc = $name] $kernel,)* }

        /// The names in the order of [`Kernel`].
        const NAMES: &[&str] = &[$($name,)*];
    };
}

kernels! {
    Activations = "activations",
    AttentionDecode1x8 = "attention_decode_1_8",
    AttentionDecode1x16 = "attention_decode_1_16",
    AttentionDecode1x32 = "attention_decode_1_32",
    AttentionDecode2x8 = "attention_decode_2_8",
    AttentionDecode2x16 = "attention_decode_2_16",
    AttentionDecode2x32 = "attention_decode_2_32",
    AttentionDecode3x8 = "attention_decode_3_8",
    AttentionDecode3x16 = "attention_decode_3_16",
    AttentionDecode3x32 = "attention_decode_3_32",
    AttentionDecode4x8 = "attention_decode_4_8",
    AttentionDecode4x16 = "attention_decode_4_16",
    AttentionDecode4x32 = "attention_decode_4_32",
    AttentionDecode5x8 = "attention_decode_5_8",
    AttentionDecode5x16 = "attention_decode_5_16",
    AttentionDecode5x32 = "attention_decode_5_32",
    AttentionDecode7x8 = "attention_decode_7_8",
    AttentionDecode7x16 = "attention_decode_7_16",
    AttentionDecode7x32 = "attention_decode_7_32",
    AttentionPrefill64 = "attention_prefill_64",
    AttentionPrefill128 = "attention_prefill_128",
    AttentionPrefill256 = "attention_prefill_256",
    Binary = "binary",
    CopyMemory = "copy_memory",
    Embed = "embed",
    GatherOutputs = "gather_outputs",
    KvAppend = "kv_append",
    MatmulFew = "matmul_few",
    MatmulMany16 = "matmul_many_16",
    MatmulMany32 = "matmul_many_32",
    MatmulMany64 = "matmul_many_64",
    MatmulMany128 = "matmul_many_128",
    ReadMemory = "read_memory",
    RmsNorm = "rms_norm",
    Rope = "rope",
    RopeAngles = "rope_angles",
    Sample = "sample",
    Sm90Activations = "sm90_activations",
    Sm90MatmulMany128x64 = "sm90_matmul_many_128_64",
    Sm90MatmulMany128x128 = "sm90_matmul_many_128_128",
    Sm90MatmulMany256x64 = "sm90_matmul_many_256_64",
    Sm90MatmulMany256x128 = "sm90_matmul_many_256_128",
    Softmax = "softmax",
    Transpose = "transpose",
    Unary = "unary",
}

/// The kernels' machine code and PTX, compiled by build.rs.
static IMAGE: &Image<[u8]> = &Image(*include_bytes!(env!("OTTAVA_FATBIN")));

/// Name prefix of kernels that exist for compute capability 9.0 only.
const ONLY_90: &str = "sm90_";

/// Preferred share of a multiprocessor's L1 for shared memory, in per cent. A driver takes the nearest
/// supported split.
const CARVE_OUT: Attribute = Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
const CARVEOUT_PERCENT: i32 = 100;

const LOAD: &str = "cuModuleLoadData";
/// Errors of loading an image without code for the device.
const NO_CODE: [CUresult; 3] = [
    CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU,
    CUresult::CUDA_ERROR_INVALID_PTX,
    CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
];

/// Aligned for the driver, which reads whole words.
#[repr(align(16))]
struct Image<T: ?Sized>(T);

/// The loaded kernels.
#[derive(Debug)]
pub(super) struct Kernels {
    context: Arc<Context>,
    module: sys::CUmodule,
    /// Indexed by [`Kernel`]; `None` for kernels missing in the loaded code.
    functions: Vec<Option<Function>>,
    /// Whether a kernel may start before the previous one has ended (programmatic dependent launch). Kernels
    /// wait themselves before they read its results.
    overlap: bool,
}

/// A kernel of the loaded code.
#[derive(Clone, Copy, Debug)]
struct Function {
    handle: sys::CUfunction,
    /// Maximum dynamic shared memory of a launch, in bytes, as set in the driver.
    dynamic_shared_max: usize,
}

// SAFETY: handles of the driver, valid on any thread as long as the context lives.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

/// A launch's shape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    /// Number of blocks.
    pub(super) blocks: [usize; 3],
    /// Threads per block.
    pub(super) threads: [u32; 2],
    /// Bytes of dynamic shared memory.
    pub(super) shared_bytes: usize,
}

impl Grid {
    /// A one-dimensional grid of `blocks` blocks with `threads` threads.
    pub(super) fn line(blocks: usize, threads: u32) -> Grid {
        Grid { blocks: [blocks, 1, 1], threads: [threads, 1], shared_bytes: 0 }
    }
}

/// Loads the fat binary; [`Unavailable`] if it has no code for the device.
fn load_image(context: &Context) -> Result<sys::CUmodule, BackendError> {
    context.enter()?;
    // SAFETY: a whole fat binary, or text that ends with a zero.
    match unsafe { result::module::load_data(IMAGE.0.as_ptr().cast()) } {
        Err(error) if NO_CODE.contains(&error.0) => {
            let info = context.info();
            let reason = device_error(info, LOAD, error).to_string();
            let (major, minor) = info.compute_capability;
            Err(Unavailable::NoImage { name: info.name.clone(), major, minor, reason }.into())
        }
        module => context.done(LOAD, module),
    }
}

impl Kernels {
    /// Loads the image. All kernels may use a block's maximum shared memory, and all have the same carve-out.
    /// Before a kernel with another split of L1, a multiprocessor has to run empty, which prevents overlap
    /// and early loads.
    pub(super) fn load(context: &Arc<Context>) -> Result<Kernels, BackendError> {
        let module = load_image(context)?;
        let mut kernels =
            Kernels { context: Arc::clone(context), module, functions: Vec::new(), overlap: false };
        for name in NAMES {
            let function = kernels.find(name)?;
            kernels.functions.push(function);
        }
        // The card may support it but not the code: code for older cards has no such wait.
        let compiled_for = match kernels.functions.iter().flatten().next() {
            Some(function) => kernels.attribute(function.handle, Attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION)?,
            None => 0,
        };
        kernels.overlap = context.info().compute_capability.0 >= 9 && compiled_for >= 90;
        Ok(kernels)
    }

    /// Whether the loaded code has a kernel.
    pub(super) fn has(&self, kernel: Kernel) -> bool {
        self.functions[kernel as usize].is_some()
    }

    /// Maximum dynamic shared memory of a kernel's launch, in bytes. 0 if the loaded code does not
    /// [have](Kernels::has) it. A block that is to share a multiprocessor with others must use less.
    pub(super) fn dynamic_shared_max(&self, kernel: Kernel) -> usize {
        self.functions[kernel as usize].map_or(0, |function| function.dynamic_shared_max)
    }

    /// Number of blocks of `threads` threads, without dynamic shared memory, that fit on a multiprocessor.
    pub(super) fn blocks_per_multiprocessor(
        &self,
        kernel: Kernel,
        threads: u32,
    ) -> Result<usize, BackendError> {
        let Some(function) = self.functions[kernel as usize] else { return Ok(0) };
        self.context.enter()?;
        // SAFETY: the function is the module's.
        let blocks = unsafe {
            result::occupancy::max_active_block_per_multiprocessor(function.handle, threads as i32, 0)
        };
        let blocks = self.context.done("cuOccupancyMaxActiveBlocksPerMultiprocessor", blocks)?;
        Ok(usize::try_from(blocks).unwrap_or(0))
    }

    /// Finds a kernel and sets its attributes; `None` for a kernel that only code for 9.0 has.
    fn find(&self, name: &str) -> Result<Option<Function>, BackendError> {
        let text = CString::new(name).unwrap_or_default();
        // SAFETY: the module lives as long as `self`.
        let handle = match unsafe { result::module::get_function(self.module, text) } {
            Err(DriverError(CUresult::CUDA_ERROR_NOT_FOUND)) if name.starts_with(ONLY_90) => {
                return Ok(None);
            }
            handle => self.context.done("cuModuleGetFunction", handle)?,
        };
        // Some drivers may include the system's reservation per block in the kernel's fixed size.
        let fixed = self.attribute(handle, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let fixed = usize::try_from(fixed).unwrap_or(0);
        let dynamic_shared_max = self.context.info().shared_block_max.saturating_sub(fixed);
        let bytes = dynamic_shared_max as i32;
        self.set(handle, Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes)?;
        self.set(handle, CARVE_OUT, CARVEOUT_PERCENT)?;
        Ok(Some(Function { handle, dynamic_shared_max }))
    }

    fn set(&self, function: sys::CUfunction, attribute: Attribute, value: i32) -> Result<(), BackendError> {
        // SAFETY: the function is the module's.
        let set = unsafe { result::function::set_function_attribute(function, attribute, value) };
        self.context.done("cuFuncSetAttribute", set)
    }

    fn attribute(&self, function: sys::CUfunction, attribute: Attribute) -> Result<i32, BackendError> {
        // SAFETY: the function is the module's.
        let value = unsafe { result::function::get_function_attribute(function, attribute) };
        self.context.done("cuFuncGetAttribute", value)
    }

    /// Launches a kernel after all work so far; an empty grid is a no-op.
    ///
    /// # Safety
    /// The loaded code [has](Kernels::has) the kernel, and `params` is the kernel's own struct. Its addresses
    /// are valid for the kernel's accesses with this grid, until the stream has run it.
    pub(super) unsafe fn launch<P: bytemuck::Pod>(
        &self,
        kernel: Kernel,
        grid: Grid,
        params: &P,
    ) -> Result<(), BackendError> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let [x, y, z] = grid.blocks;
        let limits = [i32::MAX as usize, 65_535, 65_535];
        if grid.blocks.iter().zip(limits).any(|(&blocks, limit)| blocks > limit) {
            return Err(BackendError::Shape {
                op: NAMES[kernel as usize],
                expected: format!("a grid within {limits:?}"),
                found: format!("{:?}", grid.blocks),
            });
        }
        let params: *const P = params;
        let mut params = [params.cast_mut().cast::<c_void>()];
        let mut overlap = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: x as u32,
            gridDimY: y as u32,
            gridDimZ: z as u32,
            blockDimX: grid.threads[0],
            blockDimY: grid.threads[1],
            blockDimZ: 1,
            sharedMemBytes: grid.shared_bytes as u32,
            hStream: self.context.stream(),
            attrs: &mut overlap,
            numAttrs: u32::from(self.overlap),
        };
        let function = self.functions[kernel as usize].map_or(std::ptr::null_mut(), |found| found.handle);
        // SAFETY: promised by the caller; the driver copies the parameters before it returns.
        let launched =
            unsafe { sys::cuLaunchKernelEx(&config, function, params.as_mut_ptr(), std::ptr::null_mut()) };
        self.context.done(NAMES[kernel as usize], launched.result())
    }
}

/// Carve-out value that leaves the choice to the driver, per kernel.
#[cfg(feature = "_bench")]
const DRIVERS_CHOICE: i32 = -1;

/// Switches for benchmarks, and their state.
#[cfg(feature = "_bench")]
impl Kernels {
    pub(super) fn set_switches(&mut self, switches: super::Switches) -> Result<(), BackendError> {
        self.overlap &= switches.overlap;
        if switches.carve_out {
            return Ok(());
        }
        self.context.enter()?;
        for function in self.functions.iter().flatten() {
            self.set(function.handle, CARVE_OUT, DRIVERS_CHOICE)?;
        }
        Ok(())
    }

    /// Whether the driver has our carve-out, and whether overlap is on.
    #[cfg(test)]
    pub(super) fn switches(&self) -> Result<(bool, bool), BackendError> {
        self.context.enter()?;
        let mut carve_out = false;
        for function in self.functions.iter().flatten() {
            carve_out |= self.attribute(function.handle, CARVE_OUT)? != DRIVERS_CHOICE;
        }
        Ok((carve_out, self.overlap))
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        // Steps may still be running; their errors have no recipient.
        if self.context.wait().is_ok() {
            // SAFETY: loaded by `load`, and no launch is under way.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The planned maximum equals the driver's, for each kernel of the loaded code.
    #[test]
    fn kernels_have_all_the_shared_memory_of_a_block_and_one_carve_out() {
        cuda_emu::install(&cuda_emu::InstallOptions::skipped_by("OTTAVA_TEST_GPU")).unwrap();
        let context = Context::new(0).unwrap();
        let kernels = Kernels::load(&context).unwrap();
        let read = |function: &Function, attribute| kernels.attribute(function.handle, attribute).unwrap();
        for function in kernels.functions.iter().flatten() {
            let most = read(function, Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) as usize;
            let fixed = read(function, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES) as usize;
            assert_eq!(function.dynamic_shared_max, most);
            assert_eq!(most + fixed, context.info().shared_block_max);
            assert_eq!(read(function, CARVE_OUT), 100);
        }
        assert!(kernels.dynamic_shared_max(Kernel::RmsNorm) > 48 << 10);
        assert_eq!(
            kernels.has(Kernel::Sm90Activations),
            kernels.dynamic_shared_max(Kernel::Sm90Activations) > 0
        );
    }
}
