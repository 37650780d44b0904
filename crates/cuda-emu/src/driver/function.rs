//! Functions of modules: their attributes, how many blocks a multiprocessor holds, and the rules
//! that a launch must keep.

use std::ffi::c_int;

use super::abi::{Handle, In};
use super::card::{self, Card};
use super::state::State;
use super::status::{Answer, Status};
use super::work::KernelLaunch;
use crate::module::Kernel;

/// `CU_FUNC_ATTRIBUTE_…` that can be set.
const MAX_DYNAMIC_SHARED_SIZE_BYTES: u32 = 8;
const PREFERRED_SHARED_MEMORY_CARVEOUT: u32 = 9;
const REQUIRED_CLUSTER_WIDTH: u32 = 11;
const REQUIRED_CLUSTER_DEPTH: u32 = 13;
const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: u32 = 14;
const CLUSTER_SCHEDULING_POLICY_PREFERENCE: u32 = 15;

/// A function of the program (`CUfunction`).
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) module: Handle,
    pub(crate) kernel: Kernel,
    /// Dynamic shared memory that a launch may ask for, bytes.
    dynamic_shared_bytes_max: u32,
    carveout: c_int,
    cluster: [u32; 3],
    cluster_policy: c_int,
    non_portable_clusters: bool,
}

/// What a launch asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Blocks of a cluster, where the launch says so.
    pub(crate) cluster: Option<[u32; 3]>,
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) cooperative: bool,
    pub(crate) programmatic: bool,
}

impl Function {
    /// A kernel with attributes as loaded on a card.
    pub(crate) fn new(module: Handle, kernel: Kernel, card: &Card) -> Self {
        let most = card::SHARED_BYTES_DEFAULT_MAX.saturating_sub(card.static_shared_bytes(&kernel));
        let cluster = kernel.cluster_required().unwrap_or([0; 3]);
        Self {
            module,
            kernel,
            dynamic_shared_bytes_max: most,
            carveout: -1,
            cluster,
            cluster_policy: 0,
            non_portable_clusters: false,
        }
    }

    /// `cuFuncGetAttribute`
    pub(crate) fn attribute(&self, attribute: u32, card: &Card) -> Answer<c_int> {
        let (major, minor) = card.arch.capability();
        let value = match attribute {
            0 => self.threads_max(),
            1 => card.static_shared_bytes(&self.kernel),
            2 | 7 => 0,
            3 => self.kernel.local_bytes(),
            4 => registers(&self.kernel),
            5 => self.kernel.compiled_for(),
            6 => major * 10 + minor,
            MAX_DYNAMIC_SHARED_SIZE_BYTES => self.dynamic_shared_bytes_max,
            PREFERRED_SHARED_MEMORY_CARVEOUT => return Ok(self.carveout),
            10 => u32::from(self.kernel.cluster_required().is_some()),
            REQUIRED_CLUSTER_WIDTH..=REQUIRED_CLUSTER_DEPTH => {
                self.cluster[(attribute - REQUIRED_CLUSTER_WIDTH) as usize]
            }
            NON_PORTABLE_CLUSTER_SIZE_ALLOWED => u32::from(self.non_portable_clusters),
            CLUSTER_SCHEDULING_POLICY_PREFERENCE => return Ok(self.cluster_policy),
            _ => return Err(Status::InvalidValue),
        };
        c_int::try_from(value).map_err(|_| Status::InvalidValue)
    }

    /// `cuFuncSetAttribute`
    pub(crate) fn set_attribute(&mut self, attribute: u32, value: c_int, card: &Card) -> Answer {
        let number = u32::try_from(value);
        match (attribute, number) {
            (MAX_DYNAMIC_SHARED_SIZE_BYTES, Ok(bytes)) => {
                let most =
                    card.arch.shared_bytes_max().saturating_sub(card.static_shared_bytes(&self.kernel));
                if bytes > most {
                    let reason = format!("{bytes} bytes of dynamic shared memory, at most {most}");
                    return Err(self.refuse(Status::InvalidValue, &reason));
                }
                self.dynamic_shared_bytes_max = bytes;
            }
            (PREFERRED_SHARED_MEMORY_CARVEOUT, _) if (-1..=100).contains(&value) => self.carveout = value,
            (REQUIRED_CLUSTER_WIDTH..=REQUIRED_CLUSTER_DEPTH, Ok(blocks)) if card.has_clusters() => {
                if self.kernel.cluster_required().is_some() {
                    return Err(Status::NotPermitted);
                }
                self.cluster[(attribute - REQUIRED_CLUSTER_WIDTH) as usize] = blocks;
            }
            (NON_PORTABLE_CLUSTER_SIZE_ALLOWED, Ok(0 | 1)) => self.non_portable_clusters = value == 1,
            (CLUSTER_SCHEDULING_POLICY_PREFERENCE, Ok(0..=2)) => self.cluster_policy = value,
            _ => return Err(Status::InvalidValue),
        }
        Ok(())
    }

