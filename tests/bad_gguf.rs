//! Broken GGUF files: each is refused with the error that names what is wrong, mapped, read or in
//! memory, and no truncation or flipped bit of a sound file ends in a panic.

mod peak_memory;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use ottava::checkpoint::{
    Checkpoint, Fault, GgufWriter, ModelFile, OpenOptions, TensorType, Value, WeightsError,
};

/// A GGUF file as a list of fields, so that each can be broken.
struct Raw(Vec<u8>);

impl Raw {
    fn header(version: u32, tensors: u64, entries: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(version).u64(tensors).u64(entries)
    }

    fn u32(self, value: u32) -> Raw {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Raw {
        self.bytes(&value.to_le_bytes())
    }

    fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend_from_slice(bytes);
        self
    }

    fn string(self, text: &[u8]) -> Raw {
        self.u64(text.len() as u64).bytes(text)
    }

    /// A metadata entry up to its value.
    fn entry(self, key: &[u8], value_type: u32) -> Raw {
        self.string(key).u32(value_type)
    }

    fn tensor(self, name: &[u8], dims: &[u64], number: u32, offset: u64) -> Raw {
        let raw = self.string(name).u32(dims.len() as u32);
        dims.iter().fold(raw, |raw, &dim| raw.u64(dim)).u32(number).u64(offset)
    }

    /// Pads to the alignment and adds `bytes` of data.
    fn data(mut self, bytes: usize) -> Raw {
        self.0.resize(self.0.len().next_multiple_of(32) + bytes, 0);
        self
    }
}

struct Case {
    name: &'static str,
    file: Vec<u8>,
    offset: u64,
    fault: Fault,
}

/// Where metadata, or the tensor table of a file without metadata, starts.
const BODY: u64 = 24;
/// Space for one entry or tensor more than the counts need, so that a count is not what is refused.
const SLACK: usize = 64;

fn case(name: &'static str, file: Raw, offset: u64, fault: Fault) -> Case {
    Case { name, file: file.0, offset, fault }
}

fn header_cases() -> Vec<Case> {
    let version = |found| Fault::Version { found };
    let raw = |bytes: &[u8]| Raw(bytes.to_vec());
    let truncated = |what, needed, left| Fault::Truncated { what, needed, left };
    let count = |what, found, most| Fault::Count { what, found, most };
    vec![
        case("empty file", raw(b""), 0, Fault::Magic { found: vec![] }),
        case("part of the magic", raw(b"GGU"), 0, Fault::Magic { found: b"GGU".to_vec() }),
        case("magic only", raw(b"GGUF"), 4, truncated("version", 4, 0)),
        case("older format", raw(b"ggml").u32(3), 0, Fault::Magic { found: b"ggml".to_vec() }),
        case("a zip file", raw(b"PK\x03\x04").data(64), 0, Fault::Magic { found: b"PK\x03\x04".to_vec() }),
        case("version 0", Raw::header(0, 0, 0), 4, version(0)),
        case("version 1", Raw::header(1, 0, 0), 4, version(1)),
        case("version 4", Raw::header(4, 0, 0), 4, version(4)),
        case("version 99", Raw::header(99, 0, 0), 4, version(99)),
        case("version of all ones", Raw::header(u32::MAX, 0, 0), 4, version(u32::MAX)),
        case("big-endian", Raw::header(3u32.swap_bytes(), 0, 0), 4, Fault::BigEndian { version: 3 }),
        case("no tensor count", raw(b"GGUF").u32(3), 8, truncated("tensor count", 8, 0)),
        case(
            "half a metadata count",
            raw(b"GGUF").u32(3).u64(0).u32(0),
            16,
            truncated("metadata count", 8, 4),
        ),
        case("tensors beyond the file", Raw::header(3, 1, 0), 8, count("tensors", 1, 0)),
        // An entry takes 33 bytes at least, one of metadata 14.
        case("tensors, a byte too many", Raw::header(3, 2, 0).bytes(&[0; 65]), 8, count("tensors", 2, 1)),
        case(
            "entries, a byte too many",
            Raw::header(3, 0, 2).bytes(&[0; 27]),
            16,
            count("metadata entries", 2, 1),
        ),
        case("2^64 - 1 tensors", Raw::header(3, u64::MAX, 0), 8, count("tensors", u64::MAX, 0)),
        case("entries beyond the file", Raw::header(3, 0, 3).data(20), 16, count("metadata entries", 3, 2)),
        case("2^63 entries", Raw::header(3, 0, 1 << 63).data(64), 16, count("metadata entries", 1 << 63, 5)),
    ]
}

