//! The CPU's KV pool: the layout of a page's keys and values; copying, exporting and importing pages.
//! `append` writes pages, `attention` reads them.
//!
//! A layer is one allocation, `[page][kv_head]` of blocks. A block holds [`PAGE_TOKENS`] keys,
//! transposed so that one vector load gives the same element of 16 keys, then their values:
//!
//! | dtype | keys | key scales | values | value scales |
//! |---|---|---|---|---|
//! | f16 | `f16 [dim][16]` | | `f16 [16][dim]` | |
//! | int8 | `i8 [dim][16]` | `f16 [groups][16]` | `i8 [16][dim]` | `f16 [groups][16]` |

use super::Buffer;
use crate::backend::states::States;
use crate::backend::{BackendError, PageMemory, StateMemory, shape_error};
use crate::ir::{Heads, KV_SCALE_GROUP, KvDtype, KvLayout, PAGE_TOKENS, PageId};

/// Vector loads of a ragged head may run this far past a layer's last block.
const OVERREAD_BYTES: usize = 128;

/// Offsets in a block, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockShape {
    /// Storage type of the elements.
    pub dtype: KvDtype,
    /// Elements per head.
    pub dim: usize,
    /// Scales per head, with [`KvDtype::Int8`].
    pub groups: usize,
    /// Offset of the key scales.
    pub key_scales: usize,
    /// Offset of the values.
    pub values: usize,
    /// Offset of the value scales.
    pub value_scales: usize,
    /// Size of the block.
    pub bytes: usize,
}

impl BlockShape {
    /// The shape of a block of `layout`.
    pub fn new(layout: &KvLayout) -> BlockShape {
        let dim = layout.head_dim;
        let (element, groups) = match layout.dtype {
            KvDtype::F16 => (2, 0),
            KvDtype::Int8 => (1, dim.div_ceil(KV_SCALE_GROUP)),
        };
        let codes = PAGE_TOKENS * dim * element;
        let scales = PAGE_TOKENS * groups * 2;
        BlockShape {
            dtype: layout.dtype,
            dim,
            groups,
            key_scales: codes,
            values: codes + scales,
            value_scales: 2 * codes + scales,
            bytes: 2 * (codes + scales),
        }
    }
}

/// Keys and values of all layers, and recurrent states of sequences. Layers may differ in their heads.
#[derive(Debug)]
pub struct KvPool {
    pages: usize,
    layers: Vec<Layer>,
    pub(in crate::backend) states: States<f32>,
}

#[derive(Debug)]
struct Layer {
    memory: Buffer,
    kv_heads: usize,
    shape: BlockShape,
}

impl Layer {
    fn page_bytes(&self) -> usize {
        self.kv_heads * self.shape.bytes
    }
}

/// One layer of a pool, for kernels: plain addresses, valid while the pool is borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KvLayer {
    base: *mut u8,
    kv_heads: usize,
    pages: usize,
    /// The blocks' shape.
    pub shape: BlockShape,
}

// SAFETY: an address and sizes. Code that dereferences it promises to keep writers apart.
unsafe impl Send for KvLayer {}
// SAFETY: as for `Send`.
unsafe impl Sync for KvLayer {}

impl KvLayer {
    /// The block of a page and a kv head.
    ///
    /// # Panics
    /// If either is out of range; a checked step has no such page.
    #[inline(always)]
    pub fn block(&self, page: PageId, kv_head: usize) -> *mut u8 {
        assert!(page.index() < self.pages && kv_head < self.kv_heads, "page outside the pool");
        // SAFETY: just checked against the size that the layer was allocated with.
        unsafe { self.base.add((page.index() * self.kv_heads + kv_head) * self.shape.bytes) }
    }
}

