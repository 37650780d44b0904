//! [`Matmul`](crate::ir::Matmul) of many tokens on cards of compute capability 9.0: the launch of
//! `kernels-cu/sm90_matmul_many.cu`. Other cards use `matmul_many.cu` only.

use super::Cuda;
use super::kernels::{Grid, Kernel};
use super::pack::STEP_COLS;
use super::params::{self, Finish, SM90_TOKENS_MIN};
use crate::backend::BackendError;

/// Threads per block: eight warps that multiply, and a warpgroup for copies.
const THREADS: u32 = 384;
/// Minimum tokens per tile that hide the preparation of weights. While the tensor cores multiply a step with
/// this number of tokens, a multiprocessor issues the instructions that prepare the next operand. Derived
/// from the machine code's instructions.
const OPERAND_TOKENS: usize = 80;
/// L2 bandwidth per multiprocessor, in bytes per 100 clocks: 5.5 TB/s for 132 of them at 1.7 GHz. A published
/// figure.
const L2_BYTES_PER_100_CLOCKS: usize = 2450;

/// A tile's shape, and the resources of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    kernel: Kernel,
    rows: usize,
    tokens: usize,
    /// `sizeof(Shared)`, plus 1024 for alignment.
    shared_bytes: usize,
}

/// Small tiles first.
const SHAPES: [Shape; 4] = [
    Shape { kernel: Kernel::Sm90MatmulMany128x64, rows: 128, tokens: 64, shared_bytes: 222_336 },
    Shape { kernel: Kernel::Sm90MatmulMany128x128, rows: 128, tokens: 128, shared_bytes: 214_112 },
    Shape { kernel: Kernel::Sm90MatmulMany256x64, rows: 256, tokens: 64, shared_bytes: 230_496 },
    Shape { kernel: Kernel::Sm90MatmulMany256x128, rows: 256, tokens: 128, shared_bytes: 222_288 },
];

/// The properties of a product that the choice of a tile depends on.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    rows: usize,
    bits: usize,
    gated: bool,
}

impl Shape {
    /// The shape with the shortest estimated time, in rounds of one tile per multiprocessor; among equals the
    /// one with the least multiplication. The choice does not change the bits of results.
    fn new(products: &[Extent], tokens: usize, multiprocessors: usize) -> Shape {
        // Both matrices of a gate need the two strips per warp that tiles of 256 rows have.
        let gated = products.iter().any(|product| product.gated);
        let bits = products.iter().map(|product| product.bits).max().unwrap_or_default();
        let time = |shape: &Shape| {
            let blocks: usize = products.iter().map(|product| shape.row_blocks(*product)).sum();
            let rounds = (blocks * tokens.div_ceil(shape.tokens)).div_ceil(multiprocessors);
            (rounds * shape.tensor_clocks().max(shape.l2_clocks(bits)), rounds * shape.tensor_clocks())
        };
        let candidates = if gated { &SHAPES[2..] } else { &SHAPES[..] };
        candidates.iter().rev().copied().min_by_key(time).unwrap_or(SHAPES[3])
    }

    /// Tensor core clocks for a tile's step of 16 columns: one clock per 128 rows and token.
    fn tensor_clocks(&self) -> usize {
        self.rows * self.tokens.max(OPERAND_TOKENS) / 128
    }

    /// L2 clocks for the weights and activations of a tile's step.
    fn l2_clocks(&self, bits: usize) -> usize {
        let bytes = self.rows * STEP_COLS * bits / 8 + self.tokens * STEP_COLS * size_of::<u16>();
        100 * bytes / L2_BYTES_PER_100_CLOCKS
    }

    fn row_blocks(&self, Extent { rows, gated, .. }: Extent) -> usize {
        rows.div_ceil(if gated { self.rows / 2 } else { self.rows })
    }
}

fn extent(product: params::Product) -> Extent {
    Extent {
        rows: product.matrix.rows as usize,
        bits: product.matrix.bits as usize,
        gated: product.epilogue == Finish::Gated as u32,
    }
}

impl Cuda {
    /// Whether products of `tokens` tokens use this kernel, with activations in slabs.
    pub(super) fn is_sm90(&self, tokens: usize) -> bool {
        !self.batch_invariant && tokens >= SM90_TOKENS_MIN && self.kernels.has(Kernel::Sm90MatmulMany256x128)
    }

    /// Launches a call with activations in slabs.
    pub(super) fn launch_sm90(
        &self,
        mut call: params::Matmul,
        products: impl Iterator<Item = params::Product>,
    ) -> Result<(), BackendError> {
        for (to, product) in call.products.iter_mut().zip(products) {
            *to = product;
            call.product_count += 1;
        }
        let extents = call.products.map(extent);
        let products = &mut call.products[..call.product_count as usize];
        let extents = &extents[..products.len()];
        let (tokens, multiprocessors) = (call.tokens as usize, self.context.info().multiprocessors);
        let shape = Shape::new(extents, tokens, multiprocessors);
        for (product, extent) in products.iter_mut().zip(extents) {
            product.first_block = call.row_blocks;
            call.row_blocks += shape.row_blocks(*extent) as u32;
        }
        let tiles = call.row_blocks as usize * tokens.div_ceil(shape.tokens);
        let blocks = tiles.min(multiprocessors);
        let grid = Grid { shared_bytes: shape.shared_bytes, ..Grid::line(blocks, THREADS) };
        // SAFETY: every shape and place was checked by `resolve` and `norm`, and `is_sm90` has returned true.
        unsafe { self.kernels.launch(shape.kernel, grid, &call) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_small_where_large_ones_would_leave_multiprocessors_idle() {
        // On the 132 multiprocessors of an H200.
        let tile = |rows: &[usize], bits: usize, tokens: usize| {
            let products: Vec<Extent> =
                rows.iter().map(|&rows| Extent { rows, bits, gated: false }).collect();
            let shape = Shape::new(&products, tokens, 132);
            [shape.rows, shape.tokens]
        };
        assert_eq!(tile(&[2048], 8, 512), [128, 64]);
        assert_eq!(tile(&[4096], 8, 512), [128, 128]);
        assert_eq!(tile(&[2048, 512, 512], 8, 512), [128, 128]);
        assert_eq!(tile(&[14_336], 8, 512), [256, 128]);
        assert_eq!(tile(&[4096], 8, 2048), [256, 128]);
        // Three rounds of small tiles would multiply no longer than one of large tiles, but read more from
        // L2.
        assert_eq!(tile(&[4096, 1024, 1024], 8, 512), [256, 128]);
    }

    #[test]
    fn a_gate_has_two_strips_per_warp() {
        let product = |gated| Extent { rows: 129, bits: 4, gated };
        let shape = Shape::new(&[product(true), product(false)], 70, 132);
        assert_eq!(
            (shape.rows, shape.row_blocks(product(true)), shape.row_blocks(product(false))),
            (256, 2, 1)
        );
    }
}
