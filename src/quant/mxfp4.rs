//! MXFP4 (OCP microscaling): 32 4-bit floats (E2M1) with a shared power-of-two scale. Lossless.
//!
//! A block is one exponent byte (E8M0, bias 127) and sixteen bytes of codes: element `j` in the low nibble of
//! byte `j`, element `j + 16` in the high nibble. The canonical scale is half of the block's. Scales of 2¹⁷
//! and above, or below 2⁻²³, do not fit f16 after halving: they are refused unless all values of the block
//! are 0.

use half::f16;

use super::block::{self, BlockFormat, Groups, Layout, repack_nibbles};
use super::{Codes, QuantError, QuantMatrix};

const BYTES: usize = 17;
const LAYOUT: Layout = Layout { name: "MXFP4", len: 32, kind: Codes::E2m1, group: 32, mins: false };
/// Bias of E8M0 plus one: canonical codes are twice the value, so scales are halved.
const BIAS: i32 = 127 + 1;
/// NaN exponent.
const NAN: u8 = 255;

/// MXFP4 decoder, lossless.
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

/// Half of a block's scale; `None` if it does not fit f16 and the block has a nonzero value.
fn half_scale(exponent: u8, codes: &[u8]) -> Option<f16> {
    match i32::from(exponent) - BIAS {
        _ if exponent == NAN => None,
        power @ -14..=15 => Some(f16::from_bits(((power + 15) as u16) << 10)),
        power @ -24..=-15 => Some(f16::from_bits(1 << (power + 24))),
        // Mask without the sign bits: -0 counts as zero.
        _ => codes.iter().all(|byte| byte & 0x77 == 0).then_some(f16::ZERO),
    }
}

/// Scale of an E8M0 exponent.
fn scale(exponent: u8) -> f32 {
    match exponent {
        NAN => f32::NAN,
        // 2⁻¹²⁷ is subnormal in f32.
        0 => f32::from_bits(1 << 22),
        exponent => f32::from_bits(u32::from(exponent) << 23),
    }
}
