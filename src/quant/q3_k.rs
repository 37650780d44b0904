//! Q3_K: 256 3-bit codes with offset 4, in sixteen groups; scales are 6-bit factors of one f16 value.

use super::block::{self, BlockFormat, Groups, Layout, SUPER_BLOCK, half, pack_eight, scaled};
use super::{Bits, Codes, QuantError, QuantMatrix};

const BYTES: usize = 110;
const LAYOUT: Layout =
    Layout { name: "Q3_K", len: SUPER_BLOCK, kind: Codes::Int(Bits::Four), group: 16, mins: false };

/// Q3_K decoder: 4-bit codes, group 16. The only loss is the rounding of scale products to f16.
pub(crate) const FORMAT: BlockFormat = BlockFormat { layout: LAYOUT, decode };

fn decode(blocks: &[u8], into: &mut QuantMatrix) -> Result<(), QuantError> {
    block::decode(&LAYOUT, blocks, into, |block: &[u8; BYTES], out: Groups<'_>| {
        let (third, rest) = block.split_at(32);
        let (low, rest) = rest.split_at(64);
        let (factors, d) = rest.split_at(12);
        let d = half(d).to_f32();
        for (scale, factor) in out.scales.iter_mut().zip(unpack_factors(factors)) {
            *scale = scaled(d, factor);
        }
        // Run `k` of 32 codes: the low bits are bits `2 (k % 4)` and up of the 32 bytes of its half, the
        // third bits are bit `k`.
        for (k, codes) in out.codes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            unpack_run(k, &low[k / 4 * 32..][..32], third, codes);
        }
    })
}

fn unpack_run(k: usize, low: &[u8], third: &[u8], codes: &mut [u8; 16]) {
    let sources = low.as_chunks::<8>().0.iter().zip(third.as_chunks::<8>().0);
    for ((low, third), codes) in sources.zip(codes.as_chunks_mut::<4>().0) {
        let low = u64::from_le_bytes(*low) >> (2 * (k % 4)) & 0x0303_0303_0303_0303;
        let third = (u64::from_le_bytes(*third) >> k & 0x0101_0101_0101_0101) << 2;
        // Three bits with offset 4 become four bits with offset 8.
        *codes = pack_eight((low | third) + 0x0404_0404_0404_0404);
    }
}

/// Unpacks sixteen factors in −32..=31: low nibbles in bytes 0..8, upper two bits in bytes 8..12.
fn unpack_factors(packed: &[u8]) -> [i32; 16] {
    let (low, high) = packed.split_at(8);
    std::array::from_fn(|i| {
        let low = low[i % 8] >> (4 * (i / 8)) & 15;
        let high = high[i % 4] >> (2 * (i / 4)) & 3;
        i32::from(low | high << 4) - 32
    })
}