fn one_entry() -> Raw {
    Raw::header(3, 0, 1)
}

#[expect(clippy::too_many_lines, reason = "a table, a row a case")]
fn metadata_cases() -> Vec<Case> {
    let key = || "k".to_owned();
    // Key length, key, value type: the value starts here.
    let value = BODY + 8 + 1 + 4;
    let deep = (0..5).fold(one_entry().entry(b"k", 9), |raw, _| raw.u32(9).u64(1)).data(SLACK);
    let alignment =
        |value_type, value: u32| one_entry().entry(b"general.alignment", value_type).u32(value).data(SLACK);
    let bad_alignment = |found: &str| Fault::Alignment { found: found.to_owned() };
    let length = |found, left| Fault::StringLength { key: key(), found, left };
    let array = |found, most| Fault::ArrayLength { key: key(), found, most };
    vec![
        case(
            "key of length 0",
            one_entry().entry(b"", 4).data(SLACK),
            BODY,
            Fault::KeyLength { found: 0, most: 65_535 },
        ),
        case(
            "key of 65536 bytes",
            one_entry().string(&[b'k'; 65_536]).data(SLACK),
            BODY,
            Fault::KeyLength { found: 65_536, most: 65_535 },
        ),
        case(
            "key of 2^64 - 1 bytes",
            one_entry().u64(u64::MAX).data(SLACK),
            BODY,
            Fault::KeyLength { found: u64::MAX, most: 65_535 },
        ),
        case(
            "key beyond the file",
            one_entry().u64(100).bytes(b"key of entry"),
            BODY + 8,
            Fault::Truncated { what: "metadata key", needed: 100, left: 12 },
        ),
        case(
            "key that is not UTF-8",
            one_entry().entry(b"k\xff", 4).data(SLACK),
            BODY,
            Fault::KeyText { found: b"k\xff".to_vec() },
        ),
        case(
            "duplicate key",
            Raw::header(3, 0, 2).entry(b"k", 4).u32(1).entry(b"k", 8).string(b"").data(SLACK),
            BODY + 8 + 1 + 4 + 4,
            Fault::DuplicateKey { key: key() },
        ),
        case(
            "unknown value type",
            one_entry().entry(b"k", 13).data(SLACK),
            value - 4,
            Fault::ValueType { key: key(), found: 13 },
        ),
        case(
            "unknown element type",
            one_entry().entry(b"k", 9).u32(77).u64(0).data(SLACK),
            value,
            Fault::ValueType { key: key(), found: 77 },
        ),
        case(
            "value cut short",
            one_entry().entry(b"k", 10).bytes(b"1234567"),
            value,
            Fault::Truncated { what: "metadata value", needed: 8, left: 7 },
        ),
        case(
            "boolean of 2",
            one_entry().entry(b"k", 7).bytes(&[2]).data(SLACK),
            value,
            Fault::Boolean { key: key(), found: 2 },
        ),
        case(
            "boolean of 255 in an array",
            one_entry().entry(b"k", 9).u32(7).u64(2).bytes(&[1, 255]).data(SLACK),
            value + 13,
            Fault::Boolean { key: key(), found: 255 },
        ),
        case(
            "string beyond the file",
            one_entry().entry(b"k", 8).u64(9).bytes(b"8 bytes."),
            value,
            length(9, 8),
        ),
        case(
            "string of 2^64 - 1 bytes",
            one_entry().entry(b"k", 8).u64(u64::MAX).u64(0),
            value,
            length(u64::MAX, 8),
        ),
        case(
            "string that is not UTF-8",
            one_entry().entry(b"k", 8).string(b"ab\xc3").data(SLACK),
            value,
            Fault::StringText { key: key(), bad: 2 },
        ),
        case(
            "second string of an array beyond the file",
            one_entry().entry(b"k", 9).u32(8).u64(2).string(b"a").u64(5).bytes(b"bcd"),
            value + 12 + 9,
            length(5, 3),
        ),
        case(
            "array beyond the file",
            one_entry().entry(b"k", 9).u32(4).u64(3).bytes(&[0; 11]),
            value + 4,
            array(3, 2),
        ),
        case(
            "array of u16 beyond the file",
            one_entry().entry(b"k", 9).u32(2).u64(3).bytes(&[0; 5]),
            value + 4,
            array(3, 2),
        ),
        case(
            "array of u64 beyond the file",
            one_entry().entry(b"k", 9).u32(10).u64(3).bytes(&[0; 23]),
            value + 4,
            array(3, 2),
        ),
        case(
            "array of arrays beyond the file",
            one_entry().entry(b"k", 9).u32(9).u64(3).bytes(&[0; 35]),
            value + 4,
            array(3, 2),
        ),
        case(
            "array of 2^61 elements, whose bytes overflow",
            one_entry().entry(b"k", 9).u32(12).u64(1 << 61).u64(0),
            value + 4,
            array(1 << 61, 1),
        ),
        case(
            "array of 2^40 strings",
            one_entry().entry(b"k", 9).u32(8).u64(1 << 40).u64(0).u64(0),
            value + 4,
            array(1 << 40, 2),
        ),
        case(
            "array of 2^40 arrays",
            one_entry().entry(b"k", 9).u32(9).u64(1 << 40).bytes(&[0; 25]),
            value + 4,
            array(1 << 40, 2),
        ),
        case("arrays five deep", deep, value + 4 * 12, Fault::Nesting { key: key(), most: 4 }),
        case("alignment 0", alignment(4, 0), BODY, bad_alignment("0")),
        case("alignment 3", alignment(4, 3), BODY, bad_alignment("3")),
        case("alignment 48", alignment(4, 48), BODY, bad_alignment("48")),
        case("alignment as i32", alignment(5, 32), BODY, bad_alignment("i32")),
        case(
            "alignment as text",
            one_entry().entry(b"general.alignment", 8).string(b"32").data(SLACK),
            BODY,
            bad_alignment("string"),
        ),
        case(
            "one part of three",
            Raw::header(3, 0, 2)
                .entry(b"split.no", 2)
                .bytes(&[1, 0])
                .entry(b"split.count", 2)
                .bytes(&[3, 0])
                .data(SLACK),
            0,
            Fault::Split { part: 2, count: 3 },
        ),
        case(
            "first of two entries ends the file",
            Raw::header(3, 0, 2).entry(b"k", 8).string(b"a string of some length"),
            BODY + 8 + 1 + 4 + 8 + 23,
            Fault::Truncated { what: "metadata key length", needed: 8, left: 0 },
        ),
    ]
}

