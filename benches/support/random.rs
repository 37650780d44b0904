//! Random numbers, and matrices of them: the same on every machine.

use half::f16;
use ottava::quant::{Bits, QuantMatrix, QuantParts, code_bytes_per_row};

/// A linear congruential generator (Knuth's MMIX constants), of which the high bits are used.
pub struct Random(pub u64);

/// How a quantised matrix keeps its elements.
#[derive(Clone, Copy)]
pub struct Codes {
    pub bits: Bits,
    pub group: usize,
    pub mins: bool,
}

impl Codes {
    pub const Q4_0: Codes = Codes { bits: Bits::Four, group: 32, mins: false };
    /// Q4_K's, too: its scales are multiplied out.
    pub const Q4_1: Codes = Codes { bits: Bits::Four, group: 32, mins: true };
    pub const Q5_0: Codes = Codes { bits: Bits::Five, group: 32, mins: false };
    pub const Q6_K: Codes = Codes { bits: Bits::Six, group: 16, mins: false };
    pub const Q8_0: Codes = Codes { bits: Bits::Eight, group: 32, mins: false };
    pub const W8G128: Codes = Codes { bits: Bits::Eight, group: 128, mins: false };
}

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// From -1 to 1.
    pub fn unit(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 31) as f32 - 1.0
    }

    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..n.div_ceil(4)).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(n);
        bytes
    }

    /// Elements around 0 with a variance near `1 / cols`: a product is about as large as its source.
    pub fn matrix(&mut self, rows: usize, cols: usize, codes: Codes) -> QuantMatrix {
        let Codes { bits, group, mins } = codes;
        // Unsigned 4-bit codes without minimums stand for -8 to 7.
        let (spread, mean) = match bits {
            Bits::Four => (4.6, 7.5),
            Bits::Five => (9.2, 0.0),
            Bits::Six => (18.5, 0.0),
            Bits::Eight => (73.9, 0.0),
        };
        let size = 1.0 / (spread * (cols as f32).sqrt());
        let mut codes = self.bytes(rows * code_bytes_per_row(bits.into(), cols));
        if bits != Bits::Four {
            let (low, last) = (*bits.codes(mins).start() as u8, (1 << bits.count()) - 1);
            codes.iter_mut().for_each(|code| *code = low.wrapping_add(*code & last as u8));
        }
        let scales: Vec<f32> =
            (0..rows * cols.div_ceil(group)).map(|_| size * (1.0 + self.unit() / 2.0)).collect();
        let minimum = |&scale: &f32| f16::from_f32(-mean * scale);
        let mins = mins.then(|| scales.iter().map(minimum).collect());
        let scales = scales.into_iter().map(f16::from_f32).collect();
        QuantMatrix::new(QuantParts { rows, cols, kind: bits.into(), group, codes, scales, mins })
            .expect("a valid shape")
    }
}
