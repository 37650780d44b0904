//! A snapshot is whole or refused: tests with every cut and every flipped bit of a small file.

use super::format::{Decoded, HASH_BYTES, HEAD_BYTES};
use super::*;
use crate::ir::KvDtype;

const LAYOUT: KvLayout = KvLayout { layers: 1, kv_heads: 1, head_dim: 2, dtype: KvDtype::F16 };
const FINGERPRINT: [u8; 32] = [0x5a; 32];

fn header() -> SnapshotHeader {
    SnapshotHeader {
        fingerprint: FINGERPRINT,
        layout: LAYOUT,
        window: Some(Window { window: 9, sinks: 2 }),
        tokens: (0..40).map(|id| TokenId(id * 1001)).collect(),
        starts: vec![0, 32],
        state: (0..10).collect(),
    }
}

type Exported = Result<(), Box<dyn std::error::Error + Send + Sync>>;

fn export(index: usize, out: &mut Vec<u8>) -> Exported {
    out.extend((0..LAYOUT.page_bytes()).map(|byte| (byte * 7 + index * 31) as u8));
    Ok(())
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("seq.kv");
    (folder, path)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn saved() -> Vec<u8> {
    let (_folder, path) = folder();
    save(&path, &header(), export).unwrap();
    std::fs::read(path).unwrap()
}

fn decode(bytes: &[u8], file_bytes: u64) -> Result<Decoded, Fault> {
    Body::open(bytes, file_bytes)?.read()
}

fn decoded(bytes: &[u8]) -> Result<Decoded, String> {
    decode(bytes, bytes.len() as u64).map_err(|fault| match fault {
        Fault::Io(error) => format!("io {error}"),
        Fault::Content(error) => error.to_string(),
    })
}

/// The saved file with other content at `at`, and a checksum that fits it.
fn forged(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = saved();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    let content = file.len() - HASH_BYTES;
    let hash = blake3::hash(&file[..content]);
    file[content..].copy_from_slice(hash.as_bytes());
    file
}

#[test]
fn what_was_saved_is_loaded_and_nothing_is_left_beside_it() {
    let (folder, path) = folder();
    save(&path, &header(), |_, out| export(9, out)).unwrap();
    save(&path, &header(), export).unwrap();
    let snapshot = load(&path, &FINGERPRINT, &LAYOUT).unwrap();
    assert_eq!(snapshot.header, header());
    let pages: Vec<&[u8]> = snapshot.pages().collect();
    assert_eq!(pages.len(), 2);
    for (index, page) in pages.into_iter().enumerate() {
        let mut expected = Vec::new();
        export(index, &mut expected).unwrap();
        assert_eq!(page, expected);
    }
    assert_eq!(names(folder.path()), ["seq.kv"]);
}

#[test]
fn a_failed_save_leaves_the_old_file_and_nothing_else() {
    let (folder, path) = folder();
    save(&path, &header(), export).unwrap();
    let fail = |page, out: &mut Vec<u8>| {
        if page == 1 { Err("the device is gone".into()) } else { export(page, out) }
    };
    let error = save(&path, &header(), fail).unwrap_err();
    assert_eq!(error.to_string(), "snapshot: page 1 of the sequence: the device is gone");
    let short = |_, out: &mut Vec<u8>| -> Exported {
        out.push(1);
        Ok(())
    };
    assert!(matches!(save(&path, &header(), short), Err(SnapshotError::Malformed(_))));
    assert_eq!(load(&path, &FINGERPRINT, &LAYOUT).unwrap().header, header());
    assert_eq!(names(folder.path()), ["seq.kv"]);
    let nowhere = folder.path().join("no/seq.kv");
    assert!(matches!(save(&nowhere, &header(), export), Err(SnapshotError::Io { .. })));
    assert!(matches!(save(Path::new("/"), &header(), export), Err(SnapshotError::Io { .. })));
    assert!(matches!(load(&nowhere, &FINGERPRINT, &LAYOUT), Err(SnapshotError::Io { .. })));
}

#[test]
fn what_is_no_regular_file_is_neither_read_nor_replaced() {
    let (folder, path) = folder();
    std::fs::create_dir(&path).unwrap();
    let read = load(&path, &FINGERPRINT, &LAYOUT).unwrap_err().to_string();
    let written = save(&path, &header(), export).unwrap_err().to_string();
    for error in [read, written] {
        assert!(error.contains("seq.kv") && error.contains("found a directory"), "{error}");
    }
    assert_eq!(names(folder.path()), ["seq.kv"]);
}

#[test]
fn every_truncation_is_refused() {
    let file = saved();
    assert!(decoded(&file).is_ok());
    for len in 0..file.len() {
        let message = decoded(&file[..len]).err().unwrap_or_else(|| panic!("{len} bytes were taken"));
        assert!(message.contains(&format!("{len} bytes, expected")), "{message}");
        // A file that shrinks after its size was read.
        let shrunk = decode(&file[..len], file.len() as u64);
        assert!(matches!(shrunk, Err(Fault::Io(_))), "{len}");
    }
    assert!(decoded(&[&file[..], &[0]].concat()).is_err());
}

#[test]
fn every_flipped_bit_is_refused() {
    let (_folder, path) = folder();
    let file = saved();
    for bit in 0..8 * file.len() {
        let mut flipped = file.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(decoded(&flipped).is_err(), "bit {} of byte {}", bit % 8, bit / 8);
        if bit % 97 == 0 {
            std::fs::write(&path, &flipped).unwrap();
            assert!(load(&path, &FINGERPRINT, &LAYOUT).is_err());
        }
    }
}

#[test]
fn each_fault_has_its_name() {
    let (_folder, path) = folder();
    let load_bytes = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        load(&path, &FINGERPRINT, &LAYOUT).unwrap_err()
    };
    let field = |index: usize, value: u64| load_bytes(&forged(8 + 8 * index, &value.to_le_bytes()));
    let mut flipped = saved();
    *flipped.last_mut().unwrap() ^= 1;
    assert!(matches!(load_bytes(&flipped), SnapshotError::Checksum { .. }));
    assert!(matches!(load_bytes(&forged(0, b"GGUF")), SnapshotError::NotASnapshot));
    assert!(matches!(field(0, 1), SnapshotError::Version { found: 1 }));
    assert!(matches!(load_bytes(&forged(104, &[1])), SnapshotError::Fingerprint { .. }));
    assert!(matches!(field(1, 2), SnapshotError::Layout { .. }));
    assert!(matches!(field(4, 1), SnapshotError::Layout { .. }));
    assert!(matches!(field(4, 2), SnapshotError::Malformed(_)));
    assert!(matches!(field(5, 32), SnapshotError::Malformed(_)));
    assert!(matches!(field(1, u64::MAX), SnapshotError::Malformed(_)));
    for huge in [u64::MAX, u64::MAX / 4, 1 << 40, 1 << 62] {
        for index in [6, 9, 10, 11] {
            assert!(matches!(field(index, huge), SnapshotError::Length { .. }), "{index}");
        }
    }
    for start in [33u32, 48, 0] {
        let second = HEAD_BYTES + 4 * 40 + 4;
        assert!(matches!(load_bytes(&forged(second, &start.to_le_bytes())), SnapshotError::Malformed(_)));
    }
}

#[test]
fn a_header_that_contradicts_itself_is_not_written() {
    let (folder, path) = folder();
    let cases = [
        SnapshotHeader { tokens: Vec::new(), ..header() },
        SnapshotHeader { starts: vec![32, 0], ..header() },
        SnapshotHeader { starts: vec![0, 8], ..header() },
        SnapshotHeader { starts: vec![0, 48], ..header() },
        SnapshotHeader { window: Some(Window { window: 0, sinks: 4 }), ..header() },
    ];
    for case in cases {
        assert!(matches!(save(&path, &case, export), Err(SnapshotError::Malformed(_))), "{case:?}");
    }
    assert!(names(folder.path()).is_empty());
}