/// One F32 tensor of 8 elements called `t`, with the given shape, type and offset.
fn one_tensor(dims: &[u64], number: u32, offset: u64) -> Raw {
    Raw::header(3, 1, 0).tensor(b"t", dims, number, offset).data(32)
}

#[expect(clippy::too_many_lines, reason = "a table, a row a case")]
fn tensor_cases() -> Vec<Case> {
    let tensor = || "t".to_owned();
    let unsupported = |found| Fault::UnsupportedType { tensor: tensor(), found };
    let too_large = |dims: &[u64]| Fault::TooLarge { tensor: tensor(), dims: dims.to_vec() };
    let zero = |dims: &[u64]| Fault::ZeroDimension { tensor: tensor(), dims: dims.to_vec() };
    let outside = |found, bytes, available| Fault::Outside { tensor: tensor(), found, bytes, available };
    let partial = |dtype, cols| Fault::PartialBlock { tensor: tensor(), dtype, cols };
    let misaligned = |found| Fault::Misaligned { tensor: tensor(), alignment: 32, found };
    let entry = 8 + 1 + 4 + 8 + 4 + 8;
    let two = |second: &[u8], offset| {
        Raw::header(3, 2, 0).tensor(b"t", &[16], 0, 0).tensor(second, &[8], 0, offset).data(96)
    };
    let count = |found: u32| Raw::header(3, 1, 0).string(b"t").u32(found).u64(8).u32(0).u64(0).data(SLACK);
    vec![
        case(
            "name of length 0",
            Raw::header(3, 1, 0).tensor(b"", &[8], 0, 0).data(SLACK),
            BODY,
            Fault::NameLength { found: 0, most: 64 },
        ),
        case(
            "name of 65 bytes",
            Raw::header(3, 1, 0).tensor(&[b'n'; 65], &[8], 0, 0).data(SLACK),
            BODY,
            Fault::NameLength { found: 65, most: 64 },
        ),
        case(
            "name beyond the file",
            Raw::header(3, 1, 0).u64(64).bytes(&[b'n'; 40]),
            BODY + 8,
            Fault::Truncated { what: "tensor name", needed: 64, left: 40 },
        ),
        case(
            "name that is not UTF-8",
            Raw::header(3, 1, 0).tensor(b"\x80", &[8], 0, 0).data(SLACK),
            BODY,
            Fault::NameText { found: b"\x80".to_vec() },
        ),
        case("duplicate name", two(b"t", 64), BODY + entry, Fault::DuplicateTensor { tensor: tensor() }),
        case("no dimension", count(0), BODY, Fault::Dimensions { tensor: tensor(), found: 0 }),
        case("five dimensions", count(5), BODY, Fault::Dimensions { tensor: tensor(), found: 5 }),
        case(
            "2^32 - 1 dimensions",
            count(u32::MAX),
            BODY,
            Fault::Dimensions { tensor: tensor(), found: u32::MAX },
        ),
        case("zero columns", one_tensor(&[0, 8], 0, 0), BODY, zero(&[0, 8])),
        case("zero rows", one_tensor(&[8, 0], 0, 0), BODY, zero(&[8, 0])),
        case(
            "zero after a product that overflows",
            one_tensor(&[1 << 40, 1 << 40, 0], 0, 0),
            BODY,
            zero(&[1 << 40, 1 << 40, 0]),
        ),
        case("product of 2^64", one_tensor(&[1 << 32, 1 << 32], 0, 0), BODY, too_large(&[1 << 32, 1 << 32])),
        case(
            "product of four that overflows",
            one_tensor(&[1 << 20, 1 << 20, 1 << 20, 1 << 20], 8, 0),
            BODY,
            too_large(&[1 << 20; 4]),
        ),
        case("bytes that overflow", one_tensor(&[1 << 62], 0, 0), BODY, too_large(&[1 << 62])),
        case("elements beyond the address space", one_tensor(&[1 << 63], 1, 0), BODY, too_large(&[1 << 63])),
        case("type IQ3_S", one_tensor(&[256], 21, 0), BODY, unsupported("IQ3_S")),
        case("type TQ1_0", one_tensor(&[256], 34, 0), BODY, unsupported("TQ1_0")),
        case("type NVFP4", one_tensor(&[64], 40, 0), BODY, unsupported("NVFP4")),
        case("type F64", one_tensor(&[4], 28, 0), BODY, unsupported("F64")),
        case("type Q8_1", one_tensor(&[32], 9, 0), BODY, unsupported("Q8_1")),
        case("withdrawn type 4", one_tensor(&[32], 4, 0), BODY, unsupported("Q4_2")),
        case(
            "type 1000",
            one_tensor(&[8], 1000, 0),
            BODY,
            Fault::UnknownType { tensor: tensor(), found: 1000 },
        ),
        case("33 columns of Q8_0", one_tensor(&[33], 8, 0), BODY, partial(TensorType::Q8_0, 33)),
        case("128 columns of Q4_K", one_tensor(&[128, 2], 12, 0), BODY, partial(TensorType::Q4K, 128)),
        case("offset 4", one_tensor(&[7], 0, 4), BODY, misaligned(4)),
        case("offset 2^64 - 1", one_tensor(&[8], 0, u64::MAX), BODY, misaligned(u64::MAX)),
        case("offset at the end of the data", one_tensor(&[8], 0, 32), BODY, outside(32, 32, 32)),
        case("offset far beyond the file", one_tensor(&[8], 0, 1 << 40), BODY, outside(1 << 40, 32, 32)),
        case(
            "offset whose end overflows",
            one_tensor(&[8], 0, u64::MAX - 31),
            BODY,
            outside(u64::MAX - 31, 32, 32),
        ),
        case("one element too many", one_tensor(&[9], 0, 0), BODY, outside(0, 36, 32)),
        case("a tensor of 2^50 bytes", one_tensor(&[1 << 48], 0, 0), BODY, outside(0, 1 << 50, 32)),
        case("no data at all", Raw::header(3, 1, 0).tensor(b"t", &[8], 0, 0), BODY, outside(0, 32, 0)),
        case(
            "the same place twice",
            two(b"u", 0),
            BODY + entry,
            Fault::Overlap { tensor: "u".to_owned(), other: tensor() },
        ),
        case(
            "a place inside another tensor",
            two(b"u", 32),
            BODY + entry,
            Fault::Overlap { tensor: "u".to_owned(), other: tensor() },
        ),
        case(
            "cut in the second entry",
            Raw::header(3, 2, 0).tensor(b"t", &[8, 1, 1, 1], 0, 0).u64(1).bytes(b"u"),
            BODY + entry + 24 + 9,
            Fault::Truncated { what: "tensor dimension count", needed: 4, left: 0 },
        ),
    ]
}

