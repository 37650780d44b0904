//! Q5_0: an f16 scale, 32 fifth bits and 32 nibbles, codes with offset 16. Canonical: 5-bit codes, group 32.

use super::block::{self, BlockFormat, Groups, Layout, add_fifth_bits, half, pack_five_bits, widen_nibbles};
use super::{Bits, Codes, QuantError, QuantMatrix};

const BYTES: usize = 22;
const LAYOUT: Layout = Layout { name: "Q5_0", len: 32, kind: Codes::Int(Bits::Five), group: 32, mins: false };

/// Q5_0 decoder, lossless.
pub(crate) const FORMAT: BlockFormat = BlockFormat { layout: LAYOUT, decode };

fn decode(blocks: &[u8], into: &mut QuantMatrix) -> Result<(), QuantError> {
    block::decode(&LAYOUT, blocks, into, |block: &[u8; BYTES], out: Groups<'_>| {
        out.scales[0] = half(&block[..2]);
        widen_nibbles(&block[6..], out.codes);
        add_fifth_bits(&block[2..6], out.codes);
        out.codes.iter_mut().for_each(|code| *code = code.wrapping_sub(16));
    })
}

/// Q5_0 encoder, lossless, for byte codes in −16..=15 in groups of 32.
pub(crate) fn encode(matrix: &QuantMatrix) -> Result<Vec<u8>, QuantError> {
    block::encode(&LAYOUT, matrix, |group| {
        let mut codes = [0; 32];
        codes.copy_from_slice(group.codes);
        codes.iter_mut().for_each(|code| *code = code.wrapping_add(16));
        if codes.iter().any(|&code| code > 31) {
            return None;
        }
        let mut block = [0; BYTES];
        block[..2].copy_from_slice(&group.scale.to_le_bytes());
        pack_five_bits(&codes, &mut block[2..]);
        Some(block)
    })
}
