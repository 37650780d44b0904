//! Block formats compared with values of an independent library, and round trips through the encoders.

mod floats;

use half::bf16;
use proptest::prelude::*;

use super::*;

type Encode = fn(&QuantMatrix) -> Result<Vec<u8>, QuantError>;

fn format_named(name: &str) -> &'static BlockFormat {
    let formats = [
        &iq4::IQ4_NL,
        &iq4::IQ4_XS,
        &mxfp4::FORMAT,
        &q2_k::FORMAT,
        &q3_k::FORMAT,
        &q4_0::FORMAT,
        &q4_1::FORMAT,
        &q4_k::FORMAT,
        &q5_0::FORMAT,
        &q5_1::FORMAT,
        &q5_k::FORMAT,
        &q6_k::FORMAT,
        &q8_0::FORMAT,
    ];
    formats.into_iter().find(|format| format.layout.name == name).expect("a format of that name")
}

/// Decodes into a reused matrix with other contents.
fn decode(format: &str, blocks: &[u8], rows: usize, cols: usize) -> Result<QuantMatrix, QuantError> {
    let format = format_named(format);
    let mut matrix = WeightMatrix::default();
    matrix.reshape(MatrixForm::Quant(format.layout.form()), [rows + 1, cols])?;
    let WeightMatrix::Quant(m) = &mut matrix else { panic!("not quantised") };
    m.codes.fill(0xa5);
    m.scales.fill(f16::NAN);
    m.mins.iter_mut().for_each(|mins| mins.fill(f16::NAN));
    matrix.reshape(MatrixForm::Quant(format.layout.form()), [rows, cols])?;
    let WeightMatrix::Quant(mut m) = matrix else { panic!("not quantised") };
    (format.decode)(blocks, &mut m)?;
    Ok(m)
}

const EXACT: [(&str, usize, Encode); 5] = [
    ("Q4_0", 18, q4_0::encode),
    ("Q4_1", 20, q4_1::encode),
    ("Q5_0", 22, q5_0::encode),
    ("Q5_1", 24, q5_1::encode),
    ("Q8_0", 34, q8_0::encode),
];

struct Vector {
    format: &'static str,
    exact: bool,
    block: Vec<u8>,
    values: Vec<f32>,
}

fn vectors() -> Vec<Vector> {
    let lines = include_str!("vectors.txt").lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap();
            let (format, exact, hex) = (word(), word() == "exact", word());
            let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
            let block = (0..hex.len() / 2).map(byte).collect();
            Vector { format, exact, block, values: words.map(|word| word.parse().unwrap()).collect() }
        })
        .collect()
}

#[test]
fn every_format_gives_the_values_of_an_independent_library() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 27);
    for Vector { format, exact, block, values } in vectors {
        // Two rows of two blocks each also test the iteration over blocks and rows.
        let cols = 2 * values.len();
        let matrix = decode(format, &block.repeat(4), 2, cols).unwrap();
        for row in 0..2 {
            let mut found = vec![f32::NAN; cols];
            matrix.dequantize_row(row, &mut found);
            for (col, &found) in found.iter().enumerate() {
                let expected = values[col % values.len()];
                if exact || !(format.ends_with('K') || format == "IQ4_XS") {
                    assert_eq!(found, expected, "{format} ({row}, {col})");
                } else {
                    let group = row * matrix.groups_per_row() + col / matrix.group();
                    let product = matrix.code(row, col) * matrix.scales()[group].to_f32();
                    let min = matrix.mins().map_or(0.0, |mins| mins[group].to_f32());
                    // Half an f16 ulp per product, and the seven printed digits.
                    let bound = (product.abs() + min.abs()) * (1.01 / 2048.0) + 1e-6 * expected.abs();
                    let error = (found - expected).abs();
                    assert!(error <= bound, "{format} ({row}, {col}): {found}, expected {expected}");
                }
            }
        }
    }
}

#[test]
fn a_row_dequantises_as_its_codes_say() {
    for Vector { format, block, values, .. } in vectors() {
        let matrix = decode(format, &block, 1, values.len()).unwrap();
        let mut found = vec![f32::NAN; values.len()];
        matrix.dequantize_row(0, &mut found);
        for (col, &found) in found.iter().enumerate() {
            let group = col / matrix.group();
            let min = matrix.mins().map_or(0.0, |mins| mins[group].to_f32());
            assert_eq!(found, matrix.code(0, col) * matrix.scales()[group].to_f32() + min);
        }
    }
}

