//! Tensor maps: what `cuTensorMapEncodeTiled` writes and `cp.async.bulk.tensor` reads.
//!
//! The 128 bytes are our own layout, as they are the driver's own on a card: kernels only pass
//! their address.

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Element {
    /// One byte.
    Byte = 1,
    /// Two bytes, of any type.
    Half = 2,
    /// Four bytes, of any type.
    Word = 4,
    /// Eight bytes, of any type.
    Double = 8,
}

/// How rows of a box are permuted in shared memory, so that columns meet no bank conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Swizzle {
    /// Not at all.
    None = 0,
    /// 16-byte chunks within 32 bytes, by address bit 7.
    Bytes32 = 1,
    /// 16-byte chunks within 64 bytes, by address bits 7 and 8.
    Bytes64 = 2,
    /// 16-byte chunks within 128 bytes, by address bits 7 to 9.
    Bytes128 = 3,
}

impl Swizzle {
    /// Where the byte of this linear address lies.
    pub fn apply(self, address: u32) -> u32 {
        match self {
            Swizzle::None => address,
            Swizzle::Bytes32 => address ^ ((address >> 7 & 1) << 4),
            Swizzle::Bytes64 => address ^ ((address >> 7 & 3) << 4),
            Swizzle::Bytes128 => address ^ ((address >> 7 & 7) << 4),
        }
    }

    /// The most bytes that the inner dimension of a box may have; `None` is free.
    pub fn inner_bytes_max(self) -> Option<u32> {
        match self {
            Swizzle::None => None,
            Swizzle::Bytes32 => Some(32),
            Swizzle::Bytes64 => Some(64),
            Swizzle::Bytes128 => Some(128),
        }
    }

    fn from_bits(bits: u32) -> Option<Self> {
        [Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128]
            .into_iter()
            .find(|s| *s as u32 == bits)
    }
}

/// What is wrong with a tensor map (`CUDA_ERROR_INVALID_VALUE` on a card).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor map: {0}")]
pub struct TensorMapError(pub String);

/// A tiled tensor of 1 to 5 dimensions, the innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// The type of elements.
    pub element: Element,
    /// Address in global memory, a multiple of 16.
    pub address: u64,
    /// Elements in each dimension.
    pub dims: Vec<u64>,
    /// Bytes between neighbours in each dimension but the innermost, multiples of 16.
    pub strides: Vec<u64>,
    /// Elements of the box in each dimension, 1 to 256.
    pub box_dims: Vec<u32>,
    /// The permutation in shared memory.
    pub swizzle: Swizzle,
    /// Whether elements outside of the tensor read as NaN instead of zero.
    pub fill_nan: bool,
}

const MAGIC: u32 = 0x454d_4d54;

impl TensorMap {
    /// Bytes of an encoded map.
    pub const BYTES: usize = 128;

    /// Checks the map against the rules of `cuTensorMapEncodeTiled`.
    ///
    /// # Errors
    /// The first rule that it breaks, in words.
    pub fn validate(&self) -> Result<(), TensorMapError> {
        let fail = |message: String| Err(TensorMapError(message));
        let rank = self.dims.len();
        if !(1..=5).contains(&rank) || self.strides.len() != rank - 1 || self.box_dims.len() != rank {
            return fail(format!(
                "rank {rank} with {} strides and {} box dimensions",
                self.strides.len(),
                self.box_dims.len()
            ));
        }
        if !self.address.is_multiple_of(16) {
            return fail(format!("address {:#x} is not a multiple of 16", self.address));
        }
        if let Some(dim) = self.dims.iter().find(|d| **d == 0 || **d > 1 << 32) {
            return fail(format!("dimension of {dim} elements, must be 1 to 2^32"));
        }
        if let Some(stride) = self.strides.iter().find(|s| **s % 16 != 0 || **s >= 1 << 40) {
            return fail(format!("stride of {stride} bytes, must be a multiple of 16 below 2^40"));
        }
        if let Some(dim) = self.box_dims.iter().find(|d| !(1..=256).contains(*d)) {
            return fail(format!("box dimension of {dim} elements, must be 1 to 256"));
        }
        let inner = self.box_dims[0] * self.element as u32;
        if !inner.is_multiple_of(16) {
            return fail(format!("inner box dimension of {inner} bytes, must be a multiple of 16"));
        }
        match self.swizzle.inner_bytes_max() {
            Some(most) if inner > most => {
                fail(format!("inner box dimension of {inner} bytes, at most {most} with {:?}", self.swizzle))
            }
            _ => Ok(()),
        }
    }

    /// The 128 bytes that a kernel's parameter holds.
    ///
    /// # Errors
    /// As [`TensorMap::validate`].
    pub fn encode(&self) -> Result<[u8; Self::BYTES], TensorMapError> {
        self.validate()?;
        let mut bytes = [0; Self::BYTES];
        let words = [
            MAGIC,
            self.dims.len() as u32,
            self.element as u32,
            self.swizzle as u32 | u32::from(self.fill_nan) << 8,
        ];
        for (slot, word) in bytes.chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes[16..24].copy_from_slice(&self.address.to_le_bytes());
        for axis in 0..self.dims.len() {
            // Sizes are stored less one: 2^32 elements fit in 32 bits.
            bytes[24 + axis * 4..][..4].copy_from_slice(&((self.dims[axis] - 1) as u32).to_le_bytes());
            bytes[44 + axis * 4..][..4].copy_from_slice(&self.box_dims[axis].to_le_bytes());
            if axis > 0 {
                bytes[64 + axis * 8..][..8].copy_from_slice(&self.strides[axis - 1].to_le_bytes());
            }
        }
        Ok(bytes)
    }

    /// Reads encoded bytes back.
    ///
    /// # Errors
    /// The bytes are no encoded tensor map.
    pub fn decode(bytes: &[u8; Self::BYTES]) -> Result<TensorMap, TensorMapError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let wide = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let element = [Element::Byte, Element::Half, Element::Word, Element::Double];
        let element = element.into_iter().find(|e| *e as u32 == word(8));
        let (Some(element), Some(swizzle), MAGIC, rank @ 1..=5) =
            (element, Swizzle::from_bits(word(12) & 0xff), word(0), word(4) as usize)
        else {
            return Err(TensorMapError("not an encoded tensor map".to_string()));
        };
        let map = TensorMap {
            element,
            address: wide(16),
            dims: (0..rank).map(|axis| u64::from(word(24 + axis * 4)) + 1).collect(),
            strides: (1..rank).map(|axis| wide(64 + axis * 8)).collect(),
            box_dims: (0..rank).map(|axis| word(44 + axis * 4)).collect(),
            swizzle,
            fill_nan: word(12) >> 8 != 0,
        };
        map.validate().map(|()| map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_decodes() {
        let map = TensorMap {
            element: Element::Half,
            address: 0x7f12_3456_7890,
            dims: vec![1 << 32, 7, 3],
            strides: vec![128, 1 << 39],
            box_dims: vec![64, 7, 1],
            swizzle: Swizzle::Bytes128,
            fill_nan: true,
        };
        assert_eq!(TensorMap::decode(&map.encode().unwrap()).unwrap(), map);
        assert!(TensorMap { address: 8, ..map.clone() }.encode().is_err());
        assert!(TensorMap { box_dims: vec![72, 7, 1], ..map }.encode().is_err());
        assert!(TensorMap::decode(&[0; 128]).is_err());
    }
}
