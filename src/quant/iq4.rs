//! IQ4_NL and IQ4_XS: nibbles that name one of sixteen unequal steps, which are whole numbers of eight bits.
//!
//! IQ4_NL has an f16 scale for 32 elements, laid out as Q4_0. IQ4_XS has 256 elements in eight groups of 32, whose
//! scales are 6-bit factors of one f16 value, 32 less than stored: four low bits in nibbles, two high ones in a word.

use super::block::{self, BlockFormat, Groups, Layout, SUPER_BLOCK, half, scaled};
use super::{Bits, Codes, QuantError, QuantMatrix};

const NL_BYTES: usize = 18;
const XS_BYTES: usize = 136;
const EIGHT: Codes = Codes::Int(Bits::Eight);
const NL: Layout = Layout { name: "IQ4_NL", len: 32, kind: EIGHT, group: 32, mins: false };
const XS: Layout = Layout { name: "IQ4_XS", len: SUPER_BLOCK, kind: EIGHT, group: 32, mins: false };
/// What a nibble stands for: the format's own numbers, denser around 0.
const STEPS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// IQ4_NL blocks to canonical rows: 8-bit codes, group 32; nothing is lost.
pub(crate) const IQ4_NL: BlockFormat = BlockFormat { layout: NL, decode: decode_nl };
/// IQ4_XS blocks to canonical rows: 8-bit codes, group 32; scale products are rounded to f16, the only loss.
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

/// The low nibbles of sixteen bytes, then the high ones.
fn unpack(nibbles: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(16);
    for ((byte, low), high) in nibbles.iter().zip(low).zip(high) {
        *low = STEPS[usize::from(byte & 15)] as u8;
        *high = STEPS[usize::from(byte >> 4)] as u8;
    }
}
