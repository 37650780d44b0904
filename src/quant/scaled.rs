//! Floats of eight bits and of four, E4M3 and E2M1, as Hugging Face folders have them: codes row by row, and scales
//! beside them for groups of 16 columns (NVFP4), blocks, rows or the whole tensor.
//!
//! Codes are kept as they are. A scale becomes the canonical one, which is 256 times that of E4M3 and half of that of
//! E2M1, and is rounded to the nearest f16: by one part in 2048 at most, or by 2⁻²⁵ where it is below 2⁻¹⁴. One that
//! becomes infinite by that is refused, unless all values of the group are 0. So is one of E4M3 that becomes 0. One of
//! E2M1 that does so has values below 2⁻²¹, which become 0: tensors whose scales are all so small are refused where
//! they are opened.

use half::f16;

use super::{Codes, QuantError, QuantMatrix, check_length, code_bytes_per_row};

/// What a canonical scale is of the code's own.
fn factor(kind: Codes) -> f32 {
    if kind == Codes::E2m1 { 0.5 } else { 256.0 }
}

/// Overwrites all rows of a matrix of floats with these codes, and with scales by row and group.
pub(crate) fn fill(
    into: &mut QuantMatrix,
    codes: &[u8],
    scale: impl Fn(usize, usize) -> f32,
) -> Result<(), QuantError> {
    check_length("codes", into.codes.len(), codes.len())?;
    into.codes.copy_from_slice(codes);
    into.check_codes()?;
    let (kind, groups, width, cols) = (into.kind, into.groups_per_row(), into.group, into.cols);
    // All but the sign, which does not count where the rest is 0.
    let digits = if kind == Codes::E2m1 { 0x77 } else { 0x7f };
    for row in 0..into.rows {
        for group in 0..groups {
            let value = scale(row, group);
            if !value.is_finite() {
                return Err(QuantError::GroupNonFinite { part: "scale", row, group, value });
            }
            let half = f16::from_f32(value * factor(kind));
            let held = half.is_finite() && (half != f16::ZERO || value == 0.0 || kind == Codes::E2m1);
            let [start, end] = [group * width, cols.min((group + 1) * width)];
            let bytes = code_bytes_per_row(kind, start)..code_bytes_per_row(kind, end);
            if !held && into.row_codes(row)[bytes].iter().any(|code| code & digits != 0) {
                return Err(QuantError::Scale { row, group, value });
            }
            into.scales[row * groups + group] = if held { half } else { f16::ZERO };
        }
    }
    Ok(())
}
