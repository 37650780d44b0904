//! Q6_K: 256 6-bit codes with offset 32, in sixteen groups; scales are 8-bit factors of one f16 value.

use super::block::{self, BlockFormat, Groups, Layout, SUPER_BLOCK, half, scaled};
use super::{Bits, Codes, QuantError, QuantMatrix};

const BYTES: usize = 210;
const LAYOUT: Layout =
    Layout { name: "Q6_K", len: SUPER_BLOCK, kind: Codes::Int(Bits::Six), group: 16, mins: false };

/// Q6_K decoder: 6-bit codes, group 16. The only loss is the rounding of scale products to f16.
pub(crate) const FORMAT: BlockFormat = BlockFormat { layout: LAYOUT, decode };

fn decode(blocks: &[u8], into: &mut QuantMatrix) -> Result<(), QuantError> {
    block::decode(&LAYOUT, blocks, into, |block: &[u8; BYTES], out: Groups<'_>| {
        let (low, rest) = block.split_at(128);
        let (high, rest) = rest.split_at(64);
        let (factors, d) = rest.split_at(16);
        let d = half(d).to_f32();
        for (scale, &factor) in out.scales.iter_mut().zip(factors) {
            *scale = scaled(d, i32::from(factor as i8));
        }
        let halves = low.as_chunks::<64>().0.iter().zip(high.as_chunks::<32>().0);
        for ((low, high), codes) in halves.zip(out.codes.as_chunks_mut::<128>().0) {
            unpack_half(low, high, codes);
        }
    })
}

/// Unpacks 128 codes. Quarter `k` has its low nibbles in nibble `k / 2` of half `k % 2` of `low`, and its
/// upper two bits at bit `2k` of `high`.
fn unpack_half(low: &[u8; 64], high: &[u8; 32], codes: &mut [u8; 128]) {
    let (first, second) = low.split_at(32);
    for (k, quarter) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let nibbles = if k % 2 == 0 { first } else { second };
        for (code, (nibble, bits)) in quarter.iter_mut().zip(nibbles.iter().zip(high)) {
            let six = nibble >> (4 * (k / 2)) & 15 | (bits >> (2 * k) & 3) << 4;
            *code = six.wrapping_sub(32);
        }
    }
}