fn all_cases() -> Vec<Case> {
    [header_cases(), metadata_cases(), tensor_cases()].into_iter().flatten().collect()
}

/// Every way in: from memory, mapped, read.
fn open_all(name: &str, bytes: &[u8]) -> Vec<Result<ModelFile, WeightsError>> {
    let mut file = tempfile::Builder::new().prefix(name).suffix(".gguf").tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let open = |mmap| ModelFile::open(file.path(), &OpenOptions { mmap });
    vec![ModelFile::from_bytes(name, bytes.to_vec()), open(true), open(false)]
}

#[test]
fn every_broken_file_is_refused_with_its_own_error() {
    let cases = all_cases();
    assert!(cases.len() >= 75, "only {} kinds", cases.len());
    for Case { name, file, offset: expected_offset, fault: expected } in cases {
        for result in open_all("bad", &file) {
            match result {
                Err(WeightsError::Malformed { file, offset, fault }) => {
                    assert_eq!((offset, &fault), (expected_offset, &expected), "{name}");
                    assert!(file.to_string_lossy().contains("bad"), "{name}: {}", file.display());
                }
                Err(other) => panic!("{name}: {other}"),
                Ok(_) => panic!("{name}: opened"),
            }
        }
    }
}

#[test]
fn every_message_names_the_file_the_place_and_what_was_found() {
    let message = |case: Case| ModelFile::from_bytes("bad.gguf", case.file).err().unwrap().to_string();
    for case in all_cases() {
        let (name, place) = (case.name, format!("bad.gguf: at byte {}: ", case.offset));
        let message = message(case);
        assert!(message.starts_with(&place), "{name}: {message}");
        assert!(message.len() > place.len() + 10 && !message.contains('\n'), "{name}: {message}");
    }
    let named = |name: &str| all_cases().into_iter().find(|case| case.name == name).unwrap();
    assert_eq!(
        message(named("33 columns of Q8_0")),
        "bad.gguf: at byte 24: tensor `t`: Q8_0 needs rows of a multiple of 32 elements, found 33"
    );
    assert_eq!(
        message(named("a zip file")),
        "bad.gguf: at byte 0: expected the magic bytes \"GGUF\", found \"PK\\x03\\x04\""
    );
}

