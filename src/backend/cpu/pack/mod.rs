//! Weight matrices in the order of the kernels' reads. All instruction sets share one layout, except for
//! [`Order`].
//!
//! Rows are cut into panels of 32: two tiles of 16 rows, a lane each. A panel is one stream of groups of 32
//! columns, each a multiple of 64 bytes:
//!
//! | part | codes | 8-bit floats | dense floats |
//! |---|---|---|---|
//! | values | `[line][row 32][k 4]` bytes, a line per bit | `[k 32][row 32]` bytes | `[k 32][row 32]` |
//! | scales, then mins if any | `[half][row 32]` f16 | `[row 32]` f16 | none |
//!
//! There are two halves if the canonical group is 16 columns, otherwise one. The four columns `4 kq ..` of a
//! row are a quad. A line holds a whole quad in its low bits, so most codes need one `and`. The remaining
//! bits hold the other quads. Byte `k` of a quad is stored in byte `k` of its lines:
//!
//! | bits | quads in the low bits of lines | other quads from the top bit down; `L1[7:6]`: bits of line 1 |
//! |---|---|---|
//! | 8 | 0 to 7 | |
//! | 6 | 0, 1, 3; 4, 5, 7 | 2: `L0[7:6]` `L1[7:6]` `L2[7:6]`; 6: `L3[7:6]` `L4[7:6]` `L5[7:6]` |
//! | 5 | 0, 1, 3, 5, 7 | 2: `L0[7:5]` `L1[7:6]`; 4: `L2[7:5]` `L1[5]` `L3[5]`; 6: `L4[7:5]` `L3[7:6]` |
//! | 4 | 0, 2, 4, 6 | 1: `L0[7:4]`; 3: `L1[7:4]`; 5: `L2[7:4]`; 7: `L3[7:4]` |
//!
//! Reading the quads in order needs the lines in order, never more than three at once. Signed codes are
//! stored plus 8, 16, 32 or 128. For instruction sets with signed dot products, 8-bit codes are stored minus
//! 128. 4-bit floats are stored like 4-bit codes but without a zero point; kernels convert them to 5-bit
//! codes with a table. For instruction sets that multiply eight columns at once, rows and quads are permuted
//! before lines are built ([`Order`]).
//!
//! 5-bit codes in groups of 16 are packed as 8 bits, and so are 6-bit codes in any form except groups of 16
//! without mins; no model file has those. Padding has value 0 or is multiplied by zero activations.
//!
//! Packing goes panel by panel. A thread reads 32 rows of the source into its own scratch memory, which stays
//! in L2, and writes their panel from there. So each weight is read once and written once, and pages are
//! first touched by the thread that writes them.

mod activations;
mod layout;
mod lines;
mod record;

use std::sync::{Mutex, PoisonError};

use half::f16;
use lines::{
    five_bits, five_lines, group_codes, group_nibbles, paired, paired_nibbles, paired_quads, six_bits,
    six_lines,
};

use crate::backend::cpu::Compute;
use crate::backend::cpu::isa::Order;
use crate::backend::cpu::memory::{WeightArena, WeightSlice};
use crate::backend::cpu::pool::Pool;
use crate::backend::{MatrixSource, PreparedMatrix};
use crate::quant::{Bits, Codes, DenseValues, QuantMatrix, WeightMatrix, e4m3};
pub(crate) use activations::{Pack, ROWS_PER_CHUNK, sum_of_squares};
pub(crate) use layout::{E2M1_CODES, Layout, PANEL, QUADS, packed_bytes};
pub(crate) use record::{
    Activations, FloatGroup, GROUP, INT8_BYTES, Int8Group, Record, SECOND_BITS, block_len, groups, in_blocks,
    residuals,
};

/// Bytes per chunk: a huge page, so that threads share few of them.
const RUN_BYTES: usize = 2 << 20;

/// A packed weight matrix.
#[derive(Debug)]
pub struct Matrix {
    data: WeightSlice,
    rows: usize,
    cols: usize,
    layout: Layout,
    order: Order,
    compute: Compute,
}