impl KvPool {
    /// Allocates a pool of `pages` zeroed pages.
    ///
    /// # Errors
    /// [`BackendError::Unavailable`] for layers without heads or heads without elements,
    /// [`BackendError::OutOfMemory`].
    pub(crate) fn new(layout: KvLayout, pages: usize) -> Result<KvPool, BackendError> {
        let mut pool = KvPool { pages, layers: Vec::new(), states: States::default() };
        pool.add_layers(layout)?;
        Ok(pool)
    }

    /// The number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// One layer, for a kernel with `heads`. A kernel may write it only while the pool is borrowed mutably.
    pub(crate) fn layer_for(
        &mut self,
        op: &'static str,
        layer: usize,
        heads: Heads,
    ) -> Result<KvLayer, BackendError> {
        let count = self.layers.len();
        let refuse = |expected| {
            let found = format!("layer {layer}, {} heads of {}", heads.kv, heads.dim);
            Err(shape_error(op, expected, found))
        };
        let Some(found) = self.layers.get_mut(layer) else {
            return refuse(format!("a layer below {count}"));
        };
        let (kv_heads, shape) = (found.kv_heads, found.shape);
        if (heads.kv, heads.dim) != (kv_heads, shape.dim) {
            return refuse(format!("a layer of {kv_heads} heads of {}", shape.dim));
        }
        Ok(KvLayer { base: found.memory.as_mut_ptr(), kv_heads, pages: self.pages, shape })
    }

    fn check(&self, page: PageId) -> Result<usize, BackendError> {
        if page.index() < self.pages {
            return Ok(page.index());
        }
        Err(shape_error("kv page", format!("a page below {}", self.pages), format!("page {}", page.0)))
    }
}