proptest! {
    #[test]
    fn formats_that_lose_nothing_come_back_byte_for_byte(
        bytes in proptest::collection::vec(any::<u8>(), 6 * 34),
        scales in proptest::collection::vec(-4.0f32..4.0, 12),
    ) {
        for (format, block_bytes, encode) in EXACT {
            let mut blocks = bytes[..6 * block_bytes].to_vec();
            for (block, scale) in blocks.chunks_exact_mut(block_bytes).zip(scales.chunks_exact(2)) {
                block[..2].copy_from_slice(&f16::from_f32(scale[0]).to_le_bytes());
                if format.ends_with('1') {
                    block[2..4].copy_from_slice(&f16::from_f32(scale[1]).to_le_bytes());
                }
            }
            let matrix = decode(format, &blocks, 2, 96).unwrap();
            prop_assert_eq!(encode(&matrix).unwrap(), blocks, "{}", format);
        }
    }

    #[test]
    fn decoders_take_any_bytes_of_the_right_length(bytes in proptest::collection::vec(any::<u8>(), 2 * 210)) {
        for Vector { format, block, values, .. } in vectors() {
            let blocks = &bytes[..2 * block.len()];
            match decode(format, blocks, 2, values.len()) {
                Ok(matrix) => {
                    prop_assert!(matrix.scales().iter().all(|scale| scale.is_finite()));
                    prop_assert_eq!(matrix.check_codes(), Ok(()), "{}", format);
                }
                Err(QuantError::GroupNonFinite { .. } | QuantError::Scale { .. }) => {}
                Err(other) => prop_assert!(false, "{}: {}", format, other),
            }
        }
    }
}

#[test]
fn an_encoder_refuses_what_it_cannot_hold() {
    let parts = |group, codes: Vec<u8>| QuantParts {
        rows: 1,
        cols: 64,
        kind: Bits::Eight.into(),
        group,
        codes,
        scales: vec![f16::ONE; 64 / group],
        mins: None,
    };
    let wide = QuantMatrix::new(parts(64, vec![1; 64])).unwrap();
    let layout = "another layout of codes or groups";
    for (format, _, encode) in EXACT {
        assert_eq!(encode(&wide), Err(QuantError::Inexact { format, reason: layout }));
    }
    let sixteen = QuantMatrix::new(parts(32, vec![16; 64])).unwrap();
    let beyond = QuantError::Inexact { format: "Q5_0", reason: "a code beyond its range" };
    assert_eq!(q5_0::encode(&sixteen), Err(beyond));
    assert!(q8_0::encode(&sixteen).is_ok());
}

#[test]
fn a_code_beyond_its_bits_is_refused_with_its_place() {
    for (bits, good, bad) in
        [(Bits::Five, [-16, 15, 31], [-17, 16, 32]), (Bits::Six, [-32, 31, 63], [-33, 32, 64])]
    {
        for (index, (good, bad)) in good.into_iter().zip(bad).enumerate() {
            let matrix = |code: i32| {
                let mut codes = vec![good as u8; 3 * 40];
                codes[40 + 33] = code as u8;
                let mins = (index == 2).then(|| vec![f16::ONE; 6]);
                let scales = vec![f16::ONE; 6];
                let kind = bits.into();
                QuantMatrix::new(QuantParts { rows: 3, cols: 40, kind, group: 32, codes, scales, mins })
            };
            assert_eq!(matrix(good).unwrap().code(1, 33), good as f32);
            let expected = QuantError::Code { bits, row: 1, col: 33, code: bad };
            assert_eq!(matrix(bad).unwrap_err(), expected);
            assert_eq!(expected.clone().after_rows(5), QuantError::Code { bits, row: 6, col: 33, code: bad });
        }
    }
    let text = QuantError::Code { bits: Bits::Five, row: 1, col: 2, code: 16 }.to_string();
    assert_eq!(text, "expected a code of 5 bits, found 16 at row 1, column 2");
}

