//! Floats of eight bits, E4M3, as folders of Hugging Face have them: codes row by row, and scales beside them for
//! blocks, rows or the whole tensor.
//!
//! Codes are kept as they are. A scale is multiplied by 256 and rounded to the nearest f16: by one part in 2048 at
//! most, or by 2⁻²⁵ where it is below 2⁻¹⁴. One that becomes 0 or infinite by that is refused, unless all values of
//! the group are 0.

use half::f16;

use super::{QuantError, QuantMatrix, check_length};

/// What a canonical scale is of the code's own.
const FACTOR: f32 = 256.0;

/// Overwrites all rows of a matrix of E4M3 with these codes, and with scales by row and group.
pub(crate) fn fill(
    into: &mut QuantMatrix,
    codes: &[u8],
    scale: impl Fn(usize, usize) -> f32,
) -> Result<(), QuantError> {
    check_length("codes", into.codes.len(), codes.len())?;
    into.codes.copy_from_slice(codes);
    into.check_codes()?;
    let (groups, width, cols) = (into.groups_per_row(), into.group, into.cols);
    for row in 0..into.rows {
        for group in 0..groups {
            let value = scale(row, group);
            if !value.is_finite() {
                return Err(QuantError::GroupNonFinite { part: "scale", row, group, value });
            }
            let half = f16::from_f32(value * FACTOR);
            let held = half.is_finite() && (half != f16::ZERO || value == 0.0);
            let codes = || &into.row_codes(row)[group * width..cols.min((group + 1) * width)];
            // The sign of a zero does not count.
            if !held && codes().iter().any(|code| code & 0x7f != 0) {
                return Err(QuantError::Scale { row, group, value });
            }
            into.scales[row * groups + group] = if held { half } else { f16::ZERO };
        }
    }
    Ok(())
}
