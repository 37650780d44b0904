//! Model files end to end: what is written is read back, mapped or read, and tensors decode as they should.

mod real_models;

use std::io::Write;

use half::{bf16, f16};
use ottava::checkpoint::{
    Array, Checkpoint, GgufWriter, ModelFile, OpenOptions, TensorType, Value, WeightsError, WriteError,
};
use ottava::quant::{
    Bits, Codes, DenseMatrix, DenseValues, MatrixForm, QuantForm, QuantFormat, WeightMatrix, quantize,
};
use proptest::prelude::*;

fn open(bytes: Vec<u8>) -> ModelFile {
    ModelFile::from_bytes("model.gguf", bytes).unwrap()
}

fn dense(rows: usize, cols: usize) -> DenseMatrix {
    let values = (0..rows * cols).map(|i| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0).collect();
    DenseMatrix::new(rows, cols, DenseValues::F32(values)).unwrap()
}

#[test]
fn matrices_come_back_as_they_were_written() {
    let floats: Vec<f32> = (0..12).map(|i| i as f32 - 5.5).collect();
    let halves = floats.iter().map(|&v| f16::from_f32(v)).collect();
    let brains = floats.iter().map(|&v| bf16::from_f32(v)).collect();
    let mut matrices: Vec<WeightMatrix> =
        [DenseValues::F32(floats), DenseValues::F16(halves), DenseValues::Bf16(brains)]
            .into_iter()
            .map(|values| WeightMatrix::Dense(DenseMatrix::new(3, 4, values).unwrap()))
            .collect();
    for format in ["w8g32", "w4g32", "w4g32m"] {
        let (matrix, _) = quantize(&dense(3, 96), format.parse().unwrap()).unwrap();
        matrices.push(WeightMatrix::Quant(matrix));
    }
    let mut writer = GgufWriter::new();
    for (i, matrix) in matrices.iter().enumerate() {
        writer.matrix(&i.to_string(), matrix).unwrap();
    }
    let file = open(writer.to_bytes());
    let dtypes: Vec<_> = file.tensors().iter().map(|tensor| tensor.dtype.name()).collect();
    assert_eq!(dtypes, ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"]);
    for (i, matrix) in matrices.iter().enumerate() {
        assert_eq!(&file.matrix(&i.to_string()).unwrap(), matrix, "matrix {i}");
    }
    let mut streamed = Vec::new();
    writer.write(&mut streamed).unwrap();
    assert_eq!(streamed, writer.to_bytes());
}

#[test]
fn the_writer_refuses_what_the_format_cannot_hold() {
    let (wide, _) = quantize(&dense(2, 128), QuantFormat::W8G128).unwrap();
    let mut writer = GgufWriter::new();
    let error = writer.matrix("a", &WeightMatrix::Quant(wide)).unwrap_err();
    assert!(matches!(error, WriteError::Inexact { ref tensor, .. } if tensor == "a"), "{error}");
    let error = writer.tensor("a", TensorType::Q8_0, &[32, 2], vec![0; 67]).unwrap_err();
    assert!(matches!(error, WriteError::Length { expected: 68, found: 67, .. }), "{error}");
    for dims in [&[33][..], &[], &[32, 1, 1, 1, 1]] {
        let error = writer.tensor("a", TensorType::Q8_0, dims, vec![0; 34]).unwrap_err();
        assert!(matches!(error, WriteError::Shape { .. }), "{error}");
    }
    assert_eq!(open(writer.to_bytes()).tensors().len(), 0);
}

#[test]
fn a_mapped_file_a_read_one_and_one_in_memory_are_the_same() {
    let mut writer = GgufWriter::new();
    writer.metadata("general.name", "tiny");
    // Several pages, so that whole ones can be given back.
    let (matrix, _) = quantize(&dense(300, 256), QuantFormat::W8G32).unwrap();
    let matrix = WeightMatrix::Quant(matrix);
    writer.matrix("w", &matrix).unwrap().vector("v", &[1.0, 2.0]).unwrap();
    let bytes = writer.to_bytes();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();

    let mapped = ModelFile::open(file.path(), &OpenOptions { mmap: true }).unwrap();
    let read = ModelFile::open(file.path(), &OpenOptions::default()).unwrap();
    let memory = open(bytes.clone());
    for model in [&mapped, &read, &memory] {
        model.prefetch("w");
        assert_eq!(model.matrix("w").unwrap(), matrix);
        model.release("w");
        model.release("not there");
        assert_eq!(model.matrix("w").unwrap(), matrix, "after its pages were given back");
        assert_eq!(model.vector("v").unwrap(), [1.0, 2.0]);
        assert_eq!((model.version(), model.file_bytes()), (3, bytes.len() as u64));
        assert_eq!(model.fingerprint().unwrap(), memory.fingerprint().unwrap());
        assert_eq!(model.metadata().str("general.name").unwrap(), Some("tiny"));
    }
    assert_eq!(mapped.path(), file.path());
}

#[test]
fn rows_are_read_in_blocks_and_errors_count_from_the_first() {
    let block = |scale: f32, row: u8| f16::from_f32(scale).to_le_bytes().into_iter().chain([row; 32]);
    let blocks = (0..40).flat_map(|row| block(if row == 33 { f32::NAN } else { 1.0 }, row)).collect();
    let floats = (0..40).flat_map(|row| (if row == 37 { f32::INFINITY } else { row as f32 }).to_le_bytes());
    let mut writer = GgufWriter::new();
    writer.tensor("codes", TensorType::Q8_0, &[32, 40], blocks).unwrap();
    writer.tensor("floats", TensorType::F32, &[1, 40], floats.collect()).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&writer.to_bytes()).unwrap();
    let mut block = WeightMatrix::default();
    for mmap in [true, false] {
        let file = ModelFile::open(file.path(), &OpenOptions { mmap }).unwrap();
        for (name, bad, place) in [("codes", 33, "row 33, group 0"), ("floats", 37, "row 37, column 0")] {
            let tensor = file.rows(name).unwrap();
            for first in (0..bad).step_by(7) {
                let rows = first..bad.min(first + 7);
                tensor.read(rows.clone(), &mut block).unwrap();
                tensor.release(rows.clone());
                assert_eq!(
                    (block.rows(), block.cols(), block.form()),
                    (rows.len(), tensor.cols(), tensor.form())
                );
                let mut values = vec![0.0; tensor.cols()];
                for (at, row) in rows.enumerate() {
                    block.dequantize_row(at, &mut values);
                    assert!(values.iter().all(|&value| value == row as f32), "{name}: row {row}");
                }
            }
            let message = tensor.read(30..40, &mut block).unwrap_err().to_string();
            assert!(message.contains(&format!("tensor `{name}`")) && message.contains(place), "{message}");
        }
    }
}

