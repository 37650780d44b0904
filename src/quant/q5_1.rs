//! Q5_1: an f16 scale, an f16 minimum, 32 fifth bits and 32 nibbles. Canonical: 5-bit codes with mins, group
//! 32.

use super::block::{self, BlockFormat, Groups, Layout, add_fifth_bits, half, pack_five_bits, widen_nibbles};
use super::{Bits, Codes, QuantError, QuantMatrix};

const BYTES: usize = 24;
const LAYOUT: Layout = Layout { name: "Q5_1", len: 32, kind: Codes::Int(Bits::Five), group: 32, mins: true };

/// Q5_1 decoder, lossless.
pub(crate) const FORMAT: BlockFormat = BlockFormat { layout: LAYOUT, decode };

fn decode(blocks: &[u8], into: &mut QuantMatrix) -> Result<(), QuantError> {
    block::decode(&LAYOUT, blocks, into, |block: &[u8; BYTES], out: Groups<'_>| {
        out.scales[0] = half(&block[..2]);
        out.mins[0] = half(&block[2..4]);
        widen_nibbles(&block[8..], out.codes);
        add_fifth_bits(&block[4..8], out.codes);
    })
}

/// Q5_1 encoder, lossless, for byte codes in 0..=31 in groups of 32 with mins.
pub(crate) fn encode(matrix: &QuantMatrix) -> Result<Vec<u8>, QuantError> {
    block::encode(&LAYOUT, matrix, |group| {
        let mut codes = [0; 32];
        codes.copy_from_slice(group.codes);
        if codes.iter().any(|&code| code > 31) {
            return None;
        }
        let mut block = [0; BYTES];
        block[..2].copy_from_slice(&group.scale.to_le_bytes());
        block[2..4].copy_from_slice(&group.min.to_le_bytes());
        pack_five_bits(&codes, &mut block[4..]);
        Some(block)
    })
}