impl PreparedMatrix for Matrix {
    fn bytes(&self) -> usize {
        self.data.bytes()
    }

    fn multiplies_int8(&self) -> bool {
        match self.layout {
            Layout::Quant { kind, .. } => self.compute == Compute::Int8 && kind != Codes::E4m3,
            Layout::F32 | Layout::F16 | Layout::Bf16 => false,
        }
    }
}

impl Matrix {
    /// Packs the rows of `source` on the pool's threads, into memory from `arena`.
    pub(crate) fn pack<S: MatrixSource>(
        source: &S,
        order: Order,
        pool: &Pool,
        arena: &WeightArena,
    ) -> Result<Matrix, S::Error> {
        let (rows, cols, layout) = (source.rows(), source.cols(), Layout::of(source.form()));
        let panel_bytes = groups(cols).saturating_mul(layout.group_bytes());
        let panels = rows.div_ceil(PANEL);
        let mut data = arena.take(panel_bytes.saturating_mul(panels), "a weight matrix")?;
        // Small matrices are divided among the threads, too.
        let run = (RUN_BYTES / panel_bytes.max(1)).min(panels / (4 * pool.threads())).max(1);
        let mut scratch = Vec::new();
        scratch.resize_with(pool.threads(), Mutex::default);
        let failed = Mutex::new(None);
        let job = Packing {
            source,
            layout,
            order,
            data: data.as_mut_ptr(),
            panel_bytes,
            run,
            scratch: &scratch,
            failed: &failed,
        };
        // SAFETY: each chunk writes its own panels of a slice that holds them all.
        unsafe { pool.run(pack_run, &job, panels.div_ceil(run)) };
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, error)) => Err(error),
            None => Ok(Matrix { data, rows, cols, layout, order, compute: Compute::default() }),
        }
    }

    /// A matrix packed earlier: the length of `data` must be [`packed_bytes`].
    pub(crate) fn packed(
        data: WeightSlice,
        [rows, cols]: [usize; 2],
        layout: Layout,
        order: Order,
    ) -> Matrix {
        assert_eq!(Some(data.bytes()), packed_bytes([rows, cols], layout), "a {rows} x {cols} {layout:?}");
        Matrix { data, rows, cols, layout, order, compute: Compute::default() }
    }

    /// Sets the arithmetic of products, if it is not the default.
    pub(crate) fn for_compute(self, compute: Compute) -> Matrix {
        Matrix { compute, ..self }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.data.as_ptr()
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.data.as_slice()
    }

    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    pub(crate) fn panel_bytes(&self) -> usize {
        groups(self.cols) * self.layout.group_bytes()
    }

    /// The values of one row times `factor`, into `out` of `cols` elements.
    pub(crate) fn row(&self, row: usize, factor: f32, out: &mut [f32]) {
        let panel = &self.data.as_slice()[row / PANEL * self.panel_bytes()..][..self.panel_bytes()];
        let stream = panel.chunks_exact(self.layout.group_bytes());
        for (group, out) in stream.zip(out.chunks_mut(GROUP)) {
            let view = GroupView { bytes: group, layout: self.layout, order: self.order, row: row % PANEL };
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
    order: Order,
    row: usize,
}

impl GroupView<'_> {
    fn value(&self, k: usize) -> f32 {
        let at = k * PANEL + self.row;
        match self.layout {
            Layout::Quant { kind, mins, halves } => self.dequantised(k, kind, mins, halves),
            Layout::F32 => f32::from_le_bytes(std::array::from_fn(|i| self.bytes[4 * at + i])),
            Layout::F16 => f16::from_bits(self.word(2 * at)).to_f32(),
            Layout::Bf16 => f32::from_bits(u32::from(self.word(2 * at)) << 16),
        }
    }

    fn dequantised(&self, k: usize, kind: Codes, mins: bool, halves: bool) -> f32 {
        let (row, quad) = if self.order.pairs() { paired(self.row, k / 4) } else { (self.row, k / 4) };
        let line = |line: usize| self.bytes[4 * (line * PANEL + row) + k % 4];
        let nibble = || line(quad / 2) >> (quad % 2 * 4) & 15;
        let signed = |code: u8| (i32::from(code) - self.layout.zero_point()) as f32;
        let code = match kind {
            Codes::Int(Bits::Four) => signed(nibble()),
            Codes::Int(Bits::Five) => signed(five_bits(quad, line)),
            Codes::Int(Bits::Six) => signed(six_bits(quad, line)),
            Codes::Int(Bits::Eight) => signed(line(quad).wrapping_add(self.order.byte_bias())),
            Codes::E2m1 => signed(E2M1_CODES[usize::from(nibble())]),
            Codes::E4m3 => e4m3(self.bytes[k * PANEL + self.row]).to_f32(),
        };
        let half = if halves { k / 16 } else { 0 };
        code * self.factor(half) + if mins { self.factor(1 + usize::from(halves) + half) } else { 0.0 }
    }

    /// Scale or min number `line` after the codes.
    fn factor(&self, line: usize) -> f32 {
        f16::from_bits(self.word(self.layout.code_bytes() + 2 * (line * PANEL + self.row))).to_f32()
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }
}