#[test]
#[should_panic(expected = "rows 1..3 of 2")]
fn rows_behind_the_last_are_the_callers_mistake() {
    let mut writer = GgufWriter::new();
    writer.tensor("codes", TensorType::F32, &[1, 2], vec![0; 8]).unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&writer.to_bytes()).unwrap();
    let file = ModelFile::open(file.path(), &OpenOptions::default()).unwrap();
    // It panics before anything is read.
    let _ = file.rows("codes").unwrap().read(1..3, &mut WeightMatrix::default());
}

/// A file of one vector behind a header that is larger than what is read of it at first.
fn with_a_large_header() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.metadata("general.description", "x".repeat(20 << 20));
    writer.vector("v", &[1.0; 64]).unwrap();
    writer.to_bytes()
}

#[test]
fn a_file_that_is_cut_short_while_it_is_open_is_told() {
    let bytes = with_a_large_header();
    for mmap in [true, false] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let model = ModelFile::open(file.path(), &OpenOptions { mmap }).unwrap();
        assert_eq!(model.vector("v").unwrap(), [1.0; 64]);
        model.check_unchanged().unwrap();
        // One byte less, and then nothing at all, where touching a mapped page would end the process.
        for len in [bytes.len() as u64 - 1, 0] {
            file.as_file().set_len(len).unwrap();
            for error in [model.vector("v").unwrap_err(), model.fingerprint().unwrap_err()] {
                let WeightsError::Changed { file: named, expected, found } = &error else {
                    panic!("{error}")
                };
                assert_eq!((named.as_path(), *expected), (file.path(), bytes.len() as u64));
                assert_eq!(*found, format!("{len} bytes"));
                assert!(error.to_string().contains("changed while it was read"), "{error}");
            }
            assert!(matches!(model.check_unchanged(), Err(WeightsError::Changed { .. })));
        }
    }
}

#[test]
fn a_file_that_is_written_or_grows_while_it_is_open_is_told() {
    let bytes = with_a_large_header();
    for mmap in [true, false] {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        file.as_file().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        let open = || ModelFile::open(file.path(), &OpenOptions { mmap }).unwrap();
        let model = open();
        // The same length, in place: only its time tells.
        std::os::unix::fs::FileExt::write_at(file.as_file(), &bytes[100..], 100).unwrap();
        let error = model.check_unchanged().unwrap_err().to_string();
        assert!(error.contains("changed while it was read") && error.contains("other content"), "{error}");
        let model = open();
        file.as_file().set_len(bytes.len() as u64 + 1).unwrap();
        let error = model.check_unchanged().unwrap_err().to_string();
        assert!(error.contains(&format!("found {} bytes", bytes.len() + 1)), "{error}");
        open().check_unchanged().unwrap();
    }
    open(bytes).check_unchanged().unwrap();
}

