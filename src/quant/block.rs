//! Shared code of the GGUF block formats: iteration over blocks, and packing of nibbles.
//!
//! A format file (`q4_0` and its siblings) provides a [`BlockFormat`]: a [`Layout`] and a function that
//! unpacks one block. [`decode`] iterates over the blocks; [`encode`] is its inverse for lossless formats.
//! Blocks never straddle rows, so any range of rows is one contiguous run of blocks.

use half::f16;

use super::{Bits, Codes, QuantError, QuantForm, QuantMatrix, code_bytes_per_row};

/// Elements per block of the K formats.
pub(crate) const SUPER_BLOCK: usize = 256;

/// Canonical layout of one unpacked block.
pub(crate) struct Layout {
    /// Name of the format, for errors.
    pub name: &'static str,
    /// Elements per block.
    pub len: usize,
    /// Type of the canonical codes.
    pub kind: Codes,
    /// Elements per scale.
    pub group: usize,
    /// Whether groups have minima.
    pub mins: bool,
}

impl Layout {
    /// Canonical form of the format's matrices.
    pub const fn form(&self) -> QuantForm {
        QuantForm { kind: self.kind, group: self.group, mins: self.mins }
    }
}

/// A readable block format.
pub(crate) struct BlockFormat {
    pub layout: Layout,
    /// Decodes blocks into all rows of a matrix of the layout's form.
    pub decode: fn(&[u8], &mut QuantMatrix) -> Result<(), QuantError>,
}

/// Output slices for one unpacked block.
pub(crate) struct Groups<'a> {
    /// Canonical codes of the block.
    pub codes: &'a mut [u8],
    /// One scale per group.
    pub scales: &'a mut [f16],
    /// One minimum per group; empty for formats without minima.
    pub mins: &'a mut [f16],
}

/// Input of one packed block.
pub(crate) struct GroupsRef<'a> {
    /// Canonical codes of the block.
    pub codes: &'a [u8],
    /// Scale of a 32-element block.
    pub scale: f16,
    /// Minimum of the block; zero for formats without minima.
    pub min: f16,
}

