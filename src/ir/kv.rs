//! KV cache layout: shape and storage type.

use super::{Heads, PAGE_TOKENS};

/// Storage type of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// IEEE half precision; out-of-range values saturate.
    F16,
    /// 8-bit codes with one f16 scale per 32 elements of a head.
    Int8,
}

/// Elements per scale in [`KvDtype::Int8`].
pub const KV_SCALE_GROUP: usize = 32;

/// Layout of a KV pool, or of its layers of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Number of layers with attention.
    pub layers: usize,
    /// KV heads per layer.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Storage type.
    pub dtype: KvDtype,
}

impl KvLayout {
    /// Bytes of one page in all layers, keys and values together.
    pub fn page_bytes(&self) -> usize {
        let head = match self.dtype {
            KvDtype::F16 => 2 * self.head_dim,
            KvDtype::Int8 => self.head_dim + 2 * self.head_dim.div_ceil(KV_SCALE_GROUP),
        };
        self.layers * 2 * self.kv_heads * PAGE_TOKENS * head
    }

    /// Number of pages that fit in `bytes`.
    pub fn pages_in(&self, bytes: usize) -> usize {
        bytes / self.page_bytes().max(1)
    }
}

impl Heads {
    /// Bytes of a token's keys and values.
    pub(super) fn kv_bytes(&self, dtype: KvDtype) -> usize {
        let Heads { kv: kv_heads, dim: head_dim, .. } = *self;
        KvLayout { layers: 1, kv_heads, head_dim, dtype }.page_bytes() / PAGE_TOKENS
    }
}