#[test]
fn the_fingerprint_changes_with_metadata_and_with_weights() {
    let model = |name: &str, first: f32| {
        let mut writer = GgufWriter::new();
        writer.metadata("general.name", name).vector("v", &[first; 4]).unwrap();
        open(writer.to_bytes()).fingerprint().unwrap()
    };
    assert_eq!(model("a", 1.0), model("a", 1.0));
    assert_ne!(model("a", 1.0), model("b", 1.0));
    assert_ne!(model("a", 1.0), model("a", 2.0));
}

#[test]
fn vectors_of_any_type_are_widened_and_others_are_refused() {
    let mut writer = GgufWriter::new();
    let q8: Vec<u8> = f16::from_f32(0.5).to_le_bytes().into_iter().chain(0..32).collect();
    writer.tensor("q8", TensorType::Q8_0, &[32], q8).unwrap();
    writer.tensor("f16", TensorType::F16, &[1, 1], f16::from_f32(3.5).to_le_bytes().to_vec()).unwrap();
    writer.tensor("cube", TensorType::F32, &[1, 2, 2, 2], vec![0; 32]).unwrap();
    writer.tensor("stack", TensorType::F32, &[1, 2, 2], vec![0; 16]).unwrap();
    writer.tensor("flat", TensorType::F32, &[1, 2, 1], vec![0; 8]).unwrap();
    let file = open(writer.to_bytes());
    assert_eq!(file.vector("q8").unwrap(), (0..32).map(|i| i as f32 / 2.0).collect::<Vec<_>>());
    assert_eq!(file.vector("f16").unwrap(), [3.5]);
    assert_eq!(file.matrix("flat").unwrap().rows(), 2);
    assert_eq!(file.matrix("stack").unwrap().rows(), 4);

    let message = |error: WeightsError| error.to_string();
    let offset = file.tensor("cube").unwrap().offset;
    assert_eq!(
        message(file.matrix("cube").unwrap_err()),
        format!(
            "model.gguf: tensor `cube` at byte {offset}: expected one to three dimensions, found dimensions [1, 2, 2, 2]"
        )
    );
    assert!(matches!(file.vector("flat"), Err(WeightsError::Shape { expected: "one row", .. })));
    assert_eq!(message(file.vector("gone").unwrap_err()), "model.gguf: there is no tensor `gone`");
}

#[test]
fn weights_that_are_not_finite_are_refused_with_their_place() {
    let mut writer = GgufWriter::new();
    writer.vector("nan", &[0.0, f32::NAN]).unwrap();
    let block: Vec<u8> = f16::NAN.to_le_bytes().into_iter().chain([0; 32]).collect();
    writer.tensor("scale", TensorType::Q8_0, &[32], block).unwrap();
    let file = open(writer.to_bytes());
    let message = file.vector("nan").unwrap_err().to_string();
    assert!(message.ends_with("expected finite values, found NaN at row 0, column 1"), "{message}");
    let message = file.matrix("scale").unwrap_err().to_string();
    assert!(message.contains("tensor `scale`") && message.ends_with("group 0 is NaN"), "{message}");
}

/// Rows of MXFP4, a block each, whose exponents and codes are these.
fn mxfp4(blocks: &[(u8, u8)]) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    let bytes = blocks.iter().flat_map(|&(exponent, codes)| std::iter::once(exponent).chain([codes; 16]));
    writer.tensor("w", TensorType::Mxfp4, &[32, blocks.len() as u64], bytes.collect()).unwrap();
    writer.to_bytes()
}

