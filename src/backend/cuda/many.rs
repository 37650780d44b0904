//! How `matmul_many.cu` is launched: the size of a tile, and how many blocks share the work.

use super::kernels::Kernel;
use super::pack::{STEP_COLS, STRIP_ROWS};

/// From so many tokens on `matmul_many.cu` multiplies; fewer are `matmul_few.cu`'s.
pub(super) const MANY_TOKENS: usize = 33;
/// Strips of a tile: half of them of each matrix of a gate.
pub(super) const BLOCK_STRIPS: usize = 8;
/// Columns of a stage: what a block multiplies at a time.
const STAGE_COLS: usize = 4 * STEP_COLS;
/// Stages that are worth a block of its own: twice as many as it has under way. Not measured on a card.
const SHARE_STAGES_MIN: usize = 8;
/// Of the multiprocessors' time, in percent, that tiles must fill for none of them to be shared, which
/// costs traffic. Not measured on a card.
const FILLED_PERCENT: usize = 80;

/// How `matmul_many.cu` is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ManyShape {
    pub(super) kernel: Kernel,
    /// Tokens of a tile.
    pub(super) tile_tokens: usize,
    pub(super) tiles: usize,
    /// As many as tiles, with a tile each; or with equal shares of all tiles' stages.
    pub(super) blocks: usize,
}

impl ManyShape {
    /// For `tokens` rows of `cols` columns, whole units of them, and the row blocks of all products. A
    /// multiprocessor holds one block.
    pub(super) fn new(tokens: usize, cols: usize, row_blocks: usize, multiprocessors: usize) -> ManyShape {
        let (kernel, tile_tokens) =
            if tokens <= 64 { (Kernel::MatmulMany64, 64) } else { (Kernel::MatmulMany128, 128) };
        let tiles = row_blocks * tokens.div_ceil(tile_tokens);
        let rounds = tiles.div_ceil(multiprocessors);
        let filled = 100 * tiles >= FILLED_PERCENT * rounds * multiprocessors;
        let shares = (tiles * (cols / STAGE_COLS) / SHARE_STAGES_MIN).max(tiles).min(multiprocessors);
        ManyShape { kernel, tile_tokens, tiles, blocks: if filled { tiles } else { shares } }
    }

    /// The same sums whatever else is in the step: tiles are one block's, and added up in parts.
    pub(super) fn batch_invariant(tokens: usize, row_blocks: usize) -> ManyShape {
        let tiles = row_blocks * tokens.div_ceil(64);
        ManyShape { kernel: Kernel::MatmulManyInvariant64, tile_tokens: 64, tiles, blocks: tiles }
    }

    /// Dynamic shared memory: STAGES · TOKENS · 160 bytes, see matmul_many.cu.
    pub(super) fn shared_bytes(&self) -> usize {
        4 * self.tile_tokens * 160
    }
}

/// Bytes of the sums that blocks hand in, of products of up to so many tokens.
pub(super) fn partial_bytes(tokens_max: usize, multiprocessors: usize) -> usize {
    // Two tiles a block, in f32.
    let tile = if tokens_max <= 64 { 64 } else { 128 } * BLOCK_STRIPS * STRIP_ROWS;
    2 * multiprocessors * tile * size_of::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_matrices_are_shared_until_every_multiprocessor_has_work() {
        // (tokens, columns, row blocks) to (tiles, blocks), on an H200.
        for (tokens, cols, row_blocks, want) in [
            // Llama-3.2-1B: q, k and v; o; gate and up; down; at 33, 64 and 128 tokens.
            (33, 2048, 24, (24, 96)),
            (64, 2048, 16, (16, 64)),
            (128, 2048, 128, (128, 128)),
            (128, 8192, 16, (16, 132)),
            // SmolLM2-135M: few stages are not worth a block.
            (40, 640, 5, (5, 6)),
            (40, 128, 5, (5, 5)),
            // A wave and a little; 85 and 97 percent of two waves; many, and the last all but empty.
            (128, 2048, 140, (140, 132)),
            (128, 128, 140, (140, 132)),
            (128, 4096, 224, (224, 224)),
            (512, 4096, 64, (256, 256)),
            (129, 2048, 600, (1200, 1200)),
            (1024, 4096, 17, (136, 132)),
        ] {
            let shape = ManyShape::new(tokens, cols, row_blocks, 132);
            assert_eq!(
                (shape.tiles, shape.blocks),
                want,
                "{tokens} x {cols}, {row_blocks} row blocks: {shape:?}"
            );
            assert_eq!(shape.tile_tokens == 64, tokens <= 64);
        }
    }

    #[test]
    fn a_batch_invariant_tile_is_one_blocks_whatever_there_are() {
        for tokens in [33, 64, 65, 500] {
            let shape = ManyShape::batch_invariant(tokens, 3);
            assert_eq!((shape.tiles, shape.blocks), (3 * tokens.div_ceil(64), 3 * tokens.div_ceil(64)));
        }
    }

    #[test]
    fn all_sums_that_are_handed_in_have_room() {
        assert_eq!(partial_bytes(64, 132), 264 * 64 * 128 * 4);
        assert_eq!(partial_bytes(65, 108), 216 * 128 * 128 * 4);
    }
}