#[test]
fn a_dense_row_widens_to_its_elements() {
    let floats: Vec<f32> = (0..600).map(|i| i as f32 / 7.0 - 40.0).collect();
    let all = [
        DenseValues::F32(floats.clone()),
        DenseValues::F16(floats.iter().map(|&v| f16::from_f32(v)).collect()),
        DenseValues::Bf16(floats.iter().map(|&v| bf16::from_f32(v)).collect()),
    ];
    for values in all {
        let matrix = DenseMatrix::new(2, 300, values).unwrap();
        let mut row = [0.0; 300];
        matrix.widen_row(1, &mut row);
        (0..300).for_each(|col| assert_eq!(row[col], matrix.get(1, col)));
        assert_eq!(matrix.first_non_finite(), None);
    }
    let mut bad = vec![bf16::ONE; 600];
    bad[555] = bf16::NAN;
    let matrix = DenseMatrix::new(2, 300, DenseValues::Bf16(bad)).unwrap();
    assert!(matches!(matrix.first_non_finite(), Some((1, 255, value)) if value.is_nan()));
}

#[test]
fn a_matrix_is_refilled_with_rows_of_any_other() {
    let codes: Vec<u8> = (0..7 * 20).map(|i| (i * 37 % 251) as u8).collect();
    let halves = |seed: usize| (0..7 * 3).map(|i| f16::from_f32((i * seed) as f32)).collect();
    let parts = QuantParts {
        rows: 7,
        cols: 40,
        kind: Bits::Four.into(),
        group: 16,
        codes,
        scales: halves(3),
        mins: Some(halves(5)),
    };
    let eight = (0..7 * 40).map(|i| (i * 37 % 127) as u8).collect();
    let eight = QuantParts {
        kind: Codes::E4m3,
        group: 32,
        codes: eight,
        scales: parts.scales[..14].to_vec(),
        mins: None,
        ..parts.clone()
    };
    let floats: Vec<f32> = (0..7 * 40).map(|i| i as f32).collect();
    let dense = |values| WeightMatrix::Dense(DenseMatrix::new(7, 40, values).unwrap());
    let matrices = [
        WeightMatrix::Quant(QuantMatrix::new(eight).unwrap()),
        WeightMatrix::Quant(QuantMatrix::new(parts).unwrap()),
        dense(DenseValues::F16(floats.iter().map(|&v| f16::from_f32(v)).collect())),
        dense(DenseValues::Bf16(floats.iter().map(|&v| bf16::from_f32(v)).collect())),
        dense(DenseValues::F32(floats)),
    ];
    let mut block = WeightMatrix::default();
    let (mut expected, mut found) = (vec![0.0; 40], vec![0.0; 40]);
    for matrix in matrices.iter().chain(&matrices) {
        for rows in [1..6, 4..7, 2..3] {
            block.reshape(matrix.form(), [rows.len() + 1, 40]).unwrap();
            block.copy_rows(0, matrix, 0..1);
            block.copy_rows(1, matrix, rows.clone());
            assert_eq!((block.form(), block.rows(), block.cols()), (matrix.form(), rows.len() + 1, 40));
            for (at, row) in std::iter::once(0).chain(rows).enumerate() {
                matrix.dequantize_row(row, &mut expected);
                block.dequantize_row(at, &mut found);
                assert_eq!(found, expected, "row {row} of {:?}", matrix.form());
            }
        }
    }
    let group = QuantForm { kind: Bits::Four.into(), group: 48, mins: false };
    let refused = block.reshape(MatrixForm::Quant(group), [1, 40]);
    assert_eq!(refused, Err(QuantError::Group { found: 48, cols: 40 }));
}

/// Error sums of blocks of rows add up to those of the whole matrix, for any division into blocks.
#[test]
fn the_quality_of_several_blocks_is_that_of_the_whole_matrix() {
    // The rows differ widely in power, so the figures of a block differ from those of the whole matrix.
    let value = |at: usize| ((at * 37 % 101) as f32 - 50.0) * ((at / 48) as f32 - 2.5).exp2();
    let values: Vec<f32> = (0..7 * 48).map(value).collect();
    let dense = |rows: std::ops::Range<usize>| {
        let values = values[rows.start * 48..rows.end * 48].to_vec();
        DenseMatrix::new(rows.len(), 48, DenseValues::F32(values)).unwrap()
    };
    let format: QuantFormat = "w4g16m".parse().unwrap();
    let (matrix, whole) = quantize(&dense(0..7), format).unwrap();
    let mut sum = Distance::default();
    for rows in [0..2, 2..3, 3..3, 3..7] {
        sum.add(&quantize_block(&dense(rows), format).unwrap().1);
    }
    let found = sum.quality();
    let (mut error, mut original, mut quantised, mut product) = (0.0, 0.0, 0.0, 0.0);
    let mut row = [0.0; 48];
    for (at, &x) in values.iter().enumerate() {
        matrix.dequantize_row(at / 48, &mut row);
        let (x, y) = (f64::from(x), f64::from(row[at % 48]));
        (error, original) = (error + (x - y) * (x - y), original + x * x);
        (quantised, product) = (quantised + y * y, product + x * y);
    }
    let expected = Quality {
        mse: error / (7.0 * 48.0),
        snr_db: 10.0 * (original / error).log10(),
        cosine: product / (original.sqrt() * quantised.sqrt()),
    };
    for found in [found, whole] {
        approx::assert_relative_eq!(found.mse, expected.mse, max_relative = 1e-12);
        approx::assert_relative_eq!(found.snr_db, expected.snr_db, max_relative = 1e-12);
        approx::assert_relative_eq!(found.cosine, expected.cosine, max_relative = 1e-12);
    }
    let first = quantize(&dense(0..2), format).unwrap().1;
    assert!((first.snr_db - expected.snr_db).abs() > 0.01, "one block alone has another quality");
}