/// The job of packing a matrix.
struct Packing<'a, S: MatrixSource> {
    source: &'a S,
    layout: Layout,
    order: Order,
    data: *mut u8,
    panel_bytes: usize,
    /// Panels per chunk.
    run: usize,
    /// Per worker: the rows being packed.
    scratch: &'a [Mutex<WeightMatrix>],
    /// The failed panel with the lowest number so far, and its error.
    failed: &'a Mutex<Option<(usize, S::Error)>>,
}

// SAFETY: the threads write different panels; all other fields may be shared.
unsafe impl<S: MatrixSource> Sync for Packing<'_, S> {}

/// Packs the panels of chunk `chunk`.
unsafe fn pack_run<S: MatrixSource>(job: &Packing<'_, S>, chunk: usize, worker: usize) {
    let mut block = job.scratch[worker].lock().unwrap_or_else(PoisonError::into_inner);
    let (rows, first) = (job.source.rows(), chunk * job.run);
    for panel in first..(first + job.run).min(rows.div_ceil(PANEL)) {
        let rows = panel * PANEL..((panel + 1) * PANEL).min(rows);
        if let Err(error) = job.source.read(rows, &mut block) {
            let mut failed = job.failed.lock().unwrap_or_else(PoisonError::into_inner);
            if failed.as_ref().is_none_or(|(earlier, _)| panel < *earlier) {
                *failed = Some((panel, error));
            }
            return;
        }
        // SAFETY: the slice holds `panel_bytes` for each panel, and only this chunk writes this one.
        let out =
            unsafe { std::slice::from_raw_parts_mut(job.data.add(panel * job.panel_bytes), job.panel_bytes) };
        pack_panel(&block, job.layout, job.order, out);
    }
}

/// Packs up to 32 rows into a zeroed panel.
fn pack_panel(block: &WeightMatrix, layout: Layout, order: Order, panel: &mut [u8]) {
    let streams = panel.chunks_exact_mut(layout.group_bytes()).enumerate();
    match block {
        WeightMatrix::Quant(m) => {
            streams.for_each(|(group, out)| pack_group(m, layout, order, group, out));
        }
        WeightMatrix::Dense(m) => streams.for_each(|(group, out)| match m.values() {
            DenseValues::F32(values) => by_column(values, m.cols(), group, bytemuck::cast_slice_mut(out)),
            DenseValues::F16(values) => by_column(values, m.cols(), group, bytemuck::cast_slice_mut(out)),
            DenseValues::Bf16(values) => by_column(values, m.cols(), group, bytemuck::cast_slice_mut(out)),
        }),
    }
}

