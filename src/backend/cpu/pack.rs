//! Weight matrices in the order in which the kernels read them, one for all instruction sets but
//! for the sign of a byte.
//!
//! Rows are cut into panels of 32: two tiles of 16 rows, a lane each. A panel is one stream of
//! groups of 32 columns, each a multiple of 64 bytes:
//!
//! | part | 8 bits | 4 bits | dense |
//! |---|---|---|---|
//! | values | `[kq 8][row 32][k 4]` bytes | `[j 4][row 32][k 4]` bytes, low nibble `kq = j`, high `kq = j + 4` | `[k 32][row 32]` floats |
//! | scales, then mins if any | `[half][row 32]` f16 | the same | none |
//!
//! There are two halves where the canonical group is 16 columns, else one. Signed 8-bit codes are
//! stored plus 128, and on instruction sets whose dot products take signed bytes all 8-bit codes
//! less 128 ([`Lanes::BYTE_BIAS`](super::lanes::Lanes::BYTE_BIAS)). Columns and rows that pad the
//! last group and panel have value 0 or meet activations of 0.

use half::f16;

use super::activations::{GROUP, groups};
use super::lanes::LANES;
use super::memory::Buffer;
use super::pool::Pool;
use crate::backend::BackendError;
use crate::quant::{Bits, DenseMatrix, DenseValues, QuantMatrix, WeightMatrix};

/// Rows of a panel.
pub(super) const PANEL: usize = 2 * LANES;

/// How a packed matrix stores its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Codes, scales and perhaps mins.
    Quant {
        bits: Bits,
        mins: bool,
        /// The canonical group is 16 columns.
        halves: bool,
    },
    F32,
    F16,
    Bf16,
}

impl Layout {
    fn of(matrix: &WeightMatrix) -> Layout {
        match matrix {
            WeightMatrix::Quant(m) => {
                Layout::Quant { bits: m.bits(), mins: m.mins().is_some(), halves: m.group() == 16 }
            }
            WeightMatrix::Dense(m) => match m.values() {
                DenseValues::F32(_) => Layout::F32,
                DenseValues::F16(_) => Layout::F16,
                DenseValues::Bf16(_) => Layout::Bf16,
            },
        }
    }

    /// Bytes of a group of one panel.
    pub(super) const fn group_bytes(self) -> usize {
        match self {
            Layout::Quant { mins, halves, .. } => {
                self.code_bytes() + (1 + mins as usize) * (1 + halves as usize) * PANEL * 2
            }
            _ => self.code_bytes(),
        }
    }

    /// Bytes of its values or codes.
    pub(super) const fn code_bytes(self) -> usize {
        match self {
            Layout::Quant { bits: Bits::Four, .. } => PANEL * GROUP / 2,
            Layout::Quant { bits: Bits::Eight, .. } => PANEL * GROUP,
            Layout::F32 => PANEL * GROUP * 4,
            Layout::F16 | Layout::Bf16 => PANEL * GROUP * 2,
        }
    }

    /// What is subtracted from a stored code, its byte's bias added back.
    pub(super) const fn zero_point(self) -> i32 {
        match self {
            Layout::Quant { bits: Bits::Four, mins: false, .. } => 8,
            Layout::Quant { bits: Bits::Eight, mins: false, .. } => 128,
            _ => 0,
        }
    }
}

/// A packed weight matrix.
#[derive(Debug)]
pub struct Matrix {
    data: Buffer,
    rows: usize,
    cols: usize,
    layout: Layout,
    byte_bias: u8,
}

