//! Q4_K: 256 nibbles in eight groups of 32; scales and minima are 6-bit factors of two f16 values.
//!
//! The only loss is the rounding of scale products to f16: the canonical matrix has one f16 per scale.

use super::block::{
    self, BlockFormat, Groups, Layout, SUPER_BLOCK, half, repack_nibbles, scaled, six_bit_scales,
};
use super::{Bits, Codes, QuantError, QuantMatrix};

const BYTES: usize = 144;
const LAYOUT: Layout =
    Layout { name: "Q4_K", len: SUPER_BLOCK, kind: Codes::Int(Bits::Four), group: 32, mins: true };

/// Q4_K decoder: 4-bit codes with mins, group 32.
pub(crate) const FORMAT: BlockFormat = BlockFormat { layout: LAYOUT, decode };

fn decode(blocks: &[u8], into: &mut QuantMatrix) -> Result<(), QuantError> {
    block::decode(&LAYOUT, blocks, into, |block: &[u8; BYTES], out: Groups<'_>| {
        unpack_scales(&block[..16], out.scales, out.mins);
        for (split, codes) in block[16..].as_chunks::<32>().0.iter().zip(out.codes.as_chunks_mut::<32>().0) {
            repack_nibbles(split, codes);
        }
    })
}

/// Unpacks the head of a Q4_K or Q5_K block: two f16 values and twelve bytes of factors.
pub(super) fn unpack_scales(head: &[u8], scales: &mut [half::f16], mins: &mut [half::f16]) {
    let (d, d_min) = (half(&head[..2]).to_f32(), half(&head[2..4]).to_f32());
    let (scale_factors, min_factors) = six_bit_scales(&head[4..16]);
    for (scale, factor) in scales.iter_mut().zip(scale_factors) {
        *scale = scaled(d, i32::from(factor));
    }
    for (min, factor) in mins.iter_mut().zip(min_factors) {
        *min = scaled(d_min, -i32::from(factor));
    }
}
