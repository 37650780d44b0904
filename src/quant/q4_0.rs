//! Q4_0: an f16 scale and 32 nibbles with offset 8. Identical to the canonical 4-bit format, group 32.

use super::block::{self, BlockFormat, Groups, Layout, half, repack_nibbles, split_nibbles};
use super::{Bits, Codes, QuantError, QuantMatrix};

const BYTES: usize = 18;
const LAYOUT: Layout = Layout { name: "Q4_0", len: 32, kind: Codes::Int(Bits::Four), group: 32, mins: false };

/// Q4_0 decoder, lossless.
pub(crate) const FORMAT: BlockFormat = BlockFormat { layout: LAYOUT, decode };

fn decode(blocks: &[u8], into: &mut QuantMatrix) -> Result<(), QuantError> {
    block::decode(&LAYOUT, blocks, into, |block: &[u8; BYTES], out: Groups<'_>| {
        out.scales[0] = half(&block[..2]);
        repack_nibbles(&block[2..], out.codes);
    })
}

/// Q4_0 encoder, lossless, for 4-bit codes in groups of 32 without mins.
pub(crate) fn encode(matrix: &QuantMatrix) -> Result<Vec<u8>, QuantError> {
    block::encode(&LAYOUT, matrix, |group| {
        let mut block = [0; BYTES];
        block[..2].copy_from_slice(&group.scale.to_le_bytes());
        split_nibbles(group.codes, &mut block[2..]);
        Some(block)
    })
}
