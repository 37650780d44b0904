//! Stored matrices are read back bit by bit; any other file is refused, whatever its contents.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use half::{bf16, f16};

use super::*;
use crate::backend::cpu::{Cpu, CpuOptions};
use crate::backend::{Backend, MatrixShape, PackedFiles};
use crate::quant::{
    DenseMatrix, DenseValues, QuantFormat, QuantMatrix, QuantParts, WeightMatrix, code_bytes_per_row,
    quantize,
};

/// A small matrix of float codes.
fn floats_of(kind: Codes) -> WeightMatrix {
    let codes = (0..33 * code_bytes_per_row(kind, 96)).map(|at| (at % 127) as u8).collect();
    let scales = (0..33 * 3).map(|at| f16::from_f32(at as f32)).collect();
    let parts = QuantParts { rows: 33, cols: 96, kind, group: 32, codes, scales, mins: None };
    WeightMatrix::Quant(QuantMatrix::new(parts).unwrap())
}

/// Matrices stored in a sidecar in a folder of their own.
struct Kept {
    cpu: Cpu,
    folder: tempfile::TempDir,
    shapes: Vec<MatrixShape>,
    matrices: Vec<Matrix>,
}

impl Kept {
    fn new() -> Kept {
        let floats = |rows: usize, cols: usize| {
            (0..rows * cols).map(|i| (i * 7919 % 2003) as f32 / 1000.0 - 1.0).collect::<Vec<f32>>()
        };
        let dense = |rows, cols, values| DenseMatrix::new(rows, cols, values).unwrap();
        let f32s = dense(33, 47, DenseValues::F32(floats(33, 47)));
        let halves = DenseValues::F16(floats(70, 64).iter().map(|&x| f16::from_f32(x)).collect());
        let bf16s = DenseValues::Bf16(floats(1, 32).iter().map(|&x| bf16::from_f32(x)).collect());
        // Of more than one block.
        let large = quantize(&dense(1100, 1024, DenseValues::F32(floats(1100, 1024))), QuantFormat::W8G32);
        let small = quantize(&dense(40, 160, DenseValues::F32(floats(40, 160))), QuantFormat::W4G32);
        let sources = [
            WeightMatrix::Quant(small.unwrap().0),
            WeightMatrix::Dense(f32s),
            WeightMatrix::Quant(large.unwrap().0),
            WeightMatrix::Dense(dense(70, 64, halves)),
            WeightMatrix::Dense(dense(1, 32, bf16s)),
            floats_of(Codes::E2m1),
            floats_of(Codes::E4m3),
        ];
        let options = CpuOptions { threads: NonZeroUsize::new(2), ..CpuOptions::default() };
        let (cpu, folder) = (Cpu::new(&options).unwrap(), tempfile::tempdir().unwrap());
        let shapes =
            sources.iter().map(|m| MatrixShape { rows: m.rows(), cols: m.cols(), form: m.form() }).collect();
        let matrices = sources.iter().map(|matrix| cpu.prepare(matrix).unwrap()).collect();
        let kept = Kept { cpu, folder, shapes, matrices };
        kept.cpu.store(&kept.sidecar(&kept.path()), &kept.matrices).unwrap();
        kept
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("weights.packed")
    }

    fn sidecar<'a>(&'a self, path: &'a Path) -> Sidecar<'a> {
        Sidecar { path, key: [7; 32], shapes: &self.shapes, map: false }
    }

