//! Float codes and scales compared with values of an independent library.

use super::super::*;
use super::decode;

/// Values of all codes of a kind.
fn values(kind: &str) -> Vec<f64> {
    let mut lines = include_str!("../codes.txt").lines();
    let line = lines.find_map(|line| line.strip_prefix(kind)).expect("a line of that kind");
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

fn matrix(kind: Codes, cols: usize, group: usize, codes: Vec<u8>) -> Result<QuantMatrix, QuantError> {
    let scales = vec![f16::from_f32(0.5); cols.div_ceil(group)];
    QuantMatrix::new(QuantParts { rows: 1, cols, kind, group, codes, scales, mins: None })
}

#[test]
fn every_float_code_has_its_value() {
    let two_a_byte = (0..8).map(|at| (2 * at) | ((2 * at + 1) << 4)).collect();
    let bytes = (0..=255).filter(|code| code & 0x7f != 0x7f).collect::<Vec<u8>>();
    let eight = values("E4M3");
    assert_eq!((values("E2M1").len(), eight.len()), (16, 256));
    assert!((0..256).all(|code| eight[code].is_nan() == (code & 0x7f == 0x7f)));
    let eight = eight.into_iter().filter(|value| !value.is_nan()).collect();
    for (kind, codes, values, factor) in
        [(Codes::E2m1, two_a_byte, values("E2M1"), 2.0), (Codes::E4m3, bytes, eight, 1.0 / 256.0)]
    {
        let matrix = matrix(kind, values.len(), values.len(), codes).unwrap();
        let mut row = vec![f32::NAN; values.len()];
        matrix.dequantize_row(0, &mut row);
        for (col, value) in values.into_iter().enumerate() {
            assert_eq!(f64::from(matrix.code(0, col)), value * factor, "{kind:?} {col}");
            // All scales are 0.5.
            assert_eq!(f64::from(row[col]), value * factor / 2.0, "{kind:?} {col}");
        }
    }
}

#[test]
fn codes_that_are_no_numbers_are_refused_with_their_place() {
    for code in [0x7f, 0xff] {
        let mut codes = vec![0x7e; 3 * 300];
        codes[300 + 271] = code;
        let scales = vec![f16::ONE; 3 * 3];
        let parts =
            QuantParts { rows: 3, cols: 300, kind: Codes::E4m3, group: 128, codes, scales, mins: None };
        let error = QuantMatrix::new(parts).unwrap_err();
        assert_eq!(error.to_string(), "expected finite values, found NaN at row 1, column 271");
    }
}

#[test]
fn float_codes_have_no_minima_and_those_of_eight_bits_no_small_groups() {
    for kind in [Codes::E2m1, Codes::E4m3] {
        let parts = |cols: usize, group: usize, mins: bool| {
            let (codes, groups) = (vec![0; code_bytes_per_row(kind, cols)], cols.div_ceil(group));
            let (scales, mins) = (vec![f16::ONE; groups], mins.then(|| vec![f16::ONE; groups]));
            QuantMatrix::new(QuantParts { rows: 1, cols, kind, group, codes, scales, mins }).map(|_| ())
        };
        let refused = |group, mins| Err(QuantError::FloatForm { found: QuantForm { kind, group, mins } });
        let small = if kind == Codes::E4m3 { refused(16, false) } else { Ok(()) };
        assert_eq!(parts(64, 16, false), small);
        assert_eq!(parts(64, 32, true), refused(32, true));
        assert_eq!(parts(64, 32, false), Ok(()));
        // A whole row is a valid group of any length.
        assert_eq!(parts(16, 16, false), Ok(()));
        let mut block = WeightMatrix::default();
        let form = MatrixForm::Quant(QuantForm { kind, group: 16, mins: false });
        assert_eq!(block.reshape(form, [1, 64]), small);
    }
}

/// An MXFP4 block with all codes equal to `code`.
fn block(exponent: u8, code: u8) -> [u8; 17] {
    let mut block = [code | code << 4; 17];
    block[0] = exponent;
    block
}

#[test]
fn every_exponent_of_a_block_is_held_or_refused() {
    let scales = values("E8M0");
    assert_eq!(scales.len(), 256);
    for (exponent, scale) in (0..=255).zip(scales) {
        // The third block of four, in two rows of two.
        let blocks = |code| [block(127, 2), block(127, 2), block(exponent, code), block(127, 2)].concat();
        let found = decode("MXFP4", &blocks(0xf), 2, 64);
        if (2f64.powi(-23)..=2f64.powi(16)).contains(&scale) {
            let matrix = found.unwrap();
            let mut row = [0.0; 64];
            matrix.dequantize_row(1, &mut row);
            assert_eq!(f64::from(matrix.scales()[2].to_f32()), scale / 2.0);
            assert!(row[..32].iter().all(|&value| f64::from(value) == -6.0 * scale), "2^{scale}");
        } else {
            let QuantError::Scale { row: 1, group: 0, value } = found.unwrap_err() else { panic!("{scale}") };
            assert!(f64::from(value) == scale || value.is_nan() && scale.is_nan(), "{value} for {scale}");
            // +0 and -0 are zero for every scale except NaN.
            for zero in [0, 8] {
                let zeros = decode("MXFP4", &blocks(zero), 2, 64);
                assert_eq!(
                    zeros.map(|matrix| matrix.scales()[2].to_bits()).ok(),
                    (exponent != 255).then_some(0)
                );
            }
        }
    }
    let error = decode("MXFP4", &block(200, 1), 1, 32).unwrap_err().to_string();
    assert_eq!(error, "the scale of row 0, group 0 is 9.444733e21, which f16 does not hold here");
}

/// Two rows of 160 columns in groups of 128. The codes are 1.0, in the last group `code`.
fn filled(code: u8, scale: impl Fn(usize, usize) -> f32) -> Result<QuantMatrix, QuantError> {
    filled_with(QuantForm { kind: Codes::E4m3, group: 128, mins: false }, [0x38, code], scale)
}

/// [`filled`] for any form: all code bytes are `first`, in the last group of the last row `last`.
fn filled_with(
    form: QuantForm,
    [first, last]: [u8; 2],
    scale: impl Fn(usize, usize) -> f32,
) -> Result<QuantMatrix, QuantError> {
    let mut matrix = WeightMatrix::default();
    matrix.reshape(MatrixForm::Quant(form), [2, 160])?;
    let WeightMatrix::Quant(mut matrix) = matrix else { panic!("not quantised") };
    matrix.scales.fill(f16::NAN);
    let mut codes = vec![first; matrix.codes.len()];
    let start = code_bytes_per_row(form.kind, 159 / form.group * form.group);
    codes[matrix.codes.len() / 2 + start..].fill(last);
    scaled::fill(&mut matrix, &codes, scale)?;
    Ok(matrix)
}

#[test]
fn scales_of_four_bit_floats_are_rounded_by_a_bounded_amount() {
    let form = QuantForm { kind: Codes::E2m1, group: 16, mins: false };
    let with = |code, scale: f32| {
        filled_with(form, [0x22, code], |row, group| if (row, group) == (1, 9) { scale } else { 1.0 })
    };
    // Usual scales, a negative one, zero, the largest, and some that f16 represents poorly or not at all.
    for scale in [0.00073, 1.0 / 448.0, -0.25, 0.0, 131_000.0, 3e-7, 5.9e-8, 1e-9, f32::MIN_POSITIVE] {
        let matrix = with(0xf7, scale).unwrap();
        let mut row = [0.0; 160];
        matrix.dequantize_row(1, &mut row);
        assert!(row[..144].iter().all(|&value| value == 1.0));
        // The canonical scale is half of the file's.
        let bound = (scale.abs() / 2048.0).max(2f32.powi(-24));
        for (value, sign) in row[144..].iter().zip([1.0, -1.0].repeat(8)) {
            assert!((value * sign / 6.0 - scale).abs() <= bound, "{scale}: {value}");
        }
    }
    assert_eq!(with(0x10, -2e5), Err(QuantError::Scale { row: 1, group: 9, value: -2e5 }));
    assert_eq!(with(0x80, -2e5).unwrap().scales()[19], f16::ZERO);
    let error = with(0, f32::NAN).unwrap_err().to_string();
    assert_eq!(error, "the scale of row 1, group 9 is NaN");
}

#[test]
fn scales_of_eight_bit_floats_are_rounded_by_a_bounded_amount() {
    // Usual scales, a negative one, zero, the largest and the smallest.
    for scale in [0.00073, 1.0 / 448.0, -0.25, 0.0, 255.875, 3e-7, 1.2e-10] {
        let matrix = filled(0x7e, |row, group| if (row, group) == (1, 1) { scale } else { 1.0 }).unwrap();
        let mut row = [0.0; 160];
        matrix.dequantize_row(1, &mut row);
        assert!(row[..128].iter().all(|&value| value == 1.0));
        let bound = (scale.abs() / 2048.0).max(2f32.powi(-33));
        assert!(
            row[128..].iter().all(|&value| (value / 448.0 - scale).abs() <= bound),
            "{scale}: {}",
            row[128]
        );
    }
}

#[test]
fn scales_that_f16_does_not_hold_are_refused_unless_all_is_zero() {
    for scale in [256.0, f32::MAX, -1e6, 1e-10, f32::MIN_POSITIVE] {
        let with = |code| filled(code, |row, group| if (row, group) == (1, 1) { scale } else { 1.0 });
        assert_eq!(with(1), Err(QuantError::Scale { row: 1, group: 1, value: scale }));
        for zero in [0, 0x80] {
            assert_eq!(with(zero).unwrap().scales()[3], f16::ZERO);
        }
    }
    for scale in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let error = filled(0, |row, _| if row == 1 { scale } else { 1.0 }).unwrap_err().to_string();
        assert!(error.starts_with("the scale of row 1, group 0 is "), "{error}");
    }
    let short = QuantError::Scale { row: 2, group: 1, value: 1.0 };
    assert_eq!(short.after_rows(5), QuantError::Scale { row: 7, group: 1, value: 1.0 });
}
