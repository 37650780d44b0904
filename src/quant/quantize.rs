//! Quantiser: floats to codes of 4, 5, 6 or 8 bits, rounded to nearest even with the f16-rounded scale.
//!
//! The error per value is at most half a scale (plus float rounding): scales are chosen so that clamping adds
//! no larger error. [`Quality`] measures the loss.

use std::fmt;
use std::str::FromStr;

use half::f16;

use super::{
    Bits, DenseMatrix, Distance, Quality, QuantError, QuantForm, QuantMatrix, QuantParts, code_bytes_per_row,
};

/// Granularity of the scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Groups of adjacent columns: 16, 32, 64 or 128.
    Columns(usize),
    /// One group per row.
    Row,
}

/// Target format of the quantiser. Text form: `w8g128`, `w4g32m` (with mins), `w8row`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantFormat {
    /// Width of the codes.
    pub bits: Bits,
    /// Columns per scale.
    pub group: Group,
    /// Whether groups have minima: more accurate for asymmetric values, two more bytes per group.
    pub mins: bool,
}

impl QuantFormat {
    /// 8 bits, groups of 128, no mins.
    pub const W8G128: QuantFormat =
        QuantFormat { bits: Bits::Eight, group: Group::Columns(128), mins: false };
    /// 8 bits, groups of 32, no mins: equivalent to Q8_0.
    pub const W8G32: QuantFormat = QuantFormat { bits: Bits::Eight, group: Group::Columns(32), mins: false };
    /// 4 bits, groups of 32, no mins: equivalent to Q4_0.
    pub const W4G32: QuantFormat = QuantFormat { bits: Bits::Four, group: Group::Columns(32), mins: false };
    /// 4 bits, groups of 128, no mins.
    pub const W4G128: QuantFormat = QuantFormat { bits: Bits::Four, group: Group::Columns(128), mins: false };

    /// Form of a quantised matrix with `cols` columns.
    pub fn form(&self, cols: usize) -> QuantForm {
        let group = match self.group {
            Group::Columns(columns) => columns,
            Group::Row => cols,
        };
        QuantForm { kind: self.bits.into(), group, mins: self.mins }
    }
}

impl fmt::Display for QuantFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.bits.count())?;
        match self.group {
            Group::Columns(columns) => write!(f, "g{columns}")?,
            Group::Row => f.write_str("row")?,
        }
        f.write_str(if self.mins { "m" } else { "" })
    }
}

impl FromStr for QuantFormat {
    type Err = QuantError;

    fn from_str(text: &str) -> Result<Self, QuantError> {
        let format = |bits, group, mins| QuantFormat { bits, group, mins };
        let groups = [16, 32, 64, 128].map(Group::Columns).into_iter().chain([Group::Row]);
        groups
            .flat_map(|group| [Bits::Four, Bits::Five, Bits::Six, Bits::Eight].map(|bits| (bits, group)))
            .flat_map(|(bits, group)| [false, true].map(|mins| format(bits, group, mins)))
            .find(|format| format.to_string() == text)
            .ok_or_else(|| QuantError::Format { found: text.to_owned() })
    }
}

/// Quantises `values` to `format` and measures the loss.
///
/// An all-zero group has scale 0. The call is single-threaded; parallelise over matrices.
///
/// # Errors
/// [`QuantError::Group`] for an unsupported group, [`QuantError::NonFinite`] for a NaN or an infinity,
/// [`QuantError::GroupNonFinite`] if a scale or minimum is out of the range of f16.
pub fn quantize(values: &DenseMatrix, format: QuantFormat) -> Result<(QuantMatrix, Quality), QuantError> {
    quantize_block(values, format).map(|(matrix, distance)| (matrix, distance.quality()))
}