    /// The error for a file with these bytes, or none if it is read back to the same matrices.
    fn refused(&self, bytes: &[u8]) -> Option<String> {
        let path = self.folder.path().join("other.packed");
        std::fs::write(&path, bytes).unwrap();
        let mapped = self.cpu.load(&Sidecar { map: true, ..self.sidecar(&path) });
        match (self.cpu.load(&self.sidecar(&path)), mapped) {
            (Err(why), Err(mapped)) => {
                assert_eq!(why.to_string(), mapped.to_string(), "mapped, the reason is another");
                Some(why.to_string())
            }
            (read, mapped) => {
                let both = [read.unwrap(), mapped.unwrap()];
                assert!(both.iter().all(|matrices| matrices.len() == self.matrices.len()));
                for (restored, packed) in both.iter().flat_map(|one| one.iter().zip(&self.matrices)) {
                    assert!(restored.as_slice() == packed.as_slice(), "{:?}", packed.layout());
                    assert_eq!((restored.rows(), restored.cols()), (packed.rows(), packed.cols()));
                    assert_eq!(restored.layout(), packed.layout());
                    assert_eq!(restored.as_ptr().align_offset(64), 0);
                }
                None
            }
        }
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path()).unwrap()
    }
}

#[test]
fn what_was_kept_comes_back_and_nothing_else_is_left() {
    let kept = Kept::new();
    assert_eq!(kept.refused(&kept.bytes()), None);
    let matrices = kept.cpu.load(&kept.sidecar(&kept.path())).unwrap();
    // Overwriting, truncating, replacing or deleting the file does not affect matrices that were read.
    let bytes = kept.bytes();
    std::fs::write(kept.path(), vec![0xff; bytes.len()]).unwrap();
    std::fs::File::options().write(true).open(kept.path()).unwrap().set_len(3).unwrap();
    kept.cpu.store(&kept.sidecar(&kept.path()), &matrices).unwrap();
    assert!(kept.bytes() == bytes);
    std::fs::remove_file(kept.path()).unwrap();
    for (restored, packed) in matrices.iter().zip(&kept.matrices) {
        assert!(restored.as_slice() == packed.as_slice());
    }
    assert!(kept.cpu.load(&kept.sidecar(&kept.path())).unwrap_err().is_missing());
    let left: Vec<_> =
        std::fs::read_dir(kept.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["other.packed"]);
}

#[test]
fn every_byte_before_the_data_counts() {
    let kept = Kept::new();
    let contents = Contents::of(&kept.sidecar(Path::new("")), kept.cpu.isa().order()).unwrap();
    let mut bytes = kept.bytes();
    assert_eq!((bytes.len(), contents.blocks), (contents.file_bytes, 8));
    for at in 0..contents.head.len() + 4 * contents.blocks {
        for change in [1, 0x80, 0xff] {
            bytes[at] ^= change;
            assert!(kept.refused(&bytes).is_some(), "byte {at} may be another");
            bytes[at] ^= change;
        }
    }
    let why = |at: usize| {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        kept.refused(&bytes).unwrap()
    };
    assert!(why(0).contains("of this version") && why(8).contains("of this version"));
    assert!(why(KEY.start).contains("model file") && why(KEY.end - 1).contains("model file"));
    assert!(why(HEAD_BYTES).contains("matrices"));
    assert!(why(contents.head.len()).contains("damaged"));
    assert_eq!(kept.refused(&bytes), None);
}

#[test]
fn a_flipped_bit_of_the_data_is_found_in_its_block() {
    let kept = Kept::new();
    let contents = Contents::of(&kept.sidecar(Path::new("")), kept.cpu.isa().order()).unwrap();
    let bytes = kept.bytes();
    let large = contents.data_at + contents.records[0].bytes + contents.records[1].bytes;
    let [first, second] = [large, large + BLOCK_BYTES];
    for (at, block) in [(contents.data_at, contents.data_at), (second - 1, first), (second, second)] {
        let mut bytes = bytes.clone();
        bytes[at] ^= 4;
        assert_eq!(kept.refused(&bytes), Some(format!("weights are damaged at byte {block} or behind it")));
    }
    let mut last = bytes.clone();
    *last.last_mut().unwrap() ^= 0x80;
    assert!(kept.refused(&last).unwrap().contains("damaged"));
}