    /// Threads that a block may have: by the kernel's own limit and by registers.
    pub(crate) fn threads_max(&self) -> u32 {
        let by_registers = card::REGISTERS / registers_of_warp(&self.kernel) * 32;
        self.kernel.threads_max().min(by_registers).min(1024)
    }

    /// Blocks of so many threads that a multiprocessor holds.
    pub(crate) fn blocks_per_multiprocessor(&self, threads: u32, dynamic_bytes: u64, card: &Card) -> u32 {
        if threads == 0 || threads > self.threads_max() {
            return 0;
        }
        let warps = threads.div_ceil(32);
        let shared =
            u64::from(self.kernel.static_shared_bytes() + card::SHARED_BYTES_RESERVED) + dynamic_bytes;
        if shared > u64::from(card.shared_bytes) {
            return 0;
        }
        let by_threads = card::THREADS_PER_MULTIPROCESSOR / (warps * 32);
        let by_registers = card::REGISTERS / (registers_of_warp(&self.kernel) * warps);
        let by_shared = (u64::from(card.shared_bytes) / shared) as u32;
        card::BLOCKS_PER_MULTIPROCESSOR.min(by_threads).min(by_registers).min(by_shared)
    }

    /// The dynamic shared memory of a block if so many are on a multiprocessor.
    pub(crate) fn dynamic_shared_bytes_available(&self, blocks: u32, card: &Card) -> u32 {
        let each = card.shared_bytes / blocks.max(1);
        let taken = self.kernel.static_shared_bytes() + card::SHARED_BYTES_RESERVED;
        each.saturating_sub(taken).min(self.dynamic_shared_bytes_max)
    }

    /// The most blocks of a cluster.
    pub(crate) fn cluster_blocks_max(&self) -> u32 {
        if self.non_portable_clusters { 16 } else { card::CLUSTER_BLOCKS_PORTABLE }
    }

    /// The cluster of a launch.
    pub(crate) fn cluster_of(&self, shape: &Shape) -> [u32; 3] {
        let set = if self.cluster.contains(&0) { [1; 3] } else { self.cluster };
        shape.cluster.unwrap_or(set)
    }

    /// Says on the standard error stream why a call on this function fails.
    fn refuse(&self, status: Status, reason: &str) -> Status {
        let code = status.symbol().to_string_lossy();
        eprintln!("[cuda-emu] {code}: `{}`: {reason}", self.kernel.name());
        status
    }

    /// The rules of the driver that the interpreter does not know.
    fn check(&self, shape: &Shape, card: &Card) -> Answer {
        let refuse = |status, reason: String| Err(self.refuse(status, &reason));
        let (dynamic, most) = (shape.dynamic_shared_bytes, self.dynamic_shared_bytes_max);
        if dynamic > most {
            return refuse(
                Status::InvalidValue,
                format!(
                    "{dynamic} bytes of dynamic shared memory, {most} without a higher CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
                ),
            );
        }
        let cluster = self.cluster_of(shape);
        let cluster_blocks = cluster.iter().fold(1u32, |product, d| product.saturating_mul(*d));
        if cluster_blocks > 1 && !card.has_clusters() {
            return refuse(Status::InvalidValue, format!("cluster {cluster:?} on a card without clusters"));
        }
        if cluster_blocks > self.cluster_blocks_max() {
            let most = self.cluster_blocks_max();
            return refuse(Status::InvalidValue, format!("cluster {cluster:?}, at most {most} blocks"));
        }
        if self.kernel.cluster_required().is_some_and(|required| required != cluster) {
            return refuse(Status::InvalidValue, format!("cluster {cluster:?}, the kernel requires another"));
        }
        let threads = shape.block.iter().fold(1u32, |product, d| product.saturating_mul(*d));
        if threads <= self.kernel.threads_max() && threads > self.threads_max() {
            return refuse(Status::LaunchOutOfResources, format!("too many registers for {threads} threads"));
        }
        let blocks = shape.grid.iter().fold(1u64, |product, d| product.saturating_mul(u64::from(*d)));
        let each = self.blocks_per_multiprocessor(threads, u64::from(dynamic), card);
        let fits = u64::from(each) * u64::from(card.multiprocessors);
        if shape.cooperative && blocks > fits {
            let reason = format!("{blocks} blocks of a cooperative launch, {fits} fit at one time");
            return refuse(Status::CooperativeLaunchTooLarge, reason);
        }
        Ok(())
    }
}

