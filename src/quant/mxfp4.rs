//! MXFP4 of the OCP's microscaling formats: a power of two for 32 floats of four bits, E2M1, kept as they are.
//!
//! A block is a byte of exponent, E8M0 with a bias of 127, and sixteen bytes of codes, element `j` in the low nibble
//! of byte `j` and element `j + 16` in the high one. Nothing is lost. Exponents that f16 does not hold, halved, are
//! those from 2¹⁷ up and below 2⁻²³: refused, unless all values of the block are 0.

use half::f16;

use super::block::{self, BlockFormat, Groups, Layout, repack_nibbles};
use super::{Codes, QuantError, QuantMatrix};

const BYTES: usize = 17;
const LAYOUT: Layout = Layout { name: "MXFP4", len: 32, kind: Codes::E2m1, group: 32, mins: false };
/// The bias of E8M0, and one more: canonical codes stand for twice the value.
const BIAS: i32 = 127 + 1;
/// The exponent that stands for no number.
const NAN: u8 = 255;

/// MXFP4 blocks to canonical rows; nothing is lost.
pub(crate) const FORMAT: BlockFormat = BlockFormat { layout: LAYOUT, decode };

fn decode(blocks: &[u8], into: &mut QuantMatrix) -> Result<(), QuantError> {
    let groups = into.cols / LAYOUT.len;
    let decoded = block::decode(&LAYOUT, blocks, into, |block: &[u8; BYTES], out: Groups<'_>| {
        let [exponent, codes @ ..] = block;
        out.scales[0] = half_scale(*exponent, codes).unwrap_or(f16::NAN);
        repack_nibbles(codes, out.codes);
    });
    decoded.map_err(|error| match error {
        QuantError::GroupNonFinite { row, group, .. } => {
            let value = scale(blocks[(row * groups + group) * BYTES]);
            QuantError::Scale { row, group, value }
        }
        other => other,
    })
}

/// Half of a block's scale; none if f16 does not hold it, and the block has a value that is not 0.
fn half_scale(exponent: u8, codes: &[u8]) -> Option<f16> {
    match i32::from(exponent) - BIAS {
        _ if exponent == NAN => None,
        power @ -14..=15 => Some(f16::from_bits(((power + 15) as u16) << 10)),
        power @ -24..=-15 => Some(f16::from_bits(1 << (power + 24))),
        // The sign of a zero does not count.
        _ => codes.iter().all(|byte| byte & 0x77 == 0).then_some(f16::ZERO),
    }
}

/// The number that an exponent stands for.
fn scale(exponent: u8) -> f32 {
    match exponent {
        NAN => f32::NAN,
        // 2⁻¹²⁷ is no normal number.
        0 => f32::from_bits(1 << 22),
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}
