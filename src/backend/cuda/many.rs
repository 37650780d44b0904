//! The launch of `matmul_many.cu`: tile sizes and the sharing of tiles by blocks. Also the number of parts
//! into which it and `matmul_few.cu` divide the columns.

use super::kernels::{Grid, Kernel};
use super::pack::{STEP_COLS, STRIP_ROWS, UNIT_STEPS};
use super::params::Finish;
use super::{Cuda, params};
use crate::backend::BackendError;

/// Maximum parts of the columns: one per warp in `matmul_few.cu`.
pub(super) const PARTS_MAX: usize = 8;
/// Minimum units of columns per part, in rows with enough units.
const PART_UNITS_MIN: usize = 2;
/// Strips per tile; a gated product takes half of them from each matrix.
const TILE_STRIPS: usize = 8;
/// Target number of blocks per multiprocessor, reached by adding parts. Not tuned on hardware.
const BLOCKS_WANTED: usize = 2;
/// Maximum blocks per multiprocessor with shared tiles; above that, tiles of 128 tokens fill the device.
const SHARED_BLOCKS_MAX: usize = 8;

/// Kernels by tokens per tile; all but the last one can share tiles.
const TILES: [(usize, Kernel); 4] = [
    (16, Kernel::MatmulMany16),
    (32, Kernel::MatmulMany32),
    (64, Kernel::MatmulMany64),
    (128, Kernel::MatmulMany128),
];

/// Number of row blocks of a product, which are the tiles of one block of tokens.
fn row_blocks(product: &params::Product) -> usize {
    let gated = product.epilogue == Finish::Gated as u32;
    let strips = if gated { TILE_STRIPS / 2 } else { TILE_STRIPS };
    (product.matrix.rows as usize).div_ceil(strips * STRIP_ROWS)
}

/// Number of parts of the columns for products in one launch: the fewest that give every multiprocessor
/// enough blocks. It does not depend on the number of tokens, so that a token's bits do not depend on the
/// rest of its step.
pub(super) fn parts(products: &[params::Product], cols: usize, multiprocessors: usize) -> usize {
    parts_of(products.iter().map(row_blocks).sum(), cols, multiprocessors)
}

fn parts_of(row_blocks: usize, cols: usize, multiprocessors: usize) -> usize {
    let units = cols.div_ceil(UNIT_STEPS * STEP_COLS);
    let enough = |parts: &usize| {
        parts * row_blocks >= BLOCKS_WANTED * multiprocessors || units < 2 * parts * PART_UNITS_MIN
    };
    [1, 2, 4].into_iter().find(enough).unwrap_or(PARTS_MAX)
}

/// Launch shape of `matmul_many.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ManyShape {
    kernel: Kernel,
    /// Tokens per tile.
    tokens: usize,
    tiles: usize,
    /// Blocks per tile.
    splits: usize,
}

impl ManyShape {
    fn new(tokens: usize, row_blocks: usize, parts: usize, multiprocessors: usize) -> ManyShape {
        let tile = |(tile_tokens, kernel): (usize, Kernel), splits| ManyShape {
            kernel,
            tokens: tile_tokens,
            tiles: row_blocks * tokens.div_ceil(tile_tokens),
            splits,
        };
        if let Some(one) = TILES[..3].iter().find(|(tile_tokens, _)| tokens <= *tile_tokens) {
            return tile(*one, parts);
        }
        let shared = tile(TILES[2], parts);
        if shared.splits > 1 && shared.blocks() <= SHARED_BLOCKS_MAX * multiprocessors {
            shared
        } else {
            tile(TILES[3], 1)
        }
    }

    fn blocks(&self) -> usize {
        self.tiles * self.splits
    }

    fn threads(&self) -> u32 {
        if self.tokens == 128 { 256 } else { 128 }
    }

    /// Dynamic shared memory: the ring of stages in matmul_many.cu, for codes of `bits` bits.
    fn shared_bytes(&self, bits: usize) -> usize {
        let stages = match self.tokens {
            16 => 5,
            128 => 3,
            _ => 4,
        };
        let steps = if self.tokens >= 64 && bits == 4 { 4 } else { 32 / bits };
        let activations = self.tokens * (steps * STEP_COLS + STEP_COLS) * 2;
        // Codes, and per step scales and minimums of 16 rows.
        let strip = steps * STEP_COLS * STRIP_ROWS * bits / 8 + steps * STRIP_ROWS * 2 * 2;
        stages * (activations + TILE_STRIPS * strip)
    }
}

/// Bytes of the partial sums that blocks store, and of the tiles' counters, for steps of up to `tokens_max`
/// tokens.
pub(super) fn scratch_bytes(tokens_max: usize, multiprocessors: usize) -> (usize, usize) {
    if tokens_max == 0 {
        return (0, 0);
    }
    let tile_tokens = TILES[..3].iter().find(|(tile, _)| tokens_max <= *tile).map_or(64, |(tile, _)| *tile);
    // Up to 64 tokens, parts are doubled only while there are too few blocks.
    let per_multiprocessor = if tokens_max <= 64 { 2 * BLOCKS_WANTED } else { SHARED_BLOCKS_MAX };
    let blocks = per_multiprocessor * multiprocessors;
    (blocks * tile_tokens * TILE_STRIPS * STRIP_ROWS * size_of::<f32>(), blocks * size_of::<u32>())
}

