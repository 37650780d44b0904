//! The launch of `matmul_few.cu`.

use super::kernels::{Grid, Kernel};
use super::many::PARTS_MAX;
use super::pack::{STEP_COLS, STRIP_ROWS, UNIT_STEPS};
use super::{Cuda, params};
use crate::backend::BackendError;

/// Limits of tokens and of activations (tokens · columns, for several tokens) for `matmul_few.cu`. Each of
/// its blocks converts all activations to f16 for itself, at an L2 traffic proportional to their number.
/// Tiles share activations that are packed once, at the cost of one more launch. On an H200, neither kernel
/// was far ahead near these limits (benches/record/h200).
const TOKENS_MAX: usize = 4;
const ACTIVATIONS_MAX: usize = 16_384;
/// `sizeof(FewShared)` in matmul_few.cu.
const FIXED_BYTES: usize = 4672;
/// Warps per block. Each has a ring of slices for its weights.
const WARPS: usize = 8;
/// Bytes of codes per slice.
const SLICE_BYTES: usize = 1024;
/// Possible slices per ring, best first. Longer rings keep more loads in flight, which hides memory latency.
const RING_SLICES: [usize; 3] = [8, 4, 2];
/// Size of the smallest rings of any launch: a unit of 16-bit weights has four slices, and another matrix of
/// the launch may have scales and minimums in groups of 16 columns.
const RINGS_MIN_BYTES: usize = WARPS * 4 * (SLICE_BYTES + UNIT_STEPS * GROUP_BYTES * 2);
/// Bytes of the scales of a strip's group.
const GROUP_BYTES: usize = 32;
/// Maximum blocks per multiprocessor, limited by registers.
const BLOCKS_MAX: usize = 2;
/// Shared memory per block that is reserved by the hardware.
const RESERVED_BYTES: usize = 1024;

/// Sizes of shared memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedMemory {
    /// Maximum dynamic shared memory of a launch.
    pub(super) block_max: usize,
    /// Shared memory of a multiprocessor, for all its blocks.
    pub(super) multiprocessor: usize,
}

/// Bytes of a unit's scales and minimums in a ring; 0 without a matrix.
fn scale_bytes(matrix: &params::Matrix) -> usize {
    if matrix.bits == 0 {
        return 0;
    }
    let groups = UNIT_STEPS / (matrix.group_steps as usize).max(1);
    groups * GROUP_BYTES * if matrix.mins == 0 { 1 } else { 2 }
}

/// Launch shape of `matmul_few.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FewShape {
    shared_bytes: usize,
    /// Blocks that fit on a multiprocessor.
    blocks_per_multiprocessor: usize,
    ring_slices: usize,
    ring_scale_bytes: usize,
}

impl FewShape {
    /// Shared memory of a block without its rings. `None` if there are too many activations for this kernel
    /// or for a block's shared memory.
    fn fixed_bytes(tokens: usize, cols: usize, shared: SharedMemory) -> Option<usize> {
        let units = cols.div_ceil(UNIT_STEPS * STEP_COLS);
        let activations = tokens * (units * UNIT_STEPS * STEP_COLS + STEP_COLS) * 2;
        let few = tokens <= 1 || tokens <= TOKENS_MAX && tokens * cols <= ACTIVATIONS_MAX;
        let bytes = FIXED_BYTES + activations;
        (few && bytes + RINGS_MIN_BYTES <= shared.block_max).then_some(bytes)
    }

    /// Prefers the maximum number of blocks over long rings. `widest`: bits of the widest code;
    /// `scale_bytes`: maximum size of a unit's scales and minimums.
    fn new(fixed_bytes: usize, widest: usize, scale_bytes: usize, shared: SharedMemory) -> FewShape {
        let unit_slices = UNIT_STEPS * STEP_COLS * STRIP_ROWS * widest / 8 / SLICE_BYTES;
        let shape = |blocks: usize, slices: usize| FewShape {
            shared_bytes: fixed_bytes + WARPS * slices * (SLICE_BYTES + scale_bytes),
            blocks_per_multiprocessor: blocks,
            ring_slices: slices,
            ring_scale_bytes: scale_bytes,
        };
        let fits = |shape: &FewShape| {
            shape.shared_bytes <= shared.block_max
                && shape.blocks_per_multiprocessor * (shape.shared_bytes + RESERVED_BYTES)
                    <= shared.multiprocessor
        };
        let slices = || RING_SLICES.into_iter().filter(|slices| *slices >= unit_slices);
        (1..=BLOCKS_MAX)
            .rev()
            .flat_map(|blocks| slices().map(move |slices| shape(blocks, slices)))
            .find(fits)
            .unwrap_or(shape(1, unit_slices.max(2)))
    }
}

impl Cuda {
    /// Shared memory for `matmul_few.cu`.
    fn few_shared(&self) -> SharedMemory {
        SharedMemory {
            block_max: self.kernels.dynamic_shared_max(Kernel::MatmulFew),
            multiprocessor: self.context.info().shared_multiprocessor,
        }
    }