#[test]
fn a_description_that_is_not_utf_8_is_no_reason_to_refuse() -> Result<(), WeightsError> {
    let file = Raw::header(3, 0, 2).entry(b"general.description", 8).string(b"ab\xc3");
    let file = file.entry(b"general.tags", 9).u32(8).u64(2).string(b"\xff").string(b"c").data(SLACK);
    let file = ModelFile::from_bytes("model.gguf", file.0)?;
    assert_eq!(file.metadata().str("general.description")?, Some("ab\u{fffd}"));
    let tags = file.metadata().strings("general.tags")?.expect("a list");
    assert_eq!(tags.iter().collect::<Vec<_>>(), ["\u{fffd}", "c"]);
    for key in ["general.architecture", "general.type", "a"] {
        let file = Raw::header(3, 0, 1).entry(key.as_bytes(), 8).string(b"ab\xc3").data(SLACK);
        let error = ModelFile::from_bytes("model.gguf", file.0).err().expect(key).to_string();
        assert!(error.contains("expected UTF-8, found a bad byte at 2"), "{error}");
    }
    Ok(())
}

#[test]
fn names_of_cases_are_unique() {
    let mut names: Vec<_> = all_cases().into_iter().map(|case| case.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all_cases().len());
}

#[test]
fn a_file_that_is_not_there_and_a_folder_are_input_errors() {
    for mmap in [true, false] {
        let options = OpenOptions { mmap };
        let missing = ModelFile::open(Path::new("no/such/model.gguf"), &options).err().unwrap();
        assert!(matches!(&missing, WeightsError::Io { action: "open", .. }), "{missing}");
        assert!(missing.to_string().starts_with("no/such/model.gguf: cannot open: "), "{missing}");
        let folder = ModelFile::open(Path::new("."), &options).err().unwrap();
        assert!(matches!(&folder, WeightsError::Io { action: "open", .. }), "{folder}");
        assert!(folder.to_string().ends_with("expected a regular file, found a directory"), "{folder}");
        #[cfg(unix)]
        for (path, found) in [("/dev/null", "a character device"), ("/dev/zero", "a character device")] {
            let device = ModelFile::open(Path::new(path), &options).err().unwrap().to_string();
            assert!(device.starts_with(path) && device.ends_with(found), "{device}");
        }
    }
}

