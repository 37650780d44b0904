//! The block formats against values that another library computed, and round trips through the encoders.

use proptest::prelude::*;

use super::*;

type Decode = fn(&[u8], usize, usize) -> Result<QuantMatrix, QuantError>;
type Encode = fn(&QuantMatrix) -> Result<Vec<u8>, QuantError>;

fn decoder(format: &str) -> Decode {
    match format {
        "Q2_K" => q2_k::decode,
        "Q3_K" => q3_k::decode,
        "Q4_0" => q4_0::decode,
        "Q4_1" => q4_1::decode,
        "Q4_K" => q4_k::decode,
        "Q5_0" => q5_0::decode,
        "Q5_1" => q5_1::decode,
        "Q5_K" => q5_k::decode,
        "Q6_K" => q6_k::decode,
        "Q8_0" => q8_0::decode,
        other => panic!("no format {other}"),
    }
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
    assert_eq!(vectors.len(), 20);
    for Vector { format, exact, block, values } in vectors {
        // Twice two rows of the block: the walk over blocks and rows is under test as well.
        let cols = 2 * values.len();
        let matrix = decoder(format)(&block.repeat(4), 2, cols).unwrap();
        for row in 0..2 {
            let mut found = vec![f32::NAN; cols];
            matrix.dequantize_row(row, &mut found);
            for (col, &found) in found.iter().enumerate() {
                let expected = values[col % values.len()];
                if exact || !format.ends_with('K') {
                    assert_eq!(found, expected, "{format} ({row}, {col})");
                } else {
                    let group = row * matrix.groups_per_row() + col / matrix.group();
                    let product = matrix.code(row, col) as f32 * matrix.scales()[group].to_f32();
                    let min = matrix.mins().map_or(0.0, |mins| mins[group].to_f32());
                    // Half an f16 ulp on each product, and the seven digits of the text.
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
        let matrix = decoder(format)(&block, 1, values.len()).unwrap();
        let mut found = vec![f32::NAN; values.len()];
        matrix.dequantize_row(0, &mut found);
        for (col, &found) in found.iter().enumerate() {
            let group = col / matrix.group();
            let min = matrix.mins().map_or(0.0, |mins| mins[group].to_f32());
            assert_eq!(found, matrix.code(0, col) as f32 * matrix.scales()[group].to_f32() + min);
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
            let matrix = decoder(format)(&blocks, 2, 96).unwrap();
            prop_assert_eq!(encode(&matrix).unwrap(), blocks, "{}", format);
        }
    }

    #[test]
    fn decoders_take_any_bytes_of_the_right_length(bytes in proptest::collection::vec(any::<u8>(), 2 * 210)) {
        for Vector { format, block, values, .. } in vectors() {
            let blocks = &bytes[..2 * block.len()];
            match decoder(format)(blocks, 2, values.len()) {
                Ok(matrix) => prop_assert!(matrix.scales().iter().all(|scale| scale.is_finite())),
                Err(QuantError::GroupNonFinite { .. }) => {}
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
        bits: Bits::Eight,
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
