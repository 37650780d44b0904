//! The lines of a group: writing a row's codes into them and reading them back. The table in the
//! documentation of `pack` gives the position of each code.

use super::{GROUP, QUADS};
use crate::quant::QuantMatrix;

/// The codes of 32 columns, one byte each, with the bits of `flip` inverted. Missing columns get the code of
/// value 0. Inverting a code's top bit adds or subtracts the zero point; the caller masks bits above the
/// code.
#[inline]
pub(super) fn group_codes(m: &QuantMatrix, row: usize, group: usize, flip: u8) -> [[u8; 4]; QUADS] {
    let codes = &m.row_codes(row)[group * GROUP..];
    let mut out = [flip; GROUP];
    let flipped = |(out, code): (&mut u8, &u8)| *out = code ^ flip;
    // A whole group has a constant length, which lets the compiler vectorise the loop.
    match codes.first_chunk::<GROUP>() {
        Some(codes) => out.iter_mut().zip(codes).for_each(flipped),
        None => out.iter_mut().zip(codes).for_each(flipped),
    }
    bytemuck::cast(out)
}

/// The lines of 32 5-bit codes.
#[inline]
pub(super) fn five_lines(quads: [[u8; 4]; QUADS]) -> [[u8; 4]; 5] {
    let q = quads.map(|quad| u32::from_ne_bytes(quad) & 0x1f1f_1f1f);
    let (one, two) = (0x0101_0101, 0x0303_0303);
    [
        q[0] | q[2] << 3 & 0xe0e0_e0e0,
        q[1] | (q[2] & two) << 6 | (q[4] >> 1 & one) << 5,
        q[3] | q[4] << 3 & 0xe0e0_e0e0,
        q[5] | (q[6] & two) << 6 | (q[4] & one) << 5,
        q[7] | q[6] << 3 & 0xe0e0_e0e0,
    ]
    .map(u32::to_ne_bytes)
}

/// The lines of 32 6-bit codes.
#[inline]
pub(super) fn six_lines(quads: [[u8; 4]; QUADS]) -> [[u8; 4]; 6] {
    let q = quads.map(|quad| u32::from_ne_bytes(quad) & 0x3f3f_3f3f);
    let top = |codes: u32| codes & 0xc0c0_c0c0;
    [
        q[0] | top(q[2] << 2),
        q[1] | top(q[2] << 4),
        q[3] | top(q[2] << 6),
        q[4] | top(q[6] << 2),
        q[5] | top(q[6] << 4),
        q[7] | top(q[6] << 6),
    ]
    .map(u32::to_ne_bytes)
}

/// The lines of 32 4-bit codes, padded with the zero point.
#[inline]
pub(super) fn group_nibbles(
    m: &QuantMatrix,
    row: usize,
    group: usize,
    zero_point: u8,
) -> [[u8; 4]; QUADS / 2] {
    let codes = &m.row_codes(row)[group * GROUP / 2..];
    let mut source = [zero_point * 0x11; GROUP / 2];
    match codes.first_chunk() {
        Some(codes) => source = *codes,
        None => source.iter_mut().zip(codes).for_each(|(to, from)| *to = *from),
    }
    if m.cols() - group * GROUP < GROUP && !m.cols().is_multiple_of(2) {
        // The row's last byte holds one column only.
        let last = &mut source[(m.cols() - group * GROUP) / 2];
        *last = *last & 15 | zero_point << 4;
    }
    // In a row, adjacent codes share a byte. Here the first four of eight codes are the low nibbles.
    bytemuck::cast::<_, [[u8; 4]; QUADS / 2]>(source).map(|pairs| {
        let pairs = u32::from_le_bytes(pairs);
        let pairs = pairs & 0xff00_00ff | (pairs & 0x00ff_0000) >> 8 | (pairs & 0x0000_ff00) << 8;
        (pairs & 0xf00f_f00f | (pairs & 0x0f00_0f00) >> 4 | (pairs & 0x00f0_00f0) << 4).to_le_bytes()
    })
}

/// The 5-bit code of quad `kq`.
pub(super) fn five_bits(kq: usize, line: impl Fn(usize) -> u8) -> u8 {
    match kq {
        2 => line(0) >> 5 << 2 | line(1) >> 6,
        4 => line(2) >> 5 << 2 | (line(1) >> 5 & 1) << 1 | line(3) >> 5 & 1,
        6 => line(4) >> 5 << 2 | line(3) >> 6,
        _ => line(kq.div_ceil(2)) & 31,
    }
}

/// The 6-bit code of quad `kq`.
pub(super) fn six_bits(kq: usize, line: impl Fn(usize) -> u8) -> u8 {
    let first = kq / 4 * 3;
    match kq % 4 {
        2 => line(first) >> 6 << 4 | line(first + 1) >> 6 << 2 | line(first + 2) >> 6,
        quad => line(first + quad.min(2)) & 63,
    }
}

/// The position of quad `quad` of row `row` in [`Order::Pairs`](crate::backend::cpu::isa::Order), as the row
/// and quad that it replaces.
pub(super) fn paired(row: usize, quad: usize) -> (usize, usize) {
    let (four, of_four) = (row / 4 * 4, row % 4);
    (four + of_four % 2 * 2 + quad % 2, quad / 2 * 2 + of_four / 2)
}

/// The quads stored in the positions of row `row` in [`Order::Pairs`](crate::backend::cpu::isa::Order).
pub(super) fn paired_quads(row: usize, of: impl Fn(usize) -> [[u8; 4]; QUADS]) -> [[u8; 4]; QUADS] {
    let rows = paired_rows(row).map(of);
    std::array::from_fn(|quad| rows[quad % 2][quad / 2 * 2 + row % 2])
}

/// [`paired_quads`] for 4-bit codes.
pub(super) fn paired_nibbles(row: usize, of: impl Fn(usize) -> [[u8; 4]; QUADS / 2]) -> [[u8; 4]; QUADS / 2] {
    let [even, odd] = paired_rows(row).map(of);
    let nibble = |byte: u8| byte >> (row % 2 * 4) & 15;
    std::array::from_fn(|line| std::array::from_fn(|k| nibble(even[line][k]) | nibble(odd[line][k]) << 4))
}

/// The two rows whose quads alternate in the positions of row `row`; even quads come from the first one.
fn paired_rows(row: usize) -> [usize; 2] {
    let first = row / 4 * 4 + row % 4 / 2;
    [first, first + 2]
}