/// A sound file with every value type, several tensor types and an array in an array.
fn sound() -> Vec<u8> {
    use ottava::checkpoint::Array;
    let mut writer = GgufWriter::new();
    writer
        .metadata("general.alignment", 64u32)
        .metadata("u8", 1u8)
        .metadata("i16", -2i16)
        .metadata("f32", 0.5f32)
        .metadata("f64", 0.25f64)
        .metadata("bool", true)
        .metadata("text", "naïve")
        .metadata("i64", -7i64)
        .metadata("tokens", vec!["a".to_owned(), "b".to_owned()])
        .metadata("scores", vec![0.0f32, -1.0])
        .metadata("flags", vec![true, false])
        .metadata("nested", Value::Array(Array::Nested(vec![Array::U16(vec![1, 2])])));
    writer.vector("norm", &[1.0, 2.0, 3.0]).unwrap();
    for dtype in TensorType::all() {
        let cols = dtype.block_len() as u64;
        writer.tensor(dtype.name(), dtype, &[cols, 2], vec![0x11; 2 * dtype.block_bytes()]).unwrap();
    }
    writer.to_bytes()
}

/// Opens the file and touches everything in it.
fn use_up(bytes: Vec<u8>) -> Result<usize, WeightsError> {
    let file = ModelFile::from_bytes("sound.gguf", bytes)?;
    let values = file.metadata().iter().count();
    file.fingerprint().unwrap();
    for tensor in file.tensors() {
        // The data of a flipped file may be unsound: a typed error is as good as a matrix.
        let _ = (file.matrix(&tensor.name), file.vector(&tensor.name));
    }
    Ok(values + file.tensors().len())
}