impl Matrix {
    /// Packs `source` on the pool's threads, 8-bit codes less `byte_bias`.
    pub(super) fn pack(source: &WeightMatrix, byte_bias: u8, pool: &Pool) -> Result<Matrix, BackendError> {
        let (rows, cols, layout) = (source.rows(), source.cols(), Layout::of(source));
        let panel_bytes = groups(cols).saturating_mul(layout.group_bytes());
        let bytes = panel_bytes.saturating_mul(rows.div_ceil(PANEL));
        let mut data = Buffer::zeroed(bytes, "a weight matrix")?;
        let target = Target { source, layout, byte_bias, data: data.as_mut_ptr(), panel_bytes };
        // SAFETY: each chunk writes its own panel of a buffer that holds them all.
        unsafe { pool.run(pack_panel, &target, rows.div_ceil(PANEL)) };
        Ok(Matrix { data, rows, cols, layout, byte_bias })
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    pub(super) fn bytes(&self) -> usize {
        self.data.bytes()
    }

    pub(super) fn as_ptr(&self) -> *const u8 {
        self.data.as_ptr()
    }

    pub(super) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    pub(super) fn panel_bytes(&self) -> usize {
        groups(self.cols) * self.layout.group_bytes()
    }

    /// The values of one row times `factor`, into `out` of `cols` elements.
    pub(super) fn row(&self, row: usize, factor: f32, out: &mut [f32]) {
        let panel = &self.data.as_slice()[row / PANEL * self.panel_bytes()..][..self.panel_bytes()];
        let stream = panel.chunks_exact(self.layout.group_bytes());
        for (group, out) in stream.zip(out.chunks_mut(GROUP)) {
            let view =
                GroupView { bytes: group, layout: self.layout, byte_bias: self.byte_bias, row: row % PANEL };
            for (k, out) in out.iter_mut().enumerate() {
                *out = view.value(k) * factor;
            }
        }
    }
}

/// One row of one group of a panel.
struct GroupView<'a> {
    bytes: &'a [u8],
    layout: Layout,
    byte_bias: u8,
    row: usize,
}

impl GroupView<'_> {
    fn value(&self, k: usize) -> f32 {
        let at = k * PANEL + self.row;
        match self.layout {
            Layout::Quant { bits, mins, halves } => self.dequantised(k, bits, mins, halves),
            Layout::F32 => f32::from_le_bytes(std::array::from_fn(|i| self.bytes[4 * at + i])),
            Layout::F16 => f16::from_bits(self.word(2 * at)).to_f32(),
            Layout::Bf16 => f32::from_bits(u32::from(self.word(2 * at)) << 16),
        }
    }

    fn dequantised(&self, k: usize, bits: Bits, mins: bool, halves: bool) -> f32 {
        let kq = k / 4;
        let code_at = |quad: usize| 4 * (quad * PANEL + self.row) + k % 4;
        let code = match bits {
            Bits::Eight => self.bytes[code_at(kq)].wrapping_add(self.byte_bias),
            Bits::Four => self.bytes[code_at(kq % 4)] >> (kq / 4 * 4) & 15,
        };
        let half = if halves { k / 16 } else { 0 };
        let factor = |set: usize| {
            let at = self.layout.code_bytes() + 2 * ((set + half) * PANEL + self.row);
            f16::from_bits(self.word(at)).to_f32()
        };
        let signed = (i32::from(code) - self.layout.zero_point()) as f32;
        signed * factor(0) + if mins { factor(1 + usize::from(halves)) } else { 0.0 }
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }
}

/// Where packing goes.
struct Target<'a> {
    source: &'a WeightMatrix,
    layout: Layout,
    byte_bias: u8,
    data: *mut u8,
    panel_bytes: usize,
}

// SAFETY: the threads write different panels.
unsafe impl Sync for Target<'_> {}

unsafe fn pack_panel(target: &Target<'_>, panel: usize, _worker: usize) {
    // SAFETY: the buffer holds `panel_bytes` for each panel, and only this chunk writes this one.
    let out = unsafe {
        std::slice::from_raw_parts_mut(target.data.add(panel * target.panel_bytes), target.panel_bytes)
    };
    let rows = panel * PANEL..((panel + 1) * PANEL).min(target.source.rows());
    let group_bytes = target.layout.group_bytes();
    for (lane, row) in rows.enumerate() {
        for (group, out) in out.chunks_exact_mut(group_bytes).enumerate() {
            match target.source {
                WeightMatrix::Quant(m) => pack_codes(m, target, (row, group), lane, out),
                WeightMatrix::Dense(m) => pack_floats(m, (row, group), lane, out),
            }
        }
    }
}

