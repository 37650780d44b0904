//! IQ4_NL and IQ4_XS: 4-bit indexes into a table of sixteen non-uniform 8-bit integers.
//!
//! IQ4_NL has an f16 scale per 32 elements, in the layout of Q4_0. IQ4_XS has 256 elements in eight groups of
//! 32. Each group has a 6-bit factor, stored plus 32, of the block's f16 scale: four low bits in nibbles, two
//! high bits in a 16-bit word.

use super::block::{self, BlockFormat, Groups, Layout, SUPER_BLOCK, half, scaled};
use super::{Bits, Codes, QuantError, QuantMatrix};

const NL_BYTES: usize = 18;
const XS_BYTES: usize = 136;
const EIGHT: Codes = Codes::Int(Bits::Eight);
const NL: Layout = Layout { name: "IQ4_NL", len: 32, kind: EIGHT, group: 32, mins: false };
const XS: Layout = Layout { name: "IQ4_XS", len: SUPER_BLOCK, kind: EIGHT, group: 32, mins: false };
/// The formats' table of values, denser around 0.
const STEPS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// IQ4_NL decoder: 8-bit codes, group 32, lossless.
pub(crate) const IQ4_NL: BlockFormat = BlockFormat { layout: NL, decode: decode_nl };
/// IQ4_XS decoder: 8-bit codes, group 32. The only loss is the rounding of scale products to f16.
pub(crate) const IQ4_XS: BlockFormat = BlockFormat { layout: XS, decode: decode_xs };

fn decode_nl(blocks: &[u8], into: &mut QuantMatrix) -> Result<(), QuantError> {
    block::decode(&NL, blocks, into, |block: &[u8; NL_BYTES], out: Groups<'_>| {
        out.scales[0] = half(&block[..2]);
        unpack(&block[2..], out.codes);
    })
}

fn decode_xs(blocks: &[u8], into: &mut QuantMatrix) -> Result<(), QuantError> {
    block::decode(&XS, blocks, into, |block: &[u8; XS_BYTES], out: Groups<'_>| {
        let (head, nibbles) = block.split_at(8);
        let (d, high) = (half(&head[..2]).to_f32(), u16::from_le_bytes([head[2], head[3]]));
        for (at, scale) in out.scales.iter_mut().enumerate() {
            let low = head[4 + at / 2] >> (4 * (at % 2)) & 15;
            *scale = scaled(d, i32::from(low) + 16 * i32::from(high >> (2 * at) & 3) - 32);
        }
        for (nibbles, codes) in nibbles.as_chunks::<16>().0.iter().zip(out.codes.as_chunks_mut::<32>().0) {
            unpack(nibbles, codes);
        }
    })
}

/// Looks up the low nibbles of sixteen bytes, then the high nibbles.
fn unpack(nibbles: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(16);
    for ((byte, low), high) in nibbles.iter().zip(low).zip(high) {
        *low = STEPS[usize::from(byte & 15)] as u8;
        *high = STEPS[usize::from(byte >> 4)] as u8;
    }
}
