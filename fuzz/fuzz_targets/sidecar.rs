//! Files of packed weights with random changes, for matrices of random shapes: mapped and used, or refused
//! with a typed error.

#![no_main]

#[path = "../shared/files.rs"]
mod files;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use ottava::backend::cpu::{Cpu, CpuOptions};
use ottava::backend::{Backend, MatrixShape, PackedFiles, PreparedMatrix, Sidecar};
use ottava::quant::{DenseMatrix, DenseValues, QuantFormat, WeightMatrix, quantize};

/// A matrix that is kept in the file, and one that is looked for in it.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq)]
struct Shape {
    rows: u8,
    cols: u8,
    form: u8,
}

#[derive(Arbitrary, Debug)]
struct Input {
    kept: Vec<Shape>,
    /// Where nothing else is said, those that were kept.
    wanted: Option<Vec<Shape>>,
    other_key: bool,
    map: bool,
    /// Bytes that are another: place and value.
    bytes: Vec<(u32, u8)>,
    cut: Option<u32>,
    appended: u8,
}

static CPU: LazyLock<Cpu> = LazyLock::new(|| {
    let options = CpuOptions { threads: NonZeroUsize::new(1), ..CpuOptions::default() };
    Cpu::new(&options).expect("a backend")
});
static PATH: LazyLock<PathBuf> = LazyLock::new(|| files::path("weights.packed"));

impl Shape {
    fn matrix(self) -> WeightMatrix {
        let (rows, cols) = (usize::from(self.rows % 70) + 1, usize::from(self.cols % 140) + 1);
        let values = DenseValues::F32((0..rows * cols).map(|at| (at % 31) as f32 - 15.0).collect());
        let dense = DenseMatrix::new(rows, cols, values).expect("a matrix");
        let format: Option<QuantFormat> = match self.form % 4 {
            0 => None,
            1 => Some(QuantFormat::W8G32),
            2 => Some(QuantFormat::W4G32),
            _ => "w6g16m".parse().ok(),
        };
        match format {
            Some(format) => WeightMatrix::Quant(quantize(&dense, format).expect("small values").0),
            None => WeightMatrix::Dense(dense),
        }
    }
}

fn shape(matrix: &WeightMatrix) -> MatrixShape {
    MatrixShape { rows: matrix.rows(), cols: matrix.cols(), form: matrix.form() }
}

fuzz_target!(|input: Input| {
    let kept: Vec<WeightMatrix> = input.kept.iter().take(4).map(|shape| shape.matrix()).collect();
    let shapes: Vec<MatrixShape> = kept.iter().map(shape).collect();
    let prepared: Vec<_> = kept.iter().map(|matrix| CPU.prepare(matrix).expect("prepared")).collect();
    let sidecar = Sidecar { path: &PATH, key: [7; 32], shapes: &shapes, map: input.map };
    CPU.store(&sidecar, &prepared).expect("kept");
    let mut bytes = std::fs::read(&*PATH).expect("the file");
    for &(place, value) in input.bytes.iter().take(8) {
        let place = place as usize % bytes.len();
        bytes[place] = value;
    }
    bytes.truncate(input.cut.map_or(bytes.len(), |cut| cut as usize % (bytes.len() + 1)));
    bytes.resize(bytes.len() + usize::from(input.appended % 4), 0);
    std::fs::write(&*PATH, &bytes).expect("written");
    let wanted =
        input.wanted.as_ref().map(|wanted| wanted.iter().take(4).map(|s| shape(&s.matrix())).collect());
    let wanted: Vec<MatrixShape> = wanted.unwrap_or_else(|| shapes.clone());
    let key = if input.other_key { [8; 32] } else { [7; 32] };
    if let Ok(matrices) = CPU.load(&Sidecar { path: &PATH, key, shapes: &wanted, map: input.map }) {
        assert!(!input.other_key && wanted == shapes && matrices.len() == wanted.len());
        for (restored, prepared) in matrices.iter().zip(&prepared) {
            assert_eq!(restored.bytes(), prepared.bytes());
        }
    }
});