/// Decodes `blocks` of `BYTES` bytes each into all rows of `into`.
pub(crate) fn decode<const BYTES: usize>(
    layout: &Layout,
    blocks: &[u8],
    into: &mut QuantMatrix,
    unpack: impl Fn(&[u8; BYTES], Groups<'_>),
) -> Result<(), QuantError> {
    debug_assert_eq!(into.form(), layout.form(), "{}", layout.name);
    check_cols(layout, into.cols)?;
    let QuantMatrix { rows, cols, codes, scales, mins, .. } = into;
    super::check_length("blocks", *rows * (*cols / layout.len) * BYTES, blocks.len())?;

    let groups = layout.len / layout.group;
    let mut no_mins = Vec::new();
    let mins = mins.as_mut().unwrap_or(&mut no_mins);
    let mut mins_left = mins.as_mut_slice();
    let min_groups = if layout.mins { groups } else { 0 };
    let parts = codes
        .chunks_exact_mut(code_bytes_per_row(layout.kind, layout.len))
        .zip(scales.chunks_exact_mut(groups));
    for (block, (codes, scales)) in blocks.as_chunks::<BYTES>().0.iter().zip(parts) {
        let (mins, left) = std::mem::take(&mut mins_left).split_at_mut(min_groups);
        mins_left = left;
        unpack(block, Groups { codes, scales, mins });
    }
    check_finite("scale", scales, *cols / layout.group)?;
    check_finite("minimum", mins, *cols / layout.group)
}

/// Encodes `matrix` without loss. Its layout must match the format's, except that codes stored in bytes may
/// have another number of bits: `pack` returns `None` for codes out of range.
pub(crate) fn encode<const BYTES: usize>(
    layout: &Layout,
    matrix: &QuantMatrix,
    pack: impl Fn(GroupsRef<'_>) -> Option<[u8; BYTES]>,
) -> Result<Vec<u8>, QuantError> {
    check_cols(layout, matrix.cols())?;
    let same_codes = match (matrix.kind(), layout.kind) {
        (Codes::Int(found), Codes::Int(own)) => (found == Bits::Four) == (own == Bits::Four),
        (found, own) => found == own,
    };
    let same = same_codes
        && matrix.group() == layout.group
        && matrix.mins().is_some() == layout.mins
        && layout.group == layout.len;
    if !same {
        return Err(QuantError::Inexact { format: layout.name, reason: "another layout of codes or groups" });
    }
    let code_bytes = code_bytes_per_row(layout.kind, layout.len);
    let mut blocks = Vec::with_capacity(matrix.scales().len() * BYTES);
    for (index, codes) in matrix.codes().chunks_exact(code_bytes).enumerate() {
        let min = matrix.mins().map_or(f16::ZERO, |mins| mins[index]);
        let block = pack(GroupsRef { codes, scale: matrix.scales()[index], min })
            .ok_or(QuantError::Inexact { format: layout.name, reason: "a code beyond its range" })?;
        blocks.extend_from_slice(&block);
    }
    Ok(blocks)
}

fn check_cols(layout: &Layout, cols: usize) -> Result<(), QuantError> {
    if cols == 0 || !cols.is_multiple_of(layout.len) {
        return Err(QuantError::Columns { format: layout.name, block: layout.len, cols });
    }
    Ok(())
}

/// Refuses NaN and infinities, which would spread to all values of their group.
fn check_finite(part: &'static str, values: &[f16], per_row: usize) -> Result<(), QuantError> {
    match super::position_in_chunks(values, f16::is_finite) {
        None => Ok(()),
        Some(index) => Err(QuantError::GroupNonFinite {
            part,
            row: index / per_row,
            group: index % per_row,
            value: values[index].to_f32(),
        }),
    }
}

/// A little-endian f16 from two bytes.
pub(crate) fn half(bytes: &[u8]) -> f16 {
    f16::from_le_bytes([bytes[0], bytes[1]])
}

/// `d` times a small integer, rounded to f16.
pub(crate) fn scaled(d: f32, factor: i32) -> f16 {
    f16::from_f32(d * factor as f32)
}

const LOW_NIBBLES: u64 = 0x0f0f_0f0f_0f0f_0f0f;

/// Eight codes below 16, a byte each, as four bytes of two codes each, low nibble first.
pub(crate) fn pack_eight(codes: u64) -> [u8; 4] {
    let pairs = (codes | codes >> 4) & 0x00ff_00ff_00ff_00ff;
    let quads = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    ((quads | quads >> 16) as u32).to_le_bytes()
}

/// Four bytes of two codes each as eight codes, a byte each: the inverse of [`pack_eight`].
pub(crate) fn unpack_eight(packed: [u8; 4]) -> u64 {
    let quads = u64::from(u32::from_le_bytes(packed));
    let pairs = (quads | quads << 16) & 0x0000_ffff_0000_ffff;
    let bytes = (pairs | pairs << 8) & 0x00ff_00ff_00ff_00ff;
    (bytes | bytes << 4) & LOW_NIBBLES
}

/// Converts GGUF's nibble order, where byte `i` of `n` has elements `i` and `i + n`, to adjacent pairs per
/// byte.
///
/// `split` and `packed` have `n` bytes each, a multiple of 8. The codes of the low nibbles come first.
pub(crate) fn repack_nibbles(split: &[u8], packed: &mut [u8]) {
    let (low, high) = packed.split_at_mut(split.len() / 2);
    let outputs = low.as_chunks_mut::<4>().0.iter_mut().zip(high.as_chunks_mut::<4>().0);
    for (bytes, (low, high)) in split.as_chunks::<8>().0.iter().zip(outputs) {
        let bytes = u64::from_le_bytes(*bytes);
        *low = pack_eight(bytes & LOW_NIBBLES);
        *high = pack_eight(bytes >> 4 & LOW_NIBBLES);
    }
}

/// The inverse of [`repack_nibbles`].
pub(crate) fn split_nibbles(packed: &[u8], split: &mut [u8]) {
    let (low, high) = packed.split_at(split.len() / 2);
    let inputs = low.as_chunks::<4>().0.iter().zip(high.as_chunks::<4>().0);
    for (bytes, (low, high)) in split.as_chunks_mut::<8>().0.iter_mut().zip(inputs) {
        *bytes = (unpack_eight(*low) | unpack_eight(*high) << 4).to_le_bytes();
    }
}

/// Unpacks the low nibbles of `split`, then the high ones, to one code per byte; `codes` has twice the
/// length.
pub(crate) fn widen_nibbles(split: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(split.len());
    for (&byte, (low, high)) in split.iter().zip(low.iter_mut().zip(high)) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

/// Sets bit 4 of code `i` where bit `i` of `bits` is set: the fifth bits of Q5_0 and Q5_1.
pub(crate) fn add_fifth_bits(bits: &[u8], codes: &mut [u8]) {
    for (&byte, codes) in bits.iter().zip(codes.as_chunks_mut::<8>().0) {
        *codes = (u64::from_le_bytes(*codes) | spread_bits(byte) << 4).to_le_bytes();
    }
}

/// Moves bit `i` of `bits` to the lowest bit of byte `i`.
fn spread_bits(bits: u8) -> u64 {
    // Byte `i` keeps bit `i` of its copy; adding 127 carries any nonzero value into the top bit.
    let own = (u64::from(bits) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    let low = 0x7f7f_7f7f_7f7f_7f7f;
    (((own & low) + low) | own) >> 7 & 0x0101_0101_0101_0101
}

/// Packs 32 codes below 32 in the order of Q5_0 and Q5_1: four bytes of fifth bits, sixteen bytes of nibbles.
pub(crate) fn pack_five_bits(codes: &[u8; 32], packed: &mut [u8]) {
    let (fifth, nibbles) = packed.split_at_mut(4);
    for (byte, codes) in fifth.iter_mut().zip(codes.as_chunks::<8>().0) {
        *byte = codes.iter().rev().fold(0, |bits, code| bits << 1 | code >> 4 & 1);
    }
    let (low, high) = codes.split_at(16);
    for (byte, (low, high)) in nibbles.iter_mut().zip(low.iter().zip(high)) {
        *byte = low & 15 | (high & 15) << 4;
    }
}

/// The eight 6-bit scales and minima of Q4_K and Q5_K, packed in twelve bytes.
///
/// Bytes 0..4 and 4..8 hold the first four scales and minima in their low six bits. Bytes 8..12 hold the low
/// nibbles of the last four; the upper two bits of these are the top bits of bytes 0..8.
pub(crate) fn six_bit_scales(packed: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for i in 0..4 {
        let (scale, min, low) = (packed[i], packed[i + 4], packed[i + 8]);
        scales[i] = scale & 63;
        mins[i] = min & 63;
        scales[i + 4] = low & 15 | scale >> 6 << 4;
        mins[i + 4] = low >> 4 | min >> 6 << 4;
    }
    (scales, mins)
}

#[cfg(test)]
mod tests {
    use super::super::{MatrixForm, WeightMatrix};
    use super::*;

    #[test]
    fn nibbles_move_as_the_naive_loop_moves_them() {
        let split: Vec<u8> = (0..32u32).map(|i| (i * 37 + 11) as u8).collect();
        let mut packed = [0; 32];
        repack_nibbles(&split, &mut packed);
        for element in 0..64 {
            let naive = split[element % 32] >> (4 * (element / 32)) & 15;
            assert_eq!(packed[element / 2] >> (4 * (element % 2)) & 15, naive, "element {element}");
        }
        let mut back = [0; 32];
        split_nibbles(&packed, &mut back);
        assert_eq!(back.as_slice(), split);
    }

    #[test]
    fn every_byte_of_bits_spreads_bit_by_bit() {
        for bits in 0..=255u8 {
            let expected: [u8; 8] = std::array::from_fn(|i| bits >> i & 1);
            assert_eq!(spread_bits(bits).to_le_bytes(), expected);
        }
    }

    fn q8_0(blocks: &[u8], shape: [usize; 2]) -> Result<(), QuantError> {
        let format = &super::super::q8_0::FORMAT;
        let mut matrix = WeightMatrix::default();
        matrix.reshape(MatrixForm::Quant(format.layout.form()), shape)?;
        let WeightMatrix::Quant(matrix) = &mut matrix else { panic!("not quantised") };
        (format.decode)(blocks, matrix)
    }

    #[test]
    fn a_wrong_length_and_a_partial_block_are_refused() {
        let short = QuantError::Length { part: "blocks", expected: 34, found: 33 };
        assert_eq!(q8_0(&[0; 33], [1, 32]), Err(short));
        let partial = QuantError::Columns { format: "Q8_0", block: 32, cols: 33 };
        assert_eq!(q8_0(&[0; 34], [1, 33]), Err(partial));
        let huge = QuantError::TooLarge { rows: usize::MAX, cols: 32 };
        assert_eq!(q8_0(&[], [usize::MAX, 32]), Err(huge));
    }

    #[test]
    fn a_scale_that_is_not_finite_is_refused_with_its_place() {
        let mut blocks = vec![0; 4 * 34];
        blocks[3 * 34..3 * 34 + 2].copy_from_slice(&f16::INFINITY.to_le_bytes());
        let expected = QuantError::GroupNonFinite { part: "scale", row: 1, group: 1, value: f32::INFINITY };
        assert_eq!(q8_0(&blocks, [2, 64]), Err(expected));
    }
}
