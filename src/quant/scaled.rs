//! FP8 (E4M3) and NVFP4 (E2M1) weights of Hugging Face folders: row-major codes, and separate scales per
//! group of 16 columns (NVFP4), block, row or tensor.
//!
//! Codes are copied. Canonical scales are 256 times the file's for E4M3 and half of the file's for E2M1, both
//! rounded to the nearest f16. The relative error is at most 1/2048; below 2⁻¹⁴ the absolute error is at most
//! 2⁻²⁵. A scale that overflows f16 is refused, unless all values of the group are 0; likewise an E4M3 scale
//! that underflows to 0. An E2M1 scale that underflows belongs to values below 2⁻²¹, which become 0: tensors
//! with nothing but such scales are refused on open.

use half::f16;

use super::{Codes, QuantError, QuantMatrix, check_length, code_bytes_per_row};

/// Ratio of the canonical scale to the file's.
fn factor(kind: Codes) -> f32 {
    if kind == Codes::E2m1 { 0.5 } else { 256.0 }
}

/// Fills a matrix of float codes with `codes` and with the scales by row and group.
pub(crate) fn fill(
    into: &mut QuantMatrix,
    codes: &[u8],
    scale: impl Fn(usize, usize) -> f32,
) -> Result<(), QuantError> {
    check_length("codes", into.codes.len(), codes.len())?;
    into.codes.copy_from_slice(codes);
    into.check_codes()?;
    let (kind, groups, width, cols) = (into.kind, into.groups_per_row(), into.group, into.cols);
    // Mask without the sign bits: -0 counts as zero.
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
