//! How `matmul_few.cu` is launched.

use super::kernels::{Grid, Kernel};
use super::many::PARTS_MAX;
use super::pack::{STEP_COLS, STRIP_ROWS, UNIT_STEPS};
use super::{Cuda, params};
use crate::backend::BackendError;

/// Every block turns all activations to f16 for itself, which costs L2 traffic in proportion to them. Tiles share
/// activations that are packed once, for one more launch: they have more than so many tokens, or more than so many
/// activations of several tokens. Reckoned, not measured on a card (benches/record/cuda/predicted.md).
const TOKENS_MAX: usize = 4;
const ACTIVATIONS_MAX: usize = 16_384;
/// `sizeof(FewShared)` in matmul_few.cu.
const FIXED_BYTES: usize = 4672;
/// Blocks that a multiprocessor's registers hold.
const BLOCKS_MAX: usize = 2;
/// Shared memory that the hardware keeps of each block.
const RESERVED_BYTES: usize = 1024;

/// A multiprocessor's shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct SharedMemory {
    /// What a launch of the kernel may ask for at most.
    pub(super) block_max: usize,
    /// What all blocks share.
    pub(super) multiprocessor: usize,
}

/// How `matmul_few.cu` is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FewShape {
    shared_bytes: usize,
    /// Blocks that a multiprocessor holds.
    blocks_per_multiprocessor: usize,
}

impl FewShape {
    /// None where activations are too many, or larger than a block's shared memory.
    pub(super) fn new(tokens: usize, cols: usize, shared: SharedMemory) -> Option<FewShape> {
        let units = cols.div_ceil(UNIT_STEPS * STEP_COLS);
        let activations = tokens * (units * UNIT_STEPS * STEP_COLS + STEP_COLS) * 2;
        let shared_bytes = FIXED_BYTES + activations;
        let few = tokens <= 1 || tokens <= TOKENS_MAX && tokens * cols <= ACTIVATIONS_MAX;
        if !few || shared_bytes > shared.block_max {
            return None;
        }
        let fit = shared.multiprocessor / (shared_bytes + RESERVED_BYTES);
        Some(FewShape { shared_bytes, blocks_per_multiprocessor: fit.clamp(1, BLOCKS_MAX) })
    }
}

impl Cuda {
    /// The shape in which `matmul_few.cu` multiplies so many tokens, if it does.
    pub(super) fn few_shape(&self, tokens: usize, cols: usize) -> Option<FewShape> {
        let shared = SharedMemory {
            block_max: self.kernels.dynamic_shared_max(Kernel::MatmulFew),
            multiprocessor: self.context.info().shared_multiprocessor,
        };
        FewShape::new(tokens, cols, shared)
    }

    /// Launches a call for few tokens.
    pub(super) fn launch_few(
        &self,
        mut call: params::Matmul,
        products: &[params::Product],
        shape: FewShape,
    ) -> Result<(), BackendError> {
        for (to, product) in call.products.iter_mut().zip(products) {
            *to = params::Product { first_block: call.row_blocks, ..*product };
            call.row_blocks += product.matrix.rows.div_ceil(STRIP_ROWS as u32);
            call.product_count += 1;
        }
        // A block has all parts of some strips.
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

    #[test]
    fn activations_that_fit_no_block_are_another_kernels() {
        let blocks = |tokens, cols, shared| {
            FewShape::new(tokens, cols, shared).map(|shape| shape.blocks_per_multiprocessor)
        };
        assert_eq!(blocks(1, 14_336, RTX_4090), Some(2));
        assert_eq!(blocks(1, 28_672, RTX_4090), Some(1));
        assert_eq!(blocks(1, 65_536, RTX_4090), None);
        assert_eq!(blocks(1, 65_536, H200), Some(1));
        assert_eq!(blocks(4, 4096, H200), Some(2));
        assert_eq!(blocks(2, 14_336, H200), None);
        assert_eq!(blocks(5, 32, H200), None);
    }

    #[test]
    fn blocks_fit_beside_each_other() {
        for shared in [RTX_4090, H200] {
            for (tokens, cols) in (1..=TOKENS_MAX).flat_map(|n| [32, 576, 2100, 8960, 28_672].map(|k| (n, k)))
            {
                let Some(shape) = FewShape::new(tokens, cols, shared) else { continue };
                let all = shape.blocks_per_multiprocessor * (shape.shared_bytes + RESERVED_BYTES);
                assert!(shape.shared_bytes <= shared.block_max, "{tokens} x {cols}: {shape:?}");
                assert!(all <= shared.multiprocessor, "{tokens} x {cols}: {shape:?}");
            }
        }
    }
}