    /// Shared memory of a block of `matmul_few.cu` without its rings, if that kernel multiplies this number
    /// of tokens.
    pub(super) fn few_bytes(&self, tokens: usize, cols: usize) -> Option<usize> {
        FewShape::fixed_bytes(tokens, cols, self.few_shared())
    }

    /// Launches a call for few tokens. `fixed_bytes` are those of [`Cuda::few_bytes`].
    pub(super) fn launch_few(
        &self,
        mut call: params::Matmul,
        products: &[params::Product],
        fixed_bytes: usize,
    ) -> Result<(), BackendError> {
        let (mut widest, mut scales) = (0, 0);
        for (to, product) in call.products.iter_mut().zip(products) {
            *to = params::Product { first_block: call.row_blocks, ..*product };
            call.row_blocks += product.matrix.rows.div_ceil(STRIP_ROWS as u32);
            call.product_count += 1;
            for matrix in [&product.matrix, &product.up] {
                widest = widest.max(matrix.bits as usize);
                scales = scales.max(scale_bytes(matrix));
            }
        }
        let shape = FewShape::new(fixed_bytes, widest, scales, self.few_shared());
        call.ring_slices = shape.ring_slices as u32;
        call.ring_scale_bytes = shape.ring_scale_bytes as u32;
        // A block computes all parts of some strips.
        let groups = (call.row_blocks * call.parts).div_ceil(PARTS_MAX as u32) as usize;
        let blocks = groups.min(self.context.info().multiprocessors * shape.blocks_per_multiprocessor);
        let grid = Grid { shared_bytes: shape.shared_bytes, ..Grid::line(blocks, 256) };
        // SAFETY: every shape and place was checked by `resolve` and `norm`.
        unsafe { self.kernels.launch(Kernel::MatmulFew, grid, &call) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTX_4090: SharedMemory = SharedMemory { block_max: 99 << 10, multiprocessor: 100 << 10 };
    const H200: SharedMemory = SharedMemory { block_max: 227 << 10, multiprocessor: 228 << 10 };

    /// Bits, and bytes of a unit's scales: a scale per 128 columns, per 32, per 32 with minimums, per 16 with
    /// minimums, f16, and the last two in one launch.
    const FORMATS: [(usize, usize); 6] = [(8, 32), (4, 128), (4, 256), (8, 512), (16, 32), (16, 512)];

    #[test]
    fn blocks_come_before_long_rings() {
        let shape = |tokens, cols, format: usize, shared| {
            let (bits, scales) = FORMATS[format];
            let fixed = FewShape::fixed_bytes(tokens, cols, shared)?;
            let shape = FewShape::new(fixed, bits, scales, shared);
            Some((shape.blocks_per_multiprocessor, shape.ring_slices))
        };
        assert_eq!(shape(1, 4096, 0, H200), Some((2, 8)));
        assert_eq!(shape(1, 14_336, 1, H200), Some((2, 8)));
        assert_eq!(shape(1, 14_336, 2, H200), Some((2, 8)));
        assert_eq!(shape(1, 14_336, 3, H200), Some((2, 4)));
        assert_eq!(shape(4, 4096, 0, H200), Some((2, 8)));
        assert_eq!(shape(1, 65_536, 0, H200), Some((1, 8)));
        assert_eq!(shape(1, 4096, 1, RTX_4090), Some((2, 4)));
        assert_eq!(shape(1, 8192, 1, RTX_4090), Some((2, 2)));
        assert_eq!(shape(1, 22_016, 1, RTX_4090), Some((1, 4)));
        assert_eq!(shape(1, 28_672, 1, RTX_4090), None);
        assert_eq!(shape(1, 65_536, 0, RTX_4090), None);
        // Too many tokens for this kernel.
        assert_eq!(shape(2, 14_336, 0, H200), None);
        assert_eq!(shape(5, 32, 0, H200), None);
    }

    #[test]
    fn blocks_fit_beside_each_other() {
        for shared in [RTX_4090, H200] {
            for (tokens, cols) in (1..=TOKENS_MAX).flat_map(|n| [32, 576, 2100, 8960, 23_680].map(|k| (n, k)))
            {
                let Some(fixed) = FewShape::fixed_bytes(tokens, cols, shared) else { continue };
                for (bits, scales) in FORMATS {
                    let shape = FewShape::new(fixed, bits, scales, shared);
                    let all = shape.blocks_per_multiprocessor * (shape.shared_bytes + RESERVED_BYTES);
                    assert!(shape.shared_bytes <= shared.block_max, "{tokens} x {cols}: {shape:?}");
                    assert!(all <= shared.multiprocessor, "{tokens} x {cols}: {shape:?}");
                    assert!(shape.ring_slices >= bits / 4, "{tokens} x {cols}: {shape:?}");
                }
            }
        }
    }
}