#[test]
fn floats_of_four_bits_are_read_in_blocks_of_rows() {
    // Codes of 3 in the first half of a block, of -6 in the second.
    let blocks: Vec<(u8, u8)> = (0..40).map(|row| (110 + row % 30, 0xf5)).collect();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&mxfp4(&blocks)).unwrap();
    for mmap in [true, false] {
        let file = ModelFile::open(file.path(), &OpenOptions { mmap }).unwrap();
        let (rows, mut block) = (file.rows("w").unwrap(), WeightMatrix::default());
        let form = QuantForm { kind: Codes::E2m1, group: 32, mins: false };
        assert_eq!((rows.form(), rows.row_bytes()), (MatrixForm::Quant(form), 17));
        assert_eq!(rows.form().bytes(40, 32), 40 * 18);
        for first in (0..40).step_by(7) {
            let own = first..40.min(first + 7);
            rows.read(own.clone(), &mut block).unwrap();
            for (at, row) in own.enumerate() {
                let mut values = [0.0; 32];
                block.dequantize_row(at, &mut values);
                let scale = 2f32.powi(i32::from(blocks[row].0) - 127);
                let expected: Vec<f32> = [[3.0 * scale; 16], [-6.0 * scale; 16]].concat();
                assert_eq!(values.as_slice(), expected, "row {row}");
            }
        }
    }
}

#[test]
fn scales_of_four_bit_floats_that_are_not_held_are_named() {
    for (exponent, scale) in [(255, "NaN"), (144, "1.31072e5"), (103, "5.9604645e-8")] {
        let mut blocks = [(127, 0x22); 9];
        blocks[7].0 = exponent;
        let message = open(mxfp4(&blocks)).matrix("w").unwrap_err().to_string();
        let wanted = format!("the scale of row 7, group 0 is {scale}, which f16 does not hold here");
        assert!(
            message.starts_with("model.gguf: tensor `w` at byte ") && message.ends_with(&wanted),
            "{message}"
        );
    }
}

#[test]
fn float_codes_are_not_written() {
    let file = open(mxfp4(&[(127, 0x22)]));
    let mut writer = GgufWriter::new();
    let error = writer.matrix("w", &file.matrix("w").unwrap()).unwrap_err().to_string();
    assert_eq!(error, "tensor `w`: MXFP4 cannot hold this matrix without loss: it cannot be written");
    let error = writer.tensor("w", TensorType::F8E4m3, &[4], vec![0; 4]).unwrap_err().to_string();
    assert_eq!(error, "tensor `w`: GGUF has no type F8_E4M3");
}

#[test]
fn tensors_may_be_listed_in_another_order_than_they_lie() {
    let mut writer = GgufWriter::new();
    writer.vector("first", &[1.0; 8]).unwrap();
    writer.vector("second", &[2.0; 8]).unwrap();
    let mut bytes = writer.to_bytes();
    // Behind a name: how many dimensions, one of 8, the type, the offset.
    let offset_of = |bytes: &[u8], name: &str| {
        let at = bytes.windows(name.len()).position(|found| found == name.as_bytes()).unwrap();
        let offset = at + name.len() + 4 + 8 + 4;
        (offset, <[u8; 8]>::try_from(&bytes[offset..offset + 8]).unwrap())
    };
    let ((first, lies_first), (second, lies_second)) =
        (offset_of(&bytes, "first"), offset_of(&bytes, "second"));
    assert_ne!(lies_first, lies_second);
    bytes[first..first + 8].copy_from_slice(&lies_second);
    bytes[second..second + 8].copy_from_slice(&lies_first);
    let file = open(bytes);
    assert_eq!(file.vector("first").unwrap(), [2.0; 8]);
    assert_eq!(file.vector("second").unwrap(), [1.0; 8]);
}

#[test]
fn version_2_files_are_read() {
    let mut writer = GgufWriter::new();
    writer.metadata("k", 1u32);
    let mut bytes = writer.to_bytes();
    bytes[4] = 2;
    assert_eq!(open(bytes).version(), 2);
}

#[test]
fn five_bits_are_written_when_asked_for() {
    let block: Vec<u8> = f16::ONE.to_le_bytes().into_iter().chain((0..20).map(|i| i * 13)).collect();
    let mut writer = GgufWriter::new();
    writer.tensor("q5", TensorType::Q5_0, &[32, 1], block).unwrap();
    let first = open(writer.to_bytes());
    let WeightMatrix::Quant(matrix) = first.matrix("q5").unwrap() else { panic!("not quantised") };
    assert_eq!(matrix.kind(), Bits::Five.into());
    let mut again = GgufWriter::new();
    again.matrix_as("q5", &matrix, TensorType::Q5_0).unwrap();
    assert_eq!(again.to_bytes(), writer.to_bytes());
    assert!(again.matrix_as("k", &matrix, TensorType::Q6K).is_err());
}

