//! Q8_0: an f16 scale and 32 signed bytes. Identical to the canonical 8-bit format, group 32.

use super::block::{self, BlockFormat, Groups, Layout, half};
use super::{Bits, Codes, QuantError, QuantMatrix};

const BYTES: usize = 34;
const LAYOUT: Layout =
    Layout { name: "Q8_0", len: 32, kind: Codes::Int(Bits::Eight), group: 32, mins: false };

/// Q8_0 decoder, lossless.
pub(crate) const FORMAT: BlockFormat = BlockFormat { layout: LAYOUT, decode };

fn decode(blocks: &[u8], into: &mut QuantMatrix) -> Result<(), QuantError> {
    block::decode(&LAYOUT, blocks, into, |block: &[u8; BYTES], out: Groups<'_>| {
        out.scales[0] = half(&block[..2]);
        out.codes.copy_from_slice(&block[2..]);
    })
}

/// Q8_0 encoder, lossless, for byte codes in groups of 32.
pub(crate) fn encode(matrix: &QuantMatrix) -> Result<Vec<u8>, QuantError> {
    block::encode(&LAYOUT, matrix, |group| {
        let mut block = [0; BYTES];
        block[..2].copy_from_slice(&group.scale.to_le_bytes());
        block[2..].copy_from_slice(group.codes);
        Some(block)
    })
}
