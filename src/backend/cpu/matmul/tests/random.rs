//! Random inputs of products.

use half::f16;

use super::Format;
use crate::quant::{Bits, Codes, QuantMatrix, QuantParts, code_bytes_per_row};

/// A small generator with a fixed seed, so that failures are reproducible.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 30) as f32 - 1.0
    }

    pub fn vector(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// Activations with rare outliers, an all-zero group and tiny values, as real models have them.
    pub fn activations(&mut self, rows: usize, cols: usize) -> Vec<f32> {
        let mut x = self.vector(rows * cols);
        for (i, value) in x.iter_mut().enumerate() {
            let (row, col) = (i / cols, i % cols);
            *value *= if self.next().is_multiple_of(97) { 300.0 } else { 1.0 };
            *value *= if col < 32 && row % 5 == 1 { 0.0 } else { 1.0 };
            *value *= if row % 7 == 2 { 1e-6 } else { 1.0 };
        }
        x
    }

    pub fn quant(&mut self, rows: usize, cols: usize, (kind, group, mins): Format) -> QuantMatrix {
        let count = rows * cols.div_ceil(group);
        let mut code = || match kind {
            Codes::Int(Bits::Four) | Codes::E2m1 => self.next() as u8,
            Codes::Int(bits) => (bits.codes(mins).start() + (self.next() % (1 << bits.count())) as i32) as u8,
            // All codes except the two NaNs.
            Codes::E4m3 => ((self.next() % 2) << 7) as u8 | (self.next() % 127) as u8,
        };
        let codes = (0..rows * code_bytes_per_row(kind, cols)).map(|_| code()).collect();
        let scales = (0..count).map(|_| f16::from_f32(self.unit() * 0.02)).collect();
        let minimums = (0..count).map(|_| f16::from_f32(self.unit() * 0.1)).collect();
        let mins = mins.then_some(minimums);
        QuantMatrix::new(QuantParts { rows, cols, kind, group, codes, scales, mins }).unwrap()
    }
}