#[test]
fn a_file_that_is_cut_short_while_it_is_read_is_refused() {
    let kept = Kept::new();
    let contents = Contents::of(&kept.sidecar(Path::new("")), kept.cpu.isa().order()).unwrap();
    for left in [0, contents.data_at, contents.file_bytes - 1] {
        kept.cpu.store(&kept.sidecar(&kept.path()), &kept.matrices).unwrap();
        let (file, checksums) = contents.open(&kept.path()).unwrap();
        std::fs::File::options().write(true).open(kept.path()).unwrap().set_len(left as u64).unwrap();
        let refused = contents.read(&file, &checksums, &kept.cpu.pool).unwrap_err();
        assert_eq!(refused.to_string(), LENGTH.to_string(), "{left} bytes left");
    }
}

#[test]
fn files_of_any_other_length_or_content_are_refused() {
    let kept = Kept::new();
    let contents = Contents::of(&kept.sidecar(Path::new("")), kept.cpu.isa().order()).unwrap();
    let bytes = kept.bytes();
    let head = contents.head.len() + 4 * contents.blocks;
    let cuts = (0..=head).chain([contents.data_at - 1, contents.data_at, bytes.len() - 64, bytes.len() - 1]);
    for cut in cuts {
        assert!(kept.refused(&bytes[..cut]).is_some(), "{cut} bytes are enough");
    }
    assert!(kept.refused(&[&bytes[..], b"x"].concat()).is_some());
    // Random bytes after a valid beginning of any length.
    let mut state = 1_u64;
    for round in 0..500 {
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        let mut mutated = bytes[..head + 64].to_vec();
        mutated.truncate(random() % (mutated.len() + 1));
        for _ in 0..1 + random() % 8 {
            let (at, byte) = (random() % mutated.len().max(1), random() as u8);
            mutated.get_mut(at).into_iter().for_each(|slot| *slot = byte);
        }
        mutated.resize(mutated.len() + random() % 200, random() as u8);
        assert!(kept.refused(&mutated).is_some(), "round {round}");
    }
}

#[test]
fn other_weights_and_absurd_shapes_are_refused() {
    let kept = Kept::new();
    let path = kept.path();
    let of = |sidecar: &Sidecar<'_>| kept.cpu.load(sidecar).unwrap_err().to_string();
    assert!(of(&Sidecar { key: [8; 32], ..kept.sidecar(&path) }).contains("model file"));
    // Codes in the order of other instruction sets.
    for other in [Order::Unsigned, Order::Signed, Order::Pairs] {
        let restored = load(&kept.sidecar(&path), other, &kept.cpu.pool);
        let refused = restored.is_err_and(|why| why.to_string().contains("matrices"));
        assert_eq!(refused, other != kept.cpu.isa().order(), "{other:?}");
    }
    let mut shapes = kept.shapes.clone();
    shapes.swap(0, 1);
    assert!(of(&Sidecar { shapes: &shapes, ..kept.sidecar(&path) }).contains("matrices"));
    shapes[0].rows = usize::MAX;
    assert!(of(&Sidecar { shapes: &shapes, ..kept.sidecar(&path) }).contains("counted"));
    assert!(of(&kept.sidecar(kept.folder.path())).contains("regular file"));
}

#[test]
fn where_nothing_can_be_written_nothing_changes() {
    let kept = Kept::new();
    let nowhere = kept.folder.path().join("no-such-folder/weights.packed");
    let error = kept.cpu.store(&kept.sidecar(&nowhere), &kept.matrices).unwrap_err();
    assert!(error.to_string().contains("cannot create"), "{error}");
    // A folder is not replaced by a file.
    let folder = kept.folder.path().join("folder");
    std::fs::create_dir_all(folder.join("full")).unwrap();
    let error = kept.cpu.store(&kept.sidecar(&folder), &kept.matrices).unwrap_err();
    assert!(
        error.to_string().contains("cannot create: expected a regular file, found a directory"),
        "{error}"
    );
    let names: Vec<_> =
        std::fs::read_dir(kept.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().ends_with(".tmp")), "{names:?}");
}
