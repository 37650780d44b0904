//! The shape of keys and values, and how they are stored.

use super::{Heads, PAGE_TOKENS};

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// IEEE half precision; values beyond its range saturate.
    F16,
    /// 8-bit codes with an f16 scale for every 32 elements of a head.
    Int8,
}

/// Elements of a head that share a scale in [`KvDtype::Int8`].
pub const KV_SCALE_GROUP: usize = 32;

/// The shape of a KV pool, or of those of its layers that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers with an attention.
    pub layers: usize,
    /// Key and value heads of a layer.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// How elements are stored.
    pub dtype: KvDtype,
}

impl KvLayout {
    /// Bytes that one page takes over all layers, keys and values together.
    pub fn page_bytes(&self) -> usize {
        let head = match self.dtype {
            KvDtype::F16 => 2 * self.head_dim,
            KvDtype::Int8 => self.head_dim + 2 * self.head_dim.div_ceil(KV_SCALE_GROUP),
        };
        self.layers * 2 * self.kv_heads * PAGE_TOKENS * head
    }

    /// Pages that fit in `bytes`.
    pub fn pages_in(&self, bytes: usize) -> usize {
        bytes / self.page_bytes().max(1)
    }
}

impl Heads {
    /// Bytes of the keys and values of a token.
    pub(super) fn kv_bytes(&self, dtype: KvDtype) -> usize {
        let Heads { kv: kv_heads, dim: head_dim, .. } = *self;
        KvLayout { layers: 1, kv_heads, head_dim, dtype }.page_bytes() / PAGE_TOKENS
    }
}