/// [`quantize`] for a block of rows, with their share of the error sums.
pub(crate) fn quantize_block(
    values: &DenseMatrix,
    format: QuantFormat,
) -> Result<(QuantMatrix, Distance), QuantError> {
    let (rows, cols) = (values.rows(), values.cols());
    let QuantForm { kind, group, .. } = format.form(cols);
    super::check_group(group, cols)?;
    let coder = Coder::new(format);
    let row_bytes = code_bytes_per_row(kind, cols);
    let groups_per_row = cols.div_ceil(group);
    let mut codes = vec![0; rows * row_bytes];
    let mut fits = Vec::with_capacity(rows * groups_per_row);
    let (mut floats, mut row_codes) = (vec![0.0; cols], vec![0; cols]);

    for (row, packed) in codes.chunks_exact_mut(row_bytes.max(1)).enumerate() {
        values.widen_row(row, &mut floats);
        if let Some(col) = floats.iter().position(|value| !value.is_finite()) {
            return Err(QuantError::NonFinite { row, col, value: floats[col] });
        }
        for (index, (values, codes)) in floats.chunks(group).zip(row_codes.chunks_mut(group)).enumerate() {
            let fit = coder.fit(values);
            fit.check(row, index)?;
            coder.encode(values, fit, codes);
            fits.push(fit);
        }
        pack_row(format.bits, &row_codes, packed);
    }

    let scales = fits.iter().map(|fit| fit.scale).collect();
    let mins = format.mins.then(|| fits.iter().map(|fit| fit.min).collect());
    let matrix = QuantMatrix::new(QuantParts { rows, cols, kind, group, codes, scales, mins })?;
    let distance = Distance::measure(values, &matrix)?;
    Ok((matrix, distance))
}

fn pack_row(bits: Bits, codes: &[u8], packed: &mut [u8]) {
    match bits {
        Bits::Four => {
            for (byte, pair) in packed.iter_mut().zip(codes.chunks(2)) {
                *byte = pair.iter().rev().fold(0, |byte, code| byte << 4 | code);
            }
        }
        Bits::Five | Bits::Six | Bits::Eight => packed.copy_from_slice(codes),
    }
}

/// Scale and minimum of a group.
#[derive(Clone, Copy)]
struct Fit {
    scale: f16,
    min: f16,
}

impl Fit {
    fn check(self, row: usize, group: usize) -> Result<(), QuantError> {
        for (part, value) in [("scale", self.scale), ("minimum", self.min)] {
            if !value.is_finite() {
                return Err(QuantError::GroupNonFinite { part, row, group, value: value.to_f32() });
            }
        }
        Ok(())
    }
}

/// Integer range of a format: multiples `low..=high` of the scale, stored plus `offset`.
struct Coder {
    low: i32,
    high: i32,
    offset: i32,
    mins: bool,
}

impl Coder {
    fn new(format: QuantFormat) -> Coder {
        let (low, high) = format.bits.codes(format.mins).into_inner();
        let (low, offset) = match (format.bits, format.mins) {
            (Bits::Eight, false) => (-high, 0),
            (Bits::Four, false) => (low, -low),
            _ => (low, 0),
        };
        Coder { low, high, offset, mins: format.mins }
    }

    /// Scale (and minimum) of a group of values.
    fn fit(&self, values: &[f32]) -> Fit {
        let least = values.iter().copied().fold(f32::INFINITY, f32::min);
        let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if self.mins {
            let min = f16_below(least);
            let reach = most - min.to_f32();
            return Fit { scale: f16_reaching(reach / self.high as f32, &[(reach, self.high)]), min };
        }
        let (down, up) = ((-least).max(0.0), most.max(0.0));
        if self.low == -self.high {
            let reach = down.max(up);
            let scale = f16_reaching(reach / self.high as f32, &[(reach, self.high)]);
            return Fit { scale, min: f16::ZERO };
        }
        // The range has one more negative than positive code. The sign of the scale gives it to the larger
        // side, which is represented exactly; the smaller side may be clamped by half a scale.
        let (long, short) = (down.max(up), down.min(up));
        let wanted = (long / -self.low as f32).max(short / (self.high as f32 + 0.5));
        let scale = f16_reaching(wanted, &[(short, self.high), (long, -self.low)]);
        Fit { scale: if up > down { -scale } else { scale }, min: f16::ZERO }
    }

    fn encode(&self, values: &[f32], fit: Fit, codes: &mut [u8]) {
        let (scale, min) = (fit.scale.to_f32(), fit.min.to_f32());
        if scale == 0.0 {
            codes.fill(self.offset as u8);
            return;
        }
        for (code, value) in codes.iter_mut().zip(values) {
            let integer = round_ties_even((value - min) / scale).clamp(self.low, self.high);
            *code = (integer + self.offset) as u8;
        }
    }
}

