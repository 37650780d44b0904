//! Tensor types and the entries of the tensor table.

use std::fmt;

/// Storage format of a tensor's elements. Only supported types are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// 4 bits, symmetric, blocks of 32.
    Q4_0,
    /// 4 bits with minima, blocks of 32.
    Q4_1,
    /// 5 bits, symmetric, blocks of 32.
    Q5_0,
    /// 5 bits with minima, blocks of 32.
    Q5_1,
    /// 8 bits, blocks of 32.
    Q8_0,
    /// 2 bits with minima, blocks of 256.
    Q2K,
    /// 3 bits, blocks of 256.
    Q3K,
    /// 4 bits with minima, blocks of 256.
    Q4K,
    /// 5 bits with minima, blocks of 256.
    Q5K,
    /// 6 bits, blocks of 256.
    Q6K,
    /// 4-bit codes into a table of sixteen non-uniform values, blocks of 32.
    Iq4Nl,
    /// 4-bit codes into the table of IQ4_NL, blocks of 256.
    Iq4Xs,
    /// MXFP4: 4-bit floats (E2M1) with a shared exponent, blocks of 32.
    Mxfp4,
    /// 8-bit floats (E4M3) with a separate tensor of scales. Only in Hugging Face folders.
    F8E4m3,
    /// 4-bit floats (E2M1, NVFP4), two per byte, with a separate tensor of scales. Only in Hugging Face
    /// folders.
    F4E2m1,
}

/// GGUF type number, type, name, elements per block, bytes per block.
const TYPES: [Row; 18] = [
    (Some(0), TensorType::F32, "F32", 1, 4),
    (Some(1), TensorType::F16, "F16", 1, 2),
    (Some(2), TensorType::Q4_0, "Q4_0", 32, 18),
    (Some(3), TensorType::Q4_1, "Q4_1", 32, 20),
    (Some(6), TensorType::Q5_0, "Q5_0", 32, 22),
    (Some(7), TensorType::Q5_1, "Q5_1", 32, 24),
    (Some(8), TensorType::Q8_0, "Q8_0", 32, 34),
    (Some(10), TensorType::Q2K, "Q2_K", 256, 84),
    (Some(11), TensorType::Q3K, "Q3_K", 256, 110),
    (Some(12), TensorType::Q4K, "Q4_K", 256, 144),
    (Some(13), TensorType::Q5K, "Q5_K", 256, 176),
    (Some(14), TensorType::Q6K, "Q6_K", 256, 210),
    (Some(20), TensorType::Iq4Nl, "IQ4_NL", 32, 18),
    (Some(23), TensorType::Iq4Xs, "IQ4_XS", 256, 136),
    (Some(30), TensorType::Bf16, "BF16", 1, 2),
    (Some(39), TensorType::Mxfp4, "MXFP4", 32, 17),
    (None, TensorType::F8E4m3, "F8_E4M3", 1, 1),
    (None, TensorType::F4E2m1, "F4_E2M1", 2, 1),
];
type Row = (Option<u32>, TensorType, &'static str, usize, usize);

/// GGUF types that are known by name but not supported; some were withdrawn from the format.
const UNSUPPORTED: [(u32, &str); 26] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

/// Result of looking up a type number.
pub(super) enum TypeNumber {
    Supported(TensorType),
    Unsupported(&'static str),
    Unknown,
}

pub(super) fn type_from_number(number: u32) -> TypeNumber {
    if let Some(row) = TYPES.iter().find(|row| row.0 == Some(number)) {
        return TypeNumber::Supported(row.1);
    }
    match UNSUPPORTED.iter().find(|row| row.0 == number) {
        Some(row) => TypeNumber::Unsupported(row.1),
        None => TypeNumber::Unknown,
    }
}

impl TensorType {
    /// All supported GGUF types, ordered by number.
    pub fn all() -> impl Iterator<Item = TensorType> {
        TYPES.iter().filter(|row| row.0.is_some()).map(|row| row.1)
    }

    fn row(self) -> &'static Row {
        TYPES.iter().find(|row| row.1 == self).unwrap_or(&TYPES[0])
    }

    /// GGUF type number; `None` for types that GGUF does not have.
    pub fn number(self) -> Option<u32> {
        self.row().0
    }

    /// Name in the format: "F32", "Q4_K".
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Elements per block; 1 for F32, F16 and BF16.
    pub fn block_len(self) -> usize {
        self.row().3
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.row().4
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An entry of the tensor table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Tensor name: "blk.0.attn_q.weight".
    pub name: String,
    /// Storage format of the elements.
    pub dtype: TensorType,
    /// One to four nonzero dimensions, fastest first: `[cols, rows, ..]`.
    pub dims: Vec<u64>,
    /// Byte offset of the data from the start of the file.
    pub offset: u64,
    /// Length of the data in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Number of rows: the product of all dimensions but the first.
    pub fn rows(&self) -> usize {
        self.dims.iter().skip(1).product::<u64>() as usize
    }

    /// Number of columns: the first dimension.
    pub fn cols(&self) -> usize {
        self.dims.first().map_or(0, |&cols| cols as usize)
    }
}

/// Bytes of a tensor; `None` on overflow. The caller checks that rows are whole blocks.
pub(super) fn tensor_bytes(dtype: TensorType, dims: &[u64]) -> Option<u64> {
    let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim))?;
    let elements = usize::try_from(elements).ok()?;
    let bytes = (elements / dtype.block_len()).checked_mul(dtype.block_bytes())?;
    // The size of an allocation is at most `isize::MAX`.
    isize::try_from(bytes.max(elements)).ok().map(|_| bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_in_one_table_only() {
        let mut numbers: Vec<u32> =
            TYPES.iter().filter_map(|row| row.0).chain(UNSUPPORTED.iter().map(|row| row.0)).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..=41).collect::<Vec<u32>>());
    }

    #[test]
    fn each_type_finds_its_own_row() {
        for (number, dtype, name, len, bytes) in TYPES {
            let found = (dtype.number(), dtype.name(), dtype.block_len(), dtype.block_bytes());
            assert_eq!(found, (number, name, len, bytes));
        }
    }
}
