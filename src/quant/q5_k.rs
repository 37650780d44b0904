//! Q5_K: Q4_K with a fifth bit per code. Canonical: 5-bit codes with mins, group 32.

use super::block::{self, BlockFormat, Groups, Layout, SUPER_BLOCK, widen_nibbles};
use super::q4_k::unpack_scales;
use super::{Bits, Codes, QuantError, QuantMatrix};

const BYTES: usize = 176;
const LAYOUT: Layout =
    Layout { name: "Q5_K", len: SUPER_BLOCK, kind: Codes::Int(Bits::Five), group: 32, mins: true };

/// Q5_K decoder. The only loss is the rounding of scale products to f16.
pub(crate) const FORMAT: BlockFormat = BlockFormat { layout: LAYOUT, decode };

fn decode(blocks: &[u8], into: &mut QuantMatrix) -> Result<(), QuantError> {
    block::decode(&LAYOUT, blocks, into, |block: &[u8; BYTES], out: Groups<'_>| {
        unpack_scales(&block[..16], out.scales, out.mins);
        let (fifth, nibbles) = block[16..].split_at(32);
        for (split, codes) in nibbles.as_chunks::<32>().0.iter().zip(out.codes.as_chunks_mut::<64>().0) {
            widen_nibbles(split, codes);
        }
        // Bit `g` of byte `i` is the fifth bit of element `i` of group `g`.
        for (group, codes) in out.codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (code, bits) in codes.iter_mut().zip(fifth) {
                *code |= (bits >> group & 1) << 4;
            }
        }
    })
}