/// The f16 nearest to `wanted`, or the next larger one if for some `(reach, steps)` the nearest times
/// `steps + 0.5` is below `reach`.
fn f16_reaching(wanted: f32, sides: &[(f32, i32)]) -> f16 {
    let nearest = f16::from_f32(wanted);
    let enough = |&(reach, steps): &(f32, i32)| nearest.to_f32() * (steps as f32 + 0.5) >= reach;
    if sides.iter().all(enough) { nearest } else { f16::from_bits(nearest.to_bits() + 1) }
}

/// The largest f16 not above `value`.
fn f16_below(value: f32) -> f16 {
    let nearest = f16::from_f32(value);
    match (nearest.to_f32() > value, nearest.to_bits()) {
        (false, _) => nearest,
        (true, bits) if nearest.is_sign_negative() => f16::from_bits(bits + 1),
        // A positive value rounded up has a positive neighbour below. Zero results from rounding up only for
        // negative values, and then has a negative sign.
        (true, bits) => f16::from_bits(bits.saturating_sub(1)),
    }
}

/// Rounds half to even for |x| below 2²²: adding 1.5 · 2²³ leaves no fraction bits, so the float addition
/// rounds, and the low bits of the sum are the integer. Unlike a library call it vectorises on every target.
fn round_ties_even(x: f32) -> i32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::DenseValues;
    use super::*;

    fn all_formats() -> Vec<QuantFormat> {
        let mut formats = Vec::new();
        for bits in ["w4", "w5", "w6", "w8"] {
            for group in ["g16", "g32", "g64", "g128", "row"] {
                for mins in ["", "m"] {
                    formats.push(format!("{bits}{group}{mins}").parse().unwrap());
                }
            }
        }
        formats
    }

    fn dense(rows: usize, cols: usize, values: &[f32]) -> DenseMatrix {
        DenseMatrix::new(rows, cols, DenseValues::F32(values[..rows * cols].to_vec())).unwrap()
    }

    /// Values over the whole range of f16 scales, with zeros, ties and outliers.
    fn value() -> impl Strategy<Value = f32> {
        prop_oneof![
            4 => -1.0f32..1.0,
            1 => Just(0.0),
            1 => (-64i32..64).prop_map(|i| i as f32 / 2.0),
            1 => (-1.0f32..1.0, -30i32..13).prop_map(|(m, e)| m * (e as f32).exp2()),
        ]
    }

    proptest! {
        #[test]
        fn every_value_comes_back_within_half_a_scale(
            values in proptest::collection::vec(value(), 3 * 130),
            cols in 1usize..130,
        ) {
            let original = dense(3, cols, &values);
            for format in all_formats() {
                let (matrix, _) = quantize(&original, format).unwrap();
                for row in 0..3 {
                    let mut found = vec![0.0; cols];
                    matrix.dequantize_row(row, &mut found);
                    for (col, found) in found.iter().enumerate() {
                        let group = row * matrix.groups_per_row() + col / matrix.group();
                        let scale = f64::from(matrix.scales()[group].to_f32()).abs();
                        let min = matrix.mins().map_or(0.0, |mins| f64::from(mins[group].to_f32()));
                        let value = f64::from(original.get(row, col));
                        let error = (value - f64::from(*found)).abs();
                        // Two f32 roundings, each relative to its operand.
                        let ulp = (value.abs() + min.abs() + 256.0 * scale) * f64::from(f32::EPSILON);
                        prop_assert!(
                            error <= scale / 2.0 + ulp,
                            "{format} ({row}, {col}): {value} came back as {found}, scale {scale}, min {min}"
                        );
                    }
                }
            }
        }

        #[test]
        fn what_was_quantised_once_is_quantised_again_without_loss(
            codes in proptest::collection::vec(-127i32..=127, 63),
            exponent in -10i32..4,
        ) {
            // With the extreme code in the group, the scale is recovered.
            let values: Vec<f32> =
                codes.iter().chain([&127]).map(|&q| q as f32 * (exponent as f32).exp2()).collect();
            let (matrix, quality) = quantize(&dense(1, 64, &values), "w8row".parse().unwrap()).unwrap();
            prop_assert_eq!(quality, Quality { mse: 0.0, snr_db: f64::INFINITY, cosine: 1.0 });
            prop_assert_eq!(matrix.code(0, 63), 127.0);
        }
    }

    #[test]
    fn a_format_is_written_as_it_is_read() {
        for format in all_formats() {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert_eq!(QuantFormat::W4G128.to_string(), "w4g128");
        let error = "w3g32".parse::<QuantFormat>().unwrap_err();
        assert_eq!(error, QuantError::Format { found: "w3g32".to_owned() });
    }

    #[test]
    fn a_group_of_zeros_has_scale_zero() {
        for format in all_formats() {
            let (matrix, quality) = quantize(&dense(2, 40, &[0.0; 80]), format).unwrap();
            assert!(matrix.scales().iter().all(|scale| *scale == f16::ZERO), "{format}");
            assert_eq!(quality.cosine, 1.0);
            let mut row = [1.0; 40];
            matrix.dequantize_row(1, &mut row);
            assert_eq!(row, [0.0; 40], "{format}");
        }
    }

    #[test]
    fn ties_go_to_the_even_code() {
        let mut values = [0.0; 32];
        values[..5].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5]);
        let (matrix, _) = quantize(&dense(1, 32, &values), QuantFormat::W8G32).unwrap();
        let codes: Vec<f32> = (0..5).map(|col| matrix.code(0, col)).collect();
        assert_eq!(codes, [127.0, 0.0, 2.0, 2.0, 0.0]);
    }

    #[test]
    fn the_larger_side_of_four_bits_gets_the_extra_code() {
        let mut values = [0.0; 32];
        values[..2].copy_from_slice(&[8.0, -7.0]);
        let (matrix, quality) = quantize(&dense(1, 32, &values), QuantFormat::W4G32).unwrap();
        assert_eq!((matrix.scales()[0].to_f32(), matrix.code(0, 0), matrix.code(0, 1)), (-1.0, -8.0, 7.0));
        assert_eq!(quality.mse, 0.0);
    }

    #[test]
    fn nan_infinity_and_the_unreachable_are_refused_with_their_place() {
        for (bad, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
            let mut values = [1.0; 64];
            values[33] = bad;
            let error = quantize(&dense(2, 32, &values), QuantFormat::W8G32).unwrap_err();
            assert_eq!(error.to_string(), format!("expected finite values, found {name} at row 1, column 1"));
        }
        let mut values = [1.0; 64];
        values[40] = 1e38;
        let error = quantize(&dense(1, 64, &values), QuantFormat::W8G32).unwrap_err();
        let expected = QuantError::GroupNonFinite { part: "scale", row: 0, group: 1, value: f32::INFINITY };
        assert_eq!(error, expected);
        values[40] = -1e38;
        assert!(quantize(&dense(1, 64, &values), "w8g32m".parse().unwrap()).is_err());
    }

    #[test]
    fn a_group_that_is_not_supported_is_refused() {
        let format = QuantFormat { group: Group::Columns(0), ..QuantFormat::W8G32 };
        let error = quantize(&dense(1, 32, &[1.0; 32]), format).unwrap_err();
        assert_eq!(error, QuantError::Group { found: 0, cols: 32 });
    }

    #[test]
    fn quality_is_what_the_formulas_say() {
        // 8-bit codes of 0 and 127 are exact; 0.5 is rounded to 0, an error of half a scale.
        let mut values = [0.0; 32];
        values[..2].copy_from_slice(&[127.0, 0.5]);
        let (_, quality) = quantize(&dense(1, 32, &values), QuantFormat::W8G32).unwrap();
        let power = 127.0f64 * 127.0 + 0.25;
        assert_eq!(quality.mse, 0.25 / 32.0);
        approx::assert_relative_eq!(quality.snr_db, 10.0 * (power / 0.25).log10());
        approx::assert_relative_eq!(quality.cosine, 127.0 / power.sqrt());
    }
}