fn pack_codes(
    m: &QuantMatrix,
    target: &Target<'_>,
    (row, group): (usize, usize),
    lane: usize,
    out: &mut [u8],
) {
    let layout = target.layout;
    let (codes, factors) = out.split_at_mut(layout.code_bytes());
    match m.bits() {
        Bits::Eight => {
            let stored = group_codes(m, row, group, layout.zero_point() as u8);
            scatter(codes, lane, &stored.map(|code| code.wrapping_sub(target.byte_bias)));
        }
        Bits::Four => scatter(codes, lane, &group_nibbles(m, row, group, layout.zero_point() as u8)),
    }
    let halves = if m.group() == 16 { 2 } else { 1 };
    for (set, values) in [Some(m.scales()), m.mins()].into_iter().flatten().enumerate() {
        for half in 0..halves {
            let col = group * GROUP + half * 16;
            if col < m.cols() {
                let value = values[row * m.groups_per_row() + col / m.group()];
                let at = 2 * ((set * halves + half) * PANEL + lane);
                factors[at..at + 2].copy_from_slice(&value.to_bits().to_le_bytes());
            }
        }
    }
}

/// Writes a row's bytes, four at a time, into lane `lane` of `[quad][32][4]`.
fn scatter(codes: &mut [u8], lane: usize, row: &[u8]) {
    for (quad, bytes) in codes.chunks_exact_mut(4 * PANEL).zip(row.chunks_exact(4)) {
        quad[4 * lane..4 * lane + 4].copy_from_slice(bytes);
    }
}

/// The codes of 32 columns of 8 bits, as they are stored without a bias, padded with the zero point.
fn group_codes(m: &QuantMatrix, row: usize, group: usize, zero_point: u8) -> [u8; GROUP] {
    let flip = if m.mins().is_none() { 0x80 } else { 0 };
    let mut out = [zero_point; GROUP];
    for (out, code) in out.iter_mut().zip(&m.row_codes(row)[group * GROUP..]) {
        *out = code ^ flip;
    }
    out
}

/// The stored codes of 32 columns of 4 bits: column `i` in the low half of byte `i`, column
/// `i + 16` in its high half, padded with the zero point.
fn group_nibbles(m: &QuantMatrix, row: usize, group: usize, zero_point: u8) -> [u8; GROUP / 2] {
    let mut source = [zero_point * 0x11; GROUP / 2];
    for (to, from) in source.iter_mut().zip(&m.row_codes(row)[group * GROUP / 2..]) {
        *to = *from;
    }
    if m.cols() - group * GROUP < GROUP && !m.cols().is_multiple_of(2) {
        // Half of the row's last byte is no column.
        let last = &mut source[(m.cols() - group * GROUP) / 2];
        *last = *last & 15 | zero_point << 4;
    }
    let mut out = [0; GROUP / 2];
    for j in 0..GROUP / 4 {
        let (low, high) = (source[j], source[j + GROUP / 4]);
        out[2 * j] = low & 15 | high << 4;
        out[2 * j + 1] = low >> 4 | high & 0xf0;
    }
    out
}

fn pack_floats(m: &DenseMatrix, (row, group): (usize, usize), lane: usize, out: &mut [u8]) {
    let start = row * m.cols() + group * GROUP;
    let cols = start..start + (m.cols() - group * GROUP).min(GROUP);
    match m.values() {
        DenseValues::F32(v) => place(bytemuck::cast_slice(&v[cols]), 4, lane, out),
        DenseValues::F16(v) => place(bytemuck::cast_slice(&v[cols]), 2, lane, out),
        DenseValues::Bf16(v) => place(bytemuck::cast_slice(&v[cols]), 2, lane, out),
    }
}

/// Writes a row's elements of `size` bytes into lane `lane` of `[k][32]`.
fn place(row: &[u8], size: usize, lane: usize, out: &mut [u8]) {
    for (value, slots) in row.chunks_exact(size).zip(out.chunks_exact_mut(size * PANEL)) {
        slots[size * lane..size * (lane + 1)].copy_from_slice(value);
    }
}
