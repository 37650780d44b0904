//! A launch: its description, the rules it must keep, and the way from grid to threads.

use crate::device::Device;
use crate::error::LaunchError;
use crate::exec;
use crate::module::Kernel;
use crate::stats::LaunchStats;

/// What to launch.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks of a cluster; `[1, 1, 1]` without clusters.
    pub cluster: [u32; 3],
    /// Dynamic shared memory of a block.
    pub dynamic_shared_bytes: u32,
    /// The parameter block, [`Kernel::param_bytes`] long: each parameter at its offset.
    pub params: &'a [u8],
    /// Whether all blocks run at the same time, so that they may wait for each other.
    pub cooperative: bool,
    /// What the kernel depends on in programmatic dependent launch. It is called when the first
    /// block runs `griddepcontrol.wait`, or at the latest after the last block: a kernel that reads
    /// its predecessor's results without the wait reads what was there before.
    pub predecessor: Option<&'a (dyn Fn() + Sync)>,
}

impl<'a> Launch<'a> {
    /// A launch without clusters, dynamic shared memory and dependencies.
    pub fn new(kernel: &'a Kernel, grid: [u32; 3], block: [u32; 3], params: &'a [u8]) -> Self {
        let cluster = kernel.cluster_required().unwrap_or([1, 1, 1]);
        Self {
            kernel,
            grid,
            block,
            cluster,
            dynamic_shared_bytes: 0,
            params,
            cooperative: false,
            predecessor: None,
        }
    }

    /// The first rule that the launch breaks, in words.
    pub(crate) fn broken_rule(&self, device: &Device) -> Option<String> {
        let Self { grid, block, cluster, .. } = *self;
        let threads = block.iter().try_fold(1u32, |n, d| n.checked_mul(*d)).unwrap_or(u32::MAX);
        let threads_max = self.kernel.threads_max();
        let shared = u64::from(self.kernel.static_shared_bytes()) + u64::from(self.dynamic_shared_bytes);
        let shared_max = device.config().arch.shared_bytes_max();
        if grid.contains(&0) || grid[0] > i32::MAX as u32 || grid[1] > 65535 || grid[2] > 65535 {
            return Some(format!("grid {grid:?}, may be 1 to [2147483647, 65535, 65535]"));
        }
        if threads == 0 || threads > threads_max || block[2] > 64 {
            return Some(format!("block {block:?} of {threads} threads, may have 1 to {threads_max}"));
        }
        if self.kernel.block_required().is_some_and(|required| required != block) {
            return Some(format!("block {block:?}, the kernel requires {:?}", self.kernel.block_required()));
        }
        if cluster.contains(&0)
            || (0..3).any(|d| !grid[d].is_multiple_of(cluster[d]))
            || cluster.iter().product::<u32>() > 16
        {
            return Some(format!(
                "cluster {cluster:?} does not divide grid {grid:?} into at most 16 blocks each"
            ));
        }
        if shared > u64::from(shared_max) {
            return Some(format!("{shared} bytes of shared memory, at most {shared_max}"));
        }
        if self.params.len() != self.kernel.param_bytes() as usize {
            return Some(format!(
                "{} bytes of parameters, the kernel has {}",
                self.params.len(),
                self.kernel.param_bytes()
            ));
        }
        None
    }
}

/// Runs a kernel to its end.
///
/// # Errors
/// The launch breaks a rule and nothing ran, or a thread did something wrong: then other blocks may
/// have run or not, as on a card.
pub fn launch(device: &Device, launch: &Launch) -> Result<LaunchStats, LaunchError> {
    if let Some(reason) = launch.broken_rule(device) {
        return Err(LaunchError::Refused { kernel: launch.kernel.name().to_string(), reason });
    }
    exec::run(device, launch).map_err(LaunchError::Fault)
}