/// Registers of a thread: who compiles for blocks of a named size keeps to what such a block can have.
fn registers(kernel: &Kernel) -> u32 {
    // Its warps are spread over four register files.
    let threads = kernel.threads_named().unwrap_or(1).clamp(1, 1024).next_multiple_of(128);
    kernel.registers_estimate().min(card::REGISTERS / threads / 8 * 8)
}

/// Registers that a warp takes: given out to threads by 8, to warps by 256.
fn registers_of_warp(kernel: &Kernel) -> u32 {
    let each = registers(kernel).clamp(1, 255).next_multiple_of(8);
    (each * 32).next_multiple_of(256)
}

impl State {
    /// A function runs on the device that its module was loaded on, and no other.
    pub(crate) fn check_function(&self, function: Handle, stream: Handle) -> Answer {
        let module = self.modules.get(self.functions.get(function)?.module)?;
        let [loaded, asked] = [self.ordinal_of_context(module.context), self.ordinal_of_stream(stream)];
        if loaded != asked {
            eprintln!(
                "[cuda-emu] CUDA_ERROR_INVALID_HANDLE: a function of device {loaded} in a stream of device {asked}"
            );
            return Err(Status::InvalidHandle);
        }
        Ok(())
    }

    /// Checks a launch and copies its parameters.
    pub(crate) fn prepare_launch(
        &self,
        function: Handle,
        shape: &Shape,
        params: In<In<u8>>,
        extra: In<usize>,
    ) -> Answer<KernelLaunch> {
        let function = self.functions.get(function)?;
        function.check(shape, &self.own().card)?;
        let launch = KernelLaunch {
            kernel: function.kernel.clone(),
            grid: shape.grid,
            block: shape.block,
            cluster: function.cluster_of(shape),
            dynamic_shared_bytes: shape.dynamic_shared_bytes,
            params: copy_params(&function.kernel, params, extra)?,
            cooperative: shape.cooperative,
            programmatic: shape.programmatic,
        };
        match launch.as_launch(None).broken_rule(&self.own().device) {
            Some(reason) => Err(function.refuse(Status::InvalidValue, &reason)),
            None => Ok(launch),
        }
    }
}

/// Copies parameters: from a pointer each, or from one buffer that `extra` tells of.
fn copy_params(kernel: &Kernel, params: In<In<u8>>, extra: In<usize>) -> Answer<Box<[u8]>> {
    /// `CU_LAUNCH_PARAM_BUFFER_POINTER`, `…_SIZE`
    const BUFFER: usize = 1;
    const SIZE: usize = 2;
    let mut block = vec![0; kernel.param_bytes() as usize].into_boxed_slice();
    if extra.is_null() || !params.is_null() {
        for (index, param) in kernel.params().iter().enumerate() {
            let range = param.offset as usize..(param.offset + param.bytes) as usize;
            params.at(index)?.copy_to(block.get_mut(range).ok_or(Status::InvalidValue)?)?;
        }
        return Ok(block);
    }
    let (mut buffer, mut size) = (In::<u8>::default(), 0);
    let mut at = 0;
    while extra.at(at)? != 0 {
        match (extra.at(at)?, extra.at(at + 1)?) {
            (BUFFER, pointer) => buffer = In::from_address(pointer),
            (SIZE, pointer) => size = In::<usize>::from_address(pointer).get()?,
            _ => return Err(Status::InvalidValue),
        }
        at += 2;
    }
    let length = size.min(block.len());
    buffer.copy_to(&mut block[..length])?;
    Ok(block)
}
