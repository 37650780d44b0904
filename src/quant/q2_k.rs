//! Q2_K: 256 2-bit codes in sixteen groups; scales and minima are 4-bit factors of two f16 values.

use super::block::{self, BlockFormat, Groups, Layout, SUPER_BLOCK, half, pack_eight, scaled};
use super::{Bits, Codes, QuantError, QuantMatrix};

const BYTES: usize = 84;
const LAYOUT: Layout =
    Layout { name: "Q2_K", len: SUPER_BLOCK, kind: Codes::Int(Bits::Four), group: 16, mins: true };

/// Q2_K decoder: 4-bit codes with mins, group 16. The only loss is the rounding of scale products to f16.
pub(crate) const FORMAT: BlockFormat = BlockFormat { layout: LAYOUT, decode };

fn decode(blocks: &[u8], into: &mut QuantMatrix) -> Result<(), QuantError> {
    block::decode(&LAYOUT, blocks, into, |block: &[u8; BYTES], out: Groups<'_>| {
        let (factors, rest) = block.split_at(16);
        let (low, rest) = rest.split_at(64);
        let (d, d_min) = (half(&rest[..2]).to_f32(), half(&rest[2..]).to_f32());
        for ((scale, min), factor) in out.scales.iter_mut().zip(out.mins.iter_mut()).zip(factors) {
            *scale = scaled(d, i32::from(factor & 15));
            *min = scaled(d_min, -i32::from(factor >> 4));
        }
        // Run `k` of 32 codes is in bits `2 (k % 4)` and up of the 32 bytes of its half.
        for (k, codes) in out.codes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let bytes = low[k / 4 * 32..][..32].as_chunks::<8>().0;
            for (bytes, codes) in bytes.iter().zip(codes.as_chunks_mut::<4>().0) {
                *codes = pack_eight(u64::from_le_bytes(*bytes) >> (2 * (k % 4)) & 0x0303_0303_0303_0303);
            }
        }
    })
}