impl Cuda {
    /// Launches products with `matmul_many.cu` on packed activations. Both matrices of a gate must have one
    /// format.
    pub(super) fn launch_tiles(
        &self,
        mut call: params::Matmul,
        products: impl Iterator<Item = params::Product>,
    ) -> Result<(), BackendError> {
        for (to, product) in call.products.iter_mut().zip(products) {
            *to = params::Product { first_block: call.row_blocks, ..product };
            call.row_blocks += row_blocks(&product) as u32;
            call.product_count += 1;
        }
        let [tokens, row_blocks, parts] = [call.tokens, call.row_blocks, call.parts].map(|n| n as usize);
        let shape = ManyShape::new(tokens, row_blocks, parts, self.context.info().multiprocessors);
        let products = &call.products[..call.product_count as usize];
        let shared = products.iter().map(|product| shape.shared_bytes(product.matrix.bits as usize));
        let shared_bytes = shared.max().unwrap_or_default();
        let grid = Grid { shared_bytes, ..Grid::line(shape.blocks(), shape.threads()) };
        // SAFETY: every shape and place was checked by `resolve` and `norm`, the scratch by `activations`.
        unsafe { self.kernels.launch(shape.kernel, grid, &call) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_cut_until_every_multiprocessor_has_blocks() {
        // (row blocks, columns) to parts, on the 132 multiprocessors of an H200.
        for (row_blocks, cols, want) in [
            // Llama-3.1-8B: q, k and v; o; gate and up; down; the head.
            (48, 4096, 8),
            (32, 4096, 8),
            (224, 4096, 2),
            (32, 14_336, 8),
            (1002, 4096, 1),
            // Llama-3.2-1B: gate and up.
            (128, 2048, 4),
            // Small matrices: parts have two units at least.
            (5, 576, 2),
            (5, 100, 1),
            (5, 1024, 4),
            (5, 2048, 8),
        ] {
            assert_eq!(parts_of(row_blocks, cols, 132), want, "{row_blocks} row blocks of {cols} columns");
        }
    }

    #[test]
    fn tiles_are_as_small_as_the_tokens_allow_and_shared_until_the_device_is_full() {
        // (tokens, row blocks, parts) to (a tile's tokens, tiles, splits), on an A100.
        for (tokens, row_blocks, parts, want) in [
            (5, 48, 8, (16, 48, 8)),
            (17, 48, 8, (32, 48, 8)),
            (64, 224, 2, (64, 224, 2)),
            (65, 16, 8, (64, 32, 8)),
            (384, 16, 8, (64, 96, 8)),
            (512, 16, 8, (128, 64, 1)),
            (100, 1002, 1, (128, 1002, 1)),
        ] {
            let shape = ManyShape::new(tokens, row_blocks, parts, 108);
            assert_eq!(
                (shape.tokens, shape.tiles, shape.splits),
                want,
                "{tokens} tokens, {row_blocks} row blocks"
            );
        }
    }

    #[test]
    fn all_sums_that_are_handed_in_have_room() {
        for multiprocessors in [16, 108, 132] {
            for row_blocks in 1..1200 {
                let parts = parts_of(row_blocks, 1 << 20, multiprocessors);
                for tokens in [5, 16, 17, 64, 65, 200, 500, 4000] {
                    let shape = ManyShape::new(tokens, row_blocks, parts, multiprocessors);
                    if shape.splits == 1 {
                        continue;
                    }
                    let bytes = shape.blocks() * shape.tokens * 128 * 4;
                    let (sums, counters) = scratch_bytes(tokens, multiprocessors);
                    assert!(bytes <= sums && 4 * shape.tiles <= counters, "{tokens} tokens, {shape:?}");
                }
            }
        }
    }

    #[test]
    fn a_ring_of_stages_fits_the_smallest_block() {
        for (tokens, kernel) in TILES {
            for bits in [4, 8, 16] {
                let shape = ManyShape { kernel, tokens, tiles: 1, splits: 1 };
                assert!(shape.shared_bytes(bits) <= (99 << 10) - 64, "{tokens} tokens, {bits} bits");
            }
        }
        let shape = |(tokens, kernel)| ManyShape { kernel, tokens, tiles: 1, splits: 1 };
        assert_eq!(
            [4, 8, 16].map(|bits| shape(TILES[0]).shared_bytes(bits)),
            [5 * 16_896, 5 * 12_800, 5 * 10_752]
        );
        assert_eq!(
            [4, 8, 16].map(|bits| shape(TILES[2]).shared_bytes(bits)),
            [4 * 16_384, 4 * 20_480, 4 * 15_360]
        );
    }
}