impl PageMemory for KvPool {
    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), BackendError> {
        let (from, to) = (self.check(from)?, self.check(to)?);
        for layer in &mut self.layers {
            let bytes = layer.page_bytes();
            layer.memory.elements_mut::<u8>().copy_within(from * bytes..(from + 1) * bytes, to * bytes);
        }
        Ok(())
    }

    fn export_page(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), BackendError> {
        let page = self.check(page)?;
        for layer in &self.layers {
            let bytes = layer.page_bytes();
            out.extend_from_slice(&layer.memory.as_slice()[page * bytes..(page + 1) * bytes]);
        }
        Ok(())
    }

    fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), BackendError> {
        let page = self.check(page)?;
        let expected: usize = self.layers.iter().map(Layer::page_bytes).sum();
        if bytes.len() != expected {
            let found = format!("{} bytes", bytes.len());
            return Err(shape_error("kv page", format!("{expected} bytes"), found));
        }
        let mut rest = bytes;
        for layer in &mut self.layers {
            let size = layer.page_bytes();
            let (part, after) = rest.split_at(size);
            layer.memory.elements_mut::<u8>()[page * size..(page + 1) * size].copy_from_slice(part);
            rest = after;
        }
        Ok(())
    }

    fn add_layers(&mut self, layout: KvLayout) -> Result<(), BackendError> {
        let (dim, pages) = (layout.head_dim, self.pages);
        if layout.layers > 0 && (dim == 0 || layout.kv_heads == 0) {
            let what = format!("a KV pool of {} heads of {}", layout.kv_heads, layout.head_dim);
            let reason = "the CPU backend takes at least one head of at least one element".into();
            return Err(BackendError::Unavailable { what, reason });
        }
        let no_memory = || {
            let bytes = pages.saturating_mul(layout.page_bytes());
            BackendError::OutOfMemory { bytes, what: "the KV pool" }
        };
        let (kv_heads, shape) = (layout.kv_heads, BlockShape::new(&layout));
        let layer_bytes = pages
            .checked_mul(kv_heads)
            .and_then(|blocks| blocks.checked_mul(shape.bytes))
            .and_then(|bytes| bytes.checked_add(OVERREAD_BYTES))
            .ok_or_else(no_memory)?;
        let layer = |_| Ok(Layer { memory: Buffer::sparse(layer_bytes, "the KV pool")?, kv_heads, shape });
        let layers = (0..layout.layers).map(layer).collect::<Result<Vec<_>, BackendError>>();
        self.layers.extend(layers.map_err(|_| no_memory())?);
        Ok(())
    }

    fn states(&self) -> Option<&dyn StateMemory> {
        Some(&self.states)
    }

    fn states_mut(&mut self) -> Option<&mut dyn StateMemory> {
        Some(&mut self.states)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(layers: usize, kv_heads: usize, head_dim: usize, dtype: KvDtype) -> KvLayout {
        KvLayout { layers, kv_heads, head_dim, dtype }
    }

    #[test]
    fn blocks_add_up_to_the_contract_s_page() {
        for dtype in [KvDtype::F16, KvDtype::Int8] {
            for dim in [1, 5, 8, 12, 16, 40, 64, 72, 80, 96, 100, 128, 256] {
                let layout = layout(3, 5, dim, dtype);
                assert_eq!(3 * 5 * BlockShape::new(&layout).bytes, layout.page_bytes());
            }
        }
    }

    #[test]
    fn empty_heads_and_impossible_sizes_are_refused() {
        for (kv_heads, dim) in [(1, 0), (0, 64)] {
            let empty = KvPool::new(layout(1, kv_heads, dim, KvDtype::F16), 1);
            assert!(matches!(empty, Err(BackendError::Unavailable { .. })));
        }
        for pages in [usize::MAX / 16, usize::MAX / 4096] {
            let huge = KvPool::new(layout(1, 1, 64, KvDtype::F16), pages);
            assert!(matches!(huge, Err(BackendError::OutOfMemory { .. })));
        }
    }

    #[test]
    fn pages_outside_the_pool_and_wrong_lengths_are_refused() {
        let mut pool = KvPool::new(layout(2, 1, 16, KvDtype::F16), 3).unwrap();
        let bytes = layout(2, 1, 16, KvDtype::F16).page_bytes();
        assert!(pool.copy_page(PageId(0), PageId(3)).is_err());
        assert!(pool.copy_page(PageId(3), PageId(0)).is_err());
        assert!(pool.export_page(PageId(3), &mut Vec::new()).is_err());
        assert!(pool.import_page(PageId(3), &vec![0; bytes]).is_err());
        assert!(pool.import_page(PageId(2), &vec![0; bytes - 1]).is_err());
        assert!(pool.import_page(PageId(2), &vec![0; bytes]).is_ok());
    }

    proptest! {
        #[test]
        fn exported_pages_come_back_and_leave_their_neighbours_alone(
            layers in 1usize..4, kv_heads in 1usize..4, dim in 1usize..96, int8: bool,
            order in Just((0u32..6).collect::<Vec<_>>()).prop_shuffle(), seed: u8,
        ) {
            let dtype = if int8 { KvDtype::Int8 } else { KvDtype::F16 };
            let layout = layout(layers, kv_heads, dim, dtype);
            let others = KvLayout { kv_heads: 2, head_dim: 24, ..layout };
            let mut pool = KvPool::new(layout, 6).unwrap();
            pool.add_layers(others).unwrap();
            let content = |page: u32| -> Vec<u8> {
                let bytes = 0..layout.page_bytes() + others.page_bytes();
                bytes.map(|i| (i as u8).wrapping_mul(31) ^ (page as u8).wrapping_mul(seed | 1)).collect()
            };
            for &page in &order {
                pool.import_page(PageId(page), &content(page)).unwrap();
            }
            pool.copy_page(PageId(order[0]), PageId(order[1])).unwrap();
            pool.copy_page(PageId(order[2]), PageId(order[2])).unwrap();
            for page in 0..6 {
                let source = if page == order[1] { order[0] } else { page };
                let mut out = vec![7];
                pool.export_page(PageId(page), &mut out).unwrap();
                prop_assert_eq!(out[0], 7);
                prop_assert_eq!(&out[1..], &content(source)[..]);
            }
        }
    }
}
