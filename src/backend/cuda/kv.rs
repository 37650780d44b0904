//! The KV pool in device memory: `[layer][page]`, with the page layout of `kernels-cu/common/kv.cuh`.

use std::sync::Arc;

use super::driver::Context;
use super::memory::DeviceBuffer;
use super::params;
use crate::backend::{BackendError, PageMemory};
use crate::ir::{Heads, KV_SCALE_GROUP, KvDtype, KvLayout, PageId};

/// Maximum head_dim of the attention kernels.
pub(super) const HEAD_DIM_MAX: usize = 256;

/// Keys and values of all layers.
#[derive(Debug)]
pub struct KvPool {
    layout: KvLayout,
    pages: usize,
    /// Bytes of a page in one layer.
    page_bytes: usize,
    memory: DeviceBuffer,
}

impl KvPool {
    pub(super) fn new(
        context: &Arc<Context>,
        layout: KvLayout,
        pages: usize,
    ) -> Result<KvPool, BackendError> {
        let dim = layout.head_dim;
        if layout.layers > 0
            && (dim == 0 || !dim.is_multiple_of(8) || dim > HEAD_DIM_MAX || layout.kv_heads == 0)
        {
            let what = format!("a KV pool of {} heads of {dim}", layout.kv_heads);
            let reason =
                format!("the CUDA backend takes heads of a multiple of 8 elements up to {HEAD_DIM_MAX}");
            return Err(BackendError::Unavailable { what, reason });
        }
        let page_bytes = layout.page_bytes() / layout.layers.max(1);
        let bytes = pages.saturating_mul(layout.page_bytes());
        let memory = DeviceBuffer::zeroed(context, bytes, "the KV pool")?;
        Ok(KvPool { layout, pages, page_bytes, memory })
    }

    /// Whether this memory belongs to `context`, and so to its stream.
    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        self.memory.is_of(context)
    }

    /// One layer, for a kernel with `heads`.
    pub(super) fn layer(
        &self,
        op: &'static str,
        layer: usize,
        heads: Heads,
    ) -> Result<params::KvLayer, BackendError> {
        let KvLayout { layers, kv_heads, head_dim, dtype } = self.layout;
        let grouped = heads.query > 0 && heads.query.is_multiple_of(heads.kv.max(1));
        if layer >= layers || (heads.kv, heads.dim) != (kv_heads, head_dim) || !grouped {
            return Err(BackendError::Shape {
                op,
                expected: format!(
                    "a layer below {layers} with {kv_heads} heads of {head_dim}, and a multiple of them"
                ),
                found: format!("layer {layer}, {heads:?}"),
            });
        }
        Ok(params::KvLayer {
            base: self.memory.address() + (layer * self.pages * self.page_bytes) as u64,
            page_bytes: self.page_bytes as u64,
            kv_heads: kv_heads as u32,
            head_dim: head_dim as u32,
            dtype: match dtype {
                KvDtype::F16 => 0,
                KvDtype::Int8 => 1,
            },
            scale_groups: head_dim.div_ceil(KV_SCALE_GROUP) as u32,
        })
    }

    /// Byte offset of a page of a layer.
    fn offset(&self, layer: usize, page: PageId) -> Result<usize, BackendError> {
        if page.index() < self.pages {
            return Ok((layer * self.pages + page.index()) * self.page_bytes);
        }
        let expected = format!("a page below {}", self.pages);
        Err(BackendError::Shape { op: "kv page", expected, found: format!("page {}", page.0) })
    }
}

impl PageMemory for KvPool {
    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), BackendError> {
        for layer in 0..self.layout.layers {
            let (from, to) = (self.offset(layer, from)?, self.offset(layer, to)?);
            if from != to {
                self.memory.copy_within(from, to, self.page_bytes)?;
            }
        }
        Ok(())
    }

    fn export_page(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), BackendError> {
        self.offset(0, page)?;
        let start = out.len();
        out.resize(start + self.layout.page_bytes(), 0);
        for (layer, bytes) in out[start..].chunks_exact_mut(self.page_bytes.max(1)).enumerate() {
            self.memory.download(self.offset(layer, page)?, bytes)?;
        }
        Ok(())
    }

    fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), BackendError> {
        self.offset(0, page)?;
        if bytes.len() != self.layout.page_bytes() {
            let expected = format!("{} bytes", self.layout.page_bytes());
            return Err(BackendError::Shape {
                op: "kv page",
                expected,
                found: format!("{} bytes", bytes.len()),
            });
        }
        for (layer, bytes) in bytes.chunks_exact(self.page_bytes.max(1)).enumerate() {
            self.memory.upload(self.offset(layer, page)?, bytes)?;
        }
        Ok(())
    }
}