fn pack_group(m: &QuantMatrix, layout: Layout, order: Order, group: usize, out: &mut [u8]) {
    let (codes, factors) = out.split_at_mut(layout.code_bytes());
    let (rows, padding) = (m.rows(), layout.padding());
    let flip = match layout {
        Layout::Quant { kind: Codes::Int(Bits::Eight), .. } => padding ^ order.byte_bias(),
        _ => padding,
    };
    let quads = |row| group_codes(m, row, group, flip);
    let nibbles = |row| group_nibbles(m, row, group, padding);
    // Decided here, not per row, so that a row's codes can stay in vector registers.
    if m.kind() == Codes::E4m3 {
        by_column(m.codes(), m.cols(), group, codes);
    } else if order.pairs() {
        let quads = |row| paired_quads(row, |row| if row < rows { quads(row) } else { Default::default() });
        let nibbles =
            |row| paired_nibbles(row, |row| if row < rows { nibbles(row) } else { Default::default() });
        pack_codes(codes, layout, rows.next_multiple_of(4), quads, nibbles);
    } else {
        pack_codes(codes, layout, rows, quads, nibbles);
    }
    // Two canonical groups of 16 columns; the second may begin after the row's end.
    let halves = if matches!(layout, Layout::Quant { halves: true, .. }) { 2 } else { 1 };
    let mut lines = factors.as_chunks_mut::<{ 2 * PANEL }>().0.iter_mut();
    for values in [Some(m.scales()), m.mins()].into_iter().flatten() {
        for (half, line) in (0..halves).zip(&mut lines) {
            let col = group * GROUP + half * 16;
            if col < m.cols() {
                pack_factors(values, m.groups_per_row(), col / m.group(), line);
            }
        }
    }
}

/// Packs a group's codes. `quads` returns the codes of a row, or `nibbles` for 4-bit codes.
fn pack_codes(
    out: &mut [u8],
    layout: Layout,
    rows: usize,
    quads: impl Fn(usize) -> [[u8; 4]; QUADS],
    nibbles: impl Fn(usize) -> [[u8; 4]; QUADS / 2],
) {
    match layout {
        Layout::Quant { kind: Codes::Int(Bits::Four) | Codes::E2m1, .. } => transpose(out, rows, nibbles),
        Layout::Quant { kind: Codes::Int(Bits::Five), .. } => {
            transpose(out, rows, |row| five_lines(quads(row)));
        }
        Layout::Quant { kind: Codes::Int(Bits::Six), .. } => {
            transpose(out, rows, |row| six_lines(quads(row)))
        }
        _ => transpose(out, rows, quads),
    }
}

/// Writes scale or min number `index` of all rows.
fn pack_factors(values: &[f16], groups_per_row: usize, index: usize, line: &mut [u8; 2 * PANEL]) {
    let rows = values.chunks_exact(groups_per_row);
    for (slot, row) in line.as_chunks_mut::<2>().0.iter_mut().zip(rows) {
        *slot = row[index].to_bits().to_le_bytes();
    }
}

/// Writes rows of `Q` quads as `[quad][row 32][4]`, with zeros for missing rows. Writes are sequential, line
/// by line; `row` is called once per row.
fn transpose<const Q: usize>(out: &mut [u8], rows: usize, row: impl Fn(usize) -> [[u8; 4]; Q]) {
    let mut tile = [[[0; 4]; Q]; PANEL];
    for (index, slot) in tile.iter_mut().take(rows).enumerate() {
        *slot = row(index);
    }
    for (quad, line) in (0..Q).zip(out.as_chunks_mut::<{ 4 * PANEL }>().0) {
        for (slot, row) in line.as_chunks_mut::<4>().0.iter_mut().zip(&tile) {
            *slot = row[quad];
        }
    }
}

/// Writes the values of a group's columns as `[column][row 32]`.
fn by_column<T: Copy>(values: &[T], cols: usize, group: usize, out: &mut [T]) {
    let own = group * GROUP..cols.min((group + 1) * GROUP);
    for (line, col) in out.chunks_exact_mut(PANEL).zip(own) {
        for (slot, row) in line.iter_mut().zip(values.chunks_exact(cols)) {
            *slot = row[col];
        }
    }
}

#[cfg(test)]
mod tests;