#[test]
fn a_file_cut_at_any_byte_never_panics() {
    let bytes = sound();
    assert_eq!(use_up(bytes.clone()).unwrap(), 12 + 17);
    let last = ModelFile::from_bytes("sound.gguf", bytes.clone()).unwrap();
    let needed = last.tensors().iter().map(|tensor| tensor.offset + tensor.bytes).max().unwrap() as usize;
    for len in 0..bytes.len() {
        let result = catch_unwind(|| use_up(bytes[..len].to_vec()))
            .unwrap_or_else(|_| panic!("panicked when cut to {len} bytes"));
        // Nothing but the padding after the last tensor can be spared.
        assert_eq!(result.is_ok(), len >= needed, "cut to {len} of {} bytes", bytes.len());
    }
}

#[test]
fn a_file_with_any_bit_of_its_header_flipped_never_panics() {
    let bytes = sound();
    let file = ModelFile::from_bytes("sound.gguf", bytes.clone()).unwrap();
    let header = file.tensors().iter().map(|tensor| tensor.offset).min().unwrap() as usize;
    let mut refused = 0;
    for bit in 0..8 * header {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let result = catch_unwind(AssertUnwindSafe(|| use_up(flipped)))
            .unwrap_or_else(|_| panic!("panicked with bit {bit} flipped"));
        refused += usize::from(result.is_err());
    }
    // Most bits are counts, lengths, types and offsets; the rest are names and values.
    assert!(refused > 8 * header / 4, "only {refused} of {} flips were refused", 8 * header);
}

/// Bytes that opening the file takes at its peak, besides the file.
fn peak_of_opening(bytes: Vec<u8>) -> usize {
    peak_memory::peak_of(|| drop(ModelFile::from_bytes("any.gguf", bytes))).1
}

#[test]
fn memory_is_bounded_by_the_size_of_the_file() {
    // The smallest entries there are, which cost the most for each byte of the file.
    let empty_strings = one_entry().entry(b"k", 9).u32(8).u64(50_000).bytes(&vec![0; 400_000]);
    let empty_arrays = one_entry().entry(b"k", 9).u32(9).u64(50_000).bytes(&vec![0; 600_000]);
    let entries = (0..20_000u32)
        .fold(Raw::header(3, 0, 20_000), |raw, i| raw.entry(format!("{i:x}").as_bytes(), 0).bytes(&[0]));
    let tensors = (0..20_000u64)
        .fold(Raw::header(3, 20_000, 0), |raw, i| raw.tensor(format!("{i:x}").as_bytes(), &[1], 0, 32 * i));
    let mut files = vec![
        ("empty strings", empty_strings.0),
        ("empty arrays", empty_arrays.0),
        ("entries", entries.0),
        ("tensors", tensors.data(20_000 * 32).0),
    ];
    files.extend(all_cases().into_iter().map(|case| (case.name, case.file)));
    for (name, file) in files {
        let (len, most) = (file.len(), 16 * file.len() + 4096);
        let peak = peak_of_opening(file);
        assert!(peak <= most, "{name}: {peak} bytes for a file of {len}");
    }
}