fn array() -> impl Strategy<Value = Array> {
    let leaf = prop_oneof![
        any::<Vec<u8>>().prop_map(Array::U8),
        any::<Vec<i8>>().prop_map(Array::I8),
        any::<Vec<u16>>().prop_map(Array::U16),
        any::<Vec<i16>>().prop_map(Array::I16),
        any::<Vec<u32>>().prop_map(Array::U32),
        any::<Vec<i32>>().prop_map(Array::I32),
        any::<Vec<f32>>().prop_map(Array::F32),
        any::<Vec<bool>>().prop_map(Array::Bool),
        any::<Vec<String>>().prop_map(|strings| Array::String(strings.into_iter().collect())),
        any::<Vec<u64>>().prop_map(Array::U64),
        any::<Vec<i64>>().prop_map(Array::I64),
        any::<Vec<f64>>().prop_map(Array::F64),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| proptest::collection::vec(inner, 0..3).prop_map(Array::Nested))
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<f32>().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(Value::String),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f64>().prop_map(Value::F64),
        array().prop_map(Value::Array),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn metadata_comes_back_in_order(entries in proptest::collection::btree_map("[a-z.]{1,12}", value(), 0..8)) {
        let mut writer = GgufWriter::new();
        for (key, value) in &entries {
            writer.metadata(key, value.clone());
        }
        let file = open(writer.to_bytes());
        let found: Vec<_> = file.metadata().iter().collect();
        let expected: Vec<_> = entries.iter().map(|(key, value)| (key.as_str(), value)).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_bytes_after_the_magic_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let bytes = [b"GGUF\x03\0\0\0".as_slice(), &bytes].concat();
        if let Ok(file) = ModelFile::from_bytes("any.gguf", bytes) {
            file.tensors().iter().for_each(|tensor| drop(file.matrix(&tensor.name)));
        }
    }
}

/// Sum and sum of magnitudes of a tensor's last row, by numpy and `gguf.quants.dequantize`.
const LAST_ROWS: [(&str, &str, f64, f64); 6] = [
    ("smollm2", "token_embd.weight", -0.466220856, 70.8194695),
    ("smollm2", "blk.0.ffn_down.weight", 1.45617676, 160.237091),
    ("gemma3", "token_embd.weight", -0.0373158455, 17.5767741),
    ("gemma3", "blk.0.attn_k.weight", -0.0555725098, 20.6649475),
    ("gemma3", "blk.0.attn_output.weight", 0.589304686, 20.2576575),
    ("gemma3", "blk.0.ffn_down.weight", 0.13615799, 15.9836494),
];

/// Real files, where there are any.
#[test]
fn real_models_decode_to_the_weights_of_an_independent_library() {
    for name in ["smollm2", "gemma3"] {
        let Some(path) = real_models::path(name) else { continue };
        let file = ModelFile::open(&path, &OpenOptions::default()).unwrap();
        for tensor in file.tensors() {
            let matrix = file.matrix(&tensor.name).unwrap();
            assert_eq!((matrix.rows(), matrix.cols()), (tensor.rows(), tensor.cols()));
            file.release(&tensor.name);
        }
        for (_, tensor, sum, magnitude) in LAST_ROWS.into_iter().filter(|row| row.0 == name) {
            let matrix = file.matrix(tensor).unwrap();
            let mut row = vec![0.0; matrix.cols()];
            matrix.dequantize_row(matrix.rows() - 1, &mut row);
            let row: Vec<f64> = row.into_iter().map(f64::from).collect();
            let found = (row.iter().sum::<f64>(), row.iter().map(|value| value.abs()).sum::<f64>());
            // Scales of the K formats are rounded to f16; the others lose nothing.
            let bound = magnitude / 4096.0;
            let close = (found.0 - sum).abs() <= bound && (found.1 - magnitude).abs() <= bound;
            assert!(close, "{name}: {tensor}: {found:?}, expected {:?}", (sum, magnitude));
        }
    }
}

/// The test above again, in processes of their own: it can neither pass unnoticed nor where it was asked for.
#[test]
fn a_real_model_that_is_absent_is_said_last_and_fails_who_asked_for_it() {
    let run = |folder: Option<&str>| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "real_models_decode_to_the_weights_of_an_independent_library"]);
        match folder {
            Some(folder) => command.env("OTTAVA_TEST_MODELS", folder),
            None => command.env_remove("OTTAVA_TEST_MODELS"),
        };
        let output = command.output().unwrap();
        (output.status.success(), [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()))
    };
    let (passed, [_, told]) = run(None);
    let last: Vec<&str> = told.lines().rev().take(2).collect();
    let expected =
        ["smollm2", "gemma3"].map(|name| format!("not run: {name}: no real model (OTTAVA_TEST_MODELS)"));
    assert!(passed && last == expected, "{told}");
    let (passed, [told, _]) = run(Some("nowhere"));
    assert!(!passed && told.contains("nowhere/smollm2.gguf is not there"), "{told}");
}