/// Quality of an empty matrix, of an exact one, and of a total loss.
#[test]
fn qualities_at_their_ends() {
    let exact = Quality { mse: 0.0, snr_db: f64::INFINITY, cosine: 1.0 };
    assert_eq!(Distance::default().quality(), exact);
    let dense = |values: Vec<f32>| DenseMatrix::new(1, values.len(), DenseValues::F32(values)).unwrap();
    let (zeros, _) = quantize(&dense(vec![0.0; 16]), QuantFormat::W8G32).unwrap();
    let lost = Quality::measure(&dense(vec![2.0; 16]), &zeros).unwrap();
    assert_eq!(lost, Quality { mse: 4.0, snr_db: 0.0, cosine: 0.0 });
    let other = Quality::measure(&dense(vec![2.0; 17]), &zeros);
    assert_eq!(other, Err(QuantError::Length { part: "columns", expected: 17, found: 16 }));
}

/// A single code out of the encoder's range, at any position, is refused.
#[test]
fn one_code_beyond_an_encoders_range_is_refused() {
    /// Format, encoder, whether it has minima, codes in range, codes out of range.
    type Case = (&'static str, Encode, bool, &'static [i32], &'static [i32]);
    let cases: [Case; 2] = [
        ("Q5_0", q5_0::encode, false, &[-16, 15], &[-17, 16, -128, 127]),
        ("Q5_1", q5_1::encode, true, &[0, 31], &[32, 63, 128, 255]),
    ];
    for (format, encode, mins, good, bad) in cases {
        let layout = &format_named(format).layout;
        let with = |at: usize, code: i32| {
            let mut codes = vec![1; 128];
            codes[at] = code as u8;
            let mins = mins.then(|| vec![f16::ONE; 4]);
            let (kind, group, scales) = (Bits::Eight.into(), layout.group, vec![f16::ONE; 4]);
            QuantMatrix::new(QuantParts { rows: 2, cols: 64, kind, group, codes, scales, mins }).unwrap()
        };
        let beyond = QuantError::Inexact { format, reason: "a code beyond its range" };
        for at in [0, 31, 32, 100, 127] {
            for &code in good {
                let blocks = encode(&with(at, code)).unwrap();
                let decoded = decode(format, &blocks, 2, 64).unwrap();
                assert_eq!(decoded.codes(), with(at, code).codes(), "{format}: {code} at {at}");
            }
            for &code in bad {
                assert_eq!(encode(&with(at, code)), Err(beyond.clone()), "{format}: {code} at {at}");
            }
        }
    }
}

/// Encoders with as many bits as the matrix's codes write every code.
#[test]
fn encoders_of_whole_codes_take_every_code() {
    let cases: [(&str, Encode, bool); 3] =
        [("Q4_0", q4_0::encode, false), ("Q4_1", q4_1::encode, true), ("Q8_0", q8_0::encode, false)];
    for (format, encode, mins) in cases {
        let layout = &format_named(format).layout;
        let bytes = code_bytes_per_row(layout.kind, 256);
        let codes: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        let (scales, mins) = (vec![f16::ONE; 8], mins.then(|| vec![f16::ONE; 8]));
        let parts =
            QuantParts { rows: 1, cols: 256, kind: layout.kind, group: layout.group, codes, scales, mins };
        let matrix = QuantMatrix::new(parts).unwrap();
        assert_eq!(decode(format, &encode(&matrix).unwrap(), 1, 256).unwrap(), matrix, "{format}");
    }
}
